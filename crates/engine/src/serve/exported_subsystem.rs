//! A subsystem that this core serves, and the devices under it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use block::{Blocks, Command};
use model::{HostReservations, VolumeId};
use nvme::auth::{Accepted, ControllerSide, Keys, Names};
use nvme::target::{
    Hosts, Limits, NamespaceConfig, ReservationHome, Reservations, Subsystem, SubsystemConfig,
};
use nvme::wire::Nqn;
use reactor::Io;

use super::config::{self, Backing};
use super::connection_quota::PeerKind;
use super::host_connection::JobOrigin;
use super::reservation_store::{self, ReadError};
use crate::device::{DeviceId, Devices, OpenError};
use crate::replication::ClusterSecret;

/// A subsystem with its devices.
pub(super) struct ExportedSubsystem {
    pub(super) subsystem: Subsystem,
    pub(super) devices: BTreeMap<u32, NamespaceBacking>,
    pub(super) keys: BTreeMap<Nqn, Keys>,
    /// What was ordered, up to the last order.
    pub(super) wanted: config::Subsystem,
    /// Nobody may connect any more.
    pub(super) is_leaving: bool,
}

pub(super) struct NamespaceBacking {
    pub(super) device: DeviceId,
    block_bytes: usize,
    reservations: ReservationBacking,
}

/// Where reservations are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ReservationBacking {
    /// Nowhere: memory forgets them with everything else.
    Nowhere,
    /// In a file beside the device.
    File(PathBuf),
    /// With the replica.
    Replica { pool: pool::Id, id: pool::Id },
    /// With the volume.
    Volume(VolumeId),
}

/// Why a subsystem cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A device cannot be used.
    #[error("cannot serve namespace {nsid} of {nqn}")]
    Device {
        /// Which namespace.
        nsid: u32,
        /// Of which subsystem.
        nqn: String,
        /// Why.
        source: OpenError,
    },
    /// Its reservations cannot be read.
    #[error("cannot restore the reservations of namespace {nsid} of {nqn}")]
    Reservations {
        /// Which namespace.
        nsid: u32,
        /// Of which subsystem.
        nqn: String,
        /// Why.
        source: ReadError,
    },
    /// The subsystem refuses it.
    #[error("cannot add namespace {nsid} to {nqn}: {why}")]
    Namespace {
        /// Which namespace.
        nsid: u32,
        /// Of which subsystem.
        nqn: String,
        /// Why.
        why: String,
    },
}

impl ExportedSubsystem {
    /// Opens everything of one subsystem.
    pub(super) fn open(
        nqn: &Nqn,
        wanted: &config::Subsystem,
        limits: config::EngineLimits,
        devices: &mut Devices<JobOrigin>,
        io: &mut impl Io,
    ) -> Result<ExportedSubsystem, ServeError> {
        let cntlids = wanted.cntlids.unwrap_or((1, nvme::wire::CNTLID_MAX));
        let mut subsystem = Subsystem::new(identity(nqn.clone(), wanted.hosts(), cntlids, limits));
        subsystem.set_single_association(wanted.single_associations());
        let mut exported = ExportedSubsystem {
            subsystem,
            devices: BTreeMap::new(),
            keys: keys_of(&wanted.hosts),
            wanted: wanted.clone(),
            is_leaving: false,
        };
        // One ANA group per namespace: each can change alone.
        for ((nsid, namespace), group) in wanted.namespaces.iter().zip(1..) {
            if let Err(error) = exported.add(*nsid, namespace, group, devices, io) {
                exported.close(devices, io);
                return Err(error);
            }
        }
        Ok(exported)
    }

