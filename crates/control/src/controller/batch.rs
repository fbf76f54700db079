//! Changes that are stored together, or not at all.
//!
//! A batch is written first and takes effect in memory when the store has taken it. Meanwhile its
//! records are locked: nobody else changes them, and nothing is done by them.

use std::collections::{BTreeMap, BTreeSet};

use model::{EventName, Problem, ReplicaId, Severity, Subject, Target, TargetId, VolumeId, keys};
use store::contract::{Compare, CompareOp, Keys, Op, Revision, Txn};

use super::apply_plan::count_ended;
use super::{
    CallId, CommitResult, Controller, Effect, Entry, EventDraft, PendingRequest, RequestOutcome,
    Ticket, WriteId,
};

/// One record is to change.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Put(Entry),
    Drop(Entry),
}

/// What somebody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitFor {
    /// The end of the creation or operation under way.
    End,
    /// That it is gone.
    Gone,
    /// What a node says that it has, if it was asked after this call.
    Listed(CallId),
}

/// Changes that are stored together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Batch {
    /// By key, so that no key is in it twice: a store refuses such a transaction.
    changes: BTreeMap<String, Change>,
    replies: Vec<(Ticket, RequestOutcome)>,
    tells: Vec<EventDraft>,
    /// What was driven when it was committed: it is driven again if the store will not write.
    pub(crate) reconciling: Option<Subject>,
    /// Whose request it is: it is decided again if the store refuses.
    pub(crate) asked: Option<PendingRequest>,
    /// What to wait for before its caller is answered; absent: only for the store.
    pub(crate) waits: Option<(Subject, WaitFor)>,
    /// What is answered to all that wait for the end of something.
    ends: Vec<(Subject, Result<RequestOutcome, Problem>)>,
    gone: Vec<Subject>,
    /// Copies to be checked.
    scrubs: Vec<ReplicaId>,
    attended: Vec<VolumeId>,
    /// The volume whose record is to be as it is known here; nothing is written.
    pub(crate) confirms: Option<VolumeId>,
    /// The volume of which the operation under way is to be undone.
    pub(crate) cancels: Option<VolumeId>,
    /// The records of volumes that it was checked against when it was sent.
    checked: BTreeMap<VolumeId, Revision>,
}

impl Batch {
    pub(crate) fn new() -> Batch {
        Batch::default()
    }

    /// A record as it is to be. Whoever changes one that is in the batch already begins with that
    /// ([`Batch::target`]): the last one counts.
    pub(crate) fn put(mut self, entry: impl Into<Entry>) -> Batch {
        let entry = entry.into();
        self.changes.insert(entry.key(), Change::Put(entry));
        self
    }

    pub(crate) fn drop(mut self, entry: impl Into<Entry>) -> Batch {
        let entry = entry.into();
        self.changes.insert(entry.key(), Change::Drop(entry));
        self
    }

    /// The caller is answered when the store has taken it.
    pub(crate) fn reply(mut self, ticket: Ticket, done: RequestOutcome) -> Batch {
        self.replies.push((ticket, done));
        self
    }

    /// The caller is answered when this has come about.
    pub(crate) fn wait(mut self, subject: Subject, what: WaitFor) -> Batch {
        self.waits = Some((subject, what));
        self
    }

    /// All that wait for the end of this are answered.
    pub(crate) fn end(
        mut self,
        subject: Subject,
        result: Result<RequestOutcome, Problem>,
    ) -> Batch {
        self.ends.push((subject, result));
        self
    }

    /// This is gone when the store has taken it.
    pub(crate) fn gone(mut self, subject: Subject) -> Batch {
        self.gone.push(subject);
        self
    }

    pub(crate) fn tell(
        mut self,
        subject: Subject,
        name: EventName,
        severity: Severity,
        message: impl Into<String>,
    ) -> Batch {
        let (message, origin) = (message.into(), None);
        self.tells.push(EventDraft { subject, name, severity, message, origin });
        self
    }

    /// The store says whether it has the record of this volume that is known here.
    pub(crate) fn confirm(mut self, volume: VolumeId) -> Batch {
        self.confirms = Some(volume);
        self
    }

    /// This copy is checked then.
    /// This volume gets a target for a while then.
    pub(crate) fn attend(mut self, volume: VolumeId) -> Batch {
        self.attended.push(volume);
        self
    }

    pub(crate) fn scrub(mut self, replica: ReplicaId) -> Batch {
        self.scrubs.push(replica);
        self
    }

    /// Both, or neither.
    pub(crate) fn and(mut self, other: Batch) -> Batch {
        self.changes.extend(other.changes);
        self.replies.extend(other.replies);
        self.tells.extend(other.tells);
        self.ends.extend(other.ends);
        self.gone.extend(other.gone);
        self.scrubs.extend(other.scrubs);
        self.attended.extend(other.attended);
        self.confirms = self.confirms.or(other.confirms);
        self.cancels = self.cancels.or(other.cancels);
        self.waits = self.waits.or(other.waits);
        self.asked = self.asked.or(other.asked);
        self
    }

