//! The Kubernetes cluster that this driver serves.

use std::path::Path;

use k8s_openapi::api::core::v1::Namespace;
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use kube::{Api, Client};
use model::LabelValue;

/// Why the cluster cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// There is no way to it.
    #[error(
        "no API server is known: run in a pod with a service account, name a --kubeconfig, or turn \
         off what needs one"
    )]
    NoConfig(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// It did not answer, or refused.
    #[error("the API server cannot be asked for the namespace kube-system")]
    NoAnswer(#[source] Box<kube::Error>),
    /// It has no identity.
    #[error("the namespace kube-system has no uid that could name the cluster")]
    NoIdentity,
}

/// A cluster, by its API server.
#[derive(Clone)]
pub struct Cluster {
    pub(super) client: Client,
}

impl Cluster {
    /// The cluster of this pod, or the one that a file names.
    pub async fn connect(kubeconfig: Option<&Path>) -> Result<Cluster, ConnectError> {
        fn failed<E: std::error::Error + Send + Sync + 'static>(error: E) -> ConnectError {
            ConnectError::NoConfig(Box::new(error))
        }
        let config = match kubeconfig {
            None => Config::incluster().map_err(failed)?,
            Some(path) => {
                let file = Kubeconfig::read_from(path).map_err(failed)?;
                let options = KubeConfigOptions::default();
                Config::from_custom_kubeconfig(file, &options).await.map_err(failed)?
            }
        };
        Ok(Cluster { client: Client::try_from(config).map_err(failed)? })
    }

    /// What tells this cluster from all others: the uid of its first namespace.
    pub async fn identity(&self) -> Result<LabelValue, ConnectError> {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let found = namespaces.get_metadata("kube-system").await;
        let found = found.map_err(|error| ConnectError::NoAnswer(Box::new(error)))?;
        let uid = found.metadata.uid.ok_or(ConnectError::NoIdentity)?;
        uid.parse().map_err(|_| ConnectError::NoIdentity)
    }
}
