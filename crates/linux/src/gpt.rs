//! Partitions of a disk: the table, and what the kernel knows of it.
//!
//! The table is read and written by `gptman`. The kernel is told of the one partition that changed:
//! it does not read the table of a disk again that is in use.
//!
//! Invariant: a disk without a valid table is never changed, and neither is a partition that does
//! not carry the label that the caller names.

use std::fs::File;
use std::path::{Path, PathBuf};

use gptman::{GPT, GPTPartitionEntry};

use crate::kernel::PartitionChange;
use crate::{Kernel, SystemError};

/// Partitions begin and end at multiples of this.
const ALIGNMENT: u64 = 1 << 20;
/// Linux RAID, in the byte order of the table.
const LINUX_RAID: [u8; 16] = [
    0x0F, 0x88, 0x9D, 0xA1, 0xFC, 0x05, 0x3B, 0x4D, 0xA0, 0x06, 0x74, 0x3F, 0x0F, 0x84, 0x91, 0x1E,
];

/// A partition, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Its number.
    pub number: u32,
    /// Its UUID, in its usual form.
    pub uuid: String,
    /// Its label.
    pub label: String,
    /// Where it begins.
    pub start: u64,
    /// How long it is.
    pub bytes: u64,
    /// How long it can become where it is.
    pub room: u64,
}

/// The partitions of a disk and the space between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// All partitions, by number.
    pub partitions: Vec<Partition>,
    /// Free regions in bytes, aligned: start and length.
    pub free: Vec<(u64, u64)>,
}

fn failed(operation: &'static str, disk: &Path) -> impl Fn(gptman::Error) -> SystemError {
    move |error| match error {
        gptman::Error::Io(source) => SystemError::new(operation, disk, source),
        other => SystemError::refused(operation, disk, other.to_string())
            .remedy("only disks with a GPT are used: make one with sgdisk --clear if it is empty"),
    }
}

struct Table {
    file: File,
    gpt: GPT,
}

impl Table {
    fn open(
        kernel: &dyn Kernel,
        operation: &'static str,
        disk: &Path,
    ) -> Result<Table, SystemError> {
        let opened = kernel.open_table(disk);
        let mut file = opened.map_err(|source| SystemError::new(operation, disk, source))?;
        let mut gpt = GPT::find_from(&mut file).map_err(failed(operation, disk))?;
        gpt.align = ALIGNMENT / gpt.sector_size;
        Ok(Table { file, gpt })
    }

    fn write(&mut self, operation: &'static str, disk: &Path) -> Result<(), SystemError> {
        self.gpt.write_into(&mut self.file).map_err(failed(operation, disk))?;
        self.file.sync_all().map_err(|source| SystemError::new(operation, disk, source))
    }

    /// Free regions in sectors, aligned at both ends.
    fn free(&self) -> Vec<(u64, u64)> {
        let align = self.gpt.align;
        let whole = |(start, length): (u64, u64)| {
            let first = start.next_multiple_of(align);
            let end = (start + length) / align * align;
            (end > first).then(|| (first, end - first))
        };
        self.gpt.find_free_sectors().into_iter().filter_map(whole).collect()
    }

    fn find(&self, uuid: &str) -> Option<u32> {
        let mut used = self.gpt.iter().filter(|(_, entry)| entry.is_used());
        used.find(|(_, entry)| uuid_text(entry.unique_partition_guid) == uuid)
            .map(|(number, _)| number)
    }

    fn bytes(&self, entry: &GPTPartitionEntry) -> (u64, u64) {
        let size = self.gpt.sector_size;
        let sectors = (entry.ending_lba + 1).saturating_sub(entry.starting_lba);
        (entry.starting_lba.saturating_mul(size), sectors.saturating_mul(size))
    }

    fn room(&self, entry: &GPTPartitionEntry) -> u64 {
        let next = entry.ending_lba + 1;
        let behind = self.free().into_iter().find(|(start, _)| *start == next);
        let (_, bytes) = self.bytes(entry);
        bytes.saturating_add(behind.map_or(0, |(_, length)| length * self.gpt.sector_size))
    }
}

/// What is on a disk.
pub fn layout(kernel: &dyn Kernel, disk: &Path) -> Result<Layout, SystemError> {
    let table = Table::open(kernel, "read the partition table of", disk)?;
    let used = table.gpt.iter().filter(|(_, entry)| entry.is_used());
    let partition = |(number, entry): (u32, &GPTPartitionEntry)| {
        let (start, bytes) = table.bytes(entry);
        Partition {
            number,
            uuid: uuid_text(entry.unique_partition_guid),
            label: entry.partition_name.as_str().to_owned(),
            start,
            bytes,
            room: table.room(entry),
        }
    };
    let partitions = used.map(partition).collect();
    let size = table.gpt.sector_size;
    let free = table.free().into_iter().map(|(start, length)| (start * size, length * size));
    Ok(Layout { partitions, free: free.collect() })
}

