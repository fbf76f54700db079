//! Building the state from a checkpoint, believing nothing.

use alloc::vec::Vec;

use crate::entity::{Entity, Id, LayerId};
use crate::map::Map;

use super::edit::entity_bytes;
use super::{Contradiction, INDEX_BYTES, LAYER_BYTES, LayerState, Page, State, Window, fits_tally};

impl State {
    pub(crate) fn restore_layer(
        &mut self,
        layer: LayerId,
        parent: LayerId,
        limit: u64,
    ) -> Option<()> {
        let fresh = layer != LayerId::NONE && !self.layers.contains_key(&layer);
        self.layers.insert(layer, LayerState { parent, limit, ..LayerState::default() });
        self.next_layer = self.next_layer.max(layer.0.saturating_add(1));
        self.meta_bytes += LAYER_BYTES;
        fresh.then_some(())
    }

    pub(crate) fn restore_entity(&mut self, entity: Entity) -> Option<()> {
        self.check_size(entity.size).ok()?;
        let want = if entity.thick && entity.kind == crate::entity::EntityKind::Replica {
            self.clusters_of(entity.size)
        } else {
            0
        };
        let mut owned = true;
        self.change_layer_state(entity.layer, |layer_state| {
            owned = layer_state.owner != Id::NONE;
            layer_state.owner = entity.id;
            layer_state.want = want;
        });
        self.meta_bytes += entity_bytes(&entity);
        let twice = self.entities.insert(entity.id, entity).is_some();
        (!owned && !twice).then_some(())
    }

    /// Counts children; false if a parent is missing or the layers form a ring.
    pub(crate) fn is_tree(&mut self) -> bool {
        let links: Vec<_> =
            self.layers.iter().map(|(layer, layer_state)| (*layer, layer_state.parent)).collect();
        for (layer, parent) in links {
            // A parent is older than its children, so there can be no ring.
            if parent >= layer {
                return false;
            }
            match self.layers.get_mut(&parent) {
                Some(layer_state) => layer_state.children += 1,
                None if parent == LayerId::NONE => {}
                None => return false,
            }
        }
        true
    }

    /// Takes in where the map of a layer is that has none yet; nothing of it is in memory.
    pub(crate) fn restore_index(
        &mut self,
        layer: LayerId,
        pages: Vec<(u32, Page)>,
    ) -> Result<(), Contradiction> {
        self.layer_state(layer)?;
        let shift = self.page_shift;
        let most = u64::from(self.space.clusters());
        let sound = |(window, page): &(u32, Page)| {
            *window <= u32::MAX >> shift
                && fits_tally(&page.tally, shift)
                && u64::from(page.tally.blocks) <= self.size.blocks() << shift
                && u64::from(page.tally.clusters) <= most
                && u64::from(page.bytes) <= page.tally.most_bytes(self.size)
        };
        let ascending = pages.is_sorted_by(|(before, _), (after, _)| before < after);
        let clusters: u64 = pages.iter().map(|(_, page)| u64::from(page.tally.clusters)).sum();
        if !ascending || !pages.iter().all(sound) || clusters > most {
            return Err(Contradiction);
        }
        for (_, page) in &pages {
            self.meta_bytes += INDEX_BYTES + u64::from(page.bytes);
        }
        self.change_layer_state(layer, |layer_state| {
            layer_state.absent = pages.len();
            for (window, page) in pages {
                layer_state.clusters += page.tally.clusters;
                layer_state.held += u32::from(page.tally.held);
                layer_state.blocks += u64::from(page.tally.blocks);
                layer_state.entries += u64::from(page.tally.entries);
                layer_state.windows.insert(window, Window::absent(page));
            }
        });
        Ok(())
    }

    /// Takes in which clusters are used. Those that no map has were lost with one; without the list
    /// all others are. Nothing if the maps have more than there are.
    pub(crate) fn restore_space(&mut self, used: Option<&[u8]>) -> Option<()> {
        let mapped: u64 =
            self.layers.values().map(|layer_state| u64::from(layer_state.clusters)).sum();
        let mapped = u32::try_from(mapped).ok()?;
        self.space.restore(used);
        if self.space.clusters() - self.space.free() < mapped {
            self.space.restore(None);
        }
        self.lost = (self.space.clusters() - self.space.free()).checked_sub(mapped)?;
        Some(())
    }

    /// Whether a checkpoint would find clusters that were lost and that nobody can have any more.
    pub(crate) fn seeks_lost(&self) -> bool {
        self.lost > 0
            && !self.sought
            && !self.layers.values().any(|layer_state| layer_state.damaged)
    }

    /// These clusters were lost, and nobody has them.
    pub(crate) fn free_lost(&mut self, clusters: &[crate::layout::Cluster]) {
        for cluster in clusters.iter().take(crate::casts::index(u64::from(self.lost))) {
            self.space.free_one(*cluster);
        }
        let found = crate::casts::low32(crate::casts::count(clusters.len()));
        self.lost = self.lost.saturating_sub(found);
        self.sought = true;
    }

    /// The map of a layer is lost, or can be trusted no longer: its clusters are kept apart.
    pub(crate) fn lose_map(&mut self, layer: LayerId) {
        self.any_damage = true;
        self.sought = false;
        let mut map = Map::new();
        let mut clusters = 0;
        let (mut bytes, mut changed) = (0, 0);
        self.change_layer_state(layer, |layer_state| {
            map = core::mem::take(&mut layer_state.map);
            for (_, window) in core::mem::take(&mut layer_state.windows) {
                let page = window.page.filter(|_| window.absent);
                bytes += page.map_or(0, |page| u64::from(page.bytes));
                bytes += if window.is_used() { INDEX_BYTES } else { 0 };
                changed += if window.changed { window.cost } else { 0 };
            }
            clusters = layer_state.clusters;
            (layer_state.clusters, layer_state.blocks, layer_state.held, layer_state.damaged) =
                (0, 0, 0, true);
            // Nobody can write there: what was kept for it would keep others from writing.
            layer_state.want = 0;
            (layer_state.entries, layer_state.absent) = (0, 0);
        });
        self.lost += clusters;
        self.meta_bytes -= bytes;
        self.resident.changed -= changed;
        for (logical, packed) in map {
            let encoded = packed.encoded_len(self.size);
            self.meta_bytes -= encoded;
            self.resident.bytes -= super::pages::cost(encoded);
            self.split.remove(&(layer, logical));
            packed.clusters().for_each(|cluster| self.space.forget(cluster));
        }
        self.leave_out_of_cut(layer);
    }
}
