//! The target: listens, and serves subsystems over NVMe/TCP, one reactor per core.
//!
//! The first core accepts all connections. Each is served there until its Connect command names a
//! subsystem, and then moves to the core that owns it. What is served can be changed while the
//! engine runs, see [`TargetHandle`].

mod admin;
mod admission;
mod auth_worker;
mod change;
mod config;
mod connection_quota;
mod core_guard;
mod descriptors;
mod directory;
mod exported_subsystem;
mod handle;
mod host_connection;
mod local_path;
mod messages;
mod pool_admin;
mod reply;
mod reservation;
mod reservation_store;
mod setup;
mod shard;
#[cfg(test)]
mod simulation;
mod slot_buffers;
mod timers;
mod volume_admin;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use reactor::{Key, Mailbox, Reactor, SetupError, Token, pin_to_core};

use auth_worker::AuthWorker;
pub use config::{Backing, Config, EngineLimits, Host, Namespace, Pool, Subsystem, identity_of};
pub use connection_quota::QuotaLimits;
pub use core_guard::CoreFailures;
use core_guard::CoreGuard;
use directory::SubsystemDirectory;
pub use exported_subsystem::ServeError;
pub use handle::{AdminError, AdminResponse, TargetHandle};
pub use pool_admin::PoolHandle;
pub use reply::Pending;
pub use reservation_store::ReadError;
use reservation_store::ReservationStore;
pub(crate) use reservation_store::{fence_of, kept_fence, least_epoch};
use shard::{Message, Shard};
pub use volume_admin::VolumeHandle;

use crate::device::{Devices, TokenKinds};
use crate::startup_retry;

/// Kinds of tokens.
const DEVICE: u8 = 1;
const RECEIVE: u8 = 2;
const SEND: u8 = 3;
const ACCEPT: u8 = 4;
const TICK: u8 = 5;
const POOL: u8 = 6;
const VOLUME: u8 = 7;

/// Subsystems of one core, with discovery.
const SUBSYSTEMS: u32 = 4096;

/// Sockets of one core: those of hosts and engines that come, and those to replicas.
const SOCKETS: u32 = 8 * 1024;

/// No more bytes than this are handed to the kernel in one send.
const SEND_AT_ONCE: usize = 1 << 20;

fn token(kind: u8, key: Option<Key>) -> Token {
    // A link asks for nothing before it has its place.
    Token::of(kind, key.unwrap_or(Key::from_bits(0)))
}

/// Why an engine could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No core was named.
    #[error("an engine needs at least one core")]
    NoCores,
    /// The core does not exist or is not ours to use.
    #[error("cannot run on core {core}")]
    Core {
        /// Which.
        core: usize,
        /// What the system said.
        source: io::Error,
    },
    /// No reactor.
    #[error("cannot set up the reactor of core {core}")]
    Reactor {
        /// Which.
        core: usize,
        /// Why.
        source: SetupError,
    },
    /// Somebody else is listening there, or the address is not ours.
    #[error("cannot listen on {address}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// A pool cannot be opened or made.
    #[error("pool {name} cannot be opened")]
    Pool {
        /// Which.
        name: String,
        /// Why.
        source: crate::pools::PoolError,
    },
    /// A subsystem cannot be served.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// More subsystems than a core has room for.
    #[error("there are too many subsystems for so few cores; give the engine more")]
    TooMany,
    /// No thread.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
    /// A thread ended before it was ready.
    #[error("core {core} ended while it was starting")]
    Vanished {
        /// Which.
        core: usize,
    },
}

/// A running engine. Dropping it without [`Server::stop`] leaves it running until the process ends.
pub struct Server {
    addresses: Vec<SocketAddr>,
    mailboxes: Vec<Mailbox<Message>>,
    directory: Arc<SubsystemDirectory>,
    threads: Vec<JoinHandle<io::Result<()>>>,
    failed: CoreFailures,
}

/// What a core says when it is set up, and what it waits for before it runs.
struct Prepared {
    mailbox: Mailbox<Message>,
    addresses: Vec<SocketAddr>,
    go: SyncSender<Go>,
}

struct Go {
    mailboxes: Vec<Mailbox<Message>>,
    addresses: Vec<SocketAddr>,
    reservation_store: ReservationStore,
    auth_worker: AuthWorker,
}

impl Server {
    /// Opens everything and begins to serve. Returns when hosts can connect.
    pub fn start(config: Config) -> Result<Server, StartError> {
        let auth_worker = AuthWorker::start().map_err(StartError::Thread)?;
        Server::start_with(config, &auth_worker)
    }

