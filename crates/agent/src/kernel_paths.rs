//! The kernel's NVMe/TCP paths of attached volumes: they follow a target that moves.
//!
//! ```text
//!   no path works ──► ask where the target is ──► connect there ──► live and optimised
//!                              ▲                        │                   │
//!                              └──── not in time ───────┘         drop all other paths
//! ```
//!
//! One task for each volume. It looks at what the kernel shows, decides ([`plan`]), and does one
//! thing; so it needs no memory, and an agent that starts anew goes on where another one ended.
//!
//! Invariants:
//! - The last path is not dropped while the publication stands: the device would go with it.
//! - Nothing is connected that is not recorded as attached, and nothing is dropped but what it was
//!   decided on: [`Records::lock`] is held meanwhile.
//! - Where the target is, the control plane has said in this run; a record may be older.
//!
//! Not here: paths of workers (`follow`), what is told to the control plane (`path_watch`).

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use linux::nvme::{self, AnaState, Controller, ControllerState, PathAddress, Subsystem};
use linux::{Kernel, Tree};
use model::{PathState, PathStatus, VolumeId};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::attach::connection;
use crate::follow::{CERTAIN, Retry, Told, ask};
use crate::record::{Attachment, Records, Transport};

/// How often the paths of a volume are looked at.
const LOOK: Duration = Duration::from_millis(100);
/// How often it is looked for volumes that were attached.
const LOOK_FOR_NEW: Duration = Duration::from_millis(500);
/// How long an address may take to answer, before the kernel, which waits for minutes, is asked.
const REACH: Duration = Duration::from_secs(2);
/// How long a path may take to become live before another address is tried.
const BECOME_LIVE: Duration = Duration::from_secs(2);

/// What is to be done about the paths of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathStep {
    /// Nothing: one path is there and works.
    Done,
    /// Nothing yet: a path is being connected, by the kernel.
    Wait,
    /// Connect there.
    Connect(SocketAddr),
    /// Drop these.
    Disconnect(Vec<FormerPath>),
}

/// A controller to be dropped: its name, and where it led when that was decided. The kernel gives
/// a name to another controller once it is free.
pub type FormerPath = (String, Option<PathAddress>);

/// What makes one path lead to where the target is, and none elsewhere. `attempt` counts the
/// addresses that were tried in vain. A subsystem without any path has no device to be kept.
pub fn plan(ours: &[&Controller], target: &[SocketAddr], attempt: usize) -> PathStep {
    let leads_there = |it: &&&Controller| !is_going(it) && target.iter().any(|to| leads_to(it, to));
    if ours.is_empty() || target.is_empty() {
        return PathStep::Wait;
    }
    if let Some(used) = ours.iter().filter(leads_there).find(|it| is_optimised(it)) {
        let others = ours.iter().filter(|it| it.name != used.name && !is_going(it));
        let others: Vec<FormerPath> = others.map(|it| former(it)).collect();
        return if others.is_empty() { PathStep::Done } else { PathStep::Disconnect(others) };
    }
    if is_reached(ours, target) {
        // It is the target that is not ready: another address of it would not be either.
        return PathStep::Wait;
    }
    let at = attempt.checked_rem(target.len()).unwrap_or(0);
    match target.get(at) {
        Some(to) if !ours.iter().any(|it| !is_going(it) && leads_to(it, to)) => {
            PathStep::Connect(*to)
        }
        _ => PathStep::Wait,
    }
}

fn former(controller: &Controller) -> FormerPath {
    (controller.name.clone(), controller.address)
}

fn leads_to(controller: &Controller, to: &SocketAddr) -> bool {
    controller.address.is_some_and(|it| SocketAddr::new(it.address, it.port) == *to)
}

/// Whether a path to the target is live, be it the best one or not.
fn is_reached(ours: &[&Controller], target: &[SocketAddr]) -> bool {
    let mut live = ours.iter().filter(|it| it.state == ControllerState::Live);
    live.any(|it| target.iter().any(|to| leads_to(it, to)))
}

fn is_going(controller: &Controller) -> bool {
    matches!(controller.state, ControllerState::Deleting | ControllerState::Dead)
}

