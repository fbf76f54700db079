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
    Detached, Event, Frozen, Handler, Io, Key, Mailbox, Moment, Op, Outcome, Slab, Socket, Token,
};

use super::config::Limits;
use super::keeper::Keeper;
use super::link::{Link, Phase, Starter, Want};
use super::obey::Departure;
use super::orders::Order;
use super::pooling::{Asked, PoolOrder, ToKeep};
use super::prover::{self, Proved, Prover};
use super::reservation::ToReserve;
use super::routes::Routes;
use super::served::Served;
use super::shares::Shares;
use super::voluming::{StoreAnswer, VolumeOrder};
use super::{ACCEPT, DEVICE, POOL, RECEIVE, SEND, TICK, VOLUME};
use crate::client::TOKEN_KINDS;
use crate::clock::instant;
use crate::device::{Devices, Finished};
use crate::pools::seldom::Seldom;
use crate::replication::ClusterSecret;
use crate::volumes::Volumes;

/// What is posted to a core.
pub(super) enum Message {
    /// A connection whose subsystem lives here.
    Arrival(Box<Arrival>),
    /// Reservations are durable, or not.
    Kept {
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
    Proved(Box<Proved>),
    /// Something is to change.
    Order(Box<Order>),
    /// Discovery has something new to tell.
    Discovery,
    /// An order to a pool of this core.
    Pool(Box<PoolOrder>),
    /// An order to a mirrored volume of this core.
    Volume(Box<VolumeOrder>),
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
    pub(super) arrived: Option<Frozen>,
    pub(super) machine: Connection,
    pub(super) peer: SocketAddr,
}

/// The handler of one core.
pub(super) struct Core {
    pub(super) me: usize,
    pub(super) routes: Arc<Routes>,
    pub(super) mailboxes: Vec<Mailbox<Message>>,
    pub(super) keeper: Option<Keeper>,
    pub(super) prover: Option<Prover>,
    /// Where the engine listens.
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) listeners: Vec<Listener>,
    pub(super) subsystems: Slab<Served>,
    /// Those that are to end.
    pub(super) leaving: Vec<Departure>,
    /// Which version of the routes discovery tells.
    pub(super) told: u64,
    pub(super) devices: Devices<Starter>,
    pub(super) connection: ConnectionConfig,
    pub(super) limits: Limits,
    pub(super) links: Slab<Link>,
    /// Links by the number that subsystems know them by.
    pub(super) names: BTreeMap<ConnId, Key>,
    pub(super) next_name: u64,
    pub(super) dirty: VecDeque<Key>,
    /// Links that wait for a buffer for data in a capsule.
    pub(super) stalled: Vec<Key>,
    pub(super) wants: VecDeque<(Key, Want)>,
    pub(super) is_ticking: bool,
    pub(super) stopping: Option<Moment>,
    /// Orders to pools that are not answered yet.
    pub(super) asked: Slab<Asked>,
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
    pub(super) shares: Shares,
    /// How often hosts did not prove themselves, found no place, had to leave theirs to others.
    pub(super) rejected: Seldom,
    pub(super) turned_away: Seldom,
    pub(super) evicted: Seldom,
}

/// A listening socket.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) socket: Socket,
    pub(super) is_accepting: bool,
}

impl Handler for Core {
    type Message = Message;

