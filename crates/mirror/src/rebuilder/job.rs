//! What is under way: the rebuild of one child, and comparing copies in sync.

use alloc::vec::Vec;

use model::{Rebuild, RebuildState, RegionSet};

use super::parts::Parts;

/// A rebuild under way.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) rebuild: Rebuild,
    pub(super) parts: Parts,
    /// Copied, but no flush was sent since.
    pub(super) copied: RegionSet,
    /// Copied before the flush that is under way.
    pub(super) flushing: Option<RegionSet>,
    pub(super) cursor: u64,
    pub(super) total: u64,
    /// Blocks that were written.
    pub(super) moved: u64,
    /// It has everything; the record is to say so.
    pub(super) proposed: bool,
}

impl Job {
    /// Regions that are in doubt have to be copied again.
    pub(super) fn redo(&mut self, regions: &RegionSet) {
        self.parts.spoil(regions);
        for region in regions.iter() {
            self.copied.remove(region);
            if let Some(flushing) = &mut self.flushing {
                flushing.remove(region);
            }
        }
    }

    pub(super) fn is_running(&self) -> bool {
        *self.rebuild.state() == RebuildState::Running {}
    }
}

/// Comparing copies in sync.
#[derive(Debug, Default)]
pub(super) struct Resync {
    pub(super) parts: Parts,
    /// Regions that hosts wait for.
    pub(super) urgent: Vec<u64>,
}

impl Resync {
    pub(super) fn hurry(&mut self, regions: Vec<u64>) {
        if self.urgent.len() < 64 {
            self.urgent.extend(regions);
        }
    }

    pub(super) fn redo(&mut self, regions: &RegionSet) {
        self.parts.spoil(regions);
    }
}
