//! `holdfast up`: a cluster on this machine, with one command.
//!
//! The store and the control plane run in this process, each engine in one of its own, so that one
//! can be killed as a node would be. All data lies in one folder; running again continues with it.

mod bootstrap;
mod demo;
mod device;
mod engines;
mod free_space;
mod screen;
mod secret;

use std::io::{IsTerminal, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use api::rest::Remote;
use clap::Args;
use control::Service;
use model::Size;
use store::client::{Client, Options};
use store::server::Server;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use self::device::Device;
use self::engines::Engines;
use crate::{control as control_command, log, stop};

/// Options of `up`.
#[derive(Args)]
pub(crate) struct UpArgs {
    /// The folder that holds all data; running again continues with it
    #[arg(long, value_name = "DIR", default_value_os_t = default_dir())]
    dir: PathBuf,
    /// How many nodes: one engine each; 0: only the store and the control plane
    #[arg(
        long, value_name = "COUNT", default_value_t = 3,
        value_parser = clap::value_parser!(u8).range(0..=99)
    )]
    nodes: u8,
    /// The address of the first node; the others have the next ones
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.11")]
    address: Ipv4Addr,
    /// Size of the file that is the pool of a new node; space is taken when it is written
    #[arg(long, value_name = "SIZE", default_value = "10GiB")]
    pool_size: Size,
    /// Where to serve REST
    #[arg(long, value_name = "ADDR:PORT", default_value = control_command::LISTEN)]
    listen: SocketAddr,
    /// Use etcd instead of the embedded store: etcd://HOST:PORT[,HOST:PORT…]
    #[arg(long, value_name = "ETCD", conflicts_with = "store_listen")]
    store: Option<Endpoints>,
    /// Where the embedded store serves the etcd v3 protocol
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:7441")]
    store_listen: SocketAddr,
    /// Leave the first volume alone; as root it is mounted otherwise, in DIR/mnt
    #[arg(long)]
    no_attach: bool,
    /// Show what it is for: write, kill a node, go on, rebuild, verify; then stop
    #[arg(long)]
    demo: bool,
}

/// The log of the store and the control plane while the screen is shown.
const LOG: &str = "up.log";

/// How often the few engines are asked what they have: what was written is seen soon.
const LOOK: Duration = Duration::from_secs(2);

/// `etcd://HOST:PORT[,HOST:PORT…]` as typed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Endpoints(Vec<String>);

impl std::str::FromStr for Endpoints {
    type Err = String;

    fn from_str(text: &str) -> Result<Endpoints, String> {
        let good = "write etcd://HOST:PORT[,HOST:PORT…], such as etcd://127.0.0.1:2379";
        let all = text.strip_prefix("etcd://").ok_or(good)?;
        let endpoint = |part: &str| match part.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                Ok(format!("http://{part}"))
            }
            _ => Err(good.to_owned()),
        };
        all.split(',').map(endpoint).collect::<Result<_, _>>().map(Endpoints)
    }
}

fn default_dir() -> PathBuf {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/share"));
    let data = std::env::var_os("XDG_DATA_HOME").map(PathBuf::from).or_else(home);
    data.unwrap_or_else(|| PathBuf::from(".")).join("holdfast")
}

/// The parts that run in this process, and how to end them.
struct Parts {
    stopping: Stopping,
    store: Option<JoinHandle<Result<()>>>,
    control: JoinHandle<Result<()>>,
    at: At,
}

/// What says to each of them that it is to end.
#[derive(Default)]
struct Stopping {
    store: CancellationToken,
    control: CancellationToken,
}

/// Where the parts are.
#[derive(Clone, Debug)]
struct At {
    rest: SocketAddr,
    store: String,
}

impl UpArgs {
    pub(crate) async fn run(self) -> Result<()> {
        std::fs::create_dir_all(&self.dir)
            .with_context(|| format!("cannot make {}; choose another --dir", self.dir.display()))?;
        // Engines are given paths, and do not run where this command does.
        let dir = self.dir.canonicalize()?;
        let _only_one = lock(&dir)?;
        free_space::check(&dir, (self.nodes, self.pool_size))?;
        let mut parts = self.start().await?;
        secret::ensure(&dir)?;
        let mut engines = Engines::start(&dir, (self.nodes, self.address), &parts.at)?;
        let at = parts.at.clone();
        let mounted = OnceLock::new();
        let ended = tokio::select! {
            () = stop::asked() => Ok(()),
            ended = parts.ended() => Err(ended),
            ended = engines.watch() => Err(ended),
            ended = self.serve(&dir, &at, &mounted) => ended,
        };
        if ended.is_ok() && !self.demo {
            // Whoever does not read it any more need not be told.
            let _ = writeln!(std::io::stdout(), "stopping; the data stays in {}", dir.display());
        }
        if let Some(device) = mounted.get() {
            device.detach().await;
        }
        // Without the control plane nothing is moved from engines that stop to others that do; the
        // store takes down how their targets ended.
        let control = parts.stop_control().await;
        engines.stop().await;
        parts.stop_store().await.and(control)?;
        ended
    }

