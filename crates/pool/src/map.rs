//! What one layer has of one logical cluster: as it is changed, and as a map keeps it.
//!
//! Invariants:
//! - a block is in at most one of the fragments and the zero marks;
//! - an entry is packed in one way only, the smallest.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::bits::{self, Bits, Run};
use crate::layout::{Cluster, ClusterSize};

/// A physical cluster, and which of its blocks are valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fragment {
    pub(crate) cluster: Cluster,
    pub(crate) valid: Bits,
}

/// What one layer has of one logical cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) fragments: Vec<Fragment>,
    /// Blocks that read as zeros whatever lies below.
    pub(crate) zero: Bits,
}

/// The map of a layer, by logical cluster.
pub(crate) type Map = BTreeMap<u32, Packed>;

/// An entry as a map keeps it. Nearly all have one fragment and no marks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Packed {
    #[default]
    Empty,
    /// All blocks, in one cluster.
    Whole(Cluster),
    /// Some blocks, in one cluster.
    Part(Cluster, Box<[u64]>),
    /// Anything else.
    Mixed(Box<Entry>),
}
const _: () = assert!(size_of::<Packed>() == 24, "a pool has millions of them");

impl Packed {
    pub(crate) fn new(mut entry: Entry) -> Packed {
        if entry.zero.is_empty()
            && let [Fragment { cluster, valid }] = &mut entry.fragments[..]
        {
            match core::mem::take(valid) {
                Bits::All => return Packed::Whole(*cluster),
                Bits::Some(words) => return Packed::Part(*cluster, words),
                Bits::None => {}
            }
        }
        if entry.is_empty() { Packed::Empty } else { Packed::Mixed(Box::new(entry)) }
    }

    /// The entry, to be changed; empty is left.
    pub(crate) fn take(&mut self) -> Entry {
        match core::mem::take(self) {
            Packed::Empty => Entry::default(),
            Packed::Whole(cluster) => Entry::one(cluster, Bits::All),
            Packed::Part(cluster, words) => Entry::one(cluster, Bits::Some(words)),
            Packed::Mixed(entry) => *entry,
        }
    }

    /// The entry, to be looked at.
    pub(crate) fn entry(&self) -> Entry {
        self.clone().take()
    }

    pub(crate) fn says(&self, block: u16) -> BlockState {
        match self {
            Packed::Whole(cluster) => BlockState::At(*cluster),
            Packed::Part(cluster, words) if bits::contains(words, block) => {
                BlockState::At(*cluster)
            }
            Packed::Empty | Packed::Part(..) => BlockState::Nothing,
            Packed::Mixed(entry) => entry.says(block),
        }
    }

    /// The cluster that has all blocks of the run, if that is the only one.
    pub(crate) fn covering(&self, run: Run) -> Option<Cluster> {
        match self {
            Packed::Whole(cluster) => Some(*cluster),
            Packed::Part(cluster, words) => bits::covers(words, run).then_some(*cluster),
            Packed::Empty | Packed::Mixed(_) => None,
        }
    }

    /// A cluster in which this block is not valid.
    pub(crate) fn vacant(&self, block: u16) -> Option<Cluster> {
        match self {
            Packed::Empty | Packed::Whole(_) => None,
            Packed::Part(cluster, words) => (!bits::contains(words, block)).then_some(*cluster),
            Packed::Mixed(entry) => {
                let mut fragments = entry.fragments.iter();
                let vacant = fragments.find(|fragment| !fragment.valid.contains(block));
                vacant.map(|fragment| fragment.cluster)
            }
        }
    }

