//! Questions to a pool: what it holds, how much, how well.

use alloc::vec::Vec;

use block::Bytes;

use crate::casts::count;
use crate::entity::{Entity, Id};
use crate::layout::BLOCK;
use crate::state::LayerState;
use crate::superblock::Superblock;

use super::Pool;

/// Space of a pool or of an entity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The size that its user sees; of a pool, of its clusters, without those that are kept for
    /// redirected overwrites.
    pub size: Bytes,
    /// Clusters of its own topmost layer; of a pool, all in use. Where overwrites are redirected,
    /// second clusters come back when they are needed, and count as free.
    pub own: Bytes,
    /// Clusters of the layers below, which other entities may have as well.
    pub below: Bytes,
    /// Blocks that are valid in its own topmost layer.
    pub written: Bytes,
    /// Of a pool: given up, and free as soon as that is durable.
    pub pending: Bytes,
    /// Of a pool: kept for thick replicas.
    pub promised: Bytes,
    /// Of a pool: kept for maps that could not be read.
    pub quarantined: Bytes,
}

/// How well a pool is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// The journal or a flush failed; the pool takes no changes any more.
    pub broken: bool,
    /// Entities whose map, or one below it, could not be read.
    pub damaged: Vec<Id>,
    /// Regions of 16 MiB with write intent.
    pub dirty_regions: usize,
    /// Regions that were dirty at a crash and were not read through since.
    pub doubtful_regions: usize,
    /// Blocks of regions that were read through which no sum proves, or that could not be read.
    pub unproven_blocks: usize,
    /// Sums pages changed in memory.
    pub changed_pages: usize,
    /// Memory that maps take, about.
    pub maps: Bytes,
}

impl Pool {
    /// Who the pool is and where its areas are.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// All replicas and snapshots, by id.
    pub fn entities(&self) -> impl Iterator<Item = &Entity> {
        self.state.entities.values()
    }

    /// One of them.
    pub fn entity(&self, id: Id) -> Option<&Entity> {
        self.state.entities.get(&id)
    }

    fn clusters(&self, clusters: u64) -> Bytes {
        Bytes((clusters << self.state.size.shift()) * count(BLOCK))
    }

    /// Space of the pool.
    pub fn usage(&self) -> Usage {
        let space = &self.state.space;
        let reserve = self.state.reserve;
        let used = space.clusters() - space.free() - space.pending();
        let second = if reserve == 0 { 0 } else { self.state.second_clusters() };
        let used = used.saturating_sub(second);
        // A pool that was full before it had a reserve is full.
        let used = used.min(space.clusters() - reserve);
        let blocks: u64 = self.state.layers.values().map(|layer_state| layer_state.blocks).sum();
        Usage {
            size: self.clusters(u64::from(space.clusters() - reserve)),
            own: self.clusters(u64::from(used)),
            below: Bytes::ZERO,
            written: Bytes(blocks * count(BLOCK)),
            pending: self.clusters(u64::from(space.pending())),
            promised: self.clusters(u64::from(self.state.promised)),
            quarantined: self.clusters(u64::from(self.state.lost)),
        }
    }

    /// Space of a replica or snapshot.
    pub fn usage_of(&self, id: Id) -> Option<Usage> {
        let entity = self.state.entities.get(&id)?;
        let top = self.state.layers.get(&entity.layer)?;
        let has_reserve = self.state.reserve > 0;
        let clusters = |layer_state: &LayerState| {
            u64::from(if has_reserve { layer_state.held } else { layer_state.clusters })
        };
        let mut below = 0;
        let mut here = top.parent;
        while let Some(layer_state) = self.state.layers.get(&here) {
            below += clusters(layer_state);
            here = layer_state.parent;
        }
        Some(Usage {
            size: Bytes(entity.size.0 * count(BLOCK)),
            own: self.clusters(clusters(top)),
            below: self.clusters(below),
            written: Bytes(top.blocks * count(BLOCK)),
            ..Usage::default()
        })
    }

    /// How well the pool is.
    pub fn health(&self) -> Health {
        let damaged = |entity: &&Entity| self.state.is_damaged(entity.layer);
        Health {
            broken: self.broken,
            damaged: self.entities().filter(damaged).map(|entity| entity.id).collect(),
            dirty_regions: self.regions.dirty.len(),
            doubtful_regions: self.regions.doubtful.len(),
            unproven_blocks: self.regions.unproven.len(),
            changed_pages: self.sums.dirty_count(),
            maps: Bytes(self.state.resident.bytes),
        }
    }

    /// Everything that must hold in memory; for tests.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn check_state(&self) {
        self.state.check();
    }

    /// Whether nothing is under way: no command, no commit, no checkpoint.
    pub fn is_idle(&self) -> bool {
        self.ops.len() == 0
            && self.ios.len() == 0
            && self.commit_rests()
            && self.checkpoint.is_idle()
            && self.paging.is_idle()
            && self.effects.is_empty()
    }
}
