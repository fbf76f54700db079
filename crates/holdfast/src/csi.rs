//! `holdfast csi`: what Kubernetes asks for volumes through.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agent::attach::AttachError;
use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};
use csi::kubernetes::{self, Cluster, OrphanConfig};
use csi::{AgentDevices, ControllerConfig, Node, NodeConfig, NodeSockets, Serving};
use futures::FutureExt as _;
use linux::{Kernel, LiveKernel};
use model::{HostName, LabelValue};
use tokio::net::TcpListener;

use crate::arg_parsers::some_time;
use crate::attach::RunFolder;
use crate::cli::ClientArgs;
use crate::stop;

/// Between questions to an API server that does not answer.
const AGAIN: Duration = Duration::from_secs(2);

/// Roles of the driver.
#[derive(Subcommand)]
pub(crate) enum CsiCommand {
    /// Serve volumes and snapshots to the provisioner, the snapshotter and the resizer
    Controller(Controller),
    /// Serve volumes to the kubelet of this machine
    Node(ServeNode),
}

/// Options of `csi controller`.
#[derive(Args)]
pub(crate) struct Controller {
    #[command(flatten)]
    ask: ClientArgs,
    /// The socket to listen on
    #[arg(long, value_name = "PATH", env = "CSI_ENDPOINT", value_parser = socket)]
    socket: PathBuf,
    /// How many volumes are made at once
    #[arg(long, value_name = "COUNT", default_value_t = 10)]
    creations: usize,
    #[command(flatten)]
    liveness: Liveness,
    #[command(flatten)]
    kubernetes: Kubernetes,
}

/// What a driver says of itself over HTTP.
#[derive(Args)]
struct Liveness {
    /// Answer GET /healthz and /readyz there, such as 0.0.0.0:9808; left out: nowhere
    #[arg(long = "liveness", value_name = "ADDR:PORT", env = "HOLDFAST_CSI_LIVENESS")]
    address: Option<SocketAddr>,
}

/// What the controller does with the API server itself.
#[derive(Args)]
struct Kubernetes {
    /// Leave VolumeAttachments to an external-attacher
    #[arg(long, help_heading = "Kubernetes")]
    no_attacher: bool,
    /// Leave volumes alone whose PersistentVolume is gone
    #[arg(long, help_heading = "Kubernetes")]
    no_orphans: bool,
    /// How many volumes may lose their PersistentVolume at once and still be deleted
    #[arg(long, value_name = "COUNT", default_value_t = 3, help_heading = "Kubernetes")]
    most_orphans: usize,
    /// How to reach the API server; left out: as a pod of it
    #[arg(long, value_name = "FILE", env = "KUBECONFIG", help_heading = "Kubernetes")]
    kubeconfig: Option<PathBuf>,
}

/// Options of `csi node`.
#[derive(Args)]
pub(crate) struct ServeNode {
    #[command(flatten)]
    ask: ClientArgs,
    #[command(flatten)]
    run: RunFolder,
    /// The socket to listen on
    #[arg(long, value_name = "PATH", env = "CSI_ENDPOINT", value_parser = socket)]
    socket: PathBuf,
    /// Register with the kubelet by this socket, such as
    /// /var/lib/kubelet/plugins_registry/csi.holdfast.io-reg.sock
    #[arg(long, value_name = "PATH")]
    registration: Option<PathBuf>,
    /// The name of this machine; left out: its host name
    #[arg(long, value_name = "HOST", env = "HOLDFAST_HOST")]
    host: Option<HostName>,
    /// Send no heartbeats of this machine as a host and watch no paths: `holdfast agent run` does
    #[arg(long)]
    no_heartbeat: bool,
    /// The zone that this machine is in
    #[arg(long, value_name = "ZONE")]
    zone: Option<String>,
    /// How many volumes this machine takes at most; 0: no limit
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    most_volumes: u32,
    /// How long I/O waits for a target that is away before it fails
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = some_time)]
    hold: Duration,
    #[command(flatten)]
    liveness: Liveness,
}

/// A socket, as a path or as Kubernetes writes it: `unix:///csi/csi.sock`.
pub(crate) fn socket(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text.strip_prefix("unix://").unwrap_or(text));
    if path.is_absolute() {
        return Ok(path);
    }
    Err("give an absolute path, or unix:// and one".to_owned())
}

impl CsiCommand {
    pub(crate) async fn run(self) -> Result<()> {
        match self {
            CsiCommand::Controller(controller) => controller.run().await,
            CsiCommand::Node(node) => node.run().await,
        }
    }
}

