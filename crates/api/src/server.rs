//! The server: bound, then run until it is told to stop.
//!
//! Headers, connections and the time to drain are bounded here; bodies and answers by the guard of
//! the routes ([`crate::Guard`]).

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use futures::future::BoxFuture;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::TlsServer;
use crate::router::Peer;

/// Sizes and deadlines of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest body, in bytes.
    pub body: usize,
    /// The longest header section, in bytes; hyper takes no less than 8192.
    pub headers: usize,
    /// How long a request may take from its headers to those of the answer.
    pub request: Duration,
    /// How long the headers, and the handshake of TLS, may take.
    pub opening: Duration,
    /// How many connections at a time; the next one waits.
    pub connections: usize,
    /// How long answers under way may go on after the order to stop.
    pub drain: Duration,
}

impl Limits {
    /// How many connections one address may have: others get in whatever it does.
    fn per_address(&self) -> usize {
        self.connections.saturating_mul(3).div_ceil(4)
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            body: 1 << 20,
            headers: 16 << 10,
            request: Duration::from_secs(30),
            opening: Duration::from_secs(10),
            connections: 1024,
            drain: Duration::from_secs(10),
        }
    }
}

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address could not be had.
    #[error("cannot listen on {listen}; if it is in use or not of this machine, choose another")]
    Listen {
        /// Where.
        listen: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// Nobody can be called from here.
    #[error("TLS cannot be set up for calls to others")]
    Calls {
        /// Why.
        source: crate::CallError,
    },
}

/// A server that has its address.
pub struct Server {
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    limits: Limits,
}

impl Server {
    /// Takes the address. Nothing is answered before [`Server::run`].
    pub async fn bind(
        listen: SocketAddr,
        tls: Option<&TlsServer>,
        limits: Limits,
    ) -> Result<Server, StartError> {
        let listener = TcpListener::bind(listen)
            .await
            .map_err(|source| StartError::Listen { listen, source })?;
        let tls = tls.map(|tls| TlsAcceptor::from(tls.config()));
        Ok(Server { listener, tls, limits })
    }

    /// The address taken; the port is a real one even if 0 was asked for.
    pub fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop` ends, then finishes the answers under way, within the limit.
    pub fn run(
        self,
        router: Router,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> BoxFuture<'static, ()> {
        Box::pin(self.serve(router, Box::pin(stop)))
    }

    async fn serve(self, router: Router, mut stop: BoxFuture<'static, ()>) {
        let connections = Arc::new(Semaphore::new(self.limits.connections));
        let shares = Arc::new(Shares::default());
        let graceful = GracefulShutdown::new();
        let mut open_ones = JoinSet::new();
        loop {
            let accepted = async {
                let permit = Arc::clone(&connections).acquire_owned().await;
                (permit, self.listener.accept().await)
            };
            let (permit, stream) = tokio::select! {
                () = &mut stop => break,
                Some(_) = open_ones.join_next() => continue,
                (permit, stream) = accepted => (permit, stream),
            };
            let (stream, peer) = match stream {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Out of descriptors, mostly: others must close before it can go on.
                    tracing::warn!(%error, "a connection could not be taken");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let Some(share) = shares.take(peer.ip(), self.limits.per_address()) else {
                tracing::warn!(%peer, "a connection was refused: its address has too many");
                continue;
            };
            let router = router.clone().layer(axum::Extension(Peer(peer)));
            let (limits, tls) = (self.limits, self.tls.clone());
            let watcher = graceful.watcher();
            open_ones.spawn(async move {
                if let Err(error) = open(stream, tls, router, limits, watcher).await {
                    tracing::debug!(%error, %peer, "a connection ended with an error");
                }
                drop((permit, share));
            });
        }
        drop(self.listener);
        if tokio::time::timeout(self.limits.drain, graceful.shutdown()).await.is_err() {
            tracing::warn!("answers under way were cut off: they took longer than the limit");
            open_ones.shutdown().await;
        }
    }
}

/// How many connections each address has open.
#[derive(Debug, Default)]
struct Shares(Mutex<BTreeMap<IpAddr, usize>>);

/// One of them.
struct Share {
    of: IpAddr,
    shares: Arc<Shares>,
}

impl Shares {
    /// One more for this address, if it has fewer than so many.
    fn take(self: &Arc<Shares>, of: IpAddr, most: usize) -> Option<Share> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(of).or_default();
        if *count >= most {
            return None;
        }
        *count += 1;
        Some(Share { of, shares: Arc::clone(self) })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut open = self.shares.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.of) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                open.remove(&self.of);
            }
        }
    }
}

type Ended = Result<(), Box<dyn std::error::Error + Send + Sync>>;

async fn open(
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    router: Router,
    limits: Limits,
    watcher: Watcher,
) -> Ended {
    stream.set_nodelay(true)?;
    match tls {
        None => serve(stream, router, limits, watcher).await,
        Some(tls) => {
            let secured = tokio::time::timeout(limits.opening, tls.accept(stream)).await??;
            serve(secured, router, limits, watcher).await
        }
    }
}

async fn serve<S>(stream: S, router: Router, limits: Limits, watcher: Watcher) -> Ended
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.opening)
        .max_buf_size(limits.headers.max(8192))
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    Ok(watcher.watch(connection).await?)
}
