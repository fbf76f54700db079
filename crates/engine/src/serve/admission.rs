//! How connections come in: accepted, given a place, admitted to a subsystem, brought to its core.

use std::net::SocketAddr;

use nvme::target::{ConnId, Connection, ConnectionConfig};
use reactor::{Io, Key, Socket, Token};

use super::connection_quota::{PeerKind, QuotaDecision};
use super::exported_subsystem::ExportedSubsystem;
use super::host_connection::{HostConnection, Phase};
use super::shard::{Arrival, Message, Shard};
use crate::clock::instant;
use crate::stream::Stream;

impl Shard {
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
                let config = ConnectionConfig { local, ..self.connection_config };
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
        if let QuotaDecision::Evicts(oldest) =
            self.shares.enter(PeerKind::Unproven, peer.ip(), name)
        {
            self.evict(oldest, io);
        }
        let connection = HostConnection::new(stream, machine, peer, self.limits.connection_bytes);
        let Ok(key) = self.connections.insert(connection) else {
            tracing::warn!(%peer, "too many connections; this one is closed");
            self.shares.leave(PeerKind::Unproven, peer.ip(), name);
            io.close(socket);
            return;
        };
        if let Some(connection) = self.connections.get_mut(key) {
            connection.named(key);
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
        let Some(connection) = self.connections.get_mut(key) else { return };
        let Some(request) = connection.machine.connect_request() else { return };
        let (name, host) = (request.subsystem.clone(), request.host.clone());
        match self.directory.core_of(&name) {
            _ if name.is_discovery() => self.tell_discovery(),
            Some(core) if core == self.me => {}
            Some(_) => {
                connection.phase = Phase::Moving;
                return;
            }
            None => {
                tracing::info!(peer = %connection.peer, %host, subsystem = %name, "no subsystem");
                connection.machine.refuse_unknown();
                return;
            }
        }
        let Some(connection) = self.connections.get_mut(key) else { return };
        let mine = |exported: &ExportedSubsystem| {
            *exported.subsystem.nqn() == name && !exported.is_leaving
        };
        let found = self.subsystems.iter().find(|(_, exported)| mine(exported)).map(|(of, _)| of);
        let Some((of, exported)) = found.and_then(|of| Some((of, self.subsystems.get_mut(of)?)))
        else {
            connection.machine.refuse_unknown();
            return;
        };
        let auth = exported.authentication(&host, self.cluster.as_deref());
        match connection.machine.admit(&mut exported.subsystem, now, auth) {
            Ok(()) => {
                connection.subsystem = Some(of);
                tracing::debug!(peer = %connection.peer, %host, subsystem = %name, "connected");
            }
            Err(why) => {
                tracing::info!(peer = %connection.peer, %host, subsystem = %name, ?why, "refused");
            }
        }
    }

    /// Hands a link over as soon as nothing of it is under way here.
    pub(super) fn move_away(&mut self, key: Key, io: &mut impl Io) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if connection.stream.is_over() {
            self.close(key, io);
            return;
        }
        if connection.stream.is_busy() || !connection.stream.is_flushed() {
            return;
        }
        let to = connection
            .machine
            .connect_request()
            .and_then(|request| self.directory.core_of(&request.subsystem))
            .and_then(|core| self.mailboxes.get(core).cloned());
        let (Some(to), Some((socket, arrived))) = (to, connection.stream.detach(io)) else {
            self.close(key, io);
            return;
        };
        let Some(connection) = self.forget(key) else { return };
        let HostConnection { machine, peer, .. } = connection;
        let arrival = Box::new(Arrival { socket, arrived, machine, peer });
        if to.post(Message::Arrival(arrival)).is_err() {
            tracing::warn!(%peer, "the core of its subsystem is too busy; connection closed");
        }
    }

    /// Gives a link that was admitted, and has proved itself if it has to, a place among its like;
    /// closes it if there is none.
    pub(super) fn promote(&mut self, key: Key, io: &mut impl Io) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if connection.share != PeerKind::Unproven || !connection.machine.is_trusted() {
            return;
        }
        let exported = connection.subsystem.and_then(|of| self.subsystems.get(of));
        let Some(share) = exported.map(ExportedSubsystem::share) else { return };
        let (from, name) = (connection.peer.ip(), connection.machine.id());
        let entry = self.shares.enter(share, from, name);
        if entry == QuotaDecision::Full {
            if let Some(times) = self.turned_away.again() {
                tracing::warn!(
                    peer = %connection.peer, ?share, times,
                    "connection quota exhausted; connection closed"
                );
            }
            // At once: its host is not told that it is connected.
            self.close(key, io);
            return;
        }
        self.shares.leave(PeerKind::Unproven, from, name);
        connection.share = share;
        if let QuotaDecision::Evicts(oldest) = entry {
            self.evict(oldest, io);
        }
    }

    /// Closes a connection at once, for another one.
    fn evict(&mut self, name: ConnId, io: &mut impl Io) {
        let Some(key) = self.names.get(&name).copied() else { return };
        if let Some(connection) = self.connections.get(key)
            && let Some(times) = self.evicted.again()
        {
            tracing::warn!(
                peer = %connection.peer, times,
                "too many unauthenticated connections; the oldest is closed"
            );
        }
        self.close(key, io);
    }

    /// A link is gone from this core.
    pub(super) fn forget(&mut self, key: Key) -> Option<HostConnection> {
        let connection = self.connections.remove(key)?;
        let name = connection.machine.id();
        self.names.remove(&name);
        self.shares.leave(connection.share, connection.peer.ip(), name);
        Some(connection)
    }
}
