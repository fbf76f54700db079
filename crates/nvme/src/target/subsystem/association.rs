//! Controllers and queues coming and going.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::time::Duration;

use super::super::event::ConnId;
use super::{Attached, Controller, HostId, KEEP_ALIVE_UNIT, Subsystem};
use crate::time::Instant;
use crate::wire::{BadConnect, CNTLID_DYNAMIC, Connect, Cqe, Nqn, Status};

/// Keep-alive of a discovery controller whose host promised none.
const DISCOVERY_KATO: Duration = Duration::from_mins(2);

/// Why a Connect was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A field of the command or its data is wrong.
    Parameter(BadConnect),
    /// Anything else.
    Status(Status),
}

impl Refusal {
    pub(in crate::target) fn cqe(self, cid: u16) -> Cqe {
        match self {
            Refusal::Parameter(bad) => bad.cqe(cid),
            Refusal::Status(status) => Cqe::new(cid, status),
        }
    }
}

/// A Connect command and its data, checked for form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectRequest {
    /// The host's name.
    pub host: Nqn,
    /// The host's identity.
    pub hostid: HostId,
    /// The subsystem it wants.
    pub subsystem: Nqn,
    /// The controller it wants.
    pub cntlid: u16,
    /// The queue it wants.
    pub connect: Connect,
}

impl Subsystem {
    /// A host connects a queue: gives the id of its controller.
    pub(in crate::target) fn connect(
        &mut self,
        conn: ConnId,
        request: &ConnectRequest,
        now: Instant,
    ) -> Result<u16, Refusal> {
        let parameter = |bad| Err(Refusal::Parameter(bad));
        let ConnectRequest { connect, .. } = request;
        if connect.recfmt != 0 {
            let status = Status::CONNECT_INCOMPATIBLE_FORMAT.do_not_retry();
            return Err(Refusal::Status(status));
        }
        let is_known = request.subsystem == *self.nqn()
            || (self.discovery.is_some() && request.subsystem.is_discovery());
        if !is_known {
            return parameter(BadConnect::SUBNQN);
        }
        if !self.config.hosts.allows(&request.host) {
            return Err(Refusal::Status(Status::CONNECT_INVALID_HOST.do_not_retry()));
        }
        if connect.sqsize == 0 || connect.sqsize >= self.config.limits.queue_depth {
            return parameter(BadConnect::SQSIZE);
        }
        // Reservations know hosts by this number: "nobody" cannot be one.
        if request.hostid == [0; 16] && self.discovery.is_none() {
            return parameter(BadConnect::HOSTID);
        }
        if connect.qid == 0 {
            self.connect_admin(conn, request, now)
        } else {
            self.connect_io(conn, request, now)
        }
    }

    fn connect_admin(
        &mut self,
        conn: ConnId,
        request: &ConnectRequest,
        now: Instant,
    ) -> Result<u16, Refusal> {
        if request.cntlid != CNTLID_DYNAMIC {
            return Err(Refusal::Parameter(BadConnect::CNTLID));
        }
        let busy = Refusal::Status(Status::CONNECT_CONTROLLER_BUSY);
        if !self.end_former(&request.host) {
            return Err(busy);
        }
        let cntlid = self.free_cntlid().ok_or(busy)?;
        let mut kato = round_up(Duration::from_millis(request.connect.kato.into()));
        if self.discovery.is_some() && kato.is_zero() {
            kato = DISCOVERY_KATO;
        }
        let controller = Controller::new(conn, request.host.clone(), request.hostid, kato, now);
        self.controllers.insert(cntlid, controller);
        self.attach(conn, request, Attached { cntlid, qid: 0, hostid: request.hostid });
        Ok(cntlid)
    }

    /// Ends what a host has that may have one association only; whether nothing of it is left at
    /// work. Until then its new one is refused, with a status that makes it try again.
    fn end_former(&mut self, host: &Nqn) -> bool {
        if !self.single.contains_key(host) {
            return true;
        }
        let former = self.controllers.iter().filter(|(_, one)| one.host == *host);
        let former: Vec<u16> = former.map(|(cntlid, _)| *cntlid).collect();
        for cntlid in former {
            self.drop_controller(cntlid);
        }
        self.single.get(host).is_none_or(BTreeSet::is_empty)
    }

    fn attach(&mut self, conn: ConnId, request: &ConnectRequest, attached: Attached) {
        self.connections.insert(conn, attached);
        if let Some(conns) = self.single.get_mut(&request.host) {
            conns.insert(conn);
        }
    }

