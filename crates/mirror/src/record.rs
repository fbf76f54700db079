//! The record in the store: which copies may be believed.
//!
//! ```text
//!   set changes ──► Record (compare-and-swap) ──ok──► labels on all writers ──► recorded
//!                     ▲     │ away                                               │
//!                     └─────┘ back-off                 fenced ──► shut down      └► acknowledge
//! ```
//!
//! Invariants:
//! - **W1** `required_acks` holds every copy that anybody may call in sync: the last set that is
//!   stored and on the labels, the one that is stored, and those whose answer is not known.
//! - **S1** the last copy in sync is never recorded stale (`model::ReplicaSet` refuses it too).

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::time::Duration;

use block::{Bytes, Instant};
use model::{
    ChildState, Epoch, ReplicaId, ReplicaLabel, ReplicaSet, SetChange, SetRefused, TargetId,
    TargetRecord, VolumeId,
};

use crate::api::{Effect, RequestId, StoreFault};
use crate::child_set::ChildSet;
use crate::mirror::Mirror;

/// What is recorded, and what is wanted to be.
#[derive(Debug)]
pub(crate) struct RecordWriter {
    /// What the store holds, as far as is known.
    stored: TargetRecord,
    /// Copies in sync of the last set that is stored and labelled.
    recorded: BTreeSet<ReplicaId>,
    /// Copies in sync of sets that were sent and may be stored.
    uncertain: BTreeSet<ReplicaId>,
    /// What is wanted.
    set: ReplicaSet,
    asked: Option<(RequestId, TargetRecord)>,
    /// The note that has the label of what is stored.
    label_version: Option<u64>,
    retry_at: Option<Instant>,
    backoff: Duration,
    away: bool,
    /// The store is asked whether it still holds what it held.
    confirming: Option<RequestId>,
}

impl RecordWriter {
    pub(crate) fn new(record: TargetRecord) -> RecordWriter {
        RecordWriter {
            recorded: record.set().in_sync().clone(),
            uncertain: BTreeSet::new(),
            set: record.set().clone(),
            stored: record,
            asked: None,
            label_version: None,
            retry_at: None,
            backoff: Duration::ZERO,
            away: false,
            confirming: None,
        }
    }

    pub(crate) fn epoch(&self) -> Epoch {
        self.stored.epoch()
    }

    /// What the store holds, as far as is known.
    pub(crate) fn stored(&self) -> &TargetRecord {
        &self.stored
    }

    pub(crate) fn volume(&self) -> VolumeId {
        self.stored.volume()
    }

    pub(crate) fn target(&self) -> TargetId {
        self.stored.target()
    }

    pub(crate) fn set(&self) -> &ReplicaSet {
        &self.set
    }

    /// Whether a copy is in sync in the wanted set: nobody was ever told otherwise.
    pub(crate) fn wants_in_sync(&self, replica: ReplicaId) -> bool {
        self.set.in_sync().contains(&replica)
    }

    pub(crate) fn is_stale_member(&self, replica: ReplicaId) -> bool {
        self.set.replicas().contains(&replica) && !self.wants_in_sync(replica)
    }

    pub(crate) fn label(&self, replica: ReplicaId, size: Bytes) -> ReplicaLabel {
        let set = self.stored.set().clone();
        ReplicaLabel { volume: self.volume(), replica, size: size.into(), epoch: self.epoch(), set }
    }

    /// Whether the store was asked and did not answer.
    pub(crate) fn is_away(&self) -> bool {
        self.away
    }

    pub(crate) fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Whether the wanted set is stored and on the labels.
    pub(crate) fn is_recorded(&self) -> bool {
        self.set == *self.stored.set() && self.asked.is_none() && self.label_version.is_none()
    }

    pub(crate) fn change(&mut self, change: SetChange) -> Result<(), SetRefused> {
        self.set = self.set.on(change)?;
        Ok(())
    }

    /// The record of a clean end.
    pub(crate) fn closed(&self) -> Option<TargetRecord> {
        self.stored.close(self.epoch()).ok()
    }

    /// How the stored record says the target ended.
    pub(crate) fn end(&self) -> model::ShutdownState {
        self.stored.end()
    }

    /// Whether nothing is asked and nothing waits.
    pub(crate) fn is_idle(&self, now: Instant) -> bool {
        self.asked.is_none() && self.retry_at.is_none_or(|at| at <= now)
    }

    fn all(&self) -> impl Iterator<Item = &ReplicaId> {
        self.recorded.iter().chain(self.stored.set().in_sync()).chain(&self.uncertain)
    }
}

impl Mirror {
    /// Copies that somebody may call in sync: a write that one of them lacks is not acknowledged.
    pub(crate) fn required_acks(&self) -> ChildSet {
        #[cfg(test)]
        if self.broken == crate::tests::Broken::AckBeforeRecord {
            let set = self.record_writer.set.in_sync().iter();
            return set.filter_map(|replica| self.slot_of(*replica)).collect();
        }
        self.cached_or(
            |steady| steady.required_acks,
            |mirror| {
                mirror.record_writer.all().filter_map(|replica| mirror.slot_of(*replica)).collect()
            },
        )
    }

