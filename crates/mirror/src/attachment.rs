//! Attachments and the opening: what is found with a copy is compared with the record and with what
//! others know of it.
//!
//! ```text
//!   while it opens:  a label is newer than the record, or a copy refuses the epoch
//!                        │ the store is asked whether it still says what it said
//!                        ├── another owner ──► fenced: that label was right
//!                        └── the same ──► Shutdown(LabelConflict): the store went back
//!   later:           such a copy is left as it is, and told
//!
//!   a copy shows an older note than it is known to have had ──► rolled back: it lacks everything;
//!                        if it is the only one in sync, it is left as it is, and told
//! ```
//!
//! Invariant **L1**: a label is written only after the store took the record that it repeats. So a
//! label that is newer than the record shows a store that went back, and nothing else. L2 and L3
//! are in `intent_log/rollback.rs`.

use alloc::boxed::Box;
use alloc::vec::Vec;

use model::{
    ChildEvent, ConflictReason, Epoch, FaultReason, LabelConflict, RecordedState, RegionSet,
    ReplicaId, SyncMetadata, TargetEvent,
};

use crate::api::{AttachFault, Effect, ReplicaInfo, Session};
use crate::context::Context;
use crate::intent_log::rolled_back;
use crate::replicas::{ChildSet, ChildSlot};
use crate::replication::Replication;
use crate::reservation::Reservations;

/// Copies that contradict the store, or what others know of them.
#[derive(Debug, Default)]
pub(crate) struct Conflicts {
    told: Vec<LabelConflict>,
    /// What is told if the store confirms its record.
    suspected: Vec<LabelConflict>,
}

impl Conflicts {
    pub(crate) fn told(&self) -> &[LabelConflict] {
        &self.told
    }

    /// Whether the store is to be asked whether it still says what it said.
    pub(crate) fn are_suspected(&self) -> bool {
        !self.suspected.is_empty()
    }

    fn tell(&mut self, cx: &mut Context, conflict: LabelConflict) {
        if !self.told.contains(&conflict) {
            self.told.retain(|one| one.replica != conflict.replica);
            self.told.push(conflict);
            cx.emit(Effect::Conflict(conflict));
        }
    }

    fn suspect(&mut self, conflict: LabelConflict) {
        self.suspected.retain(|one| one.replica != conflict.replica);
        self.suspected.push(conflict);
    }
}

/// What an attachment comes to.
#[derive(Debug)]
#[must_use]
pub(crate) enum Arrival {
    /// Whatever it is, nobody else is concerned.
    Fine,
    /// Somebody newer owns the volume.
    Fenced,
    /// A copy in sync was away as the last one, and may have lost what no flush covered. Other
    /// copies in sync may not have: until they are compared, these regions are in doubt.
    InDoubt(RegionSet),
}

impl Replication {
    /// An attachment was made or failed.
    pub(crate) fn attached(
        &mut self,
        session: Session,
        result: Result<Box<ReplicaInfo>, AttachFault>,
    ) -> Arrival {
        let Some(slot) = self.replicas.slot_of_session(session) else { return Arrival::Fine };
        let found = match result {
            Ok(found) => found,
            Err(AttachFault::Fenced) if self.service.is_open() => return Arrival::Fenced,
            Err(AttachFault::Fenced) => {
                let record = self.replicas.record().epoch();
                self.contradicts(slot, ConflictReason::RefusesEpoch { record });
                return Arrival::Fine;
            }
            Err(AttachFault::Failed(reason)) => {
                self.replicas.give_up(&mut self.cx, slot, reason);
                return Arrival::Fine;
            }
        };
        if !self.is_welcome(slot, &found) {
            return Arrival::Fine;
        }
        let doubt = self.returned(slot, &found);
        let is_open = self.service.is_open();
        self.replicas.attached(&mut self.cx, slot, *found, is_open);
        doubt.map_or(Arrival::Fine, Arrival::InDoubt)
    }

