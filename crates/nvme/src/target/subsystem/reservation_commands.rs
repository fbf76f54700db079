//! Reservation commands on a subsystem: what must happen before they are acknowledged.
//!
//! Invariants:
//! - **Durable**: states are numbered. An answer that rests on a state (a change, a repetition of
//!   one, a report) is good only when a state with that number or a higher one is durable. So a
//!   state that needs no writing by itself is written if an earlier one is not durable yet.
//! - **Alone**: a fence stays up until no command that it aborts is at work, whatever became of the
//!   command that raised it. An answer that says who owns the namespace (acquire, preempt, report)
//!   waits for all fences that were up when it was asked.
//! - **Owned**: an answer about a volume that another node may serve by now, a conflict included,
//!   waits for a proof that was asked for after the command had come.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::super::event::ConnId;
use super::namespace::Ownership;
use super::{
    Change, HostId, Namespace, Notice, Readiness, ReservationHome, Reservations, Subsystem, refusal,
};
use crate::wire::{AsyncEvent, Status};

/// What waits for the commands of others to end.
#[derive(Clone, Debug)]
pub(super) struct Fence {
    nsid: u32,
    /// Connections that may still have commands at work.
    waiting: BTreeSet<ConnId>,
}

/// What a reservation command waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::target) struct Hold {
    nsid: u32,
    /// This state of the reservations must be durable.
    version: u64,
    /// Fences of the namespace with lower numbers must be passed.
    fences: u64,
    /// The namespace must be proved to be owned here, with this number or a higher one.
    proof: u64,
}

/// How a hold stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::target) enum HoldState {
    Waiting,
    Over(Status),
}

/// Whose commands must have ended.
enum Victims<'a> {
    Hosts(&'a [HostId]),
    AllBut(HostId),
}

impl Victims<'_> {
    fn contains(&self, host: &HostId) -> bool {
        match self {
            Victims::Hosts(hosts) => hosts.contains(host),
            Victims::AllBut(owner) => host != owner,
        }
    }
}

impl Subsystem {
    /// Carries out a reservation command.
    ///
    /// `persist` switches persistence through power loss, if it is given.
    pub(in crate::target) fn reserve(
        &mut self,
        nsid: u32,
        persist: Option<bool>,
        command: impl FnOnce(&mut Reservations) -> Result<Change, Status>,
    ) -> Result<Hold, Status> {
        let change = self.change(nsid, persist, command)?;
        for (host, notice) in &change.notices {
            self.notify(nsid, host, *notice);
        }
        Ok(self.hold_for(nsid, 0))
    }

    /// Carries out an acquire or preempt of `host`, which came on `conn`.
    pub(in crate::target) fn acquire(
        &mut self,
        (conn, host): (ConnId, HostId),
        nsid: u32,
        command: impl FnOnce(&mut Reservations) -> Result<Change, Status>,
    ) -> Result<Hold, Status> {
        let change = self.change(nsid, None, command)?;
        for (host, notice) in &change.notices {
            self.notify(nsid, host, *notice);
        }
        // Whoever owns a guarded namespace is alone on it, however the others lost it.
        let reservations = self.namespaces.get(&nsid).map(Namespace::reservations);
        let is_guarded = reservations.is_some_and(|state| state.least_key.is_some());
        let victims =
            if is_guarded { Victims::AllBut(host) } else { Victims::Hosts(&change.abort) };
        self.raise_fence(conn, nsid, &victims);
        Ok(self.hold_for(nsid, self.next_fence))
    }

    /// What a report of the present state waits for.
    pub(in crate::target) fn report(&mut self, nsid: u32) -> Result<Hold, Status> {
        self.change(nsid, None, |_| Ok(Change::default()))?;
        Ok(self.hold_for(nsid, self.next_fence))
    }

    /// What the refusal of a command for its conflict with a reservation waits for, if anything.
    pub(in crate::target) fn conflict(&mut self, nsid: u32) -> Option<Hold> {
        let proof = self.ask_for_proof(nsid);
        (proof > 0).then_some(Hold { nsid, version: 0, fences: 0, proof })
    }

