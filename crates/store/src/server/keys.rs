//! Ranges of keys, as requests name them.

use std::ops::Bound;

use bytes::Bytes;

/// A key, or all keys from one on, perhaps up to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyRange {
    start: Bytes,
    end: End,
}

/// Both ends of a range, to walk an ordered map with.
pub(crate) type Bounds<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum End {
    Point,
    Before(Bytes),
    Open,
}

impl KeyRange {
    /// The range that `key` and `range_end` of a request mean.
    pub(crate) fn new(key: &Bytes, range_end: &Bytes) -> Self {
        let end = match &range_end[..] {
            [] => End::Point,
            [0] => End::Open,
            _ => End::Before(range_end.clone()),
        };
        Self { start: key.clone(), end }
    }

    /// Whether no key can be in the range.
    pub(crate) fn is_empty(&self) -> bool {
        matches!(&self.end, End::Before(end) if *end <= self.start)
    }

    /// Whether the key is in the range.
    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        match &self.end {
            End::Point => key == self.start,
            End::Before(end) => key >= &self.start[..] && key < &end[..],
            End::Open => key >= &self.start[..],
        }
    }

    /// What is left of the range behind a key in it, if anything can be.
    pub(crate) fn after(&self, key: &[u8]) -> Option<Self> {
        if self.end == End::Point {
            return None;
        }
        let start = [key, &[0][..]].concat().into();
        let rest = Self { start, end: self.end.clone() };
        (!rest.is_empty()).then_some(rest)
    }

    /// The bounds to walk an ordered map with; `None` when the range is empty.
    pub(crate) fn bounds(&self) -> Option<Bounds<'_>> {
        let start: &[u8] = &self.start;
        if self.is_empty() {
            return None;
        }
        Some((
            Bound::Included(start),
            match &self.end {
                End::Point => Bound::Included(start),
                End::Before(end) => Bound::Excluded(end),
                End::Open => Bound::Unbounded,
            },
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(key: &'static str, end: &'static str) -> KeyRange {
        KeyRange::new(&Bytes::from(key), &Bytes::from(end))
    }

    #[test]
    fn an_empty_end_is_one_key() {
        assert!(range("b", "").contains(b"b"));
        assert!(!range("b", "").contains(b"ba"));
    }

    #[test]
    fn a_zero_end_is_open() {
        assert!(range("b", "\0").contains(b"z"));
        assert!(!range("b", "\0").contains(b"a"));
    }

    #[test]
    fn an_end_is_exclusive_and_may_leave_nothing() {
        assert!(range("b", "c").contains(b"bz"));
        assert!(!range("b", "c").contains(b"c"));
        assert!(range("c", "b").is_empty() && range("c", "c").is_empty());
        assert_eq!(range("c", "b").bounds(), None);
    }
}
