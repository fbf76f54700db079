//! Writes and flushes: to every child that takes writes, acknowledged by every copy in sync.
//!
//! ```text
//!   limits ──► queue (W2) ──► marks (W3) ──► all targets ──► `required_acks` have it (W1) ──► Done
//!                                                ▲              │
//!                                                └── again ◄────┘ a copy in sync came back
//! ```

use block::{Command, CommandKind, Completion, ErrorClass, Instant, IoError, RangeAccess};
use model::FaultReason;

use crate::api::{Buffer, CommandId, Effect};
use crate::context::{Pending, Purpose, Ticket};
use crate::mirror::Mirror;
use crate::replicas::{Asked, ChildSet, reason};

/// A command under way.
#[derive(Debug)]
pub(crate) struct Op {
    /// Whose it is; ours if nobody's.
    pub(crate) token: Option<CommandId>,
    pub(crate) command: Command,
    pub(crate) started: Instant,
    /// Nothing that came before conflicts with it.
    pub(crate) granted: bool,
    /// It was sent to children; of a change, its regions are open.
    pub(crate) begun: bool,
    pub(crate) outstanding: ChildSet,
    /// Children that have completed it since they were last attached.
    pub(crate) done: ChildSet,
    /// Children that refused a change, or hold bad blocks where a read wants to look.
    pub(crate) declined: ChildSet,
    pub(crate) fault: Option<IoError>,
    /// Children that hold blocks of a read without proof.
    pub(crate) unproven: ChildSet,
    /// A read waits or has waited for this check.
    pub(crate) check: Option<u64>,
    /// How a read ends, once that may be said (R1).
    pub(crate) answered: Option<Completion>,
    /// The last I/O that was named before it came.
    pub(crate) since: u64,
    pub(crate) not_before: Option<Instant>,
    pub(crate) busy: u32,
    /// Children that were busy.
    pub(crate) again: ChildSet,
    /// When a flush was sent, by the count of the dirty maps.
    pub(crate) flush: u64,
}

impl Op {
    pub(crate) fn new(token: Option<CommandId>, command: Command, started: Instant) -> Op {
        Op {
            token,
            command,
            started,
            granted: false,
            begun: false,
            outstanding: ChildSet::NONE,
            done: ChildSet::NONE,
            declined: ChildSet::NONE,
            fault: None,
            unproven: ChildSet::NONE,
            check: None,
            answered: None,
            since: 0,
            not_before: None,
            busy: 0,
            again: ChildSet::NONE,
            flush: 0,
        }
    }

    fn is_read(&self) -> bool {
        matches!(self.command.kind(), CommandKind::Read | CommandKind::Compare)
    }
}

impl Mirror {
    /// Takes a command; it goes when its limits let it.
    pub(crate) fn enter(&mut self, mut op: Op) -> Ticket {
        let ticket = self.base.cx.next_ticket();
        op.since = self.base.cx.last_request();
        if op.token.is_some() {
            self.rebuilder.host_came(self.base.cx.now());
        }
        self.ops.insert(ticket, op);
        self.paced.push_back(ticket);
        ticket
    }

    pub(crate) fn has_limits(&self) -> bool {
        self.buckets.0.is_limited() || self.buckets.1.is_limited()
    }

    /// Lets commands go as their limits say, in the order they came.
    pub(crate) fn pump_pace(&mut self) {
        while let Some(ticket) = self.paced.front().copied() {
            let Some(op) = self.ops.get(ticket) else {
                self.paced.pop_front();
                continue;
            };
            let (command, ours, came) = (op.command, op.token.is_none(), op.started);
            let (iops, bytes) = &mut self.buckets;
            let open = iops.is_open(self.base.cx.now()) & bytes.is_open(self.base.cx.now());
            if !open && !ours && self.base.service.terminal_error().is_none() {
                return;
            }
            self.paced.pop_front();
            if !ours {
                self.throttled += u64::from(came < self.base.cx.now());
                let (iops, bytes) = &mut self.buckets;
                iops.take(1);
                let blocks = command.span().filter(|_| moves_bytes(command));
                let bytes_of =
                    |span: block::Span| self.base.cx.geometry().block_size().bytes_of(span.len());
                bytes.take(blocks.and_then(bytes_of).map_or(0, |bytes| bytes.0));
            }
            let claim = RangeAccess::of(command);
            #[cfg(test)]
            let claim = if self.base.cx.broken == crate::tests::Broken::NoOrder {
                RangeAccess::Free
            } else {
                claim
            };
            self.base.lane.enter(ticket, claim);
        }
    }

