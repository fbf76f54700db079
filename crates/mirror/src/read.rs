//! Reads: from the local copy or the quickest, elsewhere on error, and bad blocks are rewritten.
//!
//! Copies that had it wrong are checked when it has been answered (`check.rs`), under a claim of
//! their own: each damaged block is repaired.
//!
//! If no copy can give all of it, it leaves the lane while its blocks are checked one by one
//! (`check.rs`), and is tried once more: each block may be good on another copy, and one that was
//! being written when all copies crashed is proven by none.
//!
//! While nothing else is under way, a read of a local copy needs none of this, and goes around the
//! mirror ([`Mirror::try_bypass`]). If it fails, it comes back ([`Mirror::bypass_failed`]).

use block::{Command, Completion, ErrorClass, Instant, IoError, RangeAccess};

use crate::api::{CommandId, Session};
use crate::context::{Pending, Ticket};
use crate::mirror::Mirror;
use crate::replicas::{Child, ChildSet, ChildSlot, reason};
use crate::write::Op;

impl Mirror {
    /// The attachment that a read may be asked of at once, without a word to the mirror before it
    /// has ended ([`Mirror::bypass_done`]): that of a local copy in sync, if no command is under
    /// way that it might have to wait for (W2), and R1 and R2 hold. Later ones may overtake it.
    ///
    /// It may leave something to poll for ([`Mirror::is_stirred`]).
    pub fn try_bypass(&mut self, command: Command, now: Instant) -> Option<Session> {
        self.base.cx.pass(now);
        let Command::Read { span } = command else { return None };
        if !self.base.cx.is_steady() {
            return None;
        }
        let is_alone = self.base.lane.is_empty();
        #[cfg(test)]
        let is_alone = is_alone || self.base.cx.broken == crate::tests::Broken::AroundOthers;
        let must_wait = !is_alone
            || !self.paced.is_empty()
            || self.has_limits()
            || self.base.log.in_doubt().touches(span);
        let may_read = self.may_read() && self.base.holds_lease(now);
        if must_wait || !may_read || self.admit(command).is_err() {
            return None;
        }
        self.base.replicas.renew_lease(&mut self.base.cx);
        let child = self
            .base
            .replicas
            .quickest(self.base.replicas.in_sync())
            .and_then(|slot| self.base.replicas.get(slot))?;
        let session = child.session().filter(|_| child.is_local())?;
        self.bypass_reads += 1;
        Some(session)
    }

    /// Whether there is something to poll for.
    pub fn is_stirred(&self) -> bool {
        self.base.cx.has_effects()
    }

    /// A read that went around has ended; if it was answered well, [`Mirror::may_answer`] says
    /// whether its host may know; one that failed comes back next. Whether there is
    /// something to poll for.
    pub fn bypass_done(&mut self, now: Instant) -> bool {
        self.bypass_reads = self.bypass_reads.saturating_sub(1);
        let is_awaited = self.bypass_reads == 0 && self.base.service.is_stopping();
        if is_awaited {
            self.tick(now);
        }
        is_awaited
    }

    /// Takes a read whose copy could not be asked around, or failed: what that has wrong is read
    /// elsewhere and repaired, as if it had been asked by the mirror.
    pub fn bypass_failed(
        &mut self,
        token: CommandId,
        command: Command,
        from: (Session, IoError),
        now: Instant,
    ) {
        let (session, fault) = from;
        let mut op = Op::new(Some(token), command, now);
        let of_it = |(slot, child): (ChildSlot, &Child)| child.is_current(session).then_some(slot);
        if matches!(fault.class(), ErrorClass::Medium | ErrorClass::Bug)
            && let Some(slot) = self.base.replicas.iter().find_map(of_it)
        {
            op.declined.insert(slot);
            op.fault = Some(fault);
            if matches!(fault, IoError::Unproven { .. }) {
                op.unproven.insert(slot);
            }
        }
        self.take(op, now);
    }

    pub(crate) fn advance_read(&mut self, ticket: Ticket) {
        let Some(op) = self.ops.get(ticket) else { return };
        if op.answered.is_some() {
            return self.answer_read(ticket);
        }
        let (command, declined, fault) = (op.command, op.declined, op.fault);
        // R1
        if !self.may_read() {
            return;
        }
        // R2
        if let Some(span) = command.span() {
            let doubtful = self.base.log.doubtful(span);
            #[cfg(test)]
            let doubtful = if self.base.cx.broken == crate::tests::Broken::ReadInDoubt {
                alloc::vec::Vec::new()
            } else {
                doubtful
            };
            if !doubtful.is_empty() {
                self.rebuilder.hurry(doubtful);
                return self.await_resync(ticket);
            }
        }
        let Some(slot) =
            self.base.replicas.quickest(self.base.replicas.in_sync().without(declined))
        else {
            // Every copy in sync has it wrong, or none is there.
            return match fault {
                Some(fault) if !declined.is_empty() && !self.base.replicas.in_sync().is_empty() => {
                    self.check_or_fail(ticket, fault);
                }
                _ => {}
            };
        };
        self.base.replicas.renew_lease(&mut self.base.cx);
        self.send(ticket, ChildSet::one(slot), command);
    }

