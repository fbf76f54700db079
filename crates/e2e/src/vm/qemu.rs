//! The QEMU process: started by a thread that stays with it, so that it dies with this process.
//!
//! The kernel kills QEMU when the thread that started it ends (`setpriv --pdeathsig`). That thread
//! waits for QEMU, so it ends only after QEMU, or together with the whole test process: also when
//! that is killed, and also for a machine in a `static`, which nobody drops.

use std::{
    fs::File,
    io,
    os::{fd::OwnedFd, unix::net::UnixListener},
    path::Path,
    process::{Command, Stdio},
    sync::mpsc::channel,
    thread::{self, JoinHandle},
};

use anyhow::{Context, Result, bail};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};

/// Starting a program and connecting two sockets takes this long only on a machine in trouble.
const PATIENCE: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

/// A QEMU that runs. Dropping it kills it and waits for its end.
pub(super) struct Qemu {
    handle: OwnedFd,
    keeper: Option<JoinHandle<()>>,
}

impl Qemu {
    /// Starts QEMU; what it prints goes into `log`.
    pub(super) fn start(program: &Path, args: Vec<String>, log: &Path) -> Result<Qemu> {
        let printed = File::create(log).with_context(|| format!("create {}", log.display()))?;
        let program = program.to_owned();
        let (sender, started) = channel();
        let keeper = thread::spawn(move || {
            let spawned = printed.try_clone().and_then(|complaints| {
                Command::new("setpriv")
                    .args(["--pdeathsig", "KILL", "--"])
                    .arg(program)
                    .args(args)
                    .stdin(Stdio::null())
                    .stdout(printed)
                    .stderr(complaints)
                    .spawn()
            });
            match spawned {
                Ok(mut child) => {
                    let _receiver_waits = sender.send(open_handle(child.id()));
                    // It is reaped only here, so the handle always meant this process.
                    let _ended = child.wait();
                }
                Err(error) => {
                    let _receiver_waits = sender.send(Err(error));
                }
            }
        });
        let handle = started.recv().context("start QEMU")?.context("start QEMU")?;
        Ok(Qemu { handle, keeper: Some(keeper) })
    }

    /// Waits until somebody connects; false if QEMU ended instead.
    pub(super) fn wait_for_connection(&self, listener: &UnixListener) -> Result<bool> {
        let mut waited =
            [PollFd::new(listener, PollFlags::IN), PollFd::new(&self.handle, PollFlags::IN)];
        let ready = poll(&mut waited, Some(&PATIENCE)).context("wait for QEMU")?;
        if ready == 0 {
            bail!("QEMU did not connect in {} s", PATIENCE.tv_sec);
        }
        Ok(!waited[0].revents().is_empty())
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        // It may have ended before; then there is nobody to signal.
        let _gone = pidfd_send_signal(&self.handle, Signal::KILL);
        if let Some(keeper) = self.keeper.take() {
            let _panicked = keeper.join();
        }
    }
}

fn open_handle(id: u32) -> io::Result<OwnedFd> {
    let id = i32::try_from(id).ok().and_then(Pid::from_raw);
    let id = id.ok_or_else(|| io::Error::other("not a process id"))?;
    Ok(pidfd_open(id, PidfdFlags::empty())?)
}
