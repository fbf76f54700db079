//! Checks: every copy in sync is read, compared, and mended where it is damaged.
//!
//! ```text
//!   a read that nobody could answer ─┐                     ┌─ damaged here, good there: rewritten
//!                                    ├─► chunks, under a ──┼─ unproven everywhere: one is believed
//!   an order (a scrub found rot,     │   claim on the lane ├─ damaged everywhere: unreadable
//!   or somebody wants to compare) ───┘                     └─ good and not equal: differing
//! ```
//!
//! Copies that are good and differ are told and left alone, unless the order names the one that is
//! right: nobody here knows which of them was acknowledged last.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use block::{Blocks, IoError, Lba, Span};
use model::{Problem, ProblemKind, ReplicaId};

use super::Rebuilder;
use super::chunk::{ChunkCopy, CopyPurpose};
use crate::api::{CommandId, Effect, UnreadableBlocks};
use crate::context::Ticket;
use crate::replicas::ChildSet;
use crate::replication::Replication;

/// Most blocks of one order.
pub(crate) const MOST_BLOCKS: Blocks = Blocks(4096);
/// Most checks that reads wait for.
const MOST_FOR_READS: usize = 64;
/// Most checks at once that were ordered.
const MOST_ORDERED: usize = 4;

/// What a check came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Blocks that a copy had damaged, copy by copy.
    pub bad: u64,
    /// Those of them that were rewritten from another copy.
    pub repaired: u64,
    /// Blocks that no copy can give.
    pub unreadable: Vec<Span>,
    /// Blocks that are good on several copies and not equal: on which ones.
    pub differing: Vec<(Span, Vec<ReplicaId>)>,
}

/// A check under way.
#[derive(Debug)]
pub(super) struct Check {
    /// Who ordered it; reads wait for it if nobody did.
    token: Option<CommandId>,
    /// The copy that is right where good ones differ.
    believed: Option<ReplicaId>,
    /// What becomes of blocks that no copy can give.
    unreadable: UnreadableBlocks,
    /// What was not begun.
    rest: VecDeque<Span>,
    /// Chunks under way.
    left: u32,
    found: Checked,
}

/// The checks of a mirror.
#[derive(Debug, Default)]
pub(super) struct Checks {
    all: BTreeMap<u64, Check>,
    last: u64,
}

impl Checks {
    pub(super) fn contains(&self, check: u64) -> bool {
        self.all.contains_key(&check)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    fn count(&self, is_ordered: bool) -> usize {
        self.all.values().filter(|check| check.token.is_some() == is_ordered).count()
    }

    fn add(&mut self, token: Option<CommandId>, believed: Option<ReplicaId>, span: Span) -> u64 {
        self.last += 1;
        let (rest, found) = (VecDeque::from([span]), Checked::default());
        let (left, unreadable) = (0, UnreadableBlocks::Tell);
        self.all.insert(self.last, Check { token, believed, unreadable, rest, left, found });
        self.last
    }
}

impl Rebuilder {
    /// Takes an order to check a span; it ends with an [`Effect::Checked`] and an answer.
    pub(crate) fn check_span(
        &mut self,
        base: &mut Replication,
        token: CommandId,
        span: Span,
        believed: Option<ReplicaId>,
        unreadable: UnreadableBlocks,
    ) {
        let inside = base.cx.geometry().span().intersect(span) == Some(span);
        let kept = match unreadable {
            UnreadableBlocks::Keep(replica) => Some(replica),
            UnreadableBlocks::Tell | UnreadableBlocks::Zero => None,
        };
        let is_unknown = |replica| !base.replicas.record().wants_in_sync(replica);
        let unknown = believed.into_iter().chain(kept).any(is_unknown);
        let decides = unreadable != UnreadableBlocks::Tell || believed.is_some();
        let refused = if !inside || span.len() > MOST_BLOCKS {
            let detail = alloc::format!("at most {MOST_BLOCKS} of the volume are checked at once");
            Some(Problem::new(ProblemKind::OutOfRange, detail))
        } else if unknown {
            Some(Problem::new(ProblemKind::InvalidArgument, "only a copy in sync can be believed"))
        } else if decides && !base.replicas.are_all_in_sync() {
            let detail = "a copy is away or out of sync: it may hold the right bytes, and would \
                          not learn of others; wait until all copies are in sync";
            Some(Problem::new(ProblemKind::Busy, detail))
        } else if self.checks.count(true) >= MOST_ORDERED {
            Some(Problem::new(ProblemKind::Busy, "other checks are under way; try again"))
        } else {
            None
        };
        if let Some(problem) = refused {
            return base.cx.answer(token, Err(problem));
        }
        let number = self.checks.add(Some(token), believed, span);
        if let Some(check) = self.checks.all.get_mut(&number) {
            check.unreadable = unreadable;
        }
        base.cx.rescan();
    }

    /// Whether a check is under way.
    pub(crate) fn is_checking(&self, check: u64) -> bool {
        self.checks.contains(check)
    }

    /// Begins a check that a read waits for, unless there are too many.
    pub(crate) fn check_for_read(&mut self, span: Span) -> Option<u64> {
        let has_room = self.checks.count(false) < MOST_FOR_READS;
        has_room.then(|| self.checks.add(None, None, span))
    }

