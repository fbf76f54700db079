//! Changes of the tree: create, snapshot, clone, resize, delete, collapse.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use block::Blocks;

use crate::bits::{Bits, Run};
use crate::entity::{Entity, Id, Kind, Layer};
use crate::map::Entry;

use super::edit::entity_bytes;
use super::{Contradiction, LAYER_BYTES, Refused, State, Tier};

impl State {
    /// A new replica, empty or over the snapshot that `entity.origin` names.
    pub(crate) fn create(&mut self, entity: Entity) -> Result<(), Refused> {
        entity.check()?;
        if self.entities.contains_key(&entity.id) || self.layers.contains_key(&entity.layer) {
            return Err(Refused::Exists);
        }
        let (parent, limit) = match entity.origin {
            Id::NONE => (Layer::NONE, 0),
            origin => {
                let origin = self.entities.get(&origin).ok_or(Refused::NotFound)?;
                if origin.kind != Kind::Snapshot {
                    return Err(Refused::NotSnapshot);
                }
                (origin.layer, origin.size.0.min(entity.size.0))
            }
        };
        if let Some(parent) = self.layers.get_mut(&parent) {
            parent.children += 1;
        }
        let tier = Tier { parent, limit, owner: entity.id, ..Tier::default() };
        self.add_layer(entity.layer, tier);
        let want = if entity.thick { self.clusters_of(entity.size) } else { 0 };
        self.change_tier(entity.layer, |tier| tier.want = want);
        self.meta_bytes += entity_bytes(&entity);
        self.entities.insert(entity.id, entity);
        Ok(())
    }

    /// Freezes the top of `source` as `entity`, and puts the new layer `top` over it.
    pub(crate) fn snapshot(
        &mut self,
        source: Id,
        top: Layer,
        mut entity: Entity,
    ) -> Result<(), Refused> {
        if self.entities.contains_key(&entity.id) || self.layers.contains_key(&top) {
            return Err(Refused::Exists);
        }
        let origin = self.entities.get_mut(&source).ok_or(Refused::NotFound)?;
        if origin.kind != Kind::Replica {
            return Err(Refused::IsSnapshot);
        }
        entity.layer = origin.layer;
        entity.size = origin.size;
        entity.kind = Kind::Snapshot;
        entity.origin = source;
        entity.check()?;
        let frozen = core::mem::replace(&mut origin.layer, top);
        let size = origin.size.0;
        let mut want = 0;
        self.change_tier(frozen, |tier| {
            tier.owner = entity.id;
            tier.children += 1;
            want = core::mem::take(&mut tier.want);
        });
        self.add_layer(top, Tier { parent: frozen, limit: size, owner: source, ..Tier::default() });
        self.change_tier(top, |tier| tier.want = want);
        self.meta_bytes += entity_bytes(&entity);
        self.entities.insert(entity.id, entity);
        Ok(())
    }

    fn add_layer(&mut self, layer: Layer, tier: Tier) {
        self.next_layer = self.next_layer.max(layer.0.saturating_add(1));
        self.meta_bytes += LAYER_BYTES;
        self.layers.insert(layer, tier);
    }

    /// Replaces what is said of an entity; its layer, kind and size stay.
    pub(crate) fn update(&mut self, entity: Entity) -> Result<(), Refused> {
        entity.check()?;
        let old = self.entities.get_mut(&entity.id).ok_or(Refused::NotFound)?;
        self.meta_bytes = self.meta_bytes + entity_bytes(&entity) - entity_bytes(old);
        let (kind, layer, size, thick) = (old.kind, old.layer, old.size, old.thick);
        *old = Entity { kind, layer, size, thick, ..entity };
        Ok(())
    }

    /// Changes the size of a replica; what lies beyond the new end is gone.
    pub(crate) fn resize(&mut self, id: Id, size: Blocks) -> Result<(), Refused> {
        let entity = self.entities.get_mut(&id).ok_or(Refused::NotFound)?;
        if entity.kind != Kind::Replica {
            return Err(Refused::IsSnapshot);
        }
        let (layer, shrinks) = (entity.layer, size < entity.size);
        let thick = entity.thick;
        entity.size = size;
        let want = if thick { self.clusters_of(size) } else { 0 };
        let mut beyond = u64::MAX;
        self.change_tier(layer, |tier| {
            tier.want = want;
            if shrinks {
                tier.limit = tier.limit.min(size.0);
                beyond = size.0;
            }
        });
        if shrinks {
            self.flat.forget(layer);
            self.discard(layer, beyond..u64::MAX);
            self.trim_zeros(layer);
        }
        Ok(())
    }

