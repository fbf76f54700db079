//! A chunk that is being copied: how far it is, and what is known of its copies.

use alloc::collections::VecDeque;

use block::{Instant, Lba, Span};

use crate::replicas::{ChildSet, ChildSlot};
use crate::replication::Replication;

/// For whom a chunk is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CopyPurpose {
    /// The rebuild of this child.
    Rebuild(ChildSlot),
    /// The copies in sync, where they may differ.
    Resync,
    /// The copies in sync, where one of them may be damaged: this check.
    Check(u64),
}

impl CopyPurpose {
    /// The copies that are to have what is copied.
    pub(super) fn dests(self, base: &Replication) -> ChildSet {
        let replicas = &base.replicas;
        match self {
            CopyPurpose::Check(_) => replicas.in_sync(),
            CopyPurpose::Rebuild(slot) => ChildSet::one(slot).both(replicas.write_targets()),
            #[cfg(test)]
            CopyPurpose::Resync if base.cx.broken == crate::tests::Broken::JoinerNotCompared => {
                replicas.required_acks().both(replicas.in_sync())
            }
            // Also one that is rebuilt and may be recorded in sync already.
            CopyPurpose::Resync => replicas.required_acks().both(replicas.write_targets()),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It waits for the lane.
    Queued,
    /// It may run, and waits for marks or for a source.
    Ready,
    Mapping,
    Reading,
    /// One copy is told to believe what it holds.
    Accepting,
    Comparing,
    Writing,
    Verifying,
}

/// A chunk under way.
#[derive(Debug)]
pub(super) struct ChunkCopy {
    pub(super) whose: CopyPurpose,
    pub(super) region: u64,
    pub(super) span: Span,
    pub(super) buffer: u32,
    pub(super) source: Option<ChildSlot>,
    /// Sources that could not read the piece that is being copied.
    pub(super) bad: ChildSet,
    /// Those of them that hold it without a proven checksum, and the one that was told to believe.
    pub(super) unproven: ChildSet,
    pub(super) believed: ChildSet,
    /// That one was told by an operator: it had the piece damaged.
    pub(super) is_kept: bool,
    /// Who still needs the piece that is being copied.
    pub(super) needy: ChildSet,
    /// Those that hold something else, proven.
    pub(super) differing: ChildSet,
    /// Those whose bytes are damaged.
    pub(super) damaged: ChildSet,
    pub(super) outstanding: ChildSet,
    /// What is left: blocks that hold something, and holes.
    pub(super) pieces: VecDeque<(Span, bool)>,
    pub(super) step: Step,
    /// Its rebuild is over: it ends when nothing is outstanding.
    pub(super) dropped: bool,
    pub(super) not_before: Option<Instant>,
    pub(super) moved: u64,
    /// Its regions are open, as those of a write are.
    pub(super) open: bool,
}

impl ChunkCopy {
    /// Whether it may go on without an answer.
    pub(super) fn is_stuck(&self) -> bool {
        self.outstanding.is_empty() && self.step != Step::Queued
    }

    /// Makes the piece that is being copied many of one block each, so that one bad block spoils
    /// no other; whether it had more than one.
    pub(super) fn split(&mut self) -> bool {
        let many = |(span, _): &mut (Span, bool)| span.len().0 > 1;
        let Some((span, written)) = self.pieces.pop_front_if(many) else { return false };
        self.forget_piece();
        for at in (span.start().0..span.end().0).rev() {
            if let Some(block) = Span::one(Lba(at)) {
                self.pieces.push_front((block, written));
            }
        }
        true
    }

    /// Nothing is known of the piece that comes first now.
    pub(super) fn forget_piece(&mut self) {
        (self.bad, self.unproven, self.believed) = (ChildSet::NONE, ChildSet::NONE, ChildSet::NONE);
        (self.differing, self.damaged) = (ChildSet::NONE, ChildSet::NONE);
        self.is_kept = false;
    }

    /// Those that had the piece damaged, as far as that is worth telling.
    pub(super) fn damaged(&self) -> ChildSet {
        match self.whose {
            // What an operator keeps is a new content: it is written, and not put where snapshots
            // may share what was there.
            CopyPurpose::Check(_) if self.is_kept => ChildSet::NONE,
            CopyPurpose::Check(_) => self.damaged.either(self.bad),
            _ => self.damaged.either(self.bad.without(self.unproven)),
        }
    }

    /// Whether this copy was told to believe the piece, which it has damaged.
    pub(super) fn keeps(&self, slot: ChildSlot) -> bool {
        self.step == Step::Accepting && !self.unproven.contains(slot)
    }

    /// The piece that is being copied.
    pub(super) fn piece(&self) -> Span {
        self.pieces.front().map_or(self.span, |(span, _)| *span)
    }
}

/// A chunk as what holds something and the holes between.
pub(super) fn pieces(chunk: Span, written: &[Span]) -> VecDeque<(Span, bool)> {
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
