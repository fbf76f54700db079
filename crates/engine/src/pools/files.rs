//! The disks of a pool as open files.

use std::path::{Path, PathBuf};

use block::{Blocks, Bytes};
use reactor::{Access, Io};

use super::{OpenDisk, PoolError};
use crate::counters::{Counters, Lately};

/// Opens all disks of a pool, or none.
pub(super) fn open_all(paths: &[PathBuf], io: &mut impl Io) -> Result<Vec<OpenDisk>, PoolError> {
    let mut disks: Vec<OpenDisk> = Vec::new();
    for path in paths {
        match open_disk(path, io) {
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

/// Opens a disk for this pool alone.
pub(super) fn open_disk(path: &Path, io: &mut impl Io) -> Result<OpenDisk, PoolError> {
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
    Ok(OpenDisk {
        path,
        file: opened.file,
        blocks,
        counters: Counters::default(),
        lately: Lately::default(),
    })
}