    /// Whether a copy can be used; if not, it is given up.
    fn is_welcome(&mut self, slot: ChildSlot, found: &ReplicaInfo) -> bool {
        let now = self.cx.now();
        let Some(child) = self.replicas.get_mut(slot) else { return false };
        let replica = child.replica();
        // Whatever else becomes of it: no former owner is answered there any more.
        child.note_fenced(now);
        if let Some(note) = &found.note {
            let volume = self.replicas.record().volume();
            if note.label.volume != volume || note.label.replica != replica {
                self.replicas.give_up(&mut self.cx, slot, FaultReason::Mismatch);
                return false;
            }
            if let Some(reason) = self.contradiction(note) {
                self.contradicts(slot, reason);
                return false;
            }
        }
        if found.size < self.cx.geometry().blocks() {
            self.replicas.give_up(&mut self.cx, slot, FaultReason::Mismatch);
            return false;
        }
        !self.service.is_open() || self.judge_return(slot, found)
    }

    /// If a copy that is recorded in sync is there again, with what it may have lost: that.
    fn returned(&mut self, slot: ChildSlot, found: &ReplicaInfo) -> Option<RegionSet> {
        let child = self.replicas.get(slot)?;
        let (replica, before) = (child.replica(), child.incarnation());
        if !self.replicas.record().wants_in_sync(replica) {
            return None;
        }
        // It is believed, whatever was remembered in case it had to be recorded stale.
        #[cfg(test)]
        let keeps = self.cx.broken == crate::tests::Broken::MapKept;
        #[cfg(not(test))]
        let keeps = false;
        if !keeps {
            self.log.forget_missed(replica);
        }
        if !self.service.is_open() || before == Some(found.incarnation) {
            return None;
        }
        #[cfg(test)]
        let is_told = self.cx.broken != crate::tests::Broken::LossUntold;
        #[cfg(not(test))]
        let is_told = true;
        self.replicas.note_lost(is_told && self.log.has_unflushed());
        self.replicas.count_loss(ChildSet::one(slot));
        let risk = self.log.at_risk();
        self.doubt(&risk);
        Some(risk)
    }

    /// Opens the volume when every copy in sync is there, or enough time was given to them.
    pub(crate) fn pump_open(&mut self, reservations: &mut Reservations) {
        if self.service.is_open() || self.service.is_down() || self.service.is_stopping() {
            return;
        }
        let there = self.replicas.in_sync();
        let all = self.replicas.required_acks().without(there).is_empty();
        let waited = self.replicas.open_at(&self.cx) <= self.cx.now();
        if there.is_empty() || !waited || self.conflicts.are_suspected() {
            return;
        }
        let (rolled, claim) = rolled_back(&self.replicas, there);
        let believed = there.without(rolled);
        let known_by = claim.map(|(_, replica)| replica);
        if believed.is_empty() {
            // What is in sync and away may be right.
            if all {
                let reason = ConflictReason::RolledBack { known_by };
                there.iter().for_each(|slot| self.contradicts(slot, reason));
                self.cx.rescan();
            }
            return;
        }
        let settled = claim.map(|(stamp, _)| stamp);
        let notes = self.log.adopt(&self.cx, &mut self.replicas, believed, settled);
        for (_, note) in &notes {
            reservations.adopt(note);
        }
        self.judge_stale();
        self.log.miss_doubt();
        self.service.open();
        let absent = self.replicas.required_acks().without(self.replicas.in_sync());
        for replica in self.replicas.replicas_in(absent) {
            self.log.miss_risk(replica);
        }
        self.demote(rolled, known_by);
        self.replicas.forget_found_notes();
        if self.replicas.least_loss(believed) > 0 && !all {
            // A copy that is away may be the only one that has what these lost.
            self.replicas.set_lost(!self.log.in_doubt().is_empty());
        }
        self.change_note();
        let whole = self.replicas.required_acks().without(believed).is_empty()
            && self.replicas.record().set().is_whole();
        let opened = if whole { TargetEvent::OpenedWhole } else { TargetEvent::OpenedPartial };
        self.service.on(&mut self.cx, opened);
        self.cx.rescan();
    }

    /// How a note contradicts the record (L1).
    fn contradiction(&self, note: &SyncMetadata) -> Option<ConflictReason> {
        #[cfg(test)]
        if self.cx.broken == crate::tests::Broken::LabelsBelieved {
            return None;
        }
        let record = self.replicas.record().stored();
        let is_other = note.label.epoch == record.epoch() && note.owner != record.target();
        ConflictReason::of(&note.label, record).or_else(|| {
            let (epoch, owner) = (record.epoch(), note.owner);
            is_other.then_some(ConflictReason::OtherOwner { epoch, owner })
        })
    }

