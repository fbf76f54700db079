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

use crate::api::{Answer, Buffer, Effect};
use crate::chunk::{ChunkCopy, CopyPurpose, Step, pieces};
use crate::context::{Pending, Purpose, Ticket};
use crate::mirror::Mirror;
use crate::replicas::{Asked, ChildSet, ChildSlot, reason};

impl Mirror {
    pub(crate) fn start_copy(&mut self, whose: CopyPurpose, region: u64, span: Span) {
        let Some(buffer) = self.free_buffers.pop() else { return };
        let ticket = self.base.cx.next_ticket();
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
        let claim = if self.base.cx.broken == crate::tests::Broken::CopyUnlocked {
            RangeAccess::Free
        } else {
            claim
        };
        self.base.lane.enter(ticket, claim);
    }

    pub(crate) fn copy_granted(&mut self, ticket: Ticket) {
        let Some(copy) = self.copies.get_mut(&ticket) else { return };
        copy.step = Step::Ready;
        self.advance_copy(ticket);
    }

    /// Does the next step of a copy that waits for no answer.
    pub(crate) fn advance_copy(&mut self, ticket: Ticket) {
        let Some(copy) = self.copies.get(&ticket) else { return };
        if !copy.outstanding.is_empty() {
            return;
        }
        if copy.dropped || self.base.service.is_down() || self.dests(copy.whose).is_empty() {
            return self.end_copy(ticket, false);
        }
        if copy.not_before.is_some_and(|at| at > self.base.cx.now()) {
            return;
        }
        match copy.step {
            Step::Queued => {}
            Step::Ready => self.map(ticket),
            Step::Mapping => self.next_piece(ticket),
            Step::Reading | Step::Accepting | Step::Comparing | Step::Writing | Step::Verifying => {
                self.go_on(ticket);
            }
        }
    }

    fn dests(&self, whose: CopyPurpose) -> ChildSet {
        match whose {
            CopyPurpose::Check(_) => self.base.replicas.in_sync(),
            CopyPurpose::Rebuild(slot) => {
                ChildSet::one(slot).both(self.base.replicas.write_targets())
            }
            #[cfg(test)]
            CopyPurpose::Resync
                if self.base.cx.broken == crate::tests::Broken::JoinerNotCompared =>
            {
                self.base.replicas.required_acks().both(self.base.replicas.in_sync())
            }
            // Also one that is rebuilt and may be recorded in sync already.
            CopyPurpose::Resync => {
                self.base.replicas.required_acks().both(self.base.replicas.write_targets())
            }
        }
    }

    /// Asks a source what of the chunk is written.
    fn map(&mut self, ticket: Ticket) {
        let Some(copy) = self.copies.get(&ticket) else { return };
        let (whose, span, none_left) = (copy.whose, copy.span, !copy.bad.is_empty());
        let may_go = match whose {
            CopyPurpose::Rebuild(_) => true,
            CopyPurpose::Resync => self.open_resync(ticket, span),
            CopyPurpose::Check(_) => self.may_check(span),
        };
        if !may_go {
            return self.end_copy(ticket, false);
        }
        let Some(source) = self.pick_source(ticket) else {
            if none_left {
                self.unreadable(ticket, whose);
            } else {
                self.end_copy(ticket, false);
            }
            return;
        };
        if !matches!(whose, CopyPurpose::Rebuild(_)) {
            if let Some(copy) = self.copies.get_mut(&ticket) {
                copy.pieces = VecDeque::from([(span, true)]);
            }
            return self.next_piece(ticket);
        }
        let Some(Asked { io, child, session }) = self.base.ask(source, Purpose::Copy(ticket))
        else {
            return;
        };
        self.base.cx.emit(Effect::Written { io, child, session, span });
        self.sent(ticket, source, Step::Mapping);
    }

    /// A resync writes to copies in sync: as with any write, its regions are marked and open.
    fn open_resync(&mut self, ticket: Ticket, span: Span) -> bool {
        let Some(copy) = self.copies.get_mut(&ticket) else { return false };
        if copy.open {
            return true;
        }
        let base = &mut self.base;
        copy.open = base.log.begin_resync(&base.replicas, copy.region, span);
        self.copies.get(&ticket).is_some_and(|copy| copy.open) && self.base.is_settled()
    }

