//! Reservations of hosts on a volume: its mirror keeps them, the subsystem of the volume judges by
//! them.

use block::Instant;
use mirror::{CommandId, Readiness};
use model::{HostReservations, Problem, VolumeId};
use reactor::Io;

use super::volume::Volume;
use super::{Shared, Volumes, touch};
use crate::clock::instant;

/// Who wants reservations to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReservationWrite {
    /// The subsystem, as its core knows it.
    pub(crate) subsystem: u64,
    /// Which state of them.
    pub(crate) version: u64,
}

/// Who wants to know whether a volume is owned here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnershipProof {
    /// The subsystem, as its core knows it.
    pub(crate) subsystem: u64,
    /// Which proof.
    pub(crate) number: u64,
}

/// What a mirror was asked about reservations.
#[derive(Clone, Copy, Debug)]
pub(super) enum ReservationRequest {
    Keep(ReservationWrite),
    Prove(OwnershipProof),
}

impl ReservationRequest {
    /// How it ended.
    fn ended(self, well: bool) -> ReservationNews {
        match self {
            ReservationRequest::Keep(by) => ReservationNews::Kept { by, kept: well },
            ReservationRequest::Prove(by) => ReservationNews::Proved { by, proved: well },
        }
    }
}

/// What a volume says of reservations.
#[derive(Debug)]
pub(crate) enum ReservationNews {
    /// They are kept, or not.
    Kept {
        /// Who asked.
        by: ReservationWrite,
        /// Whether every later owner finds them.
        kept: bool,
    },
    /// The volume is owned here, or perhaps not.
    Proved {
        /// Who asked.
        by: OwnershipProof,
        /// Whether nobody else owned it when that was asked.
        proved: bool,
    },
    /// The volume opens with these.
    Found(Box<HostReservations>),
    /// Whether it may still open.
    Available(bool),
}

impl Volumes {
    /// Keeps reservations with a volume, instead of those before.
    pub(crate) fn keep_reservations(
        &mut self,
        volume: VolumeId,
        by: ReservationWrite,
        state: HostReservations,
        io: &impl Io,
    ) {
        if let Some(open) = self.open.get_mut(&volume) {
            open.keep_reservations(by, state, instant(io));
            touch(&mut self.touched, volume, open);
        } else {
            let news = ReservationNews::Kept { by, kept: false };
            self.shared.reservations.push_back((volume, news));
        }
    }

    /// Finds out whether a volume is owned here.
    pub(crate) fn prove_ownership(&mut self, volume: VolumeId, by: OwnershipProof, io: &impl Io) {
        if let Some(open) = self.open.get_mut(&volume) {
            open.prove_ownership(by, instant(io));
            touch(&mut self.touched, volume, open);
        } else {
            let news = ReservationNews::Proved { by, proved: false };
            self.shared.reservations.push_back((volume, news));
        }
    }

    /// The next thing that a volume says of reservations.
    pub(crate) fn reservation_news(&mut self) -> Option<(VolumeId, ReservationNews)> {
        self.shared.reservations.pop_front()
    }
}

impl Volume {
    /// A name for something that the mirror answers.
    pub(super) fn next_token(&mut self) -> u64 {
        self.next_order += 1;
        self.next_order
    }

    fn keep_reservations(&mut self, by: ReservationWrite, state: HostReservations, now: Instant) {
        let token = self.next_token();
        self.reserving.insert(token, ReservationRequest::Keep(by));
        self.mirror.keep_reservations(CommandId(token), state, now);
    }

    fn prove_ownership(&mut self, by: OwnershipProof, now: Instant) {
        let token = self.next_token();
        self.reserving.insert(token, ReservationRequest::Prove(by));
        self.mirror.prove_ownership(CommandId(token), now);
    }

    /// An order has ended; whether it was about reservations.
    pub(super) fn reservations_answered(
        &mut self,
        token: u64,
        result: &Result<(), Problem>,
        shared: &mut Shared,
    ) -> bool {
        let Some(request) = self.reserving.remove(&token) else { return false };
        let volume = self.id();
        match (result, request) {
            (Ok(()), _) => {}
            (Err(problem), ReservationRequest::Keep(_)) => {
                tracing::error!(
                    %volume, %problem, "reservations cannot be kept; the host is told so"
                );
            }
            (Err(problem), ReservationRequest::Prove(_)) => {
                tracing::debug!(
                    %volume, %problem, "hosts that ask about reservations are sent to other paths"
                );
            }
        }
        shared.reservations.push_back((volume, request.ended(result.is_ok())));
        true
    }

    /// Says so if commands of hosts can be judged from now on, or fail, or wait again.
    pub(super) fn tell_readiness(&mut self, shared: &mut Shared) {
        let readiness = self.mirror.readiness();
        if core::mem::replace(&mut self.readiness, readiness) == readiness {
            return;
        }
        let found = self.mirror.reservations().filter(|_| readiness == Readiness::Ready);
        let news = match found {
            Some(found) => ReservationNews::Found(Box::new(found.clone())),
            None => ReservationNews::Available(readiness == Readiness::Opening),
        };
        shared.reservations.push_back((self.id(), news));
    }
}
