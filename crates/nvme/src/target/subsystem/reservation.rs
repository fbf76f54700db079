//! Reservations of one namespace: who is registered, who holds it, who may do what.
//!
//! A value and its transitions; the rules are those of the base specification's chapter on
//! reservations. Registrants are hosts, known by their 128-bit identifiers, not controllers.
//!
//! Invariants:
//! - A holder is a registrant.
//! - A reservation that all registrants hold exists only while there is a registrant.
//! - With a least key, no key below it acts, and nobody but a holder touches a block.
//! - The generation changes with every registration, preemption and clearing, and with nothing
//!   else, so that a host that sees the same generation sees the same registrants.
//!
//! Deliberately not here: persistence, aborting commands and telling hosts, which
//! [`Change`] asks of the subsystem.

use alloc::vec::Vec;

use crate::wire::{AcquireAction, RegisterAction, ReleaseAction, ReservationType, Status};

/// Identity of a host.
pub type HostId = [u8; 16];

/// A registered host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration {
    /// The host.
    pub host: HostId,
    /// Its key, not zero.
    pub key: u64,
}

/// Who holds a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// One registrant.
    One(HostId),
    /// All registrants.
    All,
}

/// A reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// Its type.
    pub kind: ReservationType,
    /// Who holds it.
    pub holder: Holder,
}

/// The reservation state of a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reservations {
    /// Changes with the registrants.
    pub generation: u32,
    /// Whether this survives a restart.
    pub persist: bool,
    /// All registrants, in order of registration.
    pub registrants: Vec<Registration>,
    /// The reservation, if one is held.
    pub reservation: Option<Reservation>,
    /// The namespace is guarded: keys are numbers of ownership, and this is the highest that ever
    /// held it. Absent: an ordinary namespace, free to all until somebody reserves it.
    pub least_key: Option<u64>,
}

/// What a command wants with the namespace's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Look at them.
    Read,
    /// Change them, or make changes durable.
    Write,
}

/// Something to tell a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Notice {
    /// Its registration was removed by another host.
    RegistrationPreempted,
    /// A reservation that it had a part in was released.
    ReservationReleased,
    /// A reservation that it had a part in was cleared.
    ReservationPreempted,
}

impl Notice {
    /// Its number in the log page; also its bit in the notification mask.
    pub fn code(self) -> u8 {
        match self {
            Notice::RegistrationPreempted => 1,
            Notice::ReservationReleased => 2,
            Notice::ReservationPreempted => 3,
        }
    }
}

/// What follows from a reservation command beside the new state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Whom to tell what.
    pub notices: Vec<(HostId, Notice)>,
    /// Hosts whose commands on the namespace must end before this one is acknowledged.
    pub abort: Vec<HostId>,
}

/// By how much the key of a guarded namespace may grow at once. Each change of ownership adds one
/// and each recovery from the disks 2^32, so a replica that is new or was away meets large steps;
/// to use up all keys takes 2^16 acquires, each of which is made durable.
pub const MAX_KEY_STEP: u64 = 1 << 48;

/// Most registrants of a namespace.
pub const MAX_REGISTRANTS: usize = 256;

impl Reservations {
    /// Whether `host` may have this access.
    #[inline]
    pub fn permits(&self, host: &HostId, access: Access) -> bool {
        let Some(reservation) = &self.reservation else { return self.least_key.is_none() };
        if access == Access::Read && reservation.kind.all_read() {
            return true;
        }
        if reservation.kind.registrants_only() {
            return self.key_of(host).is_some();
        }
        reservation.holder == Holder::One(*host)
    }

    /// Whether `host` holds the reservation.
    pub fn holds(&self, host: &HostId) -> bool {
        match self.reservation {
            None => false,
            Some(Reservation { holder: Holder::One(holder), .. }) => holder == *host,
            Some(Reservation { holder: Holder::All, .. }) => self.key_of(host).is_some(),
        }
    }

