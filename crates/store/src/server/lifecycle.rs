//! Opening the store and serving it.

use std::{
    fs::{self, File, TryLockError},
    hash::{BuildHasher, RandomState},
    io,
    net::{SocketAddr, TcpListener},
    os::unix::fs::{DirBuilderExt as _, MetadataExt},
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

use futures::future::BoxFuture;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tonic::{service::Routes, transport::Server as Grpc};

use crate::proto::{
    etcdserverpb::{
        auth_server::AuthServer, cluster_server::ClusterServer, kv_server::KvServer,
        lease_server::LeaseServer, maintenance_server::MaintenanceServer,
        watch_server::WatchServer,
    },
    v3electionpb::election_server::ElectionServer,
    v3lockpb::lock_server::LockServer,
};

use super::{
    config::Config,
    connection,
    disk::{self, Fresh, LoadError},
    http::{self, Told},
    journal::{Damage, Identity, NAME},
    machine::{Machine, Start},
    rpc::{Place, Service},
    server_state::ServerState,
    storage::{Directory, RealDirectory},
    writer::{Handle, Parts, Writer},
};

/// Most bytes of one message from a client. More than a request may have, so that a client that
/// sends a little too much is told so in etcd's words.
pub(super) const MAX_MESSAGE: usize = 8 << 20;
/// Most streams of one connection.
const STREAMS_PER_CONNECTION: u32 = 2048;
/// A connection that does not answer for this long is closed.
const KEEPALIVE: Duration = Duration::from_secs(20);
/// Name of the file that only one server holds locked.
const LOCK: &str = "LOCK";

/// Why a server cannot be opened. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Somebody else listens there.
    #[error("cannot listen on {address}; choose another address, or stop what listens there")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The folder cannot be used.
    #[error("cannot use the folder {}; give one that can be read and written", .dir.display())]
    Folder {
        /// Which.
        dir: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another server has the folder.
    #[error("another server uses the folder {}; stop it or give another", .dir.display())]
    Locked {
        /// Which.
        dir: PathBuf,
    },
    /// A newer program wrote the store.
    #[error(
        "{} was written by a newer version (format {found}, this one knows {known}); use that one",
        .path.display()
    )]
    Newer {
        /// The journal.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The newest format that is known.
        known: u32,
    },
    /// The store is damaged.
    #[error("{} is damaged; put back a copy of it made with snapshot save", .path.display())]
    Damaged {
        /// The journal.
        path: PathBuf,
        /// What is wrong.
        source: Damage,
    },
    /// What was read may not be on the disk, and cannot be brought there.
    #[error(
        "cannot make {} durable, so nothing of it is served; look for errors of its disk in the \
         kernel's log, then start again",
        .path.display()
    )]
    NotDurable {
        /// The journal.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The certificates cannot be used.
    #[error("cannot use the certificate, its key or the client CA; give them in PEM")]
    Tls(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The description of the protocol in this program is damaged.
    #[error("this program is damaged; install it again")]
    Protocol(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The writer's thread cannot be started.
    #[error("cannot start a thread; raise the limit of processes")]
    Thread(#[source] io::Error),
}

/// Why a server stopped before it was told to.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The listening socket cannot be handed to the runtime.
    #[error("cannot serve on {address}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The gRPC server failed.
    #[error("serving on {address} failed")]
    Serve {
        /// Where.
        address: SocketAddr,
        /// Why.
        source: tonic::transport::Error,
    },
}

/// An open store that listens. Dropped, it is closed in order.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    tls: Option<TlsAcceptor>,
    routes: Routes,
    stop: CancellationToken,
    // Last, so that the lock is held until the writer has ended.
    closer: Closer,
}

/// Ends the writer, then lets go of the folder.
struct Closer {
    writer: Handle,
    thread: Option<thread::JoinHandle<()>>,
    _lock: File,
}

impl Drop for Closer {
    fn drop(&mut self) {
        self.writer.stop();
        if let Some(thread) = self.thread.take() {
            // A writer that panicked has said so.
            let _ = thread.join();
        }
    }
}

impl Server {
    /// Binds the address, locks the folder, loads the store. Blocks while it reads the disk.
    pub fn open(config: Config) -> Result<Self, OpenError> {
        let Config { dir, listen, advertise, tls, retention, quota, progress_interval } = config;
        let bad_address = |source| OpenError::Listen { address: listen, source };
        let listener = TcpListener::bind(listen).map_err(bad_address)?;
        listener.set_nonblocking(true).map_err(bad_address)?;
        let address = listener.local_addr().map_err(bad_address)?;
        let acceptor =
            tls.as_ref().map(connection::acceptor).transpose().map_err(OpenError::Tls)?;
        let lock = lock(&dir)?;
        let folder: Arc<dyn Directory> = Arc::new(RealDirectory::new(dir.clone()));
        let identity = Identity { cluster: random(), member: random() };
        let loaded = disk::load(&*folder, Fresh { identity, salt: random() })
            .map_err(|error| explain(&dir, error))?;
        let (leases, settings) = (loaded.leases, loaded.settings);
        let start = Start { leases, settings: settings.clone(), quota, seed: random() };
        let machine = Machine::new(&loaded.index, start);
        let journal = loaded.journal;
        let on_disk = (journal.identity(), journal.len());
        let shared = Arc::new(ServerState::new(loaded.index, settings, on_disk));
        let (writer, thread) = Writer::start(Parts {
            shared: Arc::clone(&shared),
            machine,
            journal,
            folder,
            dir: dir.clone(),
            retention,
        })
        .map_err(OpenError::Thread)?;
        let stop = CancellationToken::new();
        let advertised = advertised(advertise, address, tls.is_some());
        let place = Place { advertised, dir, progress_interval };
        let service = Service::new(Arc::clone(&shared), writer.clone(), stop.clone(), place);
        let closer = Closer { writer, thread: Some(thread), _lock: lock };
        let routes = http::router(
            services(service),
            Told { state: shared, quota, is_tls: acceptor.is_some() },
        );
        let routes = routes.map_err(|error| OpenError::Protocol(error.into()))?.into();
        Ok(Self { listener, address, tls: acceptor, routes, stop, closer })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `shutdown` is ready, then ends all streams and closes the store in order.
    pub fn run(
        self,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> BoxFuture<'static, Result<(), RunError>> {
        // Behind a pointer: all that serves is compiled here, not in each program that runs it.
        Box::pin(self.serve(Box::pin(shutdown)))
    }

    async fn serve(self, shutdown: BoxFuture<'static, ()>) -> Result<(), RunError> {
        let Self { listener, address, tls, routes, stop, closer } = self;
        let listener = tokio::net::TcpListener::from_std(listener)
            .map_err(|source| RunError::Listen { address, source })?;
        let incoming = connection::incoming(listener, tls, stop.clone());
        let served = Grpc::builder()
            .accept_http1(true)
            .max_concurrent_streams(STREAMS_PER_CONNECTION)
            .http2_keepalive_interval(Some(KEEPALIVE))
            .http2_keepalive_timeout(Some(KEEPALIVE))
            .add_routes(routes)
            .serve_with_incoming_shutdown(incoming, async {
                shutdown.await;
                stop.cancel();
            })
            .await;
        // Joins a thread that may be in the middle of a sync.
        let _ = tokio::task::spawn_blocking(move || drop(closer)).await;
        served.map_err(|source| RunError::Serve { address, source })
    }
}

/// The gRPC services.
fn services(service: Service) -> axum::Router {
    let kv = KvServer::new(service.clone()).max_decoding_message_size(MAX_MESSAGE);
    Routes::new(kv)
        .add_service(LeaseServer::new(service.clone()))
        .add_service(WatchServer::new(service.clone()))
        .add_service(ClusterServer::new(service.clone()))
        .add_service(AuthServer::new(service.clone()))
        .add_service(LockServer::new(service.clone()))
        .add_service(ElectionServer::new(service.clone()))
        .add_service(MaintenanceServer::new(service))
        .prepare()
        .into_axum_router()
}

/// Where clients are told to reach the server. One that listens everywhere is reached on this
/// machine, as far as it knows.
fn advertised(given: Vec<String>, address: SocketAddr, tls: bool) -> Vec<String> {
    if !given.is_empty() {
        return given;
    }
    let scheme = if tls { "https" } else { "http" };
    let port = address.port();
    vec![match address.ip() {
        ip if ip.is_unspecified() => format!("{scheme}://localhost:{port}"),
        _ => format!("{scheme}://{address}"),
    }]
}

fn lock(dir: &Path) -> Result<File, OpenError> {
    let bad_folder = |source| OpenError::Folder { dir: dir.to_owned(), source };
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true).mode(0o700).create(dir).map_err(bad_folder)?;
    sync_ancestors(dir).map_err(bad_folder)?;
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false);
    let file = options.open(dir.join(LOCK)).map_err(bad_folder)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::Locked { dir: dir.to_owned() }),
        Err(TryLockError::Error(source)) => Err(bad_folder(source)),
    }
}