    /// A flush of our own, so that marks can go.
    pub(crate) fn flush_ourselves(&mut self) {
        let ticket = self.enter(Op::new(None, Command::Flush, self.base.cx.now()));
        self.own_flush = Some(ticket);
        self.base.cx.rescan();
    }

    /// Does what can be done for a command that waits for nobody's answer.
    pub(crate) fn advance(&mut self, ticket: Ticket) {
        let Some(op) = self.ops.get(ticket) else { return };
        if !op.outstanding.is_empty() {
            return;
        }
        if let Some(fault) = self.base.service.terminal_error() {
            return self.finish(ticket, Err(fault));
        }
        if op.not_before.is_some_and(|at| at > self.base.cx.now()) {
            return;
        }
        if op.is_read() {
            self.advance_read(ticket);
        } else if op.begun {
            self.advance_write(ticket);
        } else {
            self.begin(ticket);
        }
    }

    /// Sends a change or a flush for the first time.
    fn begin(&mut self, ticket: Ticket) {
        let Some(command) = self.ops.get(ticket).map(|op| op.command) else { return };
        // W3: a copy that is away and may still be called in sync has no mark of this. It could not
        // be acknowledged before that is recorded anyway.
        if !self.may_begin()
            || self.base.replicas.in_sync().is_empty()
            || self.flush_must_wait(command)
        {
            return;
        }
        if let Some(span) = command.span() {
            let base = &mut self.base;
            if !base.log.begin_write(&mut base.cx, &base.replicas, span) {
                return;
            }
        }
        let flush = self.base.log.flush_begins();
        if let Some(op) = self.ops.get_mut(ticket) {
            (op.begun, op.flush) = (true, flush);
        }
        self.send(ticket, self.base.replicas.write_targets(), command);
    }

    fn may_begin(&self) -> bool {
        #[cfg(test)]
        if self.base.cx.broken == crate::tests::Broken::MarkedUnsettled {
            return self.base.service.is_open();
        }
        self.base.is_settled()
    }

    /// **F1** A flush promises that every copy in sync has what was acknowledged. Where they may
    /// differ that is not so before they were compared.
    fn flush_must_wait(&self, command: Command) -> bool {
        #[cfg(test)]
        if self.base.cx.broken == crate::tests::Broken::FlushInDoubt {
            return false;
        }
        command == Command::Flush && !self.base.log.in_doubt().is_empty()
    }

    /// Ends a change or a flush if it may end, or sends it where it is missing.
    fn advance_write(&mut self, ticket: Ticket) {
        self.judge_refusals(ticket);
        let Some(op) = self.ops.get(ticket) else { return };
        let missing = self.base.replicas.required_acks().without(op.done);
        // Those that were busy, and a copy that was away as the last one and came back.
        let again = missing.either(op.again).both(self.base.replicas.write_targets());
        let command = op.command;
        if missing.is_empty() && again.is_empty() {
            return self.finish(ticket, Ok(()));
        }
        if let Some(op) = self.ops.get_mut(ticket) {
            op.again = ChildSet::NONE;
        }
        if !again.is_empty() {
            self.send(ticket, again, command);
        }
    }

    /// A refusal of all is the answer; a refusal of some is their failure.
    fn judge_refusals(&mut self, ticket: Ticket) {
        let Some(op) = self.ops.get_mut(ticket) else { return };
        let (declined, done) = (core::mem::take(&mut op.declined), op.done);
        let Some(fault) = op.fault.filter(|_| !declined.is_empty()) else { return };
        let in_sync = self.base.replicas.in_sync();
        if in_sync.without(declined).is_empty() && !in_sync.is_empty() {
            return self.finish(ticket, Err(fault));
        }
        if done.both(in_sync).is_empty() {
            // The others have not answered: they decide.
            if let Some(op) = self.ops.get_mut(ticket) {
                op.declined = declined;
            }
            return;
        }
        let reason = match fault.class() {
            ErrorClass::Capacity => FaultReason::NoSpace,
            _ => FaultReason::IoError,
        };
        declined.iter().for_each(|slot| self.fail(slot, reason));
    }

