//! Copies that contradict the store, or what is known of them.
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
//! Invariants:
//! - **L1** A label is written only after the store took the record that it repeats. So a label
//!   that is newer than the record shows a store that went back, and nothing else.
//! - **L2** `SyncMetadata::settled` names a note that every copy which anybody may call in sync had
//!   then. So a copy in sync with an older one was rolled back, and nothing else.
//! - **L3** Whatever hosts wrote to a copy since its note was kept lies in the intents of that
//!   note.

use alloc::vec::Vec;

use model::{
    ChildEvent, ConflictReason, Epoch, FaultReason, LabelConflict, RecordedState, ReplicaId,
    StopCause, SyncMetadata, SyncStamp, TargetEvent,
};

use crate::api::{Effect, ReplicaInfo};
use crate::child_set::{ChildSet, ChildSlot};
use crate::mirror::Mirror;

impl Mirror {
    /// Copies that contradict the store or what is known of them, and how.
    pub fn conflicts(&self) -> &[LabelConflict] {
        &self.conflicts
    }

    /// How a note contradicts the record (L1).
    pub(crate) fn contradiction(&self, note: &SyncMetadata) -> Option<ConflictReason> {
        #[cfg(test)]
        if self.broken == crate::tests::Broken::LabelsBelieved {
            return None;
        }
        let record = self.record_writer.stored();
        let is_other = note.label.epoch == record.epoch() && note.owner != record.target();
        ConflictReason::of(&note.label, record).or_else(|| {
            let (epoch, owner) = (record.epoch(), note.owner);
            is_other.then_some(ConflictReason::OtherOwner { epoch, owner })
        })
    }

    /// A copy contradicts the record. It is left as it is.
    pub(crate) fn contradicts(&mut self, slot: ChildSlot, reason: ConflictReason) {
        let Some(replica) = self.child(slot).map(|child| child.replica) else { return };
        let conflict = LabelConflict { replica, reason };
        if self.opened {
            self.tell_conflict(conflict);
        } else {
            self.suspected.retain(|one| one.replica != replica);
            self.suspected.push(conflict);
        }
        self.give_up(slot, FaultReason::LabelConflict);
    }

    /// The store says what it said: it is older than what is kept with the copies.
    pub(crate) fn contradicted(&mut self) {
        for conflict in core::mem::take(&mut self.suspected) {
            self.tell_conflict(conflict);
        }
        self.lose_volume(StopCause::LabelConflict);
    }

    /// The store holds an earlier ownership than ours, which every copy remembers.
    pub(crate) fn store_is_behind(&mut self, record: Epoch) {
        let label = self.record_writer.epoch();
        let reason = ConflictReason::NewerEpoch { label, record };
        let used: Vec<ReplicaId> =
            self.each_child().filter(|(_, one)| one.attached).map(|(_, one)| one.replica).collect();
        for replica in used {
            self.tell_conflict(LabelConflict { replica, reason });
        }
        self.lose_volume(StopCause::LabelConflict);
    }

    fn lose_volume(&mut self, cause: StopCause) {
        self.on(TargetEvent::Stop(cause));
        self.needs_rescan = true;
        self.down();
    }

    pub(crate) fn tell_conflict(&mut self, conflict: LabelConflict) {
        if !self.conflicts.contains(&conflict) {
            self.conflicts.retain(|one| one.replica != conflict.replica);
            self.conflicts.push(conflict);
            self.effects.push_back(Effect::Conflict(conflict));
        }
    }

    /// The version of a note of this target, as copies name it.
    pub(crate) fn stamp(&self, sequence: u64) -> SyncStamp {
        SyncStamp { epoch: self.record_writer.epoch(), sequence }
    }

    /// What every copy that anybody may call in sync has acknowledged (L2), and every one that may
    /// be called so next: a copy that has just joined must not look older than it ever was.
    pub(crate) fn update_settled(&mut self) {
        if !self.is_settled() {
            return;
        }
        let all = self.required_acks().either(self.write_targets());
        let kept = all.iter().map(|slot| self.child(slot).map_or(0, |child| child.kept));
        if let Some(kept @ 1..) = kept.min() {
            self.settled = self.settled.max(Some(self.stamp(kept)));
        }
    }

    /// The newest claim of a note found with any copy, and whose it is.
    fn claim(&self) -> Option<(SyncStamp, ReplicaId)> {
        let claim =
            |child: &crate::child::Child| Some((child.note.as_ref()?.settled?, child.replica));
        self.each_child().filter_map(|(_, child)| claim(child)).max()
    }