    /// The keys of what it changes.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &String> {
        self.changes.keys()
    }

    /// A target as this batch leaves it, if it changes it.
    pub(crate) fn target(&self, id: TargetId) -> Option<&Target> {
        match self.changes.get(&keys::of::<Target>(id)) {
            Some(Change::Put(Entry::Target(target))) => Some(target),
            _ => None,
        }
    }

    /// Whether people are told of it.
    pub(crate) fn tells_something(&self) -> bool {
        !self.tells.is_empty()
    }

    /// The operation of this volume is to be undone.
    pub(crate) fn cancel(mut self, volume: VolumeId) -> Batch {
        self.cancels = Some(volume);
        self
    }

    pub(crate) fn changes(&self) -> impl Iterator<Item = &Change> {
        self.changes.values()
    }

    /// Whether nothing is to be stored.
    pub(crate) fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    pub(crate) fn puts(&self) -> impl Iterator<Item = &Entry> {
        self.changes.values().filter_map(|change| match change {
            Change::Put(entry) => Some(entry),
            Change::Drop(_) => None,
        })
    }

    /// What nobody else may write while it is on its way: its records, and the names in them.
    fn locks(&self) -> impl Iterator<Item = String> {
        let names = self.puts().filter_map(Entry::name_lock);
        self.changes.keys().cloned().chain(names)
    }

    fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.changes.values().map(|(Change::Put(entry) | Change::Drop(entry))| entry)
    }
}

impl Controller {
    /// Whether a write about it is under way.
    pub(crate) fn is_locked(&self, entry_key: &str) -> bool {
        self.locked.contains_key(entry_key)
    }

    /// Stores the batch; hands it back if a write about one of its records is under way, if one of
    /// them cannot be read, or while the store refuses to write.
    pub(crate) fn commit(&mut self, mut batch: Batch) -> Result<(), Box<Batch>> {
        let cannot_be = |key: &String| self.is_locked(key) || self.state.unreadable.has(key);
        if batch.locks().any(|key| cannot_be(&key)) || self.why_not_written().is_some() {
            return Err(Box::new(batch));
        }
        let mut txn = Txn::new();
        let mut checked = BTreeMap::new();
        if let Some(volume) = batch.confirms {
            let key = keys::target_record(volume);
            let known = self.state.revision(&key);
            checked.insert(volume, known);
            txn = txn
                .when(Compare::changed(key.clone(), CompareOp::Equal, known))
                .otherwise(Op::get(key));
        }
        for (key, change) in &batch.changes {
            let (Change::Put(entry) | Change::Drop(entry)) = change;
            txn =
                txn.when(Compare::changed(key.clone(), CompareOp::Equal, self.state.revision(key)));
            let op = match change {
                Change::Drop(_) => Op::delete(Keys::one(key.clone())),
                Change::Put(entry) => match entry.encode() {
                    Ok(text) => Op::put(key.clone(), text),
                    Err(error) => {
                        self.resign(format!("{key} cannot be written as JSON: {error}"));
                        return Ok(());
                    }
                },
            };
            txn = txn.then(op);
            if let Entry::TargetRecord(record) = entry {
                checked.insert(record.volume(), self.state.revision(key));
                txn = txn.otherwise(Op::get(key.clone()));
            }
        }
        batch.checked = checked;
        if let (Some((subject, what)), Some(asked)) = (&batch.waits, &batch.asked) {
            self.wait_for(subject.clone(), asked.ticket, *what);
        }
        self.locked.extend(batch.locks().map(|key| (key, BTreeSet::new())));
        let id = WriteId(self.number());
        batch.reconciling.clone_from(&self.reconciling);
        self.writes.insert(id, batch);
        self.out.push(Effect::Store(id, txn));
        Ok(())
    }

    /// As [`Controller::commit`], for those who come again when what is locked is free.
    pub(crate) fn try_commit(&mut self, batch: Batch) {
        let Err(batch) = self.commit(batch) else { return };
        let later = self.store_backoff.until(self.now);
        self.replan |= later.is_some();
        if let (Some(later), Some(reconciling)) = (later, self.reconciling.clone()) {
            self.wake(later, reconciling);
        }
        // What is driven is driven again when the write that is under way has ended.
        let Some(reconciling) = &self.reconciling else { return };
        for key in batch.locks() {
            if let Some(waiting) = self.locked.get_mut(&key) {
                waiting.insert(reconciling.clone());
            }
        }
    }

