//! The first volume as a file system of this machine, while the cluster is up.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use agent::attach::plan::{Choice, Wanted};
use agent::attach::{AttachError, Attacher, Request};
use agent::record::{ControlPlane, RUN, Records};
use linux::LiveKernel;
use model::VolumeId;

use super::bootstrap::HOST;

/// How long I/O waits for a cluster that is not up before it fails, in seconds.
const HOLD: u64 = 600;

/// The first volume, to be attached and detached.
#[derive(Clone)]
pub(super) struct Device {
    volume: VolumeId,
    point: PathBuf,
    server: String,
}

impl Device {
    pub(super) fn new(volume: VolumeId, dir: &Path, server: String) -> Device {
        Device { volume, point: dir.join("mnt"), server }
    }

    fn attacher(&self) -> Attacher {
        let run = ["--run-dir", RUN];
        let words = ["agent", "supervise"].into_iter().chain(run);
        Attacher {
            kernel: Arc::new(LiveKernel::default()),
            records: Records::at(Path::new(RUN)),
            control: ControlPlane { server: self.server.clone(), ca: None, token_file: None },
            supervisor: words.map(str::to_owned).collect(),
            is_root: rustix::process::geteuid().is_root(),
        }
    }

    /// Attaches and mounts it, on a thread that may wait; a line that says where it is, or why it
    /// is not.
    pub(super) async fn attach(&self) -> String {
        let device = self.clone();
        let attached = tokio::task::spawn_blocking(move || {
            let mount = Some(device.point.clone());
            let request = Request {
                volume: device.volume,
                host: HOST.parse().ok(),
                wanted: Wanted { mount, transport: Choice::Auto, ..Wanted::default() },
                hold_seconds: HOLD,
            };
            device.attacher().attach(&request)
        })
        .await;
        match attached {
            Ok(Ok(attached)) => {
                let device = attached.record.device.unwrap_or_default();
                format!("mounted  {} ({})", self.point.display(), device.display())
            }
            Ok(Err(error)) => format!("note     the first volume is not mounted: {error}"),
            Err(error) => format!("note     the first volume is not mounted: {error}"),
        }
    }

    /// Detaches it while its target is there to take what is not written yet.
    pub(super) async fn detach(&self) {
        let device = self.clone();
        let detached =
            tokio::task::spawn_blocking(move || device.attacher().detach(device.volume)).await;
        match detached {
            Ok(Ok(_) | Err(AttachError::NotAttached(_))) => {}
            Ok(Err(error)) => {
                tracing::warn!("{error}; what uses the volume waits until the cluster is up again");
            }
            Err(error) => tracing::warn!("the first volume is not detached: {error}"),
        }
    }
}
