//! Changes of the tree: create, snapshot, clone, resize, delete.

use block::Blocks;

use crate::bits::Run;
use crate::entity::{Entity, EntityKind, Id, LayerId};
use crate::mutation::{Rule, disabled};

use super::edit::entity_bytes;
use super::{LAYER_BYTES, LayerState, Refused, State};

impl State {
    /// A new replica, empty or over the snapshot that `entity.origin` names.
    pub(crate) fn create(&mut self, entity: Entity) -> Result<(), Refused> {
        entity.check()?;
        self.check_size(entity.size)?;
        if self.entities.contains_key(&entity.id) || self.layers.contains_key(&entity.layer) {
            return Err(Refused::Exists);
        }
        let (parent, limit) = match entity.origin {
            Id::NONE => (LayerId::NONE, 0),
            origin => {
                let origin = self.entities.get(&origin).ok_or(Refused::NotFound)?;
                if origin.kind != EntityKind::Snapshot {
                    return Err(Refused::NotSnapshot);
                }
                (origin.layer, origin.size.0.min(entity.size.0))
            }
        };
        if let Some(parent) = self.layers.get_mut(&parent) {
            parent.children += 1;
        }
        let layer_state = LayerState { parent, limit, owner: entity.id, ..LayerState::default() };
        self.add_layer(entity.layer, layer_state);
        let want = if entity.thick { self.clusters_of(entity.size) } else { 0 };
        self.change_layer_state(entity.layer, |layer_state| layer_state.want = want);
        self.meta_bytes += entity_bytes(&entity);
        self.entities.insert(entity.id, entity);
        Ok(())
    }

    /// Freezes the top of `source` as `entity`, and puts the new layer `top` over it.
    pub(crate) fn snapshot(
        &mut self,
        source: Id,
        top: LayerId,
        mut entity: Entity,
    ) -> Result<(), Refused> {
        if self.entities.contains_key(&entity.id) || self.layers.contains_key(&top) {
            return Err(Refused::Exists);
        }
        let origin = self.entities.get_mut(&source).ok_or(Refused::NotFound)?;
        if origin.kind != EntityKind::Replica {
            return Err(Refused::IsSnapshot);
        }
        entity.layer = origin.layer;
        entity.size = origin.size;
        entity.kind = EntityKind::Snapshot;
        entity.origin = source;
        entity.check()?;
        let frozen = core::mem::replace(&mut origin.layer, top);
        if disabled(Rule::SealSnapshots) {
            origin.layer = frozen;
        }
        let size = origin.size.0;
        let mut want = 0;
        self.change_layer_state(frozen, |layer_state| {
            layer_state.owner = entity.id;
            layer_state.children += 1;
            want = core::mem::take(&mut layer_state.want);
        });
        self.add_layer(
            top,
            LayerState { parent: frozen, limit: size, owner: source, ..LayerState::default() },
        );
        self.change_layer_state(top, |layer_state| layer_state.want = want);
        self.meta_bytes += entity_bytes(&entity);
        self.entities.insert(entity.id, entity);
        Ok(())
    }

    fn add_layer(&mut self, layer: LayerId, layer_state: LayerState) {
        self.next_layer = self.next_layer.max(layer.0.saturating_add(1));
        self.meta_bytes += LAYER_BYTES;
        self.layers.insert(layer, layer_state);
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

    /// Changes the size of a replica. What lies beyond the new end is gone, as far as it is in the
    /// window of the end; what is beyond that is given up by discards that follow.
    pub(crate) fn resize(&mut self, id: Id, size: Blocks) -> Result<(), Refused> {
        self.check_size(size)?;
        let entity = self.entities.get_mut(&id).ok_or(Refused::NotFound)?;
        if entity.kind != EntityKind::Replica {
            return Err(Refused::IsSnapshot);
        }
        let (layer, shrinks) = (entity.layer, size < entity.size);
        let thick = entity.thick;
        entity.size = size;
        let want = if thick { self.clusters_of(size) } else { 0 };
        self.change_layer_state(layer, |layer_state| {
            layer_state.want = if layer_state.damaged { 0 } else { want };
            if shrinks {
                layer_state.limit = layer_state.limit.min(size.0);
            }
        });
        if shrinks {
            self.flat.forget(layer);
            self.discard(layer, size.0..self.window_end(self.window_at(size.0)));
        }
        Ok(())
    }

    /// The blocks of a logical cluster from `limit` on.
    pub(super) fn beyond(&self, logical: u32, limit: u64) -> Run {
        let base = u64::from(logical) << self.size.shift();
        let first = limit.saturating_sub(base).min(self.size.blocks());
        Run::of(first..self.size.blocks())
    }

    /// Forgets an entity. Its layer is hidden, and may be collapsed once this is durable.
    pub(crate) fn delete(&mut self, id: Id) -> Result<(), Refused> {
        let entity = self.entities.remove(&id).ok_or(Refused::NotFound)?;
        self.meta_bytes -= entity_bytes(&entity);
        self.change_layer_state(entity.layer, |layer_state| {
            layer_state.owner = Id::NONE;
            layer_state.want = 0;
        });
        Ok(())
    }
}
