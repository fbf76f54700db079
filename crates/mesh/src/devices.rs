//! Volumes as devices of this node, for the CSI node service.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use csi::node::{Attach, Devices};
use model::VolumeId;
use tokio::runtime::Handle;
use tonic::Status;

use crate::cluster::{self, ClusterError};
use crate::daemon::Daemon;
use crate::observe;
use crate::reconcile::{Action, MemberState, Volume, claim, release};

/// How long one call waits for the array before the kubelet must ask again.
const PATIENCE: Duration = Duration::from_mins(1);
/// Between two looks meanwhile.
const LOOK: Duration = Duration::from_millis(500);
/// A node that has not reached the API server for so long says so.
const SILENCE: u64 = 60;

/// Devices by the daemon of this node.
#[derive(Debug)]
pub struct MeshDevices {
    /// The daemon.
    pub daemon: Arc<Daemon>,
    /// Where its asynchronous work runs.
    pub runtime: Handle,
}

fn unavailable(error: &ClusterError) -> Status {
    Status::unavailable(error.to_string())
}

fn find(volumes: &[Volume], id: VolumeId) -> Option<&Volume> {
    let id = id.to_string();
    volumes.iter().find(|volume| volume.spec.volume_id == id)
}

impl MeshDevices {
    /// Claims the volume, or looks whether its array is complete.
    async fn attach_step(&self, id: VolumeId) -> Result<Result<PathBuf, String>, Status> {
        let _turn = self.daemon.turn().await;
        let sight = self.daemon.look().await.map_err(|error| unavailable(&error))?;
        let view = &sight.view;
        let volume = find(&view.volumes, id)
            .ok_or_else(|| Status::not_found(format!("there is no volume {id}")))?;
        let claimed = claim(view, volume)
            .map_err(|refused| Status::failed_precondition(refused.to_string()))?;
        if let Some(claimed) = claimed {
            return match self.daemon.cluster.write(volume, &claimed).await {
                Ok(()) | Err(ClusterError::Conflict(_)) => Ok(Err("it was just claimed".into())),
                Err(error) => Err(unavailable(&error)),
            };
        }
        let status = &volume.status;
        let waits = if status.message.is_empty() { "its array starts" } else { &status.message };
        let array = view.kernel.array(&volume.name);
        let Some(array) = array.filter(|array| array.epoch == Some(status.epoch)) else {
            return Ok(Err(waits.to_owned()));
        };
        // Every member that is recorded is in the array: the array has every acknowledged write.
        let is_whole = status.in_sync.iter().all(|uuid| {
            array.member(uuid).is_some_and(|member| member.state == MemberState::InSync)
        });
        if status.in_sync.is_empty() || !is_whole {
            return Ok(Err("its members are being recorded".into()));
        }
        let found = observe::md_array(&*self.daemon.kernel, volume);
        Ok(found.map(|array| array.path()).ok_or_else(|| waits.to_owned()))
    }

    async fn detach_now(&self, id: VolumeId) -> Result<(), Status> {
        let _turn = self.daemon.turn().await;
        let sight = self.daemon.look().await.map_err(|error| unavailable(&error))?;
        let Some(volume) = find(&sight.view.volumes, id) else { return Ok(()) };
        if volume.status.node_name.as_deref() != Some(self.daemon.node.as_str()) {
            return Ok(());
        }
        let (daemon, stopped) = (Arc::clone(&self.daemon), volume.clone());
        let drives = sight.drives.clone();
        let stop = move || {
            // First as it should be: everything is written out. Then the legs go.
            if let Some(array) = observe::md_array(&*daemon.kernel, &stopped) {
                linux::md::stop(&*daemon.kernel, &array.path()).map_err(|it| it.to_string())?;
            }
            let action = Action::StopArray { volume: stopped.name.clone() };
            daemon.execute(&stopped, &drives, &action).map_err(|error| error.to_string())
        };
        let done = tokio::task::spawn_blocking(stop).await;
        let done = done.map_err(|_| Status::internal("stopping the array broke off"))?;
        done.map_err(Status::internal)?;
        let sight = self.daemon.look().await.map_err(|error| unavailable(&error))?;
        let Some(volume) = find(&sight.view.volumes, id) else { return Ok(()) };
        if let Some(released) = release(&sight.view, volume) {
            let written = self.daemon.cluster.write(volume, &released).await;
            written.map_err(|error| unavailable(&error))?;
        }
        self.daemon.wake();
        Ok(())
    }

    fn seen(&self, id: VolumeId) -> Result<Option<Volume>, Status> {
        let volumes = self.runtime.block_on(self.daemon.cluster.volumes());
        let volumes = volumes.map_err(|error| unavailable(&error))?;
        Ok(find(&volumes, id).cloned())
    }
}

impl Devices for MeshDevices {
    fn attach(&self, id: VolumeId, _: &Attach<'_>) -> Result<PathBuf, Status> {
        let until = Instant::now() + PATIENCE;
        loop {
            let step = self.runtime.block_on(self.attach_step(id))?;
            self.daemon.wake();
            match step {
                Ok(device) => return Ok(device),
                Err(waits) if Instant::now() >= until => {
                    return Err(Status::unavailable(format!("volume {id}: {waits}; try again")));
                }
                Err(_) => std::thread::sleep(LOOK),
            }
        }
    }

    fn detach(&self, id: VolumeId) -> Result<(), Status> {
        self.runtime.block_on(self.detach_now(id))
    }

    fn device(&self, id: VolumeId) -> Result<Option<PathBuf>, Status> {
        let Some(volume) = self.seen(id)? else { return Ok(None) };
        Ok(observe::md_array(&*self.daemon.kernel, &volume).map(|array| array.path()))
    }

    fn trouble(&self, id: VolumeId) -> Result<Option<String>, Status> {
        let Some(volume) = self.seen(id)? else { return Ok(None) };
        let status = volume.status;
        if !status.message.is_empty() {
            return Ok(Some(status.message));
        }
        let text = format!("{} of its members are in sync", status.ready);
        Ok((status.degraded > 0).then_some(text))
    }

    fn backend_trouble(&self) -> Option<String> {
        let (now, _) = cluster::now();
        let silent = now.saturating_sub(self.daemon.last_cycle());
        (silent > SILENCE).then(|| format!("the API server was not reached for {silent} seconds"))
    }
}
