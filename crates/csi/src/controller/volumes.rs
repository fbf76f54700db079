//! Volumes: made, deleted, listed, looked at.

use std::collections::BTreeSet;

use api::Page;
use api::rest::{Control, VolumeQuery};
use model::{HostName, Labels, NodeName, ProblemKind, Size, Source, VolumeSpec};
use tonic::Status;

use super::{Controller, most, snapshot_id, started_after, volume_id};
use crate::capability::Capability;
use crate::parameters::{self, Class};
use crate::proto::volume_content_source::{SnapshotSource, Type, VolumeSource};
use crate::proto::{
    CapacityRange, ControllerExpandVolumeRequest, ControllerExpandVolumeResponse,
    ControllerGetVolumeRequest, ControllerGetVolumeResponse, CreateVolumeRequest,
    CreateVolumeResponse, DeleteVolumeRequest, DeleteVolumeResponse, ListVolumesRequest,
    ListVolumesResponse, ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse,
    Volume, VolumeContentSource, controller_get_volume_response, list_volumes_response,
    validate_volume_capabilities_response,
};
use crate::status::{found, is_missing, missing, not_found, status};
use crate::{kubernetes, names, topology};

/// What a volume gets that nobody gave a size.
const USUAL_SIZE: Size = Size::gib(1);

impl<C: Control> Controller<C> {
    pub(super) async fn create_volume(
        &self,
        request: CreateVolumeRequest,
    ) -> Result<CreateVolumeResponse, Status> {
        let id = names::volume(&request.name)?;
        let capabilities = Capability::read_all(&request.volume_capabilities)?;
        let class = parameters::class(&request.parameters)?;
        let class = parameters::modification(&request.mutable_parameters)?.into_class(class);
        let sizes = Sizes::read(request.capacity_range.as_ref())?;
        let source = read_source(request.volume_content_source.as_ref())?;
        let _exclusive = self.in_flight.claim(id.uuid())?;
        let place = self.creations.acquire();
        let place = tokio::time::timeout(self.config.creation_wait, place).await;
        let _place = place
            .map_err(|_| Status::aborted("too many volumes are being made at once; try again"))?;

        let spec = if let Some(there) = found(self.control.volume(id).await)? {
            let spec = there.spec();
            let shared = capabilities.iter().any(Capability::is_shared);
            if !sizes.admit(spec.size) || spec.source != source || (shared && !spec.shared) {
                let message = format!(
                    "volume {} exists with {}, and another size, source or access mode is asked",
                    request.name, spec.size
                );
                return Err(Status::already_exists(message));
            }
            spec.clone()
        } else {
            let size = sizes.of_new(self.size_of(source).await?)?;
            let near = topology::preferred(request.accessibility_requirements.as_ref())?;
            let labels = self.labels_of_new()?;
            let made = VolumeSpec {
                name: request.name.parse().ok(),
                source,
                labels,
                ..spec_of(&class, size, &capabilities)
            };
            near_to(near, made)
        };
        // Also for one that is there: it may still be in the making.
        let made = self.control.put_volume(id, spec).await.map_err(status)?.now;
        let mut volume = described(&made);
        volume.volume_context = class.context;
        if source.is_some() {
            volume.volume_context.insert(parameters::IS_CLONE.to_owned(), "true".to_owned());
        }
        volume.content_source = request.volume_content_source;
        Ok(CreateVolumeResponse { volume: Some(volume) })
    }

    /// Which cluster a volume belongs to: only that one deletes it when it has lost it.
    fn labels_of_new(&self) -> Result<Labels, Status> {
        let Some(cluster) = &self.config.cluster else { return Ok(Labels::new()) };
        let key = kubernetes::CLUSTER.parse().map_err(crate::status::invalid)?;
        Ok([(key, cluster.clone())].into())
    }

    /// The size of what a volume starts with; nothing: it starts with zeros.
    async fn size_of(&self, source: Option<Source>) -> Result<Option<Size>, Status> {
        match source {
            None => Ok(None),
            Some(Source::Snapshot { snapshot }) => {
                let snapshot = self.control.snapshot(snapshot).await.map_err(status)?;
                let taken = snapshot.status.as_ref().map(|taken| taken.size);
                let early = || Status::unavailable("the snapshot is still being taken; try again");
                taken.map(Some).ok_or_else(early)
            }
            Some(Source::Volume { volume }) => {
                Ok(Some(self.control.volume(volume).await.map_err(status)?.spec().size))
            }
        }
    }

    pub(super) async fn delete_volume(
        &self,
        request: DeleteVolumeRequest,
    ) -> Result<DeleteVolumeResponse, Status> {
        let Some(id) = volume_id(&request.volume_id)? else {
            return Ok(DeleteVolumeResponse {});
        };
        let _exclusive = self.in_flight.claim(id.uuid())?;
        match self.control.delete_volume(id, None).await {
            Ok(_) => Ok(DeleteVolumeResponse {}),
            Err(problem) if is_missing(&problem) => Ok(DeleteVolumeResponse {}),
            Err(problem) => Err(status(problem)),
        }
    }

