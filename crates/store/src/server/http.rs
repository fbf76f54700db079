//! What the port answers beside gRPC: `/version`, `/health`, `/livez`, `/readyz`, `/metrics` and
//! the JSON gateway.

use std::sync::Arc;

use axum::{
    Router,
    extract::State,
    middleware,
    response::{IntoResponse, Response},
    routing::get,
};
use http::{HeaderMap, StatusCode, header::CONTENT_TYPE};
use prost_reflect::DescriptorError;
use serde_json::json;
use tonic::Status;

use super::{browser, gateway, metrics, rpc::maintenance::VERSION, server_state::ServerState};

/// What the answers are made from.
#[derive(Clone)]
pub(super) struct Told {
    pub(super) state: Arc<ServerState>,
    /// Bytes past which writes are refused.
    pub(super) quota: usize,
    /// Whether clients know by a certificate whom they ask.
    pub(super) is_tls: bool,
}

/// All routes: the gRPC services, the gateway in front of them, and the small ones.
pub(super) fn router(grpc: Router, told: Told) -> Result<Router, DescriptorError> {
    let small = Router::new()
        .route("/version", get(version))
        .route("/health", get(health))
        .route("/livez", get(probe))
        .route("/readyz", get(probe))
        .route("/metrics", get(metrics))
        .with_state(told.clone());
    let all = small.merge(gateway::router(grpc.clone())?).merge(grpc).fallback(nothing);
    Ok(all.layer(middleware::from_fn_with_state(told, browser::guard)))
}

/// A call of a service that is not there, or a path that is none.
async fn nothing(headers: HeaderMap) -> Response {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    if kind.is_some_and(|kind| kind.starts_with("application/grpc")) {
        return Status::unimplemented("unknown service").into_http();
    }
    gateway::not_found()
}

async fn version() -> Response {
    // The cluster version is that of the protocol, whose last number is always 0.
    let cluster = VERSION.rsplit_once('.').map_or(VERSION, |(minor, _)| minor);
    let body = json!({ "etcdserver": VERSION, "etcdcluster": format!("{cluster}.0") });
    ([(CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

/// Why the store is not well: a disk that cannot be written, or an alarm.
fn illness(told: &Told) -> Option<&'static str> {
    if told.state.failure().is_some() {
        return Some("DISK FAILED");
    }
    let settings = told.state.settings();
    let kind = settings.alarms.keys().next()?;
    Some(if *kind == 1 { "ALARM NOSPACE" } else { "ALARM CORRUPT" })
}

async fn health(State(told): State<Told>) -> Response {
    let (status, healthy, reason) = match illness(&told) {
        None => (StatusCode::OK, "true", ""),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, "false", reason),
    };
    let body = json!({ "health": healthy, "reason": reason });
    (status, [(CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

async fn probe(State(told): State<Told>) -> Response {
    match illness(&told) {
        None => "ok\n".into_response(),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response(),
    }
}

async fn metrics(State(told): State<Told>) -> Response {
    let text = metrics::text(&told.state, told.quota);
    ([(CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
}
