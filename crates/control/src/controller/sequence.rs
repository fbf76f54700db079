//! How far the store has come, and whether it went back.
//!
//! ```text
//!   a term begins, or a record changes ──► number + 1 is stored ──► engines are told, and keep it
//!   an engine was told a higher number ──► the store went back: that is stored, engines are told
//!   or of another store                    nothing more
//!   every volume was compared with all of its copies in sync ──► a number above all is stored
//! ```
//!
//! While the store is known to have gone back, a volume is served only when each copy that its
//! record calls in sync was seen, and none says more: one that is away may be the only one that
//! knows that the others are stale. A volume whose record was written since is not concerned.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use api::heartbeat::HeartbeatAck;
use model::{
    EventName, Lifecycle, NodeName, ReplicaId, Severity, StoreMark, StoreSequence, Subject,
    Timestamp, Volume, VolumeId, keys,
};

use super::Controller;
use super::batch::Batch;

/// The number is not raised more often than this.
const RAISE: Duration = Duration::from_secs(1);

/// How many records are written again at once.
const RELEASED: usize = 16;

/// When the number is to be raised.
#[derive(Clone, Debug)]
pub(crate) struct SequenceTimer {
    pub(crate) is_wanted: bool,
    last: Timestamp,
    /// The highest that an engine was told.
    pub(crate) highest: u64,
    /// What engines were told of another store, each counted once: until it is told the number of
    /// this one an engine says the same again.
    foreign: BTreeMap<NodeName, StoreMark>,
}

impl SequenceTimer {
    pub(crate) fn new(now: Timestamp) -> SequenceTimer {
        let last = Timestamp::EPOCH.min(now);
        SequenceTimer { is_wanted: true, last, highest: 0, foreign: BTreeMap::new() }
    }
}

/// What heartbeats are answered.
#[derive(Clone, Debug)]
pub struct HeartbeatAcks {
    ack: HeartbeatAck,
    /// What nodes were told of another store, as far as that was taken in.
    foreign: BTreeMap<NodeName, StoreMark>,
}

impl HeartbeatAcks {
    /// The answer to a host.
    pub fn of_host(&self) -> HeartbeatAck {
        self.ack
    }

    /// The answer to a node that says what it was told last. One that was told more than the store
    /// knows, or of another store, is told nothing until that was taken in: it would forget it.
    pub fn answer(&self, node: &NodeName, told: Option<StoreMark>) -> HeartbeatAck {
        let believed = |mark: &StoreMark| {
            told.is_none_or(|told| {
                // Since another store was heard of there was no mark until all was compared.
                let is_taken_in = self.foreign.get(node) == Some(&told);
                if told.store == mark.store { !told.is_after(*mark) } else { is_taken_in }
            })
        };
        HeartbeatAck { mark: self.ack.mark.filter(believed), ..self.ack }
    }
}

impl Controller {
    /// What heartbeats are answered from now on.
    pub fn heartbeats(&self) -> HeartbeatAcks {
        let millis = |wait: Duration| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        let ack = HeartbeatAck {
            next_in_millis: millis(self.pace.heartbeat),
            gone_in_millis: millis(self.pace.deadline),
            mark: self.mark(),
        };
        HeartbeatAcks { ack, foreign: self.sequence_timer.foreign.clone() }
    }

    /// What engines are told; nothing while the store is not to be believed.
    pub(crate) fn mark(&self) -> Option<StoreMark> {
        // Also while that is not stored yet: an engine would forget that it was told more.
        let sequence = self.state.sequence.filter(|_| !self.went_back())?;
        Some(sequence.mark)
    }

    /// Whether the store is known to have gone back, stored or not.
    pub(crate) fn went_back(&self) -> bool {
        let stored = self.state.sequence.map_or(0, |sequence| sequence.mark.number);
        let is_stored = self.state.sequence.is_some_and(|sequence| sequence.went_back);
        is_stored || self.sequence_timer.highest > stored
    }

    /// An engine says what it was told last.
    pub(crate) fn on_mark(&mut self, node: &NodeName, told: Option<StoreMark>) {
        let Some(told) = told else { return };
        // A store without a number is older than any that has one.
        let none = StoreMark { number: 0, ..told };
        let none = StoreSequence { mark: none, went_back: false };
        let sequence = self.state.sequence.unwrap_or(none);
        // An engine that was told of another store knows of a time that this one does not: a store
        // that took the place of this one, before this one was put back.
        let is_foreign = told.store != sequence.mark.store;
        if is_foreign && self.sequence_timer.foreign.insert(node.clone(), told) == Some(told) {
            return;
        }
        let least = if is_foreign { sequence.mark.number.saturating_add(1) } else { 0 };
        self.sequence_timer.highest = self.sequence_timer.highest.max(told.number).max(least);
        if sequence.went_back || !(is_foreign || told.is_after(sequence.mark)) {
            return;
        }
        let batch = Batch::new().put(StoreSequence { went_back: true, ..sequence });
        let message = format!(
            "the store was put back to an earlier state: it has number {}, and this node was told \
             {}. Volumes are served only when all of their copies in sync were seen; see \
             `holdfast recover`",
            sequence.mark.number, told.number
        );
        let (subject, name) = (Subject::Node(node.clone()), EventName::StateChanged);
        self.try_commit(batch.tell(subject, name, Severity::Error, message));
        self.weigh_all();
    }

    /// When the number is to be raised without anything happening.
    pub(crate) fn raised_at(&self) -> Option<Timestamp> {
        let can_be = self.is_surveyed() && !self.went_back();
        let at = self.sequence_timer.last.after(RAISE);
        let at = at.max(self.store_backoff.until(self.now).unwrap_or(at));
        (self.sequence_timer.is_wanted && can_be).then_some(at)
    }

