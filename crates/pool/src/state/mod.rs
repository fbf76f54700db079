//! The pool in memory: entities, layers, maps, space. Every change is a record, and replaying the
//! records gives the same state.
//!
//! Invariants:
//! - a used cluster is in exactly one fragment of one layer, or lost with a map;
//! - the counters of a layer are those of its map, in memory or not;
//! - a layer without owner has two or more children, or is about to be collapsed.
//!
//! Not here: durability (what may be used again, and when), I/O.

mod checkpoint_view;
mod collapse;
mod edit;
mod pages;
mod required_pages;
mod resolve;
mod restore;
mod tree;
mod window;

#[cfg(test)]
#[expect(
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    reason = "tests count in small numbers"
)]
mod tests;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use block::Blocks;

use crate::casts::low32;
use crate::checkpoint;
use crate::entity::{BadEntity, Entity, Id, LayerId};
use crate::layout::{Cluster, ClusterSize, PhysicalBlock};
use crate::map::Map;
use crate::record::Record;
use crate::space::Space;

pub(crate) use checkpoint_view::{Copy, WalkResult};
pub(crate) use pages::{INDEX_BYTES, PageKey, page_shift};
pub(crate) use resolve::Piece;
pub(crate) use window::{Page, PageCounts, Window, fits_tally};

/// One layer.
#[derive(Clone, Debug, Default)]
pub(crate) struct LayerState {
    pub(crate) parent: LayerId,
    pub(crate) children: u32,
    /// The entity whose topmost layer this is; none if it is hidden.
    pub(crate) owner: Id,
    /// Blocks from here on do not come from the parent.
    pub(crate) limit: u64,
    /// Entries that are in memory.
    pub(crate) map: Map,
    /// Where entries are, and which of them are in memory.
    pub(crate) windows: BTreeMap<u32, Window>,
    /// Windows whose entries are not in memory.
    pub(crate) absent: usize,
    /// Entries of the map, in memory or not.
    pub(crate) entries: u64,
    /// Physical clusters in the map.
    pub(crate) clusters: u32,
    /// Valid blocks in the map.
    pub(crate) blocks: u64,
    /// Logical clusters that have a physical one; writing there never needs another.
    pub(crate) held: u32,
    /// Logical clusters it may fill without asking: its size, if it is the top of a thick replica.
    pub(crate) want: u32,
    /// Its map could not be read.
    pub(crate) damaged: bool,
}

impl LayerState {
    fn promise(&self) -> u32 {
        self.want.saturating_sub(self.held)
    }
}

/// Why a change of replicas and snapshots was refused. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The id is in use.
    #[error("the id is in use by another replica or snapshot of this pool")]
    Exists,
    /// There is none with this id.
    #[error("no replica or snapshot with this id is in this pool")]
    NotFound,
    /// A snapshot cannot do this.
    #[error("a snapshot cannot be written, resized or snapshotted; make a clone of it")]
    IsSnapshot,
    /// Only a snapshot can do this.
    #[error("a clone is made from a snapshot; take one of the replica first")]
    NotSnapshot,
    /// The entity cannot be stored.
    #[error(transparent)]
    Bad(#[from] BadEntity),
    /// No space is left for it.
    #[error("not enough space is left in the pool")]
    NoSpace,
    /// Its map was lost.
    #[error("its map is damaged; delete it and rebuild it from another replica")]
    Damaged,
    /// The key check value is another one.
    #[error("the key is not the one this replica was encrypted with")]
    WrongKey,
    /// The journal or a flush failed.
    #[error("the pool takes no changes: it is being exported, or its journal failed")]
    Broken,
    /// The disks are not larger than before.
    #[error("no disk has room for one more cluster; is it really larger?")]
    NotLarger,
    /// A bounded queue is full.
    #[error("too many commands are waiting; try again")]
    Busy,
}

