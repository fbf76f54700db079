//! Changes of replicas and snapshots. Each is one record, durable when it is answered.

use alloc::vec::Vec;

use block::Blocks;

use crate::casts::count;
use crate::entity::{Entity, EntityKind, Id, Label, LayerId};
use crate::mutation::{Rule, disabled};
use crate::record::Record;
use crate::state::{LAYER_BYTES, Refused};

use super::Pool;
use super::effect::{CommandId, Effect};
use super::op::{Op, Work};
use super::paging::Holder;
use super::range_queue::{OpId, RangeAccess};

/// Length of the check value in front of a wrapped key.
pub const KEY_CHECK: usize = 16;

/// A replica to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewReplica {
    /// Its id.
    pub id: Id,
    /// The snapshot it is a clone of, or none.
    pub origin: Id,
    /// Its size; a clone may differ from its origin.
    pub size: Blocks,
    /// Whether space for all of it is reserved.
    pub thick: bool,
    /// The time, in milliseconds since 1970.
    pub created: u64,
    /// What it knows of its volume.
    pub label: Label,
    /// Check value and wrapped key; empty: not encrypted. A clone has those of its origin.
    pub key: Vec<u8>,
}

/// A snapshot to be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewSnapshot {
    /// Its id.
    pub id: Id,
    /// The time, in milliseconds since 1970.
    pub created: u64,
    /// Its attributes.
    pub label: Label,
}

/// A change of replicas and snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Makes a replica, or a clone.
    Create(NewReplica),
    /// Takes a snapshot of a replica, between two commands.
    Snapshot {
        /// Of which replica.
        of: Id,
        /// The snapshot.
        snapshot: NewSnapshot,
    },
    /// Deletes a replica or snapshot, in any order; its space comes back.
    Delete(Id),
    /// Changes the size of a replica.
    Resize {
        /// Of which one.
        id: Id,
        /// The new size; what lies beyond is gone.
        size: Blocks,
    },
    /// Replaces a label.
    Label {
        /// Of which one.
        id: Id,
        /// The new label.
        label: Label,
    },
    /// Replaces the share state.
    Share {
        /// Of which one.
        id: Id,
        /// The new state.
        share: Vec<u8>,
    },
    /// Replaces the spec backup.
    SpecBackup {
        /// Of which one.
        id: Id,
        /// The new spec backup.
        spec_backup: Vec<u8>,
    },
    /// Replaces the wrapped key of a replica by the same key wrapped anew.
    Rewrap {
        /// Of which one.
        id: Id,
        /// Check value and wrapped key.
        key: Vec<u8>,
    },
}

impl Change {
    fn about(&self) -> (Id, RangeAccess) {
        match self {
            Change::Create(new) => (new.id, RangeAccess::Alone),
            Change::Snapshot { of, .. } => (*of, RangeAccess::Still),
            Change::Delete(id) | Change::Resize { id, .. } => (*id, RangeAccess::Alone),
            Change::Label { id, .. }
            | Change::Share { id, .. }
            | Change::SpecBackup { id, .. }
            | Change::Rewrap { id, .. } => (*id, RangeAccess::Free),
        }
    }
}

fn room(is_there: bool) -> Result<(), Refused> {
    is_there.then_some(()).ok_or(Refused::NoSpace)
}

impl Pool {
    /// Takes a change.
    pub fn change(&mut self, token: CommandId, change: Change) {
        let refused = if self.broken || self.is_exporting() {
            Some(Refused::Broken)
        } else {
            (self.ops.len() >= self.limits.commands).then_some(Refused::Busy)
        };
        if let Some(refused) = refused {
            self.effects.push_back(Effect::Changed { token, result: Err(refused) });
        } else {
            let (id, claim) = change.about();
            let work = Work::Change(change.into());
            self.enter(Op::new(token, id, work, Vec::new()), claim);
        }
        self.run();
    }

    /// Lets an encrypted replica take commands, if the key is the right one.
    pub fn unlock(&mut self, id: Id, check: [u8; KEY_CHECK]) -> Result<(), Refused> {
        let entity = self.state.entities.get(&id).ok_or(Refused::NotFound)?;
        if entity.is_encrypted() && entity.key.get(..KEY_CHECK) != Some(&check[..]) {
            return Err(Refused::WrongKey);
        }
        self.unlocked.insert(id);
        Ok(())
    }

    pub(super) fn apply_change(&mut self, at: OpId, change: Change) {
        if let Change::Resize { id, size } = change
            && self.await_resize(at, id, size)
        {
            return;
        }
        let result = match change {
            Change::Create(new) => self.create(new),
            Change::Snapshot { of, snapshot } => self.snapshot(of, snapshot),
            Change::Delete(id) => self.delete(id),
            Change::Resize { id, size } => self.resize(id, size),
            Change::Label { id, label } => self.update(id, |entity| entity.label = label),
            Change::Share { id, share } => self.update(id, |entity| entity.share = share),
            Change::SpecBackup { id, spec_backup } => {
                self.update(id, |entity| entity.spec_backup = spec_backup)
            }
            Change::Rewrap { id, key } => self.rewrap(id, key),
        };
        match result {
            Ok(()) if disabled(Rule::AnswerWhenDurable) => self.changed(at, Ok(())),
            Ok(()) => self.wait_for_commit(at),
            Err(refused) => self.changed(at, Err(refused)),
        }
    }