/// Makes a partition in the smallest free region that holds it. One with this UUID that is there
/// already is made known to the kernel again.
pub fn create(
    kernel: &dyn Kernel,
    disk: &Path,
    (uuid, label): (&str, &str),
    bytes: u64,
) -> Result<(), SystemError> {
    let operation = "make a partition on";
    let mut table = Table::open(kernel, operation, disk)?;
    let number = if let Some(number) = table.find(uuid) {
        number
    } else {
        let sectors = bytes.next_multiple_of(ALIGNMENT) / table.gpt.sector_size;
        let mut free = table.free();
        free.retain(|(_, length)| *length >= sectors);
        let (start, _) = free.into_iter().min_by_key(|(_, length)| *length).ok_or_else(|| {
            SystemError::refused(operation, disk, format!("no free region has {bytes} bytes"))
        })?;
        let unused = table.gpt.iter().find(|(_, entry)| entry.is_unused());
        let (number, _) = unused
            .ok_or_else(|| SystemError::refused(operation, disk, "its table has no free entry"))?;
        let guid = uuid_bytes(uuid)
            .ok_or_else(|| SystemError::refused(operation, disk, format!("{uuid} is no UUID")))?;
        table.gpt[number] = GPTPartitionEntry {
            partition_type_guid: LINUX_RAID,
            unique_partition_guid: guid,
            starting_lba: start,
            ending_lba: start + sectors - 1,
            attribute_bits: 0,
            partition_name: label.into(),
        };
        table.write(operation, disk)?;
        number
    };
    let (start, length) = table.bytes(&table.gpt[number]);
    match kernel.change_partition(disk, &PartitionChange::Add { number, start, length }) {
        // The kernel knows it already.
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Ok(()),
        result => result.map_err(|source| SystemError::new(operation, disk, source)),
    }
}

/// Gives a partition of ours another label.
pub fn relabel(
    kernel: &dyn Kernel,
    disk: &Path,
    uuid: &str,
    (from, to): (&str, &str),
) -> Result<(), SystemError> {
    let operation = "label a partition of";
    let mut table = Table::open(kernel, operation, disk)?;
    let number = ours(&table, operation, disk, (uuid, &[from, to]))?;
    table.gpt[number].partition_name = to.into();
    table.write(operation, disk)
}

/// Lets a partition of ours end later.
pub fn grow(
    kernel: &dyn Kernel,
    disk: &Path,
    (uuid, label): (&str, &str),
    bytes: u64,
) -> Result<(), SystemError> {
    let operation = "grow a partition of";
    let mut table = Table::open(kernel, operation, disk)?;
    let number = ours(&table, operation, disk, (uuid, &[label]))?;
    let room = table.room(&table.gpt[number]);
    let (start, has) = table.bytes(&table.gpt[number]);
    if bytes > room {
        let message = format!("{bytes} bytes are wanted and there is room for {room}");
        return Err(SystemError::refused(operation, disk, message));
    }
    let length = bytes.max(has);
    let size = table.gpt.sector_size;
    table.gpt[number].ending_lba = (start + length) / size - 1;
    table.write(operation, disk)?;
    let change = PartitionChange::Resize { number, start, length };
    kernel
        .change_partition(disk, &change)
        .map_err(|source| SystemError::new(operation, disk, source))
}

/// Removes a partition of ours; one that is not there is no error.
pub fn remove(
    kernel: &dyn Kernel,
    disk: &Path,
    uuid: &str,
    labels: &[&str],
) -> Result<(), SystemError> {
    let operation = "remove a partition of";
    let mut table = Table::open(kernel, operation, disk)?;
    if table.find(uuid).is_none() {
        return Ok(());
    }
    let number = ours(&table, operation, disk, (uuid, labels))?;
    // First the kernel: it refuses for one that is in use, and then nothing has changed.
    match kernel.change_partition(disk, &PartitionChange::Delete { number }) {
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => {}
        result => result.map_err(|source| SystemError::new(operation, disk, source))?,
    }
    table.gpt.remove(number).map_err(failed(operation, disk))?;
    table.write(operation, disk)
}

fn ours(
    table: &Table,
    operation: &'static str,
    disk: &Path,
    (uuid, labels): (&str, &[&str]),
) -> Result<u32, SystemError> {
    let number = table.find(uuid).ok_or_else(|| {
        SystemError::refused(operation, disk, format!("it has no partition {uuid}"))
    })?;
    let label = table.gpt[number].partition_name.as_str();
    if labels.contains(&label) {
        return Ok(number);
    }
    let message = format!("partition {uuid} has the label {label:?}, which is not ours");
    Err(SystemError::refused(operation, disk, message))
}

/// The device of a partition: `nvme0n1p3`, `vda3`.
pub fn device(disk: &Path, number: u32) -> PathBuf {
    let disk = disk.display().to_string();
    let between = if disk.ends_with(|last: char| last.is_ascii_digit()) { "p" } else { "" };
    PathBuf::from(format!("{disk}{between}{number}"))
}

/// The first three fields of a UUID are little-endian in the table.
const ORDER: [usize; 16] = [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15];

fn uuid_text(guid: [u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (place, from) in ORDER.into_iter().enumerate() {
        if matches!(place, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        let byte = guid.get(from).copied().unwrap_or_default();
        for digit in [byte >> 4, byte & 15] {
            text.push(char::from_digit(u32::from(digit), 16).unwrap_or('0'));
        }
    }
    text
}

fn uuid_bytes(text: &str) -> Option<[u8; 16]> {
    let digits: Vec<u8> = text
        .chars()
        .filter(|digit| *digit != '-')
        .map(|digit| digit.to_digit(16).and_then(|digit| u8::try_from(digit).ok()))
        .collect::<Option<_>>()?;
    let mut guid = [0; 16];
    for (place, pair) in digits.as_chunks::<2>().0.iter().enumerate() {
        *guid.get_mut(*ORDER.get(place)?)? = pair[0] << 4 | pair[1];
    }
    (digits.len() == 32).then_some(guid)
}

/// Makes an empty table on a disk image.
#[cfg(any(test, feature = "testing"))]
pub fn make_table(file: &mut File, sector_size: u64) -> std::io::Result<()> {
    GPT::write_protective_mbr_into(file, sector_size).map_err(std::io::Error::other)?;
    let mut gpt = GPT::new_from(file, sector_size, [7; 16]).map_err(std::io::Error::other)?;
    gpt.write_into(file).map_err(std::io::Error::other)?;
    Ok(())
}

#[cfg(test)]
mod tests;
