//! Setting up a core: what it serves from the start, and where it listens.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use nvme::target::ConnectionConfig;
use reactor::{Io, Key, Slab, Token};

use super::config::Config;
use super::core::{Core, Listener, Message};
use super::link::Starter;
use super::routes::Routes;
use super::served::Served;
use super::shares::Shares;
use super::{SUBSYSTEMS, StartError, VOLUME, pooling};
use crate::device::Devices;
use crate::pools::seldom::Seldom;
use crate::volumes::Volumes;

/// Connections that are closed, but have commands at work on a device.
const CLOSING: u32 = 256;

impl Core {
    /// The handler of core `index`, with the pools that are open in `devices`; and where it
    /// listens. It serves once it has its mailboxes.
    pub(super) fn open(
        index: usize,
        config: &Config,
        routes: Arc<Routes>,
        (mut devices, io): (Devices<Starter>, &mut impl Io<Message = Message>),
    ) -> Result<(Core, Vec<SocketAddr>), StartError> {
        let limits = config.limits;
        let mut subsystems = Slab::new(SUBSYSTEMS);
        let mut add = |served| subsystems.insert(served).map_err(|_| StartError::TooMany);
        if let Some(discovery) = Served::discovery(limits) {
            add(discovery)?;
        }
        for (nqn, wanted) in &config.subsystems {
            if routes.core_of(nqn) == Some(index) {
                add(Served::open(nqn, wanted, limits, &mut devices, io)?)?;
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
        let handler = Core {
            me: index,
            routes,
            mailboxes: Vec::new(),
            keeper: None,
            prover: None,
            addresses: Vec::new(),
            listeners,
            subsystems,
            leaving: Vec::new(),
            told: 0,
            devices,
            connection: ConnectionConfig { digests: config.digests, ..ConnectionConfig::default() },
            limits,
            links: Slab::new(limits.places.total().saturating_add(CLOSING)),
            names: BTreeMap::new(),
            next_name: u64::try_from(index).unwrap_or(0) << 48,
            dirty: VecDeque::new(),
            stalled: Vec::new(),
            wants: VecDeque::new(),
            is_ticking: false,
            stopping: None,
            asked: Slab::new(pooling::MOST_ASKED),
            to_keep: Vec::new(),
            to_reserve: Vec::new(),
            to_prove: Vec::new(),
            volumes: Volumes::new(Token::of(VOLUME, Key::from_bits(0)), config.replication.clone()),
            cluster: config.replication.secret.clone(),
            shares: Shares::new(limits.places),
            rejected: Seldom::default(),
            turned_away: Seldom::default(),
            evicted: Seldom::default(),
        };
        Ok((handler, addresses))
    }
}