    fn start_with(mut config: Config, auth_worker: &AuthWorker) -> Result<Server, StartError> {
        if config.cores.is_empty() {
            return Err(StartError::NoCores);
        }
        let files = descriptors::raise();
        let places = &mut config.limits.places;
        *places = descriptors::places(*places, config.cores.len(), files);
        let reservation_store = ReservationStore::start().map_err(StartError::Thread)?;
        let directory = Arc::new(SubsystemDirectory::new(config.cores.len()));
        for (nqn, subsystem) in &config.subsystems {
            let home = subsystem.home(config.cores.len());
            directory.pin_or_choose(nqn.clone(), home).tell(Some(subsystem.hosts()));
        }
        let config = Arc::new(config);
        let (failing, failed) = tokio::sync::watch::channel(None);
        let mut threads = Vec::new();
        let mut prepared = Vec::new();
        for (index, core) in config.cores.iter().copied().enumerate() {
            let (report, reported) = sync_channel(1);
            let (config, directory) = (Arc::clone(&config), Arc::clone(&directory));
            let ending = CoreGuard::new(core, &failing);
            let thread = std::thread::Builder::new()
                .name(format!("core-{core}"))
                .spawn(move || {
                    let ended = run(index, core, &config, directory, &report);
                    if ended.is_ok() {
                        ending.expected();
                    }
                    ended
                })
                .map_err(StartError::Thread)?;
            threads.push(thread);
            prepared.push(reported.recv().map_err(|_| StartError::Vanished { core })??);
        }
        let mailboxes: Vec<_> = prepared.iter().map(|core| core.mailbox.clone()).collect();
        let addresses: Vec<_> =
            prepared.iter().flat_map(|core| core.addresses.iter().copied()).collect();
        for core in prepared {
            let (mailboxes, addresses) = (mailboxes.clone(), addresses.clone());
            // It waits for this; if it is gone, joining it says why.
            let (reservation_store, auth_worker) = (reservation_store.clone(), auth_worker.clone());
            let _ = core.go.send(Go { mailboxes, addresses, reservation_store, auth_worker });
        }
        Ok(Server { addresses, mailboxes, directory, threads, failed })
    }

    /// Where it really listens.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Which core ended by itself, when one does.
    pub fn failures(&self) -> CoreFailures {
        self.failed.clone()
    }

    /// Breaks the first core: it panics, or stands still until the other end of a channel is gone.
    #[cfg(test)]
    pub(crate) fn break_core(&self, still: Option<Receiver<()>>) {
        let broken = self.mailboxes[0].post(Message::Break(still));
        assert!(broken.is_ok());
    }

    /// Changes what it serves, from any thread.
    pub fn orders(&self) -> TargetHandle {
        TargetHandle::new(Arc::clone(&self.directory), &self.mailboxes)
    }

    /// Gives orders to its pools, from any thread.
    pub fn pools(&self) -> PoolHandle {
        PoolHandle::new(&self.mailboxes)
    }

    /// Gives orders to its mirrored volumes, from any thread.
    pub fn volumes(&self) -> VolumeHandle {
        VolumeHandle::new(Arc::clone(&self.directory), &self.mailboxes)
    }

    /// Ends all connections and waits until everything at work is done.
    pub fn stop(self) -> io::Result<()> {
        for mailbox in &self.mailboxes {
            // A core that is gone needs no asking; a full mailbox is read soon.
            let mut message = Message::Stop;
            while let Err(reactor::Undelivered::Full(back)) = mailbox.post(message) {
                message = back;
                std::thread::yield_now();
            }
        }
        self.join()
    }

    /// Waits until it ends by itself, which it does only when something is badly wrong.
    pub fn join(self) -> io::Result<()> {
        let mut result = Ok(());
        for thread in self.threads {
            let ended = thread.join().unwrap_or_else(|_| Err(io::Error::other("a core panicked")));
            result = result.and(ended);
        }
        result
    }
}

type Report = SyncSender<Result<Prepared, StartError>>;

/// A core's thread.
fn run(
    index: usize,
    core: usize,
    config: &Config,
    directory: Arc<SubsystemDirectory>,
    report: &Report,
) -> io::Result<()> {
    let prepared = prepare(index, core, config, directory);
    let (mut reactor, mut handler, addresses) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => {
            let _ = report.send(Err(error));
            return Ok(());
        }
    };
    let (go, started): (SyncSender<Go>, Receiver<Go>) = sync_channel(1);
    let mailbox = reactor.mailbox();
    if report.send(Ok(Prepared { mailbox, addresses, go })).is_err() {
        return Ok(());
    }
    let Ok(Go { mailboxes, addresses, reservation_store, auth_worker }) = started.recv() else {
        return Ok(());
    };
    handler.reservation_store = Some(reservation_store);
    handler.auth_worker = Some(auth_worker);
    handler.mailboxes = mailboxes;
    handler.addresses = addresses;
    handler.tell_discovery();
    reactor.run(&mut handler)
}

fn prepare(
    index: usize,
    core: usize,
    config: &Config,
    directory: Arc<SubsystemDirectory>,
) -> Result<(Reactor<Message>, Shard, Vec<SocketAddr>), StartError> {
    pin_to_core(core).map_err(|source| StartError::Core { core, source })?;
    let sockets = reactor::Config { sockets: SOCKETS, ..reactor::Config::default() };
    let mut reactor =
        Reactor::new(&sockets).map_err(|source| StartError::Reactor { core, source })?;
    if !reactor.buffers_are_registered() {
        tracing::warn!(core, "buffers are not locked in memory; raise the memlock limit for speed");
    }
    let mut devices = Devices::new(TokenKinds { files: DEVICE, pools: POOL });
    devices.pools.set_cache(config.limits.pool_cache);
    pool_admin::open(config, index, &mut devices, &mut reactor)?;
    if index == 0 {
        config.listen.iter().for_each(|address| startup_retry::wait_until_free(*address));
    }
    let (handler, addresses) = Shard::open(index, config, directory, (devices, &mut reactor))?;
    Ok((reactor, handler, addresses))
}
