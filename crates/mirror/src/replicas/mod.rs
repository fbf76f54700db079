//! The replicas of the volume: what each is worth, what is recorded of them, and who must have
//! what.
//!
//! ```text
//!   children: attached, state ───┬──► in_sync         who answers reads
//!                                ├──► write_targets   who gets writes
//!   record: stored, on labels, ──┴──► required_acks   whose answer a write needs (W1)
//!           on the way
//! ```
//!
//! Invariant: the three sets are what children and record say, after every method. Nobody else can
//! change the state of a child or what is recorded: [`Child`] and [`RecordWriter`] keep that to
//! this module, and whatever changes it here refreshes the sets.
//!
//! `record.rs` says what the store holds (W1, S1), `lease.rs` when reads may be answered (R1).

mod child;
mod child_set;
mod lease;
mod record;
#[cfg(test)]
mod testing;

use alloc::format;
use alloc::vec::Vec;

use model::{
    ChildEvent, ChildState, FaultReason, Problem, ProblemKind, RecordedState, ReplicaId, SetChange,
    SetRefused, TargetRecord,
};

use crate::api::{Effect, ReplicaInfo, RequestId, Session};
use crate::context::{Context, Pending, Purpose};

pub(crate) use child::{Child, reason};
pub(crate) use child_set::{ChildSet, ChildSlot};
pub(crate) use record::{RecordWriter, StoreAnswer};

/// Who must have what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Roles {
    in_sync: ChildSet,
    write_targets: ChildSet,
    required_acks: ChildSet,
}

/// Something that was asked of a child.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) io: RequestId,
    pub(crate) child: ReplicaId,
    pub(crate) session: Session,
}

/// The replicas of the volume.
#[derive(Debug)]
pub(crate) struct Replicas {
    children: Vec<Option<Child>>,
    record: RecordWriter,
    roles: Roles,
    last_session: u64,
    /// The number of the last loss of a copy. A write that was acknowledged after a loss is on all
    /// copies in sync, so where they differ the one whose last loss is the oldest has the most.
    losses: u64,
    /// Acknowledged writes that no flush covered may be lost: the next flush says so.
    lost: bool,
    #[cfg(test)]
    broken: crate::tests::Broken,
}

impl Replicas {
    pub(crate) fn new(record: TargetRecord) -> Replicas {
        Replicas {
            children: Vec::new(),
            record: RecordWriter::new(record),
            roles: Roles::default(),
            last_session: 0,
            losses: 0,
            lost: false,
            #[cfg(test)]
            broken: crate::tests::Broken::Nothing,
        }
    }

    /// What is recorded, and what is wanted to be.
    pub(crate) fn record(&self) -> &RecordWriter {
        &self.record
    }

    pub(crate) fn get(&self, slot: ChildSlot) -> Option<&Child> {
        self.children.get(usize::from(slot.0))?.as_ref()
    }

