//! The record in the store: which copies may be believed.
//!
//! ```text
//!   set changes ──► Record (compare-and-swap) ──ok──► labels on all writers ──► recorded
//!                     ▲     │ away                                               │
//!                     └─────┘ back-off                 fenced ──► shut down      └► acknowledge
//! ```
//!
//! Invariants:
//! - **W1** `must` holds every copy that anybody may call in sync: the last set that is stored and
//!   on the labels, the one that is stored, and those whose answer is not known.
//! - **S1** the last copy in sync is never recorded stale (`model::ReplicaSet` refuses it too).

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::time::Duration;

use block::{Bytes, Instant};
use model::{
    ChildState, Epoch, Label, ReplicaId, ReplicaSet, SetChange, SetRefused, TargetId, TargetRecord,
    VolumeId,
};

use crate::api::{Effect, Io, StoreFault};
use crate::mirror::Mirror;
use crate::slots::Slots;

/// What is recorded, and what is wanted to be.
#[derive(Debug)]
pub(crate) struct Recorder {
    /// What the store holds, as far as is known.
    stored: TargetRecord,
    /// Copies in sync of the last set that is stored and labelled.
    recorded: BTreeSet<ReplicaId>,
    /// Copies in sync of sets that were sent and may be stored.
    uncertain: BTreeSet<ReplicaId>,
    /// What is wanted.
    set: ReplicaSet,
    asked: Option<(Io, TargetRecord)>,
    /// The note that has the label of what is stored.
    label_version: Option<u64>,
    retry_at: Option<Instant>,
    backoff: Duration,
    away: bool,
    /// The store is asked whether it still holds what it held.
    confirming: Option<Io>,
}

impl Recorder {
    pub(crate) fn new(record: TargetRecord) -> Recorder {
        Recorder {
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

    pub(crate) fn label(&self, replica: ReplicaId, size: Bytes) -> Label {
        let set = self.stored.set().clone();
        Label { volume: self.volume(), replica, size: size.into(), epoch: self.epoch(), set }
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
    pub(crate) fn end(&self) -> model::End {
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
    pub(crate) fn must(&self) -> Slots {
        #[cfg(test)]
        if self.broken == crate::tests::Broken::AckBeforeRecord {
            let set = self.recorder.set.in_sync().iter();
            return set.filter_map(|replica| self.slot_of(*replica)).collect();
        }
        self.known(
            |calm| calm.must,
            |mirror| mirror.recorder.all().filter_map(|replica| mirror.slot_of(*replica)).collect(),
        )
    }

    /// Whether every copy that somebody may call in sync takes writes.
    pub(crate) fn is_settled(&self) -> bool {
        self.opened && self.must().without(self.writers()).is_empty()
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
            self.recorder.set.in_sync().iter().copied().filter(is_lost).collect();
        for replica in lost {
            if self.recorder.change(SetChange::Stale(replica)).is_ok() {
                self.poke = true;
            }
        }
    }

    pub(crate) fn pump_record(&mut self) {
        let recorder = &mut self.recorder;
        let due = recorder.retry_at.is_none_or(|at| at <= self.now);
        // Before it has opened, labels may still show that the record is not to be believed.
        if recorder.asked.is_some() || !due || !self.opened || self.state_is_closing() {
            return;
        }
        let recorder = &mut self.recorder;
        if recorder.set.generation() == recorder.stored.set().generation() {
            recorder.retry_at = None;
            return;
        }
        let Ok(record) = recorder.stored.record(recorder.epoch(), recorder.set.clone()) else {
            return;
        };
        recorder.uncertain.extend(recorder.set.in_sync());
        recorder.retry_at = None;
        self.send_record(record);
    }

    pub(crate) fn send_record(&mut self, record: TargetRecord) {
        self.last_io += 1;
        let io = Io(self.last_io);
        self.effects.push_back(Effect::Record { io, record: Box::new(record.clone()) });
        self.recorder.asked = Some((io, record));
    }

    /// Asks the store whether it still holds what it held: it writes nothing.
    pub(crate) fn pump_confirm(&mut self) {
        let due = self.recorder.retry_at.is_none_or(|at| at <= self.now);
        if self.suspected.is_empty() || self.is_down() || !due {
            return;
        }
        if self.recorder.confirming.is_none() {
            self.last_io += 1;
            let (io, record) = (Io(self.last_io), Box::new(self.recorder.stored.clone()));
            self.effects.push_back(Effect::Record { io, record });
            (self.recorder.confirming, self.recorder.retry_at) = (Some(io), None);
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
        let (first, most) = self.policy.retry;
        let recorder = &mut self.recorder;
        recorder.away = true;
        recorder.backoff = (recorder.backoff * 2).clamp(first, most);
        recorder.retry_at = Some(self.now.after(recorder.backoff));
    }

    pub(crate) fn recorded(&mut self, io: Io, result: Result<(), StoreFault>) {
        if self.recorder.confirming.take_if(|asked| *asked == io).is_some() {
            self.poke = true;
            return self.confirmed(result);
        }
        let Some((_, record)) = self.recorder.asked.take_if(|(asked, _)| *asked == io) else {
            return;
        };
        match result {
            Ok(()) => {
                let version = self.change_note();
                let recorder = &mut self.recorder;
                recorder.stored = record;
                recorder.uncertain.clear();
                (recorder.away, recorder.backoff) = (false, Duration::ZERO);
                recorder.label_version = Some(version);
            }
            Err(StoreFault::Fenced) => self.fenced(),
            Err(StoreFault::Away) => self.record_later(),
            Err(StoreFault::Behind { epoch }) => self.store_is_behind(epoch),
        }
        self.poke = true;
    }

    /// Labels follow the store; when they have, the set is recorded.
    pub(crate) fn settle_labels(&mut self) {
        let durable = self.durable_version();
        if self.recorder.label_version.is_some_and(|version| version <= durable) {
            self.recorder.label_version = None;
            // So that each copy says that the others have this label.
            self.change_note();
            self.recorder.recorded = self.recorder.stored.set().in_sync().clone();
            self.poke = true;
        }
    }

    /// Whether every copy of the volume is in sync.
    pub(crate) fn is_whole(&self) -> bool {
        self.recorder.set.is_whole()
            && self.recorder.is_recorded()
            && self.each_child().all(|(_, child)| child.state == ChildState::InSync)
    }
}
