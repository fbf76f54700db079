//! Copying one chunk from a copy in sync to others, under a claim on the lane.
//!
//! ```text
//!   rebuild:  which blocks are written? ──► read ──► write ──► compare, if wanted ──► next piece
//!                      └─ hole ──► write zeroes and deallocate ─────────────────────────┘
//!   resync:   read ──► compare ──► write where it differs
//! ```

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use block::{Blame, Claim, Command, Fault, Instant, Lba, Span};
use model::{FaultReason, Kind, Problem};

use crate::api::{Answer, Buffer, Effect};
use crate::child::reason;
use crate::mirror::{Mirror, Pending, Purpose, Ticket};
use crate::slots::{Slot, Slots};

/// For whom a chunk is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// The rebuild of this child.
    Rebuild(Slot),
    /// The copies in sync, where they may differ.
    Resync,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// It waits for the lane.
    Queued,
    /// It may run, and waits for marks or for a source.
    Ready,
    Mapping,
    Reading,
    Comparing,
    Writing,
    Verifying,
}

/// A chunk under way.
#[derive(Debug)]
pub(crate) struct Copy {
    pub(crate) whose: Whose,
    pub(crate) region: u64,
    span: Span,
    buffer: u32,
    source: Option<Slot>,
    /// Sources that could not read the piece that is being copied.
    bad: Slots,
    /// Who still needs the piece that is being copied.
    needy: Slots,
    outstanding: Slots,
    /// What is left: blocks that hold something, and holes.
    pieces: VecDeque<(Span, bool)>,
    step: Step,
    /// Its rebuild is over: it ends when nothing is outstanding.
    pub(crate) dropped: bool,
    pub(crate) not_before: Option<Instant>,
    moved: u64,
    /// Its regions are open, as those of a write are.
    open: bool,
}

impl Copy {
    /// Whether it may go on without an answer.
    pub(crate) fn is_stuck(&self) -> bool {
        self.outstanding.is_empty() && self.step != Step::Queued
    }

    /// Makes the piece that is being copied many of one block each, so that one bad block spoils
    /// no other; whether it had more than one.
    fn split(&mut self) -> bool {
        let many = |(span, _): &mut (Span, bool)| span.len().0 > 1;
        let Some((span, written)) = self.pieces.pop_front_if(many) else { return false };
        for at in (span.start().0..span.end().0).rev() {
            if let Some(block) = Span::one(Lba(at)) {
                self.pieces.push_front((block, written));
            }
        }
        true
    }
}

impl Mirror {
    pub(crate) fn start_copy(&mut self, whose: Whose, region: u64, span: Span) {
        let Some(buffer) = self.free_buffers.pop() else { return };
        let ticket = self.next_ticket();
        let copy = Copy {
            whose,
            region,
            span,
            buffer,
            source: None,
            bad: Slots::NONE,
            needy: Slots::NONE,
            outstanding: Slots::NONE,
            pieces: VecDeque::new(),
            step: Step::Queued,
            dropped: false,
            not_before: None,
            moved: 0,
            open: false,
        };
        self.copies.insert(ticket, copy);
        // W2: a copy is a write like any other.
        let claim = Claim::Write(span);
        #[cfg(test)]
        let claim =
            if self.broken == crate::tests::Broken::CopyUnlocked { Claim::Free } else { claim };
        if self.lane.enter(ticket, claim) {
            self.ready.push(ticket);
        }
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
        if copy.dropped || self.is_down() || self.dests(copy.whose).is_empty() {
            return self.end_copy(ticket, false);
        }
        if copy.not_before.is_some_and(|at| at > self.now) {
            return;
        }
        match copy.step {
            Step::Queued => {}
            Step::Ready => self.map(ticket),
            Step::Mapping => self.next_piece(ticket),
            Step::Reading | Step::Comparing | Step::Writing | Step::Verifying => {
                self.go_on(ticket);
            }
        }
    }

    fn dests(&self, whose: Whose) -> Slots {
        match whose {
            Whose::Rebuild(slot) => Slots::one(slot).both(self.writers()),
            #[cfg(test)]
            Whose::Resync if self.broken == crate::tests::Broken::JoinerNotCompared => {
                self.must().both(self.in_sync())
            }
            // Also one that is rebuilt and may be recorded in sync already.
            Whose::Resync => self.must().both(self.writers()),
        }
    }

    fn pick_source(&mut self, ticket: Ticket) -> Option<Slot> {
        let copy = self.copies.get(&ticket)?;
        let (resync, bad) = (copy.whose == Whose::Resync, copy.bad);
        let mut able = self.in_sync().without(bad);
        if resync {
            able = self.least_lossy(able);
            // If those that have the most cannot read it, what is left may be older.
            self.lost |= self.least_loss(bad) < self.least_loss(able);
        }
        // Several sources: chunks go around.
        let nth =
            usize::try_from(ticket).unwrap_or(0) % usize::try_from(able.len().max(1)).unwrap_or(1);
        let source = able.iter().nth(nth);
        let copy = self.copies.get_mut(&ticket)?;
        copy.source = source;
        source
    }