    /// Of the copies in sync that are here, those that were rolled back; and the claim that
    /// says so.
    pub(crate) fn rolled_back(
        &self,
        there: ChildSet,
    ) -> (ChildSet, Option<(SyncStamp, ReplicaId)>) {
        let claim = self.claim();
        #[cfg(test)]
        if self.broken == crate::tests::Broken::NotesNotCompared {
            return (ChildSet::NONE, claim);
        }
        let is_older = |slot: &ChildSlot| {
            let note = self.child(*slot).and_then(|child| child.note.as_ref());
            note.map(|note| note.stamp()) < claim.map(|(stamp, _)| stamp)
        };
        (there.iter().filter(is_older).collect(), claim)
    }

    /// Copies that were rolled back are stale without a map: they lack everything.
    pub(crate) fn demote(&mut self, rolled: ChildSet, known_by: Option<ReplicaId>) {
        for slot in rolled.iter() {
            let Some(child) = self.child_mut(slot) else { continue };
            let replica = child.replica;
            self.tell_conflict(LabelConflict {
                replica,
                reason: ConflictReason::RolledBack { known_by },
            });
            self.change_child(slot, ChildEvent::Failed(FaultReason::RolledBack));
            self.change_child(slot, ChildEvent::Reopened(RecordedState::Stale));
            self.dirty.missed.remove(&replica);
        }
    }

    /// Compares what stale copies show with what those in sync know of them, when it is opened.
    pub(crate) fn judge_stale(&mut self) {
        let shown: Vec<_> = self
            .each_child()
            .filter_map(|(_, child)| Some((child.replica, child.note.clone()?)))
            .filter(|(replica, _)| !self.record_writer.wants_in_sync(*replica))
            .collect();
        for (replica, note) in shown {
            self.judge_map(replica, Some(&note));
        }
    }

    /// A stale copy that shows an older note than it is known to have had was rolled back, and
    /// lacks everything.
    fn judge_map(&mut self, replica: ReplicaId, note: Option<&SyncMetadata>) {
        let known = self.known_note(replica);
        #[cfg(test)]
        let known = known.filter(|_| self.broken != crate::tests::Broken::NotesNotCompared);
        if note.map(SyncMetadata::stamp) < known {
            let reason = ConflictReason::RolledBack { known_by: None };
            self.tell_conflict(LabelConflict { replica, reason });
            self.dirty.missed.remove(&replica);
        }
    }

    /// The newest note that a copy is known to have had.
    fn known_note(&self, replica: ReplicaId) -> Option<SyncStamp> {
        let child = self.slot_of(replica).and_then(|slot| self.child(slot));
        let had = child.filter(|_| self.opened).and_then(|child| child.had);
        had.max(self.left.get(&replica).copied())
    }

    /// Whether a copy of a former target knows that those which this one was opened with had newer
    /// notes than they showed.
    fn knows_better(&self, found: &ReplicaInfo) -> bool {
        let claim = found.note.as_ref().and_then(|note| note.settled);
        claim
            .zip(self.base)
            .is_some_and(|(claim, (oldest, opened))| claim > oldest && claim <= self.stamp(opened))
    }

    /// Compares what a copy that comes back shows with what is known of it; whether it may be used.
    pub(crate) fn judge_return(&mut self, slot: ChildSlot, found: &ReplicaInfo) -> bool {
        let Some(replica) = self.child(slot).map(|child| child.replica) else { return false };
        if self.knows_better(found) {
            // What this target was opened with was rolled back: this copy has what is lost there.
            let reason = ConflictReason::RolledBack { known_by: Some(replica) };
            let used = self.in_sync().iter().filter_map(|slot| Some(self.child(slot)?.replica));
            for replica in used.collect::<Vec<_>>() {
                self.tell_conflict(LabelConflict { replica, reason });
            }
            self.give_up(slot, FaultReason::LabelConflict);
            return false;
        }
        let is_older = found.note.as_ref().map(SyncMetadata::stamp) < self.known_note(replica);
        if is_older && self.record_writer.wants_in_sync(replica) {
            self.contradicts(slot, ConflictReason::RolledBack { known_by: None });
            return false;
        }
        self.judge_map(replica, found.note.as_ref());
        true
    }
}
