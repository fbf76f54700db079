//! Volumes for nodes: who may connect to a volume.

use api::rest::{Control, VolumeWish};
use model::{HostName, Kind, NodeName};
use tonic::Status;

use super::{Controller, volume_id};
use crate::capability::Capability;
use crate::proto::{
    ControllerPublishVolumeRequest, ControllerPublishVolumeResponse,
    ControllerUnpublishVolumeRequest, ControllerUnpublishVolumeResponse,
};
use crate::status::{found, is_missing, missing, not_found, status};

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
        let volume = self.existing(id, &request.volume_id).await?;
        let host = self.known_host(&request.node_id).await?;
        if capability.is_shared() && !volume.spec().shared {
            let message = "the volume was made for one node at a time, and is not shared";
            return Err(Status::failed_precondition(message));
        }
        let id = *volume.id();
        let _exclusive = self.in_flight.claim(id.uuid())?;
        let wish = VolumeWish::Publish { host: Some(host), node: None };
        let published = self.control.change_volume(id, wish, None).await.map_err(status)?.now;
        let target = published.status.as_ref().and_then(|status| status.target.as_ref());
        let context = target.map(|target| {
            let addresses: Vec<_> = target.addresses.iter().map(ToString::to_string).collect();
            [("nqn", target.nqn.to_string()), ("addresses", addresses.join(","))]
        });
        let context = context.into_iter().flatten();
        let publish_context = context.map(|(name, text)| (name.to_owned(), text)).collect();
        Ok(ControllerPublishVolumeResponse { publish_context })
    }

    /// A node that can use volumes: one whose agent, or at least whose engine, has registered.
    async fn known_host(&self, node_id: &str) -> Result<HostName, Status> {
        let unknown = || not_found("node", node_id);
        let host: HostName = node_id.parse().map_err(|_| unknown())?;
        if found(self.control.host(host.clone()).await)?.is_some() {
            return Ok(host);
        }
        let node: NodeName = node_id.parse().map_err(|_| unknown())?;
        found(self.control.node(node).await)?.map(|_| host).ok_or_else(unknown)
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
        let wish = VolumeWish::Unpublish { host, force: false };
        match self.control.change_volume(id, wish, None).await {
            Ok(_) => Ok(done),
            Err(problem) if is_missing(&problem) || problem.kind == Kind::NotPublished => Ok(done),
            Err(problem) => Err(status(problem)),
        }
    }
}
