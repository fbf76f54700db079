//! `holdfast up`: everything on this machine, with one command.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Args;
use control::Service;
use store::client::{Client, Options};
use store::server::Server;
use tokio_util::sync::CancellationToken;

use crate::{control as control_command, stop};

/// Options of `up`.
#[derive(Args)]
pub(crate) struct Typed {
    /// The folder that holds all data; running again continues with it
    #[arg(long, value_name = "DIR", default_value_os_t = default_dir())]
    dir: PathBuf,
    /// Where to serve REST
    #[arg(long, value_name = "ADDR:PORT", default_value = control_command::LISTEN)]
    listen: SocketAddr,
    /// Where the embedded store serves the etcd v3 protocol
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:7441")]
    store_listen: SocketAddr,
}

fn default_dir() -> PathBuf {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/share"));
    let data = std::env::var_os("XDG_DATA_HOME").map(PathBuf::from).or_else(home);
    data.unwrap_or_else(|| PathBuf::from(".")).join("holdfast")
}

impl Typed {
    pub(crate) async fn run(self) -> Result<()> {
        let config = store::server::Config::new(self.dir.join("store"), self.store_listen);
        let server = tokio::task::spawn_blocking(move || Server::open(config)).await??;
        let store_address = server.local_addr();

        let stopping = CancellationToken::new();
        let mut serving = tokio::spawn(server.run(stopping.clone().cancelled_owned()));

        let endpoint = format!("http://{store_address}");
        let client = Client::connect(&[endpoint], Options::default()).await?;
        let config = control::Config::plain(self.listen);
        let control = Service::bind(&config, Arc::new(client)).await?;
        let rest_address = control.local_addr()?;
        let mut controlling = tokio::spawn(control.run(stopping.clone().cancelled_owned()));

        writeln!(
            std::io::stdout(),
            "Holdfast is up.\n\n  \
             health   curl http://{rest_address}/v1/health\n  \
             store    etcd v3 at {store_address}\n  \
             data     {}\n\nCtrl-C stops it; running it again continues with the data.",
            self.dir.display()
        )?;

        let ended = tokio::select! {
            () = stop::asked() => None,
            done = &mut serving => Some(done.map(|done| done.map_err(anyhow::Error::from))),
            done = &mut controlling => Some(done.map(Ok)),
        };
        stopping.cancel();
        if let Some(done) = ended {
            // One part ended by itself: that is an error even if it says it is not.
            return done?.and(Err(anyhow::anyhow!("a part of Holdfast ended by itself")));
        }
        controlling.await.context("the control plane did not stop cleanly")?;
        serving.await?.context("the store did not stop cleanly")
    }
}
