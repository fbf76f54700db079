//! A page of checksums, as it is on the disk.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::Id;
use crate::casts::index;
use crate::codec::{crc_around, le32, le64, le128, set};
use crate::layout::{BLOCK, SUMS_PER_PAGE};

/// Sums in a page.
pub(crate) const SUMS: usize = index(SUMS_PER_PAGE);
/// The sums of a page.
pub(crate) type Page = Box<[u32; SUMS]>;
const MAGIC: &[u8; 4] = b"HSUM";

/// Offsets, as in docs/format/pool.md.
mod at {
    pub(super) const CRC: usize = 4;
    pub(super) const POOL: usize = 8;
    pub(super) const NUMBER: usize = 24;
    pub(super) const ZERO: usize = 32;
    pub(super) const SUMS: usize = 64;
}
const _: () = assert!(at::ZERO + 32 == at::SUMS && at::SUMS + 4 * SUMS == BLOCK);

pub(crate) fn encode(pool: Id, number: u64, sums: &[u32; SUMS]) -> Vec<u8> {
    let mut block = alloc::vec![0; BLOCK];
    set(&mut block, 0, MAGIC);
    set(&mut block, at::POOL, &pool.0.to_le_bytes());
    set(&mut block, at::NUMBER, &number.to_le_bytes());
    for (sum, bytes) in sums.iter().zip(block[at::SUMS..].chunks_exact_mut(4)) {
        bytes.copy_from_slice(&sum.to_le_bytes());
    }
    let crc = crc_around(&block, at::CRC);
    set(&mut block, at::CRC, &crc.to_le_bytes());
    block
}

/// The sums, if the block is sound, of this pool and of this place.
pub(crate) fn decode(pool: Id, number: u64, block: &[u8]) -> Option<Page> {
    let ours = block.len() == BLOCK && block.starts_with(MAGIC);
    let sound = ours
        && le128(block, at::POOL) == pool.0
        && le64(block, at::NUMBER) == number
        && crc_around(block, at::CRC) == le32(block, at::CRC);
    sound.then(|| {
        let mut sums = Box::new([0; SUMS]);
        for (sum, at) in sums.iter_mut().zip((at::SUMS..).step_by(4)) {
            *sum = le32(block, at);
        }
        sums
    })
}
