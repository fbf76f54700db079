//! The service: bound, then run until it is told to stop.

use std::net::SocketAddr;
use std::sync::Arc;

pub use api::StartError;
use api::{Api, Guard, Limits, Server};
use store::contract::Store;

use crate::health;

/// How the control plane is to run; nothing in it can be wrong.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where REST is served.
    pub listen: SocketAddr,
}

/// A control plane that has its address and its store.
pub struct Service {
    server: Server,
    store: Arc<dyn Store>,
}

impl Service {
    /// Takes the address. Nothing is answered before [`Service::run`].
    pub async fn bind(config: &Config, store: Arc<dyn Store>) -> Result<Service, StartError> {
        let server = Server::bind(config.listen, None, Limits::default()).await?;
        Ok(Service { server, store })
    }

    /// The address taken; the port is a real one even if 0 was asked for.
    pub fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.server.local_addr()
    }

    /// Serves until `stop` ends, then finishes the answers under way.
    pub async fn run(self, stop: impl Future<Output = ()> + Send + 'static) {
        let api = Api::<Arc<dyn Store>>::new("Holdfast", "Volumes from intent to healed.")
            .on(&health::HEALTH, async move |store, _| health::health(&**store).await);
        self.server.run(api.router(Arc::new(self.store), Guard::default()), stop).await;
    }
}
