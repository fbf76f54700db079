//! The processes of a supervisor: itself, and one worker after another.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use linux::cgroup::Cgroup;
use linux::{Kernel, LiveKernel, SystemError, fuse};
use model::VolumeId;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::mount::UnmountFlags;

use super::{Action, Event, Supervisor};
use crate::record::Records;
use crate::worker::{BEAT, READY, READY_FOR_GOOD, UNMOUNTED};

/// The first thing that whoever starts a supervisor reads from it, once the volume is served.
pub const SERVING: &[u8] = b"serving\n";

/// This program, also when its file was replaced meanwhile.
const PROGRAM: &str = "/proc/self/exe";

/// Why a volume is not supervised.
#[derive(Debug, thiserror::Error)]
pub enum SuperviseError {
    /// The kernel refused something.
    #[error(transparent)]
    System(#[from] SystemError),
    /// Another one runs.
    #[error("a supervisor of volume {0} runs already")]
    Runs(VolumeId),
    /// Files or processes.
    #[error("cannot {doing}")]
    Process {
        /// What was being done.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The first worker did not serve.
    #[error("the worker did not reach the volume")]
    Failed,
}

/// Serves a volume until its file system is unmounted: mounts it, and keeps a worker running.
/// `worker` are the arguments of this program that make it a worker of the volume; `resume` the one
/// that is added for a successor.
pub fn run(
    records: &Records,
    volume: VolumeId,
    (worker, resume): (&[String], &str),
) -> Result<(), SuperviseError> {
    let failed = |doing| move |source| SuperviseError::Process { doing, source };
    let alive = records.be_alive(volume).map_err(failed("say that it runs"))?;
    let _alive = alive.ok_or(SuperviseError::Runs(volume))?;
    // Whoever started us ends, and with it its terminal.
    if let Err(error) = rustix::process::setsid() {
        tracing::debug!(%error, "no session of its own");
    }
    let kernel = LiveKernel::default();
    // Whoever started us may be a service, whose end would be ours.
    let group = Cgroup::enter(kernel.tree(), &volume.to_string());
    if let Err(error) = &group {
        tracing::warn!(%error, "no cgroup of its own; it ends with the service that started it");
    }
    let ended = supervise(records, volume, (worker, resume), &kernel);
    if let Ok(Err(error)) = group.map(Cgroup::leave) {
        tracing::debug!(%error, "cgroup stays");
    }
    ended
}

fn supervise(
    records: &Records,
    volume: VolumeId,
    (worker, resume): (&[String], &str),
    kernel: &LiveKernel,
) -> Result<(), SuperviseError> {
    let failed = |doing| move |source| SuperviseError::Process { doing, source };
    let point = records.fuse_point(volume);
    let descriptor = fuse::mount(kernel, &point)?;
    if let Err(error) = linux::process::lock_used_memory() {
        tracing::warn!(%error, "memory is not locked; this needs CAP_IPC_LOCK");
    }
    let abort = || {
        tracing::error!(%volume, "connection aborted: all I/O to the volume fails");
        // It fails as long as somebody uses the mount; that it aborts the connection is the point.
        let _ = kernel.unmount(&point, UnmountFlags::FORCE);
    };
    let start = Instant::now();
    let mut child = spawn(&descriptor, worker).map_err(failed("start a worker"))?;
    let mut supervisor = Supervisor::new(start.elapsed());
    loop {
        let event = child.wait(supervisor.deadline(), start).map_err(failed("wait"))?;
        let mut action = supervisor.on(start.elapsed(), event);
        if action == Action::Wait {
            action = supervisor.on(start.elapsed(), Event::Time);
        }
        match action {
            Action::Wait => {}
            Action::Spawn => {
                let words: Vec<String> = worker.iter().cloned().chain([resume.into()]).collect();
                tracing::warn!(%volume, "worker ended; the next one goes on");
                match spawn(&descriptor, &words) {
                    Ok(next) => child = next,
                    Err(error) => {
                        tracing::error!(%volume, %error, "worker cannot be started; will retry");
                        supervisor.on(start.elapsed(), Event::Ended { unmounted: false });
                    }
                }
            }
            Action::Kill => {
                tracing::error!(%volume, "worker is silent; it is killed");
                child.kill();
            }
            Action::Abort => abort(),
            Action::TellReady => tell_ready().map_err(failed("say that it serves"))?,
            Action::Stop => return Ok(()),
            Action::Fail => {
                child.kill();
                abort();
                return Err(SuperviseError::Failed);
            }
        }
        if supervisor.is_over() {
            return Ok(());
        }
    }
}

fn tell_ready() -> io::Result<()> {
    let mut out = io::stdout();
    out.write_all(SERVING)?;
    out.flush()
}

/// A worker with the descriptor as its standard input.
fn spawn(descriptor: &File, words: &[String]) -> io::Result<Worker> {
    let input = OwnedFd::from(descriptor.try_clone()?);
    let mut command = Command::new(PROGRAM);
    command.args(words).stdin(Stdio::from(input)).stdout(Stdio::piped());
    let mut child = command.spawn()?;
    let output = child.stdout.take();
    Ok(Worker { child, output })
}

struct Worker {
    child: Child,
    /// Closed when it has ended.
    output: Option<ChildStdout>,
}

impl Worker {
    /// Waits for what the worker says, for its end, or for a time.
    fn wait(&mut self, until: Option<Duration>, start: Instant) -> io::Result<Event> {
        let left = until.map(|until| until.saturating_sub(start.elapsed()));
        let Some(output) = &mut self.output else {
            // There is no worker: only time can pass.
            std::thread::sleep(left.unwrap_or(Duration::from_secs(1)));
            return Ok(Event::Time);
        };
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        let mut fds = [PollFd::new(output, PollFlags::IN)];
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(Event::Time),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let mut words = [0; 64];
        let length = output.read(&mut words)?;
        let said = words.get(..length).unwrap_or_default();
        if said.is_empty() {
            self.output = None;
            let status = self.child.wait()?;
            return Ok(Event::Ended { unmounted: status.code() == Some(UNMOUNTED) });
        }
        let ready = said.iter().find(|byte| [READY, READY_FOR_GOOD].contains(byte));
        Ok(match ready {
            Some(byte) => Event::Ready { can_resend: *byte == READY },
            None if said.contains(&BEAT) => Event::Beat,
            None => Event::Time,
        })
    }

    fn kill(&mut self) {
        if let Err(error) = self.child.kill() {
            tracing::error!(%error, "worker cannot be killed");
        }
    }
}
