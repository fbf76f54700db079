//! What is asked of the control plane.

use std::collections::BTreeSet;
use std::time::Duration;

use model::{
    Generation, Heartbeat, HostAddress, HostChange, HostName, InstanceId, NodeAddress, NodeChange,
    NodeName, PoolChange, PoolName, PoolSpec, Problem, ReplicaId, Size, SnapshotChange,
    SnapshotGroupChange, SnapshotGroupId, SnapshotGroupSpec, SnapshotId, SnapshotSpec,
    TargetRecord, Timestamp, VolumeId, VolumeSpec, WebhookChange, WebhookName, WebhookSpec,
    WebhookStatus,
};
use store::contract::Revision;

use super::{CallId, CallResponse, CommitResult, MadePlan, Ticket, WriteId};

/// Something happened outside.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// Somebody wants something.
    Asked(PendingRequest),
    /// An engine shows that it is there.
    NodeHeard(NodeName, Heartbeat<NodeAddress>),
    /// An engine stops on purpose.
    NodeLeft(NodeName, InstanceId),
    /// The connection to an engine broke off, and its machine refuses new ones.
    NodeRefused(NodeName),
    /// The agent of a host shows that it is there.
    HostHeard(HostName, Heartbeat<HostAddress>),
    /// The agent of a host says which paths it has lost, all of them.
    PathsReported(HostName, model::PathReport),
    /// The agent of a host stops on purpose.
    HostLeft(HostName, InstanceId),
    /// Something happened on a node: it should be looked at.
    NodeChanged(NodeName),
    /// A node has answered, or has not.
    Answered(CallId, Result<CallResponse, Problem>),
    /// A plan was made, and nothing was handed in since it was asked for.
    Planned(Box<MadePlan>),
    /// The store has answered.
    Stored(WriteId, CommitResult),
    /// An engine published an event, which has this place in its stream.
    Reported(NodeName, String, Box<model::Event>),
    /// Something was told to people.
    Told(model::Event),
    /// What became of the calls of a watch that was made then.
    Called(WebhookName, Timestamp, WebhookStatus),
    /// An engine has written who owns a volume.
    Recorded(VolumeId, Revision, Option<TargetRecord>),
}

/// A request, and who waits for its end.
#[derive(Clone, Debug, PartialEq)]
pub struct PendingRequest {
    /// Whom to answer.
    pub ticket: Ticket,
    /// What is wanted.
    pub request: Request,
    /// The generation that the caller has seen, if it matters to it.
    pub if_match: Option<Generation>,
}

/// What somebody wants.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the requests of REST, see there")]
pub enum Request {
    CreateVolume(VolumeId, Box<VolumeSpec>),
    DeleteVolume(VolumeId),
    /// For a host, or for none: to heal.
    Publish {
        volume: VolumeId,
        host: Option<HostName>,
        node: Option<NodeName>,
    },
    Unpublish {
        volume: VolumeId,
        host: Option<HostName>,
        force: bool,
    },
    /// Serve it elsewhere.
    Republish {
        volume: VolumeId,
        node: Option<NodeName>,
    },
    Resize {
        volume: VolumeId,
        size: Size,
    },
    SetReplicas {
        volume: VolumeId,
        replicas: u8,
    },
    ModifyVolume(VolumeId, Box<VolumeSpec>),
    MoveReplica {
        volume: VolumeId,
        replica: ReplicaId,
        pool: Option<PoolName>,
    },
    RemoveReplica {
        volume: VolumeId,
        replica: ReplicaId,
    },
    /// Leave a copy alone, or use it again.
    SetReplicaOffline {
        volume: VolumeId,
        replica: ReplicaId,
        offline: bool,
    },
    /// Forget targets that were replaced, whether their nodes answer or not.
    DropTargets(VolumeId),
    /// Undo what is being done to a volume.
    Cancel(VolumeId),
    /// Pause automatic failover and healing for so long.
    BeginMaintenance(Duration, String),
    EndMaintenance,
    CreateSnapshot(SnapshotId, Box<SnapshotSpec>),
    ChangeSnapshot(SnapshotId, SnapshotChange),
    DeleteSnapshot(SnapshotId),
    CreateGroup(SnapshotGroupId, Box<SnapshotGroupSpec>),
    ChangeGroup(SnapshotGroupId, SnapshotGroupChange),
    DeleteGroup(SnapshotGroupId),
    CreatePool(PoolName, Box<PoolSpec>),
    ChangePool(PoolName, PoolChange),
    DeletePool(PoolName),
    /// Forget a pool that will not come back, with all that is in it; these volumes are lost
    /// then, and known to be.
    PurgePool(PoolName, BTreeSet<VolumeId>),
    ChangeNode(NodeName, NodeChange),
    /// Forget a node that will not come back, with all that is on it; these volumes are lost
    /// then, and known to be.
    PurgeNode(NodeName, BTreeSet<VolumeId>),
    ChangeHost(HostName, HostChange),
    DeleteHost(HostName),
    CreateWebhook(WebhookName, Box<WebhookSpec>),
    ChangeWebhook(WebhookName, WebhookChange),
    DeleteWebhook(WebhookName),
    /// Make a snapshot of a copy that is set aside.
    Rescue {
        replica: ReplicaId,
        snapshot: SnapshotId,
    },
    /// Destroy a copy that is set aside.
    Discard(ReplicaId),
    /// Check a copy now.
    Scrub(ReplicaId),
    /// Give a volume a target for a while, although nobody uses it: its copies are compared.
    Attend(VolumeId),
    /// Ask a node what it has; what it says is known when this is answered.
    List(NodeName),
    /// Make records of pools, volumes and snapshots that are found on disks and nobody knows; also
    /// of these volumes, although copies of them were not found.
    Recover(BTreeSet<VolumeId>),
}
