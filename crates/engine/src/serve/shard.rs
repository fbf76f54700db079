//! One core of the target: a reactor's handler with its listeners, links, subsystems and devices.
//!
//! Invariants:
//! - A subsystem, its connections after Connect, and its devices belong to one core.
//! - Everything an event changed is looked at again before the reactor waits: links that have
//!   something to do are in `dirty`, commands that wait for a buffer in `wants`.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use nvme::target::{self, ConnId, Connection, ConnectionConfig};
use nvme::time::Instant;
use reactor::{
    Detached, Event, Handler, Io, Key, Mailbox, MonotonicTime, Op, Outcome, SharedBuffer, Slab,
    Socket, Token,
};

use super::admin::PendingRemoval;
use super::auth_worker::{self, AuthResult, AuthWorker};
use super::config::EngineLimits;
use super::connection_quota::ConnectionQuota;
use super::directory::SubsystemDirectory;
use super::exported_subsystem::ExportedSubsystem;
use super::handle::AdminMessage;
use super::host_connection::{BufferWait, HostConnection, JobOrigin, Phase};
use super::pool_admin::{PoolCaller, PoolMessage, ToKeep};
use super::reservation::ToReserve;
use super::reservation_store::ReservationStore;
use super::volume_admin::{StoreAnswer, VolumeMessage};
use super::{ACCEPT, DEVICE, POOL, RECEIVE, SEND, TICK, VOLUME};
use crate::client::TOKEN_KINDS;
use crate::clock::instant;
use crate::device::{Devices, Finished};
use crate::pools::log_throttle::LogThrottle;
use crate::replication::ClusterSecret;
use crate::volumes::Volumes;

/// What is posted to a core.
pub(super) enum Message {
    /// A connection whose subsystem lives here.
    Arrival(Box<Arrival>),
    /// Reservations are durable, or not.
    ReservationsKept {
        /// Which of the core's subsystems.
        subsystem: Key,
        /// Which namespace.
        nsid: u32,
        /// Which state of it.
        version: u64,
        /// Whether it is durable.
        kept: bool,
    },
    /// A host's message was worked on.
    Authenticated(Box<AuthResult>),
    /// Something is to change.
    Admin(Box<AdminMessage>),
    /// Discovery has something new to tell.
    Discovery,
    /// An order to a pool of this core.
    Pool(Box<PoolMessage>),
    /// An order to a mirrored volume of this core.
    Volume(Box<VolumeMessage>),
    /// The store has answered a mirrored volume of this core.
    Recorded(Box<StoreAnswer>),
    /// End all connections and stop.
    Stop,
    /// Panic, or stand still until the other end is gone.
    #[cfg(test)]
    Break(Option<std::sync::mpsc::Receiver<()>>),
}

/// A connection on its way from the core that accepted it.
pub(super) struct Arrival {
    pub(super) socket: Detached,
    pub(super) arrived: Option<SharedBuffer>,
    pub(super) machine: Connection,
    pub(super) peer: SocketAddr,
}

/// The handler of one core.
pub(super) struct Shard {
    pub(super) me: usize,
    pub(super) directory: Arc<SubsystemDirectory>,
    pub(super) mailboxes: Vec<Mailbox<Message>>,
    pub(super) reservation_store: Option<ReservationStore>,
    pub(super) auth_worker: Option<AuthWorker>,
    /// Where the engine listens.
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) listeners: Vec<Listener>,
    pub(super) subsystems: Slab<ExportedSubsystem>,
    /// Those that are to end.
    pub(super) leaving: Vec<PendingRemoval>,
    /// Which version of the routes discovery tells.
    pub(super) told: u64,
    pub(super) devices: Devices<JobOrigin>,
    pub(super) connection_config: ConnectionConfig,
    pub(super) limits: EngineLimits,
    pub(super) connections: Slab<HostConnection>,
    /// Links by the number that subsystems know them by.
    pub(super) names: BTreeMap<ConnId, Key>,
    pub(super) next_name: u64,
    pub(super) dirty: VecDeque<Key>,
    /// Links that wait for a buffer for data in a capsule.
    pub(super) stalled: Vec<Key>,
    pub(super) wants: VecDeque<(Key, BufferWait)>,
    pub(super) is_ticking: bool,
    pub(super) stopping: Option<MonotonicTime>,
    /// Orders to pools that are not answered yet.
    pub(super) asked: Slab<PoolCaller>,
    /// Reservations that are to be kept with their replicas.
    pub(super) to_keep: Vec<ToKeep>,
    /// Reservations that are to be kept with their volumes.
    pub(super) to_reserve: Vec<ToReserve>,
    /// Volumes whose ownership is to be proved.
    pub(super) to_prove: Vec<(model::VolumeId, crate::volumes::OwnershipProof)>,
    pub(super) volumes: Volumes,
    /// What targets prove to replicas here.
    pub(super) cluster: Option<Arc<ClusterSecret>>,
    /// The places of links.
    pub(super) shares: ConnectionQuota,
    /// How often hosts did not prove themselves, found no place, had to leave theirs to others.
    pub(super) rejected: LogThrottle,
    pub(super) turned_away: LogThrottle,
    pub(super) evicted: LogThrottle,
}

