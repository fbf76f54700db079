//! Building the state from a checkpoint, believing nothing.

use alloc::vec::Vec;

use crate::entity::{Entity, Id, Layer};
use crate::layout::Cluster;
use crate::map::Entry;
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

    pub(crate) fn restore_map(
        &mut self,
        layer: Layer,
        map: Vec<(u32, Entry)>,
    ) -> Result<(), Contradiction> {
        let size = self.size;
        let has_parent = self.tier(layer)?.parent != Layer::NONE;
        for (logical, entry) in map {
            let sound = (has_parent || entry.zero.is_empty())
                && entry.decided(size).count(size) == entry.zero.count(size) + entry.blocks(size)
                && entry.fragments.iter().all(|part| !part.valid.is_empty());
            let fresh = !self.tier(layer)?.map.contains_key(&logical) && !entry.is_empty();
            if !sound || !fresh {
                return Err(Contradiction);
            }
            for (nth, fragment) in entry.fragments.iter().enumerate() {
                if !self.space.take(fragment.cluster) {
                    entry.fragments[..nth].iter().for_each(|part| self.give_back(part.cluster));
                    return Err(Contradiction);
                }
            }
            self.meta_bytes += entry.encoded_len(size);
            let (clusters, blocks) = (low32(count(entry.fragments.len())), entry.blocks(size));
            self.change_tier(layer, |tier| {
                tier.clusters += clusters;
                tier.held += u32::from(clusters > 0);
                tier.blocks += blocks;
                tier.map.insert(logical, entry);
            });
        }
        Ok(())
    }

    fn give_back(&mut self, cluster: Cluster) {
        self.space.give_up();
        self.space.release(cluster);
    }

    /// Forgets what was read of a map that turned out to be damaged.
    pub(crate) fn lose_map(&mut self, layer: Layer) {
        let mut map = alloc::collections::BTreeMap::new();
        self.change_tier(layer, |tier| {
            map = core::mem::take(&mut tier.map);
            (tier.clusters, tier.blocks, tier.held, tier.damaged) = (0, 0, 0, true);
        });
        for entry in map.values() {
            self.meta_bytes -= entry.encoded_len(self.size);
            entry.fragments.iter().for_each(|part| self.give_back(part.cluster));
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
