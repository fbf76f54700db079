//! Orders: children that come and go, rebuilds, limits.

use alloc::format;

use block::Instant;
use model::{
    ChildEvent, ChildState, Problem, ProblemKind, QosLimits, RebuildEvent, ReplicaId, SetChange,
    TargetState,
};

use crate::api::{CommandId, Effect, MirrorRequest, RebuildCommand};
use crate::child::Child;
use crate::child_set::{ChildSlot, MOST};
use crate::mirror::Mirror;
use crate::throttle::TokenBucket;

/// Most orders that wait for the record.
const WAITING: usize = 64;

impl Mirror {
    /// Takes an order; it ends with an [`Effect::Answer`].
    pub fn request(&mut self, token: CommandId, request: MirrorRequest, now: Instant) {
        self.now = self.now.max(now);
        self.steady = None;
        if request == MirrorRequest::Stop {
            self.stop(token);
        } else if self.is_down() || self.stopping.is_some() {
            let problem =
                Problem::new(ProblemKind::Fenced, "the target is shut down; ask the newer one");
            self.answer(token, Err(problem));
        } else {
            self.carry_out(token, request);
        }
        self.tick(now);
    }

    fn carry_out(&mut self, token: CommandId, request: MirrorRequest) {
        let result = match request {
            MirrorRequest::AddChild { replica, local } => self.add_child(replica, local),
            MirrorRequest::RemoveChild(replica) => self.remove_child(replica),
            MirrorRequest::Offline(replica) => self.take_offline(replica),
            MirrorRequest::Online(replica) => self.bring_online(replica),
            MirrorRequest::Rebuild(replica, request) => self.request_rebuild(replica, request),
            MirrorRequest::Limit(QosLimits { iops, bytes_per_second }) => {
                self.buckets.0.set(iops, self.now);
                self.buckets.1.set(bytes_per_second.map(|size| size.bytes().0), self.now);
                Ok(())
            }
            MirrorRequest::RebuildLimit(limit) => {
                self.rebuild_bucket = TokenBucket::new(limit.map(|size| size.bytes().0), self.now);
                Ok(())
            }
            MirrorRequest::Check { span, believed, unreadable } => {
                return self.check_span(token, span, (believed, unreadable));
            }
            MirrorRequest::Resize(size) => return self.resize(token, size),
            MirrorRequest::Snapshot(id, attempt) => return self.take_snapshot(token, id, attempt),
            MirrorRequest::Stop => return self.stop(token),
        };
        match result {
            Ok(()) if self.record_writer.is_recorded() => self.answer(token, Ok(())),
            Ok(()) if self.waiting_requests.len() >= WAITING => {
                let problem = Problem::new(ProblemKind::Busy, "too many orders wait for the store");
                self.answer(token, Err(problem));
            }
            Ok(()) => self.waiting_requests.push((token, self.record_writer.set().generation())),
            Err(problem) => self.answer(token, Err(problem)),
        }
    }

    pub(crate) fn answer(&mut self, token: CommandId, result: Result<(), Problem>) {
        self.effects.push_back(Effect::Answer { token, result });
    }

    /// Answers orders whose set is recorded.
    pub(crate) fn pump_requests(&mut self) {
        if self.record_writer.is_recorded() {
            for (token, _) in core::mem::take(&mut self.waiting_requests) {
                self.answer(token, Ok(()));
            }
        }
    }

    /// Nothing more will be recorded.
    pub(crate) fn fail_requests(&mut self) {
        let problem =
            || Problem::new(ProblemKind::Fenced, "the target shut down; ask the newer one");
        for (token, _) in core::mem::take(&mut self.waiting_requests) {
            self.answer(token, Err(problem()));
        }
        self.drop_checks(&problem());
        self.end_snapshot(Err(problem()));
        self.end_resize(Err(problem()));
        self.refuse_reservations(&problem());
    }

    /// The children a volume is opened with: those there is a way to, and those that are recorded.
    pub(crate) fn adopt_children(&mut self, given: &[(ReplicaId, bool)]) -> Result<(), Problem> {
        for (replica, local) in given {
            self.put_child(*replica, *local)?;
            if self.record_writer.change(SetChange::Added(*replica)).is_err() {
                return Err(Problem::new(
                    ProblemKind::Internal,
                    "a copy more makes no set smaller",
                ));
            }
        }
        for replica in self.record_writer.set().replicas().clone() {
            if self.slot_of(replica).is_none() {
                let slot = self.put_child(replica, false)?;
                if let Some(child) = self.child_mut(slot) {
                    (child.state, child.retry_at) = (ChildState::Offline, None);
                }
            }
        }
        Ok(())
    }

