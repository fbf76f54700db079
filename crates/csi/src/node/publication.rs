//! A volume for one pod: bound where its kubelet wants it.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use linux::mounts::{self, DeviceNumber, MountTable};
use model::VolumeId;
use tonic::Status;

use super::{Devices, Inner, number_of, path, refused, volume_id};
use crate::capability::{Access, Capability};
use crate::proto::volume_capability::access_mode::Mode;
use crate::proto::{
    NodePublishVolumeRequest, NodePublishVolumeResponse, NodeUnpublishVolumeResponse,
};
use crate::status::missing;

/// What is to be published.
#[derive(Debug)]
pub(super) struct Publication {
    pub(super) volume: VolumeId,
    staging: PathBuf,
    target: PathBuf,
    capability: Capability,
    read_only: bool,
}

impl Publication {
    pub(super) fn read(request: NodePublishVolumeRequest) -> Result<Publication, Status> {
        if request.volume_id.is_empty() {
            return Err(missing("volume_id"));
        }
        let target = path("target_path", &request.target_path)?;
        let capability = request.volume_capability.as_ref();
        let capability = capability.ok_or_else(|| missing("volume_capability"))?;
        let capability = Capability::read(capability)?;
        if request.staging_target_path.is_empty() {
            return Err(Status::failed_precondition("staging_target_path is missing: stage first"));
        }
        let volume = volume_id(&request.volume_id)?;
        let read_only = request.readonly || capability.is_read_only();
        let staging = PathBuf::from(request.staging_target_path);
        Ok(Publication { volume, staging, target, capability, read_only })
    }
}

impl<D: Devices> Inner<D> {
    pub(super) fn publish(
        &self,
        publication: &Publication,
    ) -> Result<NodePublishVolumeResponse, Status> {
        let device = self.devices.device(publication.volume)?;
        let unstaged = || {
            let message = format!("volume {} is not staged on this node", publication.volume);
            Status::failed_precondition(message)
        };
        let device = device.ok_or_else(unstaged)?;
        let is_block = publication.capability.access == Access::Block;
        if is_block && publication.read_only && !publication.capability.is_read_only() {
            let message = "a block device is read-only by its access mode, for all or for nobody";
            return Err(Status::failed_precondition(message));
        }
        let kernel = &*self.kernel;
        let number = number_of(kernel, &device)?;
        let table = MountTable::read(kernel.tree());
        let source: &Path = if is_block { &device } else { &publication.staging };
        if !is_block {
            let staged = table.at(source).filter(|there| there.device == number);
            staged.ok_or_else(unstaged)?;
        }
        if let Some(there) = table.at(&publication.target) {
            let is_same = if is_block {
                kernel.device_number(&publication.target).ok() == Some(number)
            } else {
                there.device == number
            };
            if is_same && there.is_read_only() == publication.read_only {
                return Ok(NodePublishVolumeResponse {});
            }
            let message = "the target path is in use, by another volume or in another mode";
            return Err(Status::already_exists(message));
        }
        if publication.capability.mode == Mode::SingleNodeSingleWriter {
            self.used_by_nobody(publication, &table, (source, number))?;
        }
        make_target(&publication.target, is_block)
            .map_err(|error| Status::internal(format!("no target path: {error}")))?;
        mounts::ensure_bind(kernel, source, &publication.target, publication.read_only)
            .map_err(|error| refused(&error))?;
        Ok(NodePublishVolumeResponse {})
    }

    /// Refuses a second pod for a volume that only one may use.
    fn used_by_nobody(
        &self,
        publication: &Publication,
        table: &MountTable,
        (source, number): (&Path, DeviceNumber),
    ) -> Result<(), Status> {
        let is_block = publication.capability.access == Access::Block;
        // Only what has the name of the device is looked at: a look at another mount may hang.
        let is_device = |there: &mounts::Mount| {
            Path::new(&there.root).file_name() == source.file_name()
                && self.kernel.device_number(&there.point).ok() == Some(number)
        };
        let is_mounted =
            |there: &mounts::Mount| there.device == number && there.point != publication.staging;
        let uses = |there: &&mounts::Mount| {
            if is_block { is_device(there) } else { is_mounted(there) }
        };
        table.iter().find(uses).map_or(Ok(()), |other| {
            let message = format!(
                "volume {} may be used by one pod, and is published at {}",
                publication.volume,
                other.point.display()
            );
            Err(Status::failed_precondition(message))
        })
    }

    /// Unbinds, and removes what was made for it.
    pub(super) fn unpublish(&self, target: &Path) -> Result<NodeUnpublishVolumeResponse, Status> {
        mounts::release(&*self.kernel, target).map_err(|error| refused(&error))?;
        let removed = match fs::symlink_metadata(target) {
            Ok(found) if found.is_dir() => fs::remove_dir(target),
            Ok(_) => fs::remove_file(target),
            Err(error) => Err(error),
        };
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                let message = format!("{} stays: {error}", target.display());
                Err(Status::internal(message))
            }
            _ => Ok(NodeUnpublishVolumeResponse {}),
        }
    }
}

/// Something to bind at: a file for a device, a folder for a file system.
fn make_target(target: &Path, is_block: bool) -> io::Result<()> {
    if !is_block {
        return fs::create_dir_all(target);
    }
    target.parent().map_or(Ok(()), fs::create_dir_all)?;
    OpenOptions::new().create(true).append(true).open(target).map(|_| ())
}
