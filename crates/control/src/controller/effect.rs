//! What comes in and what goes out.

use api::node::{
    CheckReport, CheckRequest, DeletePool, DeleteReplica, JobControl, Observed, ObservedSnapshot,
    PoolFilter, RebuildRequest, Scrub, SnapshotRequest, TargetSnapshot,
};
use model::{
    EventName, EventOrigin, Generation, NodeName, PoolName, PoolSpec, Problem, Rebuild, RebuildId,
    ReplicaId, ReplicaSpec, Severity, SnapshotId, SpecBackup, Subject, TargetId, TargetRecord,
    TargetSpec, VersionedSpec, VolumeId,
};
use store::contract::{Revision, Txn};

/// Number of somebody who waits for the end of a request.
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
    /// Write to the store, under the leader's guard; answer with [`CommitResult`].
    Store(WriteId, Txn),
    /// Ask a node; answer with [`CallResponse`].
    Call(CallId, NodeName, Box<Call>),
    /// Somebody's request has ended.
    Reply(Ticket, Result<RequestOutcome, Problem>),
    /// Something happened that people may want to know.
    Tell(EventDraft),
    /// Make a plan ([`Controller::make_plan`](super::Controller::make_plan)) of what is known now,
    /// and hand it in before anything else.
    Plan,
    /// What is known cannot be trusted any more: begin again by reading the store.
    Resign(String),
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestOutcome {
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
pub struct EventDraft {
    /// To what it happened.
    pub subject: Subject,
    /// What.
    pub name: EventName,
    /// Whether somebody should look.
    pub severity: Severity,
    /// In words.
    pub message: String,
    /// The engine that reported it; absent: it happened here.
    pub origin: Option<EventOrigin>,
}

/// What the store did with a write.
#[derive(Clone, Debug, PartialEq)]
pub enum CommitResult {
    /// It took it.
    Committed(Revision),
    /// Somebody else has written meanwhile; these are the records of volumes it concerned, as they
    /// are now.
    Conflict(Vec<(VolumeId, Revision, Option<TargetRecord>)>),
    /// It will not do it now; nothing was written.
    Denied(Problem),
    /// Nobody knows, or somebody else leads.
    Unknown(String),
}

/// What is asked of a node.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the requests of the node API, see there")]
pub enum Call {
    List,
    PutPool(PoolName, VersionedSpec<PoolSpec>),
    DeletePool(PoolName, DeletePool),
    PutReplica(ReplicaId, VersionedSpec<ReplicaSpec>),
    DeleteReplica(ReplicaId, DeleteReplica),
    PutSpecBackup(ReplicaId, SpecBackup),
    PutTarget(TargetId, VersionedSpec<TargetSpec>),
    DeleteTarget(TargetId, Generation),
    PutTargetSnapshot(TargetId, SnapshotId, SnapshotRequest),
    PutSnapshot(ReplicaId, SnapshotId, SnapshotRequest),
    DeleteSnapshot(ReplicaId, SnapshotId, PoolFilter),
    PutRebuild(RebuildId, VersionedSpec<RebuildRequest>),
    PutScrub(ReplicaId, VersionedSpec<JobControl>),
    Scrub(ReplicaId),
    CheckTarget(TargetId, CheckRequest),
}

/// What a node answers.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the answers of the node API, see there")]
pub enum CallResponse {
    Listing(Box<Inventory>),
    Pool(Box<Observed<PoolSpec>>),
    Replica(Box<Observed<ReplicaSpec>>),
    SpecBackup,
    Target(Box<Observed<TargetSpec>>),
    TargetSnapshot(Box<TargetSnapshot>),
    Snapshot(Box<ObservedSnapshot>),
    Rebuild(Box<Rebuild>),
    Scrub(Box<Scrub>),
    Checked(Box<CheckReport>),
    Gone,
}

/// Everything that a node has.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Inventory {
    /// Its pools.
    pub pools: Vec<Observed<PoolSpec>>,
    /// Its replicas.
    pub replicas: Vec<Observed<ReplicaSpec>>,
    /// Its targets.
    pub targets: Vec<Observed<TargetSpec>>,
    /// Its snapshots.
    pub snapshots: Vec<ObservedSnapshot>,
    /// Its rebuilds, running and lately ended.
    pub rebuilds: Vec<Rebuild>,
}