    /// Ends a read whose answer is known, now or when every copy in sync has proved that nobody
    /// else owns the volume.
    fn answer_read(&mut self, ticket: Ticket) {
        let Some(op) = self.ops.get(ticket) else { return };
        let (since, Some(result)) = (op.since, op.answered) else { return };
        if self.base.prove_since(since) {
            self.finish(ticket, result);
        }
    }

    /// Has the blocks of a read checked that no copy could answer, once.
    fn check_or_fail(&mut self, ticket: Ticket, fault: IoError) {
        let may_help = |op: &&mut Op| {
            let is_long = op.command.span().is_some_and(|span| span.len().0 > 1);
            op.check.is_none() && (is_long || !op.unproven.is_empty())
        };
        let span = self.ops.get_mut(ticket).filter(may_help).and_then(|op| op.command.span());
        let Some(check) = span.and_then(|span| self.rebuilder.check_for_read(span)) else {
            return self.finish(ticket, Err(fault));
        };
        if let Some(op) = self.ops.get_mut(ticket) {
            (op.check, op.fault) = (Some(check), None);
            (op.unproven, op.declined) = (ChildSet::NONE, ChildSet::NONE);
        }
        self.await_resync(ticket);
        self.base.cx.rescan();
    }

    /// A read that waits for a comparison must not keep that from the blocks: it leaves the lane.
    fn await_resync(&mut self, ticket: Ticket) {
        if let Some(op) = self.ops.get_mut(ticket) {
            op.granted = false;
            self.awaiting_resync.push(ticket);
            #[cfg(test)]
            if self.base.cx.broken == crate::tests::Broken::ReadInTheWay {
                return;
            }
            self.base.lane.leave(ticket);
        }
    }

    /// Lets reads back into the lane whose blocks are out of doubt, and all if they are to fail.
    pub(crate) fn pump_awaiting_resync(&mut self) {
        let failing = self.base.service.terminal_error().is_some();
        for ticket in core::mem::take(&mut self.awaiting_resync) {
            let Some(op) = self.ops.get(ticket) else { continue };
            let (command, check) = (op.command, op.check);
            let waits = command.span().is_some_and(|span| self.base.log.in_doubt().touches(span))
                || check.is_some_and(|check| self.rebuilder.is_checking(check));
            if waits && !failing {
                self.awaiting_resync.push(ticket);
            } else {
                self.base.lane.enter(ticket, RangeAccess::of(command));
            }
        }
    }

    fn may_read(&self) -> bool {
        #[cfg(test)]
        if self.base.cx.broken == crate::tests::Broken::ReadUnsettled {
            return self.base.service.is_open();
        }
        self.base.is_settled()
    }

    pub(crate) fn read_answered(&mut self, ticket: Ticket, from: Pending, result: Completion) {
        let Some(op) = self.ops.get_mut(ticket) else { return };
        let bad = op.declined;
        match result {
            Ok(()) => {
                let took = self.base.cx.now().since(from.sent);
                if let Some(child) = self.base.replicas.get_mut(from.slot) {
                    child.took(took);
                }
                return self.repair(ticket, bad);
            }
            Err(fault) => match fault.class() {
                ErrorClass::Medium | ErrorClass::Bug => {
                    op.declined.insert(from.slot);
                    op.fault = Some(fault);
                    if matches!(fault, IoError::Unproven { .. }) {
                        op.unproven.insert(from.slot);
                    }
                }
                ErrorClass::Path => self.fail(from.slot, reason(fault)),
                ErrorClass::Caller | ErrorClass::Capacity | ErrorClass::Owner => {
                    op.answered = Some(Err(fault));
                    return self.answer_read(ticket);
                }
            },
        }
        self.advance(ticket);
    }

    /// Good bytes are in the host's buffer. Copies that had them wrong are checked block by block,
    /// and what is damaged there is rewritten; if too many checks are under way, a later read or
    /// scrub finds them.
    fn repair(&mut self, ticket: Ticket, bad: ChildSet) {
        let is_bad = !bad.both(self.base.replicas.in_sync()).is_empty();
        let Some(op) = self.ops.get_mut(ticket) else { return };
        op.answered = Some(Ok(()));
        let span = op.command.span().filter(|_| is_bad);
        if span.and_then(|span| self.rebuilder.check_for_read(span)).is_some() {
            self.base.cx.rescan();
        }
        self.answer_read(ticket);
    }
}