    /// Asks a source what of the chunk is written.
    fn map(&mut self, ticket: Ticket) {
        let Some(copy) = self.copies.get(&ticket) else { return };
        let (whose, span, none_left) = (copy.whose, copy.span, !copy.bad.is_empty());
        if whose == Whose::Resync && !self.open_resync(ticket, span) {
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
        if whose == Whose::Resync {
            if let Some(copy) = self.copies.get_mut(&ticket) {
                copy.pieces = VecDeque::from([(span, true)]);
            }
            return self.next_piece(ticket);
        }
        let Some((io, child, session)) = self.ask(source, Purpose::Copy(ticket)) else { return };
        let child = child.replica;
        self.effects.push_back(Effect::Written { io, child, session, span });
        self.sent(ticket, source, Step::Mapping);
    }

    /// A resync writes to copies in sync: as with any write, its regions are marked and open.
    fn open_resync(&mut self, ticket: Ticket, span: Span) -> bool {
        let marked = self.dirty.is_marked(span, self.durable_version());
        let Some(copy) = self.copies.get_mut(&ticket) else { return false };
        if copy.open {
            return true;
        }
        copy.open = marked && self.dirty.doubt.contains(copy.region);
        if copy.open {
            self.dirty.begin(span);
        }
        self.copies.get(&ticket).is_some_and(|copy| copy.open) && self.is_settled()
    }

    fn sent(&mut self, ticket: Ticket, slot: Slot, step: Step) {
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

    /// Everybody but the source needs the piece.
    fn all_need(&mut self, ticket: Ticket) {
        let Some(copy) = self.copies.get(&ticket) else { return };
        let source = copy.source.map_or(Slots::NONE, Slots::one);
        let needy = self.dests(copy.whose).without(source);
        if let Some(copy) = self.copies.get_mut(&ticket) {
            copy.needy = needy;
        }
    }

    /// The source cannot read the piece: block by block, then from elsewhere.
    fn read_elsewhere(&mut self, ticket: Ticket, bad: Slot) {
        let Some(copy) = self.copies.get_mut(&ticket) else { return };
        if copy.split() {
            return self.read_piece(ticket);
        }
        copy.bad.insert(bad);
        let whose = copy.whose;
        if self.pick_source(ticket).is_some() {
            self.all_need(ticket);
            self.read_piece(ticket);
        } else {
            self.unreadable(ticket, whose);
        }
    }

    /// A piece is where it should be, or nowhere.
    fn piece_done(&mut self, ticket: Ticket) {
        let Some(copy) = self.copies.get_mut(&ticket) else { return };
        copy.pieces.pop_front();
        if !core::mem::replace(&mut copy.bad, Slots::NONE).is_empty() {
            self.pick_source(ticket);
        }
        self.next_piece(ticket);
    }

    fn read_piece(&mut self, ticket: Ticket) {
        let Some(copy) = self.copies.get(&ticket) else { return };
        let Some((span, _)) = copy.pieces.front().copied() else { return };
        let source = copy.source.filter(|slot| self.in_sync().contains(*slot));
        match source {
            Some(source) => {
                self.piece_io(ticket, Slots::one(source), Command::Read { span }, Step::Reading);
            }
            None => self.restart(ticket),
        }
    }

    fn write_piece(&mut self, ticket: Ticket) {
        let Some(copy) = self.copies.get(&ticket) else { return };
        let Some((span, written)) = copy.pieces.front().copied() else { return };
        let command = if written {
            Command::Write { span, fua: false }
        } else {
            Command::WriteZeroes { span, fua: false, deallocate: true }
        };
        let needy = copy.needy.both(self.writers());
        self.piece_io(ticket, needy, command, Step::Writing);
    }

    fn compare_piece(&mut self, ticket: Ticket, step: Step) {
        let Some(copy) = self.copies.get(&ticket) else { return };
        let Some((span, _)) = copy.pieces.front().copied() else { return };
        let needy = copy.needy.both(self.writers());
        self.piece_io(ticket, needy, Command::Compare { span }, step);
    }

    fn piece_io(&mut self, ticket: Ticket, to: Slots, command: Command, step: Step) {
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
            let Some((io, child, session)) = self.ask(slot, Purpose::Copy(ticket)) else {
                continue;
            };
            let child = child.replica;
            self.effects.push_back(Effect::Io { io, child, session, command, buffer });
            self.sent(ticket, slot, step);
        }
    }

    /// All answers of a step are in.
    fn go_on(&mut self, ticket: Ticket) {
        let Some(copy) = self.copies.get_mut(&ticket) else { return };
        let written = copy.pieces.front().is_some_and(|(_, written)| *written);
        match (copy.step, copy.whose) {
            (Step::Reading, Whose::Resync) => {
                // Whoever has the same bytes needs nothing: a hole stays a hole.
                self.compare_piece(ticket, Step::Comparing);
            }
            (Step::Reading, Whose::Rebuild(_)) | (Step::Comparing, _) => self.write_piece(ticket),
            (Step::Writing, Whose::Rebuild(_)) if self.policy.verify && written => {
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
            (copy.step, copy.bad) = (Step::Ready, Slots::NONE);
        }
        self.map(ticket);
    }

    /// No copy in sync can read the piece.
    fn unreadable(&mut self, ticket: Ticket, whose: Whose) {
        let joining = self.must().both(self.writers()).without(self.in_sync());
        #[cfg(test)]
        let joining = match self.broken {
            crate::tests::Broken::JoinerNotAsked => Slots::NONE,
            _ => joining,
        };
        match whose {
            // One that is about to join is compared with, and may be able to: it is asked then.
            Whose::Resync if !joining.is_empty() => self.end_copy(ticket, false),
            // Hosts get an error for this block anyway, whichever copy they ask.
            Whose::Resync => self.piece_done(ticket),
            Whose::Rebuild(slot) => {
                let Some(copy) = self.copies.get(&ticket) else { return };
                let span = copy.pieces.front().map_or(copy.span, |(span, _)| *span);
                let detail = alloc::format!("no copy in sync can read {span}; restore it");
                self.rebuild_failed(slot, Problem::new(Kind::NoHealthyReplica, detail));
                self.end_copy(ticket, false);
            }
        }
    }

    pub(crate) fn copy_answered(
        &mut self,
        ticket: Ticket,
        from: Pending,
        result: Result<Answer, Fault>,
    ) {
        let Some(copy) = self.copies.get_mut(&ticket) else { return };
        copy.outstanding.remove(from.slot);
        let reads = matches!(copy.step, Step::Mapping | Step::Reading);
        let step = copy.step;
        if let Err(fault) = &result
            && fault.blame() == Blame::Owner
        {
            return self.fenced();
        }
        if !self.child(from.slot).is_some_and(|child| child.is_current(from.session)) {
            return if reads {
                self.restart_unless_dropped(ticket);
            } else {
                self.advance_copy(ticket);
            };
        }
        let Some(copy) = self.copies.get_mut(&ticket) else { return };
        match result {
            Ok(Answer::Written(spans)) => copy.pieces = pieces(copy.span, &spans),
            Ok(_) if step == Step::Comparing => copy.needy.remove(from.slot),
            Ok(_) => {}
            Err(Fault::Busy) => {
                copy.step = Step::Ready;
                copy.bad = Slots::NONE;
                copy.pieces.clear();
                let later = self.later();
                if let Some(copy) = self.copies.get_mut(&ticket) {
                    copy.not_before = Some(later);
                }
            }
            Err(Fault::Miscompare { .. } | Fault::Checksum { .. } | Fault::Medium { .. })
                if step == Step::Comparing => {}
            Err(fault) if reads && fault.blame() != Blame::Path => {
                if copy.dropped {
                    return self.end_copy(ticket, false);
                }
                if step == Step::Reading {
                    return self.read_elsewhere(ticket, from.slot);
                }
                copy.bad.insert(from.slot);
                copy.step = Step::Ready;
            }
            Err(fault) => {
                let failed = match fault {
                    Fault::Miscompare { .. } => FaultReason::RebuildFailed,
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

    fn restart_unless_dropped(&mut self, ticket: Ticket) {
        if self.copies.get(&ticket).is_some_and(|copy| !copy.dropped) && !self.is_down() {
            self.restart(ticket);
        } else {
            self.advance_copy(ticket);
        }
    }

    pub(crate) fn end_copy(&mut self, ticket: Ticket, complete: bool) {
        let Some(copy) = self.copies.remove(&ticket) else { return };
        if copy.open {
            self.dirty.end(copy.span, self.now);
        }
        self.free_buffers.push(copy.buffer);
        self.lane.leave(ticket, &mut self.ready);
        match copy.whose {
            Whose::Rebuild(slot) if !copy.dropped => {
                self.yielding.copied(self.now, &self.policy);
                if let Some(job) = self.jobs.get_mut(&slot) {
                    job.moved += copy.moved;
                    job.parts.ended(copy.region, complete);
                }
            }
            Whose::Rebuild(_) => {}
            Whose::Resync => {
                self.resync.parts.ended(copy.region, complete);
                for region in self.resync.parts.take_finished() {
                    self.dirty.doubt.remove(region);
                }
            }
        }
        self.poke = true;
    }

    /// Drops the copies of a rebuild that is over.
    pub(crate) fn drop_copies(&mut self, slot: Slot) {
        let mut idle = Vec::new();
        for (ticket, copy) in &mut self.copies {
            if copy.whose == Whose::Rebuild(slot) {
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

/// A chunk as what holds something and the holes between.
fn pieces(chunk: Span, written: &[Span]) -> VecDeque<(Span, bool)> {
    let mut pieces = VecDeque::new();
    let mut at = chunk.start();
    for span in written.iter().filter_map(|span| span.intersect(chunk)) {
        let from = span.start().max(at);
        pieces.extend(Span::between(at, from).map(|hole| (hole, false)));
        pieces.extend(Span::between(from, span.end()).map(|full| (full, true)));
        at = at.max(span.end());
    }
    pieces.extend(Span::between(at, chunk.end()).map(|hole| (hole, false)));
    pieces
}
