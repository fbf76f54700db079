//! Whether this driver is alive, for the kubelet: over HTTP, by asking the driver itself.
//!
//! ```text
//!   GET /healthz ──► Probe on the driver's own socket: 200 if it answers at all, else 503
//!   GET /readyz  ──► the same: 200 only if it says that it is ready, else 503
//! ```
//!
//! A driver that waits for its control plane, or for the registration of its host, is alive:
//! nothing is gained by restarting it. That it is not ready is said by the second path.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, UnixStream};
use tonic::Status;
use tonic::transport::{Channel, Endpoint, Uri};

use crate::proto::ProbeRequest;
use crate::proto::identity_client::IdentityClient;

/// How long the driver may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Whether a driver serves its socket yet.
#[derive(Clone, Debug, Default)]
pub struct Serving(Arc<AtomicBool>);

impl Serving {
    /// From now on the socket must answer.
    pub(crate) fn begin(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn has_begun(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// What is asked of a driver.
#[derive(Clone, Debug)]
struct Driver {
    socket: PathBuf,
    serving: Serving,
}

/// What it said.
#[derive(Debug)]
enum Health {
    Starting,
    Ready,
    NotReady,
    Dead(Status),
}

/// Answers whether the driver on a socket is alive, until `stop` ends.
pub async fn serve_liveness(
    listener: TcpListener,
    socket: &Path,
    serving: Serving,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let driver = Driver { socket: socket.to_owned(), serving };
    let router =
        Router::new().route("/healthz", get(alive)).route("/readyz", get(ready)).with_state(driver);
    axum::serve(listener, router).with_graceful_shutdown(stop).await
}

async fn alive(State(driver): State<Driver>) -> (StatusCode, String) {
    let health = driver.health().await;
    let code = match health {
        Health::Dead(_) => StatusCode::SERVICE_UNAVAILABLE,
        Health::Starting | Health::Ready | Health::NotReady => StatusCode::OK,
    };
    (code, health.text())
}

async fn ready(State(driver): State<Driver>) -> (StatusCode, String) {
    let health = driver.health().await;
    let code = match health {
        Health::Ready => StatusCode::OK,
        Health::Starting | Health::NotReady | Health::Dead(_) => StatusCode::SERVICE_UNAVAILABLE,
    };
    (code, health.text())
}

impl Driver {
    async fn health(&self) -> Health {
        if !self.serving.has_begun() {
            return Health::Starting;
        }
        let late = |_| Err(Status::deadline_exceeded(format!("no answer within {PATIENCE:?}")));
        match tokio::time::timeout(PATIENCE, self.probe()).await.unwrap_or_else(late) {
            Ok(true) => Health::Ready,
            Ok(false) => Health::NotReady,
            Err(status) => Health::Dead(status),
        }
    }

    async fn probe(&self) -> Result<bool, Status> {
        let channel = self.connect().await.map_err(|error| {
            let message = format!("{} does not answer: {error}", self.socket.display());
            Status::unavailable(message)
        })?;
        let answer = IdentityClient::new(channel).probe(ProbeRequest {}).await?.into_inner();
        // Left out means ready, says the specification.
        Ok(answer.ready.unwrap_or(true))
    }

    async fn connect(&self) -> Result<Channel, tonic::transport::Error> {
        let socket = self.socket.clone();
        let connector = tower::service_fn(move |_: Uri| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        });
        Endpoint::from_static("http://localhost").connect_with_connector(connector).await
    }
}

impl Health {
    fn text(&self) -> String {
        match self {
            Health::Starting => "starting; the log says what it waits for\n".to_owned(),
            Health::Ready => "ready\n".to_owned(),
            Health::NotReady => "waits for the control plane\n".to_owned(),
            Health::Dead(status) => format!("{}\n", status.message()),
        }
    }
}
