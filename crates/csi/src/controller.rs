//! The controller service: volumes and snapshots, from request to REST and back.

mod capacity;
mod health;
mod modify;
mod publication;
mod snapshots;
mod volumes;

use std::sync::Arc;
use std::time::Duration;

use api::rest::Control;
use model::{LabelValue, SnapshotId, VolumeId};
use tokio::sync::Semaphore;
use tonic::{Request, Response, Status};

use crate::in_flight::InFlight;
use crate::proto::controller_server::Controller as Service;
use crate::proto::controller_service_capability::rpc::Type as Rpc;
use crate::proto::{
    ControllerExpandVolumeRequest, ControllerExpandVolumeResponse,
    ControllerGetCapabilitiesRequest, ControllerGetCapabilitiesResponse,
    ControllerGetVolumeHealthRequest, ControllerGetVolumeHealthResponse,
    ControllerGetVolumeRequest, ControllerGetVolumeResponse, ControllerListVolumeHealthRequest,
    ControllerListVolumeHealthResponse, ControllerModifyVolumeRequest,
    ControllerModifyVolumeResponse, ControllerPublishVolumeRequest,
    ControllerPublishVolumeResponse, ControllerServiceCapability, ControllerUnpublishVolumeRequest,
    ControllerUnpublishVolumeResponse, CreateSnapshotRequest, CreateSnapshotResponse,
    CreateVolumeRequest, CreateVolumeResponse, DeleteSnapshotRequest, DeleteSnapshotResponse,
    DeleteVolumeRequest, DeleteVolumeResponse, GetCapacityRequest, GetCapacityResponse,
    GetSnapshotRequest, GetSnapshotResponse, ListSnapshotsRequest, ListSnapshotsResponse,
    ListVolumesRequest, ListVolumesResponse, ValidateVolumeCapabilitiesRequest,
    ValidateVolumeCapabilitiesResponse, controller_service_capability,
};

pub(crate) use snapshots::{described, read_parameters, time};

/// What may be chosen about the controller.
#[derive(Clone, Debug)]
pub struct ControllerConfig {
    /// Volumes that are made at once; more wait for a moment, and are then aborted.
    pub creations: usize,
    /// How long they wait.
    pub creation_wait: Duration,
    /// The Kubernetes cluster that asks, which its volumes are labelled with.
    pub cluster: Option<LabelValue>,
}

impl Default for ControllerConfig {
    fn default() -> ControllerConfig {
        ControllerConfig { creations: 10, creation_wait: Duration::from_secs(3), cluster: None }
    }
}

/// The controller service.
#[derive(Debug)]
pub struct Controller<C> {
    control: Arc<C>,
    in_flight: InFlight,
    creations: Semaphore,
    config: ControllerConfig,
}

/// Everything this controller can do.
const CAPABILITIES: &[Rpc] = &[
    Rpc::CreateDeleteVolume,
    Rpc::PublishUnpublishVolume,
    Rpc::ListVolumes,
    Rpc::GetCapacity,
    Rpc::CreateDeleteSnapshot,
    Rpc::ListSnapshots,
    Rpc::CloneVolume,
    Rpc::ExpandVolume,
    Rpc::ListVolumesPublishedNodes,
    Rpc::VolumeCondition,
    Rpc::GetVolume,
    Rpc::SingleNodeMultiWriter,
    Rpc::ModifyVolume,
    Rpc::GetSnapshot,
    Rpc::GetVolumeHealth,
    Rpc::ListVolumeHealth,
];

impl<C: Control> Controller<C> {
    /// A controller that works with this control plane.
    pub fn new(control: Arc<C>, config: ControllerConfig) -> Controller<C> {
        let creations = Semaphore::new(config.creations);
        Controller { control, in_flight: InFlight::default(), creations, config }
    }

    /// The control plane.
    pub(crate) fn control(&self) -> &Arc<C> {
        &self.control
    }

    /// Shared with the group service: a snapshot in a group is a snapshot of a volume.
    pub(crate) fn in_flight(&self) -> InFlight {
        self.in_flight.clone()
    }
}

