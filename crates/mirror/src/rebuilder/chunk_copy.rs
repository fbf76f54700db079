//! Copying one chunk from a copy in sync to others, under a claim on the lane.
//!
//! ```text
//!   rebuild:  which blocks are written? ──► read ──► write ──► compare, if wanted ──► next piece
//!                      └─ hole ──► write zeroes and deallocate ─────────────────────────┘
//!   resync:   read ──► compare ──► write where it differs
//!   check:    read ──► compare ──► write where it is damaged
//! ```
//!
//! Where the piece comes from, if a source cannot read it: `source.rs`.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use block::{Command, ErrorClass, IoError, RangeAccess, Span};
use model::FaultReason;

use super::Rebuilder;
use super::check::{is_damage, may_check};
use super::chunk::{ChunkCopy, CopyPurpose, Step, pieces};
use crate::api::{Answer, Buffer, Effect};
use crate::context::{Pending, Purpose, Ticket, Verdict};
use crate::replicas::{Asked, ChildSet, ChildSlot, reason};
use crate::replication::Replication;

impl Rebuilder {
    pub(super) fn start_copy(
        &mut self,
        base: &mut Replication,
        whose: CopyPurpose,
        region: u64,
        span: Span,
    ) {
        let Some(buffer) = self.free_buffers.pop() else { return };
        let ticket = base.cx.next_ticket();
        let copy = ChunkCopy {
            whose,
            region,
            span,
            buffer,
            source: None,
            bad: ChildSet::NONE,
            unproven: ChildSet::NONE,
            believed: ChildSet::NONE,
            is_kept: false,
            needy: ChildSet::NONE,
            differing: ChildSet::NONE,
            damaged: ChildSet::NONE,
            outstanding: ChildSet::NONE,
            pieces: VecDeque::new(),
            step: Step::Queued,
            dropped: false,
            not_before: None,
            moved: 0,
            open: false,
        };
        self.copies.insert(ticket, copy);
        // W2: a copy is a write like any other.
        let claim = RangeAccess::Write(span);
        #[cfg(test)]
        let claim = if base.cx.broken == crate::tests::Broken::CopyUnlocked {
            RangeAccess::Free
        } else {
            claim
        };
        base.lane.enter(ticket, claim);
    }

    pub(crate) fn granted(&mut self, base: &mut Replication, ticket: Ticket) {
        let Some(copy) = self.copies.get_mut(&ticket) else { return };
        copy.step = Step::Ready;
        self.advance_copy(base, ticket);
    }

    /// Does the next step of a copy that waits for no answer.
    pub(crate) fn advance_copy(&mut self, base: &mut Replication, ticket: Ticket) {
        let Some(copy) = self.copies.get(&ticket) else { return };
        if !copy.outstanding.is_empty() {
            return;
        }
        if copy.dropped || base.service.is_down() || copy.whose.dests(base).is_empty() {
            return self.end_copy(base, ticket, false);
        }
        if copy.not_before.is_some_and(|at| at > base.cx.now()) {
            return;
        }
        match copy.step {
            Step::Queued => {}
            Step::Ready => self.map(base, ticket),
            Step::Mapping => self.next_piece(base, ticket),
            Step::Reading | Step::Accepting | Step::Comparing | Step::Writing | Step::Verifying => {
                self.go_on(base, ticket);
            }
        }
    }

    /// Asks a source what of the chunk is written.
    fn map(&mut self, base: &mut Replication, ticket: Ticket) {
        let Some(copy) = self.copies.get(&ticket) else { return };
        let (whose, span, none_left) = (copy.whose, copy.span, !copy.bad.is_empty());
        let may_go = match whose {
            CopyPurpose::Rebuild(_) => true,
            CopyPurpose::Resync => self.open_resync(base, ticket, span),
            CopyPurpose::Check(_) => may_check(base, span),
        };
        if !may_go {
            return self.end_copy(base, ticket, false);
        }
        let Some(source) = self.pick_source(base, ticket) else {
            if none_left {
                self.unreadable(base, ticket, whose);
            } else {
                self.end_copy(base, ticket, false);
            }
            return;
        };
        if !matches!(whose, CopyPurpose::Rebuild(_)) {
            if let Some(copy) = self.copies.get_mut(&ticket) {
                copy.pieces = VecDeque::from([(span, true)]);
            }
            return self.next_piece(base, ticket);
        }
        let Some(Asked { io, child, session }) = base.ask(source, Purpose::Copy(ticket)) else {
            return;
        };
        base.cx.emit(Effect::Written { io, child, session, span });
        self.sent(ticket, source, Step::Mapping);
    }