    /// The copy that a check was told to believe.
    pub(super) fn believed_by(&self, base: &Replication, check: u64) -> ChildSet {
        let named = self.checks.all.get(&check).and_then(|check| check.believed);
        named
            .and_then(|replica| base.replicas.slot_of(replica))
            .map_or(ChildSet::NONE, ChildSet::one)
    }

    /// Starts the next chunk of a check, those that reads wait for first.
    pub(super) fn next_check(&mut self, base: &mut Replication, may_yield: bool) -> bool {
        let most = base.cx.config().chunk;
        for is_ordered in [false, true] {
            if is_ordered && may_yield {
                return false;
            }
            let of_kind = |(_, check): &(&u64, &Check)| check.token.is_some() == is_ordered;
            let next = self.checks.all.iter().filter(of_kind).find_map(|(number, check)| {
                let span = check.rest.front()?;
                let end = Lba(span.start().0.saturating_add(most.0.max(1))).min(span.end());
                let chunk = Span::between(span.start(), end)?;
                may_check(base, chunk).then_some((*number, chunk))
            });
            let Some((number, chunk)) = next else { continue };
            let Some(check) = self.checks.all.get_mut(&number) else { continue };
            if let Some(span) = check.rest.pop_front() {
                check.rest.extend(Span::between(chunk.end(), span.end()));
            }
            check.left += 1;
            self.start_copy(base, CopyPurpose::Check(number), number, chunk);
            return true;
        }
        false
    }

    /// A chunk has ended; if not well, it is begun anew later.
    pub(super) fn check_ended(
        &mut self,
        base: &mut Replication,
        number: u64,
        span: Span,
        complete: bool,
    ) {
        let Some(check) = self.checks.all.get_mut(&number) else { return };
        check.left = check.left.saturating_sub(1);
        if !complete {
            check.rest.push_back(span);
        }
        if check.left == 0 && check.rest.is_empty() {
            self.end_check(base, number, Ok(()));
        }
    }

    fn end_check(&mut self, base: &mut Replication, number: u64, result: Result<(), Problem>) {
        let Some(mut check) = self.checks.all.remove(&number) else { return };
        base.cx.rescan();
        let Some(token) = check.token else { return };
        if result.is_ok() {
            check.found.unreadable.sort_unstable_by_key(|span| span.start());
            check.found.differing.sort_unstable_by_key(|(span, _)| span.start());
            base.cx.emit(Effect::Checked { token, found: Box::new(check.found) });
        }
        base.cx.answer(token, result);
    }

    /// Gives up all checks: the target stops, or nothing can be served.
    pub(crate) fn drop_checks(&mut self, base: &mut Replication, why: &Problem) {
        let numbers: Vec<u64> = self.checks.all.keys().copied().collect();
        for number in numbers {
            self.end_check(base, number, Err(why.clone()));
            self.drop_copies(base, CopyPurpose::Check(number));
        }
    }

    /// All copies have said what they hold of a piece.
    pub(super) fn judge_piece(&mut self, base: &mut Replication, ticket: Ticket, number: u64) {
        let Some((differing, damaged)) = self.found_in_piece(base, ticket) else { return };
        let Some(span) = self.copies.get(&ticket).map(ChunkCopy::piece) else { return };
        if !differing.either(damaged).is_empty() && base.log.in_doubt().touches(span) {
            // They may: that is settled first.
            return self.end_copy(base, ticket, false);
        }
        let source = self.copies.get(&ticket).and_then(|copy| copy.source);
        let named = self.believed_by(base, number);
        let replicas = differing.iter().chain(source);
        let replicas: Vec<ReplicaId> =
            replicas.filter_map(|slot| base.replicas.replica_in(slot)).collect();
        let is_named =
            source.is_some_and(|slot| named.contains(slot)) && base.replicas.are_all_in_sync();
        if let Some(check) = self.checks.all.get_mut(&number) {
            check.found.bad += u64::from(damaged.len()) * span.len().0;
            if !differing.is_empty() {
                check.found.differing.push((span, replicas.clone()));
            }
        }
        if !differing.is_empty() {
            base.cx.emit(Effect::Differing(span, replicas));
            if !is_named {
                self.spare(ticket, differing);
            }
        }
        self.write_piece(base, ticket);
    }

    pub(super) fn note_repaired(&mut self, check: u64, span: Span) {
        if let Some(check) = self.checks.all.get_mut(&check) {
            check.found.repaired += span.len().0;
        }
    }

    /// No copy can give these blocks; what becomes of them.
    pub(super) fn note_unreadable(
        &mut self,
        base: &mut Replication,
        number: u64,
        span: Span,
    ) -> UnreadableBlocks {
        let (copies, is_whole) =
            (u64::from(base.replicas.in_sync().len()), base.replicas.are_all_in_sync());
        base.cx.emit(Effect::Unreadable(span));
        let Some(check) = self.checks.all.get_mut(&number) else { return UnreadableBlocks::Tell };
        check.found.bad += copies * span.len().0;
        check.found.unreadable.push(span);
        if is_whole { check.unreadable } else { UnreadableBlocks::Tell }
    }
}

/// Whether bytes are there, but not those that were written.
pub(super) fn is_damage(fault: IoError) -> bool {
    matches!(fault, IoError::Checksum { .. } | IoError::Medium { .. } | IoError::Unproven { .. })
}

/// Whether copies can be compared there now.
pub(super) fn may_check(base: &Replication, span: Span) -> bool {
    base.is_settled() && !base.replicas.in_sync().is_empty() && !base.log.in_doubt().touches(span)
}
