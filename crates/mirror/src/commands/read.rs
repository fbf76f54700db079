//! Reads: from the local copy or the quickest, elsewhere on error, and bad blocks are rewritten.
//!
//! Copies that had it wrong are checked when it has been answered (`rebuilder/check.rs`), under a
//! claim of their own: each damaged block is repaired.
//!
//! If no copy can give all of it, it leaves the lane while its blocks are checked one by one
//! (`rebuilder/check.rs`), and is tried once more: each block may be good on another copy, and one
//! that was being written when all copies crashed is proven by none.
//!
//! While nothing else is under way, a read of a local copy needs none of this, and goes around the
//! mirror ([`CommandQueue::try_bypass`]). If it fails, it comes back
//! ([`Mirror::bypass_failed`](crate::Mirror::bypass_failed)).

use block::{Command, Completion, ErrorClass, IoError, RangeAccess};

use super::{CommandQueue, Op};
use crate::api::Session;
use crate::context::{Pending, Ticket, Verdict};
use crate::rebuilder::Rebuilder;
use crate::replicas::{ChildSet, reason};
use crate::replication::Replication;

impl CommandQueue {
    /// The attachment that a read may be asked of at once, without a word to the mirror before it
    /// has ended: that of a local copy in sync, if no command is under way that it might have to
    /// wait for (W2), and R1 and R2 hold. Later ones may overtake it.
    pub(crate) fn try_bypass(
        &mut self,
        base: &mut Replication,
        command: Command,
    ) -> Option<Session> {
        let Command::Read { span } = command else { return None };
        if !base.cx.is_steady() {
            return None;
        }
        let is_alone = base.lane.is_empty();
        #[cfg(test)]
        let is_alone = is_alone || base.cx.broken == crate::tests::Broken::AroundOthers;
        let must_wait = !is_alone
            || !self.paced.is_empty()
            || self.has_limits()
            || base.log.in_doubt().touches(span);
        let may_read = may_read(base) && base.holds_lease(base.cx.now());
        if must_wait || !may_read || self.admit(base, command).is_err() {
            return None;
        }
        base.replicas.renew_lease(&mut base.cx);
        let child = base
            .replicas
            .quickest(base.replicas.in_sync())
            .and_then(|slot| base.replicas.get(slot))?;
        let session = child.session().filter(|_| child.is_local())?;
        self.bypass_reads += 1;
        Some(session)
    }

    /// A read that went around has ended; whether a stop may have waited for it.
    pub(crate) fn bypass_done(&mut self, base: &Replication) -> bool {
        self.bypass_reads = self.bypass_reads.saturating_sub(1);
        self.bypass_reads == 0 && base.service.is_stopping()
    }

    pub(super) fn advance_read(
        &mut self,
        base: &mut Replication,
        rebuilder: &mut Rebuilder,
        ticket: Ticket,
    ) {
        let Some(op) = self.ops.get(ticket) else { return };
        if op.answered.is_some() {
            return self.answer_read(base, rebuilder, ticket);
        }
        let (command, declined, fault) = (op.command, op.declined, op.fault);
        // R1
        if !may_read(base) {
            return;
        }
        // R2
        if let Some(span) = command.span() {
            let doubtful = base.log.doubtful(span);
            #[cfg(test)]
            let doubtful = if base.cx.broken == crate::tests::Broken::ReadInDoubt {
                alloc::vec::Vec::new()
            } else {
                doubtful
            };
            if !doubtful.is_empty() {
                rebuilder.hurry(doubtful);
                return self.await_resync(base, ticket);
            }
        }
        let Some(slot) = base.replicas.quickest(base.replicas.in_sync().without(declined)) else {
            // Every copy in sync has it wrong, or none is there.
            return match fault {
                Some(fault) if !declined.is_empty() && !base.replicas.in_sync().is_empty() => {
                    self.check_or_fail(base, rebuilder, ticket, fault);
                }
                _ => {}
            };
        };
        base.replicas.renew_lease(&mut base.cx);
        self.send(base, ticket, ChildSet::one(slot), command);
    }

    /// Ends a read whose answer is known, now or when every copy in sync has proved that nobody
    /// else owns the volume.
    fn answer_read(&mut self, base: &mut Replication, rebuilder: &mut Rebuilder, ticket: Ticket) {
        let Some(op) = self.ops.get(ticket) else { return };
        let (since, Some(result)) = (op.since, op.answered) else { return };
        if base.prove_since(since) {
            self.finish(base, rebuilder, ticket, result);
        }
    }

