//! Commands of a host in this very process: they come and end without a stream.
//!
//! The host has connected, registered and reserved as any other; only its block commands take the
//! short way. They pass the same checks as those of the stream at the moment they begin, and
//! whoever takes the namespace over waits for them just the same.

use block::{Command, IoError};

use super::super::command::admit;
use super::super::subsystem::{HostId, Subsystem};
use super::{Connection, Peer, Phase};
use crate::initiator::completion;

/// A command at work that came without a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LocalCommand(u64);

impl Connection {
    /// Whose I/O queue this is, as long as it may send commands.
    pub fn io_host(&self) -> Option<HostId> {
        match &self.phase {
            Phase::Live(Peer { qid: 1.., hostid, .. }) if self.is_authenticated() => Some(*hostid),
            _ => None,
        }
    }

    /// Begins a block command of this host. The driver carries it out, then
    /// [ends](Connection::end_local) it.
    pub fn begin_local(
        &mut self,
        subsystem: &mut Subsystem,
        nsid: u32,
        command: Command,
    ) -> Result<LocalCommand, IoError> {
        let host = self.io_host().filter(|_| subsystem.is_attached(self.id));
        let host = host.ok_or(IoError::Unreachable)?;
        if let Err(status) = admit(subsystem, &host, nsid, command) {
            completion(command, status)?;
        }
        self.issues += 1;
        self.direct.insert(self.issues, nsid);
        Ok(LocalCommand(self.issues))
    }

    /// A command is over. Returns whether somebody waits for that: poll the connection then.
    pub fn end_local(&mut self, direct: LocalCommand) -> bool {
        self.direct.remove(direct.0);
        self.detached || !self.fences.is_empty()
    }
}
