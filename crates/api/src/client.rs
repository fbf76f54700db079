//! The client's side of a contract: one pool of connections, a deadline for every call.
//!
//! A call is not repeated here: the caller knows whether it still wants it. Every request may be
//! sent again without harm, so whoever sees [`CallError::class`] say `Retry` just does.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, IF_MATCH};
use http::uri::{Authority, Scheme};
use http::{HeaderName, HeaderValue, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use model::{ErrorClass, Generation, Problem, ProblemKind};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tracing::Instrument as _;

use crate::response::FromResponse;
use crate::{
    Body, EventStream, IfMatch, NoBody, NoQuery, PathParams, Route, Subscription, TlsClient, Token,
    request_id, route,
};

/// How to reach a server.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Host and port.
    pub server: Authority,
    /// Whom to believe; nothing: plain HTTP.
    pub tls: Option<TlsClient>,
    /// The token to send.
    pub token: Option<Token>,
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
    /// It is there, and cannot be believed.
    #[error(
        "{server} is not believed: {reason}; are these the authorities of this server, and is \
         that its name?"
    )]
    Distrusted {
        /// Which server.
        server: Authority,
        /// What is wrong with its certificate, or with its TLS.
        reason: String,
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
    pub fn class(&self) -> ErrorClass {
        match self {
            CallError::Refused(problem) => problem.kind.class(),
            CallError::Unreachable { .. }
            | CallError::TimedOut { .. }
            | CallError::Broken { .. } => ErrorClass::Retry,
            CallError::Unreadable { .. } | CallError::Distrusted { .. } => ErrorClass::Operator,
            CallError::Unsendable { .. } => ErrorClass::Bug,
        }
    }
}

/// As the caller of the caller is told.
impl From<CallError> for Problem {
    fn from(error: CallError) -> Problem {
        let kind = match &error {
            CallError::Refused(problem) => return problem.clone(),
            CallError::Unreachable { .. }
            | CallError::Broken { .. }
            | CallError::Distrusted { .. } => ProblemKind::NodeUnavailable,
            CallError::TimedOut { .. } => ProblemKind::TimedOut,
            CallError::Unreadable { .. } | CallError::Unsendable { .. } => ProblemKind::Internal,
        };
        Problem::new(kind, error)
    }
}

/// Connections that are kept for a while, in case there is more to say.
pub(crate) type Connections = Pool<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// Connections to servers that are believed by `tls`; absent: only plain ones.
pub(crate) fn connections(
    tls: Option<TlsClient>,
    patience: Duration,
) -> Result<Connections, CallError> {
    let tls = match tls {
        Some(tls) => tls,
        None => TlsClient::nobody()
            .map_err(|error| CallError::Unsendable { reason: error.to_string() })?,
    };
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(patience));
    let (config, server_name) = tls.into_parts();
    let mut builder = HttpsConnectorBuilder::new().with_tls_config(config).https_or_http();
    if let Some(name) = server_name {
        builder = builder.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    let connector = builder.enable_http1().wrap_connector(tcp);
    let pool = Pool::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(Duration::from_secs(30))
        .pool_max_idle_per_host(8)
        .build(connector);
    Ok(pool)
}

/// Why there was no answer.
pub(crate) fn unanswered(
    error: hyper_util::client::legacy::Error,
    server: Authority,
    is_plain: bool,
) -> CallError {
    match distrust(&error) {
        Some(reason) => CallError::Distrusted { server, reason },
        None if error.is_connect() => CallError::Unreachable { server, source: error.into() },
        None if is_plain && is_no_http(&error) => {
            let reason = "it is no HTTP; if the server speaks TLS, name the authorities to believe \
                          (--ca)";
            CallError::Unreadable { reason: reason.to_owned() }
        }
        None => CallError::Broken { source: error.into() },
    }
}

/// Calls one server. Cheap to clone; clones share their connections.
#[derive(Clone, Debug)]
pub struct Client {
    pool: Connections,
    config: Arc<ClientConfig>,
}

impl Client {
    /// A client; nothing is connected before the first call.
    pub fn new(config: ClientConfig) -> Result<Client, CallError> {
        let pool = connections(config.tls.clone(), config.patience)?;
        Ok(Client { pool, config: Arc::new(config) })
    }

    /// Makes a request and reads the whole answer.
    pub fn call<P, Q, B, A>(
        &self,
        route: &Route<P, Q, B, A>,
        at: P,
        query: Q,
        body: B,
    ) -> BoxFuture<'_, Result<A, CallError>>
    where
        P: PathParams,
        Q: Serialize,
        B: Body,
        A: FromResponse + 'static,
    {
        self.call_seeing(route, at, query, body, None)
    }

