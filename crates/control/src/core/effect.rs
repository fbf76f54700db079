//! What comes in and what goes out.

use api::node::{
    Found, FoundSnapshot, InPool, Pace as WorkPace, PoolRemoval, RebuildWish, Removal, Scrub,
    SnapshotWish, TargetSnapshot,
};
use model::{
    EventName, Generation, Memo, NodeName, Order, PoolName, PoolSpec, Problem, Rebuild, RebuildId,
    ReplicaId, ReplicaSpec, Severity, SnapshotId, Subject, TargetId, TargetRecord, TargetSpec,
    VolumeId,
};
use store::contract::{Revision, Txn};

/// Number of somebody who waits for the end of a wish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// Number of a write to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WriteId(pub u64);

/// Number of a call to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CallId(pub u64);

/// What is to be done outside.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Write to the store, under the leader's guard; answer with [`Stored`].
    Store(WriteId, Txn),
    /// Ask a node; answer with [`Answer`].
    Call(CallId, NodeName, Box<Call>),
    /// Somebody's wish has ended.
    Reply(Ticket, Result<Done, Problem>),
    /// Something happened that people may want to know.
    Tell(Telling),
    /// What is known cannot be trusted any more: begin again by reading the store.
    Resign(String),
}

/// What became of a wish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// It was not there and is now.
    Created,
    /// It was there and is different now.
    Changed,
    /// It was so before.
    Unchanged,
    /// It is gone.
    Gone,
}

/// What an event will say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Telling {
    /// To what it happened.
    pub subject: Subject,
    /// What.
    pub name: EventName,
    /// Whether somebody should look.
    pub severity: Severity,
    /// In words.
    pub message: String,
}

/// What the store did with a write.
#[derive(Clone, Debug, PartialEq)]
pub enum Stored {
    /// It took it.
    Taken(Revision),
    /// Somebody else has written meanwhile; these are the records of volumes it concerned, as they
    /// are now.
    Refused(Vec<(VolumeId, Revision, Option<TargetRecord>)>),
    /// It will not do it now; nothing was written.
    Denied(Problem),
    /// Nobody knows, or somebody else leads.
    Lost(String),
}

/// What is asked of a node.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the requests of the node API, see there")]
pub enum Call {
    List,
    PutPool(PoolName, Order<PoolSpec>),
    DeletePool(PoolName, PoolRemoval),
    PutReplica(ReplicaId, Order<ReplicaSpec>),
    DeleteReplica(ReplicaId, Removal),
    PutMemo(ReplicaId, Memo),
    PutTarget(TargetId, Order<TargetSpec>),
    DeleteTarget(TargetId, Generation),
    PutTargetSnapshot(TargetId, SnapshotId, SnapshotWish),
    PutSnapshot(ReplicaId, SnapshotId, SnapshotWish),
    DeleteSnapshot(ReplicaId, SnapshotId, InPool),
    PutRebuild(RebuildId, Order<RebuildWish>),
    PutScrub(ReplicaId, Order<WorkPace>),
    Scrub(ReplicaId),
}

/// What a node answers.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the answers of the node API, see there")]
pub enum Answer {
    Listing(Box<Listing>),
    Pool(Box<Found<PoolSpec>>),
    Replica(Box<Found<ReplicaSpec>>),
    Memo,
    Target(Box<Found<TargetSpec>>),
    TargetSnapshot(Box<TargetSnapshot>),
    Snapshot(Box<FoundSnapshot>),
    Rebuild(Box<Rebuild>),
    Scrub(Box<Scrub>),
    Gone,
}

/// Everything that a node has.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Listing {
    /// Its pools.
    pub pools: Vec<Found<PoolSpec>>,
    /// Its replicas.
    pub replicas: Vec<Found<ReplicaSpec>>,
    /// Its targets.
    pub targets: Vec<Found<TargetSpec>>,
    /// Its snapshots.
    pub snapshots: Vec<FoundSnapshot>,
    /// Its rebuilds, running and lately ended.
    pub rebuilds: Vec<Rebuild>,
}