    /// The key of a registrant.
    pub fn key_of(&self, host: &HostId) -> Option<u64> {
        self.registrants.iter().find(|one| one.host == *host).map(|one| one.key)
    }

    /// Register, unregister or replace a key. `current` is `None` if the key is to be ignored.
    pub fn register(
        &mut self,
        host: HostId,
        action: RegisterAction,
        current: Option<u64>,
        new: u64,
    ) -> Result<Change, Status> {
        let registered = self.key_of(&host);
        if action != RegisterAction::Unregister && new == 0 {
            return Err(Status::INVALID_FIELD);
        }
        if action != RegisterAction::Unregister && self.is_outdated(new) {
            return Err(Status::RESERVATION_CONFLICT);
        }
        if action != RegisterAction::Unregister && self.is_absurd(new) {
            return Err(Status::INVALID_FIELD);
        }
        match (action, registered) {
            (RegisterAction::Register, Some(key)) if key == new => Ok(Change::default()),
            (RegisterAction::Register, Some(_)) => Err(Status::RESERVATION_CONFLICT),
            (RegisterAction::Register, None) => self.add(host, new),
            (RegisterAction::Unregister, Some(key)) => {
                if current.is_some_and(|given| given != key) {
                    return Err(Status::RESERVATION_CONFLICT);
                }
                self.generation = self.generation.wrapping_add(1);
                Ok(self.remove(host))
            }
            (RegisterAction::Replace, Some(key)) => {
                if current.is_some_and(|given| given != key) {
                    return Err(Status::RESERVATION_CONFLICT);
                }
                self.generation = self.generation.wrapping_add(1);
                for one in self.registrants.iter_mut().filter(|one| one.host == host) {
                    one.key = new;
                }
                Ok(Change::default())
            }
            // Ignoring the current key replaces a key "regardless of registration status".
            (RegisterAction::Replace, None) if current.is_none() => self.add(host, new),
            (RegisterAction::Unregister | RegisterAction::Replace, None) => {
                Err(Status::RESERVATION_CONFLICT)
            }
        }
    }

    /// Acquire or preempt.
    pub fn acquire(
        &mut self,
        host: HostId,
        action: AcquireAction,
        kind: ReservationType,
        keys: AcquireKeys,
    ) -> Result<Change, Status> {
        if self.key_of(&host) != Some(keys.current) || self.is_outdated(keys.current) {
            return Err(Status::RESERVATION_CONFLICT);
        }
        match action {
            AcquireAction::Acquire => match self.reservation {
                None => {
                    self.take(host, kind);
                    Ok(Change::default())
                }
                Some(held) if held.kind == kind && self.holds(&host) => Ok(Change::default()),
                Some(_) => Err(Status::RESERVATION_CONFLICT),
            },
            AcquireAction::Preempt => self.preempt(host, kind, keys.preempt),
            AcquireAction::PreemptAndAbort => {
                let mut change = self.preempt(host, kind, keys.preempt)?;
                change.abort = change
                    .notices
                    .iter()
                    .filter(|(_, notice)| *notice == Notice::RegistrationPreempted)
                    .map(|(host, _)| *host)
                    .collect();
                Ok(change)
            }
        }
    }

    /// Release or clear. `kind` must be the type that is held, for a release by its holder.
    pub fn release(
        &mut self,
        host: HostId,
        action: ReleaseAction,
        kind: u8,
        current: u64,
    ) -> Result<Change, Status> {
        if self.key_of(&host) != Some(current) {
            return Err(Status::RESERVATION_CONFLICT);
        }
        match (action, self.reservation) {
            (ReleaseAction::Release, Some(held)) if self.holds(&host) => {
                if held.kind.code() != kind {
                    return Err(Status::INVALID_FIELD);
                }
                self.reservation = None;
                Ok(Change { notices: self.released(held.kind, &host), abort: Vec::new() })
            }
            // A registrant that holds nothing has nothing to release.
            (ReleaseAction::Release, _) => Ok(Change::default()),
            (ReleaseAction::Clear, _) => {
                self.generation = self.generation.wrapping_add(1);
                self.reservation = None;
                let others = self.registrants.drain(..).filter(|one| one.host != host);
                let notices = others.map(|one| (one.host, Notice::ReservationPreempted)).collect();
                Ok(Change { notices, abort: Vec::new() })
            }
        }
    }

