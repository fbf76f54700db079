//! How a disk writes: its queue's limits, for a device and for the disk under a file.
//!
//! Invariant: what the kernel does not say is taken at its worst ([`DiskTraits::UNKNOWN`]), so that
//! nobody relies on more than was promised.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use model::{DiskTraits, WriteCache};

use crate::Tree;
use crate::mounts::Users;
use crate::tree::{names, number, word};

/// More layers of mapped devices than anybody stacks.
const STACKED: u32 = 8;

/// How the disk at a path writes: the device itself, or the one that holds the file system of a
/// file or folder.
pub fn disk_traits(tree: &Tree, path: &Path) -> DiskTraits {
    let Ok(metadata) = fs::metadata(path) else { return DiskTraits::UNKNOWN };
    if metadata.file_type().is_block_device() {
        return of_number(tree, &device_number(metadata.rdev()));
    }
    of_file(tree, &device_number(metadata.dev()), file_system_block(path))
}

/// The disk under a file system with blocks of this size.
fn of_file(tree: &Tree, device: &str, file_system_block: u32) -> DiskTraits {
    if device.starts_with("0:") {
        // A file system of several devices has a number of its own; its source names one of them,
        // and the others may promise less.
        let source = Users::read(tree).source(device).map(str::to_owned);
        let traits = source.map_or(DiskTraits::UNKNOWN, |source| of_source(tree, &source));
        return DiskTraits { atomic_write_unit: DiskTraits::SECTOR, ..traits };
    }
    let traits = of_number(tree, device);
    // Two blocks of a file system that are neighbours in a file may lie apart on the disk.
    let atomic_write_unit = traits.atomic_write_unit.min(file_system_block);
    DiskTraits { atomic_write_unit: atomic_write_unit.max(DiskTraits::SECTOR), ..traits }
}

/// The block size of a file system: what `stat` calls so is never less than a page.
fn file_system_block(path: &Path) -> u32 {
    let size = rustix::fs::statvfs(path).ok().and_then(|found| u32::try_from(found.f_frsize).ok());
    size.unwrap_or(DiskTraits::SECTOR)
}

fn of_number(tree: &Tree, device: &str) -> DiskTraits {
    of_link(tree.path(&format!("/sys/dev/block/{device}")))
}

/// A device by the path that was mounted. What is no device has no traits.
fn of_source(tree: &Tree, source: &str) -> DiskTraits {
    let Ok(device) = fs::canonicalize(tree.path(source)) else { return DiskTraits::UNKNOWN };
    let name = device.file_name().and_then(|name| name.to_str());
    match name.filter(|_| source.starts_with("/dev/")) {
        Some(name) => of_link(tree.path("/sys/class/block").join(name)),
        None => DiskTraits::UNKNOWN,
    }
}

fn of_link(link: PathBuf) -> DiskTraits {
    fs::canonicalize(link).map_or(DiskTraits::UNKNOWN, |folder| of_folder(&folder))
}

/// The traits of a device, from its folder in `/sys` without links.
pub(crate) fn of_folder(folder: &Path) -> DiskTraits {
    of_stack(folder, STACKED)
}

/// The same, looking at so many layers of devices below it.
fn of_stack(folder: &Path, layers: u32) -> DiskTraits {
    let is_partition = folder.join("partition").exists();
    let disk = folder.parent().filter(|_| is_partition).unwrap_or(folder);
    let queue = disk.join("queue");
    let bytes = |file: &str| {
        let bytes = number(&queue.join(file)).and_then(|bytes| u32::try_from(bytes).ok());
        bytes.filter(|bytes| bytes.is_power_of_two() && *bytes >= DiskTraits::SECTOR)
    };
    let logical = bytes("logical_block_size").unwrap_or(DiskTraits::SECTOR);
    let physical = bytes("physical_block_size").unwrap_or(logical).max(logical);
    let atomic = bytes("atomic_write_unit_max_bytes").unwrap_or(physical).max(physical);
    let aligned = atomic.min(alignment(folder, is_partition)).max(logical);
    DiskTraits {
        logical_block_size: logical,
        physical_block_size: physical,
        atomic_write_unit: aligned.min(below(disk, layers)),
        write_cache: match word(&queue.join("write_cache")).as_deref() {
            Some("write through") => WriteCache::Protected,
            Some("write back") => WriteCache::Volatile,
            _ => WriteCache::Unknown,
        },
        rotational: number(&queue.join("rotational")) == Some(1),
    }
}

/// The atomic write unit of what a device is made of. A mapped device shows the largest sectors of
/// those below it, or larger ones of its own (dm-crypt), but tears what the smallest of them tears.
/// Without any below it, it is a disk and keeps its own word; a loop device is made of a file.
fn below(disk: &Path, layers: u32) -> u32 {
    if disk.join("loop").exists() {
        return DiskTraits::SECTOR;
    }
    let slaves = disk.join("slaves");
    let unit = |name: &String| match fs::canonicalize(slaves.join(name)) {
        Ok(folder) if layers > 0 => of_stack(&folder, layers - 1).atomic_write_unit,
        _ => DiskTraits::SECTOR,
    };
    names(&slaves).iter().map(unit).min().unwrap_or(u32::MAX)
}

/// The largest power of two to which the first byte of a device is aligned on its disk: a unit that
/// straddles two of the disk's is not written as a whole.
fn alignment(folder: &Path, is_partition: bool) -> u32 {
    let told = folder.join("alignment_offset");
    // A stack whose parts contradict each other says -1.
    let offset = number(&told).unwrap_or(u64::from(told.exists()));
    let start = if is_partition { number(&folder.join("start")) } else { Some(0) };
    let first = start.unwrap_or(1).saturating_mul(u64::from(DiskTraits::SECTOR));
    let zeros = (first | offset).trailing_zeros().min(31);
    1 << zeros
}

/// `major:minor`, from the number that the kernel packs them into.
fn device_number(packed: u64) -> String {
    let major = ((packed >> 8) & 0xfff) | ((packed >> 32) & 0xffff_f000);
    let minor = (packed & 0xff) | ((packed >> 12) & 0xffff_ff00);
    format!("{major}:{minor}")
}

#[cfg(test)]
mod tests;
