//! A volume that has grown: its file system follows.

use std::path::Path;

use linux::filesystem;
use linux::mounts::MountTable;
use model::VolumeId;
use tonic::Status;

use super::usage::{Visible, signed};
use super::{Devices, Inner, refused};
use crate::proto::NodeExpandVolumeResponse;

impl<D: Devices> Inner<D> {
    pub(super) fn expand(
        &self,
        volume: VolumeId,
        at: &Path,
        wanted: i64,
    ) -> Result<NodeExpandVolumeResponse, Status> {
        let kernel = &*self.kernel;
        let (visible, device) = self.visible(volume, at)?;
        let bytes = kernel
            .device_size(&device)
            .map_err(|error| Status::internal(format!("{}: {error}", device.display())))?;
        if signed(bytes) < wanted {
            let message = format!(
                "{} has {bytes} bytes yet, and {wanted} are wanted; try again",
                device.display()
            );
            return Err(Status::unavailable(message));
        }
        if let Visible::Mounted = visible {
            let table = MountTable::read(kernel.tree());
            let kind = table.at(at).and_then(|there| there.filesystem.parse().ok());
            let unknown = || Status::failed_precondition("its file system cannot be grown");
            let kind = kind.ok_or_else(unknown)?;
            filesystem::grow(kernel, (&device, at), kind).map_err(|error| refused(&error))?;
        }
        Ok(NodeExpandVolumeResponse { capacity_bytes: signed(bytes) })
    }
}
