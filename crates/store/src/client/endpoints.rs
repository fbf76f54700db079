//! The servers, which of them to ask, and when to ask again.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};
use tonic::metadata::MetadataValue;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

use super::options::{self, ConnectError, Options};
use super::session::Session;
use crate::contract::Cause;
use crate::proto::etcdserverpb::AuthenticateRequest;
use crate::proto::etcdserverpb::auth_client::AuthClient;
use crate::proto::etcdserverpb::cluster_client::ClusterClient;
use crate::proto::etcdserverpb::kv_client::KvClient;
use crate::proto::etcdserverpb::lease_client::LeaseClient;
use crate::proto::etcdserverpb::maintenance_client::MaintenanceClient;
use crate::proto::etcdserverpb::watch_client::WatchClient;

/// What a server says that gives no tokens.
const NOT_ENABLED: &str = "etcdserver: authentication is not enabled";
/// What servers say to a call with a token that is unknown or too old, or without one. Nothing was
/// done then.
const TOKEN_REFUSED: [&str; 3] = [
    "etcdserver: invalid auth token",
    "etcdserver: user name is empty",
    "etcdserver: revision of auth store is old",
];

/// All servers; calls go to the current one until it fails.
#[derive(Debug)]
pub(super) struct Endpoints {
    servers: Vec<Server>,
    current: AtomicUsize,
    deadline: Duration,
}

/// One server.
#[derive(Clone, Debug)]
pub(super) struct Server {
    pub(super) name: String,
    channel: Channel,
    session: Session,
    largest_answer: usize,
}

/// A connection on which this client says who it is.
pub(super) type Known = InterceptedService<Channel, Session>;

/// Whether a call may be sent again when its answer was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Idempotent {
    /// Twice is the same as once.
    Yes,
    /// Twice is not once.
    No,
}

/// How a call failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The request never left.
    NotSent { endpoint: String, source: Cause },
    /// The request left, no answer came.
    Lost { endpoint: String, source: Cause },
    /// The server said no, and did nothing.
    Refused { endpoint: String, code: Code, reason: String },
}

impl Endpoints {
    pub(super) fn new<E: AsRef<str>>(
        endpoints: &[E],
        options: &Options,
    ) -> Result<Endpoints, ConnectError> {
        // One token is good at all servers of a cluster.
        let session = Session::new(options.login.clone());
        let server = |given: &E| {
            let endpoint = options::endpoint(given.as_ref(), options)?;
            Ok(Server {
                name: given.as_ref().to_owned(),
                channel: endpoint.connect_lazy(),
                session: session.clone(),
                largest_answer: options.largest_answer,
            })
        };
        let servers = endpoints.iter().map(server).collect::<Result<Vec<_>, _>>()?;
        if servers.is_empty() {
            return Err(ConnectError::NoEndpoint);
        }
        Ok(Endpoints { servers, current: AtomicUsize::new(0), deadline: options.deadline })
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.servers.iter().map(|server| server.name.as_str())
    }

    /// The server to ask now.
    pub(super) fn current(&self) -> (usize, Server) {
        let turn = self.current.load(Ordering::Relaxed);
        let index = turn % self.servers.len();
        // The remainder is always within: there is at least one server.
        (turn, self.servers[index].clone())
    }

