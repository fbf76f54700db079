//! The CSI services of the kernel data path that are not the node's: identity and controller.

use std::pin::Pin;
use std::sync::Arc;

use csi::capability::{Access, Capability};
use csi::proto::controller_server::Controller as ControllerService;
use csi::proto::controller_service_capability::{self, rpc::Type as Rpc};
use csi::proto::identity_server::Identity as IdentityService;
use csi::proto::plugin_capability::{self, service, volume_expansion};
use csi::proto::{
    CapacityRange, ControllerExpandVolumeRequest, ControllerExpandVolumeResponse,
    ControllerGetCapabilitiesRequest, ControllerGetCapabilitiesResponse,
    ControllerGetVolumeHealthRequest, ControllerGetVolumeHealthResponse,
    ControllerGetVolumeRequest, ControllerGetVolumeResponse, ControllerListVolumeHealthRequest,
    ControllerListVolumeHealthResponse, ControllerModifyVolumeRequest,
    ControllerModifyVolumeResponse, ControllerPublishVolumeRequest,
    ControllerPublishVolumeResponse, ControllerServiceCapability, ControllerUnpublishVolumeRequest,
    ControllerUnpublishVolumeResponse, CreateSnapshotRequest, CreateSnapshotResponse,
    CreateVolumeRequest, CreateVolumeResponse, DeleteSnapshotRequest, DeleteSnapshotResponse,
    DeleteVolumeRequest, DeleteVolumeResponse, GetCapacityRequest, GetCapacityResponse,
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest,
    GetPluginInfoResponse, GetSnapshotRequest, GetSnapshotResponse, ListSnapshotsRequest,
    ListSnapshotsResponse, ListVolumesRequest, ListVolumesResponse, PluginCapability, ProbeRequest,
    ProbeResponse, ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse,
    VolumeCondition, controller_get_volume_response, validate_volume_capabilities_response,
};
use tonic::{Request, Response, Status};

use crate::cluster::{self, Cluster, ClusterError};
use crate::daemon::Daemon;
use crate::parameters::Class;
use crate::placement::{Wanted, rank};
use crate::reconcile::Volume;
use crate::state::Phase;
use crate::volume::MeshVolumeSpec;

/// The name that classes use for this driver.
pub const DRIVER_NAME: &str = "mesh.csi.holdfast.io";
/// The smallest volume, in bytes.
const LEAST: u64 = 512 << 20;
/// What a volume gets that nobody gave a size.
const USUAL: u64 = 1 << 30;
/// A cycle older than this, in seconds, is none.
const SILENCE: u64 = 60;

/// Who this driver is; on a node, each probe makes the daemon look.
#[derive(Clone, Debug, Default)]
pub struct MeshIdentity {
    /// The daemon of this node, if this is one.
    pub daemon: Option<Arc<Daemon>>,
}

