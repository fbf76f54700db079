//! The node service: volumes of this machine, from the network to a folder of a pod.
//!
//! ```text
//!   stage:   attach ──► device ──► format if empty, check ──► mount at the staging path, grow
//!   publish:                       staging path (or device) ──► bind at the target path
//!   unpublish: unbind              unstage: unmount ──► detach
//! ```
//!
//! Nothing is remembered here: what is so is read from the kernel each time, so a restart forgets
//! nothing and a call that was interrupted is finished by its repetition.

mod agent_devices;
mod expansion;
mod health;
mod publication;
mod staging;
mod usage;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use linux::mounts::DeviceNumber;
use linux::{Kernel, SystemError};
use model::{HostName, VolumeId};
use tonic::{Request, Response, Status};

use crate::in_flight::InFlight;
use crate::parameters::Context;
use crate::proto::node_server::Node as Service;
use crate::proto::node_service_capability::rpc::Type as Rpc;
use crate::proto::{
    NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetCapabilitiesRequest,
    NodeGetCapabilitiesResponse, NodeGetInfoRequest, NodeGetInfoResponse,
    NodeGetStorageHealthRequest, NodeGetStorageHealthResponse, NodeGetVolumeHealthRequest,
    NodeGetVolumeHealthResponse, NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse,
    NodePublishVolumeRequest, NodePublishVolumeResponse, NodeServiceCapability,
    NodeStageVolumeRequest, NodeStageVolumeResponse, NodeUnpublishVolumeRequest,
    NodeUnpublishVolumeResponse, NodeUnstageVolumeRequest, NodeUnstageVolumeResponse,
    node_service_capability,
};
use crate::status::missing;
use crate::topology;

pub use agent_devices::AgentDevices;

/// Devices of volumes on this machine. What is asked for may block.
pub trait Devices: Send + Sync + 'static {
    /// Attaches a volume; its device. One that is attached so already stays.
    fn attach(&self, volume: VolumeId, how: &Attach<'_>) -> Result<PathBuf, Status>;

    /// Detaches a volume; one that is not attached is no error.
    fn detach(&self, volume: VolumeId) -> Result<(), Status>;

    /// The device of a volume that is attached.
    fn device(&self, volume: VolumeId) -> Result<Option<PathBuf>, Status>;

    /// What keeps a volume that is attached from being used; nothing: it can be.
    fn trouble(&self, volume: VolumeId) -> Result<Option<String>, Status>;

    /// What keeps volumes from being attached at all; nothing: they can be.
    fn backend_trouble(&self) -> Option<String>;
}

/// How a volume is attached.
#[derive(Clone, Copy, Debug)]
pub struct Attach<'a> {
    /// Whether nobody may write.
    pub read_only: bool,
    /// What the class of the volume says to nodes.
    pub context: &'a Context,
}

/// What may be chosen about a node.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// The name of this machine.
    pub host: HostName,
    /// The zone it is in.
    pub zone: Option<String>,
    /// How many volumes it takes at most; zero: no limit.
    pub most_volumes: i64,
}

/// The node service.
#[derive(Debug)]
pub struct Node<D> {
    inner: Arc<Inner<D>>,
    in_flight: InFlight,
}

#[derive(Debug)]
struct Inner<D> {
    kernel: Arc<dyn Kernel>,
    devices: D,
    config: NodeConfig,
}

const CAPABILITIES: &[Rpc] = &[
    Rpc::StageUnstageVolume,
    Rpc::GetVolumeStats,
    Rpc::ExpandVolume,
    Rpc::VolumeCondition,
    Rpc::SingleNodeMultiWriter,
    Rpc::GetVolumeHealth,
    Rpc::GetStorageHealth,
];

impl<D: Devices> Node<D> {
    /// The node that this kernel runs on.
    pub fn new(kernel: Arc<dyn Kernel>, devices: D, config: NodeConfig) -> Node<D> {
        let inner = Arc::new(Inner { kernel, devices, config });
        Node { inner, in_flight: InFlight::default() }
    }

    /// Looks at something, which may block. It takes no turn: a file system that hangs must not
    /// keep its volume from being unstaged.
    async fn beside<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Inner<D>) -> Result<T, Status> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let inner = Arc::clone(&self.inner);
        let done = tokio::task::spawn_blocking(move || look(&inner));
        let ended = done.await.map_err(|_| Status::internal("the look at the volume broke off"))?;
        ended.map(Response::new)
    }

    /// Carries out something that may block, alone for its volume. It goes on when the caller is
    /// gone, and the volume is free again when it has ended.
    async fn alone<T: Send + 'static>(
        &self,
        volume: VolumeId,
        work: impl FnOnce(&Inner<D>) -> Result<T, Status> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let exclusive = self.in_flight.claim(volume.uuid())?;
        let inner = Arc::clone(&self.inner);
        let done = tokio::task::spawn_blocking(move || {
            let result = work(&inner);
            drop(exclusive);
            result
        });
        let ended = done.await.map_err(|_| Status::internal("the work on the volume broke off"))?;
        ended.map(Response::new)
    }
}