    /// The store and the control plane.
    async fn start(&self) -> Result<Parts> {
        let stopping = Stopping::default();
        let mut store = None;
        let endpoints = if let Some(Endpoints(endpoints)) = &self.store {
            endpoints.clone()
        } else {
            let config = store::server::Config::new(self.dir.join("store"), self.store_listen);
            let opened = tokio::task::spawn_blocking(move || Server::open(config)).await?;
            let server = opened.context("the store cannot start (--store-listen, --dir)")?;
            let address = server.local_addr();
            let serving = server.run(stopping.store.clone().cancelled_owned());
            store = Some(tokio::spawn(async move { Ok(serving.await?) }));
            vec![format!("http://{address}")]
        };
        let client = Client::connect(&endpoints, Options::default()).await?;
        let mut config = control::Config::plain(self.listen);
        config.policy.pace.listing = LOOK;
        let bound = Service::bind(&config, Arc::new(client)).await;
        let control = bound.context("REST cannot be served (--listen)")?;
        let rest = control.local_addr()?;
        let running = control.run(stopping.control.clone().cancelled_owned());
        let control = tokio::spawn(async move {
            running.await;
            Ok(())
        });
        let at = At { rest, store: endpoints.join(",") };
        Ok(Parts { stopping, store, control, at })
    }

    /// Everything after the processes run: pools, the first volume, and what is shown.
    async fn serve(&self, dir: &Path, at: &At, mounted: &OnceLock<Device>) -> Result<()> {
        let remote = Remote::plain(at.rest.to_string().parse()?)?;
        let _host = bootstrap::host(&remote)?;
        let (nodes, size) = (engines::names(self.nodes), self.pool_size);
        let made = bootstrap::make(&remote, dir, &nodes, size).await?;
        if self.demo {
            return demo::run(&remote, dir).await;
        }
        let mut out = std::io::stdout();
        let device = made.volume.map(|it| Device::new(it, dir, at.rest.to_string()));
        let device = device.filter(|_| !self.no_attach && rustix::process::geteuid().is_root());
        let attached = match device {
            Some(device) => Some(mounted.get_or_init(|| device).attach().await),
            None => None,
        };
        let hello = hello(at, dir, &made, attached.as_deref());
        if out.is_terminal() {
            // Lines of the log would be written across the screen.
            log::to(&dir.join(LOG))?;
            return screen::live(&remote, (&hello, dir), &mut out).await;
        }
        writeln!(out, "{hello}")?;
        out.flush()?;
        tokio::select! {
            ended = screen::lines(&remote, &mut out) => ended,
            never = free_space::watch(dir) => match never {},
        }
    }
}

fn hello(at: &At, dir: &Path, made: &bootstrap::Made, attached: Option<&str>) -> String {
    let At { rest, store } = at;
    let mut text = format!(
        "Holdfast is up.\n\n  \
         REST     http://{rest}/v1/status   (document: /v1/openapi.json)\n  \
         health   curl http://{rest}/v1/health\n  \
         store    etcd v3 at {store}\n  \
         data     {}\n",
        dir.display()
    );
    if std::io::stdout().is_terminal() {
        text.extend(["  log      ", &dir.join(LOG).display().to_string(), "\n"]);
    }
    let server = match rest.to_string() {
        usual if usual == control_command::LISTEN => String::new(),
        other => format!(" --server {other}"),
    };
    if let Some(attached) = attached {
        text.extend(["  ", attached, "\n"]);
    }
    text.extend(["\n  try      holdfast status", &server, "\n"]);
    if let Some(volume) = made.volume {
        let volume = volume.to_string();
        text.extend(["           holdfast volume get ", &volume, &server, "\n"]);
        // A load on what is mounted would destroy it.
        if attached.is_none() {
            text.extend(["           holdfast bench ", &volume, &server, "\n"]);
            let mount = " --host local --mount /mnt/holdfast";
            text.extend(["           sudo holdfast attach ", &volume, mount, &server, "\n"]);
        }
    }
    for note in &made.notes {
        text.extend(["\n  note     ", note, &server, "\n"]);
    }
    text + "\nCtrl-C stops it; running it again continues with the data."
}

impl Parts {
    /// Why it cannot go on: a part ended by itself, which is an error even if it says it is not.
    async fn ended(&mut self) -> anyhow::Error {
        let store = async {
            match &mut self.store {
                Some(store) => store.await,
                None => std::future::pending().await,
            }
        };
        let (what, ended) = tokio::select! {
            ended = store => ("store", ended),
            ended = &mut self.control => ("control plane", ended),
        };
        match ended {
            Ok(Ok(())) => anyhow!("the {what} ended by itself"),
            Ok(Err(error)) => error.context(format!("the {what} ended")),
            Err(error) => anyhow::Error::from(error).context(format!("the {what} broke")),
        }
    }

    async fn stop_control(&mut self) -> Result<()> {
        self.stopping.control.cancel();
        // One that has ended already has said why.
        if self.control.is_finished() {
            return Ok(());
        }
        (&mut self.control).await?.context("the control plane did not stop cleanly")
    }

    async fn stop_store(self) -> Result<()> {
        self.stopping.store.cancel();
        match self.store {
            Some(store) if !store.is_finished() => {
                store.await?.context("the store did not stop cleanly")
            }
            _ => Ok(()),
        }
    }
}

/// Two of these on one folder would fight for its files.
fn lock(dir: &Path) -> Result<std::fs::File> {
    let path = dir.join("lock");
    let file =
        std::fs::File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(_) => bail!("holdfast up runs on {} already; choose another --dir", dir.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_as_they_are_typed() {
        let two: Endpoints = "etcd://10.0.0.1:2379,etcd.local:2379".parse().unwrap();
        assert_eq!(two.0, ["http://10.0.0.1:2379", "http://etcd.local:2379"]);
        for bad in ["10.0.0.1:2379", "etcd://", "etcd://host", "etcd://:1", "etcd://a:99999"] {
            assert!(bad.parse::<Endpoints>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_folder_is_used_once_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let held = lock(dir.path()).unwrap();
        assert!(lock(dir.path()).unwrap_err().to_string().contains("--dir"));
        drop(held);
        lock(dir.path()).unwrap();
    }
}
