//! `holdfast csi`: what Kubernetes asks for volumes through.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};
use csi::{AgentDevices, ControllerConfig, Node, NodeConfig};
use linux::{Kernel, LiveKernel};
use model::HostName;

use crate::attach::RunFolder;
use crate::cli::Ask;
use crate::stop;
use crate::typed::some_time;

/// Roles of the driver.
#[derive(Subcommand)]
pub(crate) enum Typed {
    /// Serve volumes and snapshots to the provisioner, the snapshotter and the resizer
    Controller(Controller),
    /// Serve volumes to the kubelet of this machine
    Node(ServeNode),
}

/// Options of `csi controller`.
#[derive(Args)]
pub(crate) struct Controller {
    #[command(flatten)]
    ask: Ask,
    /// The socket to listen on
    #[arg(long, value_name = "PATH", env = "CSI_ENDPOINT", value_parser = socket)]
    socket: PathBuf,
    /// How many volumes are made at once
    #[arg(long, value_name = "COUNT", default_value_t = 10)]
    creations: usize,
}

/// Options of `csi node`.
#[derive(Args)]
pub(crate) struct ServeNode {
    #[command(flatten)]
    ask: Ask,
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
    /// The zone that this machine is in
    #[arg(long, value_name = "ZONE")]
    zone: Option<String>,
    /// How many volumes this machine takes at most; 0: no limit
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    most_volumes: u32,
    /// How long I/O waits for a target that is away before it fails
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = some_time)]
    hold: Duration,
}

/// A socket, as a path or as Kubernetes writes it: `unix:///csi/csi.sock`.
fn socket(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text.strip_prefix("unix://").unwrap_or(text));
    if path.is_absolute() {
        return Ok(path);
    }
    Err("give an absolute path, or unix:// and one".to_owned())
}

impl Typed {
    pub(crate) async fn run(self) -> Result<()> {
        match self {
            Typed::Controller(controller) => controller.run().await,
            Typed::Node(node) => node.run().await,
        }
    }
}

impl Controller {
    async fn run(self) -> Result<()> {
        let control = Arc::new(self.ask.remote()?);
        let config = ControllerConfig { creations: self.creations, ..ControllerConfig::default() };
        Ok(csi::serve_controller(&self.socket, control, config, stop::asked()).await?)
    }
}

impl ServeNode {
    async fn run(self) -> Result<()> {
        let kernel: Arc<dyn Kernel> = Arc::new(LiveKernel::default());
        let host = self.host.or_else(|| agent::attach::own_name(kernel.tree()));
        let host = host.context("this machine has no name that can be a host's: give --host")?;
        let control = Arc::new(self.ask.remote()?);
        let attacher = crate::attach::attacher(&self.ask, &self.run)?;
        let devices = AgentDevices { attacher, host: host.clone(), hold: self.hold };
        let most_volumes = i64::from(self.most_volumes);
        let config = NodeConfig { host, zone: self.zone, most_volumes };
        let node = Node::new(kernel, devices, config);
        let served = (control, node);
        let registration = self.registration.as_deref();
        Ok(csi::serve_node(&self.socket, registration, served, stop::asked()).await?)
    }
}