    fn add(&mut self, host: HostId, key: u64) -> Result<Change, Status> {
        if self.registrants.len() >= MAX_REGISTRANTS {
            return Err(Status::CAPACITY_EXCEEDED);
        }
        self.generation = self.generation.wrapping_add(1);
        self.registrants.push(Registration { host, key });
        Ok(Change::default())
    }

    fn take(&mut self, host: HostId, kind: ReservationType) {
        let holder = if kind.held_by_all() { Holder::All } else { Holder::One(host) };
        self.reservation = Some(Reservation { kind, holder });
        self.least_key = self.least_key.max(self.least_key.and(self.key_of(&host)));
    }

    /// Whether somebody with a higher key has held a guarded namespace.
    fn is_outdated(&self, key: u64) -> bool {
        self.least_key.is_some_and(|least| key < least)
    }

    /// Whether a key is further ahead of the highest that held a guarded namespace than ownership
    /// can have changed hands: with the last key of all nobody could ever follow.
    fn is_absurd(&self, key: u64) -> bool {
        self.least_key.is_some_and(|least| key > least.saturating_add(MAX_KEY_STEP))
    }

    fn preempt(
        &mut self,
        host: HostId,
        kind: ReservationType,
        victim: u64,
    ) -> Result<Change, Status> {
        let held = self.reservation;
        let takes_over = match held {
            None => false,
            Some(Reservation { holder: Holder::All, .. }) => victim == 0,
            Some(Reservation { holder: Holder::One(holder), .. }) => {
                self.key_of(&holder) == Some(victim)
            }
        };
        let everyone = victim == 0;
        if everyone && !takes_over {
            return Err(Status::INVALID_FIELD);
        }
        if !everyone && !self.registrants.iter().any(|one| one.key == victim) {
            return Err(Status::RESERVATION_CONFLICT);
        }
        // A host does not lose its own registration by preempting.
        let goes = |one: &Registration| one.host != host && (everyone || one.key == victim);
        let mut notices: Vec<_> = self
            .registrants
            .iter()
            .filter(|one| goes(one))
            .map(|one| (one.host, Notice::RegistrationPreempted))
            .collect();
        self.registrants.retain(|one| !goes(one));
        self.generation = self.generation.wrapping_add(1);
        if takes_over {
            self.take(host, kind);
            if let Some(old) = held.filter(|old| old.kind != kind) {
                notices.extend(self.released(old.kind, &host));
            }
        }
        Ok(Change { notices, abort: Vec::new() })
    }

    /// Removes a registrant that goes of its own will.
    fn remove(&mut self, host: HostId) -> Change {
        let held_alone = self.reservation.filter(|held| held.holder == Holder::One(host));
        self.registrants.retain(|one| one.host != host);
        let mut notices = Vec::new();
        if let Some(held) = held_alone {
            self.reservation = None;
            notices = self.released(held.kind, &host);
        } else if self.registrants.is_empty() {
            self.reservation = None;
        }
        Change { notices, abort: Vec::new() }
    }

    /// Tells the other registrants, if the reservation gave them something.
    fn released(&self, kind: ReservationType, by: &HostId) -> Vec<(HostId, Notice)> {
        let others = self.registrants.iter().filter(|one| one.host != *by);
        let told = others.filter(|_| kind.registrants_only());
        told.map(|one| (one.host, Notice::ReservationReleased)).collect()
    }
}

/// Keys of an acquire command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcquireKeys {
    /// The host's own.
    pub current: u64,
    /// Of whom to preempt.
    pub preempt: u64,
}
