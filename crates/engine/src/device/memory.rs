//! A device in memory. It forgets everything when the engine stops: for tests and measurements.

use std::ops::Range;

use block::Bytes;
use reactor::PAGE;

/// Bytes that were never written take no memory and are zero.
#[derive(Debug)]
pub(super) struct Memory {
    chunks: Vec<Option<Box<[Page]>>>,
}

/// Aligned: there are processors that copy to an address 16 bytes beside a cache line at a fifth of
/// their speed, and that is where large allocations begin otherwise.
#[repr(align(4096))]
#[derive(Clone, Debug)]
struct Page([u8; PAGE]);

const PAGES: usize = 256;
const CHUNK: usize = PAGES * PAGE;

impl Memory {
    pub(super) fn new(size: Bytes) -> Memory {
        let chunks = usize::try_from(size.0).unwrap_or(usize::MAX).div_ceil(CHUNK);
        Memory { chunks: (0..chunks).map(|_| None).collect() }
    }

    /// Makes room for more; the new bytes are zero.
    pub(super) fn grow(&mut self, size: Bytes) {
        let chunks = usize::try_from(size.0).unwrap_or(usize::MAX).div_ceil(CHUNK);
        self.chunks.resize_with(chunks.max(self.chunks.len()), || None);
    }

    pub(super) fn read(&self, at: usize, into: &mut [u8]) {
        let mut left = into;
        for (page, start, len) in pieces(at..at + left.len(), PAGE) {
            let (piece, rest) = left.split_at_mut(len.min(left.len()));
            match self.page(page) {
                Some(page) => piece.copy_from_slice(&page.0[start..start + len]),
                None => piece.fill(0),
            }
            left = rest;
        }
    }

    pub(super) fn write(&mut self, at: usize, from: &[u8]) {
        let mut left = from;
        for (page, start, len) in pieces(at..at + from.len(), PAGE) {
            let (piece, rest) = left.split_at(len.min(left.len()));
            if let Some(chunk) = self.chunks.get_mut(page / PAGES) {
                let pages = chunk.get_or_insert_with(|| vec![Page([0; PAGE]); PAGES].into());
                pages[page % PAGES].0[start..start + len].copy_from_slice(piece);
            }
            left = rest;
        }
    }

    pub(super) fn zero(&mut self, at: usize, len: usize) {
        for (chunk, start, len) in pieces(at..at + len, CHUNK) {
            match self.chunks.get_mut(chunk) {
                Some(place) if len == CHUNK => *place = None,
                Some(Some(pages)) => {
                    for (page, start, len) in pieces(start..start + len, PAGE) {
                        pages[page].0[start..start + len].fill(0);
                    }
                }
                _ => {}
            }
        }
    }

    /// The offset from `at` of the first byte that differs.
    pub(super) fn differs(&self, at: usize, from: &[u8]) -> Option<usize> {
        let mut done = 0;
        for (page, start, len) in pieces(at..at + from.len(), PAGE) {
            let theirs = from.get(done..done + len).unwrap_or_default();
            let differs = match self.page(page) {
                Some(page) => {
                    page.0[start..start + len].iter().zip(theirs).position(|(a, b)| a != b)
                }
                None => theirs.iter().position(|byte| *byte != 0),
            };
            if let Some(place) = differs {
                return Some(done + place);
            }
            done += len;
        }
        None
    }

    fn page(&self, number: usize) -> Option<&Page> {
        self.chunks.get(number / PAGES)?.as_ref()?.get(number % PAGES)
    }
}

/// The parts of a range that lie in different units: unit, start in it, length.
fn pieces(of: Range<usize>, unit: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    let Range { start: mut next, end } = of;
    core::iter::from_fn(move || {
        let start = next % unit;
        let len = (unit - start).min(end - next);
        let piece = (next / unit, start, len);
        next += len;
        (len > 0).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn behaves_like_one_row_of_bytes(
            steps in prop::collection::vec(
                (0..3u8, 0..3 * CHUNK - 70_000, 1..70_000usize, 1..255u8), 1..20)
        ) {
            let mut memory = Memory::new(Bytes::mib(3));
            let mut model = vec![0u8; 3 * CHUNK];
            for (what, at, len, byte) in steps {
                match what {
                    0 => {
                        memory.write(at, &vec![byte; len]);
                        model[at..at + len].fill(byte);
                    }
                    1 => {
                        let len = len * 20;
                        let len = len.min(3 * CHUNK - at);
                        memory.zero(at, len);
                        model[at..at + len].fill(0);
                    }
                    _ => {
                        let mut got = vec![7; len];
                        memory.read(at, &mut got);
                        prop_assert_eq!(&got[..], &model[at..at + len]);
                        prop_assert_eq!(memory.differs(at, &got), None);
                        got[len - 1] ^= 1;
                        prop_assert_eq!(memory.differs(at, &got), Some(len - 1));
                    }
                }
            }
        }
    }
}
