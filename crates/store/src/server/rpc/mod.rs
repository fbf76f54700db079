//! The gRPC services: they translate between the wire and the machine, and know nothing else.
//!
//! Reads go straight to the index at the published revision; everything else goes to the writer.

mod cluster;
mod kv;
mod lease;
mod maintenance;
mod watch;
pub(super) mod watchers;

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::{server_state::ServerState, status::Refusal, writer::Handle};

/// Most watch and keep-alive streams of all clients.
const STREAMS: usize = 4096;

/// What every service needs.
#[derive(Clone)]
pub(crate) struct Service {
    shared: Arc<ServerState>,
    writer: Handle,
    stop: CancellationToken,
    streams: Arc<Semaphore>,
    place: Arc<Place>,
}

/// Where the server is, and how it was told to behave.
pub(crate) struct Place {
    /// Where it listens.
    pub(crate) address: SocketAddr,
    /// Whether it speaks TLS.
    pub(crate) tls: bool,
    /// The folder of the store.
    pub(crate) dir: PathBuf,
    /// How often a watcher that asked for it is told that nothing happened.
    pub(crate) progress_interval: Duration,
}

impl Service {
    /// The services; their streams end when `stop` is cancelled.
    pub(crate) fn new(
        shared: Arc<ServerState>,
        writer: Handle,
        stop: CancellationToken,
        place: Place,
    ) -> Self {
        let streams = Arc::new(Semaphore::new(STREAMS));
        Self { shared, writer, stop, streams, place: Arc::new(place) }
    }

    fn take_stream(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        Arc::clone(&self.streams).try_acquire_owned().map_err(|_| Refusal::TooManyRequests)
    }
}
