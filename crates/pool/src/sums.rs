//! Checksums in memory: a bounded cache of pages, and what has changed in them.
//!
//! Invariants:
//! - a changed sum stays in memory until both copies of its page on the disk have it;
//! - a sum may be changed without its page having been read.
//!
//! Not here: reading and writing pages (`pool::load`, `pool::checkpoint`).

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::layout::SumAt;
use crate::sums_page::{Page, SUMS};

/// The cache.
#[derive(Debug, Default)]
pub(crate) struct Sums {
    pages: BTreeMap<u64, Cached>,
    loaded: usize,
    dirty: usize,
    limit: usize,
    hand: u64,
}

#[derive(Debug, Default)]
struct Cached {
    sums: Option<Page>,
    /// Changes while the page was not read, by slot.
    changes: Vec<(u16, u32)>,
    /// Grows with each change.
    version: u64,
    /// The version that both copies on the disk have.
    clean: u64,
    /// The copy to write first: the other one is known to be good.
    first: u8,
}

impl Sums {
    pub(crate) fn new(limit: usize) -> Sums {
        Sums { limit, ..Sums::default() }
    }

    /// The sum, if it is in memory.
    pub(crate) fn get(&self, at: SumAt) -> Option<u32> {
        let page = self.pages.get(&at.page)?;
        if let Some(sums) = &page.sums {
            return Some(sums[usize::from(at.slot)]);
        }
        let found = page.changes.binary_search_by_key(&at.slot, |(slot, _)| *slot).ok()?;
        Some(page.changes[found].1)
    }

    /// Changes a sum.
    pub(crate) fn set(&mut self, at: SumAt, sum: u32) {
        let page = self.pages.entry(at.page).or_default();
        self.dirty += usize::from(page.version == page.clean);
        page.version += 1;
        if let Some(sums) = &mut page.sums {
            sums[usize::from(at.slot)] = sum;
            return;
        }
        match page.changes.binary_search_by_key(&at.slot, |(slot, _)| *slot) {
            Ok(found) => page.changes[found].1 = sum,
            Err(place) => page.changes.insert(place, (at.slot, sum)),
        }
    }

    pub(crate) fn is_loaded(&self, page: u64) -> bool {
        self.pages.get(&page).is_some_and(|page| page.sums.is_some())
    }

    /// Takes in what the disk has. Without a good copy every sum not changed since is zero, which no
    /// block matches but by chance: it reads as a checksum fault until it is repaired.
    pub(crate) fn load(&mut self, number: u64, [a, b]: [Option<Page>; 2]) {
        let page = self.pages.entry(number).or_default();
        if page.sums.is_some() {
            return;
        }
        page.first = u8::from(a.is_some() && b.is_none());
        let mut sums = a.or(b).unwrap_or_else(|| Box::new([0; SUMS]));
        for (slot, sum) in page.changes.drain(..) {
            sums[usize::from(slot)] = sum;
        }
        page.changes = Vec::new();
        page.sums = Some(sums);
        self.loaded += 1;
        self.evict(number);
    }

    /// Pages with changes that the disk does not have.
    pub(crate) fn dirty(&self) -> impl Iterator<Item = u64> + '_ {
        let dirty = |(_, page): &(&u64, &Cached)| page.version != page.clean;
        self.pages.iter().filter(dirty).map(|(number, _)| *number)
    }

    pub(crate) fn dirty_count(&self) -> usize {
        self.dirty
    }

    /// Whether so much has changed that the pages should be written.
    pub(crate) fn is_heavy(&self) -> bool {
        self.dirty > self.limit / 2
    }

    /// A loaded page, its version, and which copy to write first.
    pub(crate) fn page(&self, number: u64) -> Option<(&[u32; SUMS], u64, u8)> {
        let page = self.pages.get(&number)?;
        page.sums.as_deref().map(|sums| (sums, page.version, page.first))
    }

    /// Both copies on the disk have this version, or a later one that is not complete.
    pub(crate) fn written(&mut self, number: u64, version: u64) {
        if let Some(page) = self.pages.get_mut(&number) {
            let was_dirty = page.version != page.clean;
            page.clean = version;
            page.first = 0;
            self.dirty -= usize::from(was_dirty && page.version == page.clean);
        }
        self.evict(u64::MAX);
    }

    /// Gives clean pages up until the limit is kept, except one that was asked for just now.
    fn evict(&mut self, keep: u64) {
        let mut looked = 0;
        while self.loaded > self.limit && looked <= self.pages.len() {
            let after = self.pages.range(self.hand..).next().or_else(|| self.pages.iter().next());
            let Some((number, page)) = after else { return };
            let (number, clean) = (*number, page.version == page.clean);
            self.hand = number.wrapping_add(1);
            looked += 1;
            if clean && number != keep {
                let gone = self.pages.remove(&number);
                self.loaded -= usize::from(gone.is_some_and(|page| page.sums.is_some()));
            }
        }
    }
}
