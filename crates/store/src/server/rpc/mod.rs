//! The gRPC services: they translate between the wire and the machine, and know nothing else.
//!
//! Reads go straight to the index at the published revision; everything else goes to the writer.

mod auth;
mod cluster;
mod election;
mod kv;
mod lease;
mod lock;
pub(super) mod maintenance;
mod queue;
mod watch;
pub(super) mod watchers;

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use tonic::Request;

use super::{
    auth::{Caller, tokens::Tokens},
    server_state::ServerState,
    status::Refusal,
    writer::Handle,
};

/// Bytes that a request without keys counts in the writer's queue.
const SMALL: usize = 64;
/// Most watch and keep-alive streams of all clients.
const STREAMS: usize = 4096;

/// Most passwords that are checked at one time.
const PASSWORDS: usize = 2;
/// Where etcd's clients put their token, and where its gateway does.
const TOKEN: [&str; 2] = ["token", "authorization"];

/// What every service needs.
#[derive(Clone)]
pub(crate) struct Service {
    shared: Arc<ServerState>,
    writer: Handle,
    stop: CancellationToken,
    streams: Arc<Semaphore>,
    tokens: Arc<Tokens>,
    /// Passwords that are checked at one time: each takes a processor for a while.
    passwords: Arc<Semaphore>,
    place: Arc<Place>,
}

/// Where the server is, and how it was told to behave.
pub(crate) struct Place {
    /// Where clients are told to reach it.
    pub(crate) advertised: Vec<String>,
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
        let (tokens, passwords) = (Arc::default(), Arc::new(Semaphore::new(PASSWORDS)));
        Self { shared, writer, stop, streams, tokens, passwords, place: Arc::new(place) }
    }

    /// Who calls. Nobody need be known before auth is enabled.
    fn caller<T>(&self, request: &Request<T>) -> Result<Caller, Refusal> {
        if !self.shared.settings().auth.enabled {
            return Ok(Caller(None));
        }
        let mut tokens = TOKEN.iter().filter_map(|name| request.metadata().get(*name));
        let Some(token) = tokens.next() else { return Ok(Caller(None)) };
        let token = token.to_str().map_err(|_| Refusal::InvalidToken)?;
        let user = self.tokens.user(token, Instant::now()).ok_or(Refusal::InvalidToken)?;
        Ok(Caller(Some(user)))
    }

    fn take_stream(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        Arc::clone(&self.streams).try_acquire_owned().map_err(|_| Refusal::TooManyRequests)
    }
}