    /// Goes on to the next server, unless somebody else did so since `turn`.
    pub(super) fn leave(&self, turn: usize) {
        let next = turn.wrapping_add(1);
        // Losing the race means that the ring has moved already.
        let _ = self.current.compare_exchange(turn, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Makes a call, by way of as many servers as it takes and `repeat` allows.
    pub(super) async fn call<T, F>(
        &self,
        repeat: Idempotent,
        call: impl Fn(Server) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let deadline = Instant::now() + self.deadline;
        let mut pause = Backoff::new();
        let mut tried = 0;
        loop {
            let (turn, server) = self.current();
            let endpoint = server.name.clone();
            let attempt_ends = match repeat {
                // Leaves time to ask somebody else if this server is silent.
                Idempotent::Yes if self.servers.len() > 1 => {
                    deadline.min(Instant::now() + self.deadline / 2)
                }
                _ => deadline,
            };
            let attempt = async {
                server.log_in().await?;
                match call(server.clone()).await {
                    Err(status) if server.may_log_in(&status) => {
                        server.log_in().await?;
                        call(server.clone()).await
                    }
                    other => other,
                }
            };
            let failure = match timeout_at(attempt_ends, attempt).await {
                Ok(Ok(response)) => return Ok(response.into_inner()),
                Ok(Err(status)) => classify(endpoint, status),
                Err(elapsed) => Failure::Lost { endpoint, source: elapsed.into() },
            };
            let again = match &failure {
                Failure::Refused { .. } => false,
                Failure::NotSent { .. } => true,
                Failure::Lost { .. } => repeat == Idempotent::Yes,
            };
            if !matches!(failure, Failure::Refused { .. }) {
                self.leave(turn);
            }
            if !again || Instant::now() >= deadline {
                return Err(failure);
            }
            tried += 1;
            if tried % self.servers.len() == 0 && !pause.before(deadline).await {
                return Err(failure);
            }
        }
    }
}

impl Server {
    fn known(&self) -> Known {
        InterceptedService::new(self.channel.clone(), self.session.clone())
    }

    /// Gets a token if this client has a name and no token yet. A server that asks nobody has none
    /// to give, and needs none.
    pub(super) async fn log_in(&self) -> Result<(), Status> {
        let Some(login) = self.session.wanted() else { return Ok(()) };
        let (name, password) = (login.user.clone(), login.password.clone());
        let request = AuthenticateRequest { name, password };
        match AuthClient::new(self.channel.clone()).authenticate(request).await {
            Ok(answer) => {
                self.session.set(&answer.into_inner().token);
                Ok(())
            }
            Err(status) if status.message() == NOT_ENABLED => Ok(()),
            Err(status) => Err(status),
        }
    }

    /// Whether a call was refused only for want of a good token, so that it can be made again with
    /// a new one.
    pub(super) fn may_log_in(&self, status: &Status) -> bool {
        TOKEN_REFUSED.contains(&status.message()) && self.session.forget()
    }

    pub(super) fn kv(&self) -> KvClient<Known> {
        KvClient::new(self.known()).max_decoding_message_size(self.largest_answer)
    }

    pub(super) fn lease(&self) -> LeaseClient<Known> {
        LeaseClient::new(self.known()).max_decoding_message_size(self.largest_answer)
    }

    pub(super) fn watch(&self) -> WatchClient<Known> {
        WatchClient::new(self.known()).max_decoding_message_size(self.largest_answer)
    }

    pub(super) fn maintenance(&self) -> MaintenanceClient<Known> {
        MaintenanceClient::new(self.known())
    }

    pub(super) fn auth(&self) -> AuthClient<Known> {
        AuthClient::new(self.known())
    }

    pub(super) fn cluster(&self) -> ClusterClient<Known> {
        ClusterClient::new(self.known())
    }
}

impl Failure {
    /// Whether the server said exactly this.
    pub(super) fn says(&self, words: &str) -> bool {
        matches!(self, Failure::Refused { reason, .. } if reason == words)
    }
}

/// Growing pauses between rounds.
#[derive(Debug)]
pub(super) struct Backoff {
    next: Duration,
}

impl Backoff {
    const FIRST: Duration = Duration::from_millis(20);
    const LONGEST: Duration = Duration::from_secs(1);

    pub(super) fn new() -> Backoff {
        Backoff { next: Backoff::FIRST }
    }

    /// Waits; the next time for twice as long.
    pub(super) async fn wait(&mut self) {
        let now = self.next;
        self.next = (now * 2).min(Backoff::LONGEST);
        sleep(now).await;
    }

    /// Waits if there will be time left afterwards, and tells whether there is.
    async fn before(&mut self, deadline: Instant) -> bool {
        if Instant::now() + self.next >= deadline {
            return false;
        }
        self.wait().await;
        true
    }
}

/// Lets a member that has lost its leader end the stream, instead of leaving it silent.
pub(super) fn require_leader<T>(request: &mut Request<T>) {
    request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
}

/// Says what a status means for the request it answers.
///
/// Only words of the server itself prove that nothing was done: a status made on this side, or by
/// a server that is stopping or electing a leader, leaves the outcome open.
pub(super) fn classify(endpoint: String, status: Status) -> Failure {
    if never_left(&status) {
        return Failure::NotSent { endpoint, source: Box::new(status) };
    }
    let message = status.message();
    let refused = match status.code() {
        Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::PermissionDenied
        | Code::Unauthenticated => message.starts_with("etcdserver: "),
        Code::ResourceExhausted => {
            message.starts_with("etcdserver: ")
                || message.starts_with("grpc: received message larger than max")
        }
        Code::Unimplemented => true,
        _ => false,
    };
    if refused {
        return Failure::Refused { endpoint, code: status.code(), reason: message.to_owned() };
    }
    Failure::Lost { endpoint, source: Box::new(status) }
}

fn never_left(status: &Status) -> bool {
    let mut next: Option<&(dyn std::error::Error + 'static)> = std::error::Error::source(status);
    while let Some(error) = next {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        next = error.source();
    }
    // What the generated stubs say when the channel takes no more requests.
    status.message().starts_with("Service was not ready")
}