    fn connect_io(
        &mut self,
        conn: ConnId,
        request: &ConnectRequest,
        now: Instant,
    ) -> Result<u16, Refusal> {
        let parameter = |bad| Err(Refusal::Parameter(bad));
        let (cntlid, qid) = (request.cntlid, request.connect.qid);
        let Some(controller) = self.controllers.get_mut(&cntlid) else {
            return parameter(BadConnect::CNTLID);
        };
        if controller.host != request.host {
            return parameter(BadConnect::HOSTNQN);
        }
        if controller.hostid != request.hostid {
            return parameter(BadConnect::HOSTID);
        }
        let is_open = controller.is_ready() && controller.csts & (3 << 2) == 0;
        let granted = match controller.granted {
            // A host that did not ask may have as many as there are.
            0 => self.config.limits.io_queues,
            granted => granted,
        };
        let is_free = qid <= granted && !controller.queues.contains_key(&qid);
        if self.discovery.is_some() || !is_open || !is_free {
            return parameter(BadConnect::QID);
        }
        controller.queues.insert(qid, conn);
        controller.last_seen = now;
        self.attach(conn, request, Attached { cntlid, qid, hostid: request.hostid });
        Ok(cntlid)
    }

    /// The driver closed this connection, or it ended itself. Its commands may still be at work.
    pub(in crate::target) fn detach(&mut self, conn: ConnId) {
        self.disconnect.remove(&conn);
        self.wake.remove(&conn);
        self.aborts.retain(|(of, _)| *of != conn);
        let Some(Attached { cntlid, qid, hostid }) = self.connections.remove(&conn) else { return };
        self.draining.insert(conn, hostid);
        if qid == 0 {
            // The association ends with its admin queue.
            self.drop_controller(cntlid);
        } else if let Some(controller) = self.controllers.get_mut(&cntlid) {
            controller.queues.remove(&qid);
        }
    }

    /// A detached connection has nothing at work any more.
    pub(in crate::target) fn drained(&mut self, conn: ConnId) {
        self.draining.remove(&conn);
        for conns in self.single.values_mut() {
            conns.remove(&conn);
        }
        self.pass_all_fences(conn);
    }

    /// Whether the subsystem still counts on this connection.
    pub(in crate::target) fn is_attached(&self, conn: ConnId) -> bool {
        self.connections.contains_key(&conn)
    }

    /// Ends a controller and all its connections.
    pub(in crate::target) fn drop_controller(&mut self, cntlid: u16) {
        let Some(controller) = self.controllers.remove(&cntlid) else { return };
        self.give_up(controller.admin);
        for conn in controller.queues.into_values() {
            self.give_up(conn);
        }
    }

    /// Ends the I/O queues of a controller.
    pub(in crate::target) fn drop_queues(&mut self, cntlid: u16) {
        let Some(controller) = self.controllers.get_mut(&cntlid) else { return };
        for conn in core::mem::take(&mut controller.queues).into_values() {
            self.give_up(conn);
        }
    }

    /// The host's keep-alive ran out: everything of this controller ends.
    pub(in crate::target) fn expire(&mut self, cntlid: u16, now: Instant) -> bool {
        let is_overdue = self
            .controllers
            .get(&cntlid)
            .and_then(Controller::deadline)
            .is_some_and(|deadline| now >= deadline);
        if is_overdue {
            self.drop_controller(cntlid);
        }
        is_overdue
    }

    /// The connection of one of the controller's queues.
    pub(in crate::target) fn queue(&self, cntlid: u16, qid: u16) -> Option<ConnId> {
        let controller = self.controllers.get(&cntlid)?;
        if qid == 0 { Some(controller.admin) } else { controller.queues.get(&qid).copied() }
    }

    /// Asks a connection to withdraw a command.
    pub(in crate::target) fn request_abort(&mut self, conn: ConnId, cid: u16) {
        /// More than the abort limit of any controller lets a well-behaved host ask for.
        const MAX_ABORTS: usize = 1024;
        if self.aborts.len() < MAX_ABORTS {
            self.aborts.insert((conn, cid));
            self.wake(conn);
        }
    }

    /// The commands that this connection shall withdraw.
    pub(in crate::target) fn take_aborts(&mut self, conn: ConnId) -> Vec<u16> {
        let of_conn = (conn, 0)..=(conn, u16::MAX);
        let cids: Vec<u16> = self.aborts.range(of_conn).map(|(_, cid)| *cid).collect();
        self.aborts.retain(|(of, _)| *of != conn);
        cids
    }

    fn give_up(&mut self, conn: ConnId) {
        if let Some(Attached { hostid, .. }) = self.connections.remove(&conn) {
            self.draining.insert(conn, hostid);
            self.disconnect.insert(conn);
            self.epoch += 1;
        }
    }

    /// An id that no controller has, as long unused as can be.
    fn free_cntlid(&mut self) -> Option<u16> {
        if self.controllers.len() >= usize::from(self.config.limits.controllers) {
            return None;
        }
        let (first, last) = self.config.cntlids;
        let from_next = (self.next_cntlid..=last).chain(first..self.next_cntlid);
        let mut free = from_next.filter(|id| !self.controllers.contains_key(id));
        let cntlid = free.next()?;
        self.next_cntlid = if cntlid == last { first } else { cntlid + 1 };
        Some(cntlid)
    }
}

/// Keep-alive times come in whole units.
pub(in crate::target) fn round_up(kato: Duration) -> Duration {
    let units = kato.as_millis().div_ceil(KEEP_ALIVE_UNIT.as_millis());
    KEEP_ALIVE_UNIT.saturating_mul(u32::try_from(units).unwrap_or(u32::MAX))
}
