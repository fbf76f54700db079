//! The node role: one cycle at a time, every 10 seconds and whenever it is woken.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use linux::Kernel;
use tokio::sync::{Mutex, Notify};

use crate::cluster::{self, Cluster, ClusterError};
use crate::execute::Executor;
use crate::node_device::{MeshNodeDeviceSpec, MeshNodeDeviceStatus};
use crate::observe::{self, LocalDrive};
use crate::reconcile::{View, Volume, decide};

/// Between two cycles when nothing happens.
pub const CYCLE: Duration = Duration::from_secs(10);
/// Between two cycles while a member is held or something was done.
const SOON: Duration = Duration::from_secs(1);
/// The longest answer of the API server that is waited for.
const PATIENCE: Duration = Duration::from_secs(20);

/// A node of the kernel data path.
#[derive(Debug)]
pub struct Daemon {
    /// Its name in Kubernetes.
    pub node: String,
    /// Where it listens.
    pub address: IpAddr,
    /// Its kernel.
    pub kernel: Arc<dyn Kernel>,
    /// The resources.
    pub cluster: Cluster,
    boot_id: String,
    /// Whoever reads and then changes something holds this: decisions are about what is so.
    turn: Mutex<()>,
    wake: Notify,
    last_cycle: AtomicU64,
}

/// What was read at the beginning of a turn.
pub(crate) struct Sight {
    pub(crate) view: View,
    pub(crate) drives: Vec<LocalDrive>,
}

impl Daemon {
    /// The node that this kernel runs on.
    pub fn new(node: String, address: IpAddr, kernel: Arc<dyn Kernel>, cluster: Cluster) -> Daemon {
        let boot_id = kernel.tree().text("/proc/sys/kernel/random/boot_id").trim().to_owned();
        Daemon {
            node,
            address,
            kernel,
            cluster,
            boot_id,
            turn: Mutex::default(),
            wake: Notify::new(),
            last_cycle: AtomicU64::new(0),
        }
    }

    /// Looks soon: a probe came, or a call has changed something.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// When the last cycle ended that reached the API server, in seconds since 1970.
    pub fn last_cycle(&self) -> u64 {
        self.last_cycle.load(Ordering::Acquire)
    }

