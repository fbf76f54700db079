//! What a replica is asked and told about its damage.

use core::ops::RangeInclusive;

use block::{IoError, Lba, Span};
use mirror::RequestId;
use nvme::initiator::Message;
use reactor::Io;

use super::super::replica_protocol::{
    self, ReplicaMessage, SnapshotMoment, damaged_snapshots_of, runs_of,
};
use super::super::snapshot_repair::StepNumber;
use super::{Asked, ConnectionEvent, NSID, Phase, ReplicaConnection, Work};

/// The name of the question what a scrub found.
pub(super) const FOUND: u64 = u64::MAX - 1;

/// The name of the same question about snapshots.
pub(super) const FOUND_IN_SNAPSHOTS: u64 = u64::MAX - 2;

/// The names of steps of the repair of a snapshot, each the first one plus its number. What a
/// mirror asks has names from zero on, and reads around it from 2⁶³ on.
const FIRST_STEP: u64 = 3 << 62;
pub(super) const SNAPSHOT_STEPS: RangeInclusive<u64> = FIRST_STEP..=u64::MAX - 3;

/// What a replica says about damage.
#[derive(Debug)]
pub(in super::super) enum DamageEvent {
    /// Blocks that a scrub found damaged.
    Blocks(Vec<Span>),
    /// Blocks that a scrub found damaged in snapshots.
    Snapshots(Vec<(SnapshotMoment, Span)>),
    /// A step of the repair of a snapshot has ended.
    Stepped(StepNumber, Result<Vec<u8>, IoError>),
}

impl ReplicaConnection {
    /// Whether it can be asked something.
    pub(in super::super) fn is_up(&self) -> bool {
        matches!(self.phase, Phase::Up)
    }

    /// Tells it to believe what it holds there, also where that is damaged, if that is said.
    pub(in super::super) fn accept(
        &mut self,
        name: RequestId,
        (span, is_damaged): (Span, bool),
        io: &impl Io,
    ) {
        let topic = if is_damaged { ReplicaMessage::AcceptDamaged } else { ReplicaMessage::Accept };
        let message = topic.tell(span.start().0, &replica_protocol::encode_count(span.len()));
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
            let of_snapshots = ReplicaMessage::DamagedSnapshots.ask(0);
            let _ = self.stirred().send(FOUND_IN_SNAPSHOTS, NSID, of_snapshots, io);
        }
    }

    /// Sends a step of the repair of a snapshot; false if there is no room for it now.
    pub(in super::super) fn step_snapshot(
        &mut self,
        step: StepNumber,
        message: Message,
        io: &impl Io,
    ) -> bool {
        let name = FIRST_STEP + step.0;
        self.is_up() && self.stirred().send(name, NSID, message, io).is_ok()
    }

    /// What a scrub found in snapshots of the replica.
    pub(super) fn found_in_snapshots(&mut self, result: Result<Vec<u8>, IoError>) {
        let found = result.map(|bytes| damaged_snapshots_of(&bytes)).unwrap_or_default();
        if !found.is_empty() {
            self.came.push_back(ConnectionEvent::Damage(DamageEvent::Snapshots(found)));
        }
    }

    /// A step of the repair of a snapshot has ended.
    pub(super) fn stepped_snapshot(&mut self, name: u64, result: Result<Vec<u8>, IoError>) {
        let step = StepNumber(name.saturating_sub(FIRST_STEP));
        self.came.push_back(ConnectionEvent::Damage(DamageEvent::Stepped(step, result)));
    }

    /// A replica that does not know has nothing to tell.
    pub(super) fn found_damaged(&mut self, result: Result<Vec<u8>, IoError>) {
        let everywhere = Span::between(Lba(0), Lba(u64::MAX));
        let found =
            everywhere.zip(result.ok()).and_then(|(span, bytes)| runs_of(&bytes, span).ok());
        let found = found.map(|(runs, _)| runs).filter(|runs| !runs.is_empty());
        self.came.extend(found.map(DamageEvent::Blocks).map(ConnectionEvent::Damage));
    }
}