    pub(crate) fn sent(&mut self, ticket: Ticket, slot: ChildSlot, step: Step) {
        if let Some(copy) = self.copies.get_mut(&ticket) {
            copy.outstanding.insert(slot);
            copy.step = step;
        }
    }

    /// Begins the next piece, or ends.
    fn next_piece(&mut self, ticket: Ticket) {
        let Some(copy) = self.copies.get(&ticket) else { return };
        let Some((_, written)) = copy.pieces.front().copied() else {
            return self.end_copy(ticket, true);
        };
        self.all_need(ticket);
        if written { self.read_piece(ticket) } else { self.write_piece(ticket) }
    }

    /// Everybody but the source needs the piece; of a rebuild also those that could not read it.
    pub(crate) fn all_need(&mut self, ticket: Ticket) {
        let Some(copy) = self.copies.get(&ticket) else { return };
        let source = copy.source.map_or(ChildSet::NONE, ChildSet::one);
        let bad = copy.bad.both(self.base.replicas.in_sync());
        let needy = self.dests(copy.whose).either(bad).without(source);
        if let Some(copy) = self.copies.get_mut(&ticket) {
            copy.needy = needy;
        }
    }

    /// A piece is where it should be, or nowhere.
    pub(crate) fn piece_done(&mut self, ticket: Ticket) {
        let Some(copy) = self.copies.get_mut(&ticket) else { return };
        copy.pieces.pop_front();
        let had_bad = !copy.bad.is_empty();
        copy.forget_piece();
        if had_bad {
            self.pick_source(ticket);
        }
        self.next_piece(ticket);
    }

    pub(crate) fn read_piece(&mut self, ticket: Ticket) {
        let Some(copy) = self.copies.get(&ticket) else { return };
        let Some((span, _)) = copy.pieces.front().copied() else { return };
        let source = copy.source.filter(|slot| self.base.replicas.in_sync().contains(*slot));
        match source {
            Some(source) => {
                self.piece_io(ticket, ChildSet::one(source), Command::Read { span }, Step::Reading);
            }
            None => self.restart(ticket),
        }
    }

    pub(crate) fn write_piece(&mut self, ticket: Ticket) {
        let Some(copy) = self.copies.get(&ticket) else { return };
        let Some((span, written)) = copy.pieces.front().copied() else { return };
        // What a check makes of a block is in no mark: no flush of ours would cover it.
        let fua = matches!(copy.whose, CopyPurpose::Check(_));
        let command = if written {
            Command::Write { span, fua }
        } else {
            Command::WriteZeroes { span, fua, deallocate: true }
        };
        let needy = copy.needy.both(self.base.replicas.write_targets());
        // Only a check knows that all copies should hold the same: a repair is written where the
        // block is, also in a layer that snapshots share, and must be what that layer should hold.
        let is_known = matches!(copy.whose, CopyPurpose::Check(_)) && written && span.len().0 == 1;
        let damaged = if is_known { copy.damaged() } else { ChildSet::NONE };
        let damaged = needy.both(damaged);
        #[cfg(test)]
        let damaged = match self.base.cx.broken {
            crate::tests::Broken::RepairByWriting => ChildSet::NONE,
            _ => damaged,
        };
        self.repair_piece(ticket, damaged, span);
        let is_waiting = self.copies.get(&ticket).is_some_and(|copy| !copy.outstanding.is_empty());
        if !is_waiting || !needy.without(damaged).is_empty() {
            self.piece_io(ticket, needy.without(damaged), command, Step::Writing);
        }
    }

