//! One child: its attachment, its failure, its return.
//!
//! What a child is worth is `model::ChildState`; the edges are drawn there.

use alloc::boxed::Box;
use core::time::Duration;

use block::{ErrorClass, Instant, IoError};
use model::{
    ChildEvent, ChildState, ConflictReason, FaultReason, Problem, ProblemKind, RecordedState,
    ReplicaId, SyncMetadata, SyncStamp,
};

use crate::api::{AttachFault, Effect, ReplicaInfo, Session};
use crate::child_set::{ChildSet, ChildSlot};
use crate::mirror::Mirror;

/// A child.
#[derive(Debug)]
pub(crate) struct Child {
    pub(crate) replica: ReplicaId,
    pub(crate) local: bool,
    pub(crate) state: ChildState,
    /// The attachment, wanted or made.
    pub(crate) session: Option<Session>,
    pub(crate) attached: bool,
    /// The version of the note that it has, and the one that is under way.
    pub(crate) kept: u64,
    pub(crate) keeping: Option<u64>,
    /// How long its reads take, roughly.
    pub(crate) latency: Duration,
    pub(crate) retry_at: Option<Instant>,
    backoff: Duration,
    pub(crate) incarnation: Option<u64>,
    /// The number of its last loss of writes that no flush covered; zero if that was made good.
    pub(crate) loss: u64,
    /// Somebody does not want it rebuilt.
    pub(crate) unwanted: bool,
    /// What was found with it, until the volume is opened.
    pub(crate) note: Option<Box<SyncMetadata>>,
    /// The newest note that it is known to have.
    pub(crate) had: Option<SyncStamp>,
    /// When this attachment was asked for, and when this target was first attached.
    asked: Instant,
    pub(crate) fenced: Option<Instant>,
    /// When the newest thing was asked that it has done, and the number of that.
    pub(crate) proved: Option<Instant>,
    pub(crate) proved_io: u64,
    /// The I/O that is to prove something.
    pub(crate) proving: Option<u64>,
}

impl Child {
    pub(crate) fn new(replica: ReplicaId, local: bool) -> Child {
        Child {
            replica,
            local,
            state: ChildState::Faulted { reason: FaultReason::CannotOpen },
            session: None,
            attached: false,
            kept: 0,
            keeping: None,
            latency: Duration::ZERO,
            retry_at: None,
            backoff: Duration::ZERO,
            incarnation: None,
            loss: 0,
            unwanted: false,
            note: None,
            had: None,
            asked: Instant::ZERO,
            fenced: None,
            proved: None,
            proved_io: 0,
            proving: None,
        }
    }

    pub(crate) fn is_current(&self, session: Session) -> bool {
        self.session == Some(session) && self.attached
    }

    /// A read took so long; the newest eighth counts.
    pub(crate) fn took(&mut self, time: Duration) {
        self.latency = match self.latency {
            Duration::ZERO => time,
            old => old.saturating_sub(old / 8) + time / 8,
        };
    }

    fn back_off(&mut self, now: Instant, (first, most): (Duration, Duration)) {
        self.backoff = (self.backoff * 2).clamp(first, most);
        self.retry_at = Some(now.after(self.backoff));
    }
}

/// How a child failed, by the fault of one of its I/Os.
pub(crate) fn reason(fault: IoError) -> FaultReason {
    match fault {
        IoError::TimedOut | IoError::Busy => FaultReason::TimedOut,
        fault => match fault.class() {
            ErrorClass::Path => FaultReason::ConnectionLost,
            ErrorClass::Capacity => FaultReason::NoSpace,
            _ => FaultReason::IoError,
        },
    }
}

impl Mirror {
    pub(crate) fn child(&self, slot: ChildSlot) -> Option<&Child> {
        self.children.get(usize::from(slot.0))?.as_ref()
    }

    pub(crate) fn child_mut(&mut self, slot: ChildSlot) -> Option<&mut Child> {
        self.children.get_mut(usize::from(slot.0))?.as_mut()
    }