    /// A copy contradicts the record. It is left as it is.
    fn contradicts(&mut self, slot: ChildSlot, reason: ConflictReason) {
        let Some(replica) = self.replicas.replica_in(slot) else { return };
        let conflict = LabelConflict { replica, reason };
        if self.service.is_open() {
            self.conflicts.tell(&mut self.cx, conflict);
        } else {
            self.conflicts.suspect(conflict);
        }
        self.replicas.give_up(&mut self.cx, slot, FaultReason::LabelConflict);
    }

    /// The store says what it said: it is older than what is kept with the copies.
    pub(crate) fn store_confirmed(&mut self) {
        for conflict in core::mem::take(&mut self.conflicts.suspected) {
            self.conflicts.tell(&mut self.cx, conflict);
        }
    }

    /// The store holds an earlier ownership than ours, which every copy remembers.
    pub(crate) fn store_is_behind(&mut self, record: Epoch) {
        let label = self.replicas.record().epoch();
        let reason = ConflictReason::NewerEpoch { label, record };
        for (_, child) in self.replicas.iter().filter(|(_, child)| child.is_attached()) {
            let replica = child.replica();
            self.conflicts.tell(&mut self.cx, LabelConflict { replica, reason });
        }
    }

    /// Copies that were rolled back are stale without a map: they lack everything.
    fn demote(&mut self, rolled: ChildSet, known_by: Option<ReplicaId>) {
        for slot in rolled.iter() {
            let Some(replica) = self.replicas.replica_in(slot) else { continue };
            let reason = ConflictReason::RolledBack { known_by };
            self.conflicts.tell(&mut self.cx, LabelConflict { replica, reason });
            for event in [
                ChildEvent::Failed(FaultReason::RolledBack),
                ChildEvent::Reopened(RecordedState::Stale),
            ] {
                self.replicas.change(&mut self.cx, slot, event);
            }
            self.log.forget_missed(replica);
        }
    }

    /// Compares what stale copies show with what those in sync know of them, when it is opened.
    fn judge_stale(&mut self) {
        let shown: Vec<_> = self
            .replicas
            .iter()
            .filter_map(|(_, child)| Some((child.replica(), child.found_note()?.stamp())))
            .filter(|(replica, _)| !self.replicas.record().wants_in_sync(*replica))
            .collect();
        for (replica, shown) in shown {
            self.judge_map(replica, Some(shown));
        }
    }

    /// A stale copy that shows an older note than it is known to have had was rolled back, and
    /// lacks everything.
    fn judge_map(&mut self, replica: ReplicaId, shown: Option<model::SyncStamp>) {
        let known = self.log.known_note(&self.replicas, replica, self.service.is_open());
        #[cfg(test)]
        let known = known.filter(|_| self.cx.broken != crate::tests::Broken::NotesNotCompared);
        if shown < known {
            let reason = ConflictReason::RolledBack { known_by: None };
            self.conflicts.tell(&mut self.cx, LabelConflict { replica, reason });
            self.log.forget_missed(replica);
        }
    }

    /// Compares what a copy that comes back shows with what is known of it; whether it may be used.
    fn judge_return(&mut self, slot: ChildSlot, found: &ReplicaInfo) -> bool {
        let Some(replica) = self.replicas.replica_in(slot) else { return false };
        if self.log.is_outdone_by(&self.replicas, found) {
            // What this target was opened with was rolled back: this copy has what is lost there.
            let reason = ConflictReason::RolledBack { known_by: Some(replica) };
            for replica in self.replicas.replicas_in(self.replicas.in_sync()) {
                self.conflicts.tell(&mut self.cx, LabelConflict { replica, reason });
            }
            self.replicas.give_up(&mut self.cx, slot, FaultReason::LabelConflict);
            return false;
        }
        let shown = found.note.as_ref().map(SyncMetadata::stamp);
        let known = self.log.known_note(&self.replicas, replica, self.service.is_open());
        if shown < known && self.replicas.record().wants_in_sync(replica) {
            self.contradicts(slot, ConflictReason::RolledBack { known_by: None });
            return false;
        }
        self.judge_map(replica, shown);
        true
    }
}
