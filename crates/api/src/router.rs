//! Routes with their handlers: the server's side of a contract.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::Router;
use axum::extract::{FromRequestParts, RawPathParams, Request as HttpRequest, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, MethodRouter};
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderName, header};
use http_body_util::Limited;
use model::{Problem, ProblemKind};
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tracing::Instrument;

use crate::document::Documented;
use crate::response::{self, Failed};
use crate::token::Holder;
use crate::{
    Body, IfMatch, Limits, Method, PathParams, Reply, Request, RequestCounters, Role, Route,
    Tokens, body, browser, request_id, token,
};

const LAST_EVENT: HeaderName = HeaderName::from_static("last-event-id");

/// A contract with its handlers. `N` is whoever does the work.
pub struct ApiRouter<N> {
    paths: BTreeMap<&'static str, MethodRouter<Arc<N>>>,
    documented: Documented,
}

/// Who may, and how much of everything.
#[derive(Clone, Debug, Default)]
pub struct Guard {
    /// Who is known; nothing: everybody may do everything.
    pub tokens: Option<Arc<Tokens>>,
    /// Sizes and deadlines.
    pub limits: Limits,
    /// What was answered.
    pub counters: Arc<RequestCounters>,
}

/// Whoever is at the other end of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) std::net::SocketAddr);

/// Which route answered.
#[derive(Clone, Copy, Debug)]
struct RouteName(&'static str);

/// Who asked for a change, for the log.
#[derive(Clone, Debug)]
struct Asker(Holder);

/// A handler whose types are forgotten: what lies around it is compiled once, not for each route.
type Answering<N> =
    Arc<dyn Fn(Arc<N>, HttpRequest) -> BoxFuture<'static, Result<Response, Problem>> + Send + Sync>;

/// What the guard found out about a request.
#[derive(Clone, Debug)]
struct Caller {
    holder: Holder,
    request: String,
}

impl<N: Send + Sync + 'static> ApiRouter<N> {
    /// A contract without routes.
    pub fn new(title: &'static str, description: &'static str) -> ApiRouter<N> {
        ApiRouter { paths: BTreeMap::new(), documented: Documented::new(title, description) }
    }

    /// One more route, and who answers it.
    #[must_use]
    pub fn on<P, Q, B, A, F, Fut>(mut self, route: &Route<P, Q, B, A>, handler: F) -> ApiRouter<N>
    where
        P: PathParams,
        Q: Serialize + DeserializeOwned + JsonSchema + Send + 'static,
        B: Body,
        A: Reply,
        F: Fn(Arc<N>, Request<P, Q, B>) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = Result<A, Problem>> + Send + 'static,
    {
        self.documented.add(route);
        let (role, name) = (route.role, route.name);
        let answering: Answering<N> = Arc::new(move |node, request| {
            let handler = handler.clone();
            async move {
                let request = read(role, request).await?;
                handler(node, request).await.map(Reply::reply)
            }
            .boxed()
        });
        let serve = move |State(node): State<Arc<N>>, request: HttpRequest| {
            caught(name, answering(node, request))
        };
        let here = self.paths.remove(route.path).unwrap_or_default();
        self.paths.insert(route.path, here.on(filter(route.method), serve));
        self
    }

    /// The OpenAPI document of the routes so far.
    pub fn document(&self) -> serde_json::Value {
        self.documented.document()
    }

    /// All routes, guarded; the document is served at `/v1/openapi.json`.
    pub fn router(self, node: Arc<N>, guard: Guard) -> Router {
        let document = bytes::Bytes::from(self.document().to_string());
        let mut router = Router::new();
        for (path, methods) in self.paths {
            router = router.route(path, methods);
        }
        let media = [(header::CONTENT_TYPE, "application/json")];
        let serve_document = async move || (media, document.clone());
        router
            .route("/v1/openapi.json", axum::routing::get(serve_document))
            .fallback(response::no_such_path)
            .method_not_allowed_fallback(response::wrong_method)
            .with_state(node)
            .layer(middleware::from_fn_with_state(Arc::new(guard), admit))
    }
}

/// The answer, whatever the handler does: its panic ends this request and nothing else.
async fn caught(
    name: &'static str,
    work: BoxFuture<'static, Result<Response, Problem>>,
) -> Response {
    let answer = AssertUnwindSafe(work).catch_unwind().await.unwrap_or_else(|_| {
        tracing::error!(route = name, "a handler panicked");
        let detail = "the request met a bug; the log of the server has it";
        Err(Problem::new(ProblemKind::Internal, detail))
    });
    let mut answer = answer.map_err(Failed).into_response();
    answer.extensions_mut().insert(RouteName(name));
    answer
}

fn filter(method: Method) -> MethodFilter {
    match method {
        Method::Get => MethodFilter::GET,
        Method::Put => MethodFilter::PUT,
        Method::Post => MethodFilter::POST,
        Method::Delete => MethodFilter::DELETE,
    }
}

