//! The command queue: commands of hosts from the moment that they come to their end.
//!
//! ```text
//!   limits ──► range queue (W2) ──┬─ read: one copy (R1, R2), another if it fails ──────┬──► Done
//!                                 └─ write, flush: marks (W3) ──► write targets (W1) ───┘
//!       in doubt, or nobody could answer: the read leaves the range queue until that is settled
//! ```
//!
//! Invariant: a command is in the range queue from when its limits let it go until it ends, but for
//! a read that waits for a comparison: that may need the same blocks.
//!
//! `write.rs` has writes and flushes, `read.rs` reads. Deliberately not here: failing a child,
//! which concerns rebuilds as well. An answer may say so ([`Verdict`]); the command goes on
//! ([`CommandQueue::advance`]) when that is done.

mod op;
mod read;
mod write;

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use block::{Command, Completion, ErrorClass, Instant, IoError, RangeAccess, SequenceMap};
use model::QosLimits;

use crate::api::{Buffer, Effect};
use crate::context::{Pending, Purpose, Ticket, Verdict};
use crate::rebuilder::Rebuilder;
use crate::replicas::{Asked, ChildSet, ChildSlot, reason};
use crate::replication::Replication;
use crate::token_bucket::TokenBucket;

pub(crate) use op::Op;
use op::moves_bytes;

/// What hosts may ask in a second.
#[derive(Debug)]
struct Limits {
    iops: TokenBucket,
    bytes: TokenBucket,
}

/// Commands of hosts, and our own flush.
#[derive(Debug)]
pub(crate) struct CommandQueue {
    ops: SequenceMap<Op>,
    /// Commands that wait for their limits, in order.
    paced: VecDeque<Ticket>,
    limits: Limits,
    /// Commands that had to wait for them.
    throttled: u64,
    /// Reads that wait until their blocks are out of doubt, or checked.
    awaiting_resync: Vec<Ticket>,
    /// How many reads go around it, see [`CommandQueue::try_bypass`].
    bypass_reads: usize,
    own_flush: Option<Ticket>,
}

impl CommandQueue {
    pub(crate) fn new(limits: QosLimits, now: Instant) -> CommandQueue {
        let QosLimits { iops, bytes_per_second } = limits;
        CommandQueue {
            ops: SequenceMap::default(),
            paced: VecDeque::new(),
            limits: Limits {
                iops: TokenBucket::new(iops, now),
                bytes: TokenBucket::new(bytes_per_second.map(|size| size.bytes().0), now),
            },
            throttled: 0,
            awaiting_resync: Vec::new(),
            bypass_reads: 0,
            own_flush: None,
        }
    }

    pub(crate) fn set_limits(&mut self, limits: QosLimits, now: Instant) {
        let QosLimits { iops, bytes_per_second } = limits;
        self.limits.iops.set(iops, now);
        self.limits.bytes.set(bytes_per_second.map(|size| size.bytes().0), now);
    }

    /// How many commands had to wait for their limits.
    pub(crate) fn throttled(&self) -> u64 {
        self.throttled
    }

    /// Whether nothing is under way, reads around the mirror among it.
    pub(crate) fn is_drained(&self) -> bool {
        self.ops.is_empty() && self.bypass_reads == 0
    }

    /// Whether a read waits for something else than copies and other commands.
    pub(crate) fn awaits_resync(&self) -> bool {
        !self.awaiting_resync.is_empty()
    }

    pub(crate) fn is_flushing(&self) -> bool {
        self.own_flush.is_some()
    }

    /// When commands may go on whose children were busy.
    pub(crate) fn busy_until(&self) -> impl Iterator<Item = Instant> {
        self.ops.iter().filter_map(|(_, op)| op.not_before)
    }

    /// When the next command may go that waits for its limits.
    pub(crate) fn timeout(&self) -> Option<Instant> {
        let opens = [self.limits.iops.opens(), self.limits.bytes.opens()];
        opens.into_iter().flatten().min().filter(|_| !self.paced.is_empty())
    }