    fn create(&mut self, new: NewReplica) -> Result<(), Refused> {
        let mut entity = Entity {
            id: new.id,
            origin: new.origin,
            kind: EntityKind::Replica,
            layer: LayerId(self.state.next_layer),
            size: new.size,
            thick: new.thick,
            created: new.created,
            label: new.label,
            key: new.key,
            share: Vec::new(),
            spec_backup: Vec::new(),
        };
        if let Some(origin) = self.state.entities.get(&new.origin) {
            if self.state.is_damaged(origin.layer) {
                return Err(Refused::Damaged);
            }
            entity.key.clone_from(&origin.key);
        }
        // Labels and snapshots of those that are there must not find that new ones took their room.
        room(self.state.has_map_room(count(entity.encoded_len()) + LAYER_BYTES))?;
        let clusters = self.state.clusters_of(entity.size);
        if entity.thick && !self.state.may_promise(clusters) {
            return Err(Refused::NoSpace);
        }
        self.state.create(entity.clone())?;
        if disabled(Rule::KeepKeys) {
            entity.key.clear();
        }
        self.record(&Record::Create(entity));
        Ok(())
    }

    fn snapshot(&mut self, of: Id, new: NewSnapshot) -> Result<(), Refused> {
        let source = self.state.entities.get(&of).ok_or(Refused::NotFound)?;
        if self.state.is_damaged(source.layer) {
            return Err(Refused::Damaged);
        }
        let entity = Entity {
            id: new.id,
            origin: of,
            kind: EntityKind::Snapshot,
            thick: false,
            created: new.created,
            label: new.label,
            share: Vec::new(),
            spec_backup: Vec::new(),
            ..source.clone()
        };
        room(self.state.fits(count(entity.encoded_len()) + LAYER_BYTES))?;
        if !self.state.may_renew_promise(source.layer) {
            return Err(Refused::NoSpace);
        }
        let top = LayerId(self.state.next_layer);
        self.state.snapshot(of, top, entity.clone())?;
        if self.unlocked.contains(&of) {
            self.unlocked.insert(entity.id);
        }
        self.record(&Record::Snapshot { source: of, top, entity });
        Ok(())
    }

    fn delete(&mut self, id: Id) -> Result<(), Refused> {
        let layer = self.state.entities.get(&id).ok_or(Refused::NotFound)?.layer;
        self.state.delete(id)?;
        self.unlocked.remove(&id);
        if !disabled(Rule::CollapseWhenDurable) {
            self.hiding.insert(layer);
        }
        self.open.hidden.push(layer);
        self.record(&Record::Delete(id));
        Ok(())
    }

    fn resize(&mut self, id: Id, size: Blocks) -> Result<(), Refused> {
        let entity = self.state.entities.get(&id).ok_or(Refused::NotFound)?;
        self.state.check_size(size)?;
        if self.state.is_damaged(entity.layer) {
            return Err(Refused::Damaged);
        }
        if size == entity.size {
            return Ok(());
        }
        let more = self.state.clusters_of(size).saturating_sub(self.state.clusters_of(entity.size));
        if entity.thick && !self.state.may_promise(more) {
            return Err(Refused::NoSpace);
        }
        self.state.resize(id, size)?;
        self.record(&Record::Resize { id, size });
        Ok(())
    }

    /// Whether a new size must wait: for the map, or for what an earlier one left beyond the end.
    /// To shrink is done at once, and answered when nothing is left there.
    fn await_resize(&mut self, at: OpId, id: Id, size: Blocks) -> bool {
        let Some(entity) = self.state.entities.get(&id) else { return false };
        let (layer, shrinks) = (entity.layer, size < entity.size);
        let mut missing = Vec::new();
        self.state.needs_resize(id, size.0, &mut missing);
        if !missing.is_empty() {
            self.await_pages(Holder::Op(at), missing);
            return true;
        }
        // If it is refused, it is so when it is tried again.
        (!shrinks || self.resize(id, size).is_ok()) && self.await_trim(at, layer)
    }

    fn update(&mut self, id: Id, change: impl FnOnce(&mut Entity)) -> Result<(), Refused> {
        let before = self.state.entities.get(&id).ok_or(Refused::NotFound)?;
        let mut entity = before.clone();
        change(&mut entity);
        let more = entity.encoded_len().saturating_sub(before.encoded_len());
        let fits = if entity.spec_backup.len() > before.spec_backup.len() {
            self.state.has_map_room(count(more))
        } else {
            more == 0 || self.state.fits(count(more))
        };
        room(fits)?;
        self.state.update(entity.clone())?;
        self.record(&Record::Update(entity));
        Ok(())
    }

    fn rewrap(&mut self, id: Id, key: Vec<u8>) -> Result<(), Refused> {
        let entity = self.state.entities.get(&id).ok_or(Refused::NotFound)?;
        if !entity.is_encrypted() || entity.key.get(..KEY_CHECK) != key.get(..KEY_CHECK) {
            return Err(Refused::WrongKey);
        }
        self.update(id, |entity| entity.key = key)
    }
}
