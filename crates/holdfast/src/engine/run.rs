//! `holdfast engine run`: the engine of a node of a cluster.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ::engine::daemon::{Config, Control, Daemon};
use anyhow::{Context, Result};
use block::Bytes;
use clap::Args;
use http::uri::Authority;
use model::NodeName;
use store::client::Client;
use store::contract::Store;

use crate::stop;
use crate::store::Files;
use crate::typed::bytes;

/// Options of `engine run`.
#[derive(Args)]
pub(crate) struct Run {
    /// The name of this node in the cluster
    #[arg(long, value_name = "NAME")]
    node: NodeName,
    /// Where to serve NVMe/TCP, as other nodes reach it; may be given more than once
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:4420")]
    listen: Vec<SocketAddr>,
    /// Where to serve the node API, as the control plane reaches it
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:7442")]
    api: SocketAddr,
    /// Cores to run on, one reactor each, such as `0` or `2,3`
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "0")]
    cores: Vec<usize>,
    /// The folder in which it remembers its pools
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// The folder of the keys of encrypted replicas: a file of 32 bytes or 64 hexadecimal digits
    /// each, named as the key, that only its owner may read
    #[arg(long, value_name = "DIR")]
    keys: Option<PathBuf>,
    /// Who may use the node API: a file with lines of a role and a token; without one, everybody
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// The control plane to register with
    #[arg(long, value_name = "HOST:PORT")]
    control: Option<Authority>,
    /// A file with the token for the control plane
    #[arg(long, value_name = "FILE", requires = "control")]
    control_token_file: Option<PathBuf>,
    /// Servers of the store, separated by commas; without one, no targets are served
    #[arg(long, value_name = "URL,…", value_delimiter = ',', env = "HOLDFAST_STORE")]
    store: Vec<String>,
    /// The authority that signed the certificates of the store, a PEM file; for https
    #[arg(long, value_name = "FILE", requires = "store")]
    store_ca: Option<PathBuf>,
    /// Our certificate for the store, if it wants one, a PEM file
    #[arg(long, value_name = "FILE", requires_all = ["store_ca", "store_key"])]
    store_cert: Option<PathBuf>,
    /// Private key of our certificate for the store, a PEM file
    #[arg(long, value_name = "FILE", requires = "store_cert")]
    store_key: Option<PathBuf>,
    /// Seconds that stopping may take
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    drain: u64,
    /// Memory for the cache of each pool: checksums, and places of blocks under snapshots
    #[arg(long, value_name = "SIZE", default_value = "128MiB", value_parser = bytes)]
    pool_cache: u64,
}

impl Run {
    pub(crate) fn run(self) -> Result<()> {
        let files = Files { ca: &self.store_ca, cert: &self.store_cert, key: &self.store_key };
        let (endpoints, options) = (self.store, files.options()?);
        let token_file = self.control_token_file;
        let config = Config {
            node: self.node,
            listen: self.listen,
            api: self.api,
            cores: self.cores,
            dir: self.dir,
            keys: self.keys,
            token_file: self.token_file,
            control: self.control.map(|server| Control { server, token_file }),
            drain: Duration::from_secs(self.drain),
            pool_cache: Bytes(self.pool_cache),
        };
        // A few threads for the API; the reactors have their own.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .context("cannot start the threads of the node API")?;
        let ended = runtime.block_on(async {
            // It need not answer yet: an engine serves what it can without it.
            let store = match &endpoints[..] {
                [] => None,
                some => {
                    let store: Arc<dyn Store> = Arc::new(Client::lazy(some, options)?);
                    Some(store)
                }
            };
            let daemon = Daemon::start(config, store).await?;
            {
                let mut out = std::io::stdout().lock();
                for address in &daemon.info().address.data {
                    writeln!(out, "listening on {address}")?;
                }
                writeln!(out, "node API on {}", daemon.info().address.api)?;
                out.flush()?;
            }
            anyhow::Ok(daemon.run(stop::asked()).await?)
        });
        // What did not end in time is not waited for any longer.
        runtime.shutdown_background();
        ended
    }
}