    /// The discovery service of this core; what it tells comes later.
    pub(super) fn discovery(limits: config::EngineLimits) -> Option<ExportedSubsystem> {
        let nqn = Nqn::new(Nqn::DISCOVERY).ok()?;
        let all = (1, nvme::wire::CNTLID_MAX);
        let identity = identity(nqn, Hosts::Any, all, limits);
        let subsystem = Subsystem::discovery(identity, Vec::new());
        Some(ExportedSubsystem {
            subsystem,
            devices: BTreeMap::new(),
            keys: BTreeMap::new(),
            wanted: config::Subsystem::default(),
            is_leaving: false,
        })
    }

    fn add(
        &mut self,
        nsid: u32,
        namespace: &config::Namespace,
        ana_group: u32,
        devices: &mut Devices<JobOrigin>,
        io: &mut impl Io,
    ) -> Result<(), ServeError> {
        let name = self.subsystem.nqn().clone();
        let nqn = || name.as_str().to_owned();
        let (kept, reservations) = kept_of(&namespace.backing, devices)
            .map_err(|source| ServeError::Reservations { nsid, nqn: nqn(), source })?;
        let opened = match &namespace.backing {
            Backing::Memory(geometry) => devices.add_memory(*geometry),
            Backing::File { path, block_size } => devices.add_file(path, *block_size, io),
            Backing::Replica { pool, id } | Backing::Member { pool, id } => {
                // A copy that is no member of a volume is all there is of it.
                let is_member = matches!(namespace.backing, Backing::Member { .. });
                devices.pools.set_sole(*pool, *id, !is_member);
                devices.add_replica(*pool, *id)
            }
            Backing::Volume { id, geometry } => devices.add_volume(*id, *geometry),
        };
        let device = opened.map_err(|source| ServeError::Device { nsid, nqn: nqn(), source })?;
        let no_device = || ServeError::Device { nsid, nqn: nqn(), source: OpenError::Full };
        let geometry = devices.geometry(device).ok_or_else(no_device)?;
        let config = NamespaceConfig {
            ids: namespace.ids,
            geometry,
            ana_group,
            read_only: is_snapshot(&namespace.backing, devices),
            write_cache: !matches!(namespace.backing, Backing::Memory(_)),
            takes_messages: matches!(namespace.backing, Backing::Member { .. }),
            reservations,
            reservation_home: home_of(&namespace.backing),
        };
        let refused = |why: nvme::target::BadNamespace| ServeError::Namespace {
            nsid,
            nqn: nqn(),
            why: why.to_string(),
        };
        let block_bytes = usize::try_from(geometry.block_size().bytes()).unwrap_or(usize::MAX);
        // First of all, so that the device is closed with the rest if the namespace is refused.
        self.devices.insert(nsid, NamespaceBacking { device, block_bytes, reservations: kept });
        self.subsystem.add_namespace(nsid, config).map_err(refused)?;
        self.subsystem.set_ana(ana_group, namespace.ana).map_err(refused)?;
        Ok(())
    }

    pub(super) fn device(&self, nsid: u32) -> Option<DeviceId> {
        self.devices.get(&nsid).map(|medium| medium.device)
    }

    /// Where the reservations of a namespace are kept, if anywhere.
    pub(super) fn reservations(&self, nsid: u32) -> &ReservationBacking {
        self.devices.get(&nsid).map_or(&ReservationBacking::Nowhere, |medium| &medium.reservations)
    }

    /// Whether it is a replica: for targets alone.
    pub(super) fn is_replica(&self) -> bool {
        self.wanted.is_replica()
    }

    /// Among whom those have their places who use it.
    pub(super) fn share(&self) -> PeerKind {
        match () {
            () if self.is_replica() => PeerKind::Replication,
            () if self.subsystem.nqn().is_discovery() => PeerKind::Discovery,
            () => PeerKind::Host,
        }
    }

