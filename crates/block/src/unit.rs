//! Numbers with a unit.

use core::fmt;

/// Address of a block, counted from the start of its device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lba(pub u64);

/// A count of blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Blocks(pub u64);

/// A count of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

impl Lba {
    /// The first address after `len` blocks from here, if there is one.
    pub fn checked_add(self, len: Blocks) -> Option<Lba> {
        self.0.checked_add(len.0).map(Lba)
    }

    /// How far `self` lies after `earlier`.
    pub fn checked_distance(self, earlier: Lba) -> Option<Blocks> {
        self.0.checked_sub(earlier.0).map(Blocks)
    }
}

impl Blocks {
    /// No blocks at all.
    pub const ZERO: Blocks = Blocks(0);

    /// NVMe counts from zero: an NLB field of 0 means one block.
    pub fn from_nlb(nlb: u16) -> Blocks {
        Blocks(u64::from(nlb) + 1)
    }

    /// The NLB field for this many blocks, if it fits one.
    pub fn to_nlb(self) -> Option<u16> {
        self.0.checked_sub(1).and_then(|nlb| u16::try_from(nlb).ok())
    }

    /// Sum, if it fits.
    pub fn checked_add(self, other: Blocks) -> Option<Blocks> {
        self.0.checked_add(other.0).map(Blocks)
    }

    /// Difference, if it is not negative.
    pub fn checked_sub(self, other: Blocks) -> Option<Blocks> {
        self.0.checked_sub(other.0).map(Blocks)
    }
}

impl Bytes {
    /// No bytes at all.
    pub const ZERO: Bytes = Bytes(0);

    /// This many kibibytes.
    pub const fn kib(n: u32) -> Bytes {
        Bytes(widen(n) << 10)
    }

    /// This many mebibytes.
    pub const fn mib(n: u32) -> Bytes {
        Bytes(widen(n) << 20)
    }

    /// This many gibibytes.
    pub const fn gib(n: u32) -> Bytes {
        Bytes(widen(n) << 30)
    }

    /// Sum, if it fits.
    pub fn checked_add(self, other: Bytes) -> Option<Bytes> {
        self.0.checked_add(other.0).map(Bytes)
    }

    /// Difference, if it is not negative.
    pub fn checked_sub(self, other: Bytes) -> Option<Bytes> {
        self.0.checked_sub(other.0).map(Bytes)
    }
}

/// Lossless, where `u64::from` cannot be called in a `const fn`.
#[expect(clippy::as_conversions, reason = "u32 always fits in u64")]
const fn widen(n: u32) -> u64 {
    n as u64
}

/// A run of blocks: at least one, and the address after the last one exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    start: Lba,
    len: Blocks,
}

impl Span {
    /// `len` blocks from `start`; nothing if that is empty or wraps.
    pub fn new(start: Lba, len: Blocks) -> Option<Span> {
        (len > Blocks::ZERO && start.checked_add(len).is_some()).then_some(Span { start, len })
    }

    /// From `start` up to but not including `end`; nothing if that is empty.
    pub fn between(start: Lba, end: Lba) -> Option<Span> {
        Span::new(start, end.checked_distance(start)?)
    }

    /// One block.
    pub fn one(at: Lba) -> Option<Span> {
        Span::new(at, Blocks(1))
    }

    /// First block.
    pub fn start(self) -> Lba {
        self.start
    }

    /// How many blocks, never zero.
    pub fn len(self) -> Blocks {
        self.len
    }

    /// Always false; here because a type with `len` is expected to have it.
    pub fn is_empty(self) -> bool {
        false
    }

    /// The address after the last block.
    pub fn end(self) -> Lba {
        // Checked when the span was made.
        Lba(self.start.0 + self.len.0)
    }

    /// Whether `at` lies inside.
    pub fn contains(self, at: Lba) -> bool {
        self.start <= at && at < self.end()
    }

    /// Whether all of `other` lies inside.
    pub fn covers(self, other: Span) -> bool {
        self.start <= other.start && other.end() <= self.end()
    }

    /// The blocks that both have.
    pub fn intersect(self, other: Span) -> Option<Span> {
        Span::between(self.start.max(other.start), self.end().min(other.end()))
    }

    /// Whether the two share a block.
    pub fn overlaps(self, other: Span) -> bool {
        self.intersect(other).is_some()
    }
}

impl fmt::Display for Lba {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "block {}", self.0)
    }
}

impl fmt::Display for Blocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} blocks", self.0)
    }
}

/// Exact sizes print in the largest unit that divides them: `16MiB`, `4097B`.
impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
        let whole = |shift: &u32| self.0 != 0 && self.0.trailing_zeros() >= *shift;
        match UNITS.iter().find(|(_, shift)| whole(shift)) {
            Some((unit, shift)) => write!(f, "{}{unit}", self.0 >> shift),
            None => write!(f, "{}B", self.0),
        }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "blocks {}..{}", self.start.0, self.end().0)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use proptest::prelude::*;
    use std::format;

    #[test]
    fn nlb_is_zero_based() {
        assert_eq!(Blocks::from_nlb(0), Blocks(1));
        assert_eq!(Blocks::from_nlb(u16::MAX), Blocks(65536));
        assert_eq!(Blocks(0).to_nlb(), None);
        assert_eq!(Blocks(65536).to_nlb(), Some(u16::MAX));
        assert_eq!(Blocks(65537).to_nlb(), None);
    }

    #[test]
    fn sizes_print_exactly() {
        for (bytes, text) in [
            (Bytes(0), "0B"),
            (Bytes(512), "512B"),
            (Bytes::kib(4), "4KiB"),
            (Bytes(4097), "4097B"),
            (Bytes::mib(1024), "1GiB"),
            (Bytes::gib(2048), "2TiB"),
        ] {
            assert_eq!(format!("{bytes}"), text);
        }
    }

    #[test]
    fn a_span_is_never_empty_and_never_wraps() {
        assert_eq!(Span::new(Lba(0), Blocks(0)), None);
        assert_eq!(Span::new(Lba(u64::MAX), Blocks(1)), None);
        assert!(Span::new(Lba(u64::MAX - 1), Blocks(1)).is_some());
        assert_eq!(Span::between(Lba(5), Lba(5)), None);
        assert_eq!(Span::between(Lba(6), Lba(5)), None);
    }

    fn spans() -> impl Strategy<Value = Span> {
        (0u64..64, 1u64..32).prop_map(|(start, len)| Span::new(Lba(start), Blocks(len)).unwrap())
    }

    proptest! {
        #[test]
        fn set_operations_agree_with_sets(a in spans(), b in spans()) {
            let shared = (0..128).filter(|&n| a.contains(Lba(n)) && b.contains(Lba(n))).count();
            let found = a.intersect(b).map_or(0, |both| both.len().0);
            prop_assert_eq!(found, u64::try_from(shared).unwrap());
            prop_assert_eq!(a.overlaps(b), shared > 0);
            prop_assert_eq!(a.covers(b), found == b.len().0);
        }

        #[test]
        fn any_numbers_make_a_good_span_or_none(start: u64, len: u64) {
            if let Some(span) = Span::new(Lba(start), Blocks(len)) {
                prop_assert!(span.start() < span.end());
                prop_assert_eq!(span.end().checked_distance(span.start()), Some(span.len()));
            }
        }
    }
}