/// Makes the names of the folders that lead to a folder durable: this process may have made some of
/// them, or one that died. Only a file system is looked at that the folder itself is on.
fn sync_ancestors(dir: &Path) -> io::Result<()> {
    let dir = fs::canonicalize(dir)?;
    let device = fs::metadata(&dir)?.dev();
    for ancestor in dir.ancestors().skip(1) {
        match File::open(ancestor) {
            Ok(folder) if folder.metadata()?.dev() == device => folder.sync_all()?,
            // Where nothing can be listed nobody made a folder either.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            Ok(_) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn explain(dir: &Path, error: LoadError) -> OpenError {
    let path = dir.join(NAME);
    match error {
        LoadError::Write(source) => OpenError::Folder { dir: dir.to_owned(), source },
        LoadError::Sync(source) => OpenError::NotDurable { path, source },
        LoadError::Damage(Damage::Newer(found)) => {
            OpenError::Newer { path, found, known: super::journal::FORMAT }
        }
        LoadError::Damage(Damage::Read(source)) => {
            OpenError::Folder { dir: dir.to_owned(), source }
        }
        LoadError::Damage(source) => OpenError::Damaged { path, source },
    }
}

/// A number that nobody can foresee. The hasher of every new map is seeded by the system.
pub(super) fn random() -> u64 {
    RandomState::new().hash_one(0)
}
