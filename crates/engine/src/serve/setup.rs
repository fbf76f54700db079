//! Setting up a core: what it serves from the start, and where it listens.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use nvme::target::ConnectionConfig;
use reactor::{Io, Key, Slab, Token};

use super::config::Config;
use super::connection_quota::ConnectionQuota;
use super::directory::SubsystemDirectory;
use super::exported_subsystem::ExportedSubsystem;
use super::host_connection::JobOrigin;
use super::shard::{Listener, Message, Shard};
use super::{SUBSYSTEMS, StartError, VOLUME, pool_admin};
use crate::device::Devices;
use crate::pools::log_throttle::LogThrottle;
use crate::volumes::Volumes;

/// Connections that are closed, but have commands at work on a device.
const CLOSING: u32 = 256;

impl Shard {
    /// The handler of core `index`, with the pools that are open in `devices`; and where it
    /// listens. It serves once it has its mailboxes.
    pub(super) fn open(
        index: usize,
        config: &Config,
        directory: Arc<SubsystemDirectory>,
        (mut devices, io): (Devices<JobOrigin>, &mut impl Io<Message = Message>),
    ) -> Result<(Shard, Vec<SocketAddr>), StartError> {
        let limits = config.limits;
        let mut subsystems = Slab::new(SUBSYSTEMS);
        let mut add = |exported| subsystems.insert(exported).map_err(|_| StartError::TooMany);
        if let Some(discovery) = ExportedSubsystem::discovery(limits) {
            add(discovery)?;
        }
        for (nqn, wanted) in &config.subsystems {
            if directory.core_of(nqn) == Some(index) {
                add(ExportedSubsystem::open(nqn, wanted, limits, &mut devices, io)?)?;
            }
        }
        let mut listeners = Vec::new();
        let mut addresses = Vec::new();
        for address in config.listen.iter().filter(|_| index == 0) {
            let (socket, found) = io
                .listen(*address)
                .map_err(|source| StartError::Listen { address: *address, source })?;
            listeners.push(Listener { socket, is_accepting: false });
            addresses.push(found);
        }
        let handler = Shard {
            me: index,
            directory,
            mailboxes: Vec::new(),
            reservation_store: None,
            auth_worker: None,
            addresses: Vec::new(),
            listeners,
            subsystems,
            leaving: Vec::new(),
            told: 0,
            devices,
            connection_config: ConnectionConfig {
                digests: config.digests,
                ..ConnectionConfig::default()
            },
            limits,
            connections: Slab::new(limits.places.total().saturating_add(CLOSING)),
            names: BTreeMap::new(),
            next_name: u64::try_from(index).unwrap_or(0) << 48,
            dirty: VecDeque::new(),
            stalled: Vec::new(),
            wants: VecDeque::new(),
            is_ticking: false,
            stopping: None,
            asked: Slab::new(pool_admin::MOST_ASKED),
            to_keep: Vec::new(),
            to_reserve: Vec::new(),
            to_prove: Vec::new(),
            volumes: Volumes::new(Token::of(VOLUME, Key::from_bits(0)), config.replication.clone()),
            cluster: config.replication.secret.clone(),
            shares: ConnectionQuota::new(limits.places),
            rejected: LogThrottle::default(),
            turned_away: LogThrottle::default(),
            evicted: LogThrottle::default(),
        };
        Ok((handler, addresses))
    }
}
