//! Changes of one layer's map, with exact counting.

use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Entry as Slot;
use alloc::vec::Vec;
use core::ops::{Range, RangeInclusive};

use crate::bits::{Bits, Run};
use crate::casts::{count, low32};
use crate::entity::{Entity, LayerId};
use crate::layout::{Cluster, ClusterSize, PhysicalBlock};
use crate::map::{Entry, Packed};

use super::{State, pages};

/// Bytes that an entity takes in a checkpoint.
pub(crate) fn entity_bytes(entity: &Entity) -> u64 {
    count(entity.encoded_len())
}

/// Clusters with first writes under way: how many, and in which entry.
pub(super) type Pins = BTreeMap<Cluster, (u32, LayerId, u32)>;

impl State {
    /// Changes one entry, then counts: freed are the fragments without a valid block.
    pub(super) fn edit<F>(&mut self, layer: LayerId, logical: u32, change: F)
    where
        F: FnOnce(&mut Entry, &Pins),
    {
        let size = self.size;
        let Some(layer_state) =
            self.layers.get_mut(&layer).filter(|layer_state| !layer_state.damaged)
        else {
            return;
        };
        if let Some(cut) = &mut self.cut {
            let at = (logical, logical >> self.page_shift);
            cut.keep(layer, at, || layer_state.map.get(&logical).cloned());
        }
        let promised = self.promised - layer_state.promise();
        let mut slot = match layer_state.map.entry(logical) {
            Slot::Occupied(slot) => slot,
            Slot::Vacant(slot) => slot.insert_entry(Packed::Empty),
        };
        let mut entry = slot.get_mut().take();
        let before = if entry.is_empty() { 0 } else { entry.encoded_len(size) };
        layer_state.clusters -= low32(count(entry.fragments.len()));
        layer_state.held -= u32::from(!entry.fragments.is_empty());
        self.held -= u64::from(!entry.fragments.is_empty());
        layer_state.blocks -= entry.blocks(size);
        change(&mut entry, &self.pins);
        let pins = &self.pins;
        let (freed, space) = (&mut self.freed, &mut self.space);
        entry.fragments.retain(|fragment| {
            let keep = !fragment.valid.is_empty() || pins.contains_key(&fragment.cluster);
            if !keep {
                freed.push(fragment.cluster);
                space.give_up(fragment.cluster);
            }
            keep
        });
        layer_state.clusters += low32(count(entry.fragments.len()));
        layer_state.held += u32::from(!entry.fragments.is_empty());
        self.held += u64::from(!entry.fragments.is_empty());
        layer_state.blocks += entry.blocks(size);
        if entry.fragments.len() > 1 {
            self.split.insert((layer, logical));
        } else if !self.split.is_empty() {
            self.split.remove(&(layer, logical));
        }
        let after = if entry.is_empty() { 0 } else { entry.encoded_len(size) };
        if entry.is_empty() {
            slot.remove();
        } else {
            *slot.get_mut() = Packed::new(entry);
        }
        self.promised = promised + layer_state.promise();
        self.meta_bytes = self.meta_bytes + after - before;
        let more = i64::from(after > 0) - i64::from(before > 0);
        self.note(layer, logical, more, (pages::cost(before), pages::cost(after)));
    }

    /// Blocks of a fragment of this entry became valid.
    pub(crate) fn make_valid(&mut self, layer: LayerId, logical: u32, cluster: Cluster, run: Run) {
        let size = self.size;
        let mut cleared = core::mem::take(&mut self.cleared);
        self.edit(layer, logical, |entry, pins| {
            clear(entry, run, Some(cluster), size, pins, &mut cleared);
            entry.zero.remove(run, size);
            entry.fragment(cluster).valid.insert(run, size);
        });
        self.cleared = cleared;
        self.flat.set((layer, logical), run, Some(cluster));
    }

    /// The blocks read as zeros from now on. A range beyond the end of the map is nothing, and so
    /// is an empty one, which only a forged record has.
    pub(crate) fn discard(&mut self, layer: LayerId, blocks: Range<u64>) {
        let Range { start, end } = blocks;
        if start >= end {
            return;
        }
        let shift = self.size.shift();
        let last = (end.saturating_sub(1) >> shift).min(u64::from(u32::MAX));
        let first = (start >> shift).min(u64::from(u32::MAX));
        for logical in self.touched(layer, low32(first)..=low32(last)) {
            let base = u64::from(logical) << shift;
            let from = start.max(base) - base;
            let to = end.min(base + self.size.blocks()) - base;
            if from < to {
                self.discard_in(layer, logical, Run::of(from..to));
            }
        }
    }

