//! Devices as the agent of this machine makes them.

use std::path::PathBuf;
use std::time::Duration;

use agent::attach::plan::{Choice, Wanted};
use agent::attach::{AttachError, Attacher, Request};
use agent::record::Transport;
use model::{HostName, VolumeId};
use tonic::Status;

use super::{Attach, Devices};

/// Devices by the agent of this machine.
pub struct AgentDevices {
    /// This machine as a place for volumes.
    pub attacher: Attacher,
    /// Its name.
    pub host: HostName,
    /// How long I/O waits for a target that is away before it fails.
    pub hold: Duration,
}

impl Devices for AgentDevices {
    fn attach(&self, volume: VolumeId, how: &Attach<'_>) -> Result<PathBuf, Status> {
        let transport = match how.context.get("transport").map(String::as_str) {
            Some("nvme") => Choice::Only(Transport::Nvme),
            Some("fuse") => Choice::Only(Transport::Fuse),
            _ => Choice::Auto,
        };
        let wanted = Wanted { mount: None, filesystem: None, read_only: how.read_only, transport };
        let (host, hold_seconds) = (Some(self.host.clone()), self.hold.as_secs());
        let request = Request { volume, host, wanted, hold_seconds };
        let attached = self.attacher.attach(&request).map_err(|error| status(&error))?;
        let missing = || Status::unavailable("the volume has no device yet; try again");
        attached.record.device.ok_or_else(missing)
    }

    fn detach(&self, volume: VolumeId) -> Result<(), Status> {
        match self.attacher.detach(volume) {
            Ok(None) | Err(AttachError::NotAttached(_)) => Ok(()),
            Ok(Some(untold)) => {
                tracing::warn!(%volume, error = %untold, "the control plane was not told");
                Ok(())
            }
            Err(error) => Err(status(&error)),
        }
    }

    fn device(&self, volume: VolumeId) -> Result<Option<PathBuf>, Status> {
        let record = self.attacher.records.read(volume).map_err(|error| {
            Status::internal(format!("the record of volume {volume} cannot be read: {error}"))
        })?;
        Ok(record.and_then(|record| record.device))
    }
}

/// What an attachment failed with, as the kubelet reads it.
fn status(error: &AttachError) -> Status {
    let message = error.to_string();
    match error {
        AttachError::NoVolume(_) => Status::not_found(message),
        AttachError::Refused(_)
        | AttachError::Elsewhere { .. }
        | AttachError::DeviceBusy { .. }
        | AttachError::NoName
        | AttachError::Invalid(_) => Status::failed_precondition(message),
        AttachError::Busy(_) => Status::aborted(message),
        AttachError::NotServed(_) | AttachError::Control(_) | AttachError::Client(_) => {
            Status::unavailable(message)
        }
        _ => Status::internal(message),
    }
}