    fn put_child(&mut self, replica: ReplicaId, local: bool) -> Result<ChildSlot, Problem> {
        if let Some(slot) = self.slot_of(replica) {
            return Ok(slot);
        }
        let mut child = Child::new(replica, local);
        child.retry_at = Some(self.now);
        let free = self.children.iter().position(Option::is_none).unwrap_or(self.children.len());
        let slot = u8::try_from(free).ok().filter(|slot| *slot < MOST);
        let slot = slot.map(ChildSlot).ok_or_else(|| {
            Problem::new(
                ProblemKind::InvalidArgument,
                format!("a target has at most {MOST} replicas"),
            )
        })?;
        // A slot is used again only when nothing of its former child is under way.
        if self.ios.iter().any(|(_, pending)| pending.slot == slot) {
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
        Ok(slot)
    }

    fn add_child(&mut self, replica: ReplicaId, local: bool) -> Result<(), Problem> {
        self.require_open()?;
        let slot = self.put_child(replica, local)?;
        if let Some(child) = self.child_mut(slot) {
            child.local = local;
        }
        Ok(self.record_writer.change(SetChange::Added(replica))?)
    }

    fn remove_child(&mut self, replica: ReplicaId) -> Result<(), Problem> {
        let Some(slot) = self.slot_of(replica) else { return Ok(()) };
        self.require_open()?;
        self.require_other(slot)?;
        self.record_writer.change(SetChange::Removed(replica))?;
        self.detach(slot);
        Ok(())
    }

    fn take_offline(&mut self, replica: ReplicaId) -> Result<(), Problem> {
        let slot = self.require_child(replica)?;
        self.require_open()?;
        self.require_other(slot)?;
        self.detach(slot);
        Ok(())
    }

    fn bring_online(&mut self, replica: ReplicaId) -> Result<(), Problem> {
        let slot = self.require_child(replica)?;
        let now = self.now;
        let Some(child) = self.child_mut(slot) else { return Ok(()) };
        child.unwanted = false;
        if child.session.is_none() {
            if child.state == ChildState::Offline {
                let reason = model::FaultReason::CannotOpen;
                child.state = ChildState::Faulted { reason };
            }
            child.retry_at = Some(now);
        }
        Ok(())
    }

    /// Takes a child away on purpose.
    fn detach(&mut self, slot: ChildSlot) {
        self.leave_write_targets(slot, None);
        self.change_child(slot, ChildEvent::Detached);
        let Some(child) = self.child_mut(slot) else { return };
        (child.attached, child.retry_at) = (false, None);
        let replica = child.replica;
        let session = child.session.take();
        self.effects.extend(session.map(|session| Effect::Detach { child: replica, session }));
    }

    /// Forgets children that are removed, recorded so, and have nothing under way.
    pub(crate) fn forget_removed(&mut self) {
        if !self.record_writer.is_recorded() {
            return;
        }
        for place in &mut self.children {
            let gone =
                |child: &Child| !self.record_writer.set().replicas().contains(&child.replica);
            if let Some(child) = place.take_if(|child| gone(child)) {
                self.dirty.missed.remove(&child.replica);
                self.orphans.forget(child.replica);
                self.version += 1;
                self.needs_rescan = true;
            }
        }
    }

    fn request_rebuild(
        &mut self,
        replica: ReplicaId,
        request: RebuildCommand,
    ) -> Result<(), Problem> {
        let slot = self.require_child(replica)?;
        let now = self.wall();
        let Some(child) = self.child_mut(slot) else { return Ok(()) };
        match request {
            RebuildCommand::Start => child.unwanted = false,
            RebuildCommand::Cancel => {
                child.unwanted = true;
                if !self.jobs.get(&slot).is_some_and(|job| job.proposed) {
                    self.interrupt(slot);
                }
            }
            RebuildCommand::Pause | RebuildCommand::Resume => {
                let event = match request {
                    RebuildCommand::Pause => RebuildEvent::Pause,
                    _ => RebuildEvent::Resume,
                };
                let job = self.jobs.get_mut(&slot).filter(|job| !job.proposed);
                let job = job.ok_or_else(|| {
                    Problem::new(
                        ProblemKind::NotFound,
                        format!("replica {replica} is not being rebuilt"),
                    )
                })?;
                if job.rebuild.on(event, now).is_ok() {
                    let changed = alloc::boxed::Box::new(job.rebuild.clone());
                    self.effects.push_back(Effect::RebuildChanged(changed));
                }
            }
        }
        Ok(())
    }

    /// Stops a rebuild; nothing is wrong with its child.
    pub(crate) fn interrupt(&mut self, slot: ChildSlot) {
        if self.jobs.get(&slot).is_some_and(|job| !job.proposed) {
            self.leave_write_targets(slot, None);
            self.change_child(slot, ChildEvent::Interrupted);
        }
    }

    fn require_child(&self, replica: ReplicaId) -> Result<ChildSlot, Problem> {
        let detail = || format!("replica {replica} is no child of this target");
        self.slot_of(replica).ok_or_else(|| Problem::new(ProblemKind::NotFound, detail()))
    }

    fn require_open(&self) -> Result<(), Problem> {
        match self.state {
            TargetState::Init => {
                Err(Problem::new(ProblemKind::Unavailable, "the target is being opened; try again"))
            }
            _ => Ok(()),
        }
    }

    /// S1: refuses to take the last copy in sync away.
    fn require_other(&self, slot: ChildSlot) -> Result<(), Problem> {
        let mut others = self.in_sync();
        others.remove(slot);
        let Some(child) = self.child(slot) else { return Ok(()) };
        if others.is_empty() && self.record_writer.wants_in_sync(child.replica) {
            let detail = "it is the last copy in sync; bring another in sync first";
            return Err(Problem::new(ProblemKind::LastReplica, detail));
        }
        Ok(())
    }
}
