//! What an engine shall serve: nothing optional, nothing to be checked any more.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use block::{BlockSize, Bytes, Geometry};
use model::VolumeId;
use nvme::auth::Keys;
use nvme::pdu::Digests;
use nvme::target::{Hosts, NamespaceIds};
use nvme::wire::{AnaState, Nqn};
use sha2::{Digest, Sha256};

use super::connection_quota::QuotaLimits;
use crate::pools;
use crate::replication::Replication;

/// One engine.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen.
    pub listen: Vec<SocketAddr>,
    /// One reactor on each of these cores; at least one.
    pub cores: Vec<usize>,
    /// Pools to open, or make, before anything is served.
    pub pools: Vec<Pool>,
    /// What to serve from the start, by name.
    pub subsystems: BTreeMap<Nqn, Subsystem>,
    /// Digests that are used if a host asks for them.
    pub digests: Digests,
    /// How large and how many.
    pub limits: EngineLimits,
    /// How it speaks to other engines, and they to it.
    pub replication: Replication,
}

/// A pool that is there from the start.
#[derive(Clone, Debug)]
pub struct Pool {
    /// Its id, which decides on which core it is.
    pub id: pool::Id,
    /// [`pools::PoolRequest::Import`] or [`pools::PoolRequest::Create`].
    pub open: pools::PoolRequest,
    /// Replicas that are made if they are not there.
    pub replicas: Vec<pool::NewReplica>,
    /// Replicas that will be served, with the keys that wrap theirs; none: it is not encrypted.
    pub keys: BTreeMap<pool::Id, Option<pools::WrappingKey>>,
}

/// One subsystem.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subsystem {
    /// By namespace id, from 1.
    pub namespaces: BTreeMap<u32, Namespace>,
    /// Who may connect; anybody if empty.
    pub hosts: BTreeMap<Nqn, Host>,
    /// First and last controller id; disjoint from those of other engines that serve the same.
    pub cntlids: Option<(u16, u16)>,
}

impl Subsystem {
    /// The core that it must be on, of so many, because its pool is there.
    pub(super) fn home(&self, cores: usize) -> Option<usize> {
        self.namespaces.values().find_map(|namespace| match namespace.backing {
            Backing::Replica { pool, .. } | Backing::Member { pool, .. } => {
                Some(super::pool_admin::core_of(pool, cores))
            }
            Backing::Memory(_) | Backing::File { .. } | Backing::Volume { .. } => None,
        })
    }

    /// Whether it is for targets alone, which prove that they are of the cluster.
    pub(super) fn is_replica(&self) -> bool {
        let mut all = self.namespaces.values();
        all.any(|namespace| matches!(namespace.backing, Backing::Member { .. }))
    }

    /// The hosts of which a new association ends the former one.
    pub(super) fn single_associations(&self) -> impl Iterator<Item = Nqn> + '_ {
        let single = self.hosts.iter().filter(|(_, host)| host.single_association);
        single.map(|(nqn, _)| nqn.clone())
    }

    /// Who may connect, as the protocol knows it.
    pub(super) fn hosts(&self) -> Hosts {
        if self.hosts.is_empty() {
            Hosts::Any
        } else {
            Hosts::Listed(self.hosts.keys().cloned().collect())
        }
    }
}

/// A host that may connect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// What it must prove that it knows, if anything.
    pub keys: Option<Keys>,
    /// Whether a new association of it ends the former one.
    pub single_association: bool,
}

/// One namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// What it is made of.
    pub backing: Backing,
    /// The same on every path to it.
    pub ids: NamespaceIds,
    /// How good this path to it is.
    pub ana: AnaState,
}

/// What a namespace is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Memory, lost when the engine stops.
    Memory(Geometry),
    /// A file or block device. Its reservations are kept beside it.
    File {
        /// Where it is.
        path: PathBuf,
        /// In units of this.
        block_size: BlockSize,
    },
    /// A replica or snapshot in an open pool, which keeps its reservations as well. A subsystem is
    /// on the core of its pool.
    Replica {
        /// Which pool.
        pool: pool::Id,
        /// Which one.
        id: pool::Id,
    },
    /// A replica of a mirrored volume, for its target alone: its reservation keys are epochs,
    /// nobody touches it without holding it, and it takes messages (`docs/protocol/replica.md`).
    Member {
        /// Which pool.
        pool: pool::Id,
        /// Which one.
        id: pool::Id,
    },
    /// A mirrored volume whose target is open on this core. Served by the order that opens it.
    Volume {
        /// Which.
        id: VolumeId,
        /// Its shape.
        geometry: Geometry,
    },
}

/// Limits of an engine.
#[derive(Clone, Copy, Debug)]
pub struct EngineLimits {
    /// Connections of one reactor, by kind.
    pub places: QuotaLimits,
    /// Bytes of buffers that the commands of one connection may hold at once.
    pub connection_bytes: usize,
    /// Entries of a queue.
    pub queue_depth: u16,
    /// I/O queues of a controller.
    pub io_queues: u16,
    /// Memory for the cache of each pool: checksums, and places of blocks under snapshots.
    pub pool_cache: Bytes,
}

impl Default for EngineLimits {
    fn default() -> EngineLimits {
        EngineLimits {
            places: QuotaLimits::default(),
            connection_bytes: 32 << 20,
            queue_depth: 128,
            io_queues: 128,
            pool_cache: Bytes::mib(128),
        }
    }
}

/// The identity of a namespace that has none from elsewhere: always the same for the same name, so
/// that every engine that serves it agrees.
pub fn identity_of(nqn: &Nqn, nsid: u32) -> NamespaceIds {
    let mut hash = Sha256::new();
    hash.update(nqn.as_str().as_bytes());
    hash.update(nsid.to_be_bytes());
    let mut uuid = [0; 16];
    uuid.iter_mut().zip(hash.finalize()).for_each(|(to, from)| *to = from);
    // Version 8 (of our own making), variant 1.
    uuid[6] = uuid[6] & 0x0F | 0x80;
    uuid[8] = uuid[8] & 0x3F | 0x80;
    NamespaceIds { uuid, nguid: uuid, ..NamespaceIds::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_are_stable_and_differ() {
        let name = |text: &str| Nqn::new(&format!("nqn.2026-11.io.holdfast:{text}")).unwrap();
        let one = identity_of(&name("a"), 1);
        assert_eq!(one, identity_of(&name("a"), 1));
        assert_ne!(one, identity_of(&name("a"), 2));
        assert_ne!(one, identity_of(&name("b"), 1));
        assert_eq!((one.uuid[6] >> 4, one.uuid[8] >> 6), (8, 2));
    }
}
