//! A set of the blocks of one cluster.
//!
//! Invariant: the empty and the full set have no words, so most clusters need no memory for theirs.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::casts::{index, low16};
use crate::layout::ClusterSize;

/// Which blocks of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Bits {
    #[default]
    None,
    All,
    Some(Box<[u64]>),
}

/// A run of blocks inside a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) first: u16,
    pub(crate) len: u16,
}

impl Run {
    pub(crate) fn of(blocks: core::ops::Range<u64>) -> Run {
        Run { first: low16(blocks.start), len: low16(blocks.end - blocks.start) }
    }

    pub(crate) fn end(self) -> u16 {
        self.first + self.len
    }

    pub(crate) fn blocks(self) -> core::ops::Range<u16> {
        self.first..self.end()
    }
}

/// The bits of one word that belong to a run, with the number of the word.
fn masks(run: Run) -> impl Iterator<Item = (usize, u64)> {
    let (first, end) = (u32::from(run.first), u32::from(run.end()));
    (first / 64..end.div_ceil(64)).map(move |word| {
        let from = first.max(word * 64) % 64;
        let len = end.min(word * 64 + 64) - first.max(word * 64);
        let ones = if len == 64 { u64::MAX } else { (1 << len) - 1 };
        (index(u64::from(word)), ones << from)
    })
}

/// Whether the words have the block.
pub(crate) fn contains(words: &[u64], block: u16) -> bool {
    words[usize::from(block / 64)] >> (block % 64) & 1 != 0
}

/// How many blocks the words have.
pub(crate) fn count(words: &[u64]) -> u64 {
    words.iter().map(|word| u64::from(word.count_ones())).sum()
}

/// Whether the words have every block of the run.
pub(crate) fn covers(words: &[u64], run: Run) -> bool {
    masks(run).all(|(word, mask)| words[word] & mask == mask)
}

fn words(size: ClusterSize) -> usize {
    index(size.blocks()).div_ceil(64)
}

impl Bits {
    pub(crate) fn contains(&self, block: u16) -> bool {
        match self {
            Bits::None => false,
            Bits::All => true,
            Bits::Some(words) => contains(words, block),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        *self == Bits::None
    }

    pub(crate) fn count(&self, size: ClusterSize) -> u64 {
        match self {
            Bits::None => 0,
            Bits::All => size.blocks(),
            Bits::Some(words) => count(words),
        }
    }

    /// Whether any block of the run is in the set.
    pub(crate) fn touches(&self, run: Run) -> bool {
        match self {
            Bits::None => false,
            Bits::All => run.len > 0,
            Bits::Some(words) => masks(run).any(|(word, mask)| words[word] & mask != 0),
        }
    }

    pub(crate) fn insert(&mut self, run: Run, size: ClusterSize) {
        if run.len == 0 || *self == Bits::All {
            return;
        }
        let words = self.words_mut(size);
        masks(run).for_each(|(word, mask)| words[word] |= mask);
        self.tidy();
    }

    pub(crate) fn remove(&mut self, run: Run, size: ClusterSize) {
        if run.len == 0 || *self == Bits::None {
            return;
        }
        let words = self.words_mut(size);
        masks(run).for_each(|(word, mask)| words[word] &= !mask);
        self.tidy();
    }

    /// Takes away every block that `other` has.
    pub(crate) fn subtract(&mut self, other: &Bits, size: ClusterSize) {
        match other {
            Bits::None => {}
            Bits::All => *self = Bits::None,
            Bits::Some(_) if *self == Bits::None => {}
            Bits::Some(theirs) => {
                let ours = self.words_mut(size);
                ours.iter_mut().zip(theirs).for_each(|(ours, theirs)| *ours &= !theirs);
                self.tidy();
            }
        }
    }

    /// Adds every block that `other` has.
    pub(crate) fn union(&mut self, other: &Bits, size: ClusterSize) {
        match other {
            Bits::None => {}
            Bits::All => *self = Bits::All,
            Bits::Some(_) if *self == Bits::All => {}
            Bits::Some(theirs) => {
                let ours = self.words_mut(size);
                ours.iter_mut().zip(theirs).for_each(|(ours, theirs)| *ours |= theirs);
                self.tidy();
            }
        }
    }

    /// The maximal runs of the set that lie in `within`.
    pub(crate) fn runs(&self, within: Run) -> impl Iterator<Item = Run> + '_ {
        let mut at = within.first;
        core::iter::from_fn(move || {
            let first = (at..within.end()).find(|block| self.contains(*block))?;
            let end =
                (first..within.end()).find(|block| !self.contains(*block)).unwrap_or(within.end());
            at = end;
            Some(Run { first, len: end - first })
        })
    }

    fn words_mut(&mut self, size: ClusterSize) -> &mut [u64] {
        let fill = match self {
            Bits::None => Some(0),
            Bits::All => Some(u64::MAX),
            Bits::Some(_) => None,
        };
        if let Some(fill) = fill {
            *self = Bits::Some(alloc::vec![fill; words(size)].into_boxed_slice());
        }
        match self {
            Bits::Some(words) => words,
            Bits::None | Bits::All => &mut [],
        }
    }

    fn tidy(&mut self) {
        if let Bits::Some(words) = self {
            if words.iter().all(|word| *word == 0) {
                *self = Bits::None;
            } else if words.iter().all(|word| *word == u64::MAX) {
                *self = Bits::All;
            }
        }
    }

    /// The bitmap of the format.
    pub(crate) fn encode(&self, size: ClusterSize, out: &mut Vec<u8>) {
        let from = out.len();
        out.resize(from + size.bitmap_bytes(), if *self == Bits::All { 0xff } else { 0 });
        if let Bits::Some(words) = self {
            for (word, bytes) in words.iter().zip(out[from..].chunks_exact_mut(8)) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
        }
    }

    pub(crate) fn decode(bytes: &[u8]) -> Bits {
        let word = |bytes: &[u8]| crate::codec::le64(bytes, 0);
        let mut bits = Bits::Some(bytes.chunks_exact(8).map(word).collect());
        bits.tidy();
        bits
    }
}
