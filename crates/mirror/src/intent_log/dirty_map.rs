//! What is known of regions: who may hold something else there, and what has no flush behind it.
//!
//! ```text
//!             mark (durable on all writers)      begin          end             flush
//!   untouched ────────────────────────────► marked ──► writing ────► unflushed ───────► marked
//!        ▲                                                                               │
//!        └───────────────────────── idle, and not in doubt ◄─────────────────────────────┘
//! ```
//!
//! Invariants: a region being written or unflushed is marked; so is a region in doubt.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::num::NonZeroU64;
use core::time::Duration;

use block::{Blocks, Instant, Span};
use model::{RegionSet, ReplicaId};

/// A region that has writes under way or writes that no flush covers.
#[derive(Clone, Copy, Debug, Default)]
struct Open {
    writes: u32,
    /// When the last write ended, by the count of `DirtyMaps::clock`; zero: none has.
    ended: u64,
}

#[derive(Clone, Copy, Debug)]
struct Mark {
    /// The first version of the note that has it.
    version: u64,
    used: Instant,
}

/// The maps of one volume.
#[derive(Debug)]
pub(super) struct DirtyMaps {
    open: BTreeMap<u64, Open>,
    marks: BTreeMap<u64, Mark>,
    /// Regions where copies in sync may differ.
    pub(super) resync: RegionSet,
    /// What each stale copy missed; one that is not here lacks everything.
    pub(super) missed: BTreeMap<ReplicaId, RegionSet>,
    /// Orders ends of writes and beginnings of flushes.
    clock: u64,
}

impl DirtyMaps {
    pub(super) fn new(region: NonZeroU64) -> DirtyMaps {
        DirtyMaps {
            open: BTreeMap::new(),
            marks: BTreeMap::new(),
            resync: RegionSet::new(region),
            missed: BTreeMap::new(),
            clock: 0,
        }
    }

    pub(super) fn none(&self) -> RegionSet {
        RegionSet::new(self.resync.blocks())
    }

    pub(super) fn regions(&self, span: Span) -> core::ops::RangeInclusive<u64> {
        self.resync.touched(span)
    }

    /// Whether every region of the span is marked in a note that all writers have.
    pub(super) fn is_marked(&self, span: Span, durable: u64) -> bool {
        self.regions(span)
            .all(|region| self.marks.get(&region).is_some_and(|mark| mark.version <= durable))
    }

    /// Marks the regions of a span from the next version of the note on; whether there were new
    /// ones. A mark in use stays.
    pub(super) fn mark(&mut self, span: Span, next: u64, now: Instant) -> bool {
        let mut new = false;
        for region in self.regions(span) {
            let mark = self.marks.entry(region).or_insert_with(|| {
                new = true;
                Mark { version: next, used: now }
            });
            mark.used = mark.used.max(now);
        }
        new
    }

    /// A write to the span is sent.
    pub(super) fn begin(&mut self, span: Span) {
        for region in self.regions(span) {
            self.open.entry(region).or_default().writes += 1;
        }
    }

    /// A write to the span has ended, one way or another.
    pub(super) fn end(&mut self, span: Span, now: Instant) {
        self.clock += 1;
        for region in self.regions(span) {
            if let Some(open) = self.open.get_mut(&region) {
                open.writes = open.writes.saturating_sub(1);
                open.ended = self.clock;
            }
            if let Some(mark) = self.marks.get_mut(&region) {
                mark.used = mark.used.max(now);
            }
        }
    }

    /// A flush is sent; what ended before is behind it.
    pub(super) fn flush_begins(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// That flush reached every writer.
    pub(super) fn flushed(&mut self, begun: u64) {
        self.open.retain(|_, open| open.writes > 0 || open.ended > begun);
    }

    /// Regions that a copy may lose, hold half of, or lack, if it fails now.
    pub(super) fn at_risk(&self) -> RegionSet {
        let mut regions = self.resync.clone();
        self.open.keys().for_each(|region| regions.insert(*region));
        regions
    }

    /// Whether a write was acknowledged that no flush covers.
    pub(super) fn has_unflushed(&self) -> bool {
        self.open.values().any(|open| open.ended > 0)
    }

    /// Takes the marks found with a copy: its regions are in doubt, and marked again.
    pub(super) fn adopt(&mut self, intents: &RegionSet, next: u64, now: Instant) {
        let mut found = self.none();
        found.add(intents);
        for region in found.iter() {
            self.marks.entry(region).or_insert(Mark { version: next, used: now });
            // A former target may have acknowledged writes here that no flush covers.
            self.clock = self.clock.max(1);
            self.open.entry(region).or_default().ended = self.clock;
        }
        self.resync.add(&found);
    }

    /// A stale copy misses the regions of this span, too.
    pub(super) fn miss(&mut self, replica: ReplicaId, span: Span) {
        let regions = self.regions(span);
        if let Some(missed) = self.missed.get_mut(&replica) {
            regions.for_each(|region| missed.insert(region));
        }
    }

    /// The marks as the note has them.
    pub(super) fn intents(&self) -> RegionSet {
        let mut regions = self.none();
        self.marks.keys().for_each(|region| regions.insert(*region));
        regions
    }

    /// Takes away marks that were not used for so long; whether any went, and whether a flush would
    /// let more go.
    pub(super) fn sweep(&mut self, now: Instant, idle: Duration) -> (bool, bool) {
        let before = self.marks.len();
        let (open, doubt) = (&self.open, &self.resync);
        let mut wants_flush = false;
        self.marks.retain(|region, mark| {
            let quiet = now >= mark.used.after(idle) && !doubt.contains(*region);
            match open.get(region) {
                Some(open) => {
                    wants_flush |= quiet && open.writes == 0;
                    true
                }
                None => !quiet,
            }
        });
        (self.marks.len() < before, wants_flush)
    }

    pub(super) fn has_marks(&self) -> bool {
        !self.marks.is_empty()
    }

    /// Regions of a volume that is copied from the start.
    pub(super) fn all(&self, size: Blocks) -> RegionSet {
        let mut regions = self.none();
        regions.fill(size);
        regions
    }

    /// Checks what always holds.
    #[cfg(test)]
    pub(super) fn check(&self) {
        for region in self.open.keys().copied().chain(self.resync.iter()) {
            assert!(self.marks.contains_key(&region), "region {region} has no mark");
        }
    }

    /// Regions to look at first, of those that hosts wait for.
    pub(super) fn doubtful(&self, span: Span) -> Vec<u64> {
        if self.resync.is_empty() {
            return Vec::new();
        }
        self.regions(span).filter(|region| self.resync.contains(*region)).collect()
    }
}