    /// Has the blocks of a read checked that no copy could answer, once.
    fn check_or_fail(
        &mut self,
        base: &mut Replication,
        rebuilder: &mut Rebuilder,
        ticket: Ticket,
        fault: IoError,
    ) {
        let may_help = |op: &&mut Op| {
            let is_long = op.command.span().is_some_and(|span| span.len().0 > 1);
            op.check.is_none() && (is_long || !op.unproven.is_empty())
        };
        let span = self.ops.get_mut(ticket).filter(may_help).and_then(|op| op.command.span());
        let Some(check) = span.and_then(|span| rebuilder.check_for_read(span)) else {
            return self.finish(base, rebuilder, ticket, Err(fault));
        };
        if let Some(op) = self.ops.get_mut(ticket) {
            (op.check, op.fault) = (Some(check), None);
            (op.unproven, op.declined) = (ChildSet::NONE, ChildSet::NONE);
        }
        self.await_resync(base, ticket);
        base.cx.rescan();
    }

    /// A read that waits for a comparison must not keep that from the blocks: it leaves the lane.
    fn await_resync(&mut self, base: &mut Replication, ticket: Ticket) {
        if let Some(op) = self.ops.get_mut(ticket) {
            op.granted = false;
            self.awaiting_resync.push(ticket);
            #[cfg(test)]
            if base.cx.broken == crate::tests::Broken::ReadInTheWay {
                return;
            }
            base.lane.leave(ticket);
        }
    }

    /// Lets reads back into the lane whose blocks are out of doubt, and all if they are to fail.
    pub(crate) fn pump_awaiting_resync(&mut self, base: &mut Replication, rebuilder: &Rebuilder) {
        let failing = base.service.terminal_error().is_some();
        for ticket in core::mem::take(&mut self.awaiting_resync) {
            let Some(op) = self.ops.get(ticket) else { continue };
            let (command, check) = (op.command, op.check);
            let waits = command.span().is_some_and(|span| base.log.in_doubt().touches(span))
                || check.is_some_and(|check| rebuilder.is_checking(check));
            if waits && !failing {
                self.awaiting_resync.push(ticket);
            } else {
                base.lane.enter(ticket, RangeAccess::of(command));
            }
        }
    }

    /// A copy has answered a read, or did not.
    pub(super) fn read_answered(
        &mut self,
        base: &mut Replication,
        rebuilder: &mut Rebuilder,
        ticket: Ticket,
        from: Pending,
        result: Completion,
    ) -> Verdict {
        let Some(op) = self.ops.get_mut(ticket) else { return Verdict::Fine };
        let bad = op.declined;
        match result {
            Ok(()) => {
                let took = base.cx.now().since(from.sent);
                if let Some(child) = base.replicas.get_mut(from.slot) {
                    child.took(took);
                }
                self.repair(base, rebuilder, ticket, bad);
                return Verdict::Fine;
            }
            Err(fault) => match fault.class() {
                ErrorClass::Medium | ErrorClass::Bug => {
                    op.declined.insert(from.slot);
                    op.fault = Some(fault);
                    if matches!(fault, IoError::Unproven { .. }) {
                        op.unproven.insert(from.slot);
                    }
                }
                ErrorClass::Path => {
                    return Verdict::Failed(ChildSet::one(from.slot), reason(fault));
                }
                ErrorClass::Caller | ErrorClass::Capacity | ErrorClass::Owner => {
                    op.answered = Some(Err(fault));
                    self.answer_read(base, rebuilder, ticket);
                    return Verdict::Fine;
                }
            },
        }
        self.advance(base, rebuilder, ticket)
    }

    /// Good bytes are in the host's buffer. Copies that had them wrong are checked block by block,
    /// and what is damaged there is rewritten; if too many checks are under way, a later read or
    /// scrub finds them.
    fn repair(
        &mut self,
        base: &mut Replication,
        rebuilder: &mut Rebuilder,
        ticket: Ticket,
        bad: ChildSet,
    ) {
        let is_bad = !bad.both(base.replicas.in_sync()).is_empty();
        let Some(op) = self.ops.get_mut(ticket) else { return };
        op.answered = Some(Ok(()));
        let span = op.command.span().filter(|_| is_bad);
        if span.and_then(|span| rebuilder.check_for_read(span)).is_some() {
            base.cx.rescan();
        }
        self.answer_read(base, rebuilder, ticket);
    }
}

fn may_read(base: &Replication) -> bool {
    #[cfg(test)]
    if base.cx.broken == crate::tests::Broken::ReadUnsettled {
        return base.service.is_open();
    }
    base.is_settled()
}
