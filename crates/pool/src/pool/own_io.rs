//! Disk I/O of the pool's own: writes of its structures, and flushes.

use alloc::vec::Vec;

use crate::casts::{count, low16, low32};
use crate::layout::{BLOCK, Disk, Place};

use super::Pool;
use super::effect::{Buffer, Effect};
use super::op::{self, Pending, Purpose};

impl Pool {
    /// Asks for a write of the pool's own bytes.
    pub(super) fn write_own(&mut self, purpose: Purpose, place: Place, bytes: Vec<u8>) {
        let blocks = low32(count(bytes.len() / BLOCK));
        let io = op::io(self.ios.insert(Pending { purpose, bytes }));
        self.effects.push_back(Effect::Write { io, place, blocks, from: Buffer::Own });
    }

    /// Asks for a flush of every disk; says how many.
    pub(super) fn flush_all(&mut self, purpose: fn() -> Purpose) -> u32 {
        let disks = low16(count(self.superblock.disks.len()));
        for disk in 0..disks {
            self.flush_one(purpose(), Disk(disk));
        }
        u32::from(disks)
    }

    pub(super) fn flush_one(&mut self, purpose: Purpose, disk: Disk) {
        let io = op::io(self.ios.insert(Pending { purpose, bytes: Vec::new() }));
        self.effects.push_back(Effect::Flush { io, disk });
    }
}
