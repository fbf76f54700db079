//! Checksums in memory: a bounded cache of pages, and what has changed since they were written.
//!
//! Invariants:
//! - a changed sum stays in memory until both copies of its page on the disk have it;
//! - a sum may be changed without its page having been read, so overwrites need no reads;
//! - pages that were read are copies of what is on the disk, and can be given up at any time.
//!
//! Not here: reading and writing pages (`pool::load`, `pool::checkpointing`).

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::layout::SumAt;
use crate::sums_page::{Page, SUMS};

/// The cache.
#[derive(Debug, Default)]
pub(crate) struct Sums {
    pages: BTreeMap<u64, Read>,
    changes: BTreeMap<u64, Changes>,
    /// Changed sums in all pages.
    changed: usize,
    limit: usize,
    hand: u64,
}

/// A page as it is on the disk.
#[derive(Debug)]
struct Read {
    sums: Page,
    /// The copy to write first: the other one is known to be good.
    first: u8,
}

/// Counts the changes of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Version(u64);

/// Changes of a page, by slot.
#[derive(Debug, Default)]
struct Changes {
    sums: Vec<(u16, u32)>,
    version: Version,
}

impl Sums {
    pub(crate) fn new(limit: usize) -> Sums {
        Sums { limit: limit.max(64), ..Sums::default() }
    }

    /// The sum, if it is in memory.
    pub(crate) fn get(&self, at: SumAt) -> Option<u32> {
        if let Some(changes) = self.changes.get(&at.page)
            && let Ok(found) = changes.sums.binary_search_by_key(&at.slot, |(slot, _)| *slot)
        {
            return Some(changes.sums[found].1);
        }
        self.pages.get(&at.page).map(|page| page.sums[usize::from(at.slot)])
    }

    /// Changes a sum.
    pub(crate) fn set(&mut self, at: SumAt, sum: u32) {
        let changes = self.changes.entry(at.page).or_default();
        changes.version.0 += 1;
        // Streams add at the end.
        if changes.sums.last().is_none_or(|(slot, _)| *slot < at.slot) {
            changes.sums.push((at.slot, sum));
            self.changed += 1;
            return;
        }
        match changes.sums.binary_search_by_key(&at.slot, |(slot, _)| *slot) {
            Ok(found) => changes.sums[found].1 = sum,
            Err(place) => {
                changes.sums.insert(place, (at.slot, sum));
                self.changed += 1;
            }
        }
    }

    /// Takes in what the disk has. Without a good copy every sum not changed since is zero, which
    /// no block matches but by chance: it reads as a checksum fault until it is repaired.
    pub(crate) fn load(&mut self, number: u64, [a, b]: [Option<Page>; 2]) {
        let first = u8::from(a.is_some() && b.is_none());
        let sums = a.or(b).unwrap_or_else(|| Box::new([0; SUMS]));
        self.pages.insert(number, Read { sums, first });
        while self.pages.len() > self.limit {
            let after = self.pages.range(self.hand..).map(|(number, _)| *number);
            let victim = after.clone().find(|other| *other != number);
            let Some(victim) = victim.or_else(|| self.pages.keys().next().copied()) else { break };
            self.hand = victim.wrapping_add(1);
            self.pages.remove(&victim);
        }
    }

    /// Pages with changes that the disk does not have.
    pub(crate) fn dirty(&self) -> impl Iterator<Item = u64> + '_ {
        self.changes.keys().copied()
    }

    pub(crate) fn dirty_count(&self) -> usize {
        self.changes.len()
    }

    /// Whether the changes take so much memory that they should be written: as much as the cache.
    pub(crate) fn is_heavy(&self) -> bool {
        self.changed / 512 + self.changes.len() / 32 > self.limit
    }

    /// A page as it should be on the disk, with its version and the copy to write first; nothing if
    /// it must be read first.
    pub(crate) fn image(&self, number: u64) -> Option<(Page, Version, u8)> {
        let Read { sums, first } = self.pages.get(&number)?;
        let mut sums = sums.clone();
        let changes = self.changes.get(&number);
        for (slot, sum) in changes.into_iter().flat_map(|changes| &changes.sums) {
            sums[usize::from(*slot)] = *sum;
        }
        Some((sums, changes.map_or(Version(0), |changes| changes.version), *first))
    }

    /// Both copies on the disk are this image. Changes since are kept, with the older ones.
    pub(crate) fn written(&mut self, number: u64, version: Version) {
        let Some(changes) = self.changes.get(&number) else { return };
        if changes.version != version {
            // The page in memory is not what is on the disk any more.
            self.pages.remove(&number);
            return;
        }
        if let Some(page) = self.pages.get_mut(&number) {
            for (slot, sum) in &changes.sums {
                page.sums[usize::from(*slot)] = *sum;
            }
            page.first = 0;
        }
        self.changed -= changes.sums.len();
        self.changes.remove(&number);
    }
}
