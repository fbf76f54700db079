//! Reservations of hosts on volumes: from the subsystem to the volume that keeps them, and back.
//!
//! ```text
//!   host ─► Subsystem ─ Effect::Persist ─► Volumes::keep_reservations ─► notes of the replicas
//!             ▲  ▲                                   │
//!             │  └──────── persisted ◄── kept, or not┘
//!             ├─ ownership_proved ◄── Volumes::prove_ownership ◄─ Effect::ProveOwnership
//!             └─ restore_reservations ◄── the volume is open: what was found
//! ```

use model::{HeldReservation, HostIdentifier, HostReservations, Registrant, ReservationKind};
use nvme::target::{Holder, Registration, Reservation, Reservations};
use nvme::wire::ReservationType;
use reactor::{Io, Key};

use super::shard::Shard;
use super::volume_admin::{NSID, name_of};
use crate::volumes::{ReservationNews, ReservationWrite};

impl Shard {
    /// Tells subsystems what volumes say of reservations. Returns whether there was anything.
    pub(super) fn hear_of_reservations(&mut self) -> bool {
        let mut heard = false;
        while let Some((volume, news)) = self.volumes.reservation_news() {
            heard = true;
            let key = match news {
                ReservationNews::Kept { by, .. } => Some(Key::from_bits(by.subsystem)),
                ReservationNews::Proved { by, .. } => Some(Key::from_bits(by.subsystem)),
                _ => name_of(volume).ok().and_then(|nqn| self.subsystem_of(&nqn)),
            };
            let Some(key) = key else { continue };
            let Some(exported) = self.subsystems.get_mut(key) else { continue };
            match news {
                ReservationNews::Kept { by, kept } => {
                    exported.subsystem.persisted(NSID, by.version, kept);
                }
                ReservationNews::Proved { by, proved } => {
                    exported.subsystem.ownership_proved(NSID, by.number, proved);
                }
                ReservationNews::Found(found) => {
                    exported.subsystem.restore_reservations(NSID, from_model(&found));
                }
                ReservationNews::Available(available) => {
                    exported.subsystem.set_available(NSID, available);
                }
            }
            self.effects(key);
        }
        heard
    }

    fn subsystem_of(&self, nqn: &nvme::wire::Nqn) -> Option<Key> {
        let mut all = self.subsystems.iter();
        all.find(|(_, exported)| exported.subsystem.nqn() == nqn).map(|(key, _)| key)
    }

    /// Has reservations kept that subsystems want to be, and proved that they are those of the
    /// volume.
    pub(super) fn keep_reservations(&mut self, io: &impl Io) {
        for (volume, write, state) in core::mem::take(&mut self.to_reserve) {
            self.volumes.keep_reservations(volume, write, state, io);
        }
        for (volume, by) in core::mem::take(&mut self.to_prove) {
            self.volumes.prove_ownership(volume, by, io);
        }
    }
}

/// A state on its way to its volume.
pub(super) type ToReserve = (model::VolumeId, ReservationWrite, HostReservations);

/// As they are kept with a volume.
pub(super) fn to_model(reservations: &Reservations) -> HostReservations {
    let registrant =
        |one: &Registration| Registrant { host: HostIdentifier(one.host), key: one.key };
    HostReservations {
        generation: reservations.generation,
        persist: reservations.persist,
        registrants: reservations.registrants.iter().map(registrant).collect(),
        held: reservations.reservation.map(|held| HeldReservation {
            kind: to_kind(held.kind),
            holder: match held.holder {
                Holder::One(host) => Some(HostIdentifier(host)),
                Holder::All => None,
            },
        }),
    }
}

/// As the protocol knows them.
pub(super) fn from_model(kept: &HostReservations) -> Reservations {
    let registration = |one: &Registrant| Registration { host: one.host.0, key: one.key };
    Reservations {
        generation: kept.generation,
        persist: kept.persist,
        registrants: kept.registrants.iter().map(registration).collect(),
        reservation: kept.held.map(|held| Reservation {
            kind: from_kind(held.kind),
            holder: held.holder.map_or(Holder::All, |host| Holder::One(host.0)),
        }),
        least_key: None,
    }
}

fn to_kind(kind: ReservationType) -> ReservationKind {
    match kind {
        ReservationType::WriteExclusive => ReservationKind::WriteExclusive,
        ReservationType::ExclusiveAccess => ReservationKind::ExclusiveAccess,
        ReservationType::WriteExclusiveRegistrants => ReservationKind::WriteExclusiveRegistrants,
        ReservationType::ExclusiveAccessRegistrants => ReservationKind::ExclusiveAccessRegistrants,
        ReservationType::WriteExclusiveAll => ReservationKind::WriteExclusiveAll,
        ReservationType::ExclusiveAccessAll => ReservationKind::ExclusiveAccessAll,
    }
}

fn from_kind(kind: ReservationKind) -> ReservationType {
    match kind {
        ReservationKind::WriteExclusive => ReservationType::WriteExclusive,
        ReservationKind::ExclusiveAccess => ReservationType::ExclusiveAccess,
        ReservationKind::WriteExclusiveRegistrants => ReservationType::WriteExclusiveRegistrants,
        ReservationKind::ExclusiveAccessRegistrants => ReservationType::ExclusiveAccessRegistrants,
        ReservationKind::WriteExclusiveAll => ReservationType::WriteExclusiveAll,
        ReservationKind::ExclusiveAccessAll => ReservationType::ExclusiveAccessAll,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_with_a_volume_is_what_hosts_reserved() {
        for code in 1..=6 {
            let kind = ReservationType::from_code(code).unwrap();
            let holder = if kind.held_by_all() { Holder::All } else { Holder::One([2; 16]) };
            let reservations = Reservations {
                generation: 7,
                persist: code % 2 == 0,
                registrants: vec![
                    Registration { host: [1; 16], key: 0xAB },
                    Registration { host: [2; 16], key: u64::MAX },
                ],
                reservation: Some(Reservation { kind, holder }),
                least_key: None,
            };
            assert_eq!(from_model(&to_model(&reservations)), reservations);
        }
        let none = Reservations::default();
        assert!(to_model(&none).is_unused());
        assert_eq!(from_model(&to_model(&none)), none);
    }
}
