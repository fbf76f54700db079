//! The two resources at the API server.
//!
//! Lists are read from the API server's store, not from its cache: whether a member may be given up
//! depends on what is recorded now. Writes carry the version that was read.

use k8s_openapi::jiff::{Timestamp, Unit};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource as _, ResourceExt as _};

use crate::node_device::{MeshNodeDevice, MeshNodeDeviceSpec, MeshNodeDeviceStatus};
use crate::placement::Drive;
use crate::reconcile::Volume;
use crate::volume::{FINALIZER, MeshVolume};

/// The resources of a cluster.
#[derive(Clone)]
pub struct Cluster {
    volumes: Api<MeshVolume>,
    devices: Api<MeshNodeDevice>,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").finish_non_exhaustive()
    }
}

/// Why a resource could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// There is no configuration.
    #[error("there is no configuration for Kubernetes: run it in a pod, or set KUBECONFIG")]
    Configuration(#[from] kube::config::InferConfigError),
    /// The API server refused, or did not answer.
    #[error("the API server did not do it; are the CRDs of the chart installed, and its roles?")]
    Api(#[from] kube::Error),
    /// Somebody wrote it in between.
    #[error("{0} was changed in between; it is decided again")]
    Conflict(String),
}

fn conflict(name: &str) -> impl Fn(kube::Error) -> ClusterError {
    move |error| match error {
        kube::Error::Api(status) if status.code == 409 => ClusterError::Conflict(name.to_owned()),
        other => ClusterError::Api(other),
    }
}

/// A resource as decisions see it.
pub fn volume_of(resource: &MeshVolume) -> Volume {
    Volume {
        name: resource.name_any(),
        resource_version: resource.resource_version().unwrap_or_default(),
        deleting: resource.meta().deletion_timestamp.is_some(),
        finalizer: resource.finalizers().iter().any(|it| it == FINALIZER),
        spec: resource.spec.clone(),
        status: resource.status.clone().unwrap_or_default(),
    }
}

impl Cluster {
    /// The cluster that this process is configured for.
    pub async fn connect() -> Result<Cluster, ClusterError> {
        let config = kube::Config::infer().await?;
        Ok(Cluster::new(Client::try_from(config)?))
    }

    /// The cluster of a client.
    pub fn new(client: Client) -> Cluster {
        Cluster { volumes: Api::all(client.clone()), devices: Api::all(client) }
    }

    /// All volumes.
    pub async fn volumes(&self) -> Result<Vec<Volume>, ClusterError> {
        // Without a resource version a list is as new as the store.
        let list = self.volumes.list(&ListParams::default()).await?;
        Ok(list.items.iter().map(volume_of).collect())
    }

    /// All drives.
    pub async fn drives(&self) -> Result<Vec<Drive>, ClusterError> {
        let list = self.devices.list(&ListParams::default()).await?;
        let drive =
            |it: MeshNodeDevice| Drive { spec: it.spec, status: it.status.unwrap_or_default() };
        Ok(list.items.into_iter().map(drive).collect())
    }

    /// Makes a volume; one of this name that is there stays.
    pub async fn create(&self, volume: &Volume) -> Result<(), ClusterError> {
        let mut resource = MeshVolume::new(&volume.name, volume.spec.clone());
        resource.finalizers_mut().push(FINALIZER.to_owned());
        match self.volumes.create(&PostParams::default(), &resource).await {
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            made => Ok(made.map(|_| ())?),
        }
    }

    /// Begins to delete a volume; one that is not there is no error.
    pub async fn delete(&self, name: &str) -> Result<(), ClusterError> {
        match self.volumes.delete(name, &kube::api::DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            done => Ok(done.map(|_| ())?),
        }
    }

    /// Writes what has changed, the status before the spec, each only onto what was read.
    pub async fn write(&self, old: &Volume, new: &Volume) -> Result<(), ClusterError> {
        let params = PostParams::default();
        let refused = conflict(&new.name);
        let mut resource = MeshVolume::new(&new.name, new.spec.clone());
        resource.metadata.resource_version = Some(old.resource_version.clone());
        if old.finalizer {
            resource.finalizers_mut().push(FINALIZER.to_owned());
        }
        if old.status != new.status {
            resource.status = Some(new.status.clone());
            let written = self.volumes.replace_status(&new.name, &params, &resource).await;
            let written = written.map_err(&refused)?;
            resource.metadata = written.metadata;
        } else if old.spec != new.spec || old.finalizer != new.finalizer {
            resource.metadata = self.volumes.get_metadata(&new.name).await?.metadata;
            resource.metadata.resource_version = Some(old.resource_version.clone());
        }
        if old.spec != new.spec || old.finalizer != new.finalizer {
            if !new.finalizer {
                resource.finalizers_mut().retain(|it| it != FINALIZER);
            }
            resource.spec = new.spec.clone();
            resource.metadata.managed_fields = None;
            self.volumes.replace(&new.name, &params, &resource).await.map_err(&refused)?;
        }
        Ok(())
    }

    /// Shows a drive of this node; this is its heartbeat as well.
    pub async fn publish(
        &self,
        spec: &MeshNodeDeviceSpec,
        status: &MeshNodeDeviceStatus,
    ) -> Result<(), ClusterError> {
        let name = format!("{}-{}", spec.node_id, spec.device).to_lowercase();
        let mut resource = MeshNodeDevice::new(&name, spec.clone());
        resource.metadata.managed_fields = None;
        let params = PatchParams::apply(&format!("mesh-node-{}", spec.node_id)).force();
        self.devices.patch(&name, &params, &Patch::Apply(&resource)).await?;
        resource.status = Some(status.clone());
        self.devices.patch_status(&name, &params, &Patch::Apply(&resource)).await?;
        Ok(())
    }
}

/// Now, as resources carry it.
pub fn now() -> (u64, String) {
    let now = Timestamp::now();
    let seconds = u64::try_from(now.as_second()).unwrap_or_default();
    let text = now.round(Unit::Second).unwrap_or(now).to_string();
    (seconds, text)
}
