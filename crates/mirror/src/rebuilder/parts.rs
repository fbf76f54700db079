//! Regions that are copied or compared chunk by chunk.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use block::{Blocks, Lba, Span};
use model::RegionSet;

/// Chunks of regions under way.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    /// By region: the next block, chunks under way, whether all were well.
    regions: BTreeMap<u64, Part>,
}

/// A region of which chunks are under way.
#[derive(Clone, Copy, Debug)]
struct Part {
    next: Lba,
    end: Lba,
    left: u32,
    fine: bool,
}

impl Parts {
    /// Whether every region that was begun has all its chunks under way.
    pub(super) fn are_begun(&self) -> bool {
        self.regions.values().all(|part| part.next >= part.end)
    }

    pub(super) fn contains(&self, region: u64) -> bool {
        self.regions.contains_key(&region)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    pub(super) fn begin(&mut self, region: u64, span: Span) {
        let part = Part { next: span.start(), end: span.end(), left: 0, fine: true };
        self.regions.insert(region, part);
    }

    /// The next chunk of a region that was begun.
    pub(super) fn chunk(&mut self, most: Blocks) -> Option<(u64, Span)> {
        let (region, part) = self.regions.iter_mut().find(|(_, part)| part.next < part.end)?;
        let end = Lba(part.next.0.saturating_add(most.0.max(1))).min(part.end);
        let span = Span::between(part.next, end)?;
        part.next = end;
        part.left += 1;
        Some((*region, span))
    }

    /// A chunk has ended. A region of which one did not end well is begun anew later.
    pub(super) fn ended(&mut self, region: u64, fine: bool) {
        let Some(part) = self.regions.get_mut(&region) else { return };
        part.left = part.left.saturating_sub(1);
        part.fine &= fine;
        if !part.fine {
            part.next = part.end;
            if part.left == 0 {
                self.regions.remove(&region);
            }
        }
    }

    /// Takes out the regions that are all copied.
    pub(super) fn take_finished(&mut self) -> Vec<u64> {
        let finished = |part: &Part| part.fine && part.left == 0 && part.next >= part.end;
        let regions: Vec<u64> = self
            .regions
            .iter()
            .filter(|(_, part)| finished(part))
            .map(|(region, _)| *region)
            .collect();
        self.regions.retain(|_, part| !finished(part));
        regions
    }

    /// What was copied of these does not count.
    pub(super) fn spoil(&mut self, regions: &RegionSet) {
        for (region, part) in &mut self.regions {
            if regions.contains(*region) {
                part.fine = false;
            }
        }
        // One that has no chunk under way would never end.
        self.regions.retain(|_, part| part.fine || part.left > 0);
    }
}