    /// A resync writes to copies in sync: as with any write, its regions are marked and open.
    fn open_resync(&mut self, base: &mut Replication, ticket: Ticket, span: Span) -> bool {
        let Some(copy) = self.copies.get_mut(&ticket) else { return false };
        if copy.open {
            return true;
        }
        copy.open = base.log.begin_resync(&base.replicas, copy.region, span);
        self.copies.get(&ticket).is_some_and(|copy| copy.open) && base.is_settled()
    }

    pub(super) fn sent(&mut self, ticket: Ticket, slot: ChildSlot, step: Step) {
        if let Some(copy) = self.copies.get_mut(&ticket) {
            copy.outstanding.insert(slot);
            copy.step = step;
        }
    }

    /// Begins the next piece, or ends.
    fn next_piece(&mut self, base: &mut Replication, ticket: Ticket) {
        let Some(copy) = self.copies.get(&ticket) else { return };
        let Some((_, written)) = copy.pieces.front().copied() else {
            return self.end_copy(base, ticket, true);
        };
        self.all_need(base, ticket);
        if written { self.read_piece(base, ticket) } else { self.write_piece(base, ticket) }
    }

    /// Everybody but the source needs the piece; of a rebuild also those that could not read it.
    pub(super) fn all_need(&mut self, base: &mut Replication, ticket: Ticket) {
        let Some(copy) = self.copies.get(&ticket) else { return };
        let source = copy.source.map_or(ChildSet::NONE, ChildSet::one);
        let bad = copy.bad.both(base.replicas.in_sync());
        let needy = copy.whose.dests(base).either(bad).without(source);
        if let Some(copy) = self.copies.get_mut(&ticket) {
            copy.needy = needy;
        }
    }

    /// A piece is where it should be, or nowhere.
    pub(super) fn piece_done(&mut self, base: &mut Replication, ticket: Ticket) {
        let Some(copy) = self.copies.get_mut(&ticket) else { return };
        copy.pieces.pop_front();
        let had_bad = !copy.bad.is_empty();
        copy.forget_piece();
        if had_bad {
            self.pick_source(base, ticket);
        }
        self.next_piece(base, ticket);
    }

    pub(super) fn read_piece(&mut self, base: &mut Replication, ticket: Ticket) {
        let Some(copy) = self.copies.get(&ticket) else { return };
        let Some((span, _)) = copy.pieces.front().copied() else { return };
        let source = copy.source.filter(|slot| base.replicas.in_sync().contains(*slot));
        match source {
            Some(source) => {
                self.piece_io(
                    base,
                    ticket,
                    ChildSet::one(source),
                    Command::Read { span },
                    Step::Reading,
                );
            }
            None => self.restart(base, ticket),
        }
    }

    pub(super) fn write_piece(&mut self, base: &mut Replication, ticket: Ticket) {
        let Some(copy) = self.copies.get(&ticket) else { return };
        let Some((span, written)) = copy.pieces.front().copied() else { return };
        // What a check makes of a block is in no mark: no flush of ours would cover it.
        let fua = matches!(copy.whose, CopyPurpose::Check(_));
        let command = if written {
            Command::Write { span, fua }
        } else {
            Command::WriteZeroes { span, fua, deallocate: true }
        };
        let needy = copy.needy.both(base.replicas.write_targets());
        // Only a check knows that all copies should hold the same: a repair is written where the
        // block is, also in a layer that snapshots share, and must be what that layer should hold.
        let is_known = matches!(copy.whose, CopyPurpose::Check(_)) && written && span.len().0 == 1;
        let damaged = if is_known { copy.damaged() } else { ChildSet::NONE };
        let damaged = needy.both(damaged);
        #[cfg(test)]
        let damaged = match base.cx.broken {
            crate::tests::Broken::RepairByWriting => ChildSet::NONE,
            _ => damaged,
        };
        self.repair_piece(base, ticket, damaged, span);
        let is_waiting = self.copies.get(&ticket).is_some_and(|copy| !copy.outstanding.is_empty());
        if !is_waiting || !needy.without(damaged).is_empty() {
            self.piece_io(base, ticket, needy.without(damaged), command, Step::Writing);
        }
    }

    /// Rewrites a block on copies that have it damaged. It is no write like any other: if it is
    /// interrupted, a block that went bad must not pass for one that was being written.
    fn repair_piece(
        &mut self,
        base: &mut Replication,
        ticket: Ticket,
        damaged: ChildSet,
        span: Span,
    ) {
        let Some(buffer) = self.copies.get(&ticket).map(|copy| copy.buffer) else { return };
        for slot in damaged.iter() {
            let Some(Asked { io, child, session }) = base.ask(slot, Purpose::Copy(ticket)) else {
                continue;
            };
            let (at, buffer) = (span.start(), Buffer::Copy(buffer));
            base.cx.emit(Effect::Repair { io, child, session, at, buffer });
            self.sent(ticket, slot, Step::Writing);
        }
    }