    fn on(&mut self, event: Event<Message>, io: &mut impl Io<Message = Message>) {
        match event {
            Event::Done { token, outcome } => {
                let (kind, key) = token.parts();
                match (kind, outcome) {
                    (DEVICE, outcome) => self.devices.on(key, outcome, io),
                    (POOL, outcome) => self.devices.pools.on(key, outcome, io),
                    (RECEIVE, Outcome::Received(result)) => {
                        if let Some(link) = self.links.get_mut(key) {
                            link.stream.on_received(result);
                            // At once: the buffer is free again sooner, and still in the cache.
                            link.take_in(io);
                            self.touch(key);
                        }
                    }
                    (RECEIVE, Outcome::ReceivedInto { buffer, result }) => {
                        if let Some(link) = self.links.get_mut(key) {
                            link.received_into(buffer, &result);
                            self.touch(key);
                        }
                    }
                    (SEND, Outcome::Sent { chain, result }) => {
                        if let Some(link) = self.links.get_mut(key) {
                            link.stream.on_sent(chain, &result);
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
            Event::Message(Message::Kept { subsystem, nsid, version, kept }) => {
                if let Some(served) = self.subsystems.get_mut(subsystem) {
                    served.subsystem.persisted(nsid, version, kept);
                }
                self.effects(subsystem);
            }
            Event::Message(Message::Proved(proved)) => {
                if let Some(link) = self.links.get_mut(proved.link) {
                    link.machine.authenticated(proved.done);
                    self.touch(proved.link);
                }
            }
            Event::Message(Message::Order(order)) => self.obey(*order, io),
            Event::Message(Message::Pool(order)) => self.pool_order(*order, io),
            Event::Message(Message::Volume(order)) => self.volume_order(*order, io),
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
                    Starter::Host((key, slot)) => {
                        if let Some(link) = self.links.get_mut(key) {
                            link.finished(slot, completion, data);
                            self.touch(key);
                        }
                    }
                    Starter::Volume(passed) => self.passed(passed, completion, data, io),
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
            self.bury(io);
        }
        self.keep_ticking(io);
        !self.is_over(io)
    }
}

impl Core {
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
            self.pass(asked, io);
        }
        while let Some(ended) = self.volumes.ended() {
            worked = true;
            self.devices.ended(ended, io);
        }
        worked
    }

    pub(super) fn touch(&mut self, key: Key) {
        touch(&mut self.links, &mut self.dirty, key);
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
            let Some(link) = self.links.get_mut(key) else { continue };
            let served = link.subsystem.and_then(|of| self.subsystems.get(of));
            let Some(served) = served else { continue };
            match link.want(want, served, &mut self.devices, io) {
                Some(want) => self.wants.push_back((key, want)),
                None => self.touch(key),
            }
        }
    }

    /// Does everything that can be done for one link.
    fn pump(&mut self, key: Key, io: &mut impl Io<Message = Message>) {
        let now = instant(io);
        if let Some(link) = self.links.get_mut(key) {
            link.is_dirty = false;
        }
        loop {
            let Some(link) = self.links.get_mut(key) else { return };
            let progressed = link.take_in(io);
            if link.is_undecided() {
                self.route(key, io);
            }
            self.work_off(key, now, io);
            if !progressed {
                break;
            }
        }
        self.promote(key, io);
        let Some(link) = self.links.get_mut(key) else { return };
        if link.stalled {
            self.stalled.push(key);
        }
        link.flush(io);
        link.resume(io);
        if link.phase == Phase::Moving {
            self.move_away(key, io);
        } else if link.should_close(io.now()) {
            self.close(key, io);
        }
        if self.links.get(key).is_some_and(Link::is_gone) {
            self.forget(key);
        }
    }

    fn work_off(&mut self, key: Key, now: Instant, io: &mut impl Io) {
        let Some(link) = self.links.get_mut(key) else { return };
        let Some(of) = link.subsystem else { return };
        let Some(served) = self.subsystems.get_mut(of) else { return };
        let mut messages = Vec::new();
        while let Some(event) = link.machine.poll(&mut served.subsystem, now) {
            if let target::Event::Message { slot, nsid, message } = event {
                link.message_begun();
                messages.push((slot, nsid, message));
            } else if event == target::Event::Entropy {
                let to = self.mailboxes.get(self.me);
                // Between engines there is no exponentiation.
                let cheap = self.cluster.is_some() && served.is_replica();
                prover::begin((link, key), cheap, self.prover.as_ref().zip(to));
            } else if let Some(want) = link.begin(event, served, &mut self.devices, io) {
                self.wants.push_back((key, want));
            }
        }
        for (slot, nsid, message) in messages {
            self.read_message((key, slot), (of, nsid), message, io);
        }
        self.effects(of);
    }

    pub(super) fn close(&mut self, key: Key, io: &mut impl Io) {
        let Some(link) = self.links.get_mut(key) else { return };
        if link.phase == Phase::Closed {
            return;
        }
        link.phase = Phase::Closed;
        if let Some(error) = link.machine.error() {
            tracing::info!(peer = %link.peer, %error, "the host broke the protocol");
        }
        if let Some(why) = link.machine.rejection()
            && let Some(times) = self.rejected.again()
        {
            let subsystem = link.subsystem.and_then(|of| self.subsystems.get(of));
            let subsystem = subsystem.map(|served| served.subsystem.nqn().as_str());
            let peer = link.peer;
            tracing::warn!(%peer, subsystem, %why, times, "a host did not prove itself");
        }
        link.stream.close(io);
        if let Some(of) = link.subsystem
            && let Some(served) = self.subsystems.get_mut(of)
        {
            link.machine.detach(&mut served.subsystem);
            self.effects(of);
        }
        self.wants.retain(|(of, _)| *of != key);
        self.touch(key);
    }
}

/// Notes that a link has something to do.
pub(super) fn touch(links: &mut Slab<Link>, dirty: &mut VecDeque<Key>, key: Key) {
    if let Some(link) = links.get_mut(key)
        && !link.is_dirty
    {
        link.is_dirty = true;
        dirty.push_back(key);
    }
}
