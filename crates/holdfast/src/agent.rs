//! `holdfast agent`: the processes behind volumes that are attached to this machine.

use anyhow::Result;
use clap::{Args, Subcommand};
use model::VolumeId;

use crate::attach::RunFolder;

/// Processes of a host. Nobody has to start them by hand.
#[derive(Subcommand)]
pub(crate) enum Typed {
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

impl Typed {
    pub(crate) fn run(self) -> Result<()> {
        match self {
            Typed::Supervise(of) => {
                let mut words = of.run.words(["agent", "worker"]);
                words.push(of.volume.to_string());
                Ok(agent::supervisor::run(&of.run.records(), of.volume, (&words, "--resume"))?)
            }
            Typed::Worker { of, resume } => {
                agent::worker::run(&of.run.records(), of.volume, resume)?;
                // The supervisor must tell this end from all others.
                std::process::exit(agent::worker::UNMOUNTED)
            }
        }
    }
}
