//! The client's side of a contract: one pool of connections, a deadline for every call.
//!
//! A call is not repeated here: the caller knows whether it still wants it. Every request may be
//! sent again without harm, so whoever sees [`CallError::blame`] say `Retry` just does.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, IF_MATCH};
use http::uri::{Authority, Scheme};
use http::{HeaderName, HeaderValue, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use model::{Blame, Generation, Kind, Problem};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::answer::Received;
use crate::{At, Body, IfMatch, NoBody, NoQuery, Route, Subscription, TlsClient, Watch, route};

/// How to reach a server.
#[derive(Clone)]
pub struct ClientConfig {
    /// Host and port.
    pub server: Authority,
    /// Whom to believe; nothing: plain HTTP.
    pub tls: Option<TlsClient>,
    /// The token to send.
    pub token: Option<String>,
    /// How long a call may take, all in all.
    pub patience: Duration,
    /// The largest answer, in bytes.
    pub largest: usize,
}

impl ClientConfig {
    /// Plain HTTP without a token; 10 seconds and 64 MiB a call.
    pub fn plain(server: Authority) -> ClientConfig {
        let (patience, largest) = (Duration::from_secs(10), 64 << 20);
        ClientConfig { server, tls: None, token: None, patience, largest }
    }
}

/// The token stays unseen.
impl std::fmt::Debug for ClientConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ClientConfig { server, tls, token, patience, largest } = self;
        f.debug_struct("ClientConfig")
            .field("server", server)
            .field("tls", &tls.is_some())
            .field("token", &token.as_ref().map(|_| "…"))
            .field("patience", patience)
            .field("largest", largest)
            .finish()
    }
}

/// Why a call did not get its answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The server answered: no.
    #[error("{0}")]
    Refused(Problem),
    /// There is no connection.
    #[error("cannot reach {server}; is it running, and is the address right?")]
    Unreachable {
        /// Which server.
        server: Authority,
        /// What the system said.
        source: Box<dyn Error + Send + Sync>,
    },
    /// It took too long; whether it was done is not known.
    #[error("there was no answer within {after:?}; ask again")]
    TimedOut {
        /// So long.
        after: Duration,
    },
    /// The connection was lost; whether it was done is not known.
    #[error("the connection was lost before the answer came; ask again")]
    Broken {
        /// What happened.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The answer is not what the contract says.
    #[error("the answer cannot be understood: {reason}; do the releases of both sides fit?")]
    Unreadable {
        /// What is wrong with it.
        reason: String,
    },
    /// The request cannot be put on the wire.
    #[error("the request cannot be sent: {reason}")]
    Unsendable {
        /// Why.
        reason: String,
    },
}

impl CallError {
    /// Who must act.
    pub fn blame(&self) -> Blame {
        match self {
            CallError::Refused(problem) => problem.kind.blame(),
            CallError::Unreachable { .. }
            | CallError::TimedOut { .. }
            | CallError::Broken { .. } => Blame::Retry,
            CallError::Unreadable { .. } => Blame::Operator,
            CallError::Unsendable { .. } => Blame::Bug,
        }
    }
}

/// As the caller of the caller is told.
impl From<CallError> for Problem {
    fn from(error: CallError) -> Problem {
        let kind = match &error {
            CallError::Refused(problem) => return problem.clone(),
            CallError::Unreachable { .. } | CallError::Broken { .. } => Kind::NodeUnavailable,
            CallError::TimedOut { .. } => Kind::TimedOut,
            CallError::Unreadable { .. } | CallError::Unsendable { .. } => Kind::Internal,
        };
        Problem::new(kind, error)
    }
}

/// Calls one server. Cheap to clone; clones share their connections.
#[derive(Clone, Debug)]
pub struct Client {
    pool: Pool<HttpsConnector<HttpConnector>, Full<Bytes>>,
    config: Arc<ClientConfig>,
    token: Option<HeaderValue>,
}