    pub(crate) fn each_child(&self) -> impl Iterator<Item = (ChildSlot, &Child)> {
        (0..)
            .map(ChildSlot)
            .zip(&self.children)
            .filter_map(|(slot, child)| Some((slot, child.as_ref()?)))
    }

    pub(crate) fn slot_of(&self, replica: ReplicaId) -> Option<ChildSlot> {
        self.each_child().find(|(_, child)| child.replica == replica).map(|(slot, _)| slot)
    }

    /// Children whose state says so.
    pub(crate) fn children_that(&self, is: impl Fn(ChildState) -> bool) -> ChildSet {
        self.each_child().filter(|(_, child)| is(child.state)).map(|(slot, _)| slot).collect()
    }

    pub(crate) fn in_sync(&self) -> ChildSet {
        self.cached_or(
            |steady| steady.in_sync,
            |mirror| mirror.children_that(|state| state == ChildState::InSync),
        )
    }

    pub(crate) fn write_targets(&self) -> ChildSet {
        self.cached_or(
            |steady| steady.write_targets,
            |mirror| mirror.children_that(ChildState::takes_writes),
        )
    }

    /// Attaches whatever is due.
    pub(crate) fn pump_attach(&mut self) {
        if self.is_down() {
            return;
        }
        let epoch = self.record_writer.epoch();
        for child in self.children.iter_mut().flatten() {
            let due = child.retry_at.is_some_and(|at| at <= self.now);
            if due && child.session.is_none() && child.state != ChildState::Offline {
                self.last_session += 1;
                let session = Session(self.last_session);
                (child.session, child.attached, child.retry_at) = (Some(session), false, None);
                child.asked = self.now;
                let child = child.replica;
                self.effects.push_back(Effect::Attach { child, session, epoch });
            }
        }
    }

    pub(crate) fn attached(
        &mut self,
        session: Session,
        result: Result<Box<ReplicaInfo>, AttachFault>,
    ) {
        let found = self.each_child().find(|(_, child)| child.session == Some(session));
        let Some((slot, replica)) = found.map(|(slot, child)| (slot, child.replica)) else {
            return;
        };
        let found = match result {
            Ok(found) => found,
            Err(AttachFault::Fenced) if self.opened => return self.fenced(),
            Err(AttachFault::Fenced) => {
                let record = self.record_writer.epoch();
                return self.contradicts(slot, ConflictReason::RefusesEpoch { record });
            }
            Err(AttachFault::Failed(reason)) => return self.give_up(slot, reason),
        };
        let now = self.now;
        if let Some(child) = self.child_mut(slot) {
            // Whatever else becomes of it: no former owner is answered there any more.
            child.fenced.get_or_insert(now);
        }
        if let Some(note) = &found.note {
            if note.label.volume != self.record_writer.volume() || note.label.replica != replica {
                return self.give_up(slot, FaultReason::Mismatch);
            }
            if let Some(reason) = self.contradiction(note) {
                return self.contradicts(slot, reason);
            }
        }
        if found.size < self.geometry.blocks() {
            return self.give_up(slot, FaultReason::Mismatch);
        }
        if self.opened && !self.judge_return(slot, &found) {
            return;
        }
        let recorded = if self.record_writer.wants_in_sync(replica) {
            RecordedState::InSync
        } else {
            RecordedState::Stale
        };
        if recorded == RecordedState::InSync {
            // It is believed, whatever was remembered in case it had to be recorded stale.
            #[cfg(test)]
            let keeps = self.broken == crate::tests::Broken::MapKept;
            #[cfg(not(test))]
            let keeps = false;
            if !keeps {
                self.dirty.missed.remove(&replica);
            }
            self.returned(slot, &found);
        }
        let is_open = self.opened;
        let Some(child) = self.child_mut(slot) else { return };
        child.attached = true;
        child.backoff = Duration::ZERO;
        child.incarnation = Some(found.incarnation);
        (child.proved, child.proving) = (Some(child.asked), None);
        child.had = found.note.as_ref().map(SyncMetadata::stamp);
        child.note = found.note.filter(|_| !is_open).map(Box::new);
        self.change_child(slot, ChildEvent::Reopened(recorded));
        self.needs_rescan = true;
    }

