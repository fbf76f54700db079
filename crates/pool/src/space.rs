//! Which clusters are free.
//!
//! Invariant: a cluster is free, used, or pending: given up by a change that is not durable yet.
//! Only free ones are handed out. Nothing here is stored; it is derived from the maps.

use alloc::vec::Vec;

use crate::layout::Cluster;
use crate::widen::{count, index, low32};

/// The clusters of a pool.
#[derive(Clone, Debug, Default)]
pub(crate) struct Space {
    /// One bit per cluster; set: used or pending.
    taken: Vec<u64>,
    clusters: u32,
    free: u32,
    /// Where the search for a free one goes on, so that streams lie in a row.
    cursor: usize,
    pending: u32,
}

impl Space {
    pub(crate) fn new(clusters: u32) -> Space {
        let mut space = Space::default();
        space.grow(clusters);
        space
    }

    /// Adds free clusters at the end.
    pub(crate) fn grow(&mut self, clusters: u32) {
        self.taken.resize(index(u64::from(clusters).div_ceil(64)), 0);
        self.free += clusters.saturating_sub(self.clusters);
        self.clusters = self.clusters.max(clusters);
    }

    pub(crate) fn clusters(&self) -> u32 {
        self.clusters
    }

    pub(crate) fn free(&self) -> u32 {
        self.free
    }

    pub(crate) fn pending(&self) -> u32 {
        self.pending
    }

    pub(crate) fn is_taken(&self, cluster: Cluster) -> bool {
        let (word, bit) = place(cluster);
        cluster.0 >= self.clusters || self.taken[word] & bit != 0
    }

    /// Takes this one; false if it is not free.
    pub(crate) fn take(&mut self, cluster: Cluster) -> bool {
        if self.is_taken(cluster) {
            return false;
        }
        let (word, bit) = place(cluster);
        self.taken[word] |= bit;
        self.free -= 1;
        true
    }

    /// Takes the next free one.
    pub(crate) fn take_any(&mut self) -> Option<Cluster> {
        if self.free == 0 {
            return None;
        }
        let words = self.taken.len();
        for step in 0..=words {
            let word = (self.cursor + step) % words;
            let bit = self.taken[word].trailing_ones();
            let cluster = count(word) * 64 + u64::from(bit);
            if bit < 64 && cluster < u64::from(self.clusters) {
                self.cursor = word;
                let cluster = Cluster(low32(cluster));
                return self.take(cluster).then_some(cluster);
            }
        }
        None
    }

    /// Gives a used one up, to become free when the change that did so is durable.
    pub(crate) fn give_up(&mut self) {
        self.pending += 1;
    }

    /// Makes one free that was given up.
    pub(crate) fn release(&mut self, cluster: Cluster) {
        let (word, bit) = place(cluster);
        debug_assert!(self.taken[word] & bit != 0, "{cluster:?} is freed twice");
        self.taken[word] &= !bit;
        self.free += 1;
        self.pending -= 1;
    }

    /// The bitmap of the format.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        self.taken.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
    }
}

fn place(cluster: Cluster) -> (usize, u64) {
    (index(u64::from(cluster.0 / 64)), 1 << (cluster.0 % 64))
}
