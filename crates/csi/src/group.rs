//! Snapshots of several volumes at one moment.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::rest::Control;
use model::{
    SnapshotGroup, SnapshotGroupId, SnapshotGroupSpec, SnapshotId, SnapshotState, VolumeId,
};
use tonic::{Request, Response, Status};

use crate::controller::Controller;
use crate::controller::{described, read_parameters, time};
use crate::in_flight::InFlight;
use crate::names;
use crate::proto::group_controller_server::GroupController as Service;
use crate::proto::group_controller_service_capability::{Rpc, Type, rpc};
use crate::proto::{
    CreateVolumeGroupSnapshotRequest, CreateVolumeGroupSnapshotResponse,
    DeleteVolumeGroupSnapshotRequest, DeleteVolumeGroupSnapshotResponse,
    GetVolumeGroupSnapshotRequest, GetVolumeGroupSnapshotResponse,
    GroupControllerGetCapabilitiesRequest, GroupControllerGetCapabilitiesResponse,
    GroupControllerServiceCapability, VolumeGroupSnapshot,
};
use crate::status::{found, is_missing, missing, not_found, status};

/// The group controller service.
#[derive(Debug)]
pub struct GroupController<C> {
    control: Arc<C>,
    in_flight: InFlight,
}

impl<C: Control> GroupController<C> {
    /// Groups beside the snapshots of a controller.
    pub fn new(control: Arc<C>, controller: &Controller<C>) -> GroupController<C> {
        GroupController { control, in_flight: controller.in_flight() }
    }

    /// A group as CSI describes it, with all of its snapshots.
    async fn describe(&self, group: &SnapshotGroup) -> Result<VolumeGroupSnapshot, Status> {
        let mut snapshots = Vec::new();
        for snapshot in group.spec().snapshots.values() {
            let snapshot = self.control.snapshot(*snapshot).await.map_err(status)?;
            snapshots.push(described(&snapshot));
        }
        let taken = group.status.as_ref();
        let at = taken.map_or_else(|| group.created_at(), |taken| taken.taken_at);
        let is_ready = |state| matches!(state, SnapshotState::Ready | SnapshotState::Degraded);
        Ok(VolumeGroupSnapshot {
            group_snapshot_id: group.id().to_string(),
            snapshots,
            creation_time: Some(time(at)),
            ready_to_use: taken.is_some_and(|taken| is_ready(taken.state)),
        })
    }

    /// A group that is there, with exactly these snapshots if any are named.
    async fn existing(
        &self,
        text: &str,
        snapshots: &[String],
    ) -> Result<Option<SnapshotGroup>, Status> {
        if text.is_empty() {
            return Err(missing("group_snapshot_id"));
        }
        let Ok(id) = text.parse::<SnapshotGroupId>() else { return Ok(None) };
        let Some(group) = found(self.control.group(id).await)? else { return Ok(None) };
        let mut named: Vec<SnapshotId> = Vec::new();
        for snapshot in snapshots {
            named.push(snapshot.parse().map_err(|_| other_members(&group))?);
        }
        named.sort_unstable();
        let mut members: Vec<_> = group.spec().snapshots.values().copied().collect();
        members.sort_unstable();
        if !named.is_empty() && named != members {
            return Err(other_members(&group));
        }
        Ok(Some(group))
    }
}

fn other_members(group: &SnapshotGroup) -> Status {
    let message = format!("group {} has other snapshots than those in snapshot_ids", group.id());
    Status::invalid_argument(message)
}

#[tonic::async_trait]
impl<C: Control> Service for GroupController<C> {
    async fn group_controller_get_capabilities(
        &self,
        _: Request<GroupControllerGetCapabilitiesRequest>,
    ) -> Result<Response<GroupControllerGetCapabilitiesResponse>, Status> {
        let all = rpc::Type::CreateDeleteGetVolumeGroupSnapshot;
        let all = GroupControllerServiceCapability {
            r#type: Some(Type::Rpc(Rpc { r#type: all.into() })),
        };
        Ok(Response::new(GroupControllerGetCapabilitiesResponse { capabilities: vec![all] }))
    }

    async fn create_volume_group_snapshot(
        &self,
        request: Request<CreateVolumeGroupSnapshotRequest>,
    ) -> Result<Response<CreateVolumeGroupSnapshotResponse>, Status> {
        let request = request.into_inner();
        read_parameters(&request.parameters)?;
        let id = names::group(&request.name)?;
        if request.source_volume_ids.is_empty() {
            return Err(missing("source_volume_ids"));
        }
        let mut snapshots: BTreeMap<VolumeId, SnapshotId> = BTreeMap::new();
        for text in &request.source_volume_ids {
            let volume = text.parse().map_err(|_| not_found("volume", text))?;
            snapshots.insert(volume, names::member(id, volume)?);
        }
        let _exclusive = self.in_flight.claim(id.uuid())?;
        if let Some(there) = found(self.control.group(id).await)?
            && there.spec().snapshots != snapshots
        {
            let message = format!("group {} exists, of other volumes", request.name);
            return Err(Status::already_exists(message));
        }
        let spec = SnapshotGroupSpec {
            name: request.name.parse().ok(),
            ..SnapshotGroupSpec::new(snapshots)
        };
        let group = self.control.put_group(id, spec).await.map_err(status)?.now;
        let group_snapshot = Some(self.describe(&group).await?);
        Ok(Response::new(CreateVolumeGroupSnapshotResponse { group_snapshot }))
    }

    async fn delete_volume_group_snapshot(
        &self,
        request: Request<DeleteVolumeGroupSnapshotRequest>,
    ) -> Result<Response<DeleteVolumeGroupSnapshotResponse>, Status> {
        let request = request.into_inner();
        let done = Response::new(DeleteVolumeGroupSnapshotResponse {});
        let group = self.existing(&request.group_snapshot_id, &request.snapshot_ids).await?;
        let Some(group) = group else { return Ok(done) };
        let _exclusive = self.in_flight.claim(group.id().uuid())?;
        match self.control.delete_group(*group.id(), None).await {
            Err(problem) if !is_missing(&problem) => Err(status(problem)),
            _ => Ok(done),
        }
    }

    async fn get_volume_group_snapshot(
        &self,
        request: Request<GetVolumeGroupSnapshotRequest>,
    ) -> Result<Response<GetVolumeGroupSnapshotResponse>, Status> {
        let request = request.into_inner();
        let text = &request.group_snapshot_id;
        let group = self.existing(text, &request.snapshot_ids).await?;
        let group = group.ok_or_else(|| not_found("group snapshot", text))?;
        let group_snapshot = Some(self.describe(&group).await?);
        Ok(Response::new(GetVolumeGroupSnapshotResponse { group_snapshot }))
    }
}
