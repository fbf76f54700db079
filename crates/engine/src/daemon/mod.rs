//! The engine as a daemon: what `holdfast engine run` runs.
//!
//! It starts the reactors, opens the pools that it had open before, serves the node API and shows
//! the control plane that it is there. Requests are answered on threads of their own, never on a
//! reactor; what they want is sent to the reactors as orders.
//!
//! ```text
//!   control plane ──HTTP──► node ──► pools, replicas, snapshots, targets ──orders──► reactors
//!                                                          store ◄── records ◄──┘
//! ```
//!
//! Invariants:
//! - It starts without targets and shares nothing: the control plane sends its orders anew.
//! - What is durable (pools, replicas, snapshots, labels) is on the disks before it is answered.
//! - A pool that cannot be opened stops nothing else, and nothing in it is said to be gone.
//! - Every order may be sent twice.
//!
//! Deliberately not here: deciding what should be where (control plane), I/O of hosts (`serve`).

mod checks;
mod devices;
mod engine;
mod error_windows;
mod fences;
mod generation_guard;
mod health;
mod health_monitor;
mod heartbeat;
mod keys;
mod metrics;
mod node;
mod pages;
mod pool_health;
mod pool_manifest;
mod pool_mapping;
mod pools;
mod problems;
mod ranges;
mod rebuilds;
mod records;
mod replica_checks;
mod replicas;
mod rotation;
mod scrubs;
mod snapshots;
mod statistics;
mod target_events;
mod target_reconcile;
mod target_snapshots;
mod targets;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use api::events::Log;
use api::node::NodeInfo;
use api::{Client, ClientConfig, Guard, TlsServer, Tokens};
use block::Bytes;
use model::{Event, InstanceId, NodeAddress, NodeName, Nqn, ValidationError};
use nvme::pdu::Digests;
use store::contract::Store;
use tokio::sync::watch;

use crate::replication::Replication;
use crate::serve::{self, EngineLimits, Server};
use engine::Engine;
pub use error_windows::ErrorLimits;
pub use mirror::LONGEST_LEASE;
pub use pool_manifest::DirError;
use pool_manifest::{Dir, PoolManifest};
use records::Records;

/// How many events are kept for readers that come late.
const EVENTS: NonZeroUsize = NonZeroUsize::new(4096).unwrap();

/// One engine.
#[derive(Clone, Debug)]
pub struct Config {
    /// The name of its node.
    pub node: NodeName,
    /// Where NVMe/TCP is served, as hosts reach it.
    pub listen: Vec<SocketAddr>,
    /// Where the node API is served, as the control plane reaches it.
    pub api: SocketAddr,
    /// One reactor on each of these cores.
    pub cores: Vec<usize>,
    /// What it remembers between runs.
    pub dir: PathBuf,
    /// The folder of the keys that wrap those of encrypted replicas: one file per key, of its name.
    pub keys: Option<PathBuf>,
    /// Who may use the node API; nothing: everybody.
    pub tokens: Option<Arc<Tokens>>,
    /// What the node API shows to its callers; nothing: plain HTTP.
    pub tls: Option<TlsServer>,
    /// The control planes to register with: with whichever of them leads.
    pub control: Vec<ClientConfig>,
    /// How long stopping may take.
    pub drain: Duration,
    /// Memory for the cache of each pool.
    pub pool_cache: Bytes,
    /// How it speaks to other engines, and they to it.
    pub replication: Replication,
    /// Whether replicas may be served without a secret where others than this machine come by.
    pub trusts_network: bool,
    /// When errors make a disk suspect.
    pub error_limits: ErrorLimits,
    /// For how long a target answers reads after a copy has proved that it owns the volume; at
    /// most [`LONGEST_LEASE`].
    pub read_lease: Duration,
}

