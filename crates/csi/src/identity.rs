//! Who this driver is, what it can do, and whether it can do it now.

use std::sync::Arc;
use std::time::Duration;

use api::rest::Control;
use tonic::{Request, Response, Status};

use crate::proto::identity_server::Identity as Service;
use crate::proto::plugin_capability::{self, service, volume_expansion};
use crate::proto::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest,
    GetPluginInfoResponse, PluginCapability, ProbeRequest, ProbeResponse,
};

/// The name that classes and claims use for this driver.
pub const DRIVER_NAME: &str = "csi.holdfast.io";

/// How long a probe waits for the control plane: less than whoever probes waits for it.
const PROBE_PATIENCE: Duration = Duration::from_secs(2);

/// The identity service.
#[derive(Debug)]
pub struct Identity<C> {
    control: Arc<C>,
}

impl<C: Control> Identity<C> {
    /// The identity of a driver that works with this control plane.
    pub fn new(control: Arc<C>) -> Identity<C> {
        Identity { control }
    }
}

#[tonic::async_trait]
impl<C: Control> Service for Identity<C> {
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
        let services = [
            service::Type::ControllerService,
            service::Type::VolumeAccessibilityConstraints,
            service::Type::GroupControllerService,
            service::Type::SnapshotMetadataService,
        ];
        let services = services.map(|one| Type::Service(Service { r#type: one.into() }));
        let online = VolumeExpansion { r#type: volume_expansion::Type::Online.into() };
        let all = services.into_iter().chain([Type::VolumeExpansion(online)]);
        let capabilities = all.map(|one| PluginCapability { r#type: Some(one) }).collect();
        Ok(Response::new(GetPluginCapabilitiesResponse { capabilities }))
    }

    /// Ready when a control plane that leads answers. Nothing is gained by restarting the driver
    /// while none does, so that is no error.
    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        let asked = tokio::time::timeout(PROBE_PATIENCE, self.control.ready()).await;
        let ready = match asked {
            Ok(Ok(_)) => true,
            Ok(Err(problem)) => {
                tracing::warn!(%problem, "the control plane does not answer; volumes wait for it");
                false
            }
            Err(_) => {
                tracing::warn!("the control plane hangs; volumes wait for it");
                false
            }
        };
        Ok(Response::new(ProbeResponse { ready: Some(ready) }))
    }
}