    fn compare_piece(&mut self, base: &mut Replication, ticket: Ticket, step: Step) {
        let Some(copy) = self.copies.get(&ticket) else { return };
        let Some((span, _)) = copy.pieces.front().copied() else { return };
        let needy = copy.needy.both(base.replicas.write_targets());
        self.piece_io(base, ticket, needy, Command::Compare { span }, step);
    }

    fn piece_io(
        &mut self,
        base: &mut Replication,
        ticket: Ticket,
        to: ChildSet,
        command: Command,
        step: Step,
    ) {
        let Some(copy) = self.copies.get_mut(&ticket) else { return };
        copy.step = step;
        let buffer = match command {
            Command::WriteZeroes { .. } => Buffer::None,
            _ => Buffer::Copy(copy.buffer),
        };
        if let Command::Write { span, .. } = command {
            copy.moved += span.len().0;
        }
        if to.is_empty() {
            return self.go_on(base, ticket);
        }
        for slot in to.iter() {
            let Some(Asked { io, child, session }) = base.ask(slot, Purpose::Copy(ticket)) else {
                continue;
            };
            base.cx.emit(Effect::Io { io, child, session, command, buffer });
            self.sent(ticket, slot, step);
        }
    }

    /// All answers of a step are in.
    fn go_on(&mut self, base: &mut Replication, ticket: Ticket) {
        let Some(copy) = self.copies.get_mut(&ticket) else { return };
        let written = copy.pieces.front().is_some_and(|(_, written)| *written);
        match (copy.step, copy.whose) {
            (Step::Reading, CopyPurpose::Resync | CopyPurpose::Check(_)) => {
                // Whoever has the same bytes needs nothing: a hole stays a hole.
                self.compare_piece(base, ticket, Step::Comparing);
            }
            (Step::Comparing, CopyPurpose::Check(check)) => self.judge_piece(base, ticket, check),
            // One bad block is told, and no other.
            (Step::Comparing, CopyPurpose::Resync) if !copy.damaged.is_empty() && copy.split() => {
                self.all_need(base, ticket);
                self.read_piece(base, ticket);
            }
            (Step::Reading, CopyPurpose::Rebuild(_)) | (Step::Comparing, _) => {
                self.write_piece(base, ticket);
            }
            (Step::Accepting, _) => self.read_piece(base, ticket),
            (Step::Writing, CopyPurpose::Rebuild(_)) if base.cx.config().verify && written => {
                self.compare_piece(base, ticket, Step::Verifying);
            }
            (Step::Writing | Step::Verifying, _) => {
                self.piece_done(base, ticket);
            }
            _ => {}
        }
    }

    /// Begins the chunk again, from whoever is there.
    fn restart(&mut self, base: &mut Replication, ticket: Ticket) {
        if let Some(copy) = self.copies.get_mut(&ticket) {
            copy.pieces.clear();
            copy.step = Step::Ready;
            copy.forget_piece();
        }
        self.map(base, ticket);
    }

    /// Copies that were compared and do not have the piece: split into blocks if there are several.
    /// Else: those that hold something else, and those whose bytes are damaged.
    pub(super) fn found_in_piece(
        &mut self,
        base: &mut Replication,
        ticket: Ticket,
    ) -> Option<(ChildSet, ChildSet)> {
        let copy = self.copies.get_mut(&ticket)?;
        if !copy.needy.is_empty() && copy.split() {
            self.all_need(base, ticket);
            self.read_piece(base, ticket);
            return None;
        }
        Some((copy.differing, copy.damaged()))
    }

    /// These copies keep what they have.
    pub(super) fn spare(&mut self, ticket: Ticket, slots: ChildSet) {
        if let Some(copy) = self.copies.get_mut(&ticket) {
            copy.needy = copy.needy.without(slots);
        }
    }