    /// Sends a command to children.
    pub(crate) fn send(&mut self, ticket: Ticket, to: ChildSet, command: Command) {
        let Some(token) = self.ops.get(ticket).map(|op| op.token) else { return };
        let buffer = match token {
            Some(token) if moves_bytes(command) => Buffer::Host(token),
            _ => Buffer::None,
        };
        for slot in to.iter() {
            let Some(Asked { io, child, session }) = self.base.ask(slot, Purpose::Op(ticket))
            else {
                continue;
            };
            self.base.cx.emit(Effect::Io { io, child, session, command, buffer });
            if let Some(op) = self.ops.get_mut(ticket) {
                op.outstanding.insert(slot);
            }
        }
    }

    /// A child has answered a command.
    pub(crate) fn op_answered(&mut self, ticket: Ticket, from: Pending, result: Completion) {
        let most = self.base.cx.config().busy.1;
        let Some(op) = self.ops.get_mut(ticket) else { return };
        op.outstanding.remove(from.slot);
        let is_read = op.is_read();
        if let Err(fault) = result
            && fault.class() == ErrorClass::Owner
        {
            return self.fenced();
        }
        let child = self.base.replicas.get(from.slot);
        if !child.is_some_and(|child| child.is_current(from.session)) {
            // It was given up meanwhile; whatever it says now proves nothing.
            return self.advance(ticket);
        }
        let Some(op) = self.ops.get_mut(ticket) else { return };
        match result {
            Err(IoError::Busy) if op.busy < most => {
                op.busy += 1;
                op.again.insert(from.slot);
                let later = self.base.cx.later();
                if let Some(op) = self.ops.get_mut(ticket) {
                    op.not_before = Some(later);
                }
            }
            _ if is_read => return self.read_answered(ticket, from, result),
            Ok(()) => op.done.insert(from.slot),
            Err(fault) if matches!(fault.class(), ErrorClass::Caller | ErrorClass::Capacity) => {
                op.declined.insert(from.slot);
                op.fault = Some(fault);
            }
            Err(fault) => self.fail(from.slot, reason(fault)),
        }
        self.advance(ticket);
    }

    /// Ends a command.
    pub(crate) fn finish(&mut self, ticket: Ticket, result: Completion) {
        let Some(op) = self.ops.remove(ticket) else { return };
        let mut result = result;
        if let Some(span) = op.command.span().filter(|_| op.begun && !op.is_read()) {
            self.base.log.end_write(span, self.base.cx.now());
            if result.is_err() {
                // Some copies may have it, others not.
                let regions = self.base.log.regions_of(span);
                self.mark_for_resync(&regions);
            }
        }
        if op.command == Command::Flush && result.is_ok() {
            self.base.log.flushed(op.flush);
            if op.token.is_some() && self.base.replicas.take_lost() {
                result = Err(IoError::Medium { span: self.base.cx.geometry().span() });
            }
        }
        if self.own_flush == Some(ticket) {
            self.own_flush = None;
            self.base.log.sweep_now(self.base.cx.now());
        }
        if op.token.is_some() {
            self.rebuilder.host_ended(&self.base.cx, op.started);
        }
        self.base.lane.leave(ticket);
        self.base.cx.done(op.token, result);
        if self.base.service.is_stopping() {
            self.base.cx.rescan();
        }
    }

    /// Copies in sync may differ in these regions; others are not to rely on them either.
    pub(crate) fn mark_for_resync(&mut self, regions: &model::RegionSet) {
        self.base.doubt(regions);
        self.rebuilder.redo(regions);
    }
}

fn moves_bytes(command: Command) -> bool {
    matches!(command.kind(), CommandKind::Read | CommandKind::Write | CommandKind::Compare)
}