    /// A copy that is recorded in sync is there again.
    fn returned(&mut self, slot: ChildSlot, found: &ReplicaInfo) {
        if !self.opened {
            return;
        }
        let before = self.child(slot).and_then(|child| child.incarnation);
        if before != Some(found.incarnation) {
            // It was away as the last one, and may have lost what no flush covers. Other copies in
            // sync may not have: until they are compared, this is in doubt.
            #[cfg(test)]
            let was_lost = self.lost;
            self.lost |= self.dirty.has_unflushed();
            #[cfg(test)]
            if self.broken == crate::tests::Broken::LossUntold {
                self.lost = was_lost;
            }
            self.count_loss(ChildSet::one(slot));
            let risk = self.dirty.at_risk();
            self.mark_for_resync(&risk);
        }
    }

    /// These copies lost something, after all losses that were counted before.
    pub(crate) fn count_loss(&mut self, slots: ChildSet) {
        self.losses += 1;
        let number = self.losses;
        for slot in slots.iter() {
            if let Some(child) = self.child_mut(slot) {
                child.loss = number;
            }
        }
    }

    /// The number of the loss that the best of these copies had; none of none.
    pub(crate) fn least_loss(&self, of: ChildSet) -> u64 {
        let losses = of.iter().filter_map(|slot| Some(self.child(slot)?.loss));
        losses.min().unwrap_or(u64::MAX)
    }

    /// Those of these copies that have what any of them has.
    pub(crate) fn least_lossy(&self, of: ChildSet) -> ChildSet {
        let least = self.least_loss(of);
        of.iter()
            .filter(|slot| self.child(*slot).is_some_and(|child| child.loss == least))
            .collect()
    }

    /// All copies in sync are equal: whatever they lost is made good.
    pub(crate) fn forget_losses(&mut self) {
        let mut had = false;
        for child in self.children.iter_mut().flatten() {
            had |= core::mem::take(&mut child.loss) > 0;
        }
        if had {
            self.change_note();
        }
    }

    /// An attachment could not be made.
    pub(crate) fn give_up(&mut self, slot: ChildSlot, reason: FaultReason) {
        let (now, retry) = (self.now, self.config.retry);
        self.steady = None;
        let Some(child) = self.child_mut(slot) else { return };
        let (replica, session) = (child.replica, child.session.take());
        child.attached = false;
        (child.note, child.proved, child.proving) = (None, None, None);
        if reason.may_return() {
            child.back_off(now, retry);
        }
        if let ChildState::Faulted { .. } = child.state {
            child.state = ChildState::Faulted { reason };
        }
        let state = child.state;
        self.effects.extend(session.map(|session| Effect::Detach { child: replica, session }));
        self.effects.push_back(Effect::ChildChanged(replica, state));
        self.needs_rescan = true;
    }

    pub(crate) fn lost(&mut self, session: Session, why: AttachFault) {
        let found = self.each_child().find(|(_, child)| child.session == Some(session));
        let Some(slot) = found.map(|(slot, _)| slot) else { return };
        match why {
            AttachFault::Fenced => self.fenced(),
            AttachFault::Failed(reason) => self.fail(slot, reason),
        }
    }

    /// A child has failed. What becomes of the record is decided when the event is over.
    pub(crate) fn fail(&mut self, slot: ChildSlot, reason: FaultReason) {
        let Some(child) = self.child(slot) else { return };
        if !child.attached {
            return self.give_up(slot, reason);
        }
        self.leave_write_targets(
            slot,
            Some(Problem::new(ProblemKind::NodeUnavailable, child_failed(child.replica, reason))),
        );
        self.change_child(slot, ChildEvent::Failed(reason));
        self.give_up(slot, reason);
    }