    /// The same, to be refused unless the thing is still at the generation `if_match`.
    ///
    /// What it takes to talk is behind a pointer: it is compiled here, once, and not again in every
    /// program that asks.
    #[expect(clippy::needless_pass_by_value, reason = "callers hand over what they ask")]
    pub fn call_seeing<P, Q, B, A>(
        &self,
        route: &Route<P, Q, B, A>,
        at: P,
        query: Q,
        body: B,
        seen: Option<Generation>,
    ) -> BoxFuture<'_, Result<A, CallError>>
    where
        P: PathParams,
        Q: Serialize,
        B: Body,
        A: FromResponse + 'static,
    {
        let request = self.request(route, &at, &query, &body).and_then(|mut request| {
            request.headers_mut().insert(ACCEPT, HeaderValue::from_static(A::MEDIA));
            if let Some(seen) = seen {
                request.headers_mut().insert(IF_MATCH, header_of(&IfMatch::tag(seen))?);
            }
            Ok(request)
        });
        self.read(request)
    }

    fn read<A: FromResponse + 'static>(
        &self,
        request: Result<http::Request<Full<Bytes>>, CallError>,
    ) -> BoxFuture<'_, Result<A, CallError>> {
        let whole = self.whole(request);
        Box::pin(async move {
            A::read(&whole.await?).map_err(|reason| CallError::Unreadable { reason })
        })
    }

    fn whole(
        &self,
        request: Result<http::Request<Full<Bytes>>, CallError>,
    ) -> BoxFuture<'_, Result<Bytes, CallError>> {
        Box::pin(async move { self.in_time(self.fetch(request?)).await })
    }

    /// Reads events, going on after `last` if there is one.
    pub async fn watch<E>(
        &self,
        route: &Route<(), NoQuery, NoBody, EventStream<E>>,
        last: Option<String>,
    ) -> Result<Subscription<E>, CallError>
    where
        E: DeserializeOwned,
    {
        let request = self.request(route, &(), &NoQuery {}, &NoBody)?;
        Ok(Subscription::new(self.open(request, last.as_ref()).await?, last))
    }

    fn open<'a>(
        &'a self,
        mut request: http::Request<Full<Bytes>>,
        last: Option<&'a String>,
    ) -> BoxFuture<'a, Result<Incoming, CallError>> {
        Box::pin(async move {
            request.headers_mut().insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
            if let Some(last) = last {
                let name = HeaderName::from_static("last-event-id");
                request.headers_mut().insert(name, header_of(last)?);
            }
            self.in_time(self.send(request)).await
        })
    }

    async fn in_time<T>(
        &self,
        work: impl Future<Output = Result<T, CallError>>,
    ) -> Result<T, CallError> {
        let after = self.config.patience;
        let ended = tokio::time::timeout(after, work).await;
        ended.unwrap_or(Err(CallError::TimedOut { after }))
    }

    fn request<P: PathParams, Q: Serialize, B: Body, A>(
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
        if let Some(token) = &self.config.token {
            request = request.header(AUTHORIZATION, token.header());
        }
        let body = Full::new(bytes.unwrap_or_default().into());
        request.body(body).map_err(|error| unsendable(&error))
    }

    async fn fetch(&self, request: http::Request<Full<Bytes>>) -> Result<Bytes, CallError> {
        let answer = self.send(request).await?;
        self.collect(answer).await
    }

    /// Names the request, and sends it.
    async fn send(&self, mut request: http::Request<Full<Bytes>>) -> Result<Incoming, CallError> {
        let id = request_id::new();
        request_id::put(request.headers_mut(), &id);
        let (server, method) = (&self.config.server, request.method());
        let path = request.uri().path();
        let span = tracing::info_span!("call", id, %server, %method, path);
        self.answer_to(request).instrument(span).await
    }

    /// The body of a success; anything else is read as a problem.
    async fn answer_to(&self, request: http::Request<Full<Bytes>>) -> Result<Incoming, CallError> {
        let answer = self.pool.request(request).await.map_err(|error| {
            let error = unanswered(error, self.config.server.clone(), self.config.tls.is_none());
            tracing::debug!(%error, "not answered");
            error
        })?;
        let status = answer.status();
        if status.is_success() {
            return Ok(answer.into_body());
        }
        let whole = self.collect(answer.into_body()).await?;
        let unknown = || {
            let detail = format!("{} answered {status} without a reason", self.config.server);
            Problem::new(ProblemKind::of_status(status.as_u16()), detail)
        };
        let problem: Problem = serde_json::from_slice(&whole).unwrap_or_else(|_| unknown());
        tracing::debug!(kind = %problem.kind, detail = problem.detail, "refused");
        Err(CallError::Refused(problem))
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

/// Whether what came back, or that nothing did, is not what a server of HTTP does.
fn is_no_http(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<hyper::Error>() {
            return error.is_parse();
        }
        cause = error.source();
    }
    false
}

/// What TLS found wrong, if that is why.
fn distrust(error: &(dyn Error + 'static)) -> Option<String> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(wrong) = error.downcast_ref::<rustls::Error>() {
            return Some(match wrong {
                rustls::Error::InvalidMessage(_) => "it does not speak TLS".to_owned(),
                wrong => wrong.to_string(),
            });
        }
        // An I/O error shows the cause of what it carries as its own.
        let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        cause = match inner {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    None
}

fn header_of(text: &str) -> Result<HeaderValue, CallError> {
    let reason = || format!("{text:?} cannot stand in a header");
    HeaderValue::from_str(text).map_err(|_| CallError::Unsendable { reason: reason() })
}
