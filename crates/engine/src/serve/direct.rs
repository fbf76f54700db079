//! The short way from a volume of a core to a replica of the same core.
//!
//! ```text
//!   Volume ─► Child ─► here ─► Connection::begin: the fence ─► the device of the replica
//!      ▲                                                              │
//!      └───────────────── here ◄── Connection::end ◄──────────────────┘
//! ```
//!
//! The child has a connection to the replica like any other, on which it registers, reserves and
//! sends its messages. Its block commands belong to that connection too, though no byte of them
//! travels on it: they are admitted by the same fence, and a new owner waits for their end.
//!
//! A replica of the same engine on another core is reached by its connection only.

use block::{Completion, Fault};
use nvme::target::{Direct, HostId};
use reactor::{Io, Key};

use super::core::Core;
use super::link::{Link, Starter};
use super::served::Served;
use crate::client::Request;
use crate::device::{Data, Devices, Job, Task};
use crate::volumes::ForReplica;

/// A command of a volume on its way through a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Passed {
    link: Key,
    direct: Direct,
    way: u64,
    tag: u64,
}

impl Core {
    /// Begins a command of a volume on the replica that its child is connected to.
    pub(super) fn pass(&mut self, asked: ForReplica, io: &mut impl Io) {
        let ForReplica { way, link, host, request } = asked;
        let Some(key) = link.or_else(|| self.link_of(host)) else {
            return self.volumes.not_here(way, request, io);
        };
        if link.is_none() {
            self.volumes.found(way, key);
        }
        let tag = request.tag;
        let served = self.links.get(key).and_then(|link| link.subsystem);
        let served = served.and_then(|of| self.subsystems.get_mut(of));
        let refused = match (self.links.get_mut(key), served) {
            (Some(link), Some(served)) => {
                link.pass((key, way), request, (served, &mut self.devices, io)).err()
            }
            _ => Some((Fault::Unreachable, request.data)),
        };
        if let Some((fault, data)) = refused {
            self.volumes.passed((way, tag), Err(fault), data, io);
        }
    }

    /// A command of a volume came back from the device.
    pub(super) fn passed(
        &mut self,
        passed: Passed,
        completion: Completion,
        data: Data,
        io: &mut impl Io,
    ) {
        let Passed { link: key, direct, way, tag } = passed;
        if self.links.get_mut(key).is_some_and(|link| link.passed(direct)) {
            self.touch(key);
        }
        self.volumes.passed((way, tag), completion, data, io);
    }

    /// The I/O queue of a host, if it is on this core.
    fn link_of(&self, host: HostId) -> Option<Key> {
        let mut links = self.links.iter();
        links.find(|(_, link)| link.machine.io_host() == Some(host)).map(|(key, _)| key)
    }
}

impl Link {
    fn pass(
        &mut self,
        (link, way): (Key, u64),
        request: Request,
        (served, devices, io): (&mut Served, &mut Devices<Starter>, &mut impl Io),
    ) -> Result<(), (Fault, Data)> {
        let Request { tag, nsid, command, data } = request;
        let Some(device) = served.device(nsid) else { return Err((Fault::Unreachable, data)) };
        let direct = match self.machine.begin(&mut served.subsystem, nsid, command) {
            Ok(direct) => direct,
            Err(fault) => return Err((fault, data)),
        };
        self.at_work += 1;
        let owner = Starter::Volume(Passed { link, direct, way, tag });
        let job = Job { owner, task: Task::Command(command), data };
        devices.start(device, job, io).map_err(|job| {
            self.passed(direct);
            (Fault::Busy, job.data)
        })
    }

    /// Whether the link must be looked at.
    fn passed(&mut self, direct: Direct) -> bool {
        self.at_work = self.at_work.saturating_sub(1);
        self.machine.end(direct)
    }
}
