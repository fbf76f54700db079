//! How connections come in: accepted, given a place, admitted to a subsystem, brought to its core.

use std::net::SocketAddr;

use nvme::target::{ConnId, Connection, ConnectionConfig};
use reactor::{Io, Key, Socket, Token};

use super::core::{Arrival, Core, Message};
use super::link::{Link, Phase};
use super::served::Served;
use super::shares::{Entry, Share};
use crate::clock::instant;
use crate::stream::Stream;

impl Core {
    pub(super) fn accepted(
        &mut self,
        token: Token,
        result: std::io::Result<(Socket, SocketAddr)>,
        io: &mut impl Io,
    ) {
        match result {
            Ok((socket, peer)) => {
                self.next_name += 1;
                let name = ConnId(self.next_name);
                let local = io.local_address(socket).ok().map(|address| address.ip());
                let config = ConnectionConfig { local, ..self.connection };
                let machine = Connection::new(name, config, instant(io));
                self.add_link(Stream::new(socket), machine, peer, io);
            }
            Err(error) => {
                let index = token.parts().1.index();
                if let Some(listener) =
                    usize::try_from(index).ok().and_then(|index| self.listeners.get_mut(index))
                {
                    listener.is_accepting = false;
                }
                if self.stopping.is_none() {
                    tracing::warn!(%error, "cannot accept a connection; trying again");
                }
            }
        }
    }

    fn add_link(
        &mut self,
        stream: Stream,
        machine: Connection,
        peer: SocketAddr,
        io: &mut impl Io,
    ) {
        let (socket, name) = (stream.socket(), machine.id());
        if let Entry::Evicts(oldest) = self.shares.enter(Share::Unproven, peer.ip(), name) {
            self.evict(oldest, io);
        }
        let link = Link::new(stream, machine, peer, self.limits.connection_bytes);
        let Ok(key) = self.links.insert(link) else {
            tracing::warn!(%peer, "too many connections; this one is closed");
            self.shares.leave(Share::Unproven, peer.ip(), name);
            io.close(socket);
            return;
        };
        if let Some(link) = self.links.get_mut(key) {
            link.named(key);
        }
        self.names.insert(name, key);
        self.touch(key);
    }

    pub(super) fn arrive(&mut self, arrival: Arrival, io: &mut impl Io) {
        let Arrival { socket, arrived, machine, peer } = arrival;
        let Ok(socket) = io.attach(socket) else {
            tracing::warn!(%peer, "too many connections; this one is closed");
            return;
        };
        self.add_link(Stream::attach(socket, arrived), machine, peer, io);
    }

    /// Admits a link, refuses it, or sends it on its way to the core of its subsystem.
    pub(super) fn route(&mut self, key: Key, io: &mut impl Io) {
        let now = instant(io);
        let Some(link) = self.links.get_mut(key) else { return };
        let Some(request) = link.machine.connect_request() else { return };
        let (name, host) = (request.subsystem.clone(), request.host.clone());
        match self.routes.core_of(&name) {
            _ if name.is_discovery() => self.tell_discovery(),
            Some(core) if core == self.me => {}
            Some(_) => {
                link.phase = Phase::Moving;
                return;
            }
            None => {
                tracing::info!(peer = %link.peer, %host, subsystem = %name, "no such subsystem");
                link.machine.refuse_unknown();
                return;
            }
        }
        let Some(link) = self.links.get_mut(key) else { return };
        let mine = |served: &Served| *served.subsystem.nqn() == name && !served.is_leaving;
        let found = self.subsystems.iter().find(|(_, served)| mine(served)).map(|(of, _)| of);
        let Some((of, served)) = found.and_then(|of| Some((of, self.subsystems.get_mut(of)?)))
        else {
            link.machine.refuse_unknown();
            return;
        };
        let auth = served.authentication(&host, self.cluster.as_deref());
        match link.machine.admit(&mut served.subsystem, now, auth) {
            Ok(()) => {
                link.subsystem = Some(of);
                tracing::debug!(peer = %link.peer, %host, subsystem = %name, "connected");
            }
            Err(why) => {
                tracing::info!(peer = %link.peer, %host, subsystem = %name, ?why, "refused");
            }
        }
    }

    /// Hands a link over as soon as nothing of it is under way here.
    pub(super) fn move_away(&mut self, key: Key, io: &mut impl Io) {
        let Some(link) = self.links.get_mut(key) else { return };
        if link.stream.is_over() {
            self.close(key, io);
            return;
        }
        if link.stream.is_busy() || !link.stream.is_flushed() {
            return;
        }
        let to = link
            .machine
            .connect_request()
            .and_then(|request| self.routes.core_of(&request.subsystem))
            .and_then(|core| self.mailboxes.get(core).cloned());
        let (Some(to), Some((socket, arrived))) = (to, link.stream.detach(io)) else {
            self.close(key, io);
            return;
        };
        let Some(link) = self.forget(key) else { return };
        let Link { machine, peer, .. } = link;
        let arrival = Box::new(Arrival { socket, arrived, machine, peer });
        if to.post(Message::Arrival(arrival)).is_err() {
            tracing::warn!(%peer, "the core of its subsystem is too busy; connection closed");
        }
    }

    /// Gives a link that was admitted, and has proved itself if it has to, a place among its like;
    /// closes it if there is none.
    pub(super) fn promote(&mut self, key: Key, io: &mut impl Io) {
        let Some(link) = self.links.get_mut(key) else { return };
        if link.share != Share::Unproven || !link.machine.is_trusted() {
            return;
        }
        let served = link.subsystem.and_then(|of| self.subsystems.get(of));
        let Some(share) = served.map(Served::share) else { return };
        let (from, name) = (link.peer.ip(), link.machine.id());
        let entry = self.shares.enter(share, from, name);
        if entry == Entry::Full {
            if let Some(times) = self.turned_away.again() {
                tracing::warn!(
                    peer = %link.peer, ?share, times,
                    "all places for such connections are taken; this one is closed"
                );
            }
            // At once: its host is not told that it is connected.
            self.close(key, io);
            return;
        }
        self.shares.leave(Share::Unproven, from, name);
        link.share = share;
        if let Entry::Evicts(oldest) = entry {
            self.evict(oldest, io);
        }
    }

    /// Closes a connection at once, for another one.
    fn evict(&mut self, name: ConnId, io: &mut impl Io) {
        let Some(key) = self.names.get(&name).copied() else { return };
        if let Some(link) = self.links.get(key)
            && let Some(times) = self.evicted.again()
        {
            tracing::warn!(
                peer = %link.peer, times,
                "too many connections have not proved themselves; the oldest is closed"
            );
        }
        self.close(key, io);
    }

    /// A link is gone from this core.
    pub(super) fn forget(&mut self, key: Key) -> Option<Link> {
        let link = self.links.remove(key)?;
        let name = link.machine.id();
        self.names.remove(&name);
        self.shares.leave(link.share, link.peer.ip(), name);
        Some(link)
    }
}