/// Everything of a request in the form the handler wants, or why not. Cheapest refusal first.
async fn read<P, Q, B>(role: Role, request: HttpRequest) -> Result<Request<P, Q, B>, Problem>
where
    P: PathParams,
    Q: DeserializeOwned,
    B: Body,
{
    let (mut parts, stream) = request.into_parts();
    let caller = parts.extensions.remove::<Caller>();
    let caller =
        caller.ok_or_else(|| Problem::new(ProblemKind::Internal, "the request has no guard"))?;
    let in_path = RawPathParams::from_request_parts(&mut parts, &()).await;
    let in_path = in_path.map_err(|error| malformed("the path", &error))?;
    let ids: Vec<String> = in_path.iter().map(|(_, value)| value.to_owned()).collect();
    token::must_be(role, &caller.holder, ids.first().map(String::as_str))?;
    let at = P::parse(&ids)?;
    let query = body::query(parts.uri.query())?;
    let if_match = IfMatch::read(&parts.headers)?;
    let last_event = text_of(&parts.headers, &LAST_EVENT);
    let bytes = body::collect(stream).await?;
    let body = B::read(&parts.headers, &bytes)?;
    Ok(Request { at, query, body, if_match, last_event, request: caller.request })
}

fn malformed(what: &str, cause: &dyn fmt::Display) -> Problem {
    Problem::new(ProblemKind::Malformed, format!("{what} cannot be read: {cause}"))
}

fn text_of(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_owned)
}

/// Names the request, finds out who calls, and sees that it ends.
async fn admit(State(guard): State<Arc<Guard>>, request: HttpRequest, next: Next) -> Response {
    let id = request_id::of(request.headers());
    let span = tracing::info_span!(
        "request", id, method = %request.method(), path = request.uri().path()
    );
    let began = std::time::Instant::now();
    let peer = request.extensions().get::<Peer>().map(|peer| peer.0);
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let answer = guarded(&guard, &id, request, next).instrument(span.clone()).await;
    let status = answer.status().as_u16();
    let route = answer.extensions().get::<RouteName>().map_or("none", |route| route.0);
    guard.counters.count(route, status, began.elapsed());
    if !method.is_safe() {
        let who = answer.extensions().get::<Asker>();
        let who = who.map_or_else(|| "nobody known".to_owned(), |asker| asker.0.to_string());
        let from = peer.map(|peer| peer.to_string()).unwrap_or_default();
        span.in_scope(|| audit((&who, &from), (method.as_str(), &path), (status, route)));
    }
    span.in_scope(|| named(answer, &id))
}

/// Who did what, from where, with which result. What machines do all the time is told in detail
/// only.
fn audit((who, from): (&str, &str), (method, path): (&str, &str), (status, route): (u16, &str)) {
    let is_routine = status < 300 && (route.ends_with("_heartbeat") || route == "host_paths");
    if is_routine {
        tracing::debug!(target: "audit", who, from, method, path, status, "changed");
    } else {
        tracing::info!(target: "audit", who, from, method, path, status, "changed");
    }
}

async fn guarded(guard: &Guard, id: &str, request: HttpRequest, next: Next) -> Response {
    if let Err(problem) = browser::check(request.headers(), guard.tokens.is_some()) {
        return Failed(problem).into_response();
    }
    let holder = match &guard.tokens {
        Some(tokens) => match tokens.holder(request.headers()).await {
            Ok(holder) => holder,
            Err(problem) => return Failed(problem).into_response(),
        },
        None => Holder::TRUSTED,
    };
    let most = guard.limits.body;
    let mut request = request.map(|body| axum::body::Body::new(Limited::new(body, most)));
    let asker = Asker(holder.clone());
    request.extensions_mut().insert(Caller { holder, request: id.to_owned() });
    let patience = guard.limits.request;
    let answer = tokio::time::timeout(patience, next.run(request)).await;
    let mut answer = answer.unwrap_or_else(|_| {
        let detail = format!(
            "there was no answer within {patience:?}; ask again: what was begun goes on, and \
             asking twice is harmless"
        );
        Failed(Problem::new(ProblemKind::TimedOut, detail)).into_response()
    });
    answer.extensions_mut().insert(asker);
    answer
}

/// The answer with the id of its request, in the header and in a problem.
fn named(mut answer: Response, id: &str) -> Response {
    request_id::put(answer.headers_mut(), id);
    let status = answer.status().as_u16();
    let Some(mut problem) = answer.extensions_mut().remove::<Problem>() else {
        tracing::debug!(status, "answered");
        return answer;
    };
    if status == 500 {
        tracing::error!(status, kind = %problem.kind, detail = problem.detail, "failed");
    } else {
        tracing::debug!(status, kind = %problem.kind, detail = problem.detail, "refused");
    }
    problem.request = Some(id.to_owned());
    answer.headers_mut().remove(header::CONTENT_LENGTH);
    if let Ok(text) = serde_json::to_vec(&problem) {
        *answer.body_mut() = text.into();
    }
    answer
}