/// Why a daemon could not start, or did not stop well.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// Nobody could connect to such an address.
    #[error("{address} is no address that others can connect to; give one of this machine's")]
    Wildcard {
        /// Which.
        address: SocketAddr,
    },
    /// Whoever reaches it could read and write replicas.
    #[error(
        "whoever reaches {address} could read and write every replica of this engine: give \
         --cluster-secret FILE, the same on all engines of the cluster, or insist with \
         --unauthenticated-replication"
    )]
    Exposed {
        /// Which.
        address: SocketAddr,
    },
    /// No NQN can hold it.
    #[error(transparent)]
    Name(#[from] ValidationError),
    /// No host can have it.
    #[error(transparent)]
    WireName(#[from] nvme::wire::BadNqn),
    /// Its folder cannot be used.
    #[error(transparent)]
    Dir(#[from] DirError),
    /// The control plane can never be called like this.
    #[error("the control plane cannot be called")]
    Control(#[source] api::CallError),
    /// No random number for the id of this run.
    #[error("the kernel gives no random numbers")]
    Random(#[source] io::Error),
    /// The reactors did not start.
    #[error(transparent)]
    Start(#[from] serve::StartError),
    /// The node API did not start.
    #[error("the node API cannot start")]
    Api(#[from] api::StartError),
    /// The address of the node API is unknown.
    #[error("the node API has no address")]
    Address(#[source] io::Error),
    /// The reactors failed.
    #[error("the engine did not stop cleanly")]
    Stop(#[source] io::Error),
    /// A core ended by itself. Nothing that lives there is served any more.
    #[error("core {core} failed; the engine ends at once, and is to be started again")]
    Core {
        /// Which.
        core: usize,
    },
    /// Stopping took too long.
    #[error("the engine did not stop within {0:?}; its pools are recovered at the next start")]
    Slow(Duration),
}

/// Work of a daemon. Behind a pointer: it is compiled here, not in each program that runs one.
pub type Running<T> = Pin<Box<dyn Future<Output = T>>>;

/// A running engine with its API bound.
pub struct Daemon {
    server: Server,
    engine: Engine,
    api: api::Server,
    guard: Guard,
    heartbeats: Vec<Client>,
    drain: Duration,
}

impl Daemon {
    /// Starts the reactors and opens the pools; nothing is answered before [`Daemon::run`].
    ///
    /// Targets need a store, in which the records of their volumes are.
    pub fn start(
        config: Config,
        store: Option<Arc<dyn Store>>,
    ) -> Running<Result<Daemon, DaemonError>> {
        Box::pin(Daemon::begin(config, store))
    }

    async fn begin(config: Config, store: Option<Arc<dyn Store>>) -> Result<Daemon, DaemonError> {
        let addresses = config.listen.iter().chain([&config.api]);
        if let Some(address) = addresses.copied().find(|address| address.ip().is_unspecified()) {
            return Err(DaemonError::Wildcard { address });
        }
        let secret = config.replication.secret.as_ref();
        let is_open = !secret.is_some_and(|it| it.is_required()) && !config.trusts_network;
        let mut listen = config.listen.iter().copied();
        if is_open && let Some(address) = listen.find(|address| !address.ip().is_loopback()) {
            return Err(DaemonError::Exposed { address });
        }
        let nqn = Nqn::node(&config.node)?;
        let wire_name = nvme::wire::Nqn::new(nqn.as_str())?;
        let guard = Guard { tokens: config.tokens, ..Guard::default() };
        let heartbeats = config.control.into_iter().map(Client::new).collect::<Result<_, _>>();
        let heartbeats = heartbeats.map_err(DaemonError::Control)?;
        let dir = Dir::open(&config.dir)?;
        let known: PoolManifest = dir.read(&config.node)?;
        let api = api::Server::bind(config.api, config.tls.as_ref(), guard.limits).await?;
        let cores = config.cores.len();
        let server = Server::start(serve::Config {
            listen: config.listen,
            cores: config.cores,
            pools: Vec::new(),
            subsystems: BTreeMap::new(),
            digests: Digests { header: true, data: true },
            limits: EngineLimits { pool_cache: config.pool_cache, ..EngineLimits::default() },
            replication: config.replication.clone(),
        })?;
        let instance = new_instance()?;
        let address = NodeAddress {
            api: api.local_addr().map_err(DaemonError::Address)?,
            data: server.addresses().to_vec(),
            nqn,
        };
        let info = NodeInfo {
            name: config.node,
            instance,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at: engine::now(),
            address,
        };
        let events: Arc<Log<Event>> = Arc::new(Log::new(instance, EVENTS));
        let records = store.map(Records::new);
        let nobody = format!("nqn.2014-08.org.nvmexpress:uuid:{}", new_instance()?);
        let nobody = nvme::wire::Nqn::new(&nobody)?;
        let names = (info, wire_name, nobody);
        let keys = (keys::Keys(config.keys), config.error_limits, config.read_lease);
        let (engine, told) = Engine::new(names, (&server, cores), dir, keys, events, records);
        target_events::start(&engine, told).map_err(serve::StartError::Thread)?;
        tokio::spawn(health_monitor::run(Arc::downgrade(&engine.0)));
        if let Some(secret) = config.replication.secret {
            tokio::spawn(rotation::run(Arc::downgrade(&engine.0), secret));
        }
        engine.open_known(known).await;
        Ok(Daemon { server, engine, api, guard, heartbeats, drain: config.drain })
    }

    /// Which engine this is, and how it is reached.
    pub fn info(&self) -> &NodeInfo {
        &self.engine.0.info
    }

    /// Serves until `stop` ends; then deregisters, ends what is under way, and closes the pools.
    pub fn run(self, stop: impl Future<Output = ()> + 'static) -> Running<Result<(), DaemonError>> {
        self.run_staged(stop, std::future::ready(()))
    }

    /// The same, but after its targets are closed it serves its replicas until `alone` ends:
    /// whoever stops several engines at once lets the targets of all of them end while their copies
    /// are there.
    pub fn run_staged(
        self,
        stop: impl Future<Output = ()> + 'static,
        alone: impl Future<Output = ()> + 'static,
    ) -> Running<Result<(), DaemonError>> {
        Box::pin(self.serve(Box::pin(stop), Box::pin(alone)))
    }

    async fn serve(self, stop: Running<()>, alone: Running<()>) -> Result<(), DaemonError> {
        let Daemon { server, engine, api, guard, heartbeats, drain } = self;
        let (stopping, stopped) = watch::channel(false);
        let events = Arc::clone(&engine.0.events);
        let beats = (!heartbeats.is_empty())
            .then(|| tokio::spawn(heartbeat::run(heartbeats, engine.clone(), stopped.clone())));
        let router = api::node::router(engine.clone(), Arc::clone(&events), guard);
        let mut until = stopped;
        let serving = tokio::spawn(api.run(router, async move {
            // An error: whoever would have said so is gone.
            let _ = until.wait_for(|stop| *stop).await;
        }));
        let mut failures = server.failures();
        tokio::select! {
            () = stop => tracing::info!("stopping"),
            failed = failures.wait_for(Option::is_some) => {
                // An error: the threads are gone, and none of them has failed.
                let core = failed.ok().and_then(|core| *core).unwrap_or_default();
                return Err(DaemonError::Core { core });
            }
        }
        let _ = stopping.send(true);
        events.close();
        let ended = async {
            if let Some(beats) = beats {
                // It logs what goes wrong itself.
                let _ = beats.await;
            }
            let _ = serving.await;
            // Each within its own limit; what does not end cleanly is found out at the next
            // opening.
            engine.close_all_targets().await;
            alone.await;
            tokio::task::spawn_blocking(|| server.stop()).await
        };
        match tokio::time::timeout(drain, ended).await {
            Err(_) => Err(DaemonError::Slow(drain)),
            Ok(Ok(result)) => result.map_err(DaemonError::Stop),
            Ok(Err(error)) => Err(DaemonError::Stop(io::Error::other(error))),
        }
    }
}

fn new_instance() -> Result<InstanceId, DaemonError> {
    let mut bytes = [0; 16];
    crate::entropy::fill(&mut bytes).map_err(DaemonError::Random)?;
    let uuid = uuid::Builder::from_random_bytes(bytes).into_uuid();
    Ok(InstanceId::new(uuid)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An engine on loopback.
    fn config(dir: &std::path::Path) -> Config {
        Config {
            node: "node-1".parse().unwrap(),
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            api: "127.0.0.1:0".parse().unwrap(),
            cores: vec![0],
            dir: dir.into(),
            keys: None,
            tokens: None,
            tls: None,
            control: Vec::new(),
            drain: Duration::from_secs(1),
            pool_cache: Bytes::mib(1),
            replication: Replication::default(),
            trusts_network: false,
            error_limits: ErrorLimits::default(),
            read_lease: LONGEST_LEASE,
        }
    }

    /// Nobody could use what lives on that core: the process ends, and is started again.
    #[tokio::test]
    async fn a_dead_reactor_ends_the_daemon() {
        let dir = tempfile::tempdir().unwrap();
        let daemon = Daemon::start(config(dir.path()), None).await.unwrap();
        daemon.server.break_core(None);
        let running = daemon.run(std::future::pending());
        let ended = tokio::time::timeout(Duration::from_secs(20), running).await;
        let failed = ended.expect("it goes on without its reactor").unwrap_err();
        assert!(matches!(failed, DaemonError::Core { core: 0 }), "{failed}");
    }

    /// Whoever hears nothing moves the targets away; a heartbeat would keep them here.
    #[tokio::test]
    async fn no_heartbeat_is_sent_while_a_reactor_hangs() {
        let dir = tempfile::tempdir().unwrap();
        let control = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = control.local_addr().unwrap().to_string().parse().unwrap();
        let control_plane = vec![ClientConfig::plain(server)];
        let config = Config { control: control_plane, ..config(dir.path()) };
        let daemon = Daemon::start(config, None).await.unwrap();
        let (release, still) = std::sync::mpsc::channel();
        daemon.server.break_core(Some(still));
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let running = daemon.run(async move { drop(stopped.await) });
        let calls = async {
            let hung = tokio::time::timeout(Duration::from_secs(3), control.accept()).await;
            assert!(hung.is_err(), "a heartbeat was sent by an engine that hangs");
            drop(release);
            let well = tokio::time::timeout(Duration::from_secs(20), control.accept()).await;
            assert!(well.is_ok(), "no heartbeat was sent by an engine that is well");
            drop(stop);
        };
        // How it stops is not the question: nobody answers the heartbeat.
        let (_, ()) = tokio::join!(running, calls);
    }

    #[tokio::test]
    async fn replicas_are_not_served_to_a_network_without_a_secret() {
        let dir = tempfile::tempdir().unwrap();
        let start = |listen: &str, trusts_network| {
            let listen = vec!["127.0.0.1:0".parse().unwrap(), listen.parse().unwrap()];
            let config = Config { listen, trusts_network, ..config(dir.path()) };
            Daemon::start(config, None)
        };
        // No machine has this address; it is never bound.
        let exposed = "192.0.2.1:4420";
        for listen in [exposed, "[2001:db8::1]:4420"] {
            let refused = start(listen, false).await.err().unwrap();
            assert!(matches!(refused, DaemonError::Exposed { .. }), "{refused}");
            let remedy = refused.to_string();
            assert!(remedy.contains("--cluster-secret") && remedy.contains(listen), "{remedy}");
        }
        let insisted = start(exposed, true).await.err().unwrap();
        assert!(!matches!(insisted, DaemonError::Exposed { .. }), "{insisted}");
    }
}
