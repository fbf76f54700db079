//! What a target asks of a replica besides blocks.

use block::Span;
use mirror::{Attempt, RequestId};
use model::SnapshotId;
use reactor::Io;

use super::super::replica_protocol::ReplicaMessage;
use super::{Asked, ReplicaConnection, Work};

impl ReplicaConnection {
    /// Tells something.
    pub(in crate::volumes) fn tell(
        &mut self,
        name: RequestId,
        topic: ReplicaMessage,
        bytes: &[u8],
        io: &impl Io,
    ) {
        self.ask(Work::Send(name.0, topic.tell(0, bytes), Asked::Told), io);
    }

    /// Tells it to take a snapshot with this label, in an attempt.
    pub(in crate::volumes) fn snapshot(
        &mut self,
        name: RequestId,
        (id, attempt): (SnapshotId, Attempt),
        label: &[u8],
        io: &impl Io,
    ) {
        let message = ReplicaMessage::Snapshot.tell(attempt.0, label);
        self.ask(Work::Send(name.0, message, Asked::Snapshot(id)), io);
    }

    /// Asks for the size.
    pub(in crate::volumes) fn measure(&mut self, name: RequestId, io: &impl Io) {
        self.ask(Work::Send(name.0, ReplicaMessage::Describe.ask(0), Asked::Size), io);
    }

    /// Asks which blocks hold something.
    pub(in crate::volumes) fn written(&mut self, name: RequestId, span: Span, io: &impl Io) {
        let message = ReplicaMessage::Written.ask(span.start().0);
        self.ask(Work::Send(name.0, message, Asked::Written(span, Vec::new())), io);
    }
}
