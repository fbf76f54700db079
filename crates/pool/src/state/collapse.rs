//! Removing hidden layers, a bounded number of entries at a time.
//!
//! An entry of a hidden layer moves into the entry of its only child, without what the child
//! hides; without a child it is freed. Nobody sees a difference after any of these moves, so they
//! may be cut by a crash or a checkpoint anywhere. The layer itself goes when it is empty.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use crate::bits::{Bits, Run};
use crate::casts::{count, low32};
use crate::entity::{Entity, Id, LayerId};
use crate::map::{Entry, Packed};

use super::{Contradiction, LAYER_BYTES, LayerState, State, pages};

impl State {
    /// The next hidden layer that can be collapsed, except those that are being hidden.
    pub(crate) fn collapsible(&self, not: &BTreeSet<LayerId>) -> Option<LayerId> {
        let ripe = |(layer, layer_state): &(&LayerId, &LayerState)| {
            layer_state.owner == Id::NONE
                && layer_state.children <= 1
                && !not.contains(layer)
                && !self.blocks_collapse(**layer)
        };
        self.layers.iter().find(ripe).map(|(layer, _)| *layer)
    }

    /// Whether moving its fragments into its child would mix with a damaged map.
    fn blocks_collapse(&self, layer: LayerId) -> bool {
        let damaged =
            |layer: LayerId| self.layer_state(layer).is_ok_and(|layer_state| layer_state.damaged);
        let child = self.child_of(layer);
        child.is_some_and(|child| damaged(layer) || damaged(child))
    }

    pub(super) fn child_of(&self, layer: LayerId) -> Option<LayerId> {
        self.layers
            .iter()
            .find(|(_, layer_state)| layer_state.parent == layer)
            .map(|(layer, _)| *layer)
    }

    /// Moves the entries of a hidden layer down, up to the logical cluster `last` and at most
    /// `most`. Answers the last one that was moved.
    pub(crate) fn move_down(
        &mut self,
        layer: LayerId,
        last: u32,
        most: usize,
    ) -> Result<Option<u32>, Contradiction> {
        let layer_state = self.layer_state(layer)?;
        if layer_state.owner != Id::NONE || layer_state.children > 1 {
            return Err(Contradiction);
        }
        let child = if layer_state.children == 1 { self.child_of(layer) } else { None };
        let seen = child
            .and_then(|child| self.layers.get(&child))
            .map_or(0, |layer_state| layer_state.limit);
        let mut moved = None;
        for _ in 0..most {
            let Some(layer_state) = self.layers.get_mut(&layer) else { break };
            let Some(first) = layer_state.map.first_entry().filter(|first| *first.key() <= last)
            else {
                break;
            };
            let (logical, mut packed) = first.remove_entry();
            if let Some(cut) = &mut self.cut {
                cut.keep(layer, (logical, logical >> self.page_shift), || Some(packed.clone()));
            }
            let encoded = packed.encoded_len(self.size);
            let entry = packed.take();
            self.split.remove(&(layer, logical));
            layer_state.clusters -= low32(count(entry.fragments.len()));
            layer_state.held -= u32::from(!entry.fragments.is_empty());
            self.held -= u64::from(!entry.fragments.is_empty());
            layer_state.blocks -= entry.blocks(self.size);
            self.meta_bytes -= encoded;
            self.note(layer, logical, -1, (pages::cost(encoded), 0));
            let hidden = self.beyond(logical, seen);
            self.move_entry((layer, child), logical, entry, hidden);
            moved = Some(logical);
        }
        Ok(moved)
    }

    /// The next entry with more than one fragment, from here on and then from the start.
    pub(crate) fn next_split(&self, from: (LayerId, u32)) -> Option<(LayerId, u32)> {
        self.split.range(from..).next().or_else(|| self.split.first()).copied()
    }