    /// Raises the number, if it is to be and was not a moment ago.
    pub(crate) fn raise_mark(&mut self) {
        let is_due = self.raised_at().is_some_and(|at| at <= self.now);
        let key = keys::of::<StoreSequence>(StoreSequence::ID);
        // A number that an engine was told must not be passed before that engine could say so.
        if !is_due || !self.is_surveyed() || self.went_back() || self.is_locked(&key) {
            return;
        }
        let mark = match self.state.sequence.map(|sequence| sequence.mark) {
            Some(mark) => StoreMark { number: mark.number.saturating_add(1), ..mark },
            None => match self.ids.store() {
                Ok(store) => StoreMark { store, number: 1 },
                Err(_) => return,
            },
        };
        (self.sequence_timer.is_wanted, self.sequence_timer.last) = (false, self.now);
        self.try_commit(Batch::new().put(StoreSequence { mark, went_back: false }));
    }

    /// The copies that must be seen before a volume of a store that went back may be served.
    pub(crate) fn unseen(&self, volume: &Volume) -> BTreeSet<ReplicaId> {
        let id = *volume.id();
        let sequence = keys::of::<StoreSequence>(StoreSequence::ID);
        let is_stored = self.state.sequence.is_some_and(|sequence| sequence.went_back);
        let written = self.state.revision(&keys::target_record(id));
        let is_newer = is_stored && written > self.state.revision(&sequence);
        if !self.went_back() || !self.is_surveyed() || is_newer {
            return BTreeSet::new();
        }
        let record = self.state.facts.records.get(&id);
        let counted: BTreeSet<ReplicaId> = match record {
            Some(record) => record.set().in_sync().clone(),
            None => self.state.replicas_of(id).map(|replica| *replica.id()).collect(),
        };
        let seen = |id: &ReplicaId| {
            self.state.facts.replicas.get(id).is_some_and(|replica| replica.status.is_some())
        };
        counted.into_iter().filter(|id| !seen(id)).collect()
    }

    /// Ends the caution when nothing is left to compare.
    pub(crate) fn end_caution(&mut self) {
        let Some(sequence) = self.state.sequence.filter(|_| self.went_back()) else { return };
        if !sequence.went_back {
            // What an engine said could not be stored at once.
            return self
                .try_commit(Batch::new().put(StoreSequence { went_back: true, ..sequence }));
        }
        let lives = |volume: &&Volume| matches!(volume.lifecycle(), Lifecycle::Created { .. });
        let mut volumes = self.state.facts.volumes.values().filter(lives);
        let waits =
            |volume: &Volume| self.is_disputed(*volume.id()) || !self.unseen(volume).is_empty();
        if !self.is_surveyed() {
            return;
        }
        if volumes.any(waits) {
            return self.release_compared();
        }
        let number = sequence.mark.number.max(self.sequence_timer.highest).saturating_add(1);
        let mark = StoreMark { number, ..sequence.mark };
        self.try_commit(Batch::new().put(StoreSequence { mark, went_back: false }));
    }

    /// Volumes that were compared need not wait for those that were not: their records are written
    /// again, so that whoever owns them may change them.
    fn release_compared(&mut self) {
        let sequence = self.state.revision(&keys::of::<StoreSequence>(StoreSequence::ID));
        let is_compared = |volume: &&Volume| {
            let key = keys::target_record(*volume.id());
            let is_old = self.state.revision(&key) < sequence;
            is_old && !self.is_locked(&key) && self.unseen(volume).is_empty()
        };
        let lives = |volume: &&Volume| matches!(volume.lifecycle(), Lifecycle::Created { .. });
        let compared = self.state.facts.volumes.values().filter(lives).filter(is_compared);
        let compared = compared.filter(|volume| !self.is_disputed(*volume.id())).take(RELEASED);
        let records = compared.filter_map(|volume| self.state.facts.records.get(volume.id()));
        let batch = records.cloned().fold(Batch::new(), Batch::put);
        if !batch.is_empty() {
            self.try_commit(batch);
        }
    }

    /// The volumes of a store that went back are looked at again.
    pub(crate) fn weigh_all(&mut self) {
        let volumes: Vec<VolumeId> = self.state.facts.volumes.keys().copied().collect();
        for volume in volumes {
            self.weigh(volume);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever heard more of the store than this control plane knows must not forget it before that
    /// was taken in.
    #[test]
    fn an_engine_that_was_told_more_is_told_nothing() {
        let mark = |store: u8, number| {
            let store = format!("00000000-0000-4000-8000-{store:012}").parse().unwrap();
            StoreMark { store, number }
        };
        let [n1, n2]: [NodeName; 2] = ["n1", "n2"].map(|name| name.parse().unwrap());
        let now = Some(mark(7, 50));
        let ack = HeartbeatAck { next_in_millis: 1, gone_in_millis: 2, mark: now };
        let acks = HeartbeatAcks { ack, foreign: [(n1.clone(), mark(8, 1))].into() };
        assert_eq!(acks.answer(&n1, None).mark, now);
        assert_eq!(acks.answer(&n1, Some(mark(7, 50))).mark, now);
        assert_eq!(acks.answer(&n1, Some(mark(7, 51))).mark, None);
        assert_eq!(acks.answer(&n1, Some(mark(8, 1))).mark, now, "it was taken in");
        assert_eq!(acks.answer(&n1, Some(mark(8, 2))).mark, None);
        assert_eq!(acks.answer(&n2, Some(mark(8, 1))).mark, None);
    }
}
