//! What the connections of one subsystem share.
//!
//! A [`Subsystem`] is owned by one thread. Connections get it lent; what concerns other connections
//! or the outside is left as an [`Effect`].
//!
//! Invariants:
//! - Every registered connection belongs to a controller that exists.
//! - A connection that the subsystem gave up is no longer registered, and finds that out at its
//!   next poll at the latest.
//! - A connection with commands at work on a device is registered or draining, so that a
//!   preempt-and-abort waits for those commands even if their host is long gone.
//! - Effects are sets, not queues: asking twice costs nothing, and their number is bounded by the
//!   connections and namespaces.

mod ana;
mod association;
mod controller;
mod discovery;
mod namespace;
mod reservation;
mod reservation_commands;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;

use block::Geometry;

pub use ana::MAX_GROUPS;
pub(super) use ana::{Ana, refusal};
pub(super) use association::round_up;
pub use association::{ConnectRequest, Refusal};
pub use controller::Controller;
pub(super) use controller::{Configured, KEEP_ALIVE_UNIT};
pub(super) use discovery::DiscoveryLog;
pub use discovery::{DiscoveryRecord, Service};
pub use namespace::{
    Namespace, NamespaceConfig, NamespaceIds, Readiness, ReservationHome, Traffic,
};
pub use reservation::{
    Access, AcquireKeys, Change, Holder, HostId, MAX_KEY_STEP, MAX_REGISTRANTS, Notice,
    Registration, Reservation, Reservations,
};
pub(super) use reservation_commands::{Hold, HoldState};

use super::event::{ConnId, Effect};
use crate::wire::{AnaState, AsyncEvent, CNTLID_MAX, EventConfig, Nqn};

/// Which hosts may connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hosts {
    /// All.
    Any,
    /// Those named.
    Listed(BTreeSet<Nqn>),
}

impl Hosts {
    /// Whether this host is among them.
    pub fn allows(&self, host: &Nqn) -> bool {
        match self {
            Hosts::Any => true,
            Hosts::Listed(list) => list.contains(host),
        }
    }
}

/// What the owner says of a subsystem. Must be the same on all nodes that serve it, except for the
/// range of controller ids, which must be disjoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubsystemConfig {
    /// Its name.
    pub nqn: Nqn,
    /// Serial number, up to 20 characters.
    pub serial: String,
    /// Model, up to 40 characters.
    pub model: String,
    /// Firmware revision, up to 8 characters.
    pub firmware: String,
    /// First and last controller id to give out.
    pub cntlids: (u16, u16),
    /// Who may connect.
    pub hosts: Hosts,
    /// Limits.
    pub limits: Limits,
}

/// Limits of a subsystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Entries of a queue.
    pub queue_depth: u16,
    /// I/O queues of a controller.
    pub io_queues: u16,
    /// Controllers at once.
    pub controllers: u16,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { queue_depth: 128, io_queues: 128, controllers: 1024 }
    }
}

/// Largest namespace id, and most namespaces of a subsystem.
pub const MAX_NSID: u32 = 1024;

/// Why a change was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadNamespace {
    /// Out of range.
    #[error("namespace id {nsid} is not in 1..={MAX_NSID}")]
    Id {
        /// What was asked for.
        nsid: u32,
    },
    /// In use.
    #[error("namespace {nsid} exists already")]
    Exists {
        /// What was asked for.
        nsid: u32,
    },
    /// Not there.
    #[error("there is no namespace {nsid}")]
    Missing {
        /// What was asked for.
        nsid: u32,
    },
    /// Out of range.
    #[error("ANA group {group} is not in 1..={MAX_GROUPS}")]
    Group {
        /// What was asked for.
        group: u32,
    },
}

/// A subsystem.
#[derive(Clone, Debug)]
pub struct Subsystem {
    pub(super) config: SubsystemConfig,
    /// Present in a discovery subsystem, which has no namespaces.
    pub(super) discovery: Option<DiscoveryLog>,
    pub(super) namespaces: BTreeMap<u32, Namespace>,
    pub(super) ana: Ana,
    pub(super) controllers: BTreeMap<u16, Controller>,
    connections: BTreeMap<ConnId, Attached>,
    /// Connections that ended but may have commands at work on a device.
    draining: BTreeMap<ConnId, HostId>,
    /// Hosts that have one association at a time, each with its connections, ended ones included
    /// until they have drained.
    single: BTreeMap<Nqn, BTreeSet<ConnId>>,
    next_cntlid: u16,
    /// Changes whenever a connection should look whether something is there for it.
    epoch: u64,
    fences: BTreeMap<u64, reservation_commands::Fence>,
    next_fence: u64,
    aborts: BTreeSet<(ConnId, u16)>,
    persist: BTreeSet<u32>,
    /// Namespaces whose ownership is to be proved.
    prove: BTreeSet<u32>,
    /// Namespaces whose reservations are not known yet.
    opening: BTreeSet<u32>,
    disconnect: BTreeSet<ConnId>,
    wake: BTreeSet<ConnId>,
}