    /// A child gets no more writes: what it may lack or lose is remembered before anything else is.
    pub(crate) fn leave_write_targets(&mut self, slot: ChildSlot, why: Option<Problem>) {
        self.steady = None;
        let Some(child) = self.child_mut(slot) else { return };
        let (replica, state, had) = (child.replica, child.state, child.had);
        (child.kept, child.keeping) = (0, None);
        if state.takes_writes() {
            self.left.extend(had.map(|had| (replica, had)));
            let risk = self.dirty.at_risk();
            if state == ChildState::InSync {
                self.dirty.missed.insert(replica, risk);
            } else if let Some(missed) = self.dirty.missed.get_mut(&replica) {
                missed.add(&risk);
            }
        }
        if !self.dirty.resync.is_empty() && state == ChildState::InSync {
            let others = self.in_sync().without(ChildSet::one(slot));
            self.lost |= self.least_loss(ChildSet::one(slot)) < self.least_loss(others);
        }
        for op in self.ops.values_mut() {
            op.done.remove(slot);
            op.declined.remove(slot);
            op.again.remove(slot);
        }
        self.end_job(slot, why);
        self.needs_rescan = true;
    }

    pub(crate) fn change_child(&mut self, slot: ChildSlot, event: ChildEvent) {
        self.steady = None;
        let Some(child) = self.child_mut(slot) else { return };
        if let Ok(state) = child.state.on(event) {
            child.state = state;
            let changed = Effect::ChildChanged(child.replica, state);
            self.effects.push_back(changed);
        }
    }

    /// Takes what was found with copies in sync, when the volume is opened. Those that lost what no
    /// flush covered are counted, the one with the newest note as the first: if another one was
    /// rolled back, it has more.
    pub(crate) fn adopt_notes(&mut self, from: ChildSet) {
        let mut crashed: alloc::vec::Vec<(SyncStamp, ChildSlot)> = alloc::vec::Vec::new();
        let notes: alloc::vec::Vec<(ChildSlot, Box<SyncMetadata>)> = from
            .iter()
            .filter_map(|slot| Some((slot, self.child_mut(slot)?.note.take()?)))
            .collect();
        for (slot, note) in &notes {
            if note.label.epoch == self.record_writer.epoch() {
                // This target was open before; a number stands for one note.
                self.version = self.version.max(note.sequence);
            }
            self.losses = self.losses.max(note.loss);
            if let Some(child) = self.child_mut(*slot) {
                child.loss = note.loss;
                if child.incarnation != Some(note.incarnation) {
                    crashed.push((note.stamp(), *slot));
                }
            }
        }
        let is_each = u32::try_from(notes.len()) == Ok(from.len());
        let oldest = notes.iter().map(|(_, note)| note.stamp()).min().filter(|_| is_each);
        self.base = oldest.map(|oldest| (oldest, self.version));
        for (_, note) in &notes {
            self.adopt(note);
        }
        crashed.sort_by(|one, other| other.cmp(one));
        for group in crashed.chunk_by(|one, other| one.0 == other.0) {
            self.count_loss(group.iter().map(|(_, slot)| *slot).collect());
        }
    }

    fn adopt(&mut self, note: &SyncMetadata) {
        self.reserved.adopt(note);
        let next = self.version + 1;
        self.dirty.adopt(&note.intents, next, self.now);
        for (replica, left) in &note.left {
            let newest = self.left.entry(*replica).or_insert(*left);
            *newest = (*newest).max(*left);
        }
        for (replica, missed) in &note.missed {
            if self.record_writer.is_stale_member(*replica) {
                let none = self.dirty.none();
                self.dirty.missed.entry(*replica).or_insert(none).add(missed);
            }
        }
    }
}

fn child_failed(replica: ReplicaId, reason: FaultReason) -> alloc::string::String {
    alloc::format!("replica {replica} failed ({reason:?}); it is tried again by itself")
}
