//! The service: bound, then run until it is told to stop.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;

pub use api::StartError;
use api::events::Log;
use api::{Guard, Limits, Server, TlsClient, TlsServer, Tokens};
use futures::future::BoxFuture;
use store::contract::Store;
use tokio::sync::{oneshot, watch};

use crate::engine_clients::EngineAuth;
use crate::leader::{self, ControlConfig};
use crate::process_state::{ProcessState, instance};
use crate::rest::Rest;
use crate::webhooks::Webhooks;

/// How many events a reader that was away may be behind.
const EVENTS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(4095);

/// How the control plane is to run; nothing in it can be wrong.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where REST is served.
    pub listen: SocketAddr,
    /// What it shows to its callers; absent: plain HTTP.
    pub tls: Option<TlsServer>,
    /// Who may ask; absent: everybody.
    pub tokens: Option<Arc<Tokens>>,
    /// How engines are reached.
    pub reach: EngineAuth,
    /// Whom to believe of the addresses that watches name; absent: those with `https` are refused.
    pub webhook_tls: Option<TlsClient>,
    /// What it is told to do.
    pub policy: ControlConfig,
}

impl Config {
    /// Plain HTTP for everybody, and the usual policy.
    pub fn plain(listen: SocketAddr) -> Config {
        let (tls, tokens, webhook_tls) = (None, None, None);
        let (reach, policy) = (EngineAuth::default(), ControlConfig::default());
        Config { listen, tls, tokens, reach, webhook_tls, policy }
    }
}

/// A control plane that has its address and its store.
pub struct Service {
    server: Server,
    guard: Guard,
    shared: Arc<ProcessState>,
    policy: ControlConfig,
}

impl Service {
    /// Takes the address. Nothing is answered before [`Service::run`].
    pub async fn bind(config: &Config, store: Arc<dyn Store>) -> Result<Service, StartError> {
        let limits = Limits::default();
        let server = Server::bind(config.listen, config.tls.as_ref(), limits).await?;
        let instance = instance();
        let address = server.local_addr().map_or(config.listen, |address| address);
        let identity = format!("{address} {instance}");
        let events = Arc::new(Log::new(instance, EVENTS));
        let callbacks = Webhooks::new(config.webhook_tls.clone())
            .map_err(|source| StartError::Calls { source })?;
        let outside = (config.reach.clone(), callbacks);
        let shared = Arc::new(ProcessState::new(store, outside, identity, events));
        let counters = Arc::clone(&shared.requests);
        let guard = Guard { tokens: config.tokens.clone(), limits, counters };
        Ok(Service { server, guard, shared, policy: config.policy.clone() })
    }

    /// The address taken; the port is a real one even if 0 was asked for.
    pub fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.server.local_addr()
    }

    /// Leads when it can, and serves, until `stop` ends; then finishes the answers under way. A
    /// panic of what leads ends it too, and is passed on to the caller.
    pub fn run(self, stop: impl Future<Output = ()> + Send + 'static) -> BoxFuture<'static, ()> {
        // Behind a pointer: all that runs below is compiled here, not in each program that runs it.
        Box::pin(self.serve(Box::pin(stop)))
    }

    async fn serve(self, stop: BoxFuture<'static, ()>) {
        let (ended, is_over) = watch::channel(false);
        let (shared, policy) = (Arc::clone(&self.shared), self.policy);
        let (over, unasked) = oneshot::channel::<()>();
        let leading = tokio::spawn(async move {
            // Dropped however this ends.
            let _over = over;
            leader::run(shared, policy, is_over).await;
        });
        let events = Arc::clone(&self.shared.events);
        let router = api::rest::router(Rest(self.shared), Arc::clone(&events), self.guard);
        let stop = async move {
            tokio::select! {
                () = stop => {}
                // What cannot lead any more must not answer as if it could.
                _ = unasked => {}
            }
            events.close();
            ended.send_replace(true);
        };
        self.server.run(router, stop).await;
        // It ends by itself when told so.
        if let Err(error) = leading.await
            && let Ok(panic) = error.try_into_panic()
        {
            tracing::error!("the control plane stops: leading has panicked");
            std::panic::resume_unwind(panic);
        }
    }
}