/// A listening socket.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) socket: Socket,
    pub(super) is_accepting: bool,
}

impl Handler for Shard {
    type Message = Message;

    fn on(&mut self, event: Event<Message>, io: &mut impl Io<Message = Message>) {
        match event {
            Event::Done { token, outcome } => {
                let (kind, key) = token.parts();
                match (kind, outcome) {
                    (DEVICE, outcome) => self.devices.on(key, outcome, io),
                    (POOL, outcome) => self.devices.pools.on(key, outcome, io),
                    (RECEIVE, Outcome::Received(result)) => {
                        if let Some(connection) = self.connections.get_mut(key) {
                            connection.stream.on_received(result);
                            // At once: the buffer is free again sooner, and still in the cache.
                            connection.take_in(io);
                            self.touch(key);
                        }
                    }
                    (RECEIVE, Outcome::ReceivedInto { buffer, result }) => {
                        if let Some(connection) = self.connections.get_mut(key) {
                            connection.received_into(buffer, &result);
                            self.touch(key);
                        }
                    }
                    (SEND, Outcome::Sent { chain, result }) => {
                        if let Some(connection) = self.connections.get_mut(key) {
                            connection.stream.on_sent(chain, &result);
                            self.touch(key);
                        }
                    }
                    (ACCEPT, Outcome::Accepted(result)) => self.accepted(token, result, io),
                    (TICK, _) => self.tick(io),
                    (VOLUME, _) => self.volumes.tick(io),
                    (kind, outcome) if TOKEN_KINDS.contains(&kind) => {
                        self.volumes.on(token, outcome, io);
                    }
                    _ => {}
                }
            }
            Event::Message(Message::Arrival(arrival)) => self.arrive(*arrival, io),
            Event::Message(Message::ReservationsKept { subsystem, nsid, version, kept }) => {
                if let Some(exported) = self.subsystems.get_mut(subsystem) {
                    exported.subsystem.persisted(nsid, version, kept);
                }
                self.effects(subsystem);
            }
            Event::Message(Message::Authenticated(proved)) => {
                if let Some(connection) = self.connections.get_mut(proved.connection) {
                    connection.machine.authenticated(proved.done);
                    self.touch(proved.connection);
                }
            }
            Event::Message(Message::Admin(order)) => self.apply(*order, io),
            Event::Message(Message::Pool(order)) => self.pool_request(*order, io),
            Event::Message(Message::Volume(order)) => self.volume_request(*order, io),
            Event::Message(Message::Recorded(answer)) => self.store_answered(&answer, io),
            Event::Message(Message::Discovery) => self.tell_discovery(),
            Event::Message(Message::Stop) => self.stop(io),
            #[cfg(test)]
            Event::Message(Message::Break(still)) => match still {
                Some(still) => drop(still.recv()),
                None => panic!("a core is broken by a test"),
            },
        }
    }

    fn settle(&mut self, io: &mut impl Io<Message = Message>) -> bool {
        self.accept_all(io);
        while let Some(key) = self.stalled.pop() {
            self.touch(key);
        }
        self.devices.retry(io);
        self.volumes.retry();
        self.pool_answers(io);
        self.satisfy(io);
        loop {
            while let Some(finished) = self.devices.poll(io) {
                let Finished { owner, completion, data } = finished;
                match owner {
                    JobOrigin::Host((key, slot)) => {
                        if let Some(connection) = self.connections.get_mut(key) {
                            connection.finished(slot, completion, data);
                            self.touch(key);
                        }
                    }
                    JobOrigin::Volume(local_io) => self.local_done(local_io, completion, data, io),
                }
            }
            if let Some(key) = self.dirty.pop_front() {
                self.pump(key, io);
            } else if !self.work_on_volumes(io) {
                break;
            }
        }
        self.volumes.settle(io);
        if !self.leaving.is_empty() {
            self.reap(io);
        }
        self.keep_ticking(io);
        !self.is_over(io)
    }
}

impl Shard {
    /// Passes commands to volumes and back. Returns whether there was anything to do.
    fn work_on_volumes(&mut self, io: &mut impl Io) -> bool {
        let mut worked = false;
        while let Some(asked) = self.devices.for_volume() {
            worked = true;
            self.volumes.submit(asked, io);
        }
        self.keep_reservations(io);
        worked |= self.volumes.work(io);
        worked |= self.hear_of_reservations();
        while let Some(asked) = self.volumes.for_replica() {
            worked = true;
            self.submit_local(asked, io);
        }
        while let Some(ended) = self.volumes.ended() {
            worked = true;
            self.devices.ended(ended, io);
        }
        worked
    }

