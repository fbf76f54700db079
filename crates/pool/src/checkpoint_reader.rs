//! Reading a part of the body of a checkpoint: which blocks, and what of them is wanted.
//!
//! Not here: which copy is good. A page says so itself.

use alloc::vec::Vec;
use core::ops::Range;

use crate::casts::{count, index, low32};
use crate::layout::{BLOCK, Place, Use};
use crate::superblock::Superblock;

/// Most blocks of one read.
const CHUNK: u64 = 256;

/// A part of a checkpoint that is being read.
#[derive(Debug)]
pub(crate) struct CheckpointReader {
    slot: u8,
    /// Which copy is being read.
    pub(crate) copy: u8,
    /// Bytes of the body.
    bytes: Range<u64>,
    /// The blocks that have them.
    buffer: Vec<u8>,
    left: u32,
    /// A read failed.
    pub(crate) failed: bool,
}

/// One read of a fetch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) place: Place,
    pub(crate) blocks: u32,
    /// Where its bytes belong.
    pub(crate) at: u32,
}

impl CheckpointReader {
    /// Of a slot and copy, these bytes of the body.
    pub(crate) fn new((slot, copy): (u8, u8), bytes: Range<u64>) -> CheckpointReader {
        CheckpointReader { slot, copy, bytes, buffer: Vec::new(), left: 0, failed: false }
    }

    /// The reads that bring it.
    pub(crate) fn pieces(&mut self, superblock: &Superblock) -> Vec<Piece> {
        let first = self.bytes.start / count(BLOCK);
        let blocks = self.bytes.end.div_ceil(count(BLOCK)).max(first + 1) - first;
        self.buffer = alloc::vec![0; index(blocks) * BLOCK];
        let usage = Use::Checkpoint { slot: self.slot, copy: self.copy };
        let area = superblock.area(usage).filter(|area| 1 + first + blocks <= area.blocks);
        let Some(start) = area.map(|area| area.start) else { return Vec::new() };
        let mut pieces = Vec::new();
        let mut at = 0;
        while at < blocks {
            let len = (blocks - at).min(CHUNK);
            // Behind the header.
            let place = Place { block: start.block + 1 + first + at, ..start };
            pieces.push(Piece { place, blocks: low32(len), at: low32(at) });
            at += len;
        }
        self.left = low32(count(pieces.len()));
        pieces
    }

    /// A read ended; true if it was the last one.
    pub(crate) fn arrived(&mut self, at: u32, bytes: Option<&[u8]>) -> bool {
        let from = index(u64::from(at)) * BLOCK;
        match bytes.and_then(|bytes| Some((self.buffer.get_mut(from..from + bytes.len())?, bytes)))
        {
            Some((into, bytes)) => into.copy_from_slice(bytes),
            None => self.failed = true,
        }
        self.left = self.left.saturating_sub(1);
        self.left == 0
    }

    /// Bytes of the body, of those that were read.
    pub(crate) fn get(&self, range: Range<u64>) -> &[u8] {
        let first = self.bytes.start / count(BLOCK) * count(BLOCK);
        let from = range.start.checked_sub(first).map(index);
        let to = range.end.checked_sub(first).map(index);
        from.zip(to).and_then(|(from, to)| self.buffer.get(from..to)).unwrap_or_default()
    }
}
