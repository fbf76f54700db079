//! Registration with the kubelet: it finds our socket, asks who we are, and says how it went.

use std::path::Path;

use tonic::{Request, Response, Status};

use crate::DRIVER_NAME;
use crate::proto::pluginregistration::registration_server::Registration as Service;
use crate::proto::pluginregistration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};

/// The registration service.
#[derive(Debug)]
pub(crate) struct Registration {
    endpoint: String,
}

impl Registration {
    /// The registration of a driver that listens there.
    pub(crate) fn new(endpoint: &Path) -> Registration {
        Registration { endpoint: endpoint.display().to_string() }
    }
}

#[tonic::async_trait]
impl Service for Registration {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "CSIPlugin".to_owned(),
            name: DRIVER_NAME.to_owned(),
            endpoint: self.endpoint.clone(),
            supported_versions: vec!["1.0.0".to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        if status.plugin_registered {
            tracing::info!("registered with the kubelet");
        } else {
            tracing::error!(error = status.error, "the kubelet refused this driver");
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
