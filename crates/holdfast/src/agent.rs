//! `holdfast agent`: the processes behind volumes that are attached to this machine.

use std::sync::Arc;

use anyhow::Result;
use clap::{Args, Subcommand};
use linux::{Kernel, LiveKernel};
use model::{HostName, VolumeId};

use crate::attach::RunFolder;
use crate::cli::ClientArgs;
use crate::stop;

/// Processes of a host.
#[derive(Subcommand)]
pub(crate) enum AgentCommand {
    /// Show the control plane that this machine is there, as a host, until it is stopped
    Run {
        #[command(flatten)]
        ask: Box<ClientArgs>,
        /// The host to be; left out: the one with the name of this machine
        #[arg(long, value_name = "HOST", env = "HOLDFAST_HOST")]
        host: Option<HostName>,
        #[command(flatten)]
        run: RunFolder,
    },
    /// Keep a volume served: what `attach` starts
    #[command(hide = true)]
    Supervise(Of),
    /// Serve a volume to the kernel: what `supervise` starts
    #[command(hide = true)]
    Worker {
        #[command(flatten)]
        of: Of,
        /// Go on with the session of a worker that died
        #[arg(long)]
        resume: bool,
    },
}

/// Which volume.
#[derive(Args)]
pub(crate) struct Of {
    #[command(flatten)]
    run: RunFolder,
    volume: VolumeId,
}

impl AgentCommand {
    pub(crate) fn run(self) -> Result<()> {
        match self {
            AgentCommand::Run { ask, host, run } => {
                ask.once()?;
                let control = ask.control_plane()?;
                let kernel: Arc<dyn Kernel> = Arc::new(LiveKernel::default());
                let host = host.or_else(|| agent::attach::own_name(kernel.tree()));
                let host = host.ok_or(agent::attach::AttachError::NoName)?;
                tracing::info!("this machine is host {host}");
                let at = (kernel, &run.records());
                crate::block_on(async {
                    Ok(agent::registration::run_watching(&control, host, at, stop::asked()).await?)
                })
            }
            AgentCommand::Supervise(of) => {
                let mut words = of.run.words(["agent", "worker"]);
                words.push(of.volume.to_string());
                Ok(agent::supervisor::run(&of.run.records(), of.volume, (&words, "--resume"))?)
            }
            AgentCommand::Worker { of, resume } => {
                agent::worker::run(&of.run.records(), of.volume, resume)?;
                // The supervisor must tell this end from all others.
                std::process::exit(agent::worker::UNMOUNTED)
            }
        }
    }
}