/// The state of a pool.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) size: ClusterSize,
    pub(crate) entities: BTreeMap<Id, Entity>,
    pub(crate) layers: BTreeMap<LayerId, LayerState>,
    pub(crate) space: Space,
    pub(crate) next_layer: u32,
    /// Bytes that a checkpoint of all this needs, and may need.
    pub(crate) meta_bytes: u64,
    pub(crate) meta_limit: u64,
    /// Clusters kept free for thick replicas.
    pub(crate) promised: u32,
    /// Logical clusters of all layers that have a physical one.
    held: u64,
    /// Clusters kept for redirected overwrites, be they free or second ones of an entry (O9).
    pub(crate) reserve: u32,
    /// Clusters with first writes under way: kept although no block of them is valid yet.
    pins: edit::Pins,
    /// Clusters given up since last asked.
    pub(crate) freed: Vec<Cluster>,
    /// Blocks given up in clusters that stay, since last asked.
    pub(crate) cleared: Vec<PhysicalBlock>,
    /// A map was lost since the pool was opened.
    any_damage: bool,
    /// How many clusters belong to maps that could not be read. Which ones is found out when no
    /// such map is left.
    pub(crate) lost: u32,
    /// They were looked for since.
    sought: bool,
    /// Logical clusters of a window, as a power of two.
    pub(crate) page_shift: u8,
    pub(crate) resident: window::Resident,
    /// Entries in memory with more than one fragment: they can be merged.
    split: BTreeSet<(LayerId, u32)>,
    flat: resolve::FlatCache,
    /// What the checkpoint being written needs of entries that changed since.
    cut: Option<checkpoint_view::CheckpointView>,
}

/// A record contradicts the state: the disk, or this code, is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Contradiction;

/// Parts of a checkpoint that belong to no map entry: header of the directory, one entry of it
/// and the fixed part of a layer.
pub(crate) const LAYER_BYTES: u64 = 32 + 24;

impl State {
    pub(crate) fn new(size: ClusterSize, clusters: u32, meta_limit: u64) -> State {
        State {
            size,
            entities: BTreeMap::new(),
            layers: BTreeMap::new(),
            space: Space::new(clusters),
            next_layer: 1,
            meta_bytes: 0,
            meta_limit,
            promised: 0,
            held: 0,
            reserve: 0,
            pins: BTreeMap::new(),
            freed: Vec::new(),
            cleared: Vec::new(),
            any_damage: false,
            lost: 0,
            sought: false,
            page_shift: page_shift(size),
            resident: window::Resident::default(),
            split: BTreeSet::new(),
            flat: resolve::FlatCache::default(),
            cut: None,
        }
    }

    /// Does what a record says. During recovery what it gives up is free at once.
    pub(crate) fn replay(&mut self, record: &Record) -> Result<(), Contradiction> {
        match record {
            Record::FirstWrite { at, crcs } => {
                let run = crate::bits::Run { first: at.first, len: low_len(crcs)? };
                let fits = u64::from(at.first) + u64::from(run.len) <= self.size.blocks();
                if !fits || !self.may_replay_into(at.layer, at.cluster)? {
                    return if fits { Ok(()) } else { Err(Contradiction) };
                }
                self.adopt(at.layer, at.logical, at.cluster)?;
                self.make_valid(at.layer, at.logical, at.cluster, run);
            }
            Record::Discard { layer, start, len } => {
                if self.layer_state(*layer)?.damaged {
                    return Ok(());
                }
                self.discard(*layer, *start..start.saturating_add(*len));
            }
            Record::Dirty { .. } | Record::Overwrite { .. } => {}
            Record::Create(entity) => self.create(entity.clone()).map_err(|_| Contradiction)?,
            Record::Snapshot { source, top, entity } => {
                self.snapshot(*source, *top, entity.clone()).map_err(|_| Contradiction)?;
            }
            Record::Delete(id) => self.delete(*id).map_err(|_| Contradiction)?,
            Record::Move { layer, last } => self.move_down(*layer, *last, usize::MAX).map(drop)?,
            Record::Collapse(layer) => self.collapse(*layer)?,
            Record::Update(entity) => self.update(entity.clone()).map_err(|_| Contradiction)?,
            Record::Resize { id, size } => {
                self.resize(*id, *size).map_err(|_| Contradiction)?;
            }
        }
        self.cleared.clear();
        while let Some(cluster) = self.freed.pop() {
            self.space.release(cluster);
        }
        Ok(())
    }

    /// Whether a first write can be replayed; into a damaged layer it cannot, but its cluster must
    /// not be given to anybody else.
    fn may_replay_into(&mut self, layer: LayerId, cluster: Cluster) -> Result<bool, Contradiction> {
        let damaged = self.layer_state(layer)?.damaged;
        if damaged && self.space.take(cluster) {
            // No entry in memory has it.
            self.space.forget(cluster);
            self.lost += 1;
        }
        Ok(!damaged)
    }

    /// Makes sure that the cluster is a fragment of this entry.
    fn adopt(
        &mut self,
        layer: LayerId,
        logical: u32,
        cluster: Cluster,
    ) -> Result<(), Contradiction> {
        let entry = self.layer_state(layer)?.map.get(&logical);
        let has = entry.is_some_and(|entry| entry.has(cluster));
        if has || self.space.take(cluster) {
            return Ok(());
        }
        // A lost map's record may have given the cluster up since.
        let was_lost = self.lost > 0 && self.space.claim(cluster);
        self.lost -= u32::from(was_lost);
        if was_lost { Ok(()) } else { Err(Contradiction) }
    }