/// Whether it is live and the best path to its namespace.
fn is_optimised(controller: &Controller) -> bool {
    let best = |ana| matches!(ana, None | Some(AnaState::Optimized));
    let mut paths = controller.paths.iter();
    paths.any(|path| controller.serves(path) && best(path.ana))
}

/// The controllers by which this machine uses a volume as it is recorded.
fn ours<'a>(found: &'a Subsystem, record: &Attachment) -> Vec<&'a Controller> {
    let is_ours = |it: &&Controller| it.host_nqn.as_ref().is_none_or(|it| *it == record.host_nqn);
    found.controllers.iter().filter(is_ours).collect()
}

/// The paths of a volume that the kernel has.
pub fn observe(tree: &Tree, record: &Attachment) -> Vec<PathStatus> {
    let Some(found) = nvme::subsystem(tree, &record.subsystem) else { return Vec::new() };
    let status = |controller: &&Controller| {
        let at = controller.address?;
        let state = match controller.state {
            _ if is_going(controller) => PathState::Deleting,
            _ if is_optimised(controller) => PathState::Live,
            _ => PathState::Connecting,
        };
        Some(PathStatus { address: SocketAddr::new(at.address, at.port), state })
    };
    ours(&found, record).iter().filter_map(status).collect()
}

/// Lets the paths of all volumes that are attached by the kernel follow their targets, without end.
pub async fn run(kernel: Arc<dyn Kernel>, records: &Records) {
    let mut tasks: BTreeMap<VolumeId, JoinHandle<()>> = BTreeMap::new();
    loop {
        tasks.retain(|_, task| !task.is_finished());
        let attached = records.all().unwrap_or_default();
        let by_kernel = attached.into_iter().filter(|it| it.transport == Transport::Nvme);
        for record in by_kernel.filter(|it| it.device.is_some()) {
            tasks.entry(record.volume).or_insert_with(|| {
                let follower = KernelFollower::new(Arc::clone(&kernel), records.clone(), record);
                tokio::spawn(follower.run())
            });
        }
        tokio::time::sleep(LOOK_FOR_NEW).await;
    }
}

/// Follows the target of one volume.
struct KernelFollower {
    kernel: Arc<dyn Kernel>,
    records: Records,
    record: Attachment,
    /// Where the target is; nothing before the control plane has said so.
    target: Vec<SocketAddr>,
    retry: Retry,
    ask_at: Instant,
    /// Addresses that were tried in vain, and since when this one is tried.
    attempt: usize,
    tried: Option<Instant>,
    /// Since when the control plane says that the publication is over.
    denied: Option<Instant>,
}

impl KernelFollower {
    fn new(kernel: Arc<dyn Kernel>, records: Records, record: Attachment) -> KernelFollower {
        KernelFollower {
            kernel,
            records,
            record,
            target: Vec::new(),
            retry: Retry::default(),
            ask_at: Instant::now(),
            attempt: 0,
            tried: None,
            denied: None,
        }
    }

    /// Runs until the volume is detached.
    async fn run(mut self) {
        while self.is_attached() {
            self.look().await;
            tokio::time::sleep(LOOK).await;
        }
    }

    fn is_attached(&self) -> bool {
        let same =
            |it: &Attachment| it.host_nqn == self.record.host_nqn && it.since == self.record.since;
        matches!(self.records.read(self.record.volume), Ok(Some(now)) if same(&now))
    }

    async fn look(&mut self) {
        let step = self.step();
        if step == PathStep::Done {
            (self.attempt, self.tried, self.denied) = (0, None, None);
            self.retry.reset();
            return;
        }
        if Instant::now() >= self.ask_at && !matches!(step, PathStep::Disconnect(_)) {
            self.ask().await;
            self.ask_at = Instant::now() + self.retry.pause();
        }
        match self.step() {
            PathStep::Done => {}
            PathStep::Wait => {
                let since = *self.tried.get_or_insert_with(Instant::now);
                if self.is_reached() {
                    self.tried = None;
                } else if since.elapsed() >= BECOME_LIVE {
                    self.attempt = self.attempt.wrapping_add(1);
                    self.tried = None;
                }
            }
            PathStep::Connect(to) => {
                self.tried = None;
                if let Err(problem) = self.connect(to).await {
                    let volume = self.record.volume;
                    tracing::debug!(%volume, %to, problem, "path is not connected; will retry");
                    self.attempt = self.attempt.wrapping_add(1);
                }
            }
            PathStep::Disconnect(paths) => self.disconnect(paths).await,
        }
    }

