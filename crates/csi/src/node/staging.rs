//! A volume of this machine: attached, and mounted once for all of its pods.

use std::fs;
use std::path::{Path, PathBuf};

use linux::filesystem::{self, Content, FilesystemKind};
use linux::mounts::{self, DeviceNumber, MountOptions, MountTable};
use model::VolumeId;
use tonic::Status;

use super::{Attach, Devices, Inner, number_of, path, refused, volume_id};
use crate::capability::{Access, Capability};
use crate::parameters::{CLONE_FS_ID, Context, IS_CLONE};
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
        let table = MountTable::read(kernel.tree());
        let there = table.at(&staging.point).filter(|there| there.device == number);
        let is_new = there.is_none();
        let kind = if let Some(there) = there {
            staged_so(there, &options)?
        } else {
            let kind = self.prepare((&device, number), wanted, staging)?;
            self.mount((&device, number), staging, (kind, options))?;
            Some(kind)
        };
        if let Some(kind) = kind.filter(|_| !read_only) {
            // A volume that was made from a smaller one has room beyond its file system. Also when
            // it is mounted already: the call that did so may have ended before this.
            let grown = filesystem::grow(kernel, (&device, &staging.point), kind);
            if let Err(error) = &grown
                && is_new
            {
                self.undo(staging, error);
            }
            grown.map_err(|it| refused(&it))?;
        }
        Ok(NodeStageVolumeResponse {})
    }

    /// Unmounts what was mounted for a call that failed: the kubelet takes a failure for the end of
    /// it, and lets the volume be detached and deleted under a mount that it does not know of.
    fn undo(&self, staging: &Staging, failed: &linux::SystemError) {
        if let Err(error) = mounts::release(&*self.kernel, &staging.point) {
            let volume = staging.volume;
            tracing::error!(%volume, %failed, %error, "a volume that is not staged stays mounted");
        }
    }

    fn mount(
        &self,
        device: (&Path, DeviceNumber),
        staging: &Staging,
        (kind, mut options): (FilesystemKind, MountOptions),
    ) -> Result<(), Status> {
        if kind == FilesystemKind::Xfs {
            // Copies have the uuid of their source, and XFS mounts a uuid once unless told so.
            options = options.with("nouuid");
        }
        fs::create_dir_all(&staging.point)
            .map_err(|error| Status::internal(format!("no staging folder: {error}")))?;
        let at = (staging.point.as_path(), kind.name());
        let mounted = mounts::ensure(&*self.kernel, device, at, &options);
        mounted.map(|_| ()).map_err(|error| {
            if !options.is_read_only() {
                return refused(&error);
            }
            let message = format!(
                "{error}; if its file system was in use when the volume was copied, its log must \
                 be replayed once: mount the volume writable first, with ReadWriteOnce"
            );
            Status::failed_precondition(message)
        })
    }

    /// Makes a device ready to be mounted: formats it if it is truly empty.
    fn prepare(
        &self,
        (device, number): (&Path, DeviceNumber),
        wanted: Option<FilesystemKind>,
        staging: &Staging,
    ) -> Result<FilesystemKind, Status> {
        let kernel = &*self.kernel;
        let content = filesystem::probe(kernel, device).map_err(|it| refused(&it))?;
        match content {
            Content::Filesystem { kind, uuid } => {
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
                self.identify((device, number), (kind, &uuid), staging)?;
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

    /// Gives the file system of a copy a uuid of its own, where that is wanted or needed.
    fn identify(
        &self,
        device: (&Path, DeviceNumber),
        (kind, uuid): (FilesystemKind, &str),
        staging: &Staging,
    ) -> Result<(), Status> {
        let says = |name: &str| staging.context.get(name).is_some_and(|text| text == "true");
        // Of two btrfs with one uuid, the kernel takes whichever it saw last.
        let is_needed = kind == FilesystemKind::Btrfs;
        let own = staging.volume.to_string();
        if !says(IS_CLONE) || !(is_needed || says(CLONE_FS_ID)) || uuid == own {
            return Ok(());
        }
        if staging.capability.is_read_only() {
            if is_needed {
                let message = "a copy of btrfs needs a uuid of its own before it is read-only: \
                               mount the volume writable first, with ReadWriteOnce";
                return Err(Status::failed_precondition(message));
            }
            return Ok(());
        }
        let scratch = scratch(&staging.point);
        let failed =
            |error: std::io::Error| Status::internal(format!("no scratch folder: {error}"));
        // One that an interrupted call left is ours as well.
        mounts::release(&*self.kernel, &scratch).map_err(|it| refused(&it))?;
        fs::create_dir_all(&scratch).map_err(failed)?;
        filesystem::set_uuid(&*self.kernel, device, (kind, &own), &scratch)
            .map_err(|it| refused(&it))?;
        fs::remove_dir(&scratch).map_err(failed)
    }

    pub(super) fn unstage(
        &self,
        volume: VolumeId,
        point: &Path,
    ) -> Result<NodeUnstageVolumeResponse, Status> {
        let scratch = scratch(point);
        for mounted in [scratch.as_path(), point] {
            mounts::release(&*self.kernel, mounted).map_err(|it| refused(&it))?;
        }
        // It is there only if a call was interrupted.
        let _ = fs::remove_dir(&scratch);
        self.devices.detach(volume)?;
        Ok(NodeUnstageVolumeResponse {})
    }
}

/// Where a copy is mounted for a moment, beside its staging path.
fn scratch(point: &Path) -> PathBuf {
    let mut path = point.as_os_str().to_owned();
    path.push(".new-uuid");
    PathBuf::from(path)
}

fn kind_of(given: Option<&str>, context: &Context) -> Result<Option<FilesystemKind>, Status> {
    let text = given.or_else(|| context.get("fsType").map(String::as_str));
    text.map(|text| text.parse().map_err(Status::invalid_argument)).transpose()
}

/// It is mounted there, with this file system; the same way, or it is another request.
fn staged_so(
    there: &mounts::Mount,
    options: &MountOptions,
) -> Result<Option<FilesystemKind>, Status> {
    if there.is_read_only() == options.is_read_only() {
        return Ok(there.filesystem.parse().ok());
    }
    let mode = if there.is_read_only() { "read-only" } else { "writable" };
    Err(Status::already_exists(format!("the volume is staged there already, {mode}")))
}
