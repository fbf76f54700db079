//! `holdfast engine run`: the engine of a node of a cluster.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ::engine::daemon::{Config, Daemon, ErrorLimits, LONGEST_LEASE};
use ::engine::replication::{ClusterSecret, Replication};
use anyhow::{Context, Result};
use api::{ClientConfig, TlsClient, Token};
use block::Bytes;
use clap::Args;
use futures::FutureExt as _;
use http::uri::Authority;
use model::NodeName;
use nvme::pdu::Digests;
use store::client::Client;
use store::contract::Store;

use crate::arg_parsers::{ServerAuth, ServerAuthArgs, bytes, some_time, time};
use crate::stop;
use crate::store::Certificates;

/// How long a control plane may take to answer a heartbeat.
const HEARTBEAT: Duration = Duration::from_secs(3);

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
    #[command(flatten, next_help_heading = "Node API")]
    guarded: ServerAuthArgs,
    /// The file of the secret of the cluster: 64 hexadecimal digits that only its owner may read,
    /// the same on all engines (make it with `openssl rand -hex 32`). Engines prove to each other
    /// that they know it; nobody else reads, writes or reserves a replica. To replace it, add the
    /// new one as a second line on every engine, then put it first on every engine, then remove the
    /// old one; the file is looked at every 10 seconds
    #[arg(long, value_name = "FILE", help_heading = "Replication")]
    cluster_secret: Option<PathBuf>,
    /// Serve replicas without a cluster secret also where other machines reach them. Whoever
    /// connects under the name of a node then reads and writes all data: only for networks that
    /// nobody else is on
    #[arg(long, conflicts_with = "cluster_secret", help_heading = "Replication")]
    unauthenticated_replication: bool,
    /// Leave out the checksums (header and data digests) on connections to replicas. What a network
    /// card, a switch or memory changes on the way is then kept as if it had been written
    #[arg(long, help_heading = "Replication")]
    no_replication_digests: bool,
    /// The control planes to register with, separated by commas: whichever of them leads hears it
    #[arg(long, value_name = "HOST:PORT,…", value_delimiter = ',', help_heading = "Control plane")]
    control: Vec<Authority>,
    /// A file with the token for the control plane: of the role node:NAME for this node, or of the
    /// service account that the control plane believes. It is read again when it changes
    #[arg(long, value_name = "FILE", requires = "control", help_heading = "Control plane")]
    control_token_file: Option<PathBuf>,
    /// Use TLS for the control plane, and believe only one with a certificate of these authorities
    /// (PEM)
    #[arg(long, value_name = "FILE", requires = "control", help_heading = "Control plane")]
    control_ca: Option<PathBuf>,
    /// Servers of the store, separated by commas; without one, no targets are served
    #[arg(
        long,
        value_name = "URL,…",
        value_delimiter = ',',
        env = "HOLDFAST_STORE",
        help_heading = "Store"
    )]
    store: Vec<String>,
    #[command(flatten)]
    certificates: Certificates,
    /// Seconds that stopping may take
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    drain: u64,
    /// Stop in two stages: once its targets are closed it says so on standard output, and serves
    /// its replicas until standard input ends, which also stops it. For a program that runs several
    /// engines
    #[arg(long, hide = true)]
    staged: bool,
    /// Memory for the cache of each pool: checksums, and places of blocks under snapshots
    #[arg(long, value_name = "SIZE", default_value = "128MiB", value_parser = bytes)]
    pool_cache: u64,
    #[command(flatten)]
    error_limits: ErrorLimitArgs,
    /// For how long a target answers reads after every copy in sync has shown that nobody else
    /// owns the volume; at most 1s. With 0s it asks them for each read, which is right even if a
    /// hypervisor pauses this machine with all of its clocks, and costs reads a round trip
    #[arg(
        long, value_name = "TIME", default_value = "1s", value_parser = read_lease,
        help_heading = "Replication"
    )]
    read_lease: Duration,
}

