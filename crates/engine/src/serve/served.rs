//! A subsystem that this core serves, and the devices under it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use block::{Blocks, Command};
use nvme::auth::{Accepted, ControllerSide, Keys, Names};
use nvme::target::{Hosts, Limits, NamespaceConfig, Reservations, Subsystem, SubsystemConfig};
use nvme::wire::Nqn;
use reactor::Io;

use super::config::{self, Backing, Config};
use super::keeper::{self, ReadError};
use super::link::Owner;
use crate::device::{DeviceId, Devices, OpenError};

/// A subsystem with its devices.
pub(super) struct Served {
    pub(super) subsystem: Subsystem,
    devices: BTreeMap<u32, Medium>,
    keys: BTreeMap<Nqn, Keys>,
}

struct Medium {
    device: DeviceId,
    block_bytes: usize,
    /// Where its reservations are kept; memory forgets them with everything else.
    reservations: Option<PathBuf>,
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

impl Served {
    /// Opens everything of one subsystem.
    pub(super) fn open(
        nqn: &Nqn,
        wanted: &config::Subsystem,
        config: &Config,
        devices: &mut Devices<Owner>,
        io: &mut impl Io,
    ) -> Result<Served, ServeError> {
        let cntlids = wanted.cntlids.unwrap_or((1, nvme::wire::CNTLID_MAX));
        let subsystem =
            Subsystem::new(identity(nqn.clone(), wanted.hosts(), cntlids, config.limits));
        let keys = wanted
            .hosts
            .iter()
            .filter_map(|(host, known)| Some((host.clone(), known.keys.clone()?)))
            .collect();
        let mut served = Served { subsystem, devices: BTreeMap::new(), keys };
        // One ANA group per namespace: each can change alone.
        for ((nsid, namespace), group) in wanted.namespaces.iter().zip(1..) {
            served.add(*nsid, namespace, group, devices, io)?;
        }
        Ok(served)
    }

    /// The discovery service of this core; what it tells comes later.
    pub(super) fn discovery(config: &Config) -> Option<Served> {
        let nqn = Nqn::new(Nqn::DISCOVERY).ok()?;
        let all = (1, nvme::wire::CNTLID_MAX);
        let identity = identity(nqn, Hosts::Any, all, config.limits);
        let subsystem = Subsystem::discovery(identity, Vec::new());
        Some(Served { subsystem, devices: BTreeMap::new(), keys: BTreeMap::new() })
    }

    fn add(
        &mut self,
        nsid: u32,
        namespace: &config::Namespace,
        ana_group: u32,
        devices: &mut Devices<Owner>,
        io: &mut impl Io,
    ) -> Result<(), ServeError> {
        let name = self.subsystem.nqn().clone();
        let nqn = || name.as_str().to_owned();
        let opened = match &namespace.backing {
            Backing::Memory(geometry) => devices.add_memory(*geometry),
            Backing::File { path, block_size } => devices.add_file(path, *block_size, io),
        };
        let device = opened.map_err(|source| ServeError::Device { nsid, nqn: nqn(), source })?;
        let (kept, reservations) =
            match &namespace.backing {
                Backing::Memory(_) => (None, Reservations::default()),
                Backing::File { path, .. } => {
                    let place = keeper::place_of(path);
                    let found = keeper::read(&place)
                        .map_err(|source| ServeError::Reservations { nsid, nqn: nqn(), source })?;
                    (Some(place), found)
                }
            };
        let no_device = || ServeError::Device { nsid, nqn: nqn(), source: OpenError::Full };
        let geometry = devices.geometry(device).ok_or_else(no_device)?;
        let config = NamespaceConfig {
            ids: namespace.ids,
            geometry,
            ana_group,
            read_only: false,
            write_cache: kept.is_some(),
            takes_messages: false,
            reservations,
        };
        let refused = |why: nvme::target::BadNamespace| ServeError::Namespace {
            nsid,
            nqn: nqn(),
            why: why.to_string(),
        };
        let block_bytes = usize::try_from(geometry.block_size().bytes()).unwrap_or(usize::MAX);
        self.subsystem.add_namespace(nsid, config).map_err(refused)?;
        self.subsystem.set_ana(ana_group, namespace.ana).map_err(refused)?;
        self.devices.insert(nsid, Medium { device, block_bytes, reservations: kept });
        Ok(())
    }

    pub(super) fn device(&self, nsid: u32) -> Option<DeviceId> {
        self.devices.get(&nsid).map(|medium| medium.device)
    }

    /// Where the reservations of a namespace are kept, if anywhere.
    pub(super) fn reservations(&self, nsid: u32) -> Option<&PathBuf> {
        self.devices.get(&nsid)?.reservations.as_ref()
    }

    /// The exchange by which a host proves itself, if it has to.
    pub(super) fn authentication(&self, host: &Nqn) -> Option<ControllerSide> {
        let keys = self.keys.get(host)?.clone();
        let names = Names {
            host: host.as_str().to_owned(),
            subsystem: self.subsystem.nqn().as_str().to_owned(),
        };
        Some(ControllerSide::new(names, keys, Accepted::default()))
    }

    /// How many bytes a command moves.
    pub(super) fn bytes_of(&self, nsid: u32, command: Command) -> usize {
        let Blocks(blocks) = command.span().map_or(Blocks::ZERO, block::Span::len);
        let block_bytes = self.devices.get(&nsid).map_or(0, |medium| medium.block_bytes);
        usize::try_from(blocks).unwrap_or(usize::MAX).saturating_mul(block_bytes)
    }
}

fn identity(
    nqn: Nqn,
    hosts: Hosts,
    cntlids: (u16, u16),
    limits: config::Limits,
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