    /// Rewrites a block on copies that have it damaged. It is no write like any other: if it is
    /// interrupted, a block that went bad must not pass for one that was being written.
    fn repair_piece(&mut self, ticket: Ticket, damaged: ChildSet, span: Span) {
        let Some(buffer) = self.copies.get(&ticket).map(|copy| copy.buffer) else { return };
        for slot in damaged.iter() {
            let Some(Asked { io, child, session }) = self.base.ask(slot, Purpose::Copy(ticket))
            else {
                continue;
            };
            let (at, buffer) = (span.start(), Buffer::Copy(buffer));
            self.base.cx.emit(Effect::Repair { io, child, session, at, buffer });
            self.sent(ticket, slot, Step::Writing);
        }
    }

    fn compare_piece(&mut self, ticket: Ticket, step: Step) {
        let Some(copy) = self.copies.get(&ticket) else { return };
        let Some((span, _)) = copy.pieces.front().copied() else { return };
        let needy = copy.needy.both(self.base.replicas.write_targets());
        self.piece_io(ticket, needy, Command::Compare { span }, step);
    }

    fn piece_io(&mut self, ticket: Ticket, to: ChildSet, command: Command, step: Step) {
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
            return self.go_on(ticket);
        }
        for slot in to.iter() {
            let Some(Asked { io, child, session }) = self.base.ask(slot, Purpose::Copy(ticket))
            else {
                continue;
            };
            self.base.cx.emit(Effect::Io { io, child, session, command, buffer });
            self.sent(ticket, slot, step);
        }
    }

    /// All answers of a step are in.
    fn go_on(&mut self, ticket: Ticket) {
        let Some(copy) = self.copies.get_mut(&ticket) else { return };
        let written = copy.pieces.front().is_some_and(|(_, written)| *written);
        match (copy.step, copy.whose) {
            (Step::Reading, CopyPurpose::Resync | CopyPurpose::Check(_)) => {
                // Whoever has the same bytes needs nothing: a hole stays a hole.
                self.compare_piece(ticket, Step::Comparing);
            }
            (Step::Comparing, CopyPurpose::Check(check)) => self.judge_piece(ticket, check),
            // One bad block is told, and no other.
            (Step::Comparing, CopyPurpose::Resync) if !copy.damaged.is_empty() && copy.split() => {
                self.all_need(ticket);
                self.read_piece(ticket);
            }
            (Step::Reading, CopyPurpose::Rebuild(_)) | (Step::Comparing, _) => {
                self.write_piece(ticket);
            }
            (Step::Accepting, _) => self.read_piece(ticket),
            (Step::Writing, CopyPurpose::Rebuild(_)) if self.base.cx.config().verify && written => {
                self.compare_piece(ticket, Step::Verifying);
            }
            (Step::Writing | Step::Verifying, _) => {
                self.piece_done(ticket);
            }
            _ => {}
        }
    }

    /// Begins the chunk again, from whoever is there.
    fn restart(&mut self, ticket: Ticket) {
        if let Some(copy) = self.copies.get_mut(&ticket) {
            copy.pieces.clear();
            copy.step = Step::Ready;
            copy.forget_piece();
        }
        self.map(ticket);
    }

    /// Copies that were compared and do not have the piece: split into blocks if there are several.
    /// Else: those that hold something else, and those whose bytes are damaged.
    pub(crate) fn found_in_piece(&mut self, ticket: Ticket) -> Option<(ChildSet, ChildSet)> {
        let copy = self.copies.get_mut(&ticket)?;
        if !copy.needy.is_empty() && copy.split() {
            self.all_need(ticket);
            self.read_piece(ticket);
            return None;
        }
        Some((copy.differing, copy.damaged()))
    }

    /// These copies keep what they have.
    pub(crate) fn spare(&mut self, ticket: Ticket, slots: ChildSet) {
        if let Some(copy) = self.copies.get_mut(&ticket) {
            copy.needy = copy.needy.without(slots);
        }
    }

    pub(crate) fn copy_answered(
        &mut self,
        ticket: Ticket,
        from: Pending,
        result: Result<Answer, IoError>,
    ) {
        let Some(copy) = self.copies.get_mut(&ticket) else { return };
        copy.outstanding.remove(from.slot);
        let reads = matches!(copy.step, Step::Mapping | Step::Reading);
        let step = copy.step;
        if let Err(fault) = &result
            && fault.class() == ErrorClass::Owner
        {
            return self.fenced();
        }
        if !self.base.replicas.get(from.slot).is_some_and(|child| child.is_current(from.session)) {
            return if reads {
                self.restart_unless_dropped(ticket);
            } else {
                self.advance_copy(ticket);
            };
        }
        let Some(copy) = self.copies.get_mut(&ticket) else { return };
        match result {
            Ok(Answer::Written(spans)) => copy.pieces = pieces(copy.span, &spans),
            Ok(_) => self.piece_answered(ticket, from.slot, step),
            Err(IoError::Busy) => {
                copy.step = Step::Ready;
                copy.forget_piece();
                copy.pieces.clear();
                let later = self.base.cx.later();
                if let Some(copy) = self.copies.get_mut(&ticket) {
                    copy.not_before = Some(later);
                }
            }
            Err(IoError::Miscompare { .. }) if step == Step::Comparing => {
                copy.differing.insert(from.slot);
            }
            // What an operator wants to keep there is shared with snapshots, or cannot be read.
            Err(fault) if copy.keeps(from.slot) && fault.class() != ErrorClass::Path => {
                return self.piece_done(ticket);
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
                    return self.end_copy(ticket, false);
                }
                if step == Step::Reading {
                    return self.read_elsewhere(ticket, (from.slot, fault));
                }
                copy.bad.insert(from.slot);
                copy.step = Step::Ready;
            }
            Err(fault) => {
                let failed = match fault {
                    IoError::Miscompare { .. } => FaultReason::RebuildFailed,
                    fault => reason(fault),
                };
                self.fail(from.slot, failed);
                if reads {
                    return self.restart_unless_dropped(ticket);
                }
            }
        }
        self.advance_copy(ticket);
    }

    /// A copy has done its part of a step.
    fn piece_answered(&mut self, ticket: Ticket, slot: ChildSlot, step: Step) {
        let Some(copy) = self.copies.get_mut(&ticket) else { return };
        let is_given_up = copy.pieces.front().is_some_and(|(_, written)| !*written);
        let was_damaged = copy.damaged().contains(slot) && !is_given_up;
        let span = copy.piece();
        match step {
            Step::Comparing => copy.needy.remove(slot),
            Step::Accepting => self.accepted(ticket, slot),
            Step::Writing if was_damaged => self.repaired(ticket, slot, span),
            _ => {}
        }
    }

    fn restart_unless_dropped(&mut self, ticket: Ticket) {
        if self.copies.get(&ticket).is_some_and(|copy| !copy.dropped)
            && !self.base.service.is_down()
        {
            self.restart(ticket);
        } else {
            self.advance_copy(ticket);
        }
    }

    pub(crate) fn end_copy(&mut self, ticket: Ticket, complete: bool) {
        let Some(copy) = self.copies.remove(&ticket) else { return };
        if copy.open {
            self.base.log.end_write(copy.span, self.base.cx.now());
        }
        self.free_buffers.push(copy.buffer);
        self.base.lane.leave(ticket);
        match copy.whose {
            CopyPurpose::Rebuild(slot) if !copy.dropped => {
                self.throttle.copied(self.base.cx.now(), self.base.cx.config());
                if let Some(job) = self.jobs.get_mut(&slot) {
                    job.moved += copy.moved;
                    job.parts.ended(copy.region, complete);
                }
            }
            CopyPurpose::Rebuild(_) => {}
            CopyPurpose::Check(check) => self.check_ended(check, copy.span, complete),
            CopyPurpose::Resync => {
                self.resync.parts.ended(copy.region, complete);
                for region in self.resync.parts.take_finished() {
                    self.base.log.settle_region(region);
                }
            }
        }
        self.base.cx.rescan();
    }

    /// Drops the copies of a rebuild or check that is over.
    pub(crate) fn drop_copies(&mut self, whose: CopyPurpose) {
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
            self.end_copy(ticket, false);
        }
    }
}

/// Whether bytes are there, but not those that were written.
fn is_damage(fault: IoError) -> bool {
    matches!(fault, IoError::Checksum { .. } | IoError::Medium { .. } | IoError::Unproven { .. })
}