/// The id in a request, if it is one of ours; an empty one is an error.
pub(crate) fn volume_id(text: &str) -> Result<Option<VolumeId>, Status> {
    match text {
        "" => Err(crate::status::missing("volume_id")),
        text => Ok(text.parse().ok()),
    }
}

/// The same for a snapshot.
pub(crate) fn snapshot_id(text: &str) -> Result<Option<SnapshotId>, Status> {
    match text {
        "" => Err(crate::status::missing("snapshot_id")),
        text => Ok(text.parse().ok()),
    }
}

/// How many entries a page has at most: absent, all of them.
fn most(max_entries: i32) -> Result<Option<usize>, Status> {
    match usize::try_from(max_entries) {
        Ok(0) => Ok(None),
        Ok(most) => Ok(Some(most)),
        Err(_) => Err(Status::invalid_argument("max_entries is negative")),
    }
}

/// A token that came with a page before; it is the id that the page ended with.
fn started_after<I: std::str::FromStr>(token: &str) -> Result<Option<String>, Status> {
    if token.is_empty() {
        return Ok(None);
    }
    let refused = |_| {
        Status::aborted(format!("starting_token {token:?} is not one of ours; list from the start"))
    };
    token.parse::<I>().map(|_| Some(token.to_owned())).map_err(refused)
}

/// Calls the function of the same name with the message of the request.
macro_rules! rpcs {
    ($($name:ident($request:ty) -> $response:ty;)+) => {
        #[tonic::async_trait]
        impl<C: Control> Service for Controller<C> {
            $(
                async fn $name(
                    &self,
                    request: Request<$request>,
                ) -> Result<Response<$response>, Status> {
                    self.$name(request.into_inner()).await.map(Response::new)
                }
            )+

            async fn controller_get_capabilities(
                &self,
                _: Request<ControllerGetCapabilitiesRequest>,
            ) -> Result<Response<ControllerGetCapabilitiesResponse>, Status> {
                use controller_service_capability::{Rpc as One, Type};
                let all = CAPABILITIES.iter().map(|rpc| ControllerServiceCapability {
                    r#type: Some(Type::Rpc(One { r#type: i32::from(*rpc) })),
                });
                let capabilities = all.collect();
                Ok(Response::new(ControllerGetCapabilitiesResponse { capabilities }))
            }
        }
    };
}

rpcs! {
    create_volume(CreateVolumeRequest) -> CreateVolumeResponse;
    delete_volume(DeleteVolumeRequest) -> DeleteVolumeResponse;
    controller_publish_volume(ControllerPublishVolumeRequest) -> ControllerPublishVolumeResponse;
    controller_unpublish_volume(ControllerUnpublishVolumeRequest)
        -> ControllerUnpublishVolumeResponse;
    validate_volume_capabilities(ValidateVolumeCapabilitiesRequest)
        -> ValidateVolumeCapabilitiesResponse;
    list_volumes(ListVolumesRequest) -> ListVolumesResponse;
    controller_list_volume_health(ControllerListVolumeHealthRequest)
        -> ControllerListVolumeHealthResponse;
    controller_get_volume_health(ControllerGetVolumeHealthRequest)
        -> ControllerGetVolumeHealthResponse;
    get_capacity(GetCapacityRequest) -> GetCapacityResponse;
    create_snapshot(CreateSnapshotRequest) -> CreateSnapshotResponse;
    delete_snapshot(DeleteSnapshotRequest) -> DeleteSnapshotResponse;
    list_snapshots(ListSnapshotsRequest) -> ListSnapshotsResponse;
    get_snapshot(GetSnapshotRequest) -> GetSnapshotResponse;
    controller_expand_volume(ControllerExpandVolumeRequest) -> ControllerExpandVolumeResponse;
    controller_get_volume(ControllerGetVolumeRequest) -> ControllerGetVolumeResponse;
    controller_modify_volume(ControllerModifyVolumeRequest) -> ControllerModifyVolumeResponse;
}
