//! `holdfast engine run`: the engine of a node of a cluster.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use ::engine::daemon::{Config, Control, Daemon};
use anyhow::{Context, Result};
use block::Bytes;
use clap::Args;
use http::uri::Authority;
use model::NodeName;

use crate::stop;
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
    /// Who may use the node API: a file with lines of a role and a token; without one, everybody
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// The control plane to register with
    #[arg(long, value_name = "HOST:PORT")]
    control: Option<Authority>,
    /// A file with the token for the control plane
    #[arg(long, value_name = "FILE", requires = "control")]
    control_token_file: Option<PathBuf>,
    /// Seconds that stopping may take
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    drain: u64,
    /// Memory for the cache of each pool: checksums, and places of blocks under snapshots
    #[arg(long, value_name = "SIZE", default_value = "128MiB", value_parser = bytes)]
    pool_cache: u64,
}

impl Run {
    pub(crate) fn run(self) -> Result<()> {
        let token_file = self.control_token_file;
        let config = Config {
            node: self.node,
            listen: self.listen,
            api: self.api,
            cores: self.cores,
            dir: self.dir,
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
            let daemon = Daemon::start(config).await?;
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