    /// Whether every copy that somebody may call in sync takes writes.
    pub(crate) fn is_settled(&self) -> bool {
        self.opened && self.required_acks().without(self.write_targets()).is_empty()
    }

    /// Decides what the set should be, from what the children are.
    pub(crate) fn reconcile(&mut self) {
        if !self.opened || self.is_down() {
            return;
        }
        // S1: without another one, nobody is recorded stale; hosts wait.
        if self.in_sync().is_empty() {
            return;
        }
        let is_lost = |replica: &ReplicaId| {
            let child = self.slot_of(*replica).and_then(|slot| self.child(slot));
            !child.is_some_and(|child| child.state.takes_writes())
        };
        // Nearly always nobody, which needs no memory.
        let lost: Vec<ReplicaId> =
            self.record_writer.set.in_sync().iter().copied().filter(is_lost).collect();
        for replica in lost {
            if self.record_writer.change(SetChange::Stale(replica)).is_ok() {
                self.needs_rescan = true;
            }
        }
    }

    pub(crate) fn pump_record(&mut self) {
        let record_writer = &mut self.record_writer;
        let due = record_writer.retry_at.is_none_or(|at| at <= self.now);
        // Before it has opened, labels may still show that the record is not to be believed.
        if record_writer.asked.is_some() || !due || !self.opened || self.state_is_closing() {
            return;
        }
        let record_writer = &mut self.record_writer;
        if record_writer.set.generation() == record_writer.stored.set().generation() {
            record_writer.retry_at = None;
            return;
        }
        let Ok(record) =
            record_writer.stored.record(record_writer.epoch(), record_writer.set.clone())
        else {
            return;
        };
        record_writer.uncertain.extend(record_writer.set.in_sync());
        record_writer.retry_at = None;
        self.send_record(record);
    }

    pub(crate) fn send_record(&mut self, record: TargetRecord) {
        self.last_io += 1;
        let io = RequestId(self.last_io);
        self.effects.push_back(Effect::Record { io, record: Box::new(record.clone()) });
        self.record_writer.asked = Some((io, record));
    }

    /// Asks the store whether it still holds what it held: it writes nothing.
    pub(crate) fn pump_confirm(&mut self) {
        let due = self.record_writer.retry_at.is_none_or(|at| at <= self.now);
        if self.suspected.is_empty() || self.is_down() || !due {
            return;
        }
        if self.record_writer.confirming.is_none() {
            self.last_io += 1;
            let (io, record) =
                (RequestId(self.last_io), Box::new(self.record_writer.stored.clone()));
            self.effects.push_back(Effect::Record { io, record });
            (self.record_writer.confirming, self.record_writer.retry_at) = (Some(io), None);
        }
    }

    fn confirmed(&mut self, result: Result<(), StoreFault>) {
        match result {
            // Nobody else owns the volume: the store is older than what is kept with its copies.
            Ok(()) | Err(StoreFault::Behind { .. }) => self.contradicted(),
            Err(StoreFault::Fenced) => self.fenced(),
            Err(StoreFault::Away) => self.record_later(),
        }
    }

    /// The store did not answer: it is asked again.
    fn record_later(&mut self) {
        let (first, most) = self.config.retry;
        let record_writer = &mut self.record_writer;
        record_writer.away = true;
        record_writer.backoff = (record_writer.backoff * 2).clamp(first, most);
        record_writer.retry_at = Some(self.now.after(record_writer.backoff));
    }

    pub(crate) fn recorded(&mut self, io: RequestId, result: Result<(), StoreFault>) {
        if self.record_writer.confirming.take_if(|asked| *asked == io).is_some() {
            self.needs_rescan = true;
            return self.confirmed(result);
        }
        let Some((_, record)) = self.record_writer.asked.take_if(|(asked, _)| *asked == io) else {
            return;
        };
        match result {
            Ok(()) => {
                let version = self.change_note();
                let record_writer = &mut self.record_writer;
                record_writer.stored = record;
                record_writer.uncertain.clear();
                (record_writer.away, record_writer.backoff) = (false, Duration::ZERO);
                record_writer.label_version = Some(version);
            }
            Err(StoreFault::Fenced) => self.fenced(),
            Err(StoreFault::Away) => self.record_later(),
            Err(StoreFault::Behind { epoch }) => self.store_is_behind(epoch),
        }
        self.needs_rescan = true;
    }

    /// Labels follow the store; when they have, the set is recorded.
    pub(crate) fn settle_labels(&mut self) {
        let durable = self.durable_version();
        if self.record_writer.label_version.is_some_and(|version| version <= durable) {
            self.record_writer.label_version = None;
            // So that each copy says that the others have this label.
            self.change_note();
            self.record_writer.recorded = self.record_writer.stored.set().in_sync().clone();
            self.needs_rescan = true;
        }
    }

    /// Whether every copy of the volume is in sync.
    pub(crate) fn is_whole(&self) -> bool {
        self.record_writer.set.is_whole()
            && self.record_writer.is_recorded()
            && self.each_child().all(|(_, child)| child.state == ChildState::InSync)
    }
}