    /// Commands that may go on without an answer.
    pub(crate) fn stuck(&self) -> Vec<Ticket> {
        self.ops.those(|op| op.granted && op.outstanding.is_empty())
    }

    /// A child gets no more writes: whatever it has done does not count.
    pub(crate) fn child_left(&mut self, slot: ChildSlot) {
        for op in self.ops.values_mut() {
            op.done.remove(slot);
            op.declined.remove(slot);
            op.again.remove(slot);
        }
    }

    /// Whether a command is taken now.
    pub(crate) fn admit(&self, base: &Replication, command: Command) -> Result<(), IoError> {
        command.check(base.cx.geometry())?;
        if let Some(fault) = base.service.terminal_error() {
            return Err(fault);
        }
        if base.service.is_stopping() {
            return Err(IoError::Unreachable);
        }
        if self.ops.len() + self.bypass_reads >= base.cx.config().commands {
            return Err(IoError::Busy);
        }
        Ok(())
    }

    /// Lets a command run that nothing in the range queue is before any more; whether it is one.
    pub(crate) fn granted(&mut self, ticket: Ticket) -> bool {
        let Some(op) = self.ops.get_mut(ticket) else { return false };
        op.granted = true;
        true
    }

    /// Takes a command; it goes when its limits let it.
    pub(crate) fn enter(&mut self, base: &mut Replication, rebuilder: &mut Rebuilder, op: Op) {
        self.queue(base, rebuilder, op);
    }

    fn queue(&mut self, base: &mut Replication, rebuilder: &mut Rebuilder, mut op: Op) -> Ticket {
        let ticket = base.cx.next_ticket();
        op.since = base.cx.last_request();
        if op.token.is_some() {
            rebuilder.host_came(base.cx.now());
        }
        self.ops.insert(ticket, op);
        self.paced.push_back(ticket);
        ticket
    }

    fn has_limits(&self) -> bool {
        self.limits.iops.is_limited() || self.limits.bytes.is_limited()
    }

    /// Lets commands go as their limits say, in the order they came.
    pub(crate) fn pump_pace(&mut self, base: &mut Replication) {
        while let Some(ticket) = self.paced.front().copied() {
            let Some(op) = self.ops.get(ticket) else {
                self.paced.pop_front();
                continue;
            };
            let (command, ours, came) = (op.command, op.token.is_none(), op.started);
            let Limits { iops, bytes } = &mut self.limits;
            let open = iops.is_open(base.cx.now()) & bytes.is_open(base.cx.now());
            if !open && !ours && base.service.terminal_error().is_none() {
                return;
            }
            self.paced.pop_front();
            if !ours {
                self.throttled += u64::from(came < base.cx.now());
                let Limits { iops, bytes } = &mut self.limits;
                iops.take(1);
                let blocks = command.span().filter(|_| moves_bytes(command));
                let bytes_of =
                    |span: block::Span| base.cx.geometry().block_size().bytes_of(span.len());
                bytes.take(blocks.and_then(bytes_of).map_or(0, |bytes| bytes.0));
            }
            let claim = RangeAccess::of(command);
            #[cfg(test)]
            let claim = if base.cx.broken == crate::tests::Broken::NoOrder {
                RangeAccess::Free
            } else {
                claim
            };
            base.lane.enter(ticket, claim);
        }
    }

    /// A flush of our own, so that marks can go.
    pub(crate) fn flush_ourselves(&mut self, base: &mut Replication, rebuilder: &mut Rebuilder) {
        let ticket = self.queue(base, rebuilder, Op::new(None, Command::Flush, base.cx.now()));
        self.own_flush = Some(ticket);
        base.cx.rescan();
    }

    /// Does what can be done for a command that waits for nobody's answer.
    pub(crate) fn advance(
        &mut self,
        base: &mut Replication,
        rebuilder: &mut Rebuilder,
        ticket: Ticket,
    ) -> Verdict {
        let Some(op) = self.ops.get(ticket) else { return Verdict::Fine };
        if !op.outstanding.is_empty() {
            return Verdict::Fine;
        }
        if let Some(fault) = base.service.terminal_error() {
            self.finish(base, rebuilder, ticket, Err(fault));
            return Verdict::Fine;
        }
        if op.not_before.is_some_and(|at| at > base.cx.now()) {
            return Verdict::Fine;
        }
        if op.is_read() {
            self.advance_read(base, rebuilder, ticket);
        } else if op.begun {
            return self.advance_write(base, rebuilder, ticket);
        } else {
            self.begin(base, ticket);
        }
        Verdict::Fine
    }