/// A registered connection.
#[derive(Clone, Copy, Debug)]
struct Attached {
    cntlid: u16,
    qid: u16,
    hostid: HostId,
}

impl Subsystem {
    /// A subsystem with namespaces to come.
    pub fn new(config: SubsystemConfig) -> Subsystem {
        let (first, last) = config.cntlids;
        let first = first.clamp(1, CNTLID_MAX);
        let config = SubsystemConfig {
            cntlids: (first, last.clamp(first, CNTLID_MAX)),
            limits: Limits {
                queue_depth: config.limits.queue_depth.clamp(2, 4096),
                io_queues: config.limits.io_queues.clamp(1, 1024),
                controllers: config.limits.controllers.max(1),
            },
            ..config
        };
        Subsystem {
            config,
            discovery: None,
            namespaces: BTreeMap::new(),
            ana: Ana::default(),
            controllers: BTreeMap::new(),
            connections: BTreeMap::new(),
            draining: BTreeMap::new(),
            single: BTreeMap::new(),
            next_cntlid: first,
            epoch: 0,
            fences: BTreeMap::new(),
            next_fence: 0,
            aborts: BTreeSet::new(),
            persist: BTreeSet::new(),
            prove: BTreeSet::new(),
            opening: BTreeSet::new(),
            disconnect: BTreeSet::new(),
            wake: BTreeSet::new(),
        }
    }

    /// A discovery subsystem: it has a log instead of namespaces.
    pub fn discovery(config: SubsystemConfig, records: Vec<DiscoveryRecord>) -> Subsystem {
        let mut subsystem = Subsystem::new(config);
        subsystem.discovery = Some(DiscoveryLog { generation: 1, records });
        subsystem
    }

    /// Its name.
    pub fn nqn(&self) -> &Nqn {
        &self.config.nqn
    }

    /// Its controllers by id.
    pub fn controllers(&self) -> impl Iterator<Item = (u16, &Controller)> {
        self.controllers.iter().map(|(cntlid, controller)| (*cntlid, controller))
    }

    /// A namespace.
    pub fn namespace(&self, nsid: u32) -> Option<&Namespace> {
        self.namespaces.get(&nsid)
    }

