//! Building the state from a checkpoint, believing nothing.

use alloc::vec::Vec;

use crate::entity::{Entity, Id, Layer};
use crate::map::Map;

use super::edit::entity_bytes;
use super::{Contradiction, INDEX_BYTES, LAYER_BYTES, Page, State, Tier, Window, fits_tally};

impl State {
    pub(crate) fn restore_layer(&mut self, layer: Layer, parent: Layer, limit: u64) -> Option<()> {
        let fresh = layer != Layer::NONE && !self.layers.contains_key(&layer);
        self.layers.insert(layer, Tier { parent, limit, ..Tier::default() });
        self.next_layer = self.next_layer.max(layer.0.saturating_add(1));
        self.meta_bytes += LAYER_BYTES;
        fresh.then_some(())
    }

    pub(crate) fn restore_entity(&mut self, entity: Entity) -> Option<()> {
        self.check_size(entity.size).ok()?;
        let want = if entity.thick && entity.kind == crate::entity::Kind::Replica {
            self.clusters_of(entity.size)
        } else {
            0
        };
        let mut owned = true;
        self.change_tier(entity.layer, |tier| {
            owned = tier.owner != Id::NONE;
            tier.owner = entity.id;
            tier.want = want;
        });
        self.meta_bytes += entity_bytes(&entity);
        let twice = self.entities.insert(entity.id, entity).is_some();
        (!owned && !twice).then_some(())
    }

    /// Counts children; false if a parent is missing or the layers form a ring.
    pub(crate) fn is_tree(&mut self) -> bool {
        let links: Vec<_> = self.layers.iter().map(|(layer, tier)| (*layer, tier.parent)).collect();
        for (layer, parent) in links {
            // A parent is older than its children, so there can be no ring.
            if parent >= layer {
                return false;
            }
            match self.layers.get_mut(&parent) {
                Some(tier) => tier.children += 1,
                None if parent == Layer::NONE => {}
                None => return false,
            }
        }
        true
    }

    /// Takes in where the map of a layer is that has none yet; nothing of it is in memory.
    pub(crate) fn restore_index(
        &mut self,
        layer: Layer,
        pages: Vec<(u32, Page)>,
    ) -> Result<(), Contradiction> {
        self.tier(layer)?;
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
        self.change_tier(layer, |tier| {
            tier.absent = pages.len();
            for (window, page) in pages {
                tier.clusters += page.tally.clusters;
                tier.held += u32::from(page.tally.held);
                tier.blocks += u64::from(page.tally.blocks);
                tier.entries += u64::from(page.tally.entries);
                tier.windows.insert(window, Window::absent(page));
            }
        });
        Ok(())
    }

    /// Takes in which clusters are used. Those that no map has were lost with one; without the list
    /// all others are. Nothing if the maps have more than there are.
    pub(crate) fn restore_space(&mut self, used: Option<&[u8]>) -> Option<()> {
        let mapped: u64 = self.layers.values().map(|tier| u64::from(tier.clusters)).sum();
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
        self.lost > 0 && !self.sought && !self.layers.values().any(|tier| tier.damaged)
    }

    /// These clusters were lost, and nobody has them.
    pub(crate) fn free_lost(&mut self, clusters: &[crate::layout::Cluster]) {
        for cluster in clusters.iter().take(crate::widen::index(u64::from(self.lost))) {
            self.space.free_one(*cluster);
        }
        let found = crate::widen::low32(crate::widen::count(clusters.len()));
        self.lost = self.lost.saturating_sub(found);
        self.sought = true;
    }

    /// The map of a layer is lost, or can be trusted no longer: its clusters are kept apart.
    pub(crate) fn lose_map(&mut self, layer: Layer) {
        self.any_damage = true;
        self.sought = false;
        let mut map = Map::new();
        let mut clusters = 0;
        let (mut bytes, mut changed) = (0, 0);
        self.change_tier(layer, |tier| {
            map = core::mem::take(&mut tier.map);
            for (_, window) in core::mem::take(&mut tier.windows) {
                let page = window.page.filter(|_| window.absent);
                bytes += page.map_or(0, |page| u64::from(page.bytes));
                bytes += if window.is_used() { INDEX_BYTES } else { 0 };
                changed += if window.changed { window.cost } else { 0 };
            }
            clusters = tier.clusters;
            (tier.clusters, tier.blocks, tier.held, tier.damaged) = (0, 0, 0, true);
            // Nobody can write there: what was kept for it would keep others from writing.
            tier.want = 0;
            (tier.entries, tier.absent) = (0, 0);
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
