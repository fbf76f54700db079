//! What is written where, so that it can be recognised.

use block::{Blocks, Geometry, Lba, Span};
use reactor::{Buffer, SharedBuffer};

use super::{Load, Pattern};

/// Fills each block with its address and the round of its writer.
pub(super) fn stamp(
    data: SharedBuffer,
    span: Span,
    round: u64,
    geometry: Geometry,
) -> SharedBuffer {
    match data.thaw() {
        Ok(mut buffer) => {
            stamp_blocks(&mut buffer, span, round, geometry);
            buffer.freeze()
        }
        Err(shared) => shared,
    }
}

fn stamp_blocks(buffer: &mut Buffer, span: Span, round: u64, geometry: Geometry) {
    let size = usize::try_from(geometry.block_size().bytes()).unwrap_or(usize::MAX);
    for (block, lba) in buffer.chunks_mut(size).zip(span.start().0..) {
        for (word, place) in block.chunks_mut(8).zip(0u64..) {
            word.copy_from_slice(&word_of(Lba(lba), (round, place)).to_le_bytes()[..word.len()]);
        }
    }
}

pub(super) fn wrong_blocks(bytes: &[u8], span: Span, round: u64, geometry: Geometry) -> u64 {
    let size = usize::try_from(geometry.block_size().bytes()).unwrap_or(usize::MAX);
    let is_wrong = |block: &[u8], lba: u64| {
        let words = block.chunks(8).zip(0u64..);
        words
            .into_iter()
            .any(|(word, place)| word != word_of(Lba(lba), (round, place)).to_le_bytes())
    };
    let blocks = bytes.chunks(size).zip(span.start().0..);
    blocks.map(|(block, lba)| u64::from(is_wrong(block, lba))).sum()
}

/// The word at a place of a block that was written in a round.
fn word_of(lba: Lba, (round, place): (u64, u64)) -> u64 {
    mix(lba.0 ^ round.rotate_left(32) ^ (place << 48))
}

/// A permutation of 64-bit numbers without visible order.
fn mix(number: u64) -> u64 {
    let mut x = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Where commands go. With verification each worker has its own part of the namespace, so that no
/// write meets another one.
pub(super) struct Places {
    blocks: u64,
    /// Command-sized places in the namespace, or in a worker's part of it.
    count: u64,
    parts: bool,
    sequential: bool,
    cursor: u64,
    state: u64,
    rounds: u64,
}

impl Places {
    pub(super) fn new(load: &Load, geometry: Geometry, depth: u32) -> Places {
        let all = geometry.blocks().0 / load.blocks.0;
        let count = if load.verify { all / u64::from(depth) } else { all };
        Places {
            blocks: load.blocks.0,
            count: count.max(1),
            parts: load.verify,
            sequential: matches!(load.pattern, Pattern::Read | Pattern::Write),
            cursor: 0,
            state: load.seed,
            rounds: 0,
        }
    }

    pub(super) fn first(&self, index: u32) -> Option<Span> {
        let base = if self.parts { u64::from(index) * self.count } else { 0 };
        Span::new(Lba(base * self.blocks), Blocks(self.blocks))
    }

    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(1);
        mix(self.state)
    }

    pub(super) fn round(&mut self) -> u64 {
        self.rounds += 1;
        self.rounds
    }

    pub(super) fn is_read(&mut self, pattern: Pattern) -> bool {
        match pattern {
            Pattern::RandomRead | Pattern::Read => true,
            Pattern::RandomWrite | Pattern::Write => false,
            Pattern::RandomMix { reads } => self.random() % 100 < u64::from(reads),
        }
    }

    pub(super) fn next(&mut self, index: usize, now: Span) -> Span {
        let place = if self.sequential {
            self.cursor += 1;
            self.cursor % self.count
        } else {
            self.random() % self.count
        };
        let index = u64::try_from(index).unwrap_or(0);
        let base = if self.parts { index * self.count } else { 0 };
        Span::new(Lba((base + place) * self.blocks), Blocks(self.blocks)).unwrap_or(now)
    }
}
