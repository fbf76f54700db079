//! A child that leaves: it failed, was taken away, or is not to be rebuilt.
//!
//! Order: what it may lack or lose is remembered first, then commands and its rebuild let go of it,
//! then its state changes. What becomes of the record is decided when the event is over.

use alloc::format;
use alloc::string::String;

use model::{ChildEvent, FaultReason, Problem, ProblemKind, ReplicaId};

use crate::api::{AttachFault, Session};
use crate::mirror::Mirror;
use crate::replicas::{ChildSet, ChildSlot};

impl Mirror {
    pub(crate) fn lost(&mut self, session: Session, why: AttachFault) {
        let Some(slot) = self.base.replicas.slot_of_session(session) else { return };
        match why {
            AttachFault::Fenced => self.fenced(),
            AttachFault::Failed(reason) => self.fail(slot, reason),
        }
    }

    /// A child has failed.
    pub(crate) fn fail(&mut self, slot: ChildSlot, reason: FaultReason) {
        let Some(child) = self.base.replicas.get(slot) else { return };
        if child.is_attached() {
            let detail = child_failed(child.replica(), reason);
            let problem = Problem::new(ProblemKind::NodeUnavailable, detail);
            self.leave_write_targets(slot, Some(problem));
            let failed = ChildEvent::Failed(reason);
            self.base.replicas.change(&mut self.base.cx, slot, failed);
        }
        self.base.replicas.give_up(&mut self.base.cx, slot, reason);
    }

    /// A child gets no more writes: what it may lack or lose is remembered before anything else is.
    pub(crate) fn leave_write_targets(&mut self, slot: ChildSlot, why: Option<Problem>) {
        let base = &mut self.base;
        base.cx.unsettle();
        if base.replicas.get(slot).is_none() {
            return;
        }
        base.replicas.forget_kept_note(slot);
        base.log.child_left(&base.replicas, slot);
        let in_sync = base.replicas.in_sync();
        if !base.log.in_doubt().is_empty() && in_sync.contains(slot) {
            let of = |slots| base.replicas.least_loss(slots);
            let one = ChildSet::one(slot);
            let had_most = of(one) < of(in_sync.without(one));
            base.replicas.note_lost(had_most);
        }
        self.commands.child_left(slot);
        self.rebuilder.end_job(&mut self.base, slot, why);
        self.base.cx.rescan();
    }

    /// A rebuild could not go on: its child is failed, and tried again.
    pub(crate) fn end_failed_rebuild(&mut self) {
        if let Some((slot, problem)) = self.rebuilder.take_failed() {
            self.leave_write_targets(slot, Some(problem));
            self.fail(slot, FaultReason::RebuildFailed);
        }
    }

    /// Stops a rebuild; nothing is wrong with its child.
    pub(crate) fn interrupt(&mut self, slot: ChildSlot) {
        if self.rebuilder.may_stop(slot) {
            self.leave_write_targets(slot, None);
            self.base.replicas.change(&mut self.base.cx, slot, ChildEvent::Interrupted);
        }
    }

    /// Takes a child away on purpose.
    pub(crate) fn detach(&mut self, slot: ChildSlot) {
        self.leave_write_targets(slot, None);
        self.base.replicas.change(&mut self.base.cx, slot, ChildEvent::Detached);
        self.base.replicas.release(&mut self.base.cx, slot);
    }
}

fn child_failed(replica: ReplicaId, reason: FaultReason) -> String {
    format!("replica {replica} failed ({reason:?}); it is tried again by itself")
}