    fn step(&self) -> PathStep {
        let found = nvme::subsystem(self.kernel.tree(), &self.record.subsystem);
        let ours = found.as_ref().map(|found| ours(found, &self.record)).unwrap_or_default();
        plan(&ours, &self.target, self.attempt)
    }

    fn is_reached(&self) -> bool {
        let found = nvme::subsystem(self.kernel.tree(), &self.record.subsystem);
        found.is_some_and(|found| is_reached(&ours(&found, &self.record), &self.target))
    }

    async fn ask(&mut self) {
        let told = ask(&self.record).await;
        let Told::Dismissed = told else {
            self.denied = None;
            if let Told::At(addresses) = told
                && !addresses.is_empty()
                && addresses != self.target
            {
                let volume = self.record.volume;
                tracing::info!(%volume, ?addresses, "target of the volume is there");
                (self.target, self.attempt) = (addresses, 0);
            }
            return;
        };
        // A former leader may answer with what it knew until its lease is over.
        if self.denied.get_or_insert_with(Instant::now).elapsed() < CERTAIN {
            return;
        }
        let found = nvme::subsystem(self.kernel.tree(), &self.record.subsystem);
        let ours = found.as_ref().map(|found| ours(found, &self.record)).unwrap_or_default();
        let all: Vec<FormerPath> = ours.iter().map(|it| former(it)).collect();
        if !all.is_empty() {
            tracing::error!(
                volume = %self.record.volume,
                host = %self.record.host,
                "publication of the volume to this host is over, and its device is removed; \
                 unmount what was mounted on it, then holdfast detach"
            );
            self.disconnect(all).await;
        }
    }

    /// Connects one more path, while nobody detaches the volume.
    async fn connect(&self, to: SocketAddr) -> Result<(), String> {
        let (kernel, records) = (Arc::clone(&self.kernel), self.records.clone());
        let record = self.record.clone();
        let connecting = tokio::task::spawn_blocking(move || {
            TcpStream::connect_timeout(&to, REACH).map_err(|error| error.to_string())?;
            let held = records.lock(record.volume).map_err(|error| error.to_string())?;
            let Some(_held) = held else { return Err("somebody works on the volume".to_owned()) };
            let is_there = records.read(record.volume).is_ok_and(|it| it.is_some());
            if !is_there {
                // What was detached meanwhile leaves no lock behind.
                return records.remove(record.volume).map_err(|error| error.to_string());
            }
            let at = PathAddress { address: to.ip(), port: to.port() };
            let wanted = connection(&record, at).map_err(|error| error.to_string())?;
            let connected = nvme::connect(&*kernel, &wanted).map_err(|error| error.to_string())?;
            let controller = connected.controller;
            tracing::info!(volume = %record.volume, %to, controller, "path is connected");
            Ok(())
        });
        connecting.await.map_err(|error| error.to_string())?
    }

    /// Drops paths, while nobody attaches or detaches the volume.
    async fn disconnect(&self, paths: Vec<FormerPath>) {
        let (kernel, records) = (Arc::clone(&self.kernel), self.records.clone());
        let record = self.record.clone();
        let dropping =
            tokio::task::spawn_blocking(move || drop_paths(&*kernel, &records, &record, paths));
        // It panics only if it is a bug, and then the kernel is looked at again.
        if let Ok(Err(error)) = dropping.await {
            tracing::warn!(volume = %self.record.volume, %error, "paths are not dropped");
        }
    }
}

