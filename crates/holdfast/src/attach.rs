//! `holdfast attach`, `detach`, `attached` and `preflight`: volumes as devices of this machine.

use std::fmt::Write as _;
use std::io::IsTerminal;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agent::attach::plan::{Choice, Wanted};
use agent::attach::{Attacher, Request};
use agent::kernel_paths;
use agent::preflight::{self, Facts, Finding, Verdict};
use agent::record::{Attachment, Records, Transport, WorkerStatus};
use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};
use linux::LiveKernel;
use linux::filesystem::FilesystemKind;
use model::{HostName, PathState, PathStatus};
use serde::Serialize;

use crate::arg_parsers;
use crate::cli::{Cell, ClientArgs, Column, Out, Row, Tone, VolumeReference, text_of_time};

/// Where run-time state lies.
#[derive(Args, Clone)]
pub(crate) struct RunFolder {
    /// The folder with the state of attached volumes
    #[arg(
        long,
        value_name = "DIR",
        env = "HOLDFAST_RUN_DIR",
        default_value = agent::record::RUN
    )]
    run_dir: PathBuf,
}

impl RunFolder {
    pub(crate) fn records(&self) -> Records {
        Records::at(&self.run_dir)
    }

    /// Arguments of this program with the same folder.
    pub(crate) fn words<const N: usize>(&self, words: [&str; N]) -> Vec<String> {
        let folder = ["--run-dir".to_owned(), self.run_dir.display().to_string()];
        words.into_iter().map(str::to_owned).chain(folder).collect()
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum Way {
    /// As this machine does it best
    Auto,
    /// By the kernel, NVMe/TCP with native multipath
    Nvme,
    /// By a process of ours behind FUSE and a loop device
    Fuse,
}

/// Options of `attach`.
#[derive(Args)]
pub(crate) struct Attach {
    #[command(flatten)]
    ask: ClientArgs,
    #[command(flatten)]
    run: RunFolder,
    volume: VolumeReference,
    /// Mount it there; an empty volume gets a file system
    #[arg(long, value_name = "DIR")]
    mount: Option<PathBuf>,
    /// The file system to make on an empty volume: ext4, xfs or btrfs; usually ext4
    #[arg(long, value_name = "KIND")]
    fs: Option<FilesystemKind>,
    /// Let nobody write
    #[arg(long)]
    read_only: bool,
    /// How it becomes a block device
    #[arg(long, value_name = "WAY", default_value = "auto")]
    transport: Way,
    /// The host to be; left out: the one with the name of this machine
    #[arg(long, value_name = "HOST", env = "HOLDFAST_HOST")]
    host: Option<HostName>,
    /// How long I/O waits for a target that is away before it fails
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = arg_parsers::some_time)]
    hold: Duration,
}

/// Options of `detach`.
#[derive(Args)]
pub(crate) struct Detach {
    #[command(flatten)]
    ask: ClientArgs,
    #[command(flatten)]
    run: RunFolder,
    volume: VolumeReference,
}

/// Options of `attached`.
#[derive(Args)]
pub(crate) struct List {
    #[command(flatten)]
    ask: ClientArgs,
    #[command(flatten)]
    run: RunFolder,
}

/// Options of `preflight`.
#[derive(Args)]
pub(crate) struct Preflight {
    #[command(flatten)]
    ask: ClientArgs,
    /// Also try whether a target answers there
    #[arg(long, value_name = "ADDR:PORT")]
    target: Vec<SocketAddr>,
}

pub(crate) fn attacher(ask: &ClientArgs, run: &RunFolder) -> Result<Attacher> {
    ask.once()?;
    Ok(Attacher {
        kernel: Arc::new(LiveKernel::default()),
        records: run.records(),
        control: ask.control_plane()?,
        supervisor: run.words(["agent", "supervise"]),
        is_root: rustix::process::geteuid().is_root(),
    })
}

