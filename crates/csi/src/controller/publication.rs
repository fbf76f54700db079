//! Volumes for nodes: who may connect to a volume.

use api::rest::{Control, VolumeAction};
use model::{HostName, LabelValue, Labels, ProblemKind, VolumeSpec};
use tonic::Status;

use super::volumes::published;
use super::{Controller, volume_id};
use crate::capability::{Access, Capability};
use crate::proto::{
    ControllerPublishVolumeRequest, ControllerPublishVolumeResponse,
    ControllerUnpublishVolumeRequest, ControllerUnpublishVolumeResponse,
};
use crate::status::{found, invalid, is_missing, missing, not_found, status};
use crate::{kubernetes, names};

impl<C: Control> Controller<C> {
    pub(super) async fn controller_publish_volume(
        &self,
        request: ControllerPublishVolumeRequest,
    ) -> Result<ControllerPublishVolumeResponse, Status> {
        let id = volume_id(&request.volume_id)?;
        if request.node_id.is_empty() {
            return Err(missing("node_id"));
        }
        let capability = request.volume_capability.as_ref();
        let capability = capability.ok_or_else(|| missing("volume_capability"))?;
        let capability = Capability::read(capability)?;
        if request.readonly {
            let message = "volumes are not published read-only: ask for the access mode \
                           ReadOnlyMany, or have the pod mount it read-only";
            return Err(Status::invalid_argument(message));
        }
        let volume = self.existing(id, &request.volume_id).await?;
        let host = self.known_host(&request.node_id).await?;
        if capability.is_shared() && !volume.spec().shared {
            let message = "the volume was made for one node at a time, and is not shared";
            return Err(Status::failed_precondition(message));
        }
        let id = *volume.id();
        let _exclusive = self.in_flight.claim(id.uuid())?;
        // What others did before this was their turn is seen only now.
        let volume = self.existing(Some(id), &request.volume_id).await?;
        let labels = labels_for(&volume, &host, &capability)?;
        self.label(&volume, labels).await?;
        let action = VolumeAction::Publish { host: Some(host), node: None };
        let published = self.control.change_volume(id, action, None).await.map_err(status)?.now;
        let target = published.status.as_ref().and_then(|status| status.target.as_ref());
        let context = target.map(|target| {
            let addresses: Vec<_> = target.addresses.iter().map(ToString::to_string).collect();
            [("nqn", target.nqn.to_string()), ("addresses", addresses.join(","))]
        });
        let context = context.into_iter().flatten();
        let publish_context = context.map(|(name, text)| (name.to_owned(), text)).collect();
        Ok(ControllerPublishVolumeResponse { publish_context })
    }

    /// Gives a volume these labels, if it has others.
    async fn label(&self, volume: &model::Volume, labels: Labels) -> Result<(), Status> {
        if labels == volume.spec().labels {
            return Ok(());
        }
        let spec = VolumeSpec { labels, ..volume.spec().clone() };
        let action = VolumeAction::Modify { spec: Box::new(spec) };
        let seen = Some(volume.generation());
        self.control.change_volume(*volume.id(), action, seen).await.map_err(status)?;
        Ok(())
    }

    /// A node that can use volumes: one that has registered as a host. That an engine runs there
    /// is not enough; nothing could be published to it.
    async fn known_host(&self, node_id: &str) -> Result<HostName, Status> {
        let unknown = || not_found("host", node_id);
        let host: HostName = node_id.parse().map_err(|_| unknown())?;
        found(self.control.host(host.clone()).await)?.map(|_| host).ok_or_else(unknown)
    }

    pub(super) async fn controller_unpublish_volume(
        &self,
        request: ControllerUnpublishVolumeRequest,
    ) -> Result<ControllerUnpublishVolumeResponse, Status> {
        let done = ControllerUnpublishVolumeResponse {};
        let Some(id) = volume_id(&request.volume_id)? else { return Ok(done) };
        let host = match request.node_id.as_str() {
            "" => None,
            text => match text.parse::<HostName>() {
                Ok(host) => Some(host),
                // Nothing was ever published to a node that cannot be.
                Err(_) => return Ok(done),
            },
        };
        let _exclusive = self.in_flight.claim(id.uuid())?;
        let action = VolumeAction::Unpublish { host, force: false };
        match self.control.change_volume(id, action, None).await {
            Ok(_) => Ok(done),
            Err(problem) if is_missing(&problem) || problem.kind == ProblemKind::NotPublished => {
                Ok(done)
            }
            Err(problem) => Err(status(problem)),
        }
    }
}

/// The host that writes the file system of a shared volume.
const WRITER: &str = "csi.holdfast.io/writer";

/// What a volume is labelled with before a host gets it.
///
/// A shared volume may be published to several hosts, which is right for block devices and for file
/// systems that all of them only read. A file system that one host writes is damaged by any other,
/// even by one that reads: so the writer is recorded, and alone.
fn labels_for(
    volume: &model::Volume,
    host: &HostName,
    capability: &Capability,
) -> Result<Labels, Status> {
    let mut labels = volume.spec().labels.clone();
    let mut set = |name: &str, value: &str| -> Result<(), Status> {
        labels.insert(name.parse().map_err(invalid)?, value.parse().map_err(invalid)?);
        Ok(())
    };
    // One of a cluster may hold data from now on: see `kubernetes`.
    if volume.spec().labels.contains_key(kubernetes::CLUSTER) {
        set(kubernetes::USED, "true")?;
    }
    if !volume.spec().shared || capability.access == Access::Block {
        return Ok(labels);
    }
    let hosts = published(volume);
    let other = hosts.iter().find(|other| *other != host.as_str());
    let writer = volume.spec().labels.get(WRITER).map(LabelValue::as_str);
    let is_written =
        hosts.iter().any(|it| it != host.as_str() && Some(&*names::short(it)) == writer);
    match other {
        Some(other) if !capability.is_read_only() || is_written => {
            let message = format!(
                "a file system is written from one node alone, and volume {} is published to \
                 {other}: detach it there first",
                volume.id()
            );
            Err(Status::failed_precondition(message))
        }
        _ if capability.is_read_only() => Ok(labels),
        _ => {
            set(WRITER, &names::short(host.as_str()))?;
            Ok(labels)
        }
    }
}
