//! One resource by its name or id, or the problem that there is none; and which request an
//! action of a volume is.

use api::rest::{DryRunRequest, VolumeAction};
use model::{
    Host, HostName, Node, NodeName, Pool, PoolName, Problem, ProblemKind, Snapshot, SnapshotGroup,
    SnapshotGroupId, SnapshotId, Volume, VolumeId,
};

use crate::controller::{Controller, Request};

pub(super) fn missing(kind: &str, id: &dyn std::fmt::Display) -> Problem {
    Problem::new(ProblemKind::NotFound, format!("there is no {kind} {id}"))
}

pub(super) fn volume(controller: &Controller, id: VolumeId) -> Result<Volume, Problem> {
    controller.volume_seen(id).ok_or_else(|| missing("volume", &id))
}

pub(super) fn pool(controller: &Controller, name: &PoolName) -> Result<Pool, Problem> {
    controller.pool_seen(name).ok_or_else(|| missing("pool", name))
}

pub(super) fn node(controller: &Controller, name: &NodeName) -> Result<Node, Problem> {
    controller.node_seen(name).ok_or_else(|| missing("node", name))
}

pub(super) fn host(controller: &Controller, name: &HostName) -> Result<Host, Problem> {
    controller.host_seen(name).ok_or_else(|| missing("host", name))
}

pub(super) fn snapshot(controller: &Controller, id: SnapshotId) -> Result<Snapshot, Problem> {
    controller.snapshot_seen(id).ok_or_else(|| missing("snapshot", &id))
}

pub(super) fn group(
    controller: &Controller,
    id: SnapshotGroupId,
) -> Result<SnapshotGroup, Problem> {
    controller.state().groups.get(&id).cloned().ok_or_else(|| missing("snapshot group", &id))
}

pub(super) fn request_of(volume: VolumeId, request: VolumeAction) -> Request {
    match request {
        VolumeAction::Publish { host, node } => Request::Publish { volume, host, node },
        VolumeAction::Unpublish { host, force } => Request::Unpublish { volume, host, force },
        VolumeAction::Republish { node } => Request::Republish { volume, node },
        VolumeAction::Resize { size } => Request::Resize { volume, size },
        VolumeAction::SetReplicas { replicas } => Request::SetReplicas { volume, replicas },
        VolumeAction::Modify { spec } => Request::ModifyVolume(volume, spec),
        VolumeAction::MoveReplica { replica, pool } => {
            Request::MoveReplica { volume, replica, pool }
        }
        VolumeAction::RemoveReplica { replica } => Request::RemoveReplica { volume, replica },
        VolumeAction::SetReplicaOffline { replica, offline } => {
            Request::SetReplicaOffline { volume, replica, offline }
        }
        VolumeAction::Cancel {} => Request::Cancel(volume),
        VolumeAction::RemoveShutdownTargets {} => Request::DropTargets(volume),
    }
}

pub(crate) fn request_of_dry_run(request: DryRunRequest) -> Request {
    match request {
        DryRunRequest::CreateVolume { volume, spec } => Request::CreateVolume(volume, spec),
        DryRunRequest::ChangeVolume { volume, change } => request_of(volume, change),
        DryRunRequest::DeleteVolume { volume } => Request::DeleteVolume(volume),
        DryRunRequest::DeleteSnapshot { snapshot } => Request::DeleteSnapshot(snapshot),
        DryRunRequest::ChangePool { pool, change } => Request::ChangePool(pool, change),
        DryRunRequest::DeletePool { pool } => Request::DeletePool(pool),
        DryRunRequest::ChangeNode { node, change } => Request::ChangeNode(node, change),
        DryRunRequest::DiscardReplica { replica } => Request::Discard(replica),
    }
}
