//! What can be asked of the volumes of an engine, and what they answer. Plain values, so that they
//! can come from another thread.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use block::Blocks;
use mirror::{MirrorConfig, Session};
use model::{
    ChildState, ChildStatus, Consistency, LabelConflict, Problem, QosLimits, Rebuild, ReplicaId,
    SnapshotGroupId, SnapshotId, TargetId, TargetRecord, TargetState, Timestamp, VolumeId,
};
use nvme::target::NamespaceIds;
use nvme::wire::{AnaState, Nqn};

use super::damage::Damage;
use super::record_store::RecordStore;
use crate::counters::Counters;
use crate::serve::Host;

/// A target to be opened.
#[derive(Clone)]
pub struct OpenRequest {
    /// The volume's record as it was stored when the epoch was taken.
    pub record: TargetRecord,
    /// Size of the volume.
    pub size: Blocks,
    /// The replicas there is a way to.
    pub children: BTreeMap<ReplicaId, ReplicaPath>,
    /// The name under which this engine connects to replicas.
    pub node: Nqn,
    /// Who may connect; anybody if empty.
    pub hosts: BTreeMap<Nqn, Host>,
    /// First and last controller id; disjoint from those of other engines that serve the volume.
    pub cntlids: Option<(u16, u16)>,
    /// The same on every path to the volume.
    pub ids: NamespaceIds,
    /// How good this path is.
    pub ana: AnaState,
    /// What hosts may ask at most.
    pub limits: QosLimits,
    /// How patient and how large to be.
    pub config: MirrorConfig,
    /// The pool of a local replica: the volume is served on its core.
    pub home: Option<pool::Id>,
    /// Where records go.
    pub recorder: Arc<dyn RecordStore>,
    /// Where news go; what does not fit is only in the status.
    pub news: SyncSender<VolumeEvent>,
}

/// How to get to a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaPath {
    /// Where its engine listens; each attachment tries the next.
    pub addresses: Vec<SocketAddr>,
    /// Its subsystem, with the replica as namespace 1.
    pub nqn: Nqn,
    /// Whether it is in this engine: reads go there first.
    pub local: bool,
}

impl ReplicaPath {
    /// Where this attachment is tried.
    pub(super) fn address(&self, session: Session) -> Option<SocketAddr> {
        let count = u64::try_from(self.addresses.len()).ok()?;
        let nth = session.0.checked_rem(count)?;
        self.addresses.get(usize::try_from(nth).ok()?).copied()
    }
}

/// Something to be done with an open target.
#[derive(Clone, Debug)]
pub enum VolumeRequest {
    /// Anything that a mirror does, but a new child needs a way ([`VolumeRequest::AddChild`]), and
    /// a snapshot more than its id ([`VolumeRequest::Snapshot`]).
    Mirror(mirror::MirrorRequest),
    /// One more replica; it is rebuilt.
    AddChild(ReplicaId, ReplicaPath),
    /// There is another way to a replica. An attachment that is up stays.
    Move(ReplicaId, ReplicaPath),
    /// A snapshot on every copy in sync, of one moment, on all or none.
    Snapshot(SnapshotCommand),
    /// What was done so far: [`VolumeResponse::Measured`].
    Measure,
    /// How it is: [`VolumeResponse::Status`].
    Status,
    /// All targets of the core: [`VolumeResponse::All`].
    List,
    /// Stops it, cleanly if that can be, and serves it no longer.
    Close,
}

/// A snapshot to be taken: what is the same on every copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotCommand {
    /// Its id.
    pub snapshot: SnapshotId,
    /// The group it is taken with.
    pub group: Option<SnapshotGroupId>,
    /// When it is said to be taken.
    pub taken_at: Timestamp,
    /// What its content is good for.
    pub consistency: Consistency,
}

/// What an order leads to.
#[derive(Clone, Debug)]
pub enum VolumeResponse {
    /// It is done.
    Done,
    /// These copies have taken the snapshot.
    Taken(BTreeSet<ReplicaId>),
    /// What a check found.
    Checked(Box<mirror::Checked>),
    /// What was done so far.
    Measured(Box<VolumeCounters>),
    /// A target.
    Status(Box<Status>),
    /// All targets.
    All(Vec<Status>),
}

/// What a target did since it was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeCounters {
    /// Which target.
    pub target: TargetId,
    /// As hosts use it.
    pub volume: Counters,
    /// As it uses its children.
    pub children: BTreeMap<ReplicaId, Counters>,
    /// How long the oldest command of a host has been at work.
    pub oldest: Duration,
}

/// How a target is.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// Its volume.
    pub volume: VolumeId,
    /// Which target.
    pub target: TargetId,
    /// How it serves.
    pub state: TargetState,
    /// Size of the volume.
    pub size: Blocks,
    /// Its children.
    pub children: Vec<ChildStatus>,
    /// Copies that contradict the store or what is known of them.
    pub conflicts: Vec<LabelConflict>,
    /// Rebuilds that ended, oldest first, then those that run or wait.
    pub rebuilds: Vec<Rebuild>,
    /// Hosts that are connected.
    pub hosts: Vec<Nqn>,
}

/// Something that happened to a target.
#[derive(Clone, Debug, PartialEq)]
pub struct VolumeEvent {
    /// Its volume.
    pub volume: VolumeId,
    /// Which target.
    pub target: TargetId,
    /// What.
    pub what: EventKind,
}

/// What happened to a target.
#[derive(Clone, Debug, PartialEq)]
pub enum EventKind {
    /// It serves otherwise than before.
    Target(TargetState),
    /// A child is worth something else than before.
    Child(ReplicaId, ChildState),
    /// A rebuild began, waits, goes on or ended.
    Rebuild(Box<Rebuild>),
    /// Damage was found, and mended where it could be.
    Damage(Box<Damage>),
    /// A copy contradicts the store, or what is known of it.
    Conflict(LabelConflict),
}

/// What is called with the answer, on the thread of a core: it must not wait.
pub type Reply = Box<dyn FnOnce(Result<VolumeResponse, Problem>) + Send>;