    pub(crate) fn layer_state(&self, layer: LayerId) -> Result<&LayerState, Contradiction> {
        self.layers.get(&layer).ok_or(Contradiction)
    }

    /// Whether an entity or anything below it is damaged.
    pub(crate) fn is_damaged(&self, layer: LayerId) -> bool {
        if !self.any_damage {
            return false;
        }
        let mut here = layer;
        while let Some(layer_state) = self.layers.get(&here) {
            if layer_state.damaged {
                return true;
            }
            here = layer_state.parent;
        }
        false
    }

    /// Refuses no blocks at all, and more than a map can number: clusters would share numbers.
    pub(crate) fn check_size(&self, size: Blocks) -> Result<(), BadEntity> {
        let most = u64::from(u32::MAX) << self.size.shift();
        match size {
            Blocks::ZERO => Err(BadEntity::Empty),
            Blocks(blocks) if blocks > most => Err(BadEntity::TooLarge { most }),
            _ => Ok(()),
        }
    }

    /// Clusters of a size.
    pub(crate) fn clusters_of(&self, size: Blocks) -> u32 {
        let clusters = size.0.div_ceil(self.size.blocks());
        if clusters > u64::from(u32::MAX) { u32::MAX } else { low32(clusters) }
    }

    /// Whether a layer may have that many more clusters now.
    pub(crate) fn may_allocate(&self, layer: LayerId, more: u32) -> bool {
        let own = self.layers.get(&layer).map_or(0, LayerState::promise);
        let entry = 16 + crate::casts::count(self.size.bitmap_bytes());
        let bytes = (entry + INDEX_BYTES) * u64::from(more);
        // What was promised to it is there for it in any case.
        let reserve = if more > own { self.reserve_left() } else { 0 };
        let kept = self.promised - own.min(more) + reserve;
        self.space.free() >= kept.saturating_add(more) && self.has_map_room(bytes)
    }

    /// Whether overwrites may be redirected into that many more clusters now. They may take half
    /// of the room of a checkpoint that is kept for labels and snapshots: it reckons with every
    /// cluster, so they hardly ever need it.
    pub(crate) fn may_redirect(&self, more: u32) -> bool {
        // A fragment more, and bitmaps of both.
        let bytes = (8 + 2 * crate::casts::count(self.size.bitmap_bytes())) * u64::from(more);
        let room = self.meta_room();
        let has_room = self.meta_bytes + bytes <= room - room / 32;
        self.space.free() >= self.promised.saturating_add(more) && has_room
    }

    /// Clusters that entries have beyond their first.
    pub(crate) fn second_clusters(&self) -> u32 {
        let taken = self.space.clusters() - self.space.free() - self.space.pending();
        taken.saturating_sub(self.lost).saturating_sub(low32(self.held))
    }

    /// Clusters that must stay free for redirected overwrites: what they have already comes back
    /// by merging.
    pub(crate) fn reserve_left(&self) -> u32 {
        match self.reserve {
            0 => 0,
            reserve => reserve.saturating_sub(self.second_clusters()),
        }
    }

    /// Whether that many more clusters can be promised to a thick replica.
    pub(crate) fn may_promise(&self, more: u32) -> bool {
        // Second clusters come back by merging, and whoever needs what was promised waits for that.
        let second = if self.reserve == 0 { 0 } else { self.second_clusters() };
        let kept = self.promised.saturating_add(self.reserve);
        self.space.free() + second >= kept.saturating_add(more)
    }

    /// Whether a snapshot leaves enough space for all of a thick replica.
    pub(crate) fn may_renew_promise(&self, layer: LayerId) -> bool {
        self.layers
            .get(&layer)
            .is_some_and(|layer_state| self.may_promise(layer_state.want - layer_state.promise()))
    }

    /// Whether the marks of a discard fit a checkpoint for certain.
    pub(crate) fn may_discard(&self, layer: LayerId, blocks: core::ops::Range<u64>) -> bool {
        let touched = ((blocks.end - blocks.start) >> self.size.shift()) + 2;
        let mut known = 0;
        let mut here = layer;
        while let Some(layer_state) = self.layers.get(&here) {
            known += layer_state.entries;
            here = layer_state.parent;
        }
        // Only the first and the last cluster need a bitmap where there was none.
        let bitmap = crate::casts::count(self.size.bitmap_bytes());
        let whole = touched.min(known) * (16 + INDEX_BYTES);
        let ragged = (blocks.start | blocks.end) & (self.size.blocks() - 1) != 0;
        self.has_map_room(whole + if ragged { 4 * bitmap } else { 0 })
    }

