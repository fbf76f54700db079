//! The record in the store: which copies may be believed.
//!
//! ```text
//!   set changes ──► Record (compare-and-swap) ──ok──► labels on all writers ──► recorded
//!                     ▲     │ away                                               │
//!                     └─────┘ back-off                 fenced ──► shut down      └► acknowledge
//! ```
//!
//! Invariants:
//! - **W1** `maybe_in_sync` has every copy that anybody may call in sync: the last set that is
//!   stored and on the labels, the one that is stored, and those whose answer is not known.
//! - **S1** the last copy in sync is never recorded stale (`model::ReplicaSet` refuses it too).

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use core::time::Duration;

use block::{Bytes, Instant};
use model::{
    Epoch, ReplicaId, ReplicaLabel, ReplicaSet, SetChange, SetRefused, TargetId, TargetRecord,
    VolumeId,
};

use super::Replicas;
use crate::api::{Effect, RequestId, StoreFault};
use crate::context::Context;

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
    pub(super) fn new(record: TargetRecord) -> RecordWriter {
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

    pub(super) fn change(&mut self, change: SetChange) -> Result<(), SetRefused> {
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

    /// Copies that somebody may call in sync.
    pub(super) fn maybe_in_sync(&self) -> impl Iterator<Item = &ReplicaId> {
        self.recorded.iter().chain(self.stored.set().in_sync()).chain(&self.uncertain)
    }

    fn is_due(&self, now: Instant) -> bool {
        self.retry_at.is_none_or(|at| at <= now)
    }

    /// The next record to store, if the wanted set is another one and it is time.
    fn next(&mut self, now: Instant) -> Option<TargetRecord> {
        if self.asked.is_some() || !self.is_due(now) {
            return None;
        }
        if self.set.generation() == self.stored.set().generation() {
            self.retry_at = None;
            return None;
        }
        let record = self.stored.record(self.epoch(), self.set.clone()).ok()?;
        self.uncertain.extend(self.set.in_sync());
        self.retry_at = None;
        Some(record)
    }

    /// The store did not answer: it is asked again.
    fn try_later(&mut self, cx: &Context) {
        let (first, most) = cx.config().retry;
        self.away = true;
        self.backoff = (self.backoff * 2).clamp(first, most);
        self.retry_at = Some(cx.now().after(self.backoff));
    }

    fn taken(&mut self, record: TargetRecord) {
        self.stored = record;
        self.uncertain.clear();
        (self.away, self.backoff) = (false, Duration::ZERO);
    }
}

/// What an answer of the store means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreAnswer {
    /// It is an answer to nothing that was asked, or will be asked again.
    Nothing,
    /// The record is stored: the labels are to follow ([`Replicas::labels_follow`]).
    Stored,
    /// Somebody newer owns the volume.
    Fenced,
    /// The store holds what it held, although a copy contradicts it.
    Confirmed,
    /// It holds an earlier ownership than ours.
    Behind(Epoch),
}

impl Replicas {
    /// Stores the wanted set, if it is another one than the store holds.
    pub(crate) fn pump_record(&mut self, cx: &mut Context) {
        if let Some(record) = self.record.next(cx.now()) {
            self.send_record(cx, record);
            self.refresh();
        }
    }

    pub(crate) fn send_record(&mut self, cx: &mut Context, record: TargetRecord) {
        let io = cx.next_request();
        cx.emit(Effect::Record { io, record: Box::new(record.clone()) });
        self.record.asked = Some((io, record));
    }

    /// Asks the store whether it still holds what it held: it writes nothing.
    pub(crate) fn confirm_record(&mut self, cx: &mut Context) {
        if self.record.is_due(cx.now()) && self.record.confirming.is_none() {
            let (io, record) = (cx.next_request(), Box::new(self.record.stored.clone()));
            cx.emit(Effect::Record { io, record });
            (self.record.confirming, self.record.retry_at) = (Some(io), None);
        }
    }

    /// The store has answered.
    pub(crate) fn recorded(
        &mut self,
        cx: &mut Context,
        io: RequestId,
        result: Result<(), StoreFault>,
    ) -> StoreAnswer {
        if self.record.confirming.take_if(|asked| *asked == io).is_some() {
            cx.rescan();
            return match result {
                // Nobody else owns the volume: the store is older than what is kept with its
                // copies.
                Ok(()) | Err(StoreFault::Behind { .. }) => StoreAnswer::Confirmed,
                Err(StoreFault::Fenced) => StoreAnswer::Fenced,
                Err(StoreFault::Away) => {
                    self.record.try_later(cx);
                    StoreAnswer::Nothing
                }
            };
        }
        let asked = self.record.asked.take_if(|(asked, _)| *asked == io);
        let Some((_, record)) = asked else { return StoreAnswer::Nothing };
        cx.rescan();
        match result {
            Ok(()) => {
                self.record.taken(record);
                self.refresh();
                StoreAnswer::Stored
            }
            Err(StoreFault::Fenced) => StoreAnswer::Fenced,
            Err(StoreFault::Away) => {
                self.record.try_later(cx);
                StoreAnswer::Nothing
            }
            Err(StoreFault::Behind { epoch }) => StoreAnswer::Behind(epoch),
        }
    }

    /// What was stored is on the labels of this version of the note.
    pub(crate) fn labels_follow(&mut self, version: u64) {
        self.record.label_version = Some(version);
    }

    /// Labels follow the store; when they have, the set is recorded. Whether they just have.
    pub(crate) fn settle_labels(&mut self, durable: u64) -> bool {
        if self.record.label_version.is_none_or(|version| version > durable) {
            return false;
        }
        self.record.label_version = None;
        self.record.recorded = self.record.stored.set().in_sync().clone();
        self.refresh();
        true
    }
}
