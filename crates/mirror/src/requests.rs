//! Orders: children that come and go, rebuilds, limits.

use alloc::format;

use block::Instant;
use model::{Problem, ProblemKind, RebuildEvent, ReplicaId, SetChange, TargetState};

use crate::api::{CommandId, MirrorRequest, RebuildCommand};
use crate::mirror::Mirror;
use crate::replicas::ChildSlot;

/// Most orders that wait for the record.
const WAITING: usize = 64;

impl Mirror {
    /// Takes an order; it ends with an [`Effect::Answer`].
    pub fn request(&mut self, token: CommandId, request: MirrorRequest, now: Instant) {
        self.base.cx.pass(now);
        self.base.cx.unsettle();
        if request == MirrorRequest::Stop {
            self.stop(token);
        } else if self.base.service.is_down() || self.base.service.is_stopping() {
            let problem =
                Problem::new(ProblemKind::Fenced, "the target is shut down; ask the newer one");
            self.base.cx.answer(token, Err(problem));
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
            MirrorRequest::Limit(limits) => {
                self.commands.set_limits(limits, self.base.cx.now());
                Ok(())
            }
            MirrorRequest::RebuildLimit(limit) => {
                self.rebuilder.set_limit(limit, self.base.cx.now());
                Ok(())
            }
            MirrorRequest::Check { span, believed, unreadable } => {
                let base = &mut self.base;
                return self.rebuilder.check_span(base, token, span, believed, unreadable);
            }
            MirrorRequest::Resize(size) => return self.resize(token, size),
            MirrorRequest::Snapshot(id, attempt) => return self.take_snapshot(token, id, attempt),
            MirrorRequest::Stop => return self.stop(token),
        };
        match result {
            Ok(()) if self.base.replicas.record().is_recorded() => {
                self.base.cx.answer(token, Ok(()));
            }
            Ok(()) if self.waiting_requests.len() >= WAITING => {
                let problem = Problem::new(ProblemKind::Busy, "too many orders wait for the store");
                self.base.cx.answer(token, Err(problem));
            }
            Ok(()) => {
                self.waiting_requests.push((token, self.base.replicas.record().set().generation()));
            }
            Err(problem) => self.base.cx.answer(token, Err(problem)),
        }
    }

    /// Answers orders whose set is recorded.
    pub(crate) fn pump_requests(&mut self) {
        if self.base.replicas.record().is_recorded() {
            for (token, _) in core::mem::take(&mut self.waiting_requests) {
                self.base.cx.answer(token, Ok(()));
            }
        }
    }

    /// Nothing more will be recorded.
    pub(crate) fn fail_requests(&mut self) {
        let problem =
            || Problem::new(ProblemKind::Fenced, "the target shut down; ask the newer one");
        for (token, _) in core::mem::take(&mut self.waiting_requests) {
            self.base.cx.answer(token, Err(problem()));
        }
        self.rebuilder.drop_checks(&mut self.base, &problem());
        self.end_snapshot(Err(problem()));
        self.end_resize(Err(problem()));
        self.refuse_reservations(&problem());
    }

    fn add_child(&mut self, replica: ReplicaId, local: bool) -> Result<(), Problem> {
        self.require_open()?;
        self.base.replicas.add(&self.base.cx, replica, local)
    }

    fn remove_child(&mut self, replica: ReplicaId) -> Result<(), Problem> {
        let Some(slot) = self.base.replicas.slot_of(replica) else { return Ok(()) };
        self.require_open()?;
        self.require_other(slot)?;
        self.base.replicas.change_set(SetChange::Removed(replica))?;
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
        self.base.replicas.bring_online(slot, self.base.cx.now());
        Ok(())
    }

    fn request_rebuild(
        &mut self,
        replica: ReplicaId,
        request: RebuildCommand,
    ) -> Result<(), Problem> {
        let slot = self.require_child(replica)?;
        let Some(child) = self.base.replicas.get_mut(slot) else { return Ok(()) };
        match request {
            RebuildCommand::Start => child.set_wanted(true),
            RebuildCommand::Cancel => {
                child.set_wanted(false);
                if !self.rebuilder.is_proposed(slot) {
                    self.interrupt(slot);
                }
            }
            RebuildCommand::Pause | RebuildCommand::Resume => {
                let event = match request {
                    RebuildCommand::Pause => RebuildEvent::Pause,
                    _ => RebuildEvent::Resume,
                };
                if !self.rebuilder.pause(&mut self.base.cx, slot, event) {
                    let detail = format!("replica {replica} is not being rebuilt");
                    return Err(Problem::new(ProblemKind::NotFound, detail));
                }
            }
        }
        Ok(())
    }

    fn require_child(&self, replica: ReplicaId) -> Result<ChildSlot, Problem> {
        let detail = || format!("replica {replica} is no child of this target");
        self.base
            .replicas
            .slot_of(replica)
            .ok_or_else(|| Problem::new(ProblemKind::NotFound, detail()))
    }

    fn require_open(&self) -> Result<(), Problem> {
        match self.base.service.state() {
            TargetState::Init => {
                Err(Problem::new(ProblemKind::Unavailable, "the target is being opened; try again"))
            }
            _ => Ok(()),
        }
    }

    /// S1: refuses to take the last copy in sync away.
    fn require_other(&self, slot: ChildSlot) -> Result<(), Problem> {
        let mut others = self.base.replicas.in_sync();
        others.remove(slot);
        let Some(child) = self.base.replicas.get(slot) else { return Ok(()) };
        if others.is_empty() && self.base.replicas.record().wants_in_sync(child.replica()) {
            let detail = "it is the last copy in sync; bring another in sync first";
            return Err(Problem::new(ProblemKind::LastReplica, detail));
        }
        Ok(())
    }
}