    /// The clusters in which this block is not valid.
    pub(crate) fn vacancies(&self, block: u16) -> impl Iterator<Item = Cluster> + '_ {
        self.clusters().filter(move |cluster| self.says(block) != BlockState::At(*cluster))
    }

    /// Whether it has blocks in this cluster, or will.
    pub(crate) fn has(&self, cluster: Cluster) -> bool {
        match self {
            Packed::Empty => false,
            Packed::Whole(only) | Packed::Part(only, _) => *only == cluster,
            Packed::Mixed(entry) => entry.fragments.iter().any(|part| part.cluster == cluster),
        }
    }

    /// The clusters it has blocks in.
    pub(crate) fn clusters(&self) -> impl Iterator<Item = Cluster> + '_ {
        let (one, more) = match self {
            Packed::Empty => (None, &[][..]),
            Packed::Whole(cluster) | Packed::Part(cluster, _) => (Some(*cluster), &[][..]),
            Packed::Mixed(entry) => (None, &entry.fragments[..]),
        };
        one.into_iter().chain(more.iter().map(|fragment| fragment.cluster))
    }

    /// How many blocks are valid.
    pub(crate) fn blocks(&self, size: ClusterSize) -> u64 {
        match self {
            Packed::Empty => 0,
            Packed::Whole(_) => size.blocks(),
            Packed::Part(_, words) => bits::count(words),
            Packed::Mixed(entry) => entry.blocks(size),
        }
    }

    /// Bytes of its encoding.
    pub(crate) fn encoded_len(&self, size: ClusterSize) -> u64 {
        match self {
            Packed::Empty => 0,
            Packed::Whole(_) => 16,
            Packed::Part(..) => 16 + crate::casts::count(size.bitmap_bytes()),
            Packed::Mixed(entry) => entry.encoded_len(size),
        }
    }

    /// Whether no block is in two places, and no fragment without one.
    pub(crate) fn is_sound(&self, size: ClusterSize) -> bool {
        match self {
            Packed::Empty => false,
            Packed::Whole(_) | Packed::Part(..) => true,
            Packed::Mixed(entry) => {
                let decided = entry.decided(size).count(size);
                decided == entry.zero.count(size) + entry.blocks(size)
                    && entry.fragments.iter().all(|part| !part.valid.is_empty())
            }
        }
    }

    /// What a checkpoint has of it: without fragments whose first write is under way.
    pub(crate) fn written(&self) -> Packed {
        match self {
            Packed::Mixed(entry) => {
                let mut entry = entry.clone();
                entry.fragments.retain(|part| !part.valid.is_empty());
                Packed::new(*entry)
            }
            other => other.clone(),
        }
    }

    /// Whether blocks are marked zero.
    pub(crate) fn has_marks(&self) -> bool {
        matches!(self, Packed::Mixed(entry) if !entry.zero.is_empty())
    }
}

/// What a layer says of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockState {
    At(Cluster),
    Zero,
    Nothing,
}

impl Entry {
    fn one(cluster: Cluster, valid: Bits) -> Entry {
        Entry { fragments: alloc::vec![Fragment { cluster, valid }], zero: Bits::None }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.fragments.is_empty() && self.zero.is_empty()
    }

    pub(crate) fn says(&self, block: u16) -> BlockState {
        match self.fragments.iter().find(|fragment| fragment.valid.contains(block)) {
            Some(fragment) => BlockState::At(fragment.cluster),
            None if self.zero.contains(block) => BlockState::Zero,
            None => BlockState::Nothing,
        }
    }

    /// Everything this layer decides by itself.
    pub(crate) fn decided(&self, size: ClusterSize) -> Bits {
        let mut all = self.zero.clone();
        self.fragments.iter().for_each(|fragment| all.union(&fragment.valid, size));
        all
    }

    /// The fragment with this cluster; a new one if there is none.
    pub(crate) fn fragment(&mut self, cluster: Cluster) -> &mut Fragment {
        let found = self.fragments.iter().position(|fragment| fragment.cluster == cluster);
        let at = found.unwrap_or_else(|| {
            // Most entries have one, and never more.
            self.fragments.reserve_exact(1);
            self.fragments.push(Fragment { cluster, valid: Bits::None });
            self.fragments.len() - 1
        });
        &mut self.fragments[at]
    }

    /// How many blocks are valid.
    pub(crate) fn blocks(&self, size: ClusterSize) -> u64 {
        self.fragments.iter().map(|fragment| fragment.valid.count(size)).sum()
    }

    /// Bytes of its encoding.
    pub(crate) fn encoded_len(&self, size: ClusterSize) -> u64 {
        let bitmap = crate::casts::count(size.bitmap_bytes());
        let bits = |bits: &Bits| if matches!(bits, Bits::Some(_)) { bitmap } else { 0 };
        // A fragment that waits for its first write to complete counts as one block, and another
        // that has them all as one that will lose some to it.
        let waits = self.fragments.iter().any(|fragment| fragment.valid.is_empty());
        let is_whole = |fragment: &Fragment| fragment.valid == Bits::All && !waits;
        let fragment = |fragment: &Fragment| 8 + if is_whole(fragment) { 0 } else { bitmap };
        8 + self.fragments.iter().map(fragment).sum::<u64>() + bits(&self.zero)
    }
}
