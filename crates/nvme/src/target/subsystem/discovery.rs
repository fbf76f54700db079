//! What a discovery service tells of subsystems and where they listen.

use alloc::string::ToString;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use zerocopy::FromZeros;

use super::Hosts;
use crate::wire::{CNTLID_DYNAMIC, DiscoveryEntry, Nqn, U16, padded_ascii};

/// What an entry of the discovery log leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// A subsystem with namespaces.
    Storage,
    /// Another discovery service.
    Referral,
    /// The discovery service that was asked.
    Itself,
}

/// One way to one subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveryRecord {
    /// The subsystem.
    pub nqn: Nqn,
    /// What it is.
    pub service: Service,
    /// Where it listens. Of all addresses (`0.0.0.0` or `::`) each host is told the one it came
    /// by.
    pub address: SocketAddr,
    /// Number of the listener within the subsystem.
    pub port_id: u16,
    /// Whether that listener speaks TLS 1.3.
    pub secure: bool,
    /// Who sees this entry.
    pub hosts: Hosts,
}

impl DiscoveryRecord {
    /// Where a host that came by `local` finds it: nowhere, if the listener has all addresses, but
    /// none of the kind that the host uses.
    pub(in crate::target) fn reached(&self, local: Option<IpAddr>) -> Option<SocketAddr> {
        let Some(local) = local.filter(|_| self.address.ip().is_unspecified()) else {
            return Some(self.address);
        };
        // A listener on `::` also takes hosts that come by IPv4, whose address it sees mapped.
        let local = local.to_canonical();
        let fits = self.address.is_ipv6() || local.is_ipv4();
        fits.then(|| SocketAddr::new(local, self.address.port()))
    }

    pub(in crate::target) fn entry(&self, address: SocketAddr, admin_depth: u16) -> DiscoveryEntry {
        let mut entry = DiscoveryEntry::new_zeroed();
        entry.trtype = TRTYPE_TCP;
        entry.adrfam = if address.is_ipv4() { 1 } else { 2 };
        entry.subtype = match self.service {
            Service::Referral => 1,
            Service::Storage => 2,
            Service::Itself => 3,
        };
        entry.treq = if self.secure { 1 } else { 2 };
        entry.portid = U16::new(self.port_id);
        entry.cntlid = U16::new(CNTLID_DYNAMIC);
        entry.asqsz = U16::new(admin_depth);
        entry.trsvcid = padded_ascii(&address.port().to_string());
        entry.subnqn = self.nqn.to_field();
        entry.traddr = padded_ascii(&address.ip().to_string());
        if self.secure
            && let Some(sectype) = entry.tsas.first_mut()
        {
            *sectype = SECTYPE_TLS13;
        }
        entry
    }
}

/// The discovery log.
#[derive(Clone, Debug, Default)]
pub(in crate::target) struct DiscoveryLog {
    pub(in crate::target) generation: u64,
    pub(in crate::target) records: Vec<DiscoveryRecord>,
}

const TRTYPE_TCP: u8 = 3;
const SECTYPE_TLS13: u8 = 2;