    /// What an answer about the present state waits for.
    fn hold_for(&mut self, nsid: u32, fences: u64) -> Hold {
        let version = self.namespaces.get(&nsid).map_or(0, |namespace| namespace.version);
        Hold { nsid, version, fences, proof: self.ask_for_proof(nsid) }
    }

    /// Asks for a proof that a volume is owned here: its number. What is kept with the device is.
    fn ask_for_proof(&mut self, nsid: u32) -> u64 {
        let of_volume = |one: &&mut Namespace| {
            matches!(one.config.reservation_home, ReservationHome::Volume { .. })
        };
        let Some(namespace) = self.namespaces.get_mut(&nsid).filter(of_volume) else { return 0 };
        namespace.ownership.asked += 1;
        self.prove.insert(nsid);
        namespace.ownership.asked
    }

    /// The driver has found out whether the volume of a namespace is owned here.
    pub fn ownership_proved(&mut self, nsid: u32, number: u64, proved: bool) {
        let Some(namespace) = self.namespaces.get_mut(&nsid) else { return };
        let Ownership { asked, .. } = namespace.ownership;
        let of = &mut namespace.ownership;
        let mark = if proved { &mut of.proved } else { &mut of.failed };
        *mark = (*mark).max(number.min(asked));
        self.wake_all();
    }

    /// Changes the state, and has it written if an answer about it has to wait for that.
    fn change(
        &mut self,
        nsid: u32,
        persist: Option<bool>,
        command: impl FnOnce(&mut Reservations) -> Result<Change, Status>,
    ) -> Result<Change, Status> {
        let namespace = self.namespaces.get_mut(&nsid).ok_or(Status::INVALID_NAMESPACE)?;
        if namespace.readiness != Readiness::Ready {
            return Err(Status::INTERNAL_PATH_ERROR);
        }
        let (is_always_kept, most) = namespace.reservation_limits();
        let reservations = &mut namespace.config.reservations;
        let before = reservations.clone();
        let change = command(reservations)?;
        if reservations.registrants.len() > most.max(before.registrants.len()) {
            *reservations = before;
            return Err(Status::CAPACITY_EXCEEDED);
        }
        reservations.persist = persist.unwrap_or(reservations.persist);
        let is_changed = *reservations != before;
        // What does not persist needs no writing, unless the old state has to be forgotten.
        let is_persistent = is_always_kept
            || reservations.persist
            || before.persist
            || reservations.least_key != before.least_key;
        let was_durable = namespace.settled == namespace.version;
        let was_given_up = !was_durable && namespace.failed == namespace.version;
        if is_changed || was_given_up {
            namespace.version += 1;
            if is_persistent || !was_durable {
                self.persist.insert(nsid);
            } else {
                namespace.settled = namespace.version;
            }
        }
        Ok(change)
    }

    /// The volume of a namespace is open, and these are its reservations: commands that waited are
    /// carried out. What was found may be what only one copy has, so answers about it wait until
    /// it is written again, unless nobody ever registered.
    pub fn restore_reservations(&mut self, nsid: u32, reservations: Reservations) {
        let Some(namespace) = self.namespaces.get_mut(&nsid) else { return };
        if namespace.readiness == Readiness::Ready {
            return;
        }
        if reservations != Reservations::default() {
            namespace.version += 1;
            self.persist.insert(nsid);
        }
        namespace.config.reservations = reservations;
        namespace.readiness = Readiness::Ready;
        self.opening.remove(&nsid);
        self.wake_all();
    }

    /// The volume of a namespace did not open in time or is served elsewhere, or opens after all.
    pub fn set_available(&mut self, nsid: u32, available: bool) {
        let Some(namespace) = self.namespaces.get_mut(&nsid) else { return };
        namespace.readiness = match (namespace.readiness, available) {
            (Readiness::Unavailable, true) => Readiness::Opening,
            (now, true) => now,
            (_, false) => Readiness::Unavailable,
        };
        if namespace.readiness == Readiness::Opening {
            self.opening.insert(nsid);
        } else {
            self.opening.remove(&nsid);
        }
        self.wake_all();
    }

    /// Whether commands on any namespace wait until its reservations are known.
    #[inline]
    pub(in crate::target) fn has_opening(&self) -> bool {
        !self.opening.is_empty()
    }