impl Client {
    /// A client; nothing is connected before the first call.
    pub fn new(config: ClientConfig) -> Result<Client, CallError> {
        let unsendable = |reason: String| CallError::Unsendable { reason };
        let tls = match &config.tls {
            Some(tls) => tls.clone(),
            None => TlsClient::nobody().map_err(|error| unsendable(error.to_string()))?,
        };
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(config.patience));
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls.config())
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        let pool = Pool::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(Duration::from_secs(30))
            .pool_max_idle_per_host(8)
            .build(connector);
        let token = config.token.as_ref().map(|token| {
            let mut value = HeaderValue::from_str(&format!("Bearer {token}"))
                .map_err(|_| unsendable("the token has characters that none can have".into()))?;
            value.set_sensitive(true);
            Ok::<_, CallError>(value)
        });
        Ok(Client { pool, token: token.transpose()?, config: Arc::new(config) })
    }

    /// Makes a request and reads the whole answer.
    pub async fn call<P, Q, B, A>(
        &self,
        route: &Route<P, Q, B, A>,
        at: P,
        query: Q,
        body: B,
    ) -> Result<A, CallError>
    where
        P: At,
        Q: Serialize,
        B: Body,
        A: Received,
    {
        self.call_seeing(route, at, query, body, None).await
    }

    /// The same, to be refused unless the thing is still at the generation `seen`.
    pub async fn call_seeing<P, Q, B, A>(
        &self,
        route: &Route<P, Q, B, A>,
        at: P,
        query: Q,
        body: B,
        seen: Option<Generation>,
    ) -> Result<A, CallError>
    where
        P: At,
        Q: Serialize,
        B: Body,
        A: Received,
    {
        let mut request = self.request(route, &at, &query, &body)?;
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static(A::MEDIA));
        if let Some(seen) = seen {
            request.headers_mut().insert(IF_MATCH, header_of(&IfMatch::tag(seen))?);
        }
        let whole = self.in_time(self.fetch(request)).await?;
        A::read(&whole).map_err(|reason| CallError::Unreadable { reason })
    }

    /// Reads events, going on after `last` if there is one.
    pub async fn watch<E>(
        &self,
        route: &Route<(), NoQuery, NoBody, Watch<E>>,
        last: Option<String>,
    ) -> Result<Subscription<E>, CallError>
    where
        E: DeserializeOwned,
    {
        let mut request = self.request(route, &(), &NoQuery {}, &NoBody)?;
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        if let Some(last) = &last {
            let name = HeaderName::from_static("last-event-id");
            request.headers_mut().insert(name, header_of(last)?);
        }
        let answer = self.in_time(self.send(request)).await?;
        Ok(Subscription::new(answer, last))
    }

    async fn in_time<T>(
        &self,
        work: impl Future<Output = Result<T, CallError>>,
    ) -> Result<T, CallError> {
        let after = self.config.patience;
        let ended = tokio::time::timeout(after, work).await;
        ended.unwrap_or(Err(CallError::TimedOut { after }))
    }

    fn request<P: At, Q: Serialize, B: Body, A>(
        &self,
        route: &Route<P, Q, B, A>,
        at: &P,
        query: &Q,
        body: &B,
    ) -> Result<http::Request<Full<Bytes>>, CallError> {
        let unsendable =
            |error: &dyn std::fmt::Display| CallError::Unsendable { reason: error.to_string() };
        let mut path = route::fill(route.path, &at.parts());
        let query = serde_urlencoded::to_string(query).map_err(|error| unsendable(&error))?;
        if !query.is_empty() {
            path = format!("{path}?{query}");
        }
        let scheme = if self.config.tls.is_some() { Scheme::HTTPS } else { Scheme::HTTP };
        let uri = Uri::builder()
            .scheme(scheme)
            .authority(self.config.server.clone())
            .path_and_query(path)
            .build()
            .map_err(|error| unsendable(&error))?;
        let bytes = body.write().map_err(|error| unsendable(&error))?;
        let mut request = http::Request::builder().method(route.method.http()).uri(uri);
        if bytes.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, token);
        }
        let body = Full::new(bytes.unwrap_or_default().into());
        request.body(body).map_err(|error| unsendable(&error))
    }

    async fn fetch(&self, request: http::Request<Full<Bytes>>) -> Result<Bytes, CallError> {
        let answer = self.send(request).await?;
        self.collect(answer).await
    }

    /// The body of a success; anything else is read as a problem.
    async fn send(&self, request: http::Request<Full<Bytes>>) -> Result<Incoming, CallError> {
        let answer = self.pool.request(request).await.map_err(|error| {
            let server = self.config.server.clone();
            if error.is_connect() {
                CallError::Unreachable { server, source: error.into() }
            } else {
                CallError::Broken { source: error.into() }
            }
        })?;
        let status = answer.status();
        if status.is_success() {
            return Ok(answer.into_body());
        }
        let whole = self.collect(answer.into_body()).await?;
        let unknown = || {
            let detail = format!("{} answered {status} without a reason", self.config.server);
            Problem::new(Kind::of_status(status.as_u16()), detail)
        };
        Err(CallError::Refused(serde_json::from_slice(&whole).unwrap_or_else(|_| unknown())))
    }

    async fn collect(&self, body: Incoming) -> Result<Bytes, CallError> {
        let whole = Limited::new(body, self.config.largest).collect().await;
        whole.map(http_body_util::Collected::to_bytes).map_err(|error| {
            if error.is::<http_body_util::LengthLimitError>() {
                let most = self.config.largest;
                return CallError::Unreadable { reason: format!("it is larger than {most} bytes") };
            }
            CallError::Broken { source: error }
        })
    }
}

fn header_of(text: &str) -> Result<HeaderValue, CallError> {
    let reason = || format!("{text:?} cannot stand in a header");
    HeaderValue::from_str(text).map_err(|_| CallError::Unsendable { reason: reason() })
}
