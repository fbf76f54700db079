//! The short way from a volume of a core to a replica of the same core.
//!
//! ```text
//!   Volume ─► ReplicaConnection ─► here ─► Connection::begin_local: the fence ─► replica
//!      ▲                                                                           │
//!      └──────────────────────────────── here ◄── Connection::end_local ◄───────────┘
//! ```
//!
//! The child has a connection to the replica like any other, on which it registers, reserves and
//! sends its messages. Its block commands belong to that connection too, though no byte of them
//! travels on it: they are admitted by the same fence, and a new owner waits for their end.
//!
//! A replica of the same engine on another core is reached by its connection only.

use block::{Completion, IoError};
use nvme::target::{HostId, LocalCommand};
use reactor::{Io, Key};

use super::exported_subsystem::ExportedSubsystem;
use super::host_connection::{HostConnection, JobOrigin};
use super::shard::Shard;
use crate::client::Request;
use crate::device::{Data, Devices, Job, Task};
use crate::volumes::ForReplica;

/// A command of a volume on its way through a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct LocalIo {
    connection: Key,
    direct: LocalCommand,
    way: u64,
    tag: u64,
}

impl Shard {
    /// Begins a command of a volume on the replica that its child is connected to.
    pub(super) fn submit_local(&mut self, asked: ForReplica, io: &mut impl Io) {
        let ForReplica { way, connection, host, request } = asked;
        let Some(key) = connection.or_else(|| self.connection_of(host)) else {
            return self.volumes.not_here(way, request, io);
        };
        if connection.is_none() {
            self.volumes.found(way, key);
        }
        let tag = request.tag;
        let exported = self.connections.get(key).and_then(|connection| connection.subsystem);
        let exported = exported.and_then(|of| self.subsystems.get_mut(of));
        let refused = match (self.connections.get_mut(key), exported) {
            (Some(connection), Some(exported)) => connection
                .submit_local((key, way), request, (exported, &mut self.devices, io))
                .err(),
            _ => Some((IoError::Unreachable, request.data)),
        };
        if let Some((fault, data)) = refused {
            self.volumes.local_done((way, tag), Err(fault), data, io);
        }
    }

    /// A command of a volume came back from the device.
    pub(super) fn local_done(
        &mut self,
        local_io: LocalIo,
        completion: Completion,
        data: Data,
        io: &mut impl Io,
    ) {
        let LocalIo { connection: key, direct, way, tag } = local_io;
        if self.connections.get_mut(key).is_some_and(|connection| connection.local_done(direct)) {
            self.touch(key);
        }
        self.volumes.local_done((way, tag), completion, data, io);
    }

    /// The I/O queue of a host, if it is on this core.
    fn connection_of(&self, host: HostId) -> Option<Key> {
        let mut connections = self.connections.iter();
        connections
            .find(|(_, connection)| connection.machine.io_host() == Some(host))
            .map(|(key, _)| key)
    }
}

impl HostConnection {
    fn submit_local(
        &mut self,
        (connection, way): (Key, u64),
        request: Request,
        (exported, devices, io): (&mut ExportedSubsystem, &mut Devices<JobOrigin>, &mut impl Io),
    ) -> Result<(), (IoError, Data)> {
        let Request { tag, nsid, command, data } = request;
        let Some(device) = exported.device(nsid) else { return Err((IoError::Unreachable, data)) };
        let direct = match self.machine.begin_local(&mut exported.subsystem, nsid, command) {
            Ok(direct) => direct,
            Err(fault) => return Err((fault, data)),
        };
        self.at_work += 1;
        let owner = JobOrigin::Volume(LocalIo { connection, direct, way, tag });
        let job = Job { owner, task: Task::Command(command), data };
        devices.start(device, job, io).map_err(|job| {
            self.local_done(direct);
            (IoError::Busy, job.data)
        })
    }

    /// Whether the link must be looked at.
    fn local_done(&mut self, direct: LocalCommand) -> bool {
        self.at_work = self.at_work.saturating_sub(1);
        self.machine.end_local(direct)
    }
}
