//! The target: listens, and serves subsystems over NVMe/TCP, one reactor per core.
//!
//! The first core accepts all connections. Each is served there until its Connect command names a
//! subsystem, and then moves to the core that owns it. What is served can be changed while the
//! engine runs, see [`Orders`].

mod admission;
mod change;
mod config;
mod core;
mod descriptors;
mod direct;
mod ending;
mod held;
mod keeper;
mod link;
mod messages;
mod obey;
mod open;
mod orders;
mod pooling;
mod prover;
mod reply;
mod reservation;
mod routes;
mod served;
mod shares;
#[cfg(test)]
mod simulation;
mod upkeep;
mod voluming;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use reactor::{Key, Mailbox, Reactor, SetupError, Token, pin_to_core};

pub use config::{Backing, Config, Host, Limits, Namespace, Pool, Subsystem, identity_of};
use core::{Core, Message};
pub use ending::CoreFailures;
use ending::Ending;
use keeper::Keeper;
pub use keeper::ReadError;
pub(crate) use keeper::{fence_of, kept_fence, least_epoch};
pub use orders::{Answer, OrderError, Orders};
pub use pooling::PoolOrders;
use prover::Prover;
pub use reply::Pending;
use routes::Routes;
pub use served::ServeError;
pub use shares::Places;
pub use voluming::VolumeOrders;

use crate::device::{Devices, TokenKinds};
use crate::patience;

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
    routes: Arc<Routes>,
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
    keeper: Keeper,
    prover: Prover,
}

impl Server {
    /// Opens everything and begins to serve. Returns when hosts can connect.
    pub fn start(config: Config) -> Result<Server, StartError> {
        let prover = Prover::start().map_err(StartError::Thread)?;
        Server::start_with(config, &prover)
    }

    fn start_with(mut config: Config, prover: &Prover) -> Result<Server, StartError> {
        if config.cores.is_empty() {
            return Err(StartError::NoCores);
        }
        let files = descriptors::raise();
        let places = &mut config.limits.places;
        *places = descriptors::places(*places, config.cores.len(), files);
        let keeper = Keeper::start().map_err(StartError::Thread)?;
        let routes = Arc::new(Routes::new(config.cores.len()));
        for (nqn, subsystem) in &config.subsystems {
            let home = subsystem.home(config.cores.len());
            routes.claim_or_choose(nqn.clone(), home).tell(Some(subsystem.hosts()));
        }
        let config = Arc::new(config);
        let (failing, failed) = tokio::sync::watch::channel(None);
        let mut threads = Vec::new();
        let mut prepared = Vec::new();
        for (index, core) in config.cores.iter().copied().enumerate() {
            let (report, reported) = sync_channel(1);
            let (config, routes) = (Arc::clone(&config), Arc::clone(&routes));
            let ending = Ending::new(core, &failing);
            let thread = std::thread::Builder::new()
                .name(format!("core-{core}"))
                .spawn(move || {
                    let ended = run(index, core, &config, routes, &report);
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
            let (keeper, prover) = (keeper.clone(), prover.clone());
            let _ = core.go.send(Go { mailboxes, addresses, keeper, prover });
        }
        Ok(Server { addresses, mailboxes, routes, threads, failed })
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
    pub fn orders(&self) -> Orders {
        Orders::new(Arc::clone(&self.routes), &self.mailboxes)
    }

    /// Gives orders to its pools, from any thread.
    pub fn pools(&self) -> PoolOrders {
        PoolOrders::new(&self.mailboxes)
    }

    /// Gives orders to its mirrored volumes, from any thread.
    pub fn volumes(&self) -> VolumeOrders {
        VolumeOrders::new(Arc::clone(&self.routes), &self.mailboxes)
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
    routes: Arc<Routes>,
    report: &Report,
) -> io::Result<()> {
    let prepared = prepare(index, core, config, routes);
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
    let Ok(Go { mailboxes, addresses, keeper, prover }) = started.recv() else { return Ok(()) };
    handler.keeper = Some(keeper);
    handler.prover = Some(prover);
    handler.mailboxes = mailboxes;
    handler.addresses = addresses;
    handler.tell_discovery();
    reactor.run(&mut handler)
}

fn prepare(
    index: usize,
    core: usize,
    config: &Config,
    routes: Arc<Routes>,
) -> Result<(Reactor<Message>, Core, Vec<SocketAddr>), StartError> {
    pin_to_core(core).map_err(|source| StartError::Core { core, source })?;
    let sockets = reactor::Config { sockets: SOCKETS, ..reactor::Config::default() };
    let mut reactor =
        Reactor::new(&sockets).map_err(|source| StartError::Reactor { core, source })?;
    if !reactor.buffers_are_registered() {
        tracing::warn!(core, "buffers are not locked in memory; raise the memlock limit for speed");
    }
    let mut devices = Devices::new(TokenKinds { files: DEVICE, pools: POOL });
    devices.pools.set_cache(config.limits.pool_cache);
    pooling::open(config, index, &mut devices, &mut reactor)?;
    if index == 0 {
        config.listen.iter().for_each(|address| patience::wait_until_free(*address));
    }
    let (handler, addresses) = Core::open(index, config, routes, (devices, &mut reactor))?;
    Ok((reactor, handler, addresses))
}
