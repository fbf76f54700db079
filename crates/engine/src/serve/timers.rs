//! What a core does beside serving: effects of its subsystems, deadlines, and its end.

use std::time::Duration;

use nvme::target::Effect;
use reactor::{Io, Key, Mailbox, Op, Token};

use super::TICK;
use super::exported_subsystem::ReservationBacking;
use super::pool_admin::PoolCaller;
use super::reservation::to_model;
use super::reservation_store::{self, StoreRequest};
use super::shard::{Message, Shard, touch};
use crate::clock::instant;
use crate::volumes::{OwnershipProof, ReservationWrite};

/// How often to look for deadlines, while there are connections.
const TICK_EVERY: Duration = Duration::from_millis(250);
/// How long connections may take to end when the engine stops.
const STOP_PATIENCE: Duration = Duration::from_secs(2);
/// How long pools may take to write everything down then.
const POOL_PATIENCE: Duration = Duration::from_secs(30);

impl Shard {
    pub(super) fn effects(&mut self, key: Key) {
        let (mut keeping, mut reserving, mut proving) = (Vec::new(), Vec::new(), Vec::new());
        let Some(exported) = self.subsystems.get_mut(key) else { return };
        while let Some(effect) = exported.subsystem.poll_effect() {
            match effect {
                Effect::Persist { nsid, version, reservations } => {
                    let kept =
                        Message::ReservationsKept { subsystem: key, nsid, version, kept: true };
                    let path = match exported.reservations(nsid) {
                        ReservationBacking::File(path) => path,
                        ReservationBacking::Replica { pool, id } => {
                            let of = (*pool, *id);
                            let asked = PoolCaller::Kept { subsystem: key, nsid, version };
                            keeping.push((of, reservation_store::encode(&reservations), asked));
                            continue;
                        }
                        ReservationBacking::Volume(volume) => {
                            let write = ReservationWrite { subsystem: key.to_bits(), version };
                            reserving.push((*volume, write, to_model(&reservations)));
                            continue;
                        }
                        ReservationBacking::Nowhere => {
                            // Memory is lost with the engine, and so may its reservations be.
                            exported.subsystem.persisted(nsid, version, true);
                            continue;
                        }
                    };
                    let Some(me) = self.mailboxes.get(self.me).cloned() else { continue };
                    let done = Box::new(move |durable| {
                        let mut message = kept;
                        if let Message::ReservationsKept { kept, .. } = &mut message {
                            *kept = durable;
                        }
                        post_patiently(&me, message);
                    });
                    let order = StoreRequest { path: path.clone(), reservations, done };
                    let kept = self.reservation_store.as_ref().map(|store| store.keep(order));
                    if !matches!(kept, Some(Ok(()))) {
                        exported.subsystem.persisted(nsid, version, false);
                    }
                }
                Effect::ProveOwnership { nsid, number } => {
                    if let ReservationBacking::Volume(volume) = exported.reservations(nsid) {
                        let subsystem = key.to_bits();
                        proving.push((*volume, OwnershipProof { subsystem, number }));
                    } else {
                        exported.subsystem.ownership_proved(nsid, number, true);
                    }
                }
                Effect::Disconnect(name) => {
                    if let Some(key) = self.names.get(&name)
                        && let Some(connection) = self.connections.get_mut(*key)
                    {
                        connection.end();
                        touch(&mut self.connections, &mut self.dirty, *key);
                    }
                }
                Effect::Wake(name) => {
                    if let Some(key) = self.names.get(&name) {
                        touch(&mut self.connections, &mut self.dirty, *key);
                    }
                }
            }
        }
        self.to_keep.append(&mut keeping);
        self.to_reserve.append(&mut reserving);
        self.to_prove.append(&mut proving);
    }

    /// Whether the engine has stopped: connections are gone, pools are written down.
    pub(super) fn is_over(&mut self, io: &mut impl Io) -> bool {
        let Some(deadline) = self.stopping else { return false };
        let quiet = self.connections.is_empty() && self.devices.at_work() == 0;
        if !quiet && io.now() < deadline {
            return false;
        }
        self.devices.pools.leave_all(io) || io.now() >= deadline.after(POOL_PATIENCE)
    }

    pub(super) fn keep_ticking(&mut self, io: &mut impl Io) {
        let needed = !self.connections.is_empty()
            || self.stopping.is_some()
            || self.listeners.iter().any(|listener| !listener.is_accepting);
        if needed && !self.is_ticking {
            let at = io.now().after(TICK_EVERY);
            self.is_ticking =
                io.submit(Op::Timer { at }, Token::of(TICK, Key::from_bits(0))).is_ok();
        }
    }

    pub(super) fn tick(&mut self, io: &mut impl Io) {
        self.is_ticking = false;
        self.tell_discovery();
        let now = instant(io);
        let due: Vec<Key> = self
            .connections
            .iter()
            .filter(|(_, connection)| connection.is_due(now, io.now()))
            .map(|(key, _)| key)
            .collect();
        for key in due {
            let Some(connection) = self.connections.get_mut(key) else { continue };
            let exported = connection.subsystem.and_then(|of| self.subsystems.get_mut(of));
            connection
                .machine
                .handle_timeout(exported.map(|exported| &mut exported.subsystem), now);
            if let Some(of) = connection.subsystem {
                self.effects(of);
            }
            self.touch(key);
        }
    }

    pub(super) fn stop(&mut self, io: &mut impl Io) {
        if self.stopping.is_some() {
            return;
        }
        self.stopping = Some(io.now().after(STOP_PATIENCE));
        for listener in &self.listeners {
            io.close(listener.socket);
        }
        self.volumes.abandon(io);
        let exported: Vec<Key> = self.subsystems.keys().collect();
        for key in exported {
            if let Some(exported) = self.subsystems.get_mut(key) {
                exported.subsystem.close();
            }
            self.effects(key);
        }
        let all: Vec<Key> = self.connections.keys().collect();
        for key in all {
            if let Some(connection) = self.connections.get_mut(key) {
                connection.end();
            }
            self.touch(key);
        }
    }
}

/// Helping threads may wait for a reactor; a reactor never waits for them.
pub(super) fn post_patiently(to: &Mailbox<Message>, message: Message) {
    let mut message = message;
    while let Err(reactor::Undelivered::Full(back)) = to.post(message) {
        message = back;
        std::thread::sleep(Duration::from_millis(1));
    }
}