fn out<T>(ask: &ClientArgs, write: impl FnOnce(&mut Out<'_>) -> Result<T>) -> Result<T> {
    let mut stdout = std::io::stdout();
    let colour = stdout.is_terminal() && std::env::var_os("NO_COLOR").is_none();
    write(&mut Out::new(&mut stdout, ask.format(), colour))
}

impl Attach {
    pub(crate) fn run(self) -> Result<()> {
        let attacher = attacher(&self.ask, &self.run)?;
        let transport = match self.transport {
            Way::Auto => Choice::Auto,
            Way::Nvme => Choice::Only(Transport::Nvme),
            Way::Fuse => Choice::Only(Transport::Fuse),
        };
        let wanted =
            Wanted { mount: self.mount, filesystem: self.fs, read_only: self.read_only, transport };
        let volume = self.ask.find_volume(self.volume)?;
        let host = self.host;
        let request = Request { volume, host, wanted, hold_seconds: self.hold.as_secs() };
        let attached = attacher.attach(&request)?;
        let shown = Shown::of(attached.record, &attacher.records);
        let said = shown.said(if attached.unchanged { "was attached before" } else { "attached" });
        out(&self.ask, |out| out.done(&said, &shown))
    }
}

impl Detach {
    pub(crate) fn run(self) -> Result<()> {
        let volume = self.ask.find_volume(self.volume)?;
        let left = attacher(&self.ask, &self.run)?.detach(volume)?;
        if let Some(error) = left {
            tracing::warn!(
                "{error:#}; the volume stays published: holdfast volume unpublish {volume}"
            );
        }
        let answer = serde_json::json!({ "volume": volume, "attached": false });
        out(&self.ask, |out| out.done(&format!("volume {volume} detached"), &answer))
    }
}

impl List {
    pub(crate) fn run(self) -> Result<()> {
        self.ask.once()?;
        let records = self.run.records();
        let denied = "cannot read what is attached; only root may: run it with sudo";
        let all: Vec<Shown> = records
            .all()
            .context(denied)?
            .into_iter()
            .map(|record| Shown::of(record, &records))
            .collect();
        out(&self.ask, |out| out.list(&all))
    }
}

impl Preflight {
    pub(crate) fn run(self) -> Result<()> {
        self.ask.once()?;
        let server = self.ask.control_plane()?.server;
        let control = server.to_socket_addrs().ok().into_iter().flatten().next();
        let ports: Vec<SocketAddr> = control.into_iter().chain(self.target).collect();
        let is_root = rustix::process::geteuid().is_root();
        let facts = Facts::look(&LiveKernel::default(), is_root, &ports);
        let findings = preflight::findings(&facts);
        out(&self.ask, |out| out.list(&findings))?;
        if !preflight::can_attach(&findings) {
            bail!("volumes cannot be attached here; see what is bad above, and what helps");
        }
        Ok(())
    }
}

/// An attached volume with what its worker says.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown {
    #[serde(flatten)]
    record: Attachment,
    #[serde(skip_serializing_if = "Option::is_none")]
    worker: Option<WorkerStatus>,
    /// The kernel's paths.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    paths: Vec<PathStatus>,
    /// Whether somebody serves it.
    alive: bool,
}

impl Shown {
    fn of(record: Attachment, records: &Records) -> Shown {
        let volume = record.volume;
        let by_kernel = record.transport == Transport::Nvme;
        let alive = by_kernel || records.is_alive(volume);
        let tree = linux::Tree::default();
        let paths = if by_kernel { kernel_paths::observe(&tree, &record) } else { Vec::new() };
        Shown { worker: records.status(volume), paths, alive, record }
    }

    fn said(&self, what: &str) -> String {
        let record = &self.record;
        let mut said = format!("volume {} {what}", record.volume);
        // Writing to a string cannot fail.
        if let Some(device) = &record.device {
            let _ = write!(said, " as {}", device.display());
        }
        if let Some(mount) = &record.mount {
            let _ = write!(said, ", mounted at {}", mount.point.display());
        }
        said
    }
}

impl Row for Shown {
    const COLUMNS: &'static [Column] = &[
        Column::Left("VOLUME"),
        Column::Left("DEVICE"),
        Column::Left("TRANSPORT"),
        Column::Left("PATHS"),
        Column::Left("MOUNT"),
        Column::Left("SINCE"),
        Column::Wide("HOST"),
        Column::Wide("TARGET"),
    ];

    fn cells(&self) -> Vec<Cell> {
        let record = &self.record;
        let paths = match &self.worker {
            _ if !self.alive => Cell::toned("not served", Tone::Bad),
            Some(worker) if worker.dismissed => Cell::toned("dismissed", Tone::Bad),
            Some(worker) => {
                let (live, all) = (worker.live_paths(), worker.paths.len());
                let tone = if worker.usable { Tone::Good } else { Tone::Bad };
                Cell::toned(format!("{live}/{all}"), tone)
            }
            None => {
                let live = self.paths.iter().filter(|path| path.state == PathState::Live).count();
                let tone = if live > 0 { Tone::Good } else { Tone::Bad };
                Cell::toned(format!("{live}/{}", self.paths.len()), tone)
            }
        };
        let by_worker = self.worker.iter().flat_map(|worker| &worker.paths);
        let addresses = by_worker.chain(&self.paths);
        let addresses: Vec<String> = addresses.map(|path| path.address.to_string()).collect();
        let path = |path: &PathBuf| path.display().to_string();
        vec![
            (&record.volume).into(),
            Cell::maybe(record.device.as_ref().map(path)),
            (&record.transport).into(),
            paths,
            Cell::maybe(record.mount.as_ref().map(|mount| path(&mount.point))),
            text_of_time(record.since).into(),
            (&record.host).into(),
            (&addresses.join(", ")).into(),
        ]
    }
}

impl Row for Finding {
    const COLUMNS: &'static [Column] = &[
        Column::Left("PART"),
        Column::Left("STATE"),
        Column::Left("FOUND"),
        Column::Left("HELPS"),
    ];

    fn cells(&self) -> Vec<Cell> {
        let state = match self.verdict {
            Verdict::Good => Cell::toned("good", Tone::Good),
            Verdict::Missing => Cell::toned("missing", Tone::Warn),
            Verdict::Bad => Cell::toned("bad", Tone::Bad),
        };
        vec![(&self.part).into(), state, (&self.found).into(), Cell::maybe(self.remedy.clone())]
    }
}