    /// The store has answered.
    pub(crate) fn on_stored(&mut self, id: WriteId, stored: CommitResult) {
        let Some(batch) = self.writes.remove(&id) else { return };
        for key in batch.locks() {
            self.dirty.extend(self.locked.remove(&key).unwrap_or_default());
        }
        for entry in batch.entries() {
            if let Some(subject) = entry.subject() {
                self.enqueue(&subject);
            }
        }
        self.asked.append(&mut self.waiting_for_write);
        match stored {
            CommitResult::Committed(revision) => {
                self.store_accepts();
                let mut batch = batch;
                for change in std::mem::take(&mut batch.changes).into_values() {
                    match change {
                        Change::Put(entry) => {
                            self.sequence_timer.is_wanted |=
                                matches!(entry, Entry::TargetRecord(_));
                            if let Entry::Rebuild(rebuild) = &entry {
                                count_ended(&mut self.state.facts, rebuild);
                            }
                            self.state.apply(entry, revision);
                        }
                        Change::Drop(entry) => {
                            let is_part = matches!(
                                entry,
                                Entry::TargetRecord(_) | Entry::Failover(_) | Entry::MoveRecord(_)
                            );
                            if let Some(subject) = entry.subject().filter(|_| !is_part) {
                                self.engine_objects.remove(&subject);
                            }
                            self.state.forget(&entry);
                        }
                    }
                }
                self.take_effect(batch);
            }
            CommitResult::Conflict(records) => {
                // Engines write these records too; what one wrote may have been heard of already.
                let mut was_overtaken = false;
                for (volume, at, record) in records {
                    let now = if record.is_some() { at } else { Revision::ZERO };
                    was_overtaken |= batch.checked.get(&volume) != Some(&now);
                    self.state.observe_record(volume, at, record);
                }
                if let Some(volume) = batch.confirms {
                    return self.confirmed(volume, false);
                }
                if !was_overtaken {
                    self.resign("the store holds what nobody here has written".into());
                }
                if let Some(asked) = batch.asked {
                    self.stop_waiting(asked.ticket);
                    self.asked.push_back(asked);
                }
            }
            CommitResult::Denied(problem) => self.on_denied(&batch, problem),
            CommitResult::Unknown(why) => self.resign(why),
        }
    }

    /// What the batch says beside its changes, which are stored.
    pub(crate) fn take_effect(&mut self, batch: Batch) {
        let Batch { replies, tells, ends, gone, scrubs, attended, confirms, cancels, .. } = batch;
        if let Some(volume) = cancels {
            self.cancelled.insert(volume);
            self.enqueue(&Subject::Volume(volume));
        }
        if let Some(volume) = confirms {
            self.confirmed(volume, true);
        }
        for volume in attended {
            self.attend(volume);
        }
        for replica in scrubs {
            self.begin_scrub(replica);
        }
        self.out.extend(tells.into_iter().map(Effect::Tell));
        for (ticket, done) in replies {
            self.out.push(Effect::Reply(ticket, Ok(done)));
        }
        for (subject, result) in ends {
            self.answer(&subject, WaitFor::End, &result);
        }
        for subject in gone {
            let failure = self.failures.remove(&subject);
            let ended = failure.unwrap_or_else(|| super::going(&subject));
            self.is_not_listed(&subject, ended.clone());
            self.answer(&subject, WaitFor::End, &Err(ended));
            self.answer(&subject, WaitFor::Gone, &Ok(RequestOutcome::Gone));
        }
    }

    pub(crate) fn wait_for(&mut self, subject: Subject, ticket: Ticket, what: WaitFor) {
        if let (Subject::Node(node), WaitFor::Listed(_)) = (&subject, what) {
            self.look_at(node);
        }
        self.waiting.entry(subject).or_default().push((ticket, what));
    }

    pub(crate) fn stop_waiting(&mut self, ticket: Ticket) {
        for waiting in self.waiting.values_mut() {
            waiting.retain(|(waits, _)| *waits != ticket);
        }
        self.waiting.retain(|_, waiting| !waiting.is_empty());
    }

    /// Nobody will ask this node: all that wait for what it says are told why.
    pub(crate) fn is_not_listed(&mut self, node: &Subject, why: Problem) {
        let by_now = WaitFor::Listed(CallId(self.number()));
        self.answer(node, by_now, &Err(why));
    }

    /// Answers all that wait for this.
    pub(crate) fn answer(
        &mut self,
        subject: &Subject,
        what: WaitFor,
        result: &Result<RequestOutcome, Problem>,
    ) {
        let is_answered = |waits: WaitFor| match (waits, what) {
            (WaitFor::Listed(before), WaitFor::Listed(call)) => before < call,
            _ => waits == what,
        };
        let Some(waiting) = self.waiting.get_mut(subject) else { return };
        let ready = waiting.extract_if(.., |(_, waits)| is_answered(*waits));
        self.out.extend(ready.map(|(ticket, _)| Effect::Reply(ticket, result.clone())));
        if waiting.is_empty() {
            self.waiting.remove(subject);
        }
    }
}