    /// What to do outside; ask until there is nothing.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        if let Some(nsid) = self.persist.pop_first()
            && let Some(namespace) = self.namespaces.get(&nsid)
        {
            let reservations = namespace.reservations().clone();
            return Some(Effect::Persist { nsid, version: namespace.version, reservations });
        }
        if let Some(nsid) = self.prove.pop_first()
            && let Some(namespace) = self.namespaces.get(&nsid)
        {
            return Some(Effect::ProveOwnership { nsid, number: namespace.ownership.asked });
        }
        if let Some(conn) = self.disconnect.pop_first() {
            return Some(Effect::Disconnect(conn));
        }
        self.wake.pop_first().map(Effect::Wake)
    }

    /// Adds a namespace and tells hosts.
    pub fn add_namespace(
        &mut self,
        nsid: u32,
        config: NamespaceConfig,
    ) -> Result<(), BadNamespace> {
        if nsid == 0 || nsid > MAX_NSID {
            return Err(BadNamespace::Id { nsid });
        }
        if self.namespaces.contains_key(&nsid) {
            return Err(BadNamespace::Exists { nsid });
        }
        check_group(config.ana_group)?;
        let namespace = Namespace::new(config);
        if namespace.readiness == Readiness::Opening {
            self.opening.insert(nsid);
        }
        self.namespaces.insert(nsid, namespace);
        self.tell_changed(nsid);
        Ok(())
    }

    /// Removes a namespace and tells hosts. The owner still completes what is at work on it.
    pub fn remove_namespace(&mut self, nsid: u32) -> Result<(), BadNamespace> {
        self.namespaces.remove(&nsid).ok_or(BadNamespace::Missing { nsid })?;
        self.persist.remove(&nsid);
        self.prove.remove(&nsid);
        self.opening.remove(&nsid);
        self.tell_changed(nsid);
        Ok(())
    }

    /// Changes the size of a namespace and tells hosts.
    pub fn resize_namespace(&mut self, nsid: u32, size: Geometry) -> Result<(), BadNamespace> {
        self.namespace_mut(nsid)?.config.geometry = size;
        self.tell_changed(nsid);
        Ok(())
    }

    /// Makes a namespace read-only or writable and tells hosts.
    pub fn set_read_only(&mut self, nsid: u32, read_only: bool) -> Result<(), BadNamespace> {
        self.namespace_mut(nsid)?.config.read_only = read_only;
        self.tell_changed(nsid);
        Ok(())
    }

    /// Sets the state of this path to a group of namespaces and tells hosts. Says whether that
    /// changed anything.
    pub fn set_ana(&mut self, group: u32, state: AnaState) -> Result<bool, BadNamespace> {
        check_group(group)?;
        let is_new = self.ana.set(group, state);
        if is_new {
            self.tell_all(AsyncEvent::AnaChanged);
        }
        Ok(is_new)
    }

    /// Sets who may connect; whoever may no longer is disconnected.
    pub fn set_hosts(&mut self, hosts: Hosts) {
        self.config.hosts = hosts;
        let gone: Vec<u16> = self
            .controllers
            .iter()
            .filter(|(_, controller)| !self.config.hosts.allows(&controller.host))
            .map(|(cntlid, _)| *cntlid)
            .collect();
        for cntlid in gone {
            self.drop_controller(cntlid);
        }
    }

    /// Sets which hosts have one association at a time: a new one ends the former, and begins when
    /// nothing of that is at work any more. So what a host sent by a path that it lost takes effect
    /// before what it sends again by another, or not at all.
    pub fn set_single_association(&mut self, hosts: impl IntoIterator<Item = Nqn>) {
        let mut former = core::mem::take(&mut self.single);
        let kept = |host: Nqn| {
            let conns = former.remove(&host).unwrap_or_else(|| self.connections_of(&host));
            (host, conns)
        };
        self.single = hosts.into_iter().map(kept).collect();
    }

    fn connections_of(&self, host: &Nqn) -> BTreeSet<ConnId> {
        let of_host = self.controllers.values().filter(|controller| controller.host == *host);
        of_host.flat_map(|one| one.queues.values().copied().chain([one.admin])).collect()
    }

    /// Replaces the discovery log and tells hosts; does nothing in other subsystems.
    pub fn set_discovery(&mut self, records: Vec<DiscoveryRecord>) {
        if let Some(log) = &mut self.discovery
            && log.records != records
        {
            log.records = records;
            log.generation = log.generation.wrapping_add(1);
            self.tell_all(AsyncEvent::DiscoveryChanged);
        }
    }

    /// Ends all connections, as a target does that goes away.
    pub fn close(&mut self) {
        let all: Vec<u16> = self.controllers.keys().copied().collect();
        for cntlid in all {
            self.drop_controller(cntlid);
        }
    }

    pub(super) fn controller(&mut self, cntlid: u16) -> Option<&mut Controller> {
        self.controllers.get_mut(&cntlid)
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether any namespace needs flushes.
    pub(super) fn has_write_cache(&self) -> bool {
        self.namespaces.values().any(|namespace| namespace.config.write_cache)
    }

    fn namespace_mut(&mut self, nsid: u32) -> Result<&mut Namespace, BadNamespace> {
        self.namespaces.get_mut(&nsid).ok_or(BadNamespace::Missing { nsid })
    }

    fn tell_changed(&mut self, nsid: u32) {
        for controller in self.controllers.values_mut() {
            if controller.features.events.wants(EventConfig::NAMESPACE) {
                controller.events.note_changed(nsid);
            }
        }
        self.tell_all(AsyncEvent::NamespaceChanged);
    }

    fn tell_all(&mut self, event: AsyncEvent) {
        let all: Vec<u16> = self.controllers.keys().copied().collect();
        for cntlid in all {
            self.tell(cntlid, event);
        }
    }

    fn tell(&mut self, cntlid: u16, event: AsyncEvent) {
        let Some(controller) = self.controllers.get_mut(&cntlid) else { return };
        let wanted = match event {
            AsyncEvent::NamespaceChanged => {
                controller.features.events.wants(EventConfig::NAMESPACE)
            }
            AsyncEvent::AnaChanged => controller.features.events.wants(EventConfig::ANA),
            AsyncEvent::DiscoveryChanged => {
                controller.features.events.wants(EventConfig::DISCOVERY)
            }
            // Masked notice by notice, see `reserving`.
            AsyncEvent::ReservationNotice => true,
        };
        if wanted && controller.events.raise(event) {
            let admin = controller.admin;
            self.wake(admin);
        }
    }

    fn wake(&mut self, conn: ConnId) {
        self.epoch += 1;
        self.wake.insert(conn);
    }
}

fn check_group(group: u32) -> Result<(), BadNamespace> {
    if (1..=MAX_GROUPS).contains(&group) { Ok(()) } else { Err(BadNamespace::Group { group }) }
}
