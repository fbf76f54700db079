//! Devices as the agent of this machine makes them.

use std::path::PathBuf;
use std::time::Duration;

use agent::attach::plan::{Choice, Wanted};
use agent::attach::{AttachError, Attacher, Request};
use agent::record::Transport;
use api::rest::Control as _;
use model::{HostName, VolumeId};
use tonic::Status;

use super::{Attach, Devices};

/// How long the control plane may take to say that it is there.
const PATIENCE: Duration = Duration::from_secs(3);

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
        // Checked when the class was read; one that came otherwise is not guessed at.
        let hold_seconds = match how.context.get("nvmeCtrlLossTmo") {
            None => self.hold.as_secs(),
            Some(text) => text.parse().map_err(|_| {
                Status::invalid_argument(format!(
                    "nvmeCtrlLossTmo {text:?} is no number of seconds"
                ))
            })?,
        };
        let host = Some(self.host.clone());
        let request = Request { volume, host, wanted, hold_seconds };
        let attached = self.attacher.attach_published(&request).map_err(|error| status(&error))?;
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
        self.attacher.device(volume).map_err(|error| status(&error))
    }

    fn trouble(&self, volume: VolumeId) -> Result<Option<String>, Status> {
        let records = &self.attacher.records;
        let record = records.read(volume).map_err(|error| {
            Status::internal(format!("the record of volume {volume} cannot be read: {error}"))
        })?;
        // The kernel follows its own paths; what it gave up, it has no device of.
        if record.is_none_or(|record| record.transport != Transport::Fuse) {
            return Ok(None);
        }
        if !records.is_alive(volume) {
            return Ok(Some("the process that serves the volume has ended".to_owned()));
        }
        let is_usable = records.status(volume).is_none_or(|status| status.usable);
        let waits = "no path to the target of the volume works; I/O waits for one";
        Ok((!is_usable).then(|| waits.to_owned()))
    }

    fn backend_trouble(&self) -> Option<String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.ok()?;
        let control = match self.attacher.control.client(PATIENCE) {
            Ok(control) => control,
            Err(error) => return Some(error.to_string()),
        };
        let answered = runtime.block_on(control.ready());
        answered.err().map(|problem| format!("the control plane does not answer: {problem}"))
    }
}

/// What an attachment failed with, as the kubelet reads it.
fn status(error: &AttachError) -> Status {
    let message = error.to_string();
    match error {
        AttachError::NoVolume(_) => Status::not_found(message),
        AttachError::Refused(_)
        | AttachError::Elsewhere { .. }
        | AttachError::NotPublished { .. }
        | AttachError::NoIdentity
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
