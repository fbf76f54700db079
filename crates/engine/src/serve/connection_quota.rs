//! Places for connections: so many for each kind of peer, so that none takes those of another.
//!
//! ```text
//!   accepted ──► Unproven ── admitted, and proved if it has to ──► Discovery, Host or Replication
//!                   │                                                │
//!                   └── evicted when others come ◄── Discovery ──────┘
//! ```
//!
//! Whoever reaches the port can have unproven places, so they are never refused and never kept for
//! long: the newcomer takes that of the oldest connection of the address that has most. A stranger
//! with a thousand sockets takes them from itself, and an engine or host, which has proved itself
//! after a few round trips, gets through. Discovery is open to all and is treated alike. Hosts and
//! engines keep their places until they go; those of one host's address are limited.
//!
//! Invariants:
//! - No share holds more than its limit, and every connection is in one share.
//! - A connection of a host or an engine is never evicted.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use nvme::target::ConnId;

/// A kind of peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PeerKind {
    /// It was not admitted yet, or has not proved itself.
    Unproven,
    /// It asks what is served here.
    Discovery,
    /// It uses a volume, or anything else that is no replica.
    Host,
    /// It is a target that uses a replica.
    Replication,
}

/// Most connections of each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaLimits {
    /// That were not admitted yet, or have not proved themselves.
    pub unproven: u32,
    /// To discovery.
    pub discovery: u32,
    /// Of hosts.
    pub hosts: u32,
    /// Of hosts from one address.
    pub per_address: u32,
    /// Of other engines.
    pub replication: u32,
}

impl Default for QuotaLimits {
    fn default() -> QuotaLimits {
        let (unproven, discovery, hosts, replication) = (512, 256, 2048, 2048);
        QuotaLimits { unproven, discovery, hosts, per_address: 1024, replication }
    }
}

impl QuotaLimits {
    /// All of them together.
    pub(super) fn total(self) -> u32 {
        let QuotaLimits { unproven, discovery, hosts, replication, .. } = self;
        [unproven, discovery, hosts, replication].into_iter().fold(0, u32::saturating_add)
    }

    /// The same shares of no more than so many, at least one of each.
    pub(super) fn within(self, most: u32) -> QuotaLimits {
        let (most, total) = (u64::from(most), u64::from(self.total().max(1)));
        if most >= total {
            return self;
        }
        let part =
            |count: u32| u32::try_from(u64::from(count) * most / total).unwrap_or(u32::MAX).max(1);
        QuotaLimits {
            unproven: part(self.unproven),
            discovery: part(self.discovery),
            hosts: part(self.hosts),
            per_address: part(self.per_address),
            replication: part(self.replication),
        }
    }
}

/// Whether a connection has a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QuotaDecision {
    /// It has.
    Taken,
    /// It has the place of this one, which is to be closed.
    Evicts(ConnId),
    /// It has none.
    Full,
}

/// The places of one core.
#[derive(Debug)]
pub(super) struct ConnectionQuota {
    places: QuotaLimits,
    taken: BTreeMap<PeerKind, BTreeMap<IpAddr, BTreeSet<ConnId>>>,
}

impl ConnectionQuota {
    pub(super) fn new(places: QuotaLimits) -> ConnectionQuota {
        ConnectionQuota { places, taken: BTreeMap::new() }
    }

    /// Gives a connection a place, at the cost of another's if need be. Names grow with time.
    pub(super) fn enter(&mut self, share: PeerKind, from: IpAddr, name: ConnId) -> QuotaDecision {
        let places = self.places;
        let of_share = self.taken.entry(share).or_default();
        let total: usize = of_share.values().map(BTreeSet::len).sum();
        let of_address = of_share.get(&from).map_or(0, BTreeSet::len);
        let is_full = |count: usize, most: u32| u32::try_from(count).is_ok_and(|n| n >= most);
        let entry = match share {
            PeerKind::Unproven if is_full(total, places.unproven) => evict(of_share),
            PeerKind::Discovery if is_full(total, places.discovery) => evict(of_share),
            PeerKind::Host
                if is_full(total, places.hosts) || is_full(of_address, places.per_address) =>
            {
                QuotaDecision::Full
            }
            PeerKind::Replication if is_full(total, places.replication) => QuotaDecision::Full,
            _ => QuotaDecision::Taken,
        };
        if entry != QuotaDecision::Full {
            of_share.entry(from).or_default().insert(name);
        }
        entry
    }