/// Drops those of these paths that are still what they were: the same volume, used by the same
/// host, at the same address.
fn drop_paths(
    kernel: &dyn Kernel,
    records: &Records,
    record: &Attachment,
    paths: Vec<FormerPath>,
) -> std::io::Result<()> {
    let volume = record.volume;
    // Somebody works on the volume: what is to be dropped then is found out anew.
    let Some(_held) = records.lock(volume)? else { return Ok(()) };
    if records.read(volume)?.is_none() {
        // What was detached meanwhile leaves no lock behind.
        return records.remove(volume);
    }
    for path in paths {
        let found = nvme::subsystem(kernel.tree(), &record.subsystem);
        let ours = found.as_ref().map(|found| ours(found, record)).unwrap_or_default();
        if !ours.iter().any(|it| former(it) == path) {
            continue;
        }
        let (controller, _) = path;
        match nvme::disconnect(kernel, &controller) {
            Ok(()) => tracing::info!(%volume, controller, "former path is dropped"),
            Err(error) => {
                tracing::warn!(%volume, controller, %error, "path is not dropped");
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use linux::testing::FakeKernel;

    use super::*;
    use crate::record::testing::attachment;

    /// What is to be done with controllers: name, port, state, ANA state.
    fn check(controllers: &[(&str, u16, &str, &str)], target: &[u16], attempt: usize) -> PathStep {
        let kernel = FakeKernel::new();
        let record = attachment("00000000-0000-4000-8000-000000000001");
        let folder = "sys/class/nvme-subsystem/nvme-subsys0";
        kernel.write(&format!("{folder}/subsysnqn"), record.subsystem.as_str());
        for (name, port, state, ana) in controllers {
            let below = format!("{folder}/{name}");
            kernel.write(&format!("{below}/state"), state);
            kernel.write(&format!("{below}/hostnqn"), record.host_nqn.as_str());
            kernel.write(&format!("{below}/address"), format!("traddr=127.0.0.1,trsvcid={port}"));
            kernel.write(&format!("{below}/nvme0c{}n1/ana_state", &name[4..]), ana);
        }
        let found = nvme::subsystem(kernel.tree(), &record.subsystem).unwrap();
        let target: Vec<SocketAddr> = target.iter().map(|port| at(*port)).collect();
        plan(&ours(&found, &record), &target, attempt)
    }

    fn at(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    fn former(name: &str, port: u16) -> FormerPath {
        (name.to_owned(), Some(PathAddress { address: at(port).ip(), port }))
    }

    fn drop_of(paths: &[(&str, u16)]) -> PathStep {
        PathStep::Disconnect(paths.iter().map(|(name, port)| former(name, *port)).collect())
    }

    #[test]
    fn the_new_path_is_connected_and_works_before_the_old_one_is_dropped() {
        let old = ("nvme0", 1, "connecting", "optimized");
        assert_eq!(check(&[old], &[2], 0), PathStep::Connect(at(2)));
        let fresh = ("nvme1", 2, "connecting", "optimized");
        assert_eq!(check(&[old, fresh], &[2], 0), PathStep::Wait, "not live");
        let closed = ("nvme1", 2, "live", "inaccessible");
        assert_eq!(check(&[old, closed], &[2], 0), PathStep::Wait, "not optimised");
        let detour = ("nvme1", 2, "live", "non-optimized");
        assert_eq!(check(&[old, detour], &[2], 0), PathStep::Wait, "not optimised");
        let good = ("nvme1", 2, "live", "optimized");
        assert_eq!(check(&[old, good], &[2], 0), drop_of(&[("nvme0", 1)]));
        let going = ("nvme0", 1, "deleting", "optimized");
        assert_eq!(check(&[going, good], &[2], 0), PathStep::Done);
        assert_eq!(check(&[good], &[2], 0), PathStep::Done);
    }

    #[test]
    fn the_last_path_is_never_dropped_and_no_device_is_made_anew() {
        let old = ("nvme0", 1, "live", "optimized");
        assert_eq!(check(&[old], &[2], 0), PathStep::Connect(at(2)), "live, but elsewhere");
        assert_eq!(check(&[old], &[], 0), PathStep::Wait, "nobody knows where the target is");
        assert_eq!(plan(&[], &[at(2)], 0), PathStep::Wait, "its device is gone");
    }

    #[test]
    fn addresses_of_a_target_are_tried_one_after_the_other_and_one_path_is_kept() {
        let old = ("nvme0", 1, "connecting", "optimized");
        assert_eq!(check(&[old], &[2, 3], 1), PathStep::Connect(at(3)));
        let first = ("nvme1", 2, "connecting", "optimized");
        assert_eq!(check(&[old, first], &[2, 3], 0), PathStep::Wait);
        assert_eq!(check(&[old, first], &[2, 3], 1), PathStep::Connect(at(3)));
        let closed = ("nvme1", 2, "live", "inaccessible");
        assert_eq!(check(&[old, closed], &[2, 3], 1), PathStep::Wait, "it is the target");
        let second = ("nvme2", 3, "live", "optimized");
        assert_eq!(
            check(&[old, first, second], &[2, 3], 1),
            drop_of(&[("nvme0", 1), ("nvme1", 2)])
        );
    }

    #[test]
    fn a_path_whose_name_leads_elsewhere_now_is_not_dropped() {
        let kernel = FakeKernel::new();
        let record = attachment("00000000-0000-4000-8000-000000000001");
        let dir = tempfile::tempdir().unwrap();
        let records = Records::at(dir.path());
        records.prepare().unwrap();
        records.write(&record).unwrap();
        let folder = "sys/class/nvme-subsystem/nvme-subsys0";
        kernel.write(&format!("{folder}/subsysnqn"), record.subsystem.as_str());
        for (name, port) in [("nvme0", 1), ("nvme1", 2)] {
            kernel.write(&format!("{folder}/{name}/state"), "live");
            let address = format!("traddr=127.0.0.1,trsvcid={port}");
            kernel.write(&format!("{folder}/{name}/address"), address);
            kernel.write(&format!("sys/class/nvme/{name}/delete_controller"), "");
        }
        let dropped = || {
            let calls = kernel.calls().into_iter();
            calls.filter(|call| call.contains("delete_controller")).collect::<Vec<_>>()
        };
        let drop_both = || {
            let paths = vec![former("nvme0", 7), former("nvme1", 2), former("nvme2", 3)];
            drop_paths(&kernel, &records, &record, paths).unwrap();
        };
        let held = records.lock(record.volume).unwrap().unwrap();
        drop_both();
        assert_eq!(dropped().len(), 0, "somebody works on the volume");
        drop(held);
        drop_both();
        assert_eq!(dropped().len(), 1, "{:?}", dropped());
        assert!(dropped()[0].contains("nvme1"), "{:?}", dropped());
        kernel.write(&format!("{folder}/subsysnqn"), "nqn.2026-11.io.holdfast:other");
        drop_both();
        assert_eq!(dropped().len(), 1, "it is a path to another volume");
    }

    #[test]
    fn paths_of_the_kernel_are_shown_as_they_are() {
        let kernel = FakeKernel::new();
        let record = attachment("00000000-0000-4000-8000-000000000001");
        assert_eq!(observe(kernel.tree(), &record), []);
        let below = "sys/class/nvme-subsystem/nvme-subsys0";
        kernel.write(&format!("{below}/subsysnqn"), record.subsystem.as_str());
        kernel.write(&format!("{below}/nvme0/state"), "live");
        kernel.write(&format!("{below}/nvme0/address"), "traddr=127.0.0.1,trsvcid=7");
        kernel.write(&format!("{below}/nvme0/nvme0c0n1/ana_state"), "optimized");
        let path = PathStatus { address: at(7), state: PathState::Live };
        assert_eq!(observe(kernel.tree(), &record), [path]);
        kernel.write(&format!("{below}/nvme0/nvme0c0n1/ana_state"), "change");
        assert_eq!(observe(kernel.tree(), &record)[0].state, PathState::Connecting);
        kernel.write(&format!("{below}/nvme0/hostnqn"), "nqn.2026-11.io.holdfast:host:other");
        assert_eq!(observe(kernel.tree(), &record), [], "somebody else's");
    }
}
