//! Reservation commands on a subsystem: what must happen before they are acknowledged.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::super::event::ConnId;
use super::{Change, HostId, Notice, Reservations, Subsystem};
use crate::wire::{AsyncEvent, Status};

/// A command that aborts the commands of others, until those are gone.
#[derive(Clone, Debug)]
pub(super) struct Fence {
    nsid: u32,
    /// Connections that may still have commands at work.
    waiting: BTreeSet<ConnId>,
    /// Who waits for them.
    by: ConnId,
}

/// What a reservation command waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::target) struct Hold {
    nsid: u32,
    version: u64,
    fence: Option<u64>,
}

/// How a hold stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::target) enum HoldState {
    Waiting,
    Over(Status),
}

impl Subsystem {
    /// Carries out a reservation command of `host`, which came on `conn`.
    ///
    /// `persist` switches persistence through power loss, if it is given.
    pub(in crate::target) fn reserve(
        &mut self,
        conn: ConnId,
        nsid: u32,
        persist: Option<bool>,
        command: impl FnOnce(&mut Reservations) -> Result<Change, Status>,
    ) -> Result<Hold, Status> {
        let namespace = self.namespaces.get_mut(&nsid).ok_or(Status::INVALID_NAMESPACE)?;
        let reservations = &mut namespace.config.reservations;
        let before = reservations.clone();
        let change = command(reservations)?;
        reservations.persist = persist.unwrap_or(reservations.persist);
        let is_changed = *reservations != before;
        // What does not persist needs no writing, unless the old state has to be forgotten.
        let is_persistent =
            reservations.persist || before.persist || reservations.least_key != before.least_key;
        if is_changed {
            namespace.version += 1;
            if is_persistent {
                self.persist.insert(nsid);
            } else {
                namespace.settled = namespace.version;
            }
        }
        let version = namespace.version;
        for (host, notice) in &change.notices {
            self.notify(nsid, host, *notice);
        }
        let fence = self.raise_fence(conn, nsid, &change.abort);
        Ok(Hold { nsid, version, fence })
    }

    /// The rim made a reservation state durable, or failed to.
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
        if hold.fence.is_some_and(|fence| self.fences.contains_key(&fence)) {
            return HoldState::Waiting;
        }
        if namespace.settled >= hold.version {
            return HoldState::Over(Status::SUCCESS);
        }
        // The state is in force, but would not survive a restart: the host must know.
        if namespace.failed >= hold.version {
            return HoldState::Over(Status::INTERNAL_ERROR);
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
            let by = fence.by;
            self.fences.remove(&id);
            self.wake(by);
        }
    }

    pub(super) fn pass_all_fences(&mut self, conn: ConnId) {
        for (id, _) in self.fences(conn) {
            self.pass_fence(conn, id);
        }
    }

    fn raise_fence(&mut self, by: ConnId, nsid: u32, victims: &[HostId]) -> Option<u64> {
        let attached = self.connections.iter().map(|(conn, one)| (*conn, one.hostid));
        let draining = self.draining.iter().map(|(conn, hostid)| (*conn, *hostid));
        let waiting: BTreeSet<ConnId> = attached
            .chain(draining)
            .filter(|(conn, hostid)| *conn != by && victims.contains(hostid))
            .map(|(conn, _)| conn)
            .collect();
        if waiting.is_empty() {
            return None;
        }
        for conn in &waiting {
            self.wake.insert(*conn);
        }
        self.epoch += 1;
        let id = self.next_fence;
        self.next_fence += 1;
        self.fences.insert(id, Fence { nsid, waiting, by });
        Some(id)
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
