//! The disks of a pool as open files.

use std::path::{Path, PathBuf};

use block::{Blocks, Bytes};
use model::DiskTraits;
use pool::TornWrites;
use reactor::{Access, Io};

use super::{OpenDisk, PoolError};
use crate::counters::{Counters, SlidingWindow};

/// Tells how the disk at a path writes.
pub(super) type TraitsOf = fn(&Path) -> DiskTraits;

/// As the kernel of this machine says.
pub(super) fn kernel_traits(path: &Path) -> DiskTraits {
    linux::disk_traits(&linux::Tree::default(), path)
}

/// Opens all disks of a pool, or none.
pub(super) fn open_all(
    paths: &[PathBuf],
    traits: TraitsOf,
    io: &mut impl Io,
) -> Result<Vec<OpenDisk>, PoolError> {
    let mut disks: Vec<OpenDisk> = Vec::new();
    for path in paths {
        match open_disk(path, traits, io) {
            Ok(disk) => disks.push(disk),
            Err(error) => {
                for disk in &disks {
                    io.close_file(disk.file);
                }
                return Err(error);
            }
        }
    }
    Ok(disks)
}

/// What a disk may leave of a block that was being written.
fn torn_writes(traits: &DiskTraits) -> TornWrites {
    if traits.atomic_write_unit >= DiskTraits::POOL_BLOCK {
        TornWrites::Impossible
    } else {
        TornWrites::Possible
    }
}

/// What any disk of a pool may.
pub(super) fn any_torn_writes(disks: &[OpenDisk]) -> TornWrites {
    let is_torn = disks.iter().any(|disk| disk.torn_writes == TornWrites::Possible);
    if is_torn { TornWrites::Possible } else { TornWrites::Impossible }
}

/// Opens a disk for this pool alone.
pub(super) fn open_disk(
    path: &Path,
    traits: TraitsOf,
    io: &mut impl Io,
) -> Result<OpenDisk, PoolError> {
    /// Both superblocks, and something between them.
    const LEAST: u64 = 2 << 20;
    let path = path.to_owned();
    let opened = match io.open(&path, Access::Exclusive) {
        Ok(opened) => opened,
        Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
            return Err(PoolError::InUse { path });
        }
        Err(source) => return Err(PoolError::Open { path, source }),
    };
    let alignment = opened.alignment;
    let bytes = Bytes(opened.bytes);
    if alignment > 4096 || bytes.0 < LEAST {
        io.close_file(opened.file);
        return Err(if alignment > 4096 {
            PoolError::Alignment { path, alignment }
        } else {
            PoolError::TooSmall { path, bytes }
        });
    }
    let blocks = Blocks(opened.bytes / 4096);
    let torn_writes = torn_writes(&traits(&path));
    Ok(OpenDisk {
        path,
        file: opened.file,
        blocks,
        torn_writes,
        counters: Counters::default(),
        lately: SlidingWindow::default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_of_which_nothing_is_known_may_tear_blocks() {
        let of = |atomic_write_unit| DiskTraits { atomic_write_unit, ..DiskTraits::UNKNOWN };
        assert_eq!(torn_writes(&DiskTraits::UNKNOWN), TornWrites::Possible);
        assert_eq!(torn_writes(&of(2048)), TornWrites::Possible);
        assert_eq!(torn_writes(&of(4096)), TornWrites::Impossible);
        assert_eq!(torn_writes(&of(16384)), TornWrites::Impossible);
    }
}
