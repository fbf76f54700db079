//! What the engine of a replica answers to the target of its volume (`docs/protocol/replica.md`).
//!
//! A message comes only from the holder of the replica's reservation; `nvme` refuses all others,
//! and a new owner waits for the answers to messages at work.

use block::{Blocks, IoError, Lba, Span};
use model::SnapshotLabel;
use nvme::target::{Message, Slot};
use pool::{Change, Entity, EntityKind, Id, Label, NewSnapshot};
use reactor::{Io, Key};

use super::config::Backing;
use super::host_connection::Owner;
use super::pool_admin::PoolCaller;
use super::shard::Shard;
use crate::pools::{PoolError, PoolRequest, PoolResponse, Runs};
use crate::volumes::replica_protocol::{
    Described, MOST_DAMAGED_SNAPSHOTS, MOST_RUNS, ReplicaMessage, SnapshotMoment, accepted_of,
    encode_damaged_snapshots, encode_runs, encode_taken, repaired_of,
};

/// What a pool's answer is turned into.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answering {
    /// Done or not.
    Done,
    /// The snapshot is there; by an earlier order, if that is said.
    Snapshot { pool: Id, snapshot: Id },
    /// It is gone, by this order or an earlier one.
    Dropped { pool: Id, snapshot: Id },
    /// Runs.
    Runs,
    /// A block.
    Block,
}

impl Shard {
    /// Reads a message of a target; its answer goes to the link now or later.
    pub(super) fn read_message(
        &mut self,
        owner: (Key, Slot),
        (of, nsid): (Key, u32),
        message: Message,
        io: &mut impl Io,
    ) {
        let namespace = self.subsystems.get(of).and_then(|one| one.wanted.namespaces.get(&nsid));
        let backing = namespace.map(|namespace| &namespace.backing);
        let Some(&Backing::Member { pool, id }) = backing else {
            return self.answer_link(owner, Err(IoError::Unsupported));
        };
        match self.act_on(owner, (pool, id), message) {
            Ok(Act::Say(bytes)) => self.answer_link(owner, Ok(bytes)),
            Ok(Act::Order(order, answering)) => {
                self.ask_pool(*order, PoolCaller::Target(owner, answering), io);
            }
            Err(fault) => self.answer_link(owner, Err(fault)),
        }
    }

    fn act_on(
        &mut self,
        (connection, slot): Owner,
        (pool, id): (Id, Id),
        message: Message,
    ) -> Result<Act, IoError> {
        let topic = ReplicaMessage::of(message.topic).ok_or(IoError::Unsupported)?;
        let entity = self.devices.pools.entity(pool, id).ok_or(IoError::Unreachable)?;
        let told = self
            .connections
            .get(connection)
            .map_or(&[][..], |connection| connection.machine.message_payload(slot));
        Ok(match topic {
            ReplicaMessage::Describe => {
                let incarnation =
                    self.devices.pools.incarnation(pool).ok_or(IoError::Unreachable)?;
                Act::Say(Described { size: entity.size, incarnation }.encode())
            }
            ReplicaMessage::Note => Act::Say(entity.label.opaque.clone()),
            ReplicaMessage::Keep => {
                let label = label_of(told).ok_or(IoError::Unsupported)?;
                let change = Change::Label { id, label };
                Act::Order(Box::new(PoolRequest::Change { pool, change }), Answering::Done)
            }
            ReplicaMessage::Written => {
                let runs = Runs { pool, id, from: Blocks(message.argument), most: MOST_RUNS };
                Act::Order(Box::new(PoolRequest::Written(runs)), Answering::Runs)
            }
            ReplicaMessage::AcceptDamaged => {
                let span = accepted_of(message.argument, told).ok_or(IoError::Unsupported)?;
                let order = PoolRequest::Accept { pool, id, span };
                Act::Order(Box::new(order), Answering::Done)
            }
            ReplicaMessage::Damaged => {
                Act::Say(encode_runs(&self.devices.pools.damaged(pool, id, MOST_RUNS)))
            }
            ReplicaMessage::DamagedSnapshots => {
                let found = self.devices.pools.damaged_snapshots(pool, id, MOST_DAMAGED_SNAPSHOTS);
                let entity = |id| self.devices.pools.entity(pool, id).map(moment_of);
                let found = found.into_iter().filter_map(|(id, run)| Some((entity(id)?, run)));
                Act::Say(encode_damaged_snapshots(found))
            }
            ReplicaMessage::Accept => {
                let span = accepted_of(message.argument, told).ok_or(IoError::Unsupported)?;
                let order = PoolRequest::AcceptUnproven { pool, id, span };
                Act::Order(Box::new(order), Answering::Done)
            }
            ReplicaMessage::Repair => {
                let span = repaired_of(message.argument, told).ok_or(IoError::Unsupported)?;
                let order = PoolRequest::Repair { pool, id, span, bytes: told.to_vec() };
                Act::Order(Box::new(order), Answering::Done)
            }
            ReplicaMessage::Snapshot
            | ReplicaMessage::Taken
            | ReplicaMessage::DropSnapshot
            | ReplicaMessage::ReadSnapshot
            | ReplicaMessage::RepairSnapshot => {
                return self.act_on_snapshot((pool, entity), topic, (message, told));
            }
        })
    }

