//! Checksums in memory: a bounded cache of pages, and what has changed since they were written.
//!
//! Invariants:
//! - a changed sum stays in memory until both copies of its page on the disk have it;
//! - a sum may be changed without its page having been read, so overwrites need no reads;
//! - a page in memory is what is on the disk with all changes since, and can be given up at any
//!   time: it was read, or each of its sums was changed.
//!
//! Not here: reading and writing pages (`pool::checksum_load`, `pool::checkpointer`).

use alloc::boxed::Box;
use alloc::collections::BTreeMap;

use crate::changed_sums::ChangedSums;
use crate::checksum_page::{Page, SUMS};
use crate::layout::{BLOCK, ChecksumAt};
use crate::mutation::{Rule, disabled};

/// The sum of a block that has none: it was never written, or what it holds is known to be bad.
/// Such a block is a checksum fault, and never in doubt. No block has it as its sum.
pub(crate) const NO_SUM: u32 = 0;

/// The sum of a block: its CRC-32C, but 1 for one whose CRC-32C is 0.
pub(crate) fn sum_of(block: &[u8]) -> u32 {
    match crc32c::crc32c(block) {
        NO_SUM if !disabled(Rule::SumIsNeverNone) => 1,
        crc => crc,
    }
}

/// The cache.
#[derive(Debug, Default)]
pub(crate) struct ChecksumCache {
    pages: BTreeMap<u64, Whole>,
    changes: BTreeMap<u64, Changes>,
    /// The memory of all changes, in 64 bytes.
    weight: usize,
    limit: usize,
    hand: u64,
}

/// A page with all its sums.
#[derive(Debug)]
struct Whole {
    sums: Page,
    /// The copy to write first: the other one is known to be good, or not needed.
    first: u8,
}

/// Counts the changes of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Version(u64);

/// Changes of a page, by slot.
#[derive(Debug, Default)]
struct Changes {
    sums: ChangedSums,
    version: Version,
    /// Some of them were written with the page, which changed meanwhile.
    has_written: bool,
}

impl ChecksumCache {
    pub(crate) fn new(limit: usize) -> ChecksumCache {
        ChecksumCache { limit: limit.max(64), ..ChecksumCache::default() }
    }

    /// The sum, if it is in memory.
    pub(crate) fn get(&self, at: ChecksumAt) -> Option<u32> {
        if let Some(page) = self.pages.get(&at.page) {
            return page.sums.get(usize::from(at.slot)).copied();
        }
        self.changes.get(&at.page)?.sums.get(at.slot)
    }

    /// Changes a sum.
    pub(crate) fn set(&mut self, at: ChecksumAt, sum: u32) {
        let changes = self.changes.entry(at.page).or_insert_with(|| {
            let changes = Changes::default();
            self.weight += changes.sums.weight();
            changes
        });
        changes.version.0 += 1;
        let page = self.pages.get_mut(&at.page);
        let is_known = page.is_some();
        if let Some(place) = page.and_then(|page| page.sums.get_mut(usize::from(at.slot))) {
            *place = sum;
        }
        let (len, weight) = (changes.sums.len(), changes.sums.weight());
        changes.sums.set(at.slot, sum);
        let is_full = changes.sums.len() == SUMS && len < SUMS;
        self.weight = self.weight + changes.sums.weight() - weight;
        if is_full && !is_known && !changes.has_written {
            // What the disk has of it is not needed, not even after a crash: each of these sums is
            // in the journal, or its region is in doubt then.
            self.keep(at.page, Whole { sums: Box::new([0; SUMS]), first: 0 });
        }
    }

    /// Takes in what the disk has. Without a good copy every sum not changed since is zero, which
    /// no block matches but by chance: it reads as a checksum fault until it is repaired.
    pub(crate) fn load(&mut self, number: u64, [a, b]: [Option<Page>; 2]) {
        let first = u8::from(a.is_some() && b.is_none());
        let sums = a.or(b).unwrap_or_else(|| Box::new([0; SUMS]));
        self.keep(number, Whole { sums, first });
    }

    /// Keeps a page with all changes since, and gives up others.
    fn keep(&mut self, number: u64, mut page: Whole) {
        if let Some(changes) = self.changes.get(&number) {
            changes.sums.apply_to(&mut page.sums);
        }
        self.pages.insert(number, page);
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
        self.weight / (BLOCK / 64) > self.limit
    }

    /// A page as it should be on the disk, with its version and the copy to write first; nothing if
    /// it must be read first.
    pub(crate) fn image(&self, number: u64) -> Option<(Page, Version, u8)> {
        let Whole { sums, first } = self.pages.get(&number)?;
        let changes = self.changes.get(&number);
        Some((sums.clone(), changes.map_or(Version(0), |changes| changes.version), *first))
    }

    /// Both copies on the disk are this image. Changes since are kept, with the older ones.
    pub(crate) fn written(&mut self, number: u64, version: Version) {
        if let Some(page) = self.pages.get_mut(&number) {
            page.first = 0;
        }
        let Some(changes) = self.changes.get_mut(&number) else { return };
        if changes.version == version {
            self.weight -= changes.sums.weight();
            self.changes.remove(&number);
        } else {
            changes.has_written = true;
        }
    }
}