    pub(super) fn touch(&mut self, key: Key) {
        touch(&mut self.connections, &mut self.dirty, key);
    }

    /// Listens where nothing is listening: at the start, and after an error.
    fn accept_all(&mut self, io: &mut impl Io) {
        if self.stopping.is_some() {
            return;
        }
        for (listener, index) in self.listeners.iter_mut().zip(0u64..) {
            if !listener.is_accepting {
                let op = Op::Accept { listener: listener.socket };
                let token = Token::of(ACCEPT, Key::from_bits(index));
                listener.is_accepting = io.submit(op, token).is_ok();
            }
        }
    }

    /// Gives buffers to those who wait, in order, until there are none.
    fn satisfy(&mut self, io: &mut impl Io) {
        for _ in 0..self.wants.len() {
            let Some((key, want)) = self.wants.pop_front() else { break };
            let Some(connection) = self.connections.get_mut(key) else { continue };
            let exported = connection.subsystem.and_then(|of| self.subsystems.get(of));
            let Some(exported) = exported else { continue };
            match connection.want(want, exported, &mut self.devices, io) {
                Some(want) => self.wants.push_back((key, want)),
                None => self.touch(key),
            }
        }
    }

    /// Does everything that can be done for one link.
    fn pump(&mut self, key: Key, io: &mut impl Io<Message = Message>) {
        let now = instant(io);
        if let Some(connection) = self.connections.get_mut(key) {
            connection.is_dirty = false;
        }
        loop {
            let Some(connection) = self.connections.get_mut(key) else { return };
            let progressed = connection.take_in(io);
            if connection.is_undecided() {
                self.route(key, io);
            }
            self.work_off(key, now, io);
            if !progressed {
                break;
            }
        }
        self.promote(key, io);
        let Some(connection) = self.connections.get_mut(key) else { return };
        if connection.stalled {
            self.stalled.push(key);
        }
        connection.flush(io);
        connection.resume(io);
        if connection.phase == Phase::Moving {
            self.move_away(key, io);
        } else if connection.should_close(io.now()) {
            self.close(key, io);
        }
        if self.connections.get(key).is_some_and(HostConnection::is_gone) {
            self.forget(key);
        }
    }

    fn work_off(&mut self, key: Key, now: Instant, io: &mut impl Io) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let Some(of) = connection.subsystem else { return };
        let Some(exported) = self.subsystems.get_mut(of) else { return };
        let mut messages = Vec::new();
        while let Some(event) = connection.machine.poll(&mut exported.subsystem, now) {
            if let target::Event::Message { slot, nsid, message } = event {
                connection.message_begun();
                messages.push((slot, nsid, message));
            } else if event == target::Event::Entropy {
                let to = self.mailboxes.get(self.me);
                // Between engines there is no exponentiation.
                let cheap = self.cluster.is_some() && exported.is_replica();
                auth_worker::begin((connection, key), cheap, self.auth_worker.as_ref().zip(to));
            } else if let Some(want) = connection.begin(event, exported, &mut self.devices, io) {
                self.wants.push_back((key, want));
            }
        }
        for (slot, nsid, message) in messages {
            self.read_message((key, slot), (of, nsid), message, io);
        }
        self.effects(of);
    }

    pub(super) fn close(&mut self, key: Key, io: &mut impl Io) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if connection.phase == Phase::Closed {
            return;
        }
        connection.phase = Phase::Closed;
        if let Some(error) = connection.machine.error() {
            tracing::info!(peer = %connection.peer, %error, "the host broke the protocol");
        }
        if let Some(why) = connection.machine.rejection()
            && let Some(times) = self.rejected.again()
        {
            let subsystem = connection.subsystem.and_then(|of| self.subsystems.get(of));
            let subsystem = subsystem.map(|exported| exported.subsystem.nqn().as_str());
            let peer = connection.peer;
            tracing::warn!(%peer, subsystem, %why, times, "host authentication failed; closed");
        }
        connection.stream.close(io);
        if let Some(of) = connection.subsystem
            && let Some(exported) = self.subsystems.get_mut(of)
        {
            connection.machine.detach(&mut exported.subsystem);
            self.effects(of);
        }
        self.wants.retain(|(of, _)| *of != key);
        self.touch(key);
    }
}

/// Notes that a link has something to do.
pub(super) fn touch(connections: &mut Slab<HostConnection>, dirty: &mut VecDeque<Key>, key: Key) {
    if let Some(connection) = connections.get_mut(key)
        && !connection.is_dirty
    {
        connection.is_dirty = true;
        dirty.push_back(key);
    }
}
