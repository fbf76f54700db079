//! The servers that are measured.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::{Seen, Shape, nbd, spdk};
use crate::process::{Program, holdfast};

/// Where servers run.
pub(super) const SERVER_CORE: usize = 0;
/// Where clients run.
pub(super) const CLIENT_CORE: usize = 1;

const NQN: &str = "nqn.2026-11.io.holdfast:bench";
/// Size of what they serve.
pub(super) const BYTES: u64 = 1 << 30;

/// A server with its storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    OursMemory,
    OursFile,
    NbdkitMemory,
    /// The file around the page cache, as far as nbdkit can.
    NbdkitFile,
    /// The file through the page cache.
    NbdkitCached,
    QemuMemory,
    QemuFile,
}

/// What is behind a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Storage {
    Memory,
    File,
    PageCache,
}

impl Kind {
    /// Ours first.
    pub(super) const ALL: &'static [Kind] = &[
        Kind::OursMemory,
        Kind::NbdkitMemory,
        Kind::QemuMemory,
        Kind::OursFile,
        Kind::NbdkitFile,
        Kind::QemuFile,
        Kind::NbdkitCached,
    ];

    pub(super) fn storage(self) -> Storage {
        match self {
            Kind::OursMemory | Kind::NbdkitMemory | Kind::QemuMemory => Storage::Memory,
            Kind::OursFile | Kind::NbdkitFile | Kind::QemuFile => Storage::File,
            Kind::NbdkitCached => Storage::PageCache,
        }
    }

    pub(super) fn is_ours(self) -> bool {
        matches!(self, Kind::OursMemory | Kind::OursFile)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::OursMemory => "ours memory",
            Kind::OursFile => "ours file",
            Kind::NbdkitMemory => "nbdkit memory",
            Kind::NbdkitFile => "nbdkit file",
            Kind::NbdkitCached => "nbdkit page cache",
            Kind::QemuMemory => "qemu-nbd memory",
            Kind::QemuFile => "qemu-nbd file",
        }
    }
}

/// A server that runs.
pub(super) struct Running {
    kind: Kind,
    program: Program,
    address: String,
    /// Memory as a file, for servers that have no other.
    _memory: Option<tempfile::NamedTempFile>,
}

impl Running {
    pub(super) fn start(kind: Kind, folder: &Path) -> Result<Running> {
        let file = file_in(folder);
        if !file.exists() {
            fill(&file)?;
        }
        let shown = file.display().to_string();
        let port = free_port()?.to_string();
        let mut memory = None;
        let mut command = match kind {
            Kind::OursMemory | Kind::OursFile => {
                let what = match kind {
                    Kind::OursMemory => format!("{NQN}=mem:{BYTES}"),
                    _ => format!("{NQN}=file:{shown}"),
                };
                let mut command = holdfast()?;
                let cores = SERVER_CORE.to_string();
                command.args(["engine", "serve", "--listen", "127.0.0.1:0", "--cores", &cores]);
                command.args(["--queue-depth", "256", "--ns", &what]);
                command
            }
            Kind::NbdkitMemory | Kind::NbdkitFile | Kind::NbdkitCached => {
                let mut command = pinned("nbdkit");
                command.args(["-f", "-i", "127.0.0.1", "-p", &port]);
                match kind {
                    Kind::NbdkitMemory => command.args(["memory", &BYTES.to_string()]),
                    Kind::NbdkitFile => command.args(["file", &shown, "cache=none"]),
                    _ => command.args(["file", &shown]),
                };
                command
            }
            Kind::QemuMemory | Kind::QemuFile => {
                let mut command = pinned("qemu-nbd");
                command.args(["-f", "raw", "-b", "127.0.0.1", "-p", &port, "-t", "-e", "8"]);
                if kind == Kind::QemuMemory {
                    let in_memory = tempfile::NamedTempFile::new_in("/dev/shm")?;
                    in_memory.as_file().set_len(BYTES)?;
                    command.arg(in_memory.path());
                    memory = Some(in_memory);
                } else {
                    command.args(["--cache=none", "--aio=native", &shown]);
                }
                command
            }
        };
        let program = Program::start(&mut command)?;
        let address = match kind {
            Kind::OursMemory | Kind::OursFile => program.wait_for("listening", |line| {
                line.strip_prefix("listening on ").map(str::to_owned)
            })?,
            _ => format!("127.0.0.1:{port}"),
        };
        Ok(Running { kind, program, address, _memory: memory })
    }

    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    pub(super) fn measure(&self, shape: Shape, time: Duration) -> Result<Seen> {
        let before = self.cpu_time()?;
        let begun = Instant::now();
        let mut seen = match self.kind {
            Kind::OursMemory | Kind::OursFile => self.perf(shape, time)?,
            _ => nbd::measure(&self.address, shape, time)?,
        };
        let used = self.cpu_time()?.saturating_sub(before);
        seen.cores = Some(used.as_secs_f64() / begun.elapsed().as_secs_f64());
        Ok(seen)
    }