    /// A child, to change what no set follows from.
    pub(crate) fn get_mut(&mut self, slot: ChildSlot) -> Option<&mut Child> {
        self.children.get_mut(usize::from(slot.0))?.as_mut()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (ChildSlot, &Child)> {
        (0..)
            .map(ChildSlot)
            .zip(&self.children)
            .filter_map(|(slot, child)| Some((slot, child.as_ref()?)))
    }

    pub(crate) fn slot_of(&self, replica: ReplicaId) -> Option<ChildSlot> {
        self.iter().find(|(_, child)| child.replica == replica).map(|(slot, _)| slot)
    }

    /// The child with this attachment, wanted or made.
    pub(crate) fn slot_of_session(&self, session: Session) -> Option<ChildSlot> {
        let of_it = |(_, child): &(ChildSlot, &Child)| child.attachment.session == Some(session);
        self.iter().find(of_it).map(|(slot, _)| slot)
    }

    pub(crate) fn replica_in(&self, slot: ChildSlot) -> Option<ReplicaId> {
        Some(self.get(slot)?.replica)
    }

    pub(crate) fn replicas_in(&self, slots: ChildSet) -> impl Iterator<Item = ReplicaId> {
        slots.iter().filter_map(|slot| self.replica_in(slot))
    }

    /// Children whose state says so.
    pub(crate) fn those_that(&self, is: impl Fn(ChildState) -> bool) -> ChildSet {
        self.iter().filter(|(_, child)| is(child.state)).map(|(slot, _)| slot).collect()
    }

    /// Children in sync that are attached: reads go there.
    pub(crate) fn in_sync(&self) -> ChildSet {
        self.roles().in_sync
    }

    /// Children that get every new write.
    pub(crate) fn write_targets(&self) -> ChildSet {
        self.roles().write_targets
    }

    /// **W1** Copies that somebody may call in sync: a write that one of them lacks is not
    /// acknowledged.
    pub(crate) fn required_acks(&self) -> ChildSet {
        self.roles().required_acks
    }

    fn roles(&self) -> Roles {
        #[cfg(test)]
        assert_eq!(self.roles, self.find_roles(), "a set was not refreshed");
        self.roles
    }

    fn find_roles(&self) -> Roles {
        let required = self.record.maybe_in_sync().filter_map(|replica| self.slot_of(*replica));
        let roles = Roles {
            in_sync: self.those_that(|state| state == ChildState::InSync),
            write_targets: self.those_that(ChildState::takes_writes),
            required_acks: required.collect(),
        };
        #[cfg(test)]
        if self.broken == crate::tests::Broken::AckBeforeRecord {
            let wanted = self.record.set().in_sync().iter();
            let required_acks = wanted.filter_map(|replica| self.slot_of(*replica)).collect();
            return Roles { required_acks, ..roles };
        }
        roles
    }

    fn refresh(&mut self) {
        self.roles = self.find_roles();
    }

    /// Whether every copy that somebody may call in sync takes writes.
    pub(crate) fn all_take_writes(&self) -> bool {
        self.required_acks().without(self.write_targets()).is_empty()
    }

    /// Whether every copy is attached and in sync. What a check makes of blocks that no copy can
    /// give, or that differ, is in no map of what a copy missed: so nobody may miss it.
    pub(crate) fn are_all_in_sync(&self) -> bool {
        self.iter().all(|(_, child)| child.is_attached() && child.state == ChildState::InSync)
    }

    /// Whether every copy of the volume is in sync, and recorded so.
    pub(crate) fn is_whole(&self) -> bool {
        self.record.set().is_whole()
            && self.record.is_recorded()
            && self.iter().all(|(_, child)| child.state == ChildState::InSync)
    }

    /// A local child, else the one that answered fastest lately.
    pub(crate) fn quickest(&self, of: ChildSet) -> Option<ChildSlot> {
        let score = |slot: &ChildSlot| {
            self.get(*slot).map(|child| (!child.local, child.latency(), child.replica))
        };
        of.iter().min_by_key(score)
    }

    /// The version of the note that every child has which takes writes.
    pub(crate) fn kept_version(&self) -> u64 {
        let kept = self.write_targets().iter().filter_map(|slot| Some(self.get(slot)?.kept()));
        kept.min().unwrap_or(0)
    }

    /// Names something asked of a child, if it is attached.
    pub(crate) fn ask(&self, cx: &mut Context, slot: ChildSlot, purpose: Purpose) -> Option<Asked> {
        let (sent, io) = (cx.now(), cx.next_request());
        let child = self.get(slot)?;
        let session = child.session()?;
        cx.asked(io, Pending { slot, session, purpose, sent });
        Some(Asked { io, child: child.replica, session })
    }

    /// Asks for attachments that are due.
    pub(crate) fn pump_attach(&mut self, cx: &mut Context) {
        let epoch = self.record.epoch();
        for child in self.children.iter_mut().flatten() {
            if child.is_due(cx.now()) {
                self.last_session += 1;
                let session = Session(self.last_session);
                child.attach(session, cx.now());
                cx.emit(Effect::Attach { child: child.replica, session, epoch });
            }
        }
    }

    /// An attachment is made.
    pub(crate) fn attached(
        &mut self,
        cx: &mut Context,
        slot: ChildSlot,
        found: ReplicaInfo,
        is_open: bool,
    ) {
        let Some(child) = self.get_mut(slot) else { return };
        let replica = child.replica;
        child.attached(found, is_open);
        let recorded = if self.record.wants_in_sync(replica) {
            RecordedState::InSync
        } else {
            RecordedState::Stale
        };
        self.change(cx, slot, ChildEvent::Reopened(recorded));
        cx.rescan();
    }

    /// An attachment could not be made, or is over.
    pub(crate) fn give_up(&mut self, cx: &mut Context, slot: ChildSlot, reason: FaultReason) {
        cx.unsettle();
        let (now, (first, most)) = (cx.now(), cx.config().retry);
        let Some(child) = self.get_mut(slot) else { return };
        let (replica, session) = (child.replica, child.release());
        child.give_up();
        if reason.may_return() {
            child.back_off(now, first, most);
        }
        if let ChildState::Faulted { .. } = child.state {
            child.state = ChildState::Faulted { reason };
        }
        let state = child.state;
        self.refresh();
        if let Some(session) = session {
            cx.emit(Effect::Detach { child: replica, session });
        }
        cx.emit(Effect::ChildChanged(replica, state));
        cx.rescan();
    }

    pub(crate) fn change(&mut self, cx: &mut Context, slot: ChildSlot, event: ChildEvent) {
        cx.unsettle();
        let Some(child) = self.get_mut(slot) else { return };
        let replica = child.replica;
        if let Ok(state) = child.state.on(event) {
            child.state = state;
            self.refresh();
            cx.emit(Effect::ChildChanged(replica, state));
        }
    }

    /// Lets go of a child; nothing is tried again by itself.
    pub(crate) fn release(&mut self, cx: &mut Context, slot: ChildSlot) {
        let Some(child) = self.get_mut(slot) else { return };
        child.attachment.retry_at = None;
        let (replica, session) = (child.replica, child.release());
        if let Some(session) = session {
            cx.emit(Effect::Detach { child: replica, session });
        }
    }

    pub(crate) fn release_all(&mut self, cx: &mut Context) {
        for slot in self.those_that(|_| true).iter() {
            self.release(cx, slot);
        }
    }

    /// A child gets no more writes: the notes kept with it grow old.
    pub(crate) fn forget_kept_note(&mut self, slot: ChildSlot) {
        if let Some(child) = self.get_mut(slot) {
            child.forget_kept_note();
        }
    }

    /// The children that a volume is opened with: those there is a way to, and those that are
    /// recorded.
    pub(crate) fn adopt(
        &mut self,
        cx: &Context,
        given: &[(ReplicaId, bool)],
    ) -> Result<(), Problem> {
        for (replica, local) in given {
            self.put(cx, *replica, *local)?;
            if self.change_set(SetChange::Added(*replica)).is_err() {
                return Err(Problem::new(
                    ProblemKind::Internal,
                    "a copy more makes no set smaller",
                ));
            }
        }
        for replica in self.record.set().replicas().clone() {
            if self.slot_of(replica).is_none() {
                let slot = self.put(cx, replica, false)?;
                if let Some(child) = self.get_mut(slot) {
                    (child.state, child.attachment.retry_at) = (ChildState::Offline, None);
                }
            }
        }
        self.refresh();
        Ok(())
    }

    fn put(&mut self, cx: &Context, replica: ReplicaId, local: bool) -> Result<ChildSlot, Problem> {
        if let Some(slot) = self.slot_of(replica) {
            return Ok(slot);
        }
        let child = Child::new(replica, local, cx.now());
        let free = self.children.iter().position(Option::is_none).unwrap_or(self.children.len());
        let slot = u8::try_from(free).ok().filter(|slot| *slot < child_set::MOST);
        let slot = slot.map(ChildSlot).ok_or_else(|| {
            Problem::new(
                ProblemKind::InvalidArgument,
                format!("a target has at most {} replicas", child_set::MOST),
            )
        })?;
        // A slot is used again only when nothing of its former child is under way.
        if cx.has_requests_of(slot) {
            return Err(Problem::new(
                ProblemKind::Busy,
                "a removed replica still has I/O; try again",
            ));
        }
        if free == self.children.len() {
            self.children.push(Some(child));
        } else if let Some(place) = self.children.get_mut(free) {
            *place = Some(child);
        }
        self.refresh();
        Ok(slot)
    }

    /// Adds a child, which is stale until it was rebuilt.
    pub(crate) fn add(
        &mut self,
        cx: &Context,
        replica: ReplicaId,
        local: bool,
    ) -> Result<(), Problem> {
        let slot = self.put(cx, replica, local)?;
        if let Some(child) = self.get_mut(slot) {
            child.local = local;
        }
        Ok(self.change_set(SetChange::Added(replica))?)
    }

    /// A child that was taken away on purpose is attached again.
    pub(crate) fn bring_online(&mut self, slot: ChildSlot, now: block::Instant) {
        let Some(child) = self.get_mut(slot) else { return };
        child.set_wanted(true);
        if child.attachment.session.is_none() {
            if child.state == ChildState::Offline {
                child.state = ChildState::Faulted { reason: FaultReason::CannotOpen };
            }
            child.attachment.retry_at = Some(now);
        }
        self.refresh();
    }

    /// Changes the set that is wanted; it is recorded next.
    pub(crate) fn change_set(&mut self, change: SetChange) -> Result<(), SetRefused> {
        self.record.change(change)?;
        self.refresh();
        Ok(())
    }

    /// Copies in sync that were lost are wanted to be stale.
    pub(crate) fn reconcile(&mut self, cx: &mut Context) {
        let is_lost = |replica: &ReplicaId| {
            let child = self.slot_of(*replica).and_then(|slot| self.get(slot));
            !child.is_some_and(|child| child.state.takes_writes())
        };
        // Nearly always nobody, which needs no memory.
        let lost: Vec<ReplicaId> =
            self.record.set().in_sync().iter().copied().filter(is_lost).collect();
        for replica in lost {
            if self.change_set(SetChange::Stale(replica)).is_ok() {
                cx.rescan();
            }
        }
    }

    /// What was found with children is known: the volume is opened.
    pub(crate) fn forget_found_notes(&mut self) {
        for child in self.children.iter_mut().flatten() {
            let _ = child.take_found_note();
        }
    }

    /// Takes out a child that is removed, recorded so.
    pub(crate) fn take_removed(&mut self) -> Option<ReplicaId> {
        if !self.record.is_recorded() {
            return None;
        }
        let replicas = self.record.set().replicas();
        let is_gone = |child: &mut Child| !replicas.contains(&child.replica);
        let gone = self.children.iter_mut().find_map(|place| place.take_if(|it| is_gone(it)))?;
        self.refresh();
        Some(gone.replica)
    }

    /// These copies lost something, after all losses that were counted before.
    pub(crate) fn count_loss(&mut self, slots: ChildSet) {
        self.losses += 1;
        let number = self.losses;
        for slot in slots.iter() {
            self.set_loss(slot, number);
        }
    }

    /// Losses up to this one were counted by former targets.
    pub(crate) fn adopt_loss(&mut self, slot: ChildSlot, loss: u64) {
        self.losses = self.losses.max(loss);
        self.set_loss(slot, loss);
    }

    pub(crate) fn set_loss(&mut self, slot: ChildSlot, loss: u64) {
        if let Some(child) = self.get_mut(slot) {
            child.loss = loss;
        }
    }

    /// The number of the loss that the best of these copies had; none of none.
    pub(crate) fn least_loss(&self, of: ChildSet) -> u64 {
        let losses = of.iter().filter_map(|slot| Some(self.get(slot)?.loss));
        losses.min().unwrap_or(u64::MAX)
    }

    /// Those of these copies that have what any of them has.
    pub(crate) fn least_lossy(&self, of: ChildSet) -> ChildSet {
        let least = self.least_loss(of);
        #[cfg(test)]
        if self.broken == crate::tests::Broken::LossesUnordered && least > 0 {
            return of;
        }
        of.iter().filter(|slot| self.get(*slot).is_some_and(|child| child.loss == least)).collect()
    }

    /// All copies in sync are equal: whatever they lost is made good. Whether there was any.
    pub(crate) fn forget_losses(&mut self) -> bool {
        let mut had = false;
        for child in self.children.iter_mut().flatten() {
            had |= core::mem::take(&mut child.loss) > 0;
        }
        had
    }

    /// If others have more than those that are left, something acknowledged may be lost.
    pub(crate) fn note_lost(&mut self, is_lost: bool) {
        self.lost |= is_lost;
    }

    /// What an opening finds lost, whatever was before.
    pub(crate) fn set_lost(&mut self, is_lost: bool) {
        self.lost = is_lost;
    }

    /// Whether acknowledged writes may be lost; it is told once.
    pub(crate) fn take_lost(&mut self) -> bool {
        core::mem::take(&mut self.lost)
    }
}