/// The id in a request. One that is not ours names no volume.
fn volume_id(text: &str) -> Result<VolumeId, Status> {
    match super::controller::volume_id(text)? {
        Some(id) => Ok(id),
        None => Err(crate::status::not_found("volume", text)),
    }
}

/// A path in a request.
fn path(field: &'static str, text: &str) -> Result<PathBuf, Status> {
    if text.is_empty() {
        return Err(missing(field));
    }
    Ok(PathBuf::from(text))
}

/// What the kernel refused.
fn refused(error: &SystemError) -> Status {
    Status::internal(error.to_string())
}

/// The number of a device.
fn number_of(kernel: &dyn Kernel, device: &Path) -> Result<DeviceNumber, Status> {
    kernel.device_number(device).map_err(|error| {
        Status::unavailable(format!("{} cannot be looked at: {error}", device.display()))
    })
}

#[tonic::async_trait]
impl<D: Devices> Service for Node<D> {
    async fn node_stage_volume(
        &self,
        request: Request<NodeStageVolumeRequest>,
    ) -> Result<Response<NodeStageVolumeResponse>, Status> {
        let staging = staging::Staging::read(request.into_inner())?;
        self.alone(staging.volume, move |inner| inner.stage(&staging)).await
    }

    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Result<Response<NodeUnstageVolumeResponse>, Status> {
        let request = request.into_inner();
        let id = super::controller::volume_id(&request.volume_id)?;
        let point = path("staging_target_path", &request.staging_target_path)?;
        let Some(id) = id else { return Ok(Response::new(NodeUnstageVolumeResponse {})) };
        self.alone(id, move |inner| inner.unstage(id, &point)).await
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        let publication = publication::Publication::read(request.into_inner())?;
        self.alone(publication.volume, move |inner| inner.publish(&publication)).await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let id = super::controller::volume_id(&request.volume_id)?;
        let target = path("target_path", &request.target_path)?;
        let Some(id) = id else { return Ok(Response::new(NodeUnpublishVolumeResponse {})) };
        self.alone(id, move |inner| inner.unpublish(&target)).await
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Result<Response<NodeGetVolumeStatsResponse>, Status> {
        let request = request.into_inner();
        if request.volume_id.is_empty() {
            return Err(missing("volume_id"));
        }
        let at = path("volume_path", &request.volume_path)?;
        let id = volume_id(&request.volume_id)?;
        self.beside(move |inner| inner.usage(id, &at)).await
    }

    async fn node_expand_volume(
        &self,
        request: Request<NodeExpandVolumeRequest>,
    ) -> Result<Response<NodeExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        if request.volume_id.is_empty() {
            return Err(missing("volume_id"));
        }
        let at = path("volume_path", &request.volume_path)?;
        let id = volume_id(&request.volume_id)?;
        let wanted = request.capacity_range.map_or(0, |range| range.required_bytes);
        self.alone(id, move |inner| inner.expand(id, &at, wanted)).await
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        use node_service_capability::{Rpc as One, Type};
        let all = CAPABILITIES.iter().map(|rpc| NodeServiceCapability {
            r#type: Some(Type::Rpc(One { r#type: i32::from(*rpc) })),
        });
        Ok(Response::new(NodeGetCapabilitiesResponse { capabilities: all.collect() }))
    }

    async fn node_get_info(
        &self,
        _: Request<NodeGetInfoRequest>,
    ) -> Result<Response<NodeGetInfoResponse>, Status> {
        let config = &self.inner.config;
        Ok(Response::new(NodeGetInfoResponse {
            node_id: config.host.to_string(),
            max_volumes_per_node: config.most_volumes,
            accessible_topology: Some(topology::of_node(&config.host, config.zone.as_deref())),
        }))
    }

    async fn node_get_volume_health(
        &self,
        request: Request<NodeGetVolumeHealthRequest>,
    ) -> Result<Response<NodeGetVolumeHealthResponse>, Status> {
        let text = request.into_inner().volume_id;
        if text.is_empty() {
            return Err(missing("volume_id"));
        }
        let id = volume_id(&text)?;
        self.beside(move |inner| inner.volume_health(id)).await
    }

    async fn node_get_storage_health(
        &self,
        _: Request<NodeGetStorageHealthRequest>,
    ) -> Result<Response<NodeGetStorageHealthResponse>, Status> {
        self.beside(|inner| Ok(inner.storage_health())).await
    }
}
