//! Little-endian numbers and byte strings, in and out of memory.
//!
//! Reading never panics: what is not there is `None`.

use alloc::vec::Vec;

use crate::casts::{count, index, low16, low32};

/// Reads from the front of a slice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Reader { rest: bytes }
    }

    pub(crate) fn is_empty(self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn rest(self) -> &'a [u8] {
        self.rest
    }

    pub(crate) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn u128(&mut self) -> Option<u128> {
        self.array().map(u128::from_le_bytes)
    }

    /// A byte string with a 16-bit length in front.
    pub(crate) fn string(&mut self) -> Option<&'a [u8]> {
        let len = self.u16()?;
        self.take(usize::from(len))
    }
}

/// Appends numbers to a buffer.
pub(crate) trait Put {
    fn put(&mut self, bytes: &[u8]);

    fn put16(&mut self, n: u16) {
        self.put(&n.to_le_bytes());
    }

    fn put32(&mut self, n: u32) {
        self.put(&n.to_le_bytes());
    }

    fn put64(&mut self, n: u64) {
        self.put(&n.to_le_bytes());
    }

    fn put128(&mut self, n: u128) {
        self.put(&n.to_le_bytes());
    }

    /// A byte string with its length in front; its maker has checked that it is short.
    fn put_string(&mut self, bytes: &[u8]) {
        self.put16(low16(count(bytes.len())));
        self.put(bytes);
    }
}

impl Put for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Overwrites bytes of a block at a fixed place.
pub(crate) fn set(block: &mut [u8], at: usize, bytes: &[u8]) {
    block[at..at + bytes.len()].copy_from_slice(bytes);
}

/// Reads a number at a fixed place of a block whose length was checked.
pub(crate) fn le16(block: &[u8], at: usize) -> u16 {
    low16(le(block, at, 2))
}

/// As [`le16`].
pub(crate) fn le32(block: &[u8], at: usize) -> u32 {
    low32(le(block, at, 4))
}

/// As [`le16`].
pub(crate) fn le64(block: &[u8], at: usize) -> u64 {
    le(block, at, 8)
}

/// As [`le16`].
pub(crate) fn le128(block: &[u8], at: usize) -> u128 {
    u128::from(le64(block, at)) | (u128::from(le64(block, at + 8)) << 64)
}

fn le(block: &[u8], at: usize, len: usize) -> u64 {
    block[at..at + len].iter().rev().fold(0, |n, byte| (n << 8) | u64::from(*byte))
}

/// The CRC-32C of a block in which the four bytes at `hole` count as zero.
pub(crate) fn crc_around(block: &[u8], hole: usize) -> u32 {
    let crc = crc32c::crc32c(&block[..hole]);
    let crc = crc32c::crc32c_append(crc, &[0; 4]);
    crc32c::crc32c_append(crc, &block[hole + 4..])
}

/// The bytes of block `number` in a row of blocks.
pub(crate) fn nth_block(bytes: &[u8], number: u64) -> &[u8] {
    let at = index(number) * crate::BLOCK;
    &bytes[at..at + crate::BLOCK]
}
