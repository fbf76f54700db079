//! Building the state from a checkpoint, believing nothing.

use alloc::vec::Vec;

use crate::entity::{Entity, Id, Layer};
use crate::layout::Cluster;
use crate::map::{Map, Packed};
use crate::widen::{count, low32};

use super::edit::entity_bytes;
use super::{Contradiction, LAYER_BYTES, State, Tier};

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

    /// Takes in the map of a layer that has none yet.
    pub(crate) fn restore_map(
        &mut self,
        layer: Layer,
        map: Vec<(u32, Packed)>,
    ) -> Result<(), Contradiction> {
        let size = self.size;
        let has_parent = self.tier(layer)?.parent != Layer::NONE;
        let sound = |entry: &Packed| entry.is_sound(size) && (has_parent || !entry.has_marks());
        let ascending = map.is_sorted_by(|(before, _), (after, _)| before < after);
        if !ascending || !map.iter().all(|(_, entry)| sound(entry)) {
            return Err(Contradiction);
        }
        let parts = || map.iter().flat_map(|(_, entry)| entry.clusters());
        for (nth, cluster) in parts().enumerate() {
            if !self.space.take(cluster) {
                parts().take(nth).for_each(|cluster| self.give_back(cluster));
                return Err(Contradiction);
            }
        }
        let (mut clusters, mut held, mut blocks) = (0, 0, 0);
        for (logical, entry) in &map {
            let parts = low32(count(entry.clusters().count()));
            clusters += parts;
            held += u32::from(parts > 0);
            blocks += entry.blocks(size);
            self.meta_bytes += entry.encoded_len(size);
            if parts > 1 {
                self.split.insert((layer, *logical));
            }
        }
        self.change_tier(layer, |tier| {
            (tier.clusters, tier.held, tier.blocks) = (clusters, held, blocks);
            tier.map = map.into_iter().collect();
        });
        Ok(())
    }

    fn give_back(&mut self, cluster: Cluster) {
        self.space.give_up();
        self.space.release(cluster);
    }

    /// The map of a layer is lost, or can be trusted no longer: its clusters are kept apart.
    pub(crate) fn lose_map(&mut self, layer: Layer) {
        self.any_damage = true;
        let mut map = Map::new();
        self.change_tier(layer, |tier| {
            map = core::mem::take(&mut tier.map);
            (tier.clusters, tier.blocks, tier.held, tier.damaged) = (0, 0, 0, true);
        });
        for (logical, packed) in map {
            self.meta_bytes -= packed.encoded_len(self.size);
            self.quarantine.extend(packed.clusters());
            self.split.remove(&(layer, logical));
        }
    }

    /// Keeps every cluster that was used and that no map knows. Without the list of used clusters
    /// that is every one.
    pub(crate) fn keep_lost(&mut self, used: Option<&[u8]>) {
        for number in 0..self.space.clusters() {
            let byte = used
                .map_or(Some(&0xff), |used| used.get(crate::widen::index(u64::from(number / 8))));
            let was_used = byte.is_none_or(|byte| byte >> (number % 8) & 1 != 0);
            let cluster = Cluster(number);
            if was_used && self.space.take(cluster) {
                self.quarantine.insert(cluster);
            }
        }
    }
}
