//! Which core owns which subsystem, and what discovery tells of it.
//!
//! Shared by all cores and those who give orders. It is looked at once for each Connect, never for
//! a command, and a lock is held only for that.
//!
//! Invariants:
//! - A subsystem has one core from its first order to its end: whoever gives an order holds a
//!   [`Pin`], and a name without claims that is not served is forgotten.
//! - `version` grows with every change of what discovery tells. Cores that miss the message about
//!   it see the number at their next tick.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use nvme::target::{DiscoveryRecord, Hosts, Service};
use nvme::wire::Nqn;

/// The table.
pub(super) struct SubsystemDirectory {
    cores: usize,
    table: RwLock<BTreeMap<Nqn, Route>>,
    version: AtomicU64,
}

struct Route {
    core: usize,
    /// Orders about it that are under way.
    claims: u32,
    /// Who may connect, while it is served.
    exported: Option<Hosts>,
}

/// Keeps a subsystem at its core as long as an order about it is under way.
pub(super) struct Pin {
    directory: Arc<SubsystemDirectory>,
    nqn: Nqn,
    core: usize,
}

impl SubsystemDirectory {
    /// No subsystem yet, on this many cores.
    pub(super) fn new(cores: usize) -> SubsystemDirectory {
        SubsystemDirectory { cores, table: RwLock::default(), version: AtomicU64::new(1) }
    }

    /// Where a subsystem lives.
    pub(super) fn core_of(&self, nqn: &Nqn) -> Option<usize> {
        self.read().get(nqn).map(|route| route.core)
    }

    /// Changes with what discovery tells.
    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// How many cores there are.
    pub(super) fn cores(&self) -> usize {
        self.cores
    }

    /// For an order about a subsystem that may be new: its home takes it, or else the core with
    /// the fewest.
    pub(super) fn pin_or_choose(
        self: &Arc<SubsystemDirectory>,
        nqn: Nqn,
        home: Option<usize>,
    ) -> Pin {
        let mut table = self.write();
        let core = match (table.get(&nqn), home) {
            (Some(route), _) => route.core,
            (None, Some(home)) => home,
            (None, None) => {
                let load = |core: &usize| table.values().filter(|one| one.core == *core).count();
                (0..self.cores).min_by_key(load).unwrap_or(0)
            }
        };
        let route = table.entry(nqn.clone()).or_insert(Route { core, claims: 0, exported: None });
        route.claims += 1;
        Pin { directory: Arc::clone(self), nqn, core }
    }

    /// For an order about a subsystem that is there, or about to be.
    pub(super) fn pin(self: &Arc<SubsystemDirectory>, nqn: Nqn) -> Option<Pin> {
        let mut table = self.write();
        let route = table.get_mut(&nqn)?;
        route.claims += 1;
        Some(Pin { directory: Arc::clone(self), core: route.core, nqn })
    }

    /// What discovery tells: every subsystem at every address.
    pub(super) fn records(&self, addresses: &[SocketAddr]) -> Vec<DiscoveryRecord> {
        let table = self.read();
        let storage = table.iter().filter_map(|(nqn, route)| {
            Some((nqn.clone(), Service::Storage, route.exported.clone()?))
        });
        let itself = Nqn::new(Nqn::DISCOVERY).ok();
        let all: Vec<_> =
            storage.chain(itself.map(|nqn| (nqn, Service::Itself, Hosts::Any))).collect();
        let at = |(address, port_id): (&SocketAddr, u16)| {
            let address = *address;
            let record = move |(nqn, service, hosts): &(Nqn, Service, Hosts)| DiscoveryRecord {
                nqn: nqn.clone(),
                service: *service,
                address,
                port_id,
                secure: false,
                hosts: hosts.clone(),
            };
            all.iter().map(record).collect::<Vec<_>>()
        };
        addresses.iter().zip(1..).flat_map(at).collect()
    }

    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<Nqn, Route>> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<Nqn, Route>> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pin {
    /// Which subsystem.
    pub(super) fn nqn(&self) -> &Nqn {
        &self.nqn
    }

    /// Its core.
    pub(super) fn core(&self) -> usize {
        self.core
    }

    /// Says who may connect to it from now on; nobody, if it is no longer served. Returns whether
    /// that is new.
    pub(super) fn tell(&self, exported: Option<Hosts>) -> bool {
        let mut table = self.directory.write();
        let Some(route) = table.get_mut(&self.nqn).filter(|route| route.exported != exported)
        else {
            return false;
        };
        route.exported = exported;
        self.directory.version.fetch_add(1, Ordering::AcqRel);
        true
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut table = self.directory.write();
        if let Some(route) = table.get_mut(&self.nqn) {
            route.claims = route.claims.saturating_sub(1);
            if route.claims == 0 && route.exported.is_none() {
                table.remove(&self.nqn);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Nqn {
        Nqn::new(&format!("nqn.2026-11.io.holdfast:{text}")).unwrap()
    }

    #[test]
    fn new_subsystems_go_where_the_fewest_are_and_stay_there() {
        let directory = Arc::new(SubsystemDirectory::new(3));
        let claims: Vec<_> =
            ["a", "b", "c", "d"].map(|text| directory.pin_or_choose(name(text), None)).into();
        assert_eq!(claims.iter().map(Pin::core).collect::<Vec<_>>(), [0, 1, 2, 0]);
        claims[1].tell(Some(Hosts::Any));
        drop(claims);
        assert_eq!(directory.core_of(&name("a")), None, "it was never served");
        assert_eq!(directory.core_of(&name("b")), Some(1));
        assert_eq!(directory.pin_or_choose(name("b"), Some(2)).core(), 1);
        assert_eq!(directory.pin(name("b")).unwrap().core(), 1);
        assert!(directory.pin(name("e")).is_none());
    }

    #[test]
    fn a_name_is_kept_while_an_order_about_it_is_under_way() {
        let directory = Arc::new(SubsystemDirectory::new(2));
        let first = directory.pin_or_choose(name("a"), None);
        assert!(first.tell(Some(Hosts::Any)));
        assert!(!first.tell(Some(Hosts::Any)));
        let second = directory.pin(name("a")).unwrap();
        drop(first);
        assert!(second.tell(None));
        assert_eq!(directory.core_of(&name("a")), Some(second.core()));
        drop(second);
        assert_eq!(directory.core_of(&name("a")), None);
    }

    #[test]
    fn discovery_tells_what_is_served_and_the_version_grows_with_it() {
        let directory = Arc::new(SubsystemDirectory::new(1));
        let at = ["192.0.2.1:4420".parse().unwrap(), "192.0.2.2:4420".parse().unwrap()];
        assert_eq!(directory.records(&at).len(), 2, "only itself, twice");
        let before = directory.version();
        let pin = directory.pin_or_choose(name("a"), None);
        assert_eq!((directory.records(&at).len(), directory.version()), (2, before));
        pin.tell(Some(Hosts::Any));
        assert_eq!((directory.records(&at).len(), directory.version()), (4, before + 1));
        pin.tell(None);
        assert_eq!((directory.records(&at).len(), directory.version()), (2, before + 2));
    }
}
