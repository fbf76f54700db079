//! Where a piece is copied from, if not everybody can read it.
//!
//! ```text
//!   read A ──good──► the piece is there; whoever has it damaged or unproven gets it
//!     │ Checksum, Medium, Unproven: block by block
//!     ▼
//!   read the next copy in sync ... until none is left
//!     │ one said Unproven                               │ none did
//!     ▼                                                 ▼
//!   Accept on one of those, the least lossy ──► read    nobody has it: told, left as it is
//! ```
//!
//! Invariant (**U1**): a block without a proven checksum is believed only when every copy that is
//! recorded in sync was asked and none could prove it, and never one whose checksum is wrong.

use block::{IoError, Span};
use model::{Problem, ProblemKind, ReplicaId};

use super::Rebuilder;
use super::chunk::{ChunkCopy, CopyPurpose, Step};
use crate::api::{Effect, UnreadableBlocks};
use crate::context::{Purpose, Ticket};
use crate::replicas::{Asked, ChildSet, ChildSlot};
use crate::replication::Replication;

impl Rebuilder {
    pub(super) fn pick_source(
        &mut self,
        base: &mut Replication,
        ticket: Ticket,
    ) -> Option<ChildSlot> {
        let copy = self.copies.get(&ticket)?;
        let (whose, bad) = (copy.whose, copy.bad);
        let mut able = base.replicas.in_sync().without(bad);
        match whose {
            CopyPurpose::Rebuild(_) => {}
            CopyPurpose::Resync => {
                able = base.replicas.least_lossy(able);
                // If those that have the most cannot read it, what is left may be older.
                base.replicas
                    .note_lost(base.replicas.least_loss(bad) < base.replicas.least_loss(able));
            }
            CopyPurpose::Check(check) => {
                let named = self.believed_by(base, check).both(able);
                able = if named.is_empty() { able } else { named };
            }
        }
        // Several sources: chunks go around.
        let nth =
            usize::try_from(ticket).unwrap_or(0) % usize::try_from(able.len().max(1)).unwrap_or(1);
        let source = able.iter().nth(nth);
        let copy = self.copies.get_mut(&ticket)?;
        copy.source = source;
        source
    }

    /// The source cannot read the piece: block by block, then from elsewhere.
    pub(super) fn read_elsewhere(
        &mut self,
        base: &mut Replication,
        ticket: Ticket,
        bad: ChildSlot,
        fault: IoError,
    ) {
        let Some(copy) = self.copies.get_mut(&ticket) else { return };
        if copy.split() {
            self.all_need(base, ticket);
            return self.read_piece(base, ticket);
        }
        copy.bad.insert(bad);
        if matches!(fault, IoError::Unproven { .. }) && !copy.believed.contains(bad) {
            copy.unproven.insert(bad);
        }
        let whose = copy.whose;
        #[cfg(test)]
        if base.cx.broken == crate::tests::Broken::AcceptUnasked && self.accept_one(base, ticket) {
            return;
        }
        if self.pick_source(base, ticket).is_some() {
            self.all_need(base, ticket);
            self.read_piece(base, ticket);
        } else if !self.accept_one(base, ticket) {
            self.unreadable(base, ticket, whose);
        }
    }

    /// **U1** Believes one of the copies that hold the piece without proof; whether there is one.
    fn accept_one(&mut self, base: &mut Replication, ticket: Ticket) -> bool {
        let Some(copy) = self.copies.get(&ticket) else { return false };
        let (span, bad) = (copy.piece(), copy.bad);
        // One that is about to join may be able to prove it, and one that is away, too.
        let able = copy.unproven.both(base.replicas.in_sync());
        let all_asked = joining(base).is_empty() && base.is_settled();
        #[cfg(test)]
        let able = match base.cx.broken {
            crate::tests::Broken::NeverAccepted => ChildSet::NONE,
            _ => able,
        };
        let Some(slot) = base.replicas.least_lossy(able).iter().next().filter(|_| all_asked) else {
            return false;
        };
        if copy.whose == CopyPurpose::Resync {
            base.replicas.note_lost(
                base.replicas.least_loss(bad.without(able)) < base.replicas.least_loss(able),
            );
        }
        let Some(Asked { io, child, session }) = base.ask(slot, Purpose::Copy(ticket)) else {
            return false;
        };
        let is_damaged = false;
        base.cx.emit(Effect::Accept { io, child, session, span, is_damaged });
        self.sent(ticket, slot, Step::Accepting);
        true
    }

