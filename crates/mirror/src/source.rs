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

use crate::api::{Effect, UnreadableBlocks};
use crate::chunk::{ChunkCopy, CopyPurpose, Step};
use crate::context::{Purpose, Ticket};
use crate::mirror::Mirror;
use crate::replicas::{Asked, ChildSet, ChildSlot};

impl Mirror {
    pub(crate) fn pick_source(&mut self, ticket: Ticket) -> Option<ChildSlot> {
        let copy = self.copies.get(&ticket)?;
        let (whose, bad) = (copy.whose, copy.bad);
        let mut able = self.base.replicas.in_sync().without(bad);
        match whose {
            CopyPurpose::Rebuild(_) => {}
            CopyPurpose::Resync => {
                able = self.base.replicas.least_lossy(able);
                // If those that have the most cannot read it, what is left may be older.
                self.base.replicas.note_lost(
                    self.base.replicas.least_loss(bad) < self.base.replicas.least_loss(able),
                );
            }
            CopyPurpose::Check(check) => {
                let named = self.believed_by(check).both(able);
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
    pub(crate) fn read_elsewhere(&mut self, ticket: Ticket, (bad, fault): (ChildSlot, IoError)) {
        let Some(copy) = self.copies.get_mut(&ticket) else { return };
        if copy.split() {
            self.all_need(ticket);
            return self.read_piece(ticket);
        }
        copy.bad.insert(bad);
        if matches!(fault, IoError::Unproven { .. }) && !copy.believed.contains(bad) {
            copy.unproven.insert(bad);
        }
        let whose = copy.whose;
        #[cfg(test)]
        if self.base.cx.broken == crate::tests::Broken::AcceptUnasked && self.accept_one(ticket) {
            return;
        }
        if self.pick_source(ticket).is_some() {
            self.all_need(ticket);
            self.read_piece(ticket);
        } else if !self.accept_one(ticket) {
            self.unreadable(ticket, whose);
        }
    }

    /// **U1** Believes one of the copies that hold the piece without proof; whether there is one.
    fn accept_one(&mut self, ticket: Ticket) -> bool {
        let Some(copy) = self.copies.get(&ticket) else { return false };
        let (span, bad) = (copy.piece(), copy.bad);
        // One that is about to join may be able to prove it, and one that is away, too.
        let able = copy.unproven.both(self.base.replicas.in_sync());
        let all_asked = self.joining().is_empty() && self.base.is_settled();
        #[cfg(test)]
        let able = match self.base.cx.broken {
            crate::tests::Broken::NeverAccepted => ChildSet::NONE,
            _ => able,
        };
        let Some(slot) = self.base.replicas.least_lossy(able).iter().next().filter(|_| all_asked)
        else {
            return false;
        };
        if copy.whose == CopyPurpose::Resync {
            self.base.replicas.note_lost(
                self.base.replicas.least_loss(bad.without(able))
                    < self.base.replicas.least_loss(able),
            );
        }
        let Some(Asked { io, child, session }) = self.base.ask(slot, Purpose::Copy(ticket)) else {
            return false;
        };
        let is_damaged = false;
        self.base.cx.emit(Effect::Accept { io, child, session, span, is_damaged });
        self.sent(ticket, slot, Step::Accepting);
        true
    }

    /// Nobody has the piece, and an operator keeps what this copy holds there; whether it is told.
    fn keep_piece(&mut self, ticket: Ticket, replica: ReplicaId) -> bool {
        let Some(span) = self.copies.get(&ticket).map(ChunkCopy::piece) else { return false };
        let slot = self
            .base
            .replicas
            .slot_of(replica)
            .filter(|slot| self.base.replicas.in_sync().contains(*slot));
        let Some(slot) = slot else { return false };
        let Some(Asked { io, child, session }) = self.base.ask(slot, Purpose::Copy(ticket)) else {
            return false;
        };
        let is_damaged = true;
        self.base.cx.emit(Effect::Accept { io, child, session, span, is_damaged });
        self.sent(ticket, slot, Step::Accepting);
        true
    }

    /// A copy believes the piece: it is the source.
    pub(crate) fn accepted(&mut self, ticket: Ticket, slot: ChildSlot) {
        let Some(copy) = self.copies.get_mut(&ticket) else { return };
        let span = copy.piece();
        let was_unproven = copy.unproven.contains(slot);
        copy.bad.remove(slot);
        copy.unproven.remove(slot);
        copy.believed.insert(slot);
        copy.is_kept = !was_unproven;
        copy.source = Some(slot);
        self.all_need(ticket);
        let replica = self.base.replicas.replica_in(slot);
        if let Some(replica) = replica {
            let told = if was_unproven { Effect::Accepted } else { Effect::Kept };
            self.base.cx.emit(told(replica, span));
        }
    }

    /// A copy that had the piece damaged has it again.
    pub(crate) fn repaired(&mut self, ticket: Ticket, slot: ChildSlot, span: Span) {
        let Some(replica) = self.base.replicas.replica_in(slot) else {
            return;
        };
        self.base.cx.emit(Effect::Repaired(replica, span));
        if let Some(CopyPurpose::Check(check)) = self.copies.get(&ticket).map(|copy| copy.whose) {
            self.note_repaired(check, span);
        }
    }

    /// Nobody has the piece, and somebody agreed to lose it: it becomes a hole on every copy. If
    /// some copies get no further, it is read as zeroes from the others, and repaired.
    fn give_up_piece(&mut self, ticket: Ticket) {
        if let Some(copy) = self.copies.get_mut(&ticket) {
            if let Some((_, written)) = copy.pieces.front_mut() {
                *written = false;
            }
            copy.source = None;
        }
        self.all_need(ticket);
        self.write_piece(ticket);
    }

    /// Copies that may be recorded in sync already although they are not yet.
    fn joining(&self) -> ChildSet {
        self.base
            .replicas
            .required_acks()
            .both(self.base.replicas.write_targets())
            .without(self.base.replicas.in_sync())
    }

    /// No copy in sync can read the piece.
    pub(crate) fn unreadable(&mut self, ticket: Ticket, whose: CopyPurpose) {
        let joining = self.joining();
        let Some(copy) = self.copies.get(&ticket) else { return };
        let (span, was_unproven) = (copy.piece(), !copy.unproven.is_empty());
        // What a copy was told to believe, its disk could not give after all.
        let was_kept = !copy.believed.is_empty();
        match whose {
            // One that is about to join is compared with, and may be able to: it is asked then.
            CopyPurpose::Resync | CopyPurpose::Check(_) if !joining.is_empty() => {
                self.end_copy(ticket, false);
            }
            // Not everybody was asked who may be able to prove it.
            _ if was_unproven && !(joining.is_empty() && self.base.is_settled()) => {
                self.end_copy(ticket, false);
            }
            CopyPurpose::Check(check) if !was_kept => match self.note_unreadable(check, span) {
                UnreadableBlocks::Zero => self.give_up_piece(ticket),
                UnreadableBlocks::Keep(replica) if self.keep_piece(ticket, replica) => {}
                UnreadableBlocks::Keep(_) | UnreadableBlocks::Tell => self.piece_done(ticket),
            },
            // Hosts get an error for this block anyway, whichever copy they ask.
            CopyPurpose::Resync | CopyPurpose::Check(_) => self.piece_done(ticket),
            CopyPurpose::Rebuild(slot) => {
                let detail = alloc::format!("no copy in sync can read {span}; restore it");
                self.rebuild_failed(slot, Problem::new(ProblemKind::NoHealthyReplica, detail));
                self.end_copy(ticket, false);
            }
        }
    }
}