    /// Entries in memory with more than one fragment.
    pub(crate) fn splits(&self) -> impl Iterator<Item = (LayerId, u32)> + '_ {
        self.split.iter().copied()
    }

    /// An entry stays as it is until it changes.
    pub(crate) fn leave_split(&mut self, entry: (LayerId, u32)) {
        self.split.remove(&entry);
    }

    /// All entities that see a layer.
    pub(crate) fn seers(&self, layer: LayerId) -> Vec<Id> {
        let sees = |(_, entity): &(&Id, &Entity)| self.is_over(entity.layer, layer);
        self.entities.iter().filter(sees).map(|(id, _)| *id).collect()
    }

    /// Whether a layer is this one or one above it.
    fn is_over(&self, upper: LayerId, layer: LayerId) -> bool {
        let mut here = upper;
        // A parent is older than its children.
        while here > layer {
            here = self.layers.get(&here).map_or(LayerId::NONE, |layer_state| layer_state.parent);
        }
        here == layer
    }

    /// Blocks of an entry have moved: nobody who sees them knows any more where they are.
    pub(crate) fn unflatten(&mut self, layer: LayerId, logical: u32) {
        let over = |upper: &&LayerId| self.is_over(**upper, layer);
        let over: Vec<_> = self.layers.keys().filter(over).copied().collect();
        for upper in over {
            self.flat.forget_one((upper, logical));
        }
    }

    /// Removes a hidden layer, with what is left of its entries.
    pub(crate) fn collapse(&mut self, layer: LayerId) -> Result<(), Contradiction> {
        self.move_down(layer, u32::MAX, usize::MAX)?;
        let child = self.child_of(layer);
        self.flat.forget(layer);
        let Some(layer_state) = self.layers.remove(&layer) else { return Err(Contradiction) };
        self.meta_bytes -= LAYER_BYTES;
        if child.is_none()
            && let Some(parent) = self.layers.get_mut(&layer_state.parent)
        {
            parent.children -= 1;
        }
        if let Some(child) = child.and_then(|child| self.layers.get_mut(&child)) {
            child.parent = layer_state.parent;
            child.limit = child.limit.min(layer_state.limit);
        }
        if let Some(child) = child.filter(|_| layer_state.damaged) {
            // What it showed of a lost map is lost, and so is what later records say of it: they
            // may give clusters up that others have now.
            self.lose_map(child);
        }
        Ok(())
    }

    /// Moves an entry of a hidden layer into the child's, without what the child hides. Of the
    /// marks of both those stay that hide something of the layers below.
    fn move_entry(
        &mut self,
        (layer, child): (LayerId, Option<LayerId>),
        logical: u32,
        mut entry: Entry,
        hidden: Run,
    ) {
        let size = self.size;
        let into = child.and_then(|child| self.layers.get(&child)?.map.get(&logical));
        let marked = into.is_some_and(Packed::has_marks);
        let hides = into.map_or(Bits::None, |into| into.entry().decided(size));
        let cut = |bits: &mut Bits| {
            bits.remove(hidden, size);
            bits.subtract(&hides, size);
        };
        cut(&mut entry.zero);
        entry.fragments.retain_mut(|fragment| {
            let mut gone = fragment.valid.clone();
            cut(&mut fragment.valid);
            if fragment.valid.is_empty() {
                self.freed.push(fragment.cluster);
                self.space.give_up(fragment.cluster);
                return false;
            }
            // What the child hides it may hide by a record that is not durable: until it is, and
            // this move with it, these places are not free (O5).
            gone.subtract(&fragment.valid, size);
            let base = u64::from(fragment.cluster.0) << size.shift();
            for run in gone.runs(Run::of(0..size.blocks())) {
                self.cleared.extend(run.blocks().map(|block| base + u64::from(block)));
            }
            true
        });
        let Some(child) = child.filter(|_| marked || !entry.is_empty()) else { return };
        if self.layer_state(child).is_ok_and(|layer_state| layer_state.damaged) {
            // They are where nobody knows any more.
            for part in entry.fragments {
                self.space.forget(part.cluster);
                self.lost += 1;
            }
            return;
        }
        let mut shown = Bits::None;
        if marked || !entry.zero.is_empty() {
            shown = self.below(layer, logical, Run::of(0..size.blocks()));
            shown.remove(hidden, size);
        }
        self.edit(child, logical, |into, _| {
            into.zero.union(&entry.zero, size);
            let mut idle = into.zero.clone();
            idle.subtract(&shown, size);
            into.zero.subtract(&idle, size);
            into.fragments.append(&mut entry.fragments);
        });
    }
}