    /// The exchange by which a host proves itself, if it has to. A target has to wherever the
    /// cluster has a secret.
    pub(super) fn authentication(
        &self,
        host: &Nqn,
        cluster: Option<&ClusterSecret>,
    ) -> Option<ControllerSide> {
        let subsystem = self.subsystem.nqn();
        if let Some(cluster) = cluster.filter(|_| self.is_replica()) {
            return Some(cluster.controller(host, subsystem));
        }
        let keys = self.keys.get(host)?.clone();
        let (host, subsystem) = (host.as_str().to_owned(), subsystem.as_str().to_owned());
        Some(ControllerSide::new(Names { host, subsystem }, keys, Accepted::default()))
    }

    /// How many bytes a command moves.
    pub(super) fn bytes_of(&self, nsid: u32, command: Command) -> usize {
        let Blocks(blocks) = command.span().map_or(Blocks::ZERO, block::Span::len);
        let block_bytes = self.devices.get(&nsid).map_or(0, |medium| medium.block_bytes);
        usize::try_from(blocks).unwrap_or(usize::MAX).saturating_mul(block_bytes)
    }
}

/// Where the reservations of a namespace are kept, and what is kept there.
fn kept_of(
    backing: &Backing,
    devices: &Devices<JobOrigin>,
) -> Result<(ReservationBacking, Reservations), ReadError> {
    match backing {
        Backing::Memory(_) => Ok((ReservationBacking::Nowhere, Reservations::default())),
        // They come when the volume is open.
        Backing::Volume { id, .. } => {
            Ok((ReservationBacking::Volume(*id), Reservations::default()))
        }
        Backing::File { path, .. } => {
            let place = reservation_store::place_of(path);
            let found = reservation_store::read(&place)?;
            Ok((ReservationBacking::File(place), found))
        }
        Backing::Replica { pool, id } => {
            let share = devices.pools.entity(*pool, *id).map_or(&[][..], |entity| &entity.share);
            let damaged = || ReadError::Damaged { path: format!("replica {:032x}", id.0) };
            let found = reservation_store::decode(share).ok_or_else(damaged)?;
            Ok((ReservationBacking::Replica { pool: *pool, id: *id }, found))
        }
        Backing::Member { pool, id } => {
            let as_replica = Backing::Replica { pool: *pool, id: *id };
            let (kept, found) = kept_of(&as_replica, devices)?;
            // Whoever held it registers again; what must not be forgotten is the highest epoch.
            let least_key = Some(found.least_key.unwrap_or(0));
            Ok((kept, Reservations { least_key, ..Reservations::default() }))
        }
    }
}

/// Where the subsystem believes its reservations to be.
fn home_of(backing: &Backing) -> ReservationHome {
    match backing {
        Backing::Volume { .. } => {
            ReservationHome::Volume { max_registrants: HostReservations::MAX_REGISTRANTS }
        }
        _ => ReservationHome::Device,
    }
}

fn is_snapshot(backing: &Backing, devices: &Devices<JobOrigin>) -> bool {
    let Backing::Replica { pool, id } = backing else { return false };
    let entity = devices.pools.entity(*pool, *id);
    entity.is_some_and(|entity| entity.kind == pool::EntityKind::Snapshot)
}

/// What the hosts must know.
pub(super) fn keys_of(hosts: &BTreeMap<Nqn, config::Host>) -> BTreeMap<Nqn, Keys> {
    hosts.iter().filter_map(|(host, known)| Some((host.clone(), known.keys.clone()?))).collect()
}

fn identity(
    nqn: Nqn,
    hosts: Hosts,
    cntlids: (u16, u16),
    limits: config::EngineLimits,
) -> SubsystemConfig {
    // Eight hexadecimal digits of the name: the same on every engine that serves it.
    let serial = format!("HF{:08x}", nvme::pdu::digest(0, nqn.as_str().as_bytes()));
    SubsystemConfig {
        nqn,
        serial,
        model: "Holdfast".into(),
        firmware: env!("CARGO_PKG_VERSION").into(),
        cntlids,
        hosts,
        limits: Limits {
            queue_depth: limits.queue_depth,
            io_queues: limits.io_queues,
            ..Limits::default()
        },
    }
}