    /// Logical clusters in a range that this layer or one below has anything of.
    fn touched(&self, layer: LayerId, range: RangeInclusive<u32>) -> Vec<u32> {
        let mut found = Vec::new();
        let mut here = layer;
        while let Some(layer_state) = self.layers.get(&here) {
            found.extend(layer_state.map.range(range.clone()).map(|(logical, _)| *logical));
            here = layer_state.parent;
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    fn discard_in(&mut self, layer: LayerId, logical: u32, run: Run) {
        let size = self.size;
        let below = self.below(layer, logical, run);
        let mut cleared = core::mem::take(&mut self.cleared);
        self.edit(layer, logical, |entry, pins| {
            clear(entry, run, None, size, pins, &mut cleared);
            entry.zero.union(&below, size);
        });
        self.cleared = cleared;
        self.flat.set((layer, logical), run, None);
    }

    /// Which blocks of the run an ancestor of the layer would show.
    pub(super) fn below(&mut self, layer: LayerId, logical: u32, run: Run) -> Bits {
        let mut below = Bits::None;
        let Some(layer_state) = self.layers.get(&layer) else { return below };
        let (parent, limit) = (layer_state.parent, layer_state.limit);
        if parent == LayerId::NONE {
            return below;
        }
        let base = u64::from(logical) << self.size.shift();
        for block in run.blocks() {
            let visible = base + u64::from(block) < limit;
            if visible && self.find(parent, logical, block).is_some() {
                below.insert(Run { first: block, len: 1 }, self.size);
            }
        }
        below
    }

    /// A first write into this cluster begins: the cluster stays until it ends.
    pub(crate) fn pin(&mut self, layer: LayerId, logical: u32, cluster: Cluster) {
        self.pins.entry(cluster).or_insert((0, layer, logical)).0 += 1;
        let entry = self.layers.get(&layer).and_then(|layer_state| layer_state.map.get(&logical));
        if !entry.is_some_and(|entry| entry.has(cluster)) {
            self.edit(layer, logical, |entry, _| {
                entry.fragment(cluster);
            });
        }
        self.hold((layer, self.window_of(logical)));
    }

    /// Clusters in which nothing is valid yet.
    pub(crate) fn unwritten(&self) -> impl Iterator<Item = Cluster> + '_ {
        self.pins.iter().filter_map(|(cluster, (_, layer, logical))| {
            let entry = self.layers.get(layer)?.map.get(logical)?.entry();
            let part = entry.fragments.into_iter().find(|part| part.cluster == *cluster)?;
            part.valid.is_empty().then_some(*cluster)
        })
    }

    /// A first write ended, well or not.
    pub(crate) fn unpin(&mut self, layer: LayerId, logical: u32, cluster: Cluster) {
        if let Slot::Occupied(mut pins) = self.pins.entry(cluster) {
            pins.get_mut().0 -= 1;
            if pins.get().0 == 0 {
                pins.remove();
            }
        }
        self.release((layer, self.window_of(logical)));
        let entry = self.layers.get(&layer).and_then(|layer_state| layer_state.map.get(&logical));
        if let Some(Packed::Mixed(_)) = entry {
            // Only there can a fragment be without a valid block.
            self.edit(layer, logical, |_, _| {});
        }
    }
}

/// Takes a run out of all fragments and the zero marks, except the fragment `keep`. Blocks given up
/// in a cluster that stays are listed; a cluster that goes is listed as a whole by `edit`.
fn clear(
    entry: &mut Entry,
    run: Run,
    keep: Option<Cluster>,
    size: ClusterSize,
    pins: &Pins,
    cleared: &mut Vec<PhysicalBlock>,
) {
    entry.zero.remove(run, size);
    for fragment in &mut entry.fragments {
        if keep == Some(fragment.cluster) || !fragment.valid.touches(run) {
            continue;
        }
        let before = fragment.valid.clone();
        fragment.valid.remove(run, size);
        if !fragment.valid.is_empty() || pins.contains_key(&fragment.cluster) {
            let base = u64::from(fragment.cluster.0) << size.shift();
            for gone in before.runs(run) {
                cleared.extend(gone.blocks().map(|block| base + u64::from(block)));
            }
        }
    }
}