    /// Zero marks where the parent is not seen any more mean nothing.
    fn trim_zeros(&mut self, layer: Layer) {
        let Ok(tier) = self.tier(layer) else { return };
        let limit = if tier.parent == Layer::NONE { 0 } else { tier.limit };
        let from = crate::widen::low32((limit >> self.size.shift()).min(u64::from(u32::MAX)));
        let marked =
            |(logical, entry): (&u32, &Entry)| (!entry.zero.is_empty()).then_some(*logical);
        let marked: Vec<_> = tier.map.range(from..).filter_map(marked).collect();
        for logical in marked {
            let beyond = self.beyond(logical, limit);
            let size = self.size;
            self.edit(layer, logical, |entry, _| entry.zero.remove(beyond, size));
        }
    }

    /// The blocks of a logical cluster from `limit` on.
    fn beyond(&self, logical: u32, limit: u64) -> Run {
        let base = u64::from(logical) << self.size.shift();
        let first = limit.saturating_sub(base).min(self.size.blocks());
        Run::of(first..self.size.blocks())
    }

    /// Forgets an entity. Its layer is hidden, and may be collapsed once this is durable.
    pub(crate) fn delete(&mut self, id: Id) -> Result<(), Refused> {
        let entity = self.entities.remove(&id).ok_or(Refused::NotFound)?;
        self.meta_bytes -= entity_bytes(&entity);
        self.change_tier(entity.layer, |tier| {
            tier.owner = Id::NONE;
            tier.want = 0;
        });
        Ok(())
    }

    /// The next hidden layer that can be collapsed, except those that are being hidden.
    pub(crate) fn collapsible(&self, not: &BTreeSet<Layer>) -> Option<Layer> {
        let ripe = |(layer, tier): &(&Layer, &Tier)| {
            tier.owner == Id::NONE
                && tier.children <= 1
                && !not.contains(layer)
                && !self.blocks_collapse(**layer)
        };
        self.layers.iter().find(ripe).map(|(layer, _)| *layer)
    }

    /// Whether moving its fragments into its child would mix with a damaged map.
    fn blocks_collapse(&self, layer: Layer) -> bool {
        let damaged = |layer: Layer| self.tier(layer).is_ok_and(|tier| tier.damaged);
        let child = self.child_of(layer);
        child.is_some_and(|child| damaged(layer) || damaged(child))
    }

    fn child_of(&self, layer: Layer) -> Option<Layer> {
        self.layers.iter().find(|(_, tier)| tier.parent == layer).map(|(layer, _)| *layer)
    }

    /// Removes a hidden layer: frees it, or moves what its only child shows of it into the child.
    pub(crate) fn collapse(&mut self, layer: Layer) -> Result<(), Contradiction> {
        let tier = self.tier(layer)?;
        if tier.owner != Id::NONE || tier.children > 1 {
            return Err(Contradiction);
        }
        let child = if tier.children == 1 { self.child_of(layer) } else { None };
        self.flat.forget(layer);
        let Some(tier) = self.layers.remove(&layer) else { return Err(Contradiction) };
        self.meta_bytes -= LAYER_BYTES;
        if child.is_none()
            && let Some(parent) = self.layers.get_mut(&tier.parent)
        {
            parent.children -= 1;
        }
        let mut seen_below = 0;
        if let Some(child) = child.and_then(|child| self.layers.get_mut(&child)) {
            seen_below = child.limit;
            child.parent = tier.parent;
            child.limit = child.limit.min(tier.limit);
            // What it showed of a lost map is lost.
            child.damaged |= tier.damaged;
        }
        for (logical, entry) in tier.map {
            self.meta_bytes -= entry.encoded_len(self.size);
            let hidden = self.beyond(logical, seen_below);
            self.move_down(child, logical, entry, hidden);
        }
        if let Some(child) = child {
            self.trim_zeros(child);
        }
        if tier.damaged && !self.layers.values().any(|tier| tier.damaged) {
            // Nobody is left whose clusters are unknown.
            for cluster in core::mem::take(&mut self.quarantine) {
                self.freed.push(cluster);
                self.space.give_up();
            }
        }
        Ok(())
    }

    /// Moves an entry of a collapsed layer into the child's, without what the child hides.
    fn move_down(&mut self, child: Option<Layer>, logical: u32, mut entry: Entry, hidden: Run) {
        let size = self.size;
        let hides = child
            .and_then(|child| self.layers.get(&child)?.map.get(&logical))
            .map_or(Bits::None, |entry| entry.decided(size));
        let cut = |bits: &mut Bits| {
            bits.remove(hidden, size);
            bits.subtract(&hides, size);
        };
        cut(&mut entry.zero);
        entry.fragments.retain_mut(|fragment| {
            cut(&mut fragment.valid);
            if fragment.valid.is_empty() {
                self.freed.push(fragment.cluster);
                self.space.give_up();
            }
            !fragment.valid.is_empty()
        });
        if let Some(child) = child
            && !entry.is_empty()
        {
            self.edit(child, logical, |into, _| {
                into.zero.union(&entry.zero, size);
                into.fragments.append(&mut entry.fragments);
            });
        }
    }
}