    pub(super) async fn validate_volume_capabilities(
        &self,
        request: ValidateVolumeCapabilitiesRequest,
    ) -> Result<ValidateVolumeCapabilitiesResponse, Status> {
        let id = volume_id(&request.volume_id)?;
        if request.volume_capabilities.is_empty() {
            return Err(missing("volume_capabilities"));
        }
        let volume = self.existing(id, &request.volume_id).await?;
        let capabilities = match Capability::read_all(&request.volume_capabilities) {
            Ok(read) => read,
            Err(refused) => return Ok(unconfirmed(refused.message())),
        };
        if capabilities.iter().any(Capability::is_shared) && !volume.spec().shared {
            return Ok(unconfirmed("the volume is not shared: one node uses it at a time"));
        }
        let checked = parameters::class(&request.parameters)
            .and_then(|_| parameters::modification(&request.mutable_parameters));
        if let Err(refused) = checked {
            return Ok(unconfirmed(refused.message()));
        }
        let confirmed = validate_volume_capabilities_response::Confirmed {
            volume_context: request.volume_context,
            volume_capabilities: request.volume_capabilities,
            parameters: request.parameters,
            mutable_parameters: request.mutable_parameters,
        };
        let message = String::new();
        Ok(ValidateVolumeCapabilitiesResponse { confirmed: Some(confirmed), message })
    }

    /// A volume that must be there.
    pub(super) async fn existing(
        &self,
        id: Option<model::VolumeId>,
        text: &str,
    ) -> Result<model::Volume, Status> {
        let id = id.ok_or_else(|| not_found("volume", text))?;
        self.control.volume(id).await.map_err(status)
    }

    pub(super) async fn list_volumes(
        &self,
        request: ListVolumesRequest,
    ) -> Result<ListVolumesResponse, Status> {
        use list_volumes_response::{Entry, VolumeStatus};
        let after = started_after::<model::VolumeId>(&request.starting_token)?;
        let (volumes, next) = self.some_volumes(most(request.max_entries)?, after).await?;
        let entry = |volume: &model::Volume| Entry {
            volume: Some(described(volume)),
            status: Some(VolumeStatus {
                published_node_ids: published(volume),
                volume_condition: Some(super::health::condition(volume)),
            }),
        };
        let entries = volumes.iter().map(entry).collect();
        Ok(ListVolumesResponse { entries, next_token: next.unwrap_or_default() })
    }

    /// So many volumes after one, or all that follow, and where the next page begins.
    pub(crate) async fn some_volumes(
        &self,
        most: Option<usize>,
        mut after: Option<String>,
    ) -> Result<(Vec<model::Volume>, Option<String>), Status> {
        let mut all = Vec::new();
        loop {
            let left = most.map(|most| most - all.len());
            let limit = left.and_then(|left| u32::try_from(left.min(1000)).ok());
            let query = VolumeQuery { limit, after, ..VolumeQuery::default() };
            let Page { items, after: next } = self.control.volumes(query).await.map_err(status)?;
            all.extend(items);
            if next.is_none() || most.is_some_and(|most| all.len() >= most) {
                return Ok((all, next));
            }
            after = next;
        }
    }

    pub(super) async fn controller_get_volume(
        &self,
        request: ControllerGetVolumeRequest,
    ) -> Result<ControllerGetVolumeResponse, Status> {
        use controller_get_volume_response::VolumeStatus;
        let id = volume_id(&request.volume_id)?;
        let volume = self.existing(id, &request.volume_id).await?;
        let status = VolumeStatus {
            published_node_ids: published(&volume),
            volume_condition: Some(super::health::condition(&volume)),
        };
        let volume = Some(described(&volume));
        Ok(ControllerGetVolumeResponse { volume, status: Some(status) })
    }

    pub(super) async fn controller_expand_volume(
        &self,
        request: ControllerExpandVolumeRequest,
    ) -> Result<ControllerExpandVolumeResponse, Status> {
        let id = volume_id(&request.volume_id)?;
        let range = request.capacity_range.as_ref().ok_or_else(|| missing("capacity_range"))?;
        let sizes = Sizes::read(Some(range))?;
        let volume = self.existing(id, &request.volume_id).await?;
        let id = *volume.id();
        let _exclusive = self.in_flight.claim(id.uuid())?;
        let mut size = volume.spec().size;
        if size < sizes.least {
            let wanted = sizes.of_new(None)?;
            let change = api::rest::VolumeAction::Resize { size: wanted };
            let changed = self.control.change_volume(id, change, None).await.map_err(status)?;
            size = changed.now.spec().size;
        } else if sizes.most.is_some_and(|most| size > most) {
            let message = format!("volume {id} has {size}, and a volume cannot shrink");
            return Err(Status::out_of_range(message));
        }
        let given = request.volume_capability.as_ref().map(Capability::read).transpose()?;
        let is_block = given.is_some_and(|it| it.access == crate::capability::Access::Block);
        Ok(ControllerExpandVolumeResponse {
            capacity_bytes: signed(size),
            node_expansion_required: !is_block,
        })
    }
}

