//! `holdfast mesh`: the kernel data path.

use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use csi::{NodeSockets, Serving};
use futures::FutureExt as _;
use linux::{Kernel, LiveKernel};
use mesh::MeshDevices;
use mesh::cluster::Cluster;
use mesh::daemon::Daemon;
use mesh::service::{MeshController, MeshIdentity};
use model::HostName;
use tokio::net::TcpListener;

use crate::stop;

/// Commands of the kernel data path.
#[derive(Subcommand)]
pub(crate) enum MeshCommand {
    /// Serve the provisioner and the resizer: volumes as custom resources
    Controller(ServeController),
    /// Serve the kubelet of this node, and keep its partitions, exports and arrays as they shall be
    Node(ServeNode),
    /// Print the custom resource definitions
    Crds,
    /// Show partitions on this machine that no volume claims, and remove them
    Cleanup(Cleanup),
}

/// Options of `mesh controller`.
#[derive(Args)]
pub(crate) struct ServeController {
    /// The socket to listen on
    #[arg(long, value_name = "PATH", env = "CSI_ENDPOINT", value_parser = crate::csi::socket)]
    socket: PathBuf,
    /// Answer /healthz and /readyz at this address
    #[arg(long, value_name = "IP:PORT")]
    liveness: Option<SocketAddr>,
}

/// Options of `mesh node`.
#[derive(Args)]
pub(crate) struct ServeNode {
    /// The socket to listen on
    #[arg(long, value_name = "PATH", env = "CSI_ENDPOINT", value_parser = crate::csi::socket)]
    socket: PathBuf,
    /// Register with the kubelet by this socket, such as
    /// /var/lib/kubelet/plugins_registry/mesh.csi.holdfast.io-reg.sock
    #[arg(long, value_name = "PATH")]
    registration: Option<PathBuf>,
    /// The name of this node in Kubernetes
    #[arg(long, value_name = "NODE", env = "NODE_NAME")]
    node: HostName,
    /// Where this node listens for NVMe/TCP: an address that the other nodes reach
    #[arg(long, value_name = "IP", env = "NODE_IP")]
    address: IpAddr,
    /// Answer /healthz and /readyz at this address
    #[arg(long, value_name = "IP:PORT")]
    liveness: Option<SocketAddr>,
}

/// Options of `mesh cleanup`.
#[derive(Args)]
pub(crate) struct Cleanup {
    /// Remove them; left out: only show them
    #[arg(long)]
    apply: bool,
}

impl MeshCommand {
    pub(crate) async fn run(self) -> Result<()> {
        match self {
            MeshCommand::Controller(controller) => controller.run().await,
            MeshCommand::Node(node) => node.run().await,
            MeshCommand::Crds => print(&mesh::custom_resource_definitions()?),
            MeshCommand::Cleanup(cleanup) => cleanup.run().await,
        }
    }
}

fn print(definitions: &[serde_json::Value]) -> Result<()> {
    let items = serde_json::json!({ "apiVersion": "v1", "kind": "List", "items": definitions });
    let text = serde_json::to_string_pretty(&items)?;
    Ok(writeln!(std::io::stdout(), "{text}")?)
}

/// Held by the one daemon of a node: each decides from what it alone has recorded.
fn lock() -> Result<std::fs::File> {
    const PATH: &str = "/run/holdfast-mesh.lock";
    let file = std::fs::File::create(PATH).with_context(|| format!("cannot make {PATH}"))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(_) => bail!("another `holdfast mesh node` runs here (it holds {PATH}); end it first"),
    }
}

/// Answers whether the services on a socket are alive, until `stop` ends.
async fn liveness(
    address: Option<SocketAddr>,
    socket: &Path,
    serving: Serving,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<()> {
    let Some(address) = address else {
        stop.await;
        return Ok(());
    };
    let listener = TcpListener::bind(address).await;
    let listener = listener.with_context(|| format!("--liveness {address}: cannot listen"))?;
    tracing::info!(%address, "liveness at /healthz, readiness at /readyz");
    Ok(csi::serve_liveness(listener, socket, serving, stop).await?)
}

impl ServeController {
    async fn run(self) -> Result<()> {
        let stop = stop::asked().boxed().shared();
        let serving = Serving::default();
        let alive = liveness(self.liveness, &self.socket, serving.clone(), stop.clone());
        let services =
            (MeshIdentity::default(), MeshController { cluster: Cluster::connect().await? });
        let serves = async {
            Ok(csi::serve_controller_of(&self.socket, services, &serving, stop.clone()).await?)
        };
        tokio::try_join!(alive, serves).map(|_| ())
    }
}

impl ServeNode {
    async fn run(self) -> Result<()> {
        let _alone = lock()?;
        let kernel: Arc<dyn Kernel> = Arc::new(LiveKernel::default());
        let cluster = Cluster::connect().await?;
        let (node, address) = (self.node.to_string(), self.address);
        let daemon = Arc::new(Daemon::new(node, address, Arc::clone(&kernel), cluster));
        let stop = stop::asked().boxed().shared();
        let serving = Serving::default();
        let alive = liveness(self.liveness, &self.socket, serving.clone(), stop.clone());
        let cycles = async {
            Arc::clone(&daemon).run(stop.clone()).await;
            Ok(())
        };
        let runtime = tokio::runtime::Handle::current();
        let devices = MeshDevices { daemon: Arc::clone(&daemon), runtime };
        let config = csi::NodeConfig { host: self.node.clone(), zone: None, most_volumes: 0 };
        let service = csi::Node::new(kernel, devices, config);
        let identity = MeshIdentity { daemon: Some(Arc::clone(&daemon)) };
        let sockets =
            NodeSockets { driver: &self.socket, registration: self.registration.as_deref() };
        let serves = async {
            Ok(csi::serve_node_of(sockets, (identity, service), &serving, stop.clone()).await?)
        };
        tokio::try_join!(alive, cycles, serves).map(|_| ())
    }
}

impl Cleanup {
    async fn run(self) -> Result<()> {
        let kernel: Arc<dyn Kernel> = Arc::new(LiveKernel::default());
        let cluster = Cluster::connect().await?;
        let found = mesh::cleanup::unclaimed(&*kernel, &cluster.volumes().await?);
        let mut out = std::io::stdout();
        let mut failed = 0_usize;
        for one in &found {
            let done = match (&one.in_use, self.apply) {
                (Some(reason), _) => format!("stays: {reason}"),
                (None, false) => "would be removed; look at its data first".to_owned(),
                (None, true) => match mesh::cleanup::remove(&kernel, &cluster, one).await {
                    Ok(()) => "removed".to_owned(),
                    Err(error) => {
                        failed += 1;
                        format!("{:#}", anyhow::Error::from(error))
                    }
                },
            };
            writeln!(out, "{} {} {} bytes: {done}", one.drive, one.uuid, one.bytes)?;
        }
        if failed > 0 {
            bail!("{failed} of {} partitions were not removed", found.len());
        }
        Ok(())
    }
}