    /// Whether that many more bytes fit a checkpoint, and leave a part of it for labels and
    /// snapshots.
    pub(crate) fn has_map_room(&self, bytes: u64) -> bool {
        let room = self.meta_room();
        self.meta_bytes + bytes <= room - room / 16
    }

    /// Whether that many more bytes of small records fit a checkpoint.
    pub(crate) fn fits(&self, bytes: u64) -> bool {
        self.meta_bytes + bytes <= self.meta_room()
    }

    /// Room of a checkpoint for all that is counted.
    fn meta_room(&self) -> u64 {
        let fixed = checkpoint::fixed_bytes(self.space.clusters(), self.size);
        self.meta_limit.saturating_sub(fixed)
    }

    fn change_layer_state(&mut self, layer: LayerId, change: impl FnOnce(&mut LayerState)) {
        if let Some(layer_state) = self.layers.get_mut(&layer) {
            self.promised -= layer_state.promise();
            self.held -= u64::from(layer_state.held);
            change(layer_state);
            self.held += u64::from(layer_state.held);
            self.promised += layer_state.promise();
        }
    }

    /// Everything that must hold; for tests, after each step.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn check(&self) {
        use crate::map::Packed;
        let mut seen = BTreeSet::new();
        let (mut used, mut resident) = (self.lost, 0);
        let mut children: BTreeMap<LayerId, u32> = BTreeMap::new();
        let mut bytes: u64 = self.entities.values().map(edit::entity_bytes).sum();
        for (layer, layer_state) in &self.layers {
            *children.entry(layer_state.parent).or_default() += 1;
            bytes += LAYER_BYTES + self.check_windows(layer_state);
            let (mut clusters, mut blocks, mut held) = (0, 0, 0);
            for page in layer_state.windows.values().filter(|window| window.absent) {
                let tally = page.page.map_or(PageCounts::default(), |page| page.tally);
                clusters += tally.clusters;
                blocks += u64::from(tally.blocks);
                held += u32::from(tally.held);
            }
            used += clusters;
            for packed in layer_state.map.values() {
                let entry = packed.entry();
                assert_eq!(*packed, Packed::new(entry.clone()));
                held += u32::from(!entry.fragments.is_empty());
                assert!(!entry.is_empty());
                bytes += entry.encoded_len(self.size);
                resident += pages::cost(entry.encoded_len(self.size));
                for fragment in &entry.fragments {
                    clusters += 1;
                    assert!(seen.insert(fragment.cluster), "{:?} twice", fragment.cluster);
                    assert!(self.space.is_taken(fragment.cluster));
                    let pinned = self.pins.contains_key(&fragment.cluster);
                    assert!(!fragment.valid.is_empty() || pinned, "leak in {layer:?}");
                }
                blocks += entry.blocks(self.size);
                let decided = entry.decided(self.size).count(self.size);
                assert_eq!(decided, entry.blocks(self.size) + entry.zero.count(self.size));
                assert!(entry.zero.is_empty() || layer_state.parent != LayerId::NONE);
            }
            let counted = (layer_state.clusters, layer_state.blocks, layer_state.held);
            assert_eq!(counted, (clusters, blocks, held), "{layer:?}");
        }
        for (layer, layer_state) in &self.layers {
            assert_eq!(
                layer_state.children,
                children.get(layer).copied().unwrap_or(0),
                "{layer:?}"
            );
            let owner = self.entities.get(&layer_state.owner);
            assert!(owner.is_none_or(|owner| owner.layer == *layer));
        }
        used += low32(crate::casts::count(seen.len()));
        let changed = self.layers.values().flat_map(|layer_state| layer_state.windows.values());
        let changed: u64 = changed.filter(|window| window.changed).map(|window| window.cost).sum();
        assert_eq!((self.resident.bytes, self.resident.changed), (resident, changed));
        assert_eq!(used + self.space.free() + self.space.pending(), self.space.clusters());
        assert_eq!(
            self.held,
            self.layers.values().map(|layer_state| u64::from(layer_state.held)).sum()
        );
        assert_eq!(bytes, self.meta_bytes);
        assert_eq!(self.promised, self.layers.values().map(LayerState::promise).sum::<u32>());
    }
}

fn low_len(crcs: &[u32]) -> Result<u16, Contradiction> {
    u16::try_from(crcs.len()).map_err(|_| Contradiction)
}