#[tonic::async_trait]
impl IdentityService for MeshIdentity {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        Ok(Response::new(GetPluginInfoResponse {
            name: DRIVER_NAME.to_owned(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
            manifest: [].into(),
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        use plugin_capability::{Service, Type, VolumeExpansion};
        let controller = Service { r#type: service::Type::ControllerService.into() };
        let online = VolumeExpansion { r#type: volume_expansion::Type::Online.into() };
        let all = [Type::Service(controller), Type::VolumeExpansion(online)];
        let capabilities = all.map(|one| PluginCapability { r#type: Some(one) }).into();
        Ok(Response::new(GetPluginCapabilitiesResponse { capabilities }))
    }

    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        let Some(daemon) = &self.daemon else {
            return Ok(Response::new(ProbeResponse { ready: Some(true) }));
        };
        daemon.wake();
        let (now, _) = cluster::now();
        let ready = now.saturating_sub(daemon.last_cycle()) <= SILENCE;
        Ok(Response::new(ProbeResponse { ready: Some(ready) }))
    }
}

/// Volumes as resources; it never touches data.
#[derive(Clone, Debug)]
pub struct MeshController {
    /// The resources.
    pub cluster: Cluster,
}

const CAPABILITIES: [Rpc; 5] = [
    Rpc::CreateDeleteVolume,
    Rpc::GetCapacity,
    Rpc::ExpandVolume,
    Rpc::SingleNodeMultiWriter,
    Rpc::GetVolume,
];

fn status(error: ClusterError) -> Status {
    match error {
        ClusterError::Conflict(name) => Status::aborted(format!("{name} changed; try again")),
        other => Status::unavailable(other.to_string()),
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// The size that is asked for, in whole mebibytes.
fn size(range: Option<&CapacityRange>) -> Result<u64, Status> {
    let read =
        |bytes: i64| u64::try_from(bytes).map_err(|_| Status::out_of_range("a size is negative"));
    let least = read(range.map_or(0, |range| range.required_bytes))?;
    let most = read(range.map_or(0, |range| range.limit_bytes))?;
    let wanted = if least == 0 { USUAL } else { least.max(LEAST) };
    let bytes = wanted.checked_next_multiple_of(1 << 20);
    let bytes = bytes.filter(|bytes| most == 0 || *bytes <= most);
    bytes.ok_or_else(|| {
        Status::out_of_range(
            "a volume has 512 MiB at least, in whole mebibytes, within limit_bytes",
        )
    })
}

impl MeshController {
    async fn find(&self, id: &str) -> Result<Option<Volume>, Status> {
        if id.is_empty() {
            return Err(Status::invalid_argument("volume_id is missing"));
        }
        let volumes = self.cluster.volumes().await.map_err(status)?;
        Ok(volumes.into_iter().find(|volume| volume.spec.volume_id == id))
    }

    async fn existing(&self, id: &str) -> Result<Volume, Status> {
        let found = self.find(id).await?;
        found.ok_or_else(|| Status::not_found(format!("there is no volume {id}")))
    }

    async fn create(&self, request: CreateVolumeRequest) -> Result<CreateVolumeResponse, Status> {
        let id = csi::names::volume(&request.name)?.to_string();
        let capabilities = Capability::read_all(&request.volume_capabilities)?;
        if capabilities.iter().any(Capability::is_shared) {
            let message = "a mesh volume is used by one node at a time: take ReadWriteOnce";
            return Err(Status::invalid_argument(message));
        }
        if request.volume_content_source.is_some() {
            return Err(Status::invalid_argument("a mesh volume has no snapshots and clones"));
        }
        let class = Class::read(&request.parameters)?;
        let capacity_bytes = size(request.capacity_range.as_ref())?;
        let spec = MeshVolumeSpec {
            volume_id: id.clone(),
            capacity_bytes,
            replica_count: class.replica_count,
            stripe_width: class.stripe_width,
            member_missing_timeout: class.member_missing_timeout,
            sector_size: class.sector_size,
            partitions: Vec::new(),
        };
        if let Some(there) = self.find(&id).await? {
            let most = request.capacity_range.as_ref().map_or(0, |range| range.limit_bytes);
            let has = there.spec.capacity_bytes;
            let fits = has >= capacity_bytes && (most == 0 || signed(has) <= most);
            let is_same = there.spec.replica_count == spec.replica_count
                && there.spec.stripe_width == spec.stripe_width;
            if !fits || !is_same || there.deleting {
                let message = format!("{} exists with another size or layout", request.name);
                return Err(Status::already_exists(message));
            }
        } else {
            self.check_nodes(&spec).await?;
            let volume = Volume { name: request.name, spec, ..Volume::default() };
            self.cluster.create(&volume).await.map_err(status)?;
        }
        let volume = self.existing(&id).await?;
        Ok(CreateVolumeResponse {
            volume: Some(csi::proto::Volume {
                capacity_bytes: signed(volume.spec.capacity_bytes),
                volume_id: id,
                volume_context: class.context,
                ..csi::proto::Volume::default()
            }),
        })
    }

    /// A volume that no nodes can hold is refused, not made and left waiting.
    async fn check_nodes(&self, spec: &MeshVolumeSpec) -> Result<(), Status> {
        let drives = self.cluster.drives().await.map_err(status)?;
        let found = rank(&drives, &wanted(spec)).len();
        if found >= usize::from(spec.replica_count) {
            return Ok(());
        }
        Err(Status::failed_precondition(format!(
            "not enough nodes: {} with {} drives of {}-byte sectors and {} bytes free are needed, \
             and there are {found}",
            spec.replica_count,
            spec.stripe_width,
            spec.sector_size,
            spec.partition_bytes()
        )))
    }

    async fn capacity(&self, request: GetCapacityRequest) -> Result<GetCapacityResponse, Status> {
        let class = Class::read(&request.parameters)?;
        let drives = self.cluster.drives().await.map_err(status)?;
        let (now, _) = cluster::now();
        let usable = drives.iter().filter(|drive| {
            drive.status.sector_size == class.sector_size
                && drive.status.unusable.is_none()
                && drive.is_healthy(now)
        });
        let mut by_node = std::collections::BTreeMap::<&str, (u64, u64)>::new();
        for drive in usable {
            let (sum, best) = by_node.entry(&drive.spec.node_id).or_default();
            *sum += drive.status.free_bytes;
            *best = (*best).max(drive.status.biggest_usable_free_bytes);
        }
        let copies = usize::from(class.replica_count);
        let mut best: Vec<u64> = by_node.values().map(|(_, best)| *best).collect();
        best.sort_unstable_by(|a, b| b.cmp(a));
        let largest = best.get(copies.saturating_sub(1)).copied().unwrap_or(0);
        let largest = largest.saturating_mul(u64::from(class.stripe_width));
        let all: u64 = by_node.values().map(|(sum, _)| *sum).sum();
        let available = if largest == 0 { 0 } else { all / u64::from(class.replica_count) };
        Ok(GetCapacityResponse {
            available_capacity: signed(available),
            maximum_volume_size: Some(signed(largest)),
            minimum_volume_size: Some(signed(LEAST)),
        })
    }

    async fn expand(
        &self,
        request: ControllerExpandVolumeRequest,
    ) -> Result<ControllerExpandVolumeResponse, Status> {
        let old = self.existing(&request.volume_id).await?;
        let wanted = size(request.capacity_range.as_ref())?;
        let mut new = old.clone();
        if wanted > old.spec.capacity_bytes {
            if old.spec.stripe_width > 1 {
                let message = "a striped volume cannot grow: stripeWidth is more than 1";
                return Err(Status::failed_precondition(message));
            }
            new.spec.capacity_bytes = wanted;
            new.status.phase = Phase::Expanding;
            self.cluster.write(&old, &new).await.map_err(status)?;
        }
        let capability = request.volume_capability.as_ref().map(Capability::read).transpose()?;
        let is_block = capability.is_some_and(|it| it.access == Access::Block);
        Ok(ControllerExpandVolumeResponse {
            capacity_bytes: signed(new.spec.capacity_bytes),
            node_expansion_required: !is_block,
        })
    }

    async fn volume(
        &self,
        request: ControllerGetVolumeRequest,
    ) -> Result<ControllerGetVolumeResponse, Status> {
        use controller_get_volume_response::VolumeStatus;
        let volume = self.existing(&request.volume_id).await?;
        let seen = &volume.status;
        let abnormal = seen.degraded > 0 || !seen.message.is_empty();
        let message = format!("{}, {} in sync. {}", seen.md_state, seen.ready, seen.message);
        Ok(ControllerGetVolumeResponse {
            volume: Some(csi::proto::Volume {
                capacity_bytes: signed(volume.spec.capacity_bytes),
                volume_id: volume.spec.volume_id.clone(),
                ..csi::proto::Volume::default()
            }),
            status: Some(VolumeStatus {
                published_node_ids: seen.node_name.clone().into_iter().collect(),
                volume_condition: Some(VolumeCondition { abnormal, message }),
            }),
        })
    }
}

fn wanted(spec: &MeshVolumeSpec) -> Wanted<'_> {
    let (now, _) = cluster::now();
    Wanted {
        consumer: "",
        size: spec.partition_bytes(),
        sector_size: spec.sector_size,
        drives: usize::from(spec.stripe_width),
        taken: &[],
        now,
    }
}

/// Calls of features that this data path does not have.
macro_rules! not_here {
    ($($name:ident($request:ty) -> $response:ty;)+) => {
        $(
            // What `async_trait` makes of an `async fn`: it does not look into macros.
            fn $name<'a, 'b>(
                &'a self,
                _: Request<$request>,
            ) -> Pin<Box<dyn Future<Output = Result<Response<$response>, Status>> + Send + 'b>>
            where
                'a: 'b,
                Self: 'b,
            {
                let refused = Status::unimplemented("the mesh driver does not have this call");
                Box::pin(std::future::ready(Err(refused)))
            }
        )+
    };
}

#[tonic::async_trait]
impl ControllerService for MeshController {
    async fn create_volume(
        &self,
        request: Request<CreateVolumeRequest>,
    ) -> Result<Response<CreateVolumeResponse>, Status> {
        self.create(request.into_inner()).await.map(Response::new)
    }

    async fn delete_volume(
        &self,
        request: Request<DeleteVolumeRequest>,
    ) -> Result<Response<DeleteVolumeResponse>, Status> {
        if let Some(volume) = self.find(&request.into_inner().volume_id).await? {
            // A node that is gone will not release it, and has nothing to lose.
            let drives = self.cluster.drives().await.map_err(status)?;
            let (now, _) = cluster::now();
            let is_alive = |node: &String| {
                drives.iter().any(|it| it.spec.node_id == *node && it.is_healthy(now))
            };
            if let Some(node) = volume.status.node_name.as_ref().filter(|node| is_alive(node)) {
                let message = format!("the volume is in use on node {node}");
                return Err(Status::failed_precondition(message));
            }
            self.cluster.delete(&volume.name).await.map_err(status)?;
        }
        Ok(Response::new(DeleteVolumeResponse {}))
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<ValidateVolumeCapabilitiesResponse>, Status> {
        let request = request.into_inner();
        self.existing(&request.volume_id).await?;
        let capabilities = Capability::read_all(&request.volume_capabilities)?;
        if capabilities.iter().any(Capability::is_shared) {
            let message = "one node uses it at a time".to_owned();
            let refused = ValidateVolumeCapabilitiesResponse { confirmed: None, message };
            return Ok(Response::new(refused));
        }
        let confirmed = validate_volume_capabilities_response::Confirmed {
            volume_context: request.volume_context,
            volume_capabilities: request.volume_capabilities,
            parameters: request.parameters,
            mutable_parameters: request.mutable_parameters,
        };
        let message = String::new();
        let confirmed = Some(confirmed);
        Ok(Response::new(ValidateVolumeCapabilitiesResponse { confirmed, message }))
    }

    async fn get_capacity(
        &self,
        request: Request<GetCapacityRequest>,
    ) -> Result<Response<GetCapacityResponse>, Status> {
        self.capacity(request.into_inner()).await.map(Response::new)
    }

    async fn controller_expand_volume(
        &self,
        request: Request<ControllerExpandVolumeRequest>,
    ) -> Result<Response<ControllerExpandVolumeResponse>, Status> {
        self.expand(request.into_inner()).await.map(Response::new)
    }

    async fn controller_get_volume(
        &self,
        request: Request<ControllerGetVolumeRequest>,
    ) -> Result<Response<ControllerGetVolumeResponse>, Status> {
        self.volume(request.into_inner()).await.map(Response::new)
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<ControllerGetCapabilitiesResponse>, Status> {
        use controller_service_capability::{Rpc as One, Type};
        let capability = |rpc: Rpc| ControllerServiceCapability {
            r#type: Some(Type::Rpc(One { r#type: rpc.into() })),
        };
        let capabilities = CAPABILITIES.map(capability).into();
        Ok(Response::new(ControllerGetCapabilitiesResponse { capabilities }))
    }

    not_here! {
        controller_publish_volume(ControllerPublishVolumeRequest)
            -> ControllerPublishVolumeResponse;
        controller_unpublish_volume(ControllerUnpublishVolumeRequest)
            -> ControllerUnpublishVolumeResponse;
        list_volumes(ListVolumesRequest) -> ListVolumesResponse;
        controller_list_volume_health(ControllerListVolumeHealthRequest)
            -> ControllerListVolumeHealthResponse;
        controller_get_volume_health(ControllerGetVolumeHealthRequest)
            -> ControllerGetVolumeHealthResponse;
        create_snapshot(CreateSnapshotRequest) -> CreateSnapshotResponse;
        delete_snapshot(DeleteSnapshotRequest) -> DeleteSnapshotResponse;
        list_snapshots(ListSnapshotsRequest) -> ListSnapshotsResponse;
        get_snapshot(GetSnapshotRequest) -> GetSnapshotResponse;
        controller_modify_volume(ControllerModifyVolumeRequest) -> ControllerModifyVolumeResponse;
    }
}
