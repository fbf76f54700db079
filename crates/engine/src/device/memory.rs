//! A device in memory. It forgets everything when the engine stops: for tests and measurements.

use std::ops::Range;

use block::Bytes;
use reactor::{Arena, Buffer, Class, SharedBuffer, copy_nontemporal};

/// Bytes that were never written take no memory and are zero.
///
/// A large read shares its bytes with the device instead of copying them. Whoever writes to a chunk
/// of which something is still shared gets a chunk of their own: what was read stays as it was.
#[derive(Debug)]
pub(super) struct Memory {
    chunks: Vec<Option<SharedBuffer>>,
}

/// There is no more memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoMemory;

/// A large page: with small ones, finding the place of a block takes as long as copying it.
const CHUNK: usize = 2 << 20;
/// From this size on a write goes around the processor's cache, because what is large is rarely
/// read soon, and a read is not copied.
const LARGE: usize = 32 * 1024;

impl Memory {
    pub(super) fn new(size: Bytes) -> Memory {
        let mut memory = Memory { chunks: Vec::new() };
        memory.grow(size);
        memory
    }

    /// Makes room for more; the new bytes are zero.
    pub(super) fn grow(&mut self, size: Bytes) {
        let chunks = usize::try_from(size.0).unwrap_or(usize::MAX).div_ceil(CHUNK);
        self.chunks.resize_with(chunks.max(self.chunks.len()), || None);
    }

    /// The bytes themselves, if they are many and lie together.
    pub(super) fn share(&self, bytes: Range<usize>) -> Option<SharedBuffer> {
        let (at, len) = (bytes.start, bytes.len());
        (len >= LARGE).then(|| self.chunk(at / CHUNK)?.part(at % CHUNK, len))?
    }

    pub(super) fn read(&self, at: usize, into: &mut [u8]) {
        let mut left = into;
        for (chunk, start, len) in pieces(at..at + left.len()) {
            let (piece, rest) = left.split_at_mut(len.min(left.len()));
            match self.chunk(chunk) {
                Some(chunk) => piece.copy_from_slice(&chunk[start..start + len]),
                None => piece.fill(0),
            }
            left = rest;
        }
    }

    pub(super) fn write(&mut self, at: usize, from: &[u8]) -> Result<(), NoMemory> {
        let mut left = from;
        for (chunk, start, len) in pieces(at..at + from.len()) {
            let (piece, rest) = left.split_at(len.min(left.len()));
            self.change(chunk, |chunk| {
                let place = &mut chunk[start..start + len];
                if len >= LARGE {
                    copy_nontemporal(piece, place);
                } else {
                    place.copy_from_slice(piece);
                }
            })?;
            left = rest;
        }
        Ok(())
    }

    pub(super) fn zero(&mut self, at: usize, len: usize) -> Result<(), NoMemory> {
        for (chunk, start, len) in pieces(at..at + len) {
            match self.chunks.get_mut(chunk) {
                Some(place) if len == CHUNK => *place = None,
                Some(Some(_)) => self.change(chunk, |chunk| chunk[start..start + len].fill(0))?,
                _ => {}
            }
        }
        Ok(())
    }

    /// The offset from `at` of the first byte that differs.
    pub(super) fn differs(&self, at: usize, from: &[u8]) -> Option<usize> {
        let mut done = 0;
        for (chunk, start, len) in pieces(at..at + from.len()) {
            let theirs = from.get(done..done + len).unwrap_or_default();
            let differs = match self.chunk(chunk) {
                Some(chunk) => {
                    chunk[start..start + len].iter().zip(theirs).position(|(a, b)| a != b)
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

    fn chunk(&self, number: usize) -> Option<&SharedBuffer> {
        self.chunks.get(number)?.as_ref()
    }

    /// Changes a chunk that nobody else holds anything of.
    fn change(&mut self, number: usize, how: impl FnOnce(&mut [u8])) -> Result<(), NoMemory> {
        let Some(place) = self.chunks.get_mut(number) else { return Ok(()) };
        let mut chunk = match place.take().map(SharedBuffer::thaw) {
            Some(Ok(chunk)) => chunk,
            Some(Err(shared)) => {
                let copy = fresh();
                let shared = place.insert(shared);
                let mut copy = copy?;
                copy.copy_from_slice(shared);
                copy
            }
            None => fresh()?,
        };
        how(&mut chunk);
        *place = Some(chunk.freeze());
        Ok(())
    }
}

/// A chunk of zeros, in memory that is its own, so that it is given back alone.
fn fresh() -> Result<Buffer, NoMemory> {
    let arena = Arena::new(&[Class { bytes: CHUNK, count: 1 }]).map_err(|_| NoMemory)?;
    arena.take(CHUNK).ok_or(NoMemory)
}

/// The parts of a range that lie in different chunks: chunk, start in it, length.
fn pieces(of: Range<usize>) -> impl Iterator<Item = (usize, usize, usize)> {
    let Range { start: mut next, end } = of;
    core::iter::from_fn(move || {
        let start = next % CHUNK;
        let len = (CHUNK - start).min(end - next);
        let piece = (next / CHUNK, start, len);
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
            let mut memory = Memory::new(Bytes::mib(6));
            let (mut model, mut shared) = (vec![0u8; 3 * CHUNK], Vec::new());
            for (what, at, len, byte) in steps {
                match what {
                    0 => {
                        memory.write(at, &vec![byte; len]).unwrap();
                        model[at..at + len].fill(byte);
                    }
                    1 => {
                        let len = len * 60;
                        let len = len.min(3 * CHUNK - at);
                        memory.zero(at, len).unwrap();
                        model[at..at + len].fill(0);
                    }
                    _ => {
                        let mut got = vec![7; len];
                        memory.read(at, &mut got);
                        prop_assert_eq!(&got[..], &model[at..at + len]);
                        prop_assert_eq!(memory.differs(at, &got), None);
                        got[len - 1] ^= 1;
                        prop_assert_eq!(memory.differs(at, &got), Some(len - 1));
                        if let Some(bytes) = memory.share(at..at + len) {
                            prop_assert_eq!(&bytes[..], &model[at..at + len]);
                            shared.push((bytes, model[at..at + len].to_vec()));
                        }
                    }
                }
                for (bytes, before) in &shared {
                    prop_assert_eq!(&bytes[..], &before[..], "what was read has changed");
                }
            }
        }
    }

    #[test]
    fn what_is_large_and_lies_together_is_shared() {
        let mut memory = Memory::new(Bytes::mib(6));
        memory.write(0, &vec![1; 2 * CHUNK]).unwrap();
        assert_eq!(memory.share(CHUNK - LARGE..CHUNK).unwrap()[..], vec![1; LARGE]);
        assert!(memory.share(0..LARGE - 1).is_none(), "small");
        assert!(memory.share(CHUNK - 1..CHUNK - 1 + LARGE).is_none(), "in two chunks");
        assert!(memory.share(2 * CHUNK..2 * CHUNK + LARGE).is_none(), "never written");
    }
}