    /// Whether commands on a namespace do.
    pub(in crate::target) fn is_opening(&self, nsid: u32) -> bool {
        self.opening.contains(&nsid)
            && self.namespaces.get(&nsid).is_some_and(|namespace| {
                refusal(self.ana.state(namespace.config.ana_group)).is_none()
            })
    }

    /// The driver made a reservation state durable, or failed to.
    pub fn persisted(&mut self, nsid: u32, version: u64, done: bool) {
        let Some(namespace) = self.namespaces.get_mut(&nsid) else { return };
        let mark = if done { &mut namespace.settled } else { &mut namespace.failed };
        *mark = (*mark).max(version.min(namespace.version));
        self.wake_all();
    }

    /// How a held command stands.
    pub(in crate::target) fn hold(&self, hold: Hold) -> HoldState {
        let Some(namespace) = self.namespaces.get(&hold.nsid) else {
            return HoldState::Over(Status::INVALID_NAMESPACE.do_not_retry());
        };
        if namespace.readiness == Readiness::Unavailable {
            return HoldState::Over(Status::INTERNAL_PATH_ERROR);
        }
        if self.fences.range(..hold.fences).any(|(_, fence)| fence.nsid == hold.nsid) {
            return HoldState::Waiting;
        }
        if namespace.settled < hold.version {
            // The state is in force, but would not survive a restart: the host must know.
            let is_given_up = namespace.failed >= hold.version;
            let given_up = HoldState::Over(Status::INTERNAL_ERROR);
            return if is_given_up { given_up } else { HoldState::Waiting };
        }
        if namespace.ownership.proved >= hold.proof {
            return HoldState::Over(Status::SUCCESS);
        }
        // Another path may lead to the owner.
        if namespace.ownership.failed >= hold.proof {
            return HoldState::Over(Status::INTERNAL_PATH_ERROR);
        }
        HoldState::Waiting
    }

    /// Fences that this connection must pass: number and namespace.
    pub(in crate::target) fn fences(&self, conn: ConnId) -> Vec<(u64, u32)> {
        let mine = self.fences.iter().filter(|(_, fence)| fence.waiting.contains(&conn));
        mine.map(|(id, fence)| (*id, fence.nsid)).collect()
    }

    /// No command that the fence aborts is at work on this connection any more.
    pub(in crate::target) fn pass_fence(&mut self, conn: ConnId, id: u64) {
        let Some(fence) = self.fences.get_mut(&id) else { return };
        fence.waiting.remove(&conn);
        if fence.waiting.is_empty() {
            self.fences.remove(&id);
            self.wake_all();
        }
    }

    pub(super) fn pass_all_fences(&mut self, conn: ConnId) {
        for (id, _) in self.fences(conn) {
            self.pass_fence(conn, id);
        }
    }

    fn raise_fence(&mut self, by: ConnId, nsid: u32, victims: &Victims<'_>) {
        let attached = self.connections.iter().map(|(conn, one)| (*conn, one.hostid));
        let draining = self.draining.iter().map(|(conn, hostid)| (*conn, *hostid));
        let waiting: BTreeSet<ConnId> = attached
            .chain(draining)
            .filter(|(conn, hostid)| *conn != by && victims.contains(hostid))
            .map(|(conn, _)| conn)
            .collect();
        if waiting.is_empty() {
            return;
        }
        for conn in &waiting {
            self.wake.insert(*conn);
        }
        self.epoch += 1;
        self.fences.insert(self.next_fence, Fence { nsid, waiting });
        self.next_fence += 1;
    }

    fn notify(&mut self, nsid: u32, host: &HostId, notice: Notice) {
        let of_host: Vec<u16> = self
            .controllers
            .iter_mut()
            .filter(|(_, one)| one.hostid == *host)
            .filter(|(_, one)| one.features.reservation_mask & (1 << notice.code()) == 0)
            .map(|(cntlid, one)| {
                one.events.note_reservation(nsid, notice);
                *cntlid
            })
            .collect();
        for cntlid in of_host {
            self.tell(cntlid, AsyncEvent::ReservationNotice);
        }
    }

    fn wake_all(&mut self) {
        self.epoch += 1;
        self.wake.extend(self.connections.keys().copied());
    }
}
