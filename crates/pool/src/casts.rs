//! Conversions between integers that cannot lose anything, said once.
//!
//! The format counts in fixed-width numbers, slices are indexed by `usize`; on the 64-bit machines
//! this crate supports the two meet without loss, and the compiler checks that.

const _: () = assert!(size_of::<usize>() == 8, "a 64-bit machine");

/// A slice index from a number of the format.
#[expect(clippy::as_conversions, clippy::cast_possible_truncation, reason = "usize has 64 bits")]
pub(crate) const fn index(n: u64) -> usize {
    n as usize
}

/// A number of the format from a length in memory.
#[expect(clippy::as_conversions, reason = "usize has 64 bits")]
pub(crate) const fn count(n: usize) -> u64 {
    n as u64
}

/// The low half; the caller knows that there is nothing in the high one.
#[expect(clippy::as_conversions, clippy::cast_possible_truncation, reason = "said by the name")]
pub(crate) const fn low32(n: u64) -> u32 {
    n as u32
}

/// The low quarter; the caller knows that there is nothing above it.
#[expect(clippy::as_conversions, clippy::cast_possible_truncation, reason = "said by the name")]
pub(crate) const fn low16(n: u64) -> u16 {
    n as u16
}
