//! Reservations of hosts: kept in the note, handed to the next owner.
//!
//! ```text
//!   keep_reservations ──► next version of the note ──► on every copy that anybody may call in sync
//!                                                        │                          │
//!              hosts have waited long enough ──► refused ┘        Answer: kept ◄────┘
//!
//!   open: the newest note of a copy in sync ──► Mirror::reservations ──► served
//! ```
//!
//! **H1** A state that was answered well is in the notes of all copies that anybody may call in
//! sync. Notes are replaced as a whole and by newer ones only, and a copy joins those in sync with
//! the note of its target. So whichever copy in sync a later owner finds, the newest note has that
//! state or a later one. A refused state may be found or not: the host was told so.
//!
//! **H2** An answer that rests on the state and changes nothing (a report, a repetition, a
//! conflict) is given only while a read could be (R1): a former owner says nothing of reservations
//! that a newer one may have changed. [`Mirror::prove_ownership`] says when.
//!
//! Deliberately not here: what reservations mean, and refusing commands by them (the target).

use alloc::vec::Vec;

use block::Instant;
use model::{Epoch, HostReservations, Problem, ProblemKind, SyncMetadata};

use crate::api::CommandId;
use crate::mirror::Mirror;

/// Most states that wait to be kept.
const WAITING: usize = 64;

/// The reservations of a volume, and who waits until they are kept.
#[derive(Debug, Default)]
pub(crate) struct Reservations {
    state: HostReservations,
    /// The newest note that was found.
    found: Option<(Epoch, u64)>,
    /// Who waits for which version of the note.
    keeping: Vec<(CommandId, u64)>,
    /// Who waits for a proof of ownership, and the last I/O that was named before it asked.
    proving: Vec<(CommandId, u64)>,
}

impl Reservations {
    pub(crate) fn state(&self) -> &HostReservations {
        &self.state
    }

    /// Takes what was found with a copy in sync, if nothing newer was.
    pub(crate) fn adopt(&mut self, note: &SyncMetadata) {
        let age = (note.label.epoch, note.sequence);
        if self.found.is_none_or(|found| found < age) {
            (self.state, self.found) = ((*note.reservations).clone(), Some(age));
        }
    }
}

/// Whether hosts' commands can be judged by the reservations of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// It opens; they are not known yet.
    Opening,
    /// It did not open in time: what hosts ask fails until it does.
    Unavailable,
    /// They are known.
    Ready,
    /// It serves nothing and never will again: another owner may know better.
    Down,
}

impl Mirror {
    /// Whether hosts' commands can be judged by the reservations of the volume.
    pub fn readiness(&self) -> Readiness {
        self.base.service.readiness()
    }

    /// The reservations of hosts, once it has opened: what was found then, or came later.
    pub fn reservations(&self) -> Option<&HostReservations> {
        self.base.service.is_open().then_some(&self.reserved.state)
    }

    /// Keeps the reservations of hosts with the volume, instead of those before; it ends with an
    /// [`Effect::Answer`](crate::Effect::Answer).
    pub fn keep_reservations(&mut self, token: CommandId, state: HostReservations, now: Instant) {
        self.base.cx.pass(now);
        if let Err(problem) = self.admit_reservation(self.reserved.keeping.len()) {
            self.base.cx.answer(token, Err(problem));
        } else {
            self.reserved.state = state;
            let version = self.base.change_note();
            self.reserved.keeping.push((token, version));
        }
        self.tick(now);
    }

    /// Proves that this target owns the volume (H2): it ends well, with an
    /// [`Effect::Answer`](crate::Effect::Answer), when every copy that anybody may call in sync has
    /// done something for it within the lease, or since this was asked.
    pub fn prove_ownership(&mut self, token: CommandId, now: Instant) {
        self.base.cx.pass(now);
        if let Err(problem) = self.admit_reservation(self.reserved.proving.len()) {
            self.base.cx.answer(token, Err(problem));
        } else {
            self.reserved.proving.push((token, self.base.cx.last_request()));
        }
        self.tick(now);
    }

    /// Whether one more may wait, beside so many.
    fn admit_reservation(&self, waiting: usize) -> Result<(), Problem> {
        if self.base.service.is_down() || self.base.service.is_stopping() {
            Err(Problem::new(ProblemKind::Fenced, "the target is shut down; ask the newer one"))
        } else if !self.base.service.is_open() {
            Err(Problem::new(ProblemKind::Unavailable, "the volume opens; try again"))
        } else if waiting >= WAITING {
            Err(Problem::new(ProblemKind::Busy, "too many reservations wait; try again"))
        } else {
            Ok(())
        }
    }

    /// Answers whose state is kept, and those who have waited long enough.
    pub(crate) fn pump_reservations(&mut self) {
        let proving = core::mem::take(&mut self.reserved.proving);
        for (token, since) in proving {
            if self.base.prove_since(since) {
                self.base.cx.answer(token, Ok(()));
            } else {
                self.reserved.proving.push((token, since));
            }
        }
        if self.reserved.keeping.is_empty() && self.reserved.proving.is_empty() {
            return;
        }
        let durable = if self.are_notes_everywhere() { self.base.durable_version() } else { 0 };
        let waiting = core::mem::take(&mut self.reserved.keeping);
        let (kept, waiting): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|(_, version)| *version <= durable);
        for (token, _) in kept {
            self.base.cx.answer(token, Ok(()));
        }
        self.reserved.keeping = waiting;
        if self.base.service.is_failing() {
            let detail = "a copy in sync is away, and that cannot be recorded; try again";
            self.refuse_reservations(&Problem::new(ProblemKind::Unavailable, detail));
        }
    }

    /// Nobody who waits can be told that it is kept.
    pub(crate) fn refuse_reservations(&mut self, why: &Problem) {
        let proving = core::mem::take(&mut self.reserved.proving);
        for (token, _) in core::mem::take(&mut self.reserved.keeping).into_iter().chain(proving) {
            self.base.cx.answer(token, Err(why.clone()));
        }
    }

    /// Whether every copy that anybody may call in sync gets the notes (H1).
    fn are_notes_everywhere(&self) -> bool {
        #[cfg(test)]
        if self.base.cx.broken == crate::tests::Broken::ReservationsOnSome {
            return true;
        }
        self.base.is_settled()
    }
}
