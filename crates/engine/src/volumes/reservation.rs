//! Reservations of hosts on a volume: its mirror keeps them, the subsystem of the volume judges by
//! them.

use block::Instant;
use mirror::{Readiness, Token};
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
        self.reserving.insert(token, by);
        self.mirror.keep_reservations(Token(token), state, now);
    }

    /// An order has ended; whether it was to keep reservations.
    pub(super) fn reservations_kept(
        &mut self,
        token: u64,
        result: &Result<(), Problem>,
        shared: &mut Shared,
    ) -> bool {
        let Some(by) = self.reserving.remove(&token) else { return false };
        if let Err(problem) = result {
            let volume = self.id();
            tracing::error!(%volume, %problem, "reservations cannot be kept; the host is told so");
        }
        let news = ReservationNews::Kept { by, kept: result.is_ok() };
        shared.reservations.push_back((self.id(), news));
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
