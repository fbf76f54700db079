//! Writes and flushes: to every child that takes writes, acknowledged by every copy in sync.
//!
//! ```text
//!   limits ──► queue (W2) ──► marks (W3) ──► all targets ──► `required_acks` have it (W1) ──► Done
//!                                                ▲              │
//!                                                └── again ◄────┘ a copy in sync came back
//! ```

use block::{Command, ErrorClass};
use model::FaultReason;

use super::CommandQueue;
use crate::context::{Ticket, Verdict};
use crate::rebuilder::Rebuilder;
use crate::replicas::ChildSet;
use crate::replication::Replication;

impl CommandQueue {
    /// Sends a change or a flush for the first time.
    pub(super) fn begin(&mut self, base: &mut Replication, ticket: Ticket) {
        let Some(command) = self.ops.get(ticket).map(|op| op.command) else { return };
        // W3: a copy that is away and may still be called in sync has no mark of this. It could not
        // be acknowledged before that is recorded anyway.
        if !may_begin(base) || base.replicas.in_sync().is_empty() || flush_must_wait(base, command)
        {
            return;
        }
        if let Some(span) = command.span()
            && !base.log.begin_write(&mut base.cx, &base.replicas, span)
        {
            return;
        }
        let flush = base.log.flush_begins();
        if let Some(op) = self.ops.get_mut(ticket) {
            (op.begun, op.flush) = (true, flush);
        }
        self.send(base, ticket, base.replicas.write_targets(), command);
    }

    /// Ends a change or a flush if it may end, or sends it where it is missing.
    pub(super) fn advance_write(
        &mut self,
        base: &mut Replication,
        rebuilder: &mut Rebuilder,
        ticket: Ticket,
    ) -> Verdict {
        if let Some((slots, reason)) = self.judge_refusals(base, rebuilder, ticket) {
            return Verdict::Failed(slots, reason);
        }
        let Some(op) = self.ops.get(ticket) else { return Verdict::Fine };
        let missing = base.replicas.required_acks().without(op.done);
        // Those that were busy, and a copy that was away as the last one and came back.
        let again = missing.either(op.again).both(base.replicas.write_targets());
        let command = op.command;
        if missing.is_empty() && again.is_empty() {
            self.finish(base, rebuilder, ticket, Ok(()));
            return Verdict::Fine;
        }
        if let Some(op) = self.ops.get_mut(ticket) {
            op.again = ChildSet::NONE;
        }
        if !again.is_empty() {
            self.send(base, ticket, again, command);
        }
        Verdict::Fine
    }

    /// A refusal of all is the answer; a refusal of some is their failure: whose, and how.
    fn judge_refusals(
        &mut self,
        base: &mut Replication,
        rebuilder: &mut Rebuilder,
        ticket: Ticket,
    ) -> Option<(ChildSet, FaultReason)> {
        let op = self.ops.get_mut(ticket)?;
        let (declined, done) = (core::mem::take(&mut op.declined), op.done);
        let fault = op.fault.filter(|_| !declined.is_empty())?;
        let in_sync = base.replicas.in_sync();
        if in_sync.without(declined).is_empty() && !in_sync.is_empty() {
            self.finish(base, rebuilder, ticket, Err(fault));
            return None;
        }
        if done.both(in_sync).is_empty() {
            // The others have not answered: they decide.
            if let Some(op) = self.ops.get_mut(ticket) {
                op.declined = declined;
            }
            return None;
        }
        let reason = match fault.class() {
            ErrorClass::Capacity => FaultReason::NoSpace,
            _ => FaultReason::IoError,
        };
        Some((declined, reason))
    }
}

fn may_begin(base: &Replication) -> bool {
    #[cfg(test)]
    if base.cx.broken == crate::tests::Broken::MarkedUnsettled {
        return base.service.is_open();
    }
    base.is_settled()
}

/// **F1** A flush promises that every copy in sync has what was acknowledged. Where they may
/// differ that is not so before they were compared.
fn flush_must_wait(base: &Replication, command: Command) -> bool {
    #[cfg(test)]
    if base.cx.broken == crate::tests::Broken::FlushInDoubt {
        return false;
    }
    command == Command::Flush && !base.log.in_doubt().is_empty()
}
