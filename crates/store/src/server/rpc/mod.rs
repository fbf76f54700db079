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

use tonic::{Request, metadata::MetadataMap};

use super::{
    auth::{Caller, User, tokens::Tokens},
    server_state::ServerState,
    settings::Settings,
    status::Refusal,
    writer::Handle,
};

/// Bytes that a request without keys counts in the writer's queue.
const SMALL: usize = 64;
/// Most watch streams, calls that wait in line and copies of all clients.
const STREAMS: usize = 4096;
/// Most keep-alive streams of all clients: those that watch take none of them.
const KEEP_ALIVES: usize = 4096;

/// Most passwords that are checked at one time.
const PASSWORDS: usize = 2;
/// Most passwords that are checked or wait for that.
const PASSWORDS_WAITING: usize = 256;
/// Where etcd's clients put their token, and where its gateway does.
const TOKEN: [&str; 2] = ["token", "authorization"];

/// What every service needs.
#[derive(Clone)]
pub(crate) struct Service {
    shared: Arc<ServerState>,
    writer: Handle,
    stop: CancellationToken,
    streams: Arc<Semaphore>,
    keep_alives: Arc<Semaphore>,
    tokens: Arc<Tokens>,
    /// Passwords that are checked at one time: each takes a processor for a while.
    passwords: Arc<Semaphore>,
    passwords_waiting: Arc<Semaphore>,
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
        let passwords_waiting = Arc::new(Semaphore::new(PASSWORDS_WAITING));
        let keep_alives = Arc::new(Semaphore::new(KEEP_ALIVES));
        let place = Arc::new(place);
        Self {
            shared,
            writer,
            stop,
            streams,
            keep_alives,
            tokens,
            passwords,
            passwords_waiting,
            place,
        }
    }

    /// Who calls. Nobody need be known before auth is enabled.
    fn caller<T>(&self, request: &Request<T>) -> Result<Caller, Refusal> {
        self.caller_of(request.metadata())
    }

    /// Who calls with this metadata. A user that is gone, or has another password by now, is
    /// nobody, even if whoever changed that did not wait for the answer.
    fn caller_of(&self, metadata: &MetadataMap) -> Result<Caller, Refusal> {
        let settings = self.shared.settings();
        if !settings.auth.enabled {
            return Ok(Caller(None));
        }
        let mut tokens = TOKEN.iter().filter_map(|name| metadata.get(*name));
        let Some(token) = tokens.next() else { return Ok(Caller(None)) };
        let token = token.to_str().map_err(|_| Refusal::InvalidToken)?;
        let user = self.tokens.user(token, Instant::now(), |user, hash| {
            settings.auth.user(user).is_ok_and(|user| user.hash == *hash)
        });
        Ok(Caller(Some(user.ok_or(Refusal::InvalidToken)?)))
    }

    /// Who is at the other end of a stream that `caller` opened, while the settings were `before`.
    /// Whoever was nobody in particular may have to be known by now; whoever has another password
    /// must show it.
    fn caller_now(
        &self,
        caller: &Caller,
        metadata: &MetadataMap,
        before: &Settings,
    ) -> Result<Caller, Refusal> {
        let now = self.shared.settings();
        let Some(user) = caller.0.as_ref().filter(|_| now.auth.enabled) else {
            return self.caller_of(metadata);
        };
        let hash = &now.auth.user(user)?.hash;
        let is_same = |before: &User| before.hash == *hash;
        if before.auth.user(user).map_or(true, is_same) {
            Ok(caller.clone())
        } else {
            Err(Refusal::InvalidToken)
        }
    }

    /// A place among the streams, for somebody who is known if callers must be.
    fn take_stream(&self, caller: &Caller) -> Result<OwnedSemaphorePermit, Refusal> {
        self.take_place(caller, &self.streams)
    }

    /// A place among the keep-alive streams.
    fn take_keep_alive(&self, caller: &Caller) -> Result<OwnedSemaphorePermit, Refusal> {
        self.take_place(caller, &self.keep_alives)
    }

    fn take_place(
        &self,
        caller: &Caller,
        places: &Arc<Semaphore>,
    ) -> Result<OwnedSemaphorePermit, Refusal> {
        self.shared.settings().auth.permit_any(caller)?;
        Arc::clone(places).try_acquire_owned().map_err(|_| Refusal::TooManyRequests)
    }
}
