//! `holdfast replica`.

use std::time::Duration;

use anyhow::{Result, bail};
use api::node::{FenceReset, JobControl, Run, ScrubState};
use api::rest::{Control, Remote, ReplicaQuery};
use clap::Subcommand;
use model::{NodeName, PoolName, Replica, ReplicaId, Size};

use super::client_args::all;
use super::create::agreed;
use super::format;
use super::out::{Out, Row};
use super::progress::ProgressBar;
use super::reference::VolumeReference;
use super::table::{Cell, Column};

/// Commands about copies of volumes.
#[derive(Subcommand)]
pub(crate) enum Verb {
    /// All copies
    List {
        /// Only those of this volume
        #[arg(long, value_name = "VOLUME")]
        volume: Option<VolumeReference>,
        /// Only those on this node
        #[arg(long, value_name = "NODE")]
        node: Option<NodeName>,
        /// Only those in this pool
        #[arg(long, value_name = "POOL")]
        pool: Option<PoolName>,
    },
    /// One copy
    Get { replica: ReplicaId },
    /// Read every written block of a copy and look at its checksum; what is bad is rewritten from
    /// another copy, in snapshots as well. A volume that nobody uses gets a target for that
    Scrub {
        replica: ReplicaId,
        /// Only pause, resume or end the one under way
        #[arg(long, value_name = "WHAT", default_value = "run")]
        run: RunText,
        /// At most so many bytes a second
        #[arg(long, value_name = "SIZE")]
        bandwidth: Option<Size>,
        /// Show how far it is until it has ended
        #[arg(long)]
        wait: bool,
    },
    /// Lower the fence of a copy that an absurd epoch locked, so that targets with this epoch or a
    /// higher one can attach it again
    ///
    /// A copy refuses targets whose epoch is below the highest that ever held it. Lower it only if
    /// no target with the new epoch or a higher one is left that should not write to it.
    ResetFence {
        replica: ReplicaId,
        /// The epoch that it shall remember: that of the volume's target
        #[arg(long, value_name = "NUMBER")]
        epoch: u64,
        /// Yes, do it
        #[arg(long)]
        yes: bool,
    },
}

/// Whether work in the background is to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum RunText {
    /// Start it, or go on
    Run,
    /// Wait
    Pause,
    /// End it
    Cancel,
}

impl From<RunText> for Run {
    fn from(text: RunText) -> Run {
        match text {
            RunText::Run => Run::Run,
            RunText::Pause => Run::Pause,
            RunText::Cancel => Run::Cancel,
        }
    }
}

/// How often a scrub is looked at.
const AGAIN: Duration = Duration::from_millis(500);

impl Verb {
    pub(crate) async fn run(self, remote: &Remote, out: &mut Out<'_>) -> Result<()> {
        match self {
            Verb::List { volume, node, pool } => {
                let volume = VolumeReference::find_any(volume, remote).await?;
                let asked = ReplicaQuery { volume, node, pool, ..ReplicaQuery::default() };
                let show = async |out: &mut Out<'_>| {
                    out.list(&all(|paging| remote.replicas(asked.clone().at(paging))).await?)
                };
                out.show(remote, show).await
            }
            Verb::Get { replica } => {
                let show = async |out: &mut Out<'_>| out.one(&remote.replica(replica).await?);
                out.show(remote, show).await
            }
            Verb::Scrub { replica, run, bandwidth, wait } => {
                let pace = JobControl { run: run.into(), bytes_per_second: bandwidth };
                let answer = remote.put_scrub(replica, pace).await?;
                if !wait {
                    let said = format::ensured(format!("scrub of replica {replica}"), &answer);
                    return out.done(&said, &answer);
                }
                scrubbed(remote, replica, out).await
            }
            Verb::ResetFence { replica, epoch, yes } => {
                let seen = remote.fence(replica).await?.epoch;
                let what = format!(
                    "replica {replica} remembers epoch {seen}; this lets targets with epoch \
                     {epoch} or a higher one write to it"
                );
                agreed(yes, &what)?;
                let answer = remote.reset_fence(replica, FenceReset { epoch, seen }).await?;
                out.done(&format::ensured(format!("fence of replica {replica}"), &answer), &answer)
            }
        }
    }
}

pub(super) async fn scrubbed(remote: &Remote, replica: ReplicaId, out: &mut Out<'_>) -> Result<()> {
    let mut bar = ProgressBar::new("scrub");
    loop {
        let scrub = remote.scrub(replica).await?;
        bar.bytes(scrub.progress);
        match &scrub.state {
            ScrubState::Running {} => {}
            ScrubState::Paused {} => bail!("the scrub is paused; resume it with --run run"),
            ScrubState::Cancelled {} => bail!("the scrub was cancelled"),
            ScrubState::Failed { problem } => bail!("the scrub failed: {problem}"),
            ScrubState::Completed {} => {
                bar.end();
                let said = format!("replica {replica}: {}", scrub.summary());
                return out.done(&said, &scrub);
            }
        }
        tokio::time::sleep(AGAIN).await;
    }
}

impl Row for Replica {
    const COLUMNS: &'static [Column] = &[
        Column::Left("REPLICA"),
        Column::Left("VOLUME"),
        Column::Left("POOL"),
        Column::Right("SIZE"),
        Column::Right("USED"),
        Column::Left("STATE"),
        Column::Left("OPERATION"),
        Column::Wide("THIN"),
        Column::Wide("ADDRESSES"),
        Column::Wide("IN SYNC"),
    ];

    fn cells(&self) -> Vec<Cell> {
        let (spec, status) = (self.spec(), self.status.as_ref());
        let label = status.and_then(|status| status.label.as_ref());
        vec![
            self.id().into(),
            spec.volume.into(),
            (&spec.pool).into(),
            spec.size.into(),
            Cell::maybe(status.map(|status| status.usage.allocated)),
            format::replica_state(status.map(|status| &status.state)),
            format::life(self),
            spec.thin.into(),
            format::list(status.into_iter().flat_map(|status| &status.addresses)),
            Cell::maybe(label.map(|label| label.set.in_sync().contains(self.id()))),
        ]
    }
}