    /// Nobody has the piece, and an operator keeps what this copy holds there; whether it is told.
    fn keep_piece(&mut self, base: &mut Replication, ticket: Ticket, replica: ReplicaId) -> bool {
        let Some(span) = self.copies.get(&ticket).map(ChunkCopy::piece) else { return false };
        let slot =
            base.replicas.slot_of(replica).filter(|slot| base.replicas.in_sync().contains(*slot));
        let Some(slot) = slot else { return false };
        let Some(Asked { io, child, session }) = base.ask(slot, Purpose::Copy(ticket)) else {
            return false;
        };
        let is_damaged = true;
        base.cx.emit(Effect::Accept { io, child, session, span, is_damaged });
        self.sent(ticket, slot, Step::Accepting);
        true
    }

    /// A copy believes the piece: it is the source.
    pub(super) fn accepted(&mut self, base: &mut Replication, ticket: Ticket, slot: ChildSlot) {
        let Some(copy) = self.copies.get_mut(&ticket) else { return };
        let span = copy.piece();
        let was_unproven = copy.unproven.contains(slot);
        copy.bad.remove(slot);
        copy.unproven.remove(slot);
        copy.believed.insert(slot);
        copy.is_kept = !was_unproven;
        copy.source = Some(slot);
        self.all_need(base, ticket);
        let replica = base.replicas.replica_in(slot);
        if let Some(replica) = replica {
            let told = if was_unproven { Effect::Accepted } else { Effect::Kept };
            base.cx.emit(told(replica, span));
        }
    }

    /// A copy that had the piece damaged has it again.
    pub(super) fn repaired(
        &mut self,
        base: &mut Replication,
        ticket: Ticket,
        slot: ChildSlot,
        span: Span,
    ) {
        let Some(replica) = base.replicas.replica_in(slot) else {
            return;
        };
        base.cx.emit(Effect::Repaired(replica, span));
        if let Some(CopyPurpose::Check(check)) = self.copies.get(&ticket).map(|copy| copy.whose) {
            self.note_repaired(check, span);
        }
    }

    /// Nobody has the piece, and somebody agreed to lose it: it becomes a hole on every copy. If
    /// some copies get no further, it is read as zeroes from the others, and repaired.
    fn give_up_piece(&mut self, base: &mut Replication, ticket: Ticket) {
        if let Some(copy) = self.copies.get_mut(&ticket) {
            if let Some((_, written)) = copy.pieces.front_mut() {
                *written = false;
            }
            copy.source = None;
        }
        self.all_need(base, ticket);
        self.write_piece(base, ticket);
    }

    /// No copy in sync can read the piece.
    pub(super) fn unreadable(
        &mut self,
        base: &mut Replication,
        ticket: Ticket,
        whose: CopyPurpose,
    ) {
        let joining = joining(base);
        #[cfg(test)]
        let joining = match base.cx.broken {
            crate::tests::Broken::JoinerNotAsked => ChildSet::NONE,
            _ => joining,
        };
        let Some(copy) = self.copies.get(&ticket) else { return };
        let (span, was_unproven) = (copy.piece(), !copy.unproven.is_empty());
        // What a copy was told to believe, its disk could not give after all.
        let was_kept = !copy.believed.is_empty();
        match whose {
            // One that is about to join is compared with, and may be able to: it is asked then.
            CopyPurpose::Resync | CopyPurpose::Check(_) if !joining.is_empty() => {
                self.end_copy(base, ticket, false);
            }
            // Not everybody was asked who may be able to prove it.
            _ if was_unproven && !(joining.is_empty() && base.is_settled()) => {
                self.end_copy(base, ticket, false);
            }
            CopyPurpose::Check(check) if !was_kept => match self.note_unreadable(base, check, span)
            {
                UnreadableBlocks::Zero => self.give_up_piece(base, ticket),
                UnreadableBlocks::Keep(replica) if self.keep_piece(base, ticket, replica) => {}
                UnreadableBlocks::Keep(_) | UnreadableBlocks::Tell => self.piece_done(base, ticket),
            },
            // Hosts get an error for this block anyway, whichever copy they ask.
            CopyPurpose::Resync | CopyPurpose::Check(_) => self.piece_done(base, ticket),
            CopyPurpose::Rebuild(slot) => {
                let detail = alloc::format!("no copy in sync can read {span}; restore it");
                // Its copies end with it, this one among them.
                self.failed = Some((slot, Problem::new(ProblemKind::NoHealthyReplica, detail)));
            }
        }
    }
}

/// Copies that may be recorded in sync already although they are not yet.
fn joining(base: &Replication) -> ChildSet {
    base.replicas
        .required_acks()
        .both(base.replicas.write_targets())
        .without(base.replicas.in_sync())
}
