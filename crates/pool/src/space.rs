//! Which clusters are free.
//!
//! Invariant: a cluster is free, used, or pending: given up by a change that is not durable yet.
//! Only free ones are handed out.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use crate::casts::{count, index, low32};
use crate::codec::le64;
use crate::layout::Cluster;

/// The clusters of a pool.
#[derive(Clone, Debug, Default)]
pub(crate) struct Space {
    /// One bit per cluster; set: used or pending.
    taken: Vec<u64>,
    /// One bit per cluster; set: an entry in memory has it. So no two of them have the same one.
    known: Vec<u64>,
    clusters: u32,
    free: u32,
    /// Where the search for a free one goes on, so that streams lie in a row.
    cursor: usize,
    pending: BTreeSet<Cluster>,
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
        self.known.resize(self.taken.len(), 0);
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
        low32(count(self.pending.len()))
    }

    /// Takes in which clusters are used; without a list all are.
    pub(crate) fn restore(&mut self, used: Option<&[u8]>) {
        for (word, taken) in self.taken.iter_mut().enumerate() {
            let end = (u64::from(self.clusters) - count(word) * 64).min(64);
            let inside = if end == 64 { u64::MAX } else { (1 << end) - 1 };
            // A list that is shorter is older than the last clusters.
            let bytes = used.map(|used| used.get(word * 8..word * 8 + 8));
            *taken = bytes.map_or(u64::MAX, |bytes| bytes.map_or(0, |bytes| le64(bytes, 0)));
            *taken &= inside;
        }
        let used: u32 = self.taken.iter().map(|word| word.count_ones()).sum();
        self.free = self.clusters - used;
    }

    /// An entry that was read has this one; false if it is free, or another entry has it.
    pub(crate) fn claim(&mut self, cluster: Cluster) -> bool {
        let (word, bit) = place(cluster);
        let is_ours = cluster.0 < self.clusters
            && self.taken[word] & bit != 0
            && self.known[word] & bit == 0
            && !self.pending.contains(&cluster);
        if is_ours {
            self.known[word] |= bit;
        }
        is_ours
    }

    /// The entry that has this one is not in memory any more.
    pub(crate) fn forget(&mut self, cluster: Cluster) {
        let (word, bit) = place(cluster);
        self.known[word] &= !bit;
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
        self.known[word] |= bit;
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
    pub(crate) fn give_up(&mut self, cluster: Cluster) {
        self.forget(cluster);
        self.pending.insert(cluster);
    }

    /// Makes one free that was given up.
    pub(crate) fn release(&mut self, cluster: Cluster) {
        let was_pending = self.pending.remove(&cluster);
        debug_assert!(was_pending, "{cluster:?} is freed twice");
        if was_pending {
            self.free_one(cluster);
        }
    }

    /// Makes one free that nobody has.
    pub(crate) fn free_one(&mut self, cluster: Cluster) {
        let (word, bit) = place(cluster);
        if self.taken[word] & bit != 0 {
            self.taken[word] &= !bit;
            self.free += 1;
        }
    }

    /// Which clusters are used, but for those given up and these.
    pub(crate) fn used(&self, but: impl Iterator<Item = Cluster>) -> Vec<u64> {
        let mut used = self.taken.clone();
        for cluster in self.pending.iter().copied().chain(but) {
            let (word, bit) = place(cluster);
            used[word] &= !bit;
        }
        used
    }
}

/// The word of a cluster in a bitmap, and its bit.
pub(crate) fn place(cluster: Cluster) -> (usize, u64) {
    (index(u64::from(cluster.0 / 64)), 1 << (cluster.0 % 64))
}