    /// The same with SPDK's client, on our target.
    pub(super) fn measure_with(&self, client: &Path, shape: Shape, time: Duration) -> Result<Seen> {
        spdk::measure(client, &self.address, NQN, (shape, time))
    }

    /// The part of a core that is used while nobody asks for anything.
    pub(super) fn idle(&self, time: Duration) -> Result<f64> {
        let before = self.cpu_time()?;
        std::thread::sleep(time);
        let used = self.cpu_time()?.saturating_sub(before);
        Ok(used.as_secs_f64() / time.as_secs_f64())
    }

    fn perf(&self, shape: Shape, time: Duration) -> Result<Seen> {
        let mut command = holdfast()?;
        command.args(["nvme", "perf", &self.address, "--nqn", NQN, "-o", "json"]);
        command.args(["--rw", shape.rw.flag(), "--bs", &shape.bytes.to_string()]);
        command.args(["--qd", &shape.depth.to_string()]);
        command.args(["--core", &CLIENT_CORE.to_string()]);
        command.args(["--time", &time.as_secs_f64().to_string()]);
        let output = command.output().context("cannot run holdfast nvme perf")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "holdfast nvme perf failed: {said}");
        let value: Value = serde_json::from_slice(&output.stdout).context("no JSON from perf")?;
        let number = |value: &Value| value.as_f64().context("perf left a number out");
        Ok(Seen {
            iops: number(&value["iops"])?,
            p50: number(&value["latency_us"]["p50"])?,
            p99: Some(number(&value["latency_us"]["p99"])?),
            cores: None,
        })
    }

    /// What the server has used so far, by the kernel's count.
    fn cpu_time(&self) -> Result<Duration> {
        let path = format!("/proc/{}/stat", self.program.pid().as_raw_nonzero());
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        // The name of the program, in parentheses, may hold spaces; what follows does not.
        let Some((_, rest)) = text.rsplit_once(") ") else { bail!("{path} makes no sense") };
        let mut ticks = rest.split(' ').skip(11).take(2).map(str::parse::<u64>);
        let user = ticks.next().context("no user time")??;
        let system = ticks.next().context("no system time")??;
        // A tick is 10 ms on every Linux that we run on.
        Ok(Duration::from_millis(10 * (user + system)))
    }
}

/// The file that all of them serve, one after another.
pub(super) fn file_in(folder: &Path) -> PathBuf {
    folder.join("disk")
}

fn pinned(program: &str) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", &SERVER_CORE.to_string(), program]);
    command
}

fn free_port() -> Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// A file whose blocks all exist, so that reads go to the disk.
fn fill(path: &Path) -> Result<()> {
    use std::io::Write;
    let mut file = std::fs::File::create(path)?;
    let chunk = vec![0x5A; 1 << 20];
    for _ in 0..BYTES >> 20 {
        file.write_all(&chunk)?;
    }
    Ok(file.sync_all()?)
}
