//! Notes: what is kept with each child that takes writes, and who has which version.
//!
//! Everything that must be durable beside the blocks (marks, dirty maps, labels) is a change of the
//! note: it gets the next version, and is durable when every child that takes writes has that one.
//! A child has one note under way at most, so many marks share one.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;

use block::{Completion, ErrorClass};
use model::{ReplicaId, SyncMetadata, SyncStamp};

use crate::api::Effect;
use crate::child::reason;
use crate::child_set::ChildSlot;
use crate::mirror::{Mirror, Pending, Purpose};

impl Mirror {
    /// The note has changed; answers the version that has the change.
    pub(crate) fn change_note(&mut self) -> u64 {
        self.steady = None;
        self.version += 1;
        self.noted = self.now;
        self.version
    }

    /// What would be kept with a replica now.
    pub(crate) fn note_for(&mut self, slot: ChildSlot) -> Option<SyncMetadata> {
        self.update_settled();
        let child = self.child(slot)?;
        let loss = child.loss;
        #[cfg(test)]
        let loss = if self.broken == crate::tests::Broken::LossForgotten { 0 } else { loss };
        Some(SyncMetadata {
            label: self.record_writer.label(child.replica, self.geometry.bytes()),
            owner: self.target(),
            sequence: self.version,
            settled: self.settled,
            incarnation: child.incarnation.unwrap_or_default(),
            loss,
            intents: self.dirty.intents(),
            missed: self.dirty.missed.clone(),
            left: self.left_behind(),
            reservations: Box::new(self.reserved.state().clone()),
        })
    }

    /// The newest note of each stale copy that has a map.
    fn left_behind(&self) -> BTreeMap<ReplicaId, SyncStamp> {
        let known = |replica: &ReplicaId| {
            let writes = self.slot_of(*replica).and_then(|slot| self.child(slot));
            let had = writes.filter(|child| child.state.takes_writes()).and_then(|one| one.had);
            Some((*replica, had.or_else(|| self.left.get(replica).copied())?))
        };
        self.dirty.missed.keys().filter_map(known).collect()
    }

    /// The version that every child that takes writes has.
    pub(crate) fn durable_version(&self) -> u64 {
        #[cfg(test)]
        if self.broken == crate::tests::Broken::MarksNotAwaited {
            return self.version;
        }
        let kept = self.each_child().filter(|(_, child)| child.state.takes_writes());
        kept.map(|(_, child)| child.kept).min().unwrap_or(0)
    }

    pub(crate) fn pump_notes(&mut self) {
        if !self.opened || self.is_fenced() {
            return;
        }
        for slot in self.write_targets().iter() {
            let version = self.version;
            let behind =
                |child: &crate::child::Child| child.keeping.is_none() && child.kept < version;
            if !self.child(slot).is_some_and(behind) {
                continue;
            }
            let Some(note) = self.note_for(slot) else { continue };
            let Some((io, child, session)) = self.ask(slot, Purpose::Keep(version)) else {
                continue;
            };
            let child = child.replica;
            self.effects.push_back(Effect::Keep { io, child, session, note: Box::new(note) });
            if let Some(child) = self.child_mut(slot) {
                child.keeping = Some(version);
            }
        }
    }

    pub(crate) fn kept(&mut self, pending: Pending, version: u64, result: Completion) {
        if let Err(fault) = result
            && fault.class() == ErrorClass::Owner
        {
            return self.fenced();
        }
        let Some(child) = self.child_mut(pending.slot) else { return };
        if !child.is_current(pending.session) || child.keeping != Some(version) {
            return;
        }
        child.keeping = None;
        match result {
            Ok(()) => {
                child.kept = version;
                let stamp = self.stamp(version);
                if let Some(child) = self.child_mut(pending.slot) {
                    child.had = Some(stamp);
                }
            }
            Err(fault) => self.fail(pending.slot, reason(fault)),
        }
        self.needs_rescan = true;
    }

    /// Takes marks away that are not needed any more.
    pub(crate) fn expire_intents(&mut self) {
        if !self.opened || self.is_down() {
            self.sweep_at = None;
            return;
        }
        if self.sweep_at.is_none_or(|at| at > self.now) {
            if self.sweep_at.is_none() && self.dirty.has_marks() {
                self.sweep_at = Some(self.now.after(self.config.idle));
            }
            return;
        }
        self.sweep_at = None;
        let (went, wants_flush) = self.dirty.sweep(self.now, self.config.idle);
        let is_old = self.now >= self.noted.after(self.config.renew) && self.dirty.has_marks();
        if went || is_old {
            self.change_note();
        }
        if wants_flush && self.own_flush.is_none() && self.is_settled() {
            self.flush_ourselves();
        }
        if self.dirty.has_marks() {
            self.sweep_at = Some(self.now.after(self.config.idle));
        }
    }

    /// Checks what always holds.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        if self.is_down() {
            return;
        }
        self.dirty.check();
        for (slot, child) in self.each_child() {
            let rebuilding = child.state == model::ChildState::Rebuilding;
            assert_eq!(rebuilding, self.jobs.contains_key(&slot), "{child:?}");
            assert!(!child.state.takes_writes() || child.attached, "{child:?}");
        }
    }
}
