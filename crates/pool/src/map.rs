//! What one layer has of one logical cluster.
//!
//! Invariant: a block is in at most one of the fragments and the zero marks.

use alloc::vec::Vec;

use crate::bits::Bits;
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

/// What a layer says of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Says {
    At(Cluster),
    Zero,
    Nothing,
}

impl Entry {
    pub(crate) fn is_empty(&self) -> bool {
        self.fragments.is_empty() && self.zero.is_empty()
    }

    pub(crate) fn says(&self, block: u16) -> Says {
        match self.fragments.iter().find(|fragment| fragment.valid.contains(block)) {
            Some(fragment) => Says::At(fragment.cluster),
            None if self.zero.contains(block) => Says::Zero,
            None => Says::Nothing,
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
        let bitmap = crate::widen::count(size.bitmap_bytes());
        let bits = |bits: &Bits| if matches!(bits, Bits::Some(_)) { bitmap } else { 0 };
        // A fragment that waits for its first write to complete counts as one block.
        let fragment =
            |fragment: &Fragment| 8 + if fragment.valid == Bits::All { 0 } else { bitmap };
        8 + self.fragments.iter().map(fragment).sum::<u64>() + bits(&self.zero)
    }
}
