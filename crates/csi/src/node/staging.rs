//! A volume of this machine: attached, and mounted once for all of its pods.

use std::fs;
use std::path::{Path, PathBuf};

use linux::filesystem::{self, Content, FilesystemKind};
use linux::mounts::{self, MountOptions, MountTable};
use model::VolumeId;
use tonic::Status;

use super::{Attach, Devices, Inner, number_of, path, refused, volume_id};
use crate::capability::{Access, Capability};
use crate::parameters::Context;
use crate::proto::{NodeStageVolumeRequest, NodeStageVolumeResponse, NodeUnstageVolumeResponse};
use crate::status::missing;

/// What is to be staged.
#[derive(Debug)]
pub(super) struct Staging {
    pub(super) volume: VolumeId,
    point: PathBuf,
    capability: Capability,
    context: Context,
}

impl Staging {
    pub(super) fn read(request: NodeStageVolumeRequest) -> Result<Staging, Status> {
        if request.volume_id.is_empty() {
            return Err(missing("volume_id"));
        }
        let point = path("staging_target_path", &request.staging_target_path)?;
        let capability = request.volume_capability.as_ref();
        let capability = capability.ok_or_else(|| missing("volume_capability"))?;
        let capability = Capability::read(capability)?;
        let volume = volume_id(&request.volume_id)?;
        Ok(Staging { volume, point, capability, context: request.volume_context })
    }
}

impl<D: Devices> Inner<D> {
    pub(super) fn stage(&self, staging: &Staging) -> Result<NodeStageVolumeResponse, Status> {
        let read_only = staging.capability.is_read_only();
        let how = Attach { read_only, context: &staging.context };
        let device = self.devices.attach(staging.volume, &how)?;
        let Access::Mount { filesystem, options, .. } = &staging.capability.access else {
            return Ok(NodeStageVolumeResponse {});
        };
        let wanted = kind_of(filesystem.as_deref(), &staging.context)?;
        let mut options = MountOptions::parse(options.iter().map(String::as_str))
            .map_err(Status::invalid_argument)?;
        if read_only {
            options = options.with("ro");
        }
        let kernel = &*self.kernel;
        let number = number_of(kernel, &device)?;
        if let Some(there) = MountTable::read(kernel.tree()).at(&staging.point)
            && there.device == number
        {
            return staged_so(there, &options);
        }
        let kind = self.prepare(&device, wanted, staging)?;
        fs::create_dir_all(&staging.point)
            .map_err(|error| Status::internal(format!("no staging folder: {error}")))?;
        let at = (staging.point.as_path(), kind.name());
        mounts::ensure(kernel, (&device, number), at, &options).map_err(|it| refused(&it))?;
        if !read_only {
            // A volume that was made from a smaller one has room beyond its file system.
            filesystem::grow(kernel, (&device, &staging.point), kind).map_err(|it| refused(&it))?;
        }
        Ok(NodeStageVolumeResponse {})
    }

    /// Makes a device ready to be mounted: formats it if it is truly empty.
    fn prepare(
        &self,
        device: &Path,
        wanted: Option<FilesystemKind>,
        staging: &Staging,
    ) -> Result<FilesystemKind, Status> {
        let kernel = &*self.kernel;
        let content = filesystem::probe(kernel, device).map_err(|it| refused(&it))?;
        match content {
            Content::Filesystem { kind, .. } => {
                if let Some(wanted) = wanted.filter(|wanted| *wanted != kind) {
                    let message = format!(
                        "volume {} holds {} and not {}; name the file system that it has",
                        staging.volume,
                        kind.name(),
                        wanted.name()
                    );
                    return Err(Status::failed_precondition(message));
                }
                if !staging.capability.is_read_only() {
                    filesystem::check(kernel, device, kind).map_err(|it| refused(&it))?;
                }
                Ok(kind)
            }
            Content::Empty if !staging.capability.is_read_only() => {
                let kind = wanted.unwrap_or(FilesystemKind::Ext4);
                let given = staging.context.get("formatOptions").map_or("", String::as_str);
                let given: Vec<&str> = given.split_whitespace().collect();
                filesystem::format(kernel, device, kind, &given).map_err(|it| refused(&it))?;
                Ok(kind)
            }
            other => {
                let message = format!(
                    "volume {} holds {other}, which cannot be mounted; nothing was changed",
                    staging.volume
                );
                Err(Status::failed_precondition(message))
            }
        }
    }

    pub(super) fn unstage(
        &self,
        volume: VolumeId,
        point: &Path,
    ) -> Result<NodeUnstageVolumeResponse, Status> {
        mounts::release(&*self.kernel, point).map_err(|it| refused(&it))?;
        self.devices.detach(volume)?;
        Ok(NodeUnstageVolumeResponse {})
    }
}

fn kind_of(given: Option<&str>, context: &Context) -> Result<Option<FilesystemKind>, Status> {
    let text = given.or_else(|| context.get("fsType").map(String::as_str));
    text.map(|text| text.parse().map_err(Status::invalid_argument)).transpose()
}

/// It is mounted there; the same way, or it is another request.
fn staged_so(
    there: &mounts::Mount,
    options: &MountOptions,
) -> Result<NodeStageVolumeResponse, Status> {
    if there.is_read_only() == options.is_read_only() {
        return Ok(NodeStageVolumeResponse {});
    }
    let mode = if there.is_read_only() { "read-only" } else { "writable" };
    Err(Status::already_exists(format!("the volume is staged there already, {mode}")))
}