    /// A child has answered a command.
    pub(crate) fn answered(
        &mut self,
        base: &mut Replication,
        rebuilder: &mut Rebuilder,
        ticket: Ticket,
        from: Pending,
        result: Completion,
    ) -> Verdict {
        let most = base.cx.config().busy.1;
        let Some(op) = self.ops.get_mut(ticket) else { return Verdict::Fine };
        op.outstanding.remove(from.slot);
        let is_read = op.is_read();
        if let Err(fault) = result
            && fault.class() == ErrorClass::Owner
        {
            return Verdict::Fenced;
        }
        let child = base.replicas.get(from.slot);
        if !child.is_some_and(|child| child.is_current(from.session)) {
            // It was given up meanwhile; whatever it says now proves nothing.
            return self.advance(base, rebuilder, ticket);
        }
        let Some(op) = self.ops.get_mut(ticket) else { return Verdict::Fine };
        match result {
            Err(IoError::Busy) if op.busy < most => {
                op.busy += 1;
                op.again.insert(from.slot);
                let later = base.cx.later();
                if let Some(op) = self.ops.get_mut(ticket) {
                    op.not_before = Some(later);
                }
            }
            _ if is_read => return self.read_answered(base, rebuilder, ticket, from, result),
            Ok(()) => op.done.insert(from.slot),
            Err(fault) if matches!(fault.class(), ErrorClass::Caller | ErrorClass::Capacity) => {
                op.declined.insert(from.slot);
                op.fault = Some(fault);
            }
            Err(fault) => {
                return Verdict::Failed(ChildSet::one(from.slot), reason(fault));
            }
        }
        self.advance(base, rebuilder, ticket)
    }

    /// Sends a command to children.
    fn send(&mut self, base: &mut Replication, ticket: Ticket, to: ChildSet, command: Command) {
        let Some(token) = self.ops.get(ticket).map(|op| op.token) else { return };
        let buffer = match token {
            Some(token) if moves_bytes(command) => Buffer::Host(token),
            _ => Buffer::None,
        };
        for slot in to.iter() {
            let Some(Asked { io, child, session }) = base.ask(slot, Purpose::Op(ticket)) else {
                continue;
            };
            base.cx.emit(Effect::Io { io, child, session, command, buffer });
            if let Some(op) = self.ops.get_mut(ticket) {
                op.outstanding.insert(slot);
            }
        }
    }

    /// Ends a command.
    fn finish(
        &mut self,
        base: &mut Replication,
        rebuilder: &mut Rebuilder,
        ticket: Ticket,
        result: Completion,
    ) {
        let Some(op) = self.ops.remove(ticket) else { return };
        let mut result = result;
        if let Some(span) = op.command.span().filter(|_| op.begun && !op.is_read()) {
            base.log.end_write(span, base.cx.now());
            if result.is_err() {
                // Some copies may have it, others not.
                let regions = base.log.regions_of(span);
                base.doubt(&regions);
                rebuilder.redo(&regions);
            }
        }
        if op.command == Command::Flush && result.is_ok() {
            base.log.flushed(op.flush);
            if op.token.is_some() && base.replicas.take_lost() {
                result = Err(IoError::Medium { span: base.cx.geometry().span() });
            }
        }
        if self.own_flush == Some(ticket) {
            self.own_flush = None;
            base.log.sweep_now(base.cx.now());
        }
        if op.token.is_some() {
            rebuilder.host_ended(&base.cx, op.started);
        }
        base.lane.leave(ticket);
        base.cx.done(op.token, result);
        if base.service.is_stopping() {
            base.cx.rescan();
        }
    }
}