/// When errors make a disk suspect.
#[derive(Args)]
struct ErrorLimitArgs {
    /// So many errors of a disk within --disk-error-window make its pool suspect
    #[arg(
        long, value_name = "COUNT", default_value_t = 5,
        value_parser = clap::value_parser!(u64).range(1..), help_heading = "Disks"
    )]
    disk_errors: u64,
    /// For how long an error of a disk counts
    #[arg(
        long, value_name = "TIME", default_value = "24h", value_parser = some_time,
        help_heading = "Disks"
    )]
    disk_error_window: Duration,
}

impl From<ErrorLimitArgs> for ErrorLimits {
    fn from(typed: ErrorLimitArgs) -> ErrorLimits {
        ErrorLimits { errors: typed.disk_errors, window: typed.disk_error_window }
    }
}

/// A lease of reads: others wait for so long, not longer.
fn read_lease(text: &str) -> Result<Duration, String> {
    match time(text)? {
        lease if lease <= LONGEST_LEASE => Ok(lease),
        lease => Err(format!("{lease:?} is more than {LONGEST_LEASE:?}")),
    }
}

impl Run {
    /// How it speaks to other engines.
    fn replication(&self) -> Result<Replication> {
        let secret = self.cluster_secret.as_deref().map(ClusterSecret::read).transpose()?;
        let protects = !self.no_replication_digests;
        let digests = Digests { header: protects, data: protects };
        Ok(Replication { secret: secret.map(Arc::new), digests })
    }

    pub(crate) fn run(self) -> Result<()> {
        let replication = self.replication()?;
        let (endpoints, options) = (self.store, self.certificates.options()?);
        let token = self.control_token_file.as_deref().map(Token::read).transpose()?;
        let tls = self.control_ca.as_deref().map(TlsClient::read).transpose()?;
        let control = self.control.into_iter().map(|server| ClientConfig {
            token: token.clone(),
            tls: tls.clone(),
            // So that one that is gone without a word is passed over in time.
            patience: HEARTBEAT,
            ..ClientConfig::plain(server)
        });
        let control = control.collect();
        let ServerAuth { tls, tokens } = self.guarded.read(self.api)?;
        let config = Config {
            node: self.node,
            listen: self.listen,
            api: self.api,
            cores: self.cores,
            dir: self.dir,
            keys: self.keys,
            tokens: tokens.map(Arc::new),
            tls,
            control,
            drain: Duration::from_secs(self.drain),
            pool_cache: Bytes(self.pool_cache),
            replication,
            trusts_network: self.unauthenticated_replication,
            error_limits: self.error_limits.into(),
            read_lease: self.read_lease,
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
            announce(&daemon)?;
            let running = if self.staged {
                let ended = input_ends();
                let over = ended.clone();
                let stop = async move {
                    tokio::select! {
                        () = stop::asked() => {}
                        () = over => tracing::warn!("the program that started this one is gone"),
                    }
                };
                daemon.run_staged(stop, alone(ended))
            } else {
                daemon.run(stop::asked())
            };
            anyhow::Ok(running.await?)
        });
        // What did not end in time is not waited for any longer.
        runtime.shutdown_background();
        ended
    }
}

/// Says where it listens.
fn announce(daemon: &Daemon) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    for address in &daemon.info().address.data {
        writeln!(out, "listening on {address}")?;
    }
    writeln!(out, "node API on {}", daemon.info().address.api)?;
    out.flush()
}

/// What an engine that stops in stages says when its targets are closed.
pub(crate) const CLOSED: &str = "targets closed";

/// Says that the targets are closed, and waits.
async fn alone(ended: impl Future<Output = ()>) {
    let said = writeln!(std::io::stdout(), "{CLOSED}").and_then(|()| std::io::stdout().flush());
    if said.is_ok() {
        ended.await;
    }
}

/// Ends when standard input does: also if the program that holds its other end is killed.
fn input_ends() -> impl Future<Output = ()> + Clone + Send {
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    std::thread::spawn(move || {
        // An error is an end as well.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        drop(end);
    });
    ended.map(|_| ()).shared()
}
