//! A window of a map, its page, and the memory that all of them take.

use crate::casts::{count, low32};
use crate::layout::ClusterSize;
use crate::map::Packed;

use super::pages::PageKey;

/// What a page holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PageCounts {
    pub(crate) clusters: u32,
    pub(crate) blocks: u32,
    pub(crate) entries: u16,
    /// Logical clusters with a physical one.
    pub(crate) held: u16,
    /// Entries with more than one fragment.
    pub(crate) split: u16,
}

impl PageCounts {
    pub(crate) fn add(&mut self, entry: &Packed, size: ClusterSize) {
        let parts = low32(count(entry.clusters().count()));
        self.clusters += parts;
        self.blocks += low32(entry.blocks(size));
        self.entries += 1;
        self.held += u16::from(parts > 0);
        self.split += u16::from(parts > 1);
    }

    /// Most bytes that so many entries and fragments take.
    pub(super) fn most_bytes(&self, size: ClusterSize) -> u64 {
        let parts = u64::from(self.clusters) + u64::from(self.entries);
        parts * (8 + count(size.bitmap_bytes()))
    }
}

/// Where the current checkpoint has a window, and what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Page {
    /// Bytes from the start of the body, in units of eight.
    pub(crate) at: u32,
    pub(crate) bytes: u32,
    pub(crate) crc: u32,
    pub(crate) tally: PageCounts,
}

impl Page {
    /// Its bytes in the body.
    pub(crate) fn range(&self) -> core::ops::Range<u64> {
        let at = u64::from(self.at) * 8;
        at..at + u64::from(self.bytes)
    }

    /// Whether one follows the other on the disk.
    pub(crate) fn is_before(&self, next: &Page) -> bool {
        self.range().end == next.range().start
    }
}

/// A window of a map, in memory or not.
#[derive(Clone, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent of each other")]
pub(crate) struct Window {
    pub(crate) page: Option<Page>,
    /// Its entries are not in memory.
    pub(crate) absent: bool,
    /// It changed since the last checkpoint was cut.
    pub(super) changed: bool,
    /// The checkpoint being written has changes that the current one has not.
    pub(super) cut: bool,
    /// A merge was tried, and could not be done.
    pub(crate) tried: bool,
    /// Whoever needs it to stay.
    pub(super) held: u32,
    /// Entries in memory.
    pub(super) entries: u32,
    /// Memory that they take, about.
    pub(super) cost: u64,
}

impl Window {
    /// One that is not in memory.
    pub(super) fn absent(page: Page) -> Window {
        Window { page: Some(page), absent: true, ..Window::default() }
    }

    /// Whether the layer has anything here.
    pub(crate) fn is_used(&self) -> bool {
        self.absent || self.entries > 0
    }

    pub(super) fn may_go(&self) -> bool {
        let is_clean = !self.changed && !self.cut;
        self.page.is_some() && !self.absent && is_clean && self.held == 0
    }
}

/// Memory of the maps.
#[derive(Clone, Debug, Default)]
pub(crate) struct Resident {
    /// What all entries in memory take, about.
    pub(crate) bytes: u64,
    /// Of windows changed since the last cut, and of those that the cut has.
    pub(super) changed: u64,
    pub(super) cut: u64,
    pub(super) limit: u64,
    /// Where the search for a window to give up goes on.
    pub(super) hand: PageKey,
    /// Nothing could be given up, and nothing has become so since.
    pub(super) stuck: bool,
    /// A window that is not in memory may have entries to be merged.
    pub(super) any_split: bool,
}

impl Resident {
    /// Changes may always take this much: a checkpoint for less is not worth it.
    const LEAST: u64 = if cfg!(test) { 4 << 10 } else { 64 << 10 };

    /// Whether changes take so much that a checkpoint should be written: half of the bound.
    pub(crate) fn is_heavy(&self) -> bool {
        self.changed > (self.limit / 2).max(Self::LEAST)
    }

    /// Whether changes take so much that more must wait for a checkpoint.
    pub(crate) fn is_over_budget(&self) -> bool {
        self.changed + self.cut > self.limit.max(2 * Self::LEAST)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.bytes > self.limit
    }
}

/// The numbers of entries that a page cannot have more of.
pub(crate) fn fits_tally(tally: &PageCounts, page_shift: u8) -> bool {
    let most = 1u32 << page_shift;
    u32::from(tally.entries) <= most
        && tally.entries > 0
        && tally.held <= tally.entries
        && tally.split <= tally.held
        && u32::from(tally.held) <= tally.clusters
}