    /// A child has answered. If it failed, the copy goes on ([`Rebuilder::resume`]) when what
    /// follows from that is done.
    pub(crate) fn copy_answered(
        &mut self,
        base: &mut Replication,
        ticket: Ticket,
        from: Pending,
        result: Result<Answer, IoError>,
    ) -> Verdict {
        let Some(copy) = self.copies.get_mut(&ticket) else { return Verdict::Fine };
        copy.outstanding.remove(from.slot);
        let reads = matches!(copy.step, Step::Mapping | Step::Reading);
        let step = copy.step;
        if let Err(fault) = &result
            && fault.class() == ErrorClass::Owner
        {
            return Verdict::Fenced;
        }
        if !base.replicas.get(from.slot).is_some_and(|child| child.is_current(from.session)) {
            self.resume(base, ticket);
            return Verdict::Fine;
        }
        let Some(copy) = self.copies.get_mut(&ticket) else { return Verdict::Fine };
        match result {
            Ok(Answer::Written(spans)) => copy.pieces = pieces(copy.span, &spans),
            Ok(_) => self.piece_answered(base, ticket, from.slot, step),
            Err(IoError::Busy) => {
                copy.step = Step::Ready;
                copy.forget_piece();
                copy.pieces.clear();
                let later = base.cx.later();
                if let Some(copy) = self.copies.get_mut(&ticket) {
                    copy.not_before = Some(later);
                }
            }
            Err(IoError::Miscompare { .. }) if step == Step::Comparing => {
                copy.differing.insert(from.slot);
            }
            // What an operator wants to keep there is shared with snapshots, or cannot be read.
            Err(fault) if copy.keeps(from.slot) && fault.class() != ErrorClass::Path => {
                self.piece_done(base, ticket);
                return Verdict::Fine;
            }
            Err(fault) if step == Step::Comparing && is_damage(fault) => {
                // After a crash it is no wonder that nothing proves a block in doubt.
                let is_usual = matches!(fault, IoError::Unproven { .. });
                if !is_usual || copy.whose != CopyPurpose::Resync {
                    copy.damaged.insert(from.slot);
                }
            }
            Err(fault) if reads && fault.class() != ErrorClass::Path => {
                if copy.dropped {
                    self.end_copy(base, ticket, false);
                    return Verdict::Fine;
                }
                if step == Step::Reading {
                    self.read_elsewhere(base, ticket, from.slot, fault);
                    return Verdict::Fine;
                }
                copy.bad.insert(from.slot);
                copy.step = Step::Ready;
            }
            Err(fault) => {
                let failed = match fault {
                    IoError::Miscompare { .. } => FaultReason::RebuildFailed,
                    fault => reason(fault),
                };
                return Verdict::Failed(ChildSet::one(from.slot), failed);
            }
        }
        self.advance_copy(base, ticket);
        Verdict::Fine
    }

    /// A copy has done its part of a step.
    fn piece_answered(
        &mut self,
        base: &mut Replication,
        ticket: Ticket,
        slot: ChildSlot,
        step: Step,
    ) {
        let Some(copy) = self.copies.get_mut(&ticket) else { return };
        let is_given_up = copy.pieces.front().is_some_and(|(_, written)| !*written);
        let was_damaged = copy.damaged().contains(slot) && !is_given_up;
        let span = copy.piece();
        match step {
            Step::Comparing => copy.needy.remove(slot),
            Step::Accepting => self.accepted(base, ticket, slot),
            Step::Writing if was_damaged => self.repaired(base, ticket, slot, span),
            _ => {}
        }
    }

    /// Goes on when a child was given up that had the copy's I/O.
    pub(crate) fn resume(&mut self, base: &mut Replication, ticket: Ticket) {
        let reads = |copy: &ChunkCopy| matches!(copy.step, Step::Mapping | Step::Reading);
        if self.copies.get(&ticket).is_some_and(reads) {
            self.restart_unless_dropped(base, ticket);
        } else {
            self.advance_copy(base, ticket);
        }
    }

    fn restart_unless_dropped(&mut self, base: &mut Replication, ticket: Ticket) {
        if self.copies.get(&ticket).is_some_and(|copy| !copy.dropped) && !base.service.is_down() {
            self.restart(base, ticket);
        } else {
            self.advance_copy(base, ticket);
        }
    }

    pub(super) fn end_copy(&mut self, base: &mut Replication, ticket: Ticket, complete: bool) {
        let Some(copy) = self.copies.remove(&ticket) else { return };
        if copy.open {
            base.log.end_write(copy.span, base.cx.now());
        }
        self.free_buffers.push(copy.buffer);
        base.lane.leave(ticket);
        match copy.whose {
            CopyPurpose::Rebuild(slot) if !copy.dropped => {
                self.throttle.copied(base.cx.now(), base.cx.config());
                if let Some(job) = self.jobs.get_mut(&slot) {
                    job.moved += copy.moved;
                    job.parts.ended(copy.region, complete);
                }
            }
            CopyPurpose::Rebuild(_) => {}
            CopyPurpose::Check(check) => self.check_ended(base, check, copy.span, complete),
            CopyPurpose::Resync => {
                self.resync.parts.ended(copy.region, complete);
                for region in self.resync.parts.take_finished() {
                    base.log.settle_region(region);
                }
            }
        }
        base.cx.rescan();
    }

    /// Drops the copies of a rebuild or check that is over.
    pub(super) fn drop_copies(&mut self, base: &mut Replication, whose: CopyPurpose) {
        let mut idle = Vec::new();
        for (ticket, copy) in &mut self.copies {
            if copy.whose == whose {
                copy.dropped = true;
                if copy.outstanding.is_empty() {
                    idle.push(*ticket);
                }
            }
        }
        for ticket in idle {
            self.end_copy(base, ticket, false);
        }
    }
}
