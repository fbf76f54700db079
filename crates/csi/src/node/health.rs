//! How well a volume is, as this machine sees it: whether programs here can use it.

use linux::mounts::{Mount, MountTable};
use model::VolumeId;
use tonic::Status;

use super::{Devices, Inner};
use crate::proto::node_get_storage_health_response::StorageBackendHealth;
use crate::proto::volume_health::VolumeHealthEntry;
use crate::proto::{
    NodeGetStorageHealthResponse, NodeGetVolumeHealthResponse, StorageHealthErrorType,
    VolumeCondition, VolumeHealth, VolumeHealthErrorType,
};

impl<D: Devices> Inner<D> {
    pub(super) fn volume_health(
        &self,
        volume: VolumeId,
    ) -> Result<NodeGetVolumeHealthResponse, Status> {
        let health_statuses = self.issues(volume)?;
        let volume_health = VolumeHealth { volume_id: volume.to_string(), health_statuses };
        Ok(NodeGetVolumeHealthResponse { volume_health: Some(volume_health) })
    }

    /// What versions before 1.13 ask for.
    pub(super) fn condition(&self, volume: VolumeId) -> Result<VolumeCondition, Status> {
        let issues = self.issues(volume)?;
        let messages: Vec<String> = issues.into_iter().map(|it| it.message).collect();
        let abnormal = !messages.is_empty();
        let message = if abnormal { messages.join("; ") } else { "it can be used".to_owned() };
        Ok(VolumeCondition { abnormal, message })
    }

    /// Everything that keeps a volume of this machine from being used.
    fn issues(&self, volume: VolumeId) -> Result<Vec<VolumeHealthEntry>, Status> {
        let device = self.devices.device(volume)?;
        let device = device.ok_or_else(|| {
            Status::not_found(format!("volume {volume} is not attached to this node"))
        })?;
        let mut found = Vec::new();
        let mut add = |reason: &str, message: String| {
            found.push(VolumeHealthEntry {
                status: VolumeHealthErrorType::Inaccessible.into(),
                reason: reason.to_owned(),
                message,
            });
        };
        if let Some(message) = self.devices.trouble(volume)? {
            add("TargetUnreachable", message);
        }
        let Ok(number) = self.kernel.device_number(&device) else {
            add(
                "DeviceGone",
                format!("{} is gone; the volume must be staged again", device.display()),
            );
            return Ok(found);
        };
        let table = MountTable::read(self.kernel.tree());
        if let Some(there) = table.of(number).find(|mount| has_given_up(mount)) {
            let message = format!(
                "the file system at {} went read-only after an error: see dmesg",
                there.point.display()
            );
            add("FilesystemReadOnly", message);
        }
        Ok(found)
    }

    pub(super) fn storage_health(&self) -> NodeGetStorageHealthResponse {
        let trouble = self.devices.backend_trouble().map(|message| StorageBackendHealth {
            status: StorageHealthErrorType::StorageUnreachable.into(),
            reason: "ControlPlaneUnreachable".to_owned(),
            message,
            volume_capability: None,
        });
        NodeGetStorageHealthResponse { backend_health: trouble.into_iter().collect() }
    }
}

/// Whether a file system that was mounted writable takes no more writes. One that was mounted
/// read-only has that in the options of the mount as well.
fn has_given_up(mount: &Mount) -> bool {
    let has = |options: &[String], wanted: &str| options.iter().any(|option| option == wanted);
    has(&mount.options, "rw") && has(&mount.filesystem_options, "ro")
}
