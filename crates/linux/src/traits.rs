//! How a disk writes: its queue's limits, for a device and for the disk under a file.
//!
//! Invariant: what the kernel does not say is taken at its worst ([`DiskTraits::UNKNOWN`]), so that
//! nobody relies on more than was promised.

use std::fs::{self, Metadata};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use model::{DiskTraits, WriteCache};

use crate::Tree;
use crate::mounts::Users;
use crate::tree::{number, word};

/// How the disk at a path writes: the device itself, or the one that holds the file system of a
/// file or folder.
pub fn disk_traits(tree: &Tree, path: &Path) -> DiskTraits {
    let Ok(metadata) = fs::metadata(path) else { return DiskTraits::UNKNOWN };
    if metadata.file_type().is_block_device() {
        return of_number(tree, &device_number(metadata.rdev()));
    }
    of_file(tree, &metadata)
}

fn of_file(tree: &Tree, metadata: &Metadata) -> DiskTraits {
    let device = device_number(metadata.dev());
    let mut traits = if device.starts_with("0:") {
        // A file system of several devices has a number of its own; its source names one of them.
        let source = Users::read(tree).source(&device).map(str::to_owned);
        source.map_or(DiskTraits::UNKNOWN, |source| of_source(tree, &source))
    } else {
        of_number(tree, &device)
    };
    // Two blocks of a file system that are neighbours in a file may lie apart on the disk.
    let together = u32::try_from(metadata.blksize()).unwrap_or(u32::MAX);
    traits.atomic_write_unit = traits.atomic_write_unit.min(together).max(DiskTraits::SECTOR);
    traits
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
    DiskTraits {
        logical_block_size: logical,
        physical_block_size: physical,
        atomic_write_unit: atomic.min(alignment(folder, is_partition)).max(logical),
        write_cache: match word(&queue.join("write_cache")).as_deref() {
            Some("write through") => WriteCache::Protected,
            Some("write back") => WriteCache::Volatile,
            _ => WriteCache::Unknown,
        },
        rotational: number(&queue.join("rotational")) == Some(1),
    }
}

/// The largest power of two to which the first byte of a device is aligned on its disk: a unit that
/// straddles two of the disk's is not written as a whole.
fn alignment(folder: &Path, is_partition: bool) -> u32 {
    let offset = number(&folder.join("alignment_offset")).unwrap_or(0);
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
