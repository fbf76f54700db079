//! An embedded server in this process, to be stopped and started again.

use std::net::SocketAddr;
use std::path::PathBuf;

use store::client::{Client, Options};
use store::server::{Config, Server};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub(crate) struct Embedded {
    dir: PathBuf,
    address: SocketAddr,
    running: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl Embedded {
    pub(crate) fn start(dir: PathBuf) -> Embedded {
        let any = "127.0.0.1:0".parse().unwrap();
        let mut embedded = Embedded { dir, address: any, running: None };
        embedded.restart();
        embedded
    }

    pub(crate) fn restart(&mut self) {
        let server = Server::open(Config::new(self.dir.clone(), self.address)).unwrap();
        self.address = server.local_addr();
        let (stop, stopped) = oneshot::channel();
        let serving = tokio::spawn(async move {
            let told = async move {
                let _ = stopped.await;
            };
            server.run(told).await.unwrap();
        });
        self.running = Some((stop, serving));
    }

    pub(crate) async fn stop(&mut self) {
        if let Some((stop, serving)) = self.running.take() {
            stop.send(()).unwrap();
            serving.await.unwrap();
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn client(&self) -> Client {
        Client::lazy(&[self.endpoint()], Options::default()).unwrap()
    }
}