    /// A connection is gone, or has another place.
    pub(super) fn leave(&mut self, share: PeerKind, from: IpAddr, name: ConnId) {
        let Some(of_share) = self.taken.get_mut(&share) else { return };
        if let Some(of_address) = of_share.get_mut(&from) {
            of_address.remove(&name);
            if of_address.is_empty() {
                of_share.remove(&from);
            }
        }
    }
}

/// Takes its place from the oldest connection of the address that has most.
fn evict(of_share: &mut BTreeMap<IpAddr, BTreeSet<ConnId>>) -> QuotaDecision {
    let heaviest = of_share.iter().max_by_key(|(_, names)| names.len());
    let Some(address) = heaviest.map(|(address, _)| *address) else { return QuotaDecision::Full };
    let oldest = of_share.get_mut(&address).and_then(BTreeSet::pop_first);
    of_share.retain(|_, names| !names.is_empty());
    oldest.map_or(QuotaDecision::Full, QuotaDecision::Evicts)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRANGER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 66));
    const FRIEND: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    fn shares() -> ConnectionQuota {
        let (unproven, discovery, hosts, per_address, replication) = (4, 2, 6, 3, 2);
        ConnectionQuota::new(QuotaLimits { unproven, discovery, hosts, per_address, replication })
    }

    #[test]
    fn a_stranger_takes_places_from_itself() {
        let mut shares = shares();
        let mut enter = |from, name| shares.enter(PeerKind::Unproven, from, ConnId(name));
        assert_eq!(enter(FRIEND, 1), QuotaDecision::Taken);
        for name in 2..=4 {
            assert_eq!(enter(STRANGER, name), QuotaDecision::Taken);
        }
        for name in 5..100 {
            assert_eq!(enter(STRANGER, name), QuotaDecision::Evicts(ConnId(name - 3)));
        }
        assert_eq!(enter(FRIEND, 100), QuotaDecision::Evicts(ConnId(97)));
        // Now both have two; whoever comes next, its own oldest or the other's goes, never more.
        assert_eq!(enter(FRIEND, 101), QuotaDecision::Evicts(ConnId(98)));
        assert_eq!(enter(FRIEND, 102), QuotaDecision::Evicts(ConnId(1)));
    }

    #[test]
    fn shares_do_not_take_from_each_other() {
        let mut shares = shares();
        for name in 0..50 {
            shares.enter(PeerKind::Unproven, STRANGER, ConnId(name));
            shares.enter(PeerKind::Discovery, STRANGER, ConnId(1000 + name));
        }
        let hosts = (100..110).map(|name| shares.enter(PeerKind::Host, STRANGER, ConnId(name)));
        assert_eq!(
            hosts.filter(|entry| *entry == QuotaDecision::Taken).count(),
            3,
            "of one address"
        );
        for name in 200..203 {
            assert_eq!(shares.enter(PeerKind::Host, FRIEND, ConnId(name)), QuotaDecision::Taken);
        }
        assert_eq!(shares.enter(PeerKind::Host, FRIEND, ConnId(203)), QuotaDecision::Full);
        for name in 300..302 {
            assert_eq!(
                shares.enter(PeerKind::Replication, FRIEND, ConnId(name)),
                QuotaDecision::Taken
            );
        }
        assert_eq!(shares.enter(PeerKind::Replication, FRIEND, ConnId(302)), QuotaDecision::Full);
        shares.leave(PeerKind::Replication, FRIEND, ConnId(300));
        assert_eq!(shares.enter(PeerKind::Replication, FRIEND, ConnId(302)), QuotaDecision::Taken);
    }

    #[test]
    fn fewer_places_keep_their_proportions() {
        let small = QuotaLimits::default().within(1000);
        assert!(small.total() <= 1000 && small.hosts > 400 && small.unproven > 100, "{small:?}");
        assert_eq!(QuotaLimits::default().within(1 << 20), QuotaLimits::default());
        assert!(QuotaLimits::default().within(0).total() >= 4);
    }
}