fn unconfirmed(message: &str) -> ValidateVolumeCapabilitiesResponse {
    ValidateVolumeCapabilitiesResponse { confirmed: None, message: message.to_owned() }
}

fn spec_of(class: &Class, size: Size, capabilities: &[Capability]) -> VolumeSpec {
    VolumeSpec {
        thin: class.thin.unwrap_or(true),
        shared: capabilities.iter().any(Capability::is_shared),
        encryption: class.encryption.clone(),
        affinity_group: class.affinity_group.clone(),
        policy: class.policy,
        topology: class.topology.clone(),
        limits: class.limits,
        max_snapshots: class.max_snapshots,
        ..VolumeSpec::new(size, class.replicas.unwrap_or(1))
    }
}

/// A copy where it saves the network, if the class allows one there.
fn near_to(near: BTreeSet<NodeName>, mut spec: VolumeSpec) -> VolumeSpec {
    let allowed = &spec.topology.allowed_nodes;
    let admitted = near.into_iter().filter(|node| allowed.is_empty() || allowed.contains(node));
    spec.topology.preferred_nodes = admitted.collect();
    spec
}

fn read_source(given: Option<&VolumeContentSource>) -> Result<Option<Source>, Status> {
    let Some(given) = given else { return Ok(None) };
    match &given.r#type {
        Some(Type::Snapshot(SnapshotSource { snapshot_id: text })) => {
            let snapshot = snapshot_id(text)?.ok_or_else(|| not_found("snapshot", text))?;
            Ok(Some(Source::Snapshot { snapshot }))
        }
        Some(Type::Volume(VolumeSource { volume_id: text })) => {
            let volume = volume_id(text)?.ok_or_else(|| not_found("volume", text))?;
            Ok(Some(Source::Volume { volume }))
        }
        None => Err(missing("volume_content_source.type")),
    }
}

/// A volume as CSI describes it. It can be used from every node.
fn described(volume: &model::Volume) -> Volume {
    let content_source = volume.spec().source.map(|source| VolumeContentSource {
        r#type: Some(match source {
            Source::Snapshot { snapshot } => {
                Type::Snapshot(SnapshotSource { snapshot_id: snapshot.to_string() })
            }
            Source::Volume { volume } => {
                Type::Volume(VolumeSource { volume_id: volume.to_string() })
            }
        }),
    });
    Volume {
        capacity_bytes: signed(volume.spec().size),
        volume_id: volume.id().to_string(),
        content_source,
        ..Volume::default()
    }
}

/// The nodes that may use a volume.
pub(super) fn published(volume: &model::Volume) -> Vec<String> {
    let target = volume.status.as_ref().and_then(|status| status.target.as_ref());
    target.map_or_else(Vec::new, |target| target.hosts.iter().map(HostName::to_string).collect())
}

/// A size as CSI counts.
pub(super) fn signed(size: Size) -> i64 {
    i64::try_from(size.bytes().0).unwrap_or(i64::MAX)
}

/// Which sizes a caller accepts.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    least: Size,
    most: Option<Size>,
}

impl Sizes {
    fn read(range: Option<&CapacityRange>) -> Result<Sizes, Status> {
        let read = |bytes: i64| {
            u64::try_from(bytes).map_err(|_| Status::out_of_range("a size is negative"))
        };
        let least = sized(read(range.map_or(0, |range| range.required_bytes))?);
        let most = read(range.map_or(0, |range| range.limit_bytes))?;
        let most = (most > 0).then(|| sized(most));
        if most.is_some_and(|most| most < least) {
            return Err(Status::out_of_range("limit_bytes is less than required_bytes"));
        }
        Ok(Sizes { least, most })
    }

    fn admit(self, size: Size) -> bool {
        size >= self.least && self.most.is_none_or(|most| size <= most)
    }

    /// The size of a new volume, which holds at least what it starts with.
    fn of_new(self, source: Option<Size>) -> Result<Size, Status> {
        let floor = match source {
            Some(size) => size,
            None if self.least == sized(0) => {
                self.most.map_or(USUAL_SIZE, |most| most.min(USUAL_SIZE))
            }
            None => VolumeSpec::LEAST_SIZE,
        };
        let wanted = self.least.max(floor);
        let bytes = wanted.bytes().0.checked_next_multiple_of(Size::BLOCK.bytes().0);
        let size = bytes.map(sized);
        let size = size.filter(|size| self.admit(*size) && *size <= VolumeSpec::MOST_SIZE);
        size.ok_or_else(|| {
            let message = match source {
                Some(source) if self.most.is_some_and(|most| most < source) => {
                    format!("the source has {source}, more than limit_bytes")
                }
                _ => format!(
                    "a volume has {} to {} in steps of {}",
                    VolumeSpec::LEAST_SIZE,
                    VolumeSpec::MOST_SIZE,
                    Size::BLOCK
                ),
            };
            Status::new(
                tonic::Code::from_i32(i32::from(ProblemKind::OutOfRange.csi().number())),
                message,
            )
        })
    }
}

pub(super) fn sized(bytes: u64) -> Size {
    Size::from(block::Bytes(bytes))
}
