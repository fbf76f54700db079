//! What a replica is asked and told about its damage.

use block::{IoError, Lba, Span};
use mirror::RequestId;
use reactor::Io;

use super::super::replica_protocol::{self, ReplicaMessage, runs_of};
use super::{Asked, ConnectionEvent, NSID, Phase, ReplicaConnection, Work};

/// The name of the question what a scrub found.
pub(super) const FOUND: u64 = u64::MAX - 1;

impl ReplicaConnection {
    /// Tells it to believe what it holds there.
    pub(in super::super) fn accept(&mut self, name: RequestId, span: Span, io: &impl Io) {
        let message = ReplicaMessage::Accept
            .tell(span.start().0, &replica_protocol::encode_count(span.len()));
        self.ask(Work::Send(name.0, message, Asked::Told), io);
    }

    /// Has it write a good block over one that it has damaged.
    pub(in super::super) fn repair(
        &mut self,
        name: RequestId,
        (at, good): (Lba, &[u8]),
        io: &impl Io,
    ) {
        let message = ReplicaMessage::Repair.tell(at.0, good);
        self.ask(Work::Send(name.0, message, Asked::Told), io);
    }

    /// Asks what a scrub found, if it is up and nothing waits. What is not sent is asked later.
    pub(in super::super) fn ask_damaged(&mut self, io: &impl Io) {
        if matches!(self.phase, Phase::Up) && self.waiting.is_empty() {
            let _ = self.stirred().send(FOUND, NSID, ReplicaMessage::Damaged.ask(0), io);
        }
    }

    /// A replica that does not know has nothing to tell.
    pub(super) fn found_damaged(&mut self, result: Result<Vec<u8>, IoError>) {
        let everywhere = Span::between(Lba(0), Lba(u64::MAX));
        let found =
            everywhere.zip(result.ok()).and_then(|(span, bytes)| runs_of(&bytes, span).ok());
        let found = found.map(|(runs, _)| runs).filter(|runs| !runs.is_empty());
        self.came.extend(found.map(ConnectionEvent::Damaged));
    }
}
