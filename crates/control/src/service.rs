//! The service: bound, then run until it is told to stop.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use store::contract::Store;
use tokio::net::TcpListener;

use crate::{answer, health};

/// How the control plane is to run; nothing in it can be wrong.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where REST is served.
    pub listen: SocketAddr,
}

/// Why the control plane did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address could not be had.
    #[error("cannot listen on {listen}; is it in use? Choose another with --listen")]
    Listen {
        /// Where.
        listen: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
}

/// A control plane that has its address and its store.
pub struct Service {
    listener: TcpListener,
    router: Router,
}

impl Service {
    /// Takes the address. Nothing is answered before [`Service::run`].
    pub async fn bind(config: &Config, store: Arc<dyn Store>) -> Result<Service, StartError> {
        let listen = config.listen;
        let listener = TcpListener::bind(listen)
            .await
            .map_err(|source| StartError::Listen { listen, source })?;
        Ok(Service { listener, router: router(store) })
    }

    /// The address taken; the port is a real one even if 0 was asked for.
    pub fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop` ends, then finishes the answers under way.
    pub async fn run(self, stop: impl Future<Output = ()> + Send + 'static) -> std::io::Result<()> {
        axum::serve(self.listener, self.router).with_graceful_shutdown(stop).await
    }
}

fn router(store: Arc<dyn Store>) -> Router {
    Router::new()
        .route("/v1/health", get(health::health))
        .fallback(answer::no_such_path)
        .method_not_allowed_fallback(answer::wrong_method)
        .with_state(store)
}