    /// What is to be done about a message that concerns a snapshot of a replica.
    fn act_on_snapshot(
        &self,
        (pool, replica): (Id, &Entity),
        topic: ReplicaMessage,
        (message, told): (Message, &[u8]),
    ) -> Result<Act, IoError> {
        let id = replica.id;
        Ok(match topic {
            ReplicaMessage::Snapshot => {
                let kept: SnapshotLabel =
                    model::envelope::decode(told).map_err(|_| IoError::Unsupported)?;
                let snapshot = Id(kept.snapshot.uuid().as_u128());
                let transaction = Id(message.argument.into());
                let label = Label { opaque: told.to_vec(), transaction, ..replica.label.clone() };
                let new = NewSnapshot { id: snapshot, created: kept.taken_at.millis(), label };
                let change = Change::Snapshot { of: id, snapshot: new };
                Act::Order(
                    Box::new(PoolRequest::Change { pool, change }),
                    Answering::Snapshot { pool, snapshot },
                )
            }
            ReplicaMessage::Taken => {
                let is_it = |one: &&Entity| {
                    one.kind == EntityKind::Snapshot
                        && one.origin == id
                        && tail(one.id) == message.argument
                };
                let all = self.devices.pools.entities(pool).filter(is_it);
                Act::Say(encode_taken(all.map(moment_of)))
            }
            ReplicaMessage::ReadSnapshot => {
                let id = self.snapshot_of((pool, id), message.object)?;
                let span = Span::one(Lba(message.argument)).ok_or(IoError::Unsupported)?;
                Act::Order(Box::new(PoolRequest::ReadBlock { pool, id, span }), Answering::Block)
            }
            ReplicaMessage::RepairSnapshot => {
                let id = self.snapshot_of((pool, id), message.object)?;
                let span = repaired_of(message.argument, told).ok_or(IoError::Unsupported)?;
                let order = PoolRequest::Repair { pool, id, span, bytes: told.to_vec() };
                Act::Order(Box::new(order), Answering::Done)
            }
            ReplicaMessage::DropSnapshot => {
                let snapshot = id_of(told).ok_or(IoError::Unsupported)?;
                let change = Change::Delete(snapshot);
                Act::Order(
                    Box::new(PoolRequest::Change { pool, change }),
                    Answering::Dropped { pool, snapshot },
                )
            }
            _ => return Err(IoError::Unsupported),
        })
    }

    /// The one snapshot of a replica whose id ends so.
    fn snapshot_of(&self, (pool, replica): (Id, Id), object: u64) -> Result<Id, IoError> {
        let mut all = self.devices.pools.entities(pool).filter(|one| {
            one.kind == EntityKind::Snapshot && one.origin == replica && tail(one.id) == object
        });
        match (all.next(), all.next()) {
            (Some(one), None) => Ok(one.id),
            _ => Err(IoError::Unreachable),
        }
    }

    /// A pool has answered an order that came from a message.
    pub(super) fn answer_target(
        &mut self,
        owner: Owner,
        answering: Answering,
        answer: Result<PoolResponse, PoolError>,
    ) {
        let kind = |pool, id| self.devices.pools.entity(pool, id).map(|entity| entity.kind);
        let answer = match (answering, answer) {
            (Answering::Block, Ok(PoolResponse::Block(bytes))) => Ok(bytes),
            (Answering::Runs, Ok(PoolResponse::Runs(runs))) => Ok(encode_runs(&runs)),
            (Answering::Snapshot { pool, snapshot }, Err(_))
                if kind(pool, snapshot) == Some(EntityKind::Snapshot) =>
            {
                Err(IoError::Miscompare { at: Lba(0) })
            }
            (Answering::Dropped { pool, snapshot }, Err(_)) if kind(pool, snapshot).is_none() => {
                Ok(Vec::new())
            }
            (_, Ok(_)) => Ok(Vec::new()),
            (_, Err(error)) => {
                tracing::warn!(%error, "request of a target to its replica failed");
                Err(fault_of(&error))
            }
        };
        self.answer_link(owner, answer);
    }

    fn answer_link(&mut self, (key, slot): Owner, answer: Result<Vec<u8>, IoError>) {
        if let Some(connection) = self.connections.get_mut(key) {
            connection.answered(slot, answer);
            self.touch(key);
        }
    }
}

/// What is to be done about a message.
enum Act {
    Say(Vec<u8>),
    Order(Box<PoolRequest>, Answering),
}

/// The pool's label for a note. The note itself is kept whole beside what the pool can read.
fn label_of(bytes: &[u8]) -> Option<Label> {
    let note: model::SyncMetadata = model::envelope::decode(bytes).ok()?;
    let id = |uuid: uuid::Uuid| Id(uuid.as_u128());
    let set = &note.label.set;
    Some(Label {
        volume: id(note.label.volume.uuid()),
        epoch: note.label.epoch.number(),
        generation: set.generation().number(),
        transaction: Id::NONE,
        set: set.replicas().iter().map(|one| id(one.uuid())).collect(),
        in_sync: set.in_sync().iter().map(|one| id(one.uuid())).collect(),
        opaque: bytes.to_vec(),
    })
}

fn moment_of(snapshot: &Entity) -> SnapshotMoment {
    let (id, attempt) = (snapshot.id.0, tail(snapshot.label.transaction));
    SnapshotMoment { id, attempt, created: snapshot.created }
}

/// The lower half of an id.
fn tail(id: Id) -> u64 {
    uuid::Uuid::from_u128(id.0).as_u64_pair().1
}

fn id_of(bytes: &[u8]) -> Option<Id> {
    let id = Id(u128::from_be_bytes(bytes.try_into().ok()?));
    (id != Id::NONE).then_some(id)
}

fn fault_of(error: &PoolError) -> IoError {
    match error {
        PoolError::Fault(fault) => *fault,
        PoolError::Full | PoolError::Refused(pool::Refused::Busy) => IoError::Busy,
        PoolError::Refused(pool::Refused::NoSpace) => IoError::NoSpace,
        _ => IoError::Internal,
    }
}