impl Liveness {
    /// Answers until `stop` ends; without an address, it only waits for that.
    async fn serve(
        &self,
        socket: &std::path::Path,
        serving: Serving,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> Result<()> {
        let Some(address) = self.address else {
            stop.await;
            return Ok(());
        };
        let listener = TcpListener::bind(address).await;
        let listener = listener.with_context(|| format!("--liveness {address}: cannot listen"))?;
        tracing::info!(%address, "liveness at /healthz, readiness at /readyz");
        Ok(csi::serve_liveness(listener, socket, serving, stop).await?)
    }
}

impl Kubernetes {
    /// The cluster and what tells it from others, if anything is to be done with it. An API server
    /// that does not answer is waited for.
    async fn cluster(&self) -> Result<Option<(Cluster, LabelValue)>> {
        if self.no_attacher && self.no_orphans {
            return Ok(None);
        }
        let cluster = Cluster::connect(self.kubeconfig.as_deref()).await.with_context(|| {
            "VolumeAttachments and orphans need the API server (see --no-attacher, --no-orphans)"
        })?;
        loop {
            match cluster.identity().await {
                Ok(identity) => return Ok(Some((cluster, identity))),
                Err(error) => {
                    let error = format!("{:#}", anyhow::Error::from(error));
                    tracing::warn!(error, "waiting for the API server");
                }
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Does what is to be done with the API server, until `stop` ends.
    async fn run(
        &self,
        found: Option<(Cluster, LabelValue)>,
        controller: &Arc<csi::Controller<api::rest::Remote>>,
        stop: impl Future<Output = ()> + Clone,
    ) {
        let Some((cluster, identity)) = found else { return stop.await };
        let attaching = async {
            if self.no_attacher {
                return;
            }
            kubernetes::run_attacher(&cluster, Arc::clone(controller), stop.clone()).await;
        };
        let collecting = async {
            if self.no_orphans {
                return;
            }
            let config = OrphanConfig { cluster: identity, most: self.most_orphans };
            let stop = stop.clone();
            kubernetes::collect_orphans(&cluster, Arc::clone(controller), config, stop).await;
        };
        tokio::join!(attaching, collecting);
    }
}

impl Controller {
    async fn run(self) -> Result<()> {
        let stop = stop::asked().boxed().shared();
        let serving = Serving::default();
        let alive = self.liveness.serve(&self.socket, serving.clone(), stop.clone());
        let works = async {
            let connecting = self.kubernetes.cluster();
            let found = tokio::select! {
                found = connecting => found?,
                () = stop.clone() => return Ok(()),
            };
            let control = Arc::new(self.ask.remote()?);
            let config = ControllerConfig {
                creations: self.creations,
                cluster: found.as_ref().map(|(_, identity)| identity.clone()),
                ..ControllerConfig::default()
            };
            let controller = Arc::new(csi::Controller::new(control, config));
            let serves = async {
                let (controller, stop) = (Arc::clone(&controller), stop.clone());
                csi::serve_controller(&self.socket, controller, &serving, stop).await?;
                Ok::<_, anyhow::Error>(())
            };
            let follows = async {
                self.kubernetes.run(found, &controller, stop.clone()).await;
                Ok(())
            };
            tokio::try_join!(serves, follows).map(|_| ())
        };
        tokio::try_join!(alive, works).map(|_| ())
    }
}

impl ServeNode {
    async fn run(self) -> Result<()> {
        let kernel: Arc<dyn Kernel> = Arc::new(LiveKernel::default());
        let host = self.host.clone().or_else(|| agent::attach::own_name(kernel.tree()));
        let host = host.context("this machine has no name that can be a host's: give --host")?;
        let stop = stop::asked().boxed().shared();
        let serving = Serving::default();
        let alive = self.liveness.serve(&self.socket, serving.clone(), stop.clone());
        let beats = self.heartbeats(Arc::clone(&kernel), host.clone(), stop.clone());
        let serves = self.serve(kernel, host, (serving, stop));
        tokio::try_join!(alive, beats, serves).map(|_| ())
    }

    /// Shows the control plane that this host is there, and watches the paths of its volumes.
    async fn heartbeats(
        &self,
        kernel: Arc<dyn Kernel>,
        host: HostName,
        stop: impl Future<Output = ()>,
    ) -> Result<()> {
        if self.no_heartbeat {
            return Ok(());
        }
        let control = self.ask.control_plane()?;
        let at = (kernel, &self.run.records());
        match agent::registration::run_watching(&control, host, at, stop).await {
            // It only could not be told that this host leaves.
            Err(AttachError::Control(problem)) => {
                tracing::warn!(%problem, "the control plane was not told that this host leaves");
                Ok(())
            }
            ended => Ok(ended?),
        }
    }

    /// Serves once the host is known: before that, nothing can be staged here.
    async fn serve(
        &self,
        kernel: Arc<dyn Kernel>,
        host: HostName,
        (serving, stop): (Serving, impl Future<Output = ()> + Clone),
    ) -> Result<()> {
        let control = Arc::new(self.ask.remote()?);
        tokio::select! {
            () = csi::wait_for_host(&*control, &host) => {}
            () = stop.clone() => return Ok(()),
        }
        let attacher = crate::attach::attacher(&self.ask, &self.run)?;
        let devices = AgentDevices { attacher, host: host.clone(), hold: self.hold };
        let most_volumes = i64::from(self.most_volumes);
        let config = NodeConfig { host, zone: self.zone.clone(), most_volumes };
        let node = Node::new(kernel, devices, config);
        let sockets =
            NodeSockets { driver: &self.socket, registration: self.registration.as_deref() };
        Ok(csi::serve_node(sockets, (control, node), &serving, stop).await?)
    }
}