    /// Runs until `stop` ends.
    pub async fn run(self: Arc<Self>, stop: impl Future<Output = ()>) {
        let cycles = async {
            loop {
                let pause = match self.cycle().await {
                    Ok(true) => SOON,
                    Ok(false) => CYCLE,
                    Err(error) => {
                        let error = chain(&error);
                        tracing::warn!(error, "the cycle was not finished; it is tried again");
                        SOON
                    }
                };
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    () = self.wake.notified() => {}
                }
            }
        };
        tokio::select! {
            () = cycles => {}
            () = stop => {}
        }
    }

    /// Reads resources, then the kernel.
    pub(crate) async fn look(self: &Arc<Self>) -> Result<Sight, ClusterError> {
        let reads = async { tokio::try_join!(self.cluster.volumes(), self.cluster.drives()) };
        let read = tokio::time::timeout(PATIENCE, reads).await;
        let late = |_| kube::Error::Service("the API server does not answer".into());
        let (volumes, drives) = read.map_err(late)??;
        let (daemon, seen) = (Arc::clone(self), volumes.clone());
        let look = move || {
            let local = observe::drives(&*daemon.kernel);
            let kernel = observe::kernel(&*daemon.kernel, &daemon.node, &seen, &local);
            (local, kernel)
        };
        let looked = tokio::task::spawn_blocking(look).await;
        let broken = |_| kube::Error::Service("the look at the kernel broke off".into());
        let (local, kernel) = looked.map_err(broken)?;
        let (now, _) = cluster::now();
        let (node, boot_id) = (self.node.clone(), self.boot_id.clone());
        let view = View { node, boot_id, now, volumes, drives, kernel };
        Ok(Sight { view, drives: local })
    }

    /// One turn: nobody else of this node changes anything meanwhile.
    pub(crate) async fn turn(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    /// The nine steps once. Whether something was done or is still to be done.
    pub async fn cycle(self: &Arc<Self>) -> Result<bool, ClusterError> {
        let _turn = self.turn().await;
        let sight = self.look().await?;
        let plan = decide(&sight.view);
        let is_busy = !plan.actions.is_empty() || !plan.writes.is_empty();
        self.act(&sight, plan.actions).await;
        for new in &plan.writes {
            let old = sight.view.volumes.iter().find(|it| it.name == new.name);
            let Some(old) = old else { continue };
            match self.cluster.write(old, new).await {
                Ok(()) => tracing::info!(volume = new.name, "recorded"),
                Err(ClusterError::Conflict(_)) => {}
                Err(error) => return Err(error),
            }
        }
        self.publish(&sight).await?;
        self.last_cycle.store(sight.view.now, Ordering::Release);
        Ok(is_busy)
    }

    /// Of one volume, what follows a failure waits for the next cycle.
    pub(crate) async fn act(
        self: &Arc<Self>,
        sight: &Sight,
        actions: Vec<(String, crate::reconcile::Action)>,
    ) {
        let mut failed: Vec<String> = Vec::new();
        for (name, action) in actions {
            if failed.contains(&name) {
                continue;
            }
            let volume = sight.view.volumes.iter().find(|it| it.name == name).cloned();
            let Some(volume) = volume else { continue };
            let (daemon, drives) = (Arc::clone(self), sight.drives.clone());
            let label = format!("{action:?}");
            let work = move || daemon.execute(&volume, &drives, &action);
            let done = tokio::task::spawn_blocking(work).await;
            let error = match done {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(chain(&error)),
                Err(_) => Some("the step broke off".to_owned()),
            };
            if let Some(error) = error {
                tracing::warn!(volume = name, action = label, error, "a step failed");
                failed.push(name);
            } else {
                tracing::info!(volume = name, action = label, "done");
            }
        }
    }

    pub(crate) fn execute(
        &self,
        volume: &Volume,
        drives: &[LocalDrive],
        action: &crate::reconcile::Action,
    ) -> Result<(), crate::execute::ExecuteError> {
        let Daemon { node, kernel, address, .. } = self;
        Executor { kernel: &**kernel, node, volume, drives, address: *address }.run(action)
    }

    /// Step 9: the drives, with the heartbeat.
    async fn publish(&self, sight: &Sight) -> Result<(), ClusterError> {
        let (heartbeat, updated_at) = cluster::now();
        for drive in &sight.drives {
            let spec =
                MeshNodeDeviceSpec { node_id: self.node.clone(), device: drive.name.clone() };
            let mut status = describe(drive, &sight.view);
            status.tcp_address = Some(self.address.to_string());
            status.updated_at = Some(updated_at.clone());
            status.heartbeat = heartbeat;
            self.cluster.publish(&spec, &status).await?;
        }
        Ok(())
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// A drive as other nodes see it.
fn describe(drive: &LocalDrive, view: &View) -> MeshNodeDeviceStatus {
    let free = drive.layout.iter().flat_map(|layout| &layout.free).map(|(_, bytes)| *bytes);
    let (biggest, all) = (free.clone().max().unwrap_or(0), free.sum());
    let of_drive = view.kernel.partitions.iter().filter(|it| it.drive == drive.name);
    let (mut local, mut remote, mut unknown) = (0, 0, 0);
    for partition in of_drive {
        let volume = view.volumes.iter().find(|it| it.spec.request(&partition.uuid).is_some());
        match volume.map(|it| it.status.node_name.as_deref()) {
            None => unknown += 1,
            Some(Some(node)) if node == view.node => local += 1,
            Some(_) => remote += 1,
        }
    }
    let human = |bytes: u64| {
        let gib = bytes >> 30;
        let tenths = ((bytes & ((1 << 30) - 1)) * 10) >> 30;
        format!("{gib}.{tenths}Gi")
    };
    MeshNodeDeviceStatus {
        model: drive.model.clone(),
        serial: drive.serial.clone(),
        local_partitions: local,
        remote_partitions: remote,
        unknown_partitions: unknown,
        multi_queue: drive.queues,
        biggest_usable_free_space: human(biggest),
        biggest_usable_free_bytes: biggest,
        free_bytes: all,
        size: human(drive.bytes),
        sector_size: drive.sector_size,
        unusable: drive.layout.as_ref().err().cloned(),
        ..MeshNodeDeviceStatus::default()
    }
}
