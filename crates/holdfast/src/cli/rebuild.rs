//! `holdfast rebuild`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Result;
use api::node::{JobControl, Run};
use api::rest::{Control, RebuildQuery, Remote, VolumeQuery};
use clap::Subcommand;
use model::{Progress, Rebuild, RebuildId, RebuildState, Size, VolumeId, VolumeState};

use super::client_args::all;
use super::format;
use super::out::{Out, Row};
use super::progress::ProgressBar;
use super::reference::VolumeReference;
use super::table::{Cell, Column, Tone};

/// Commands about rebuilds.
#[derive(Subcommand)]
pub(crate) enum Verb {
    /// Rebuilds under way and the last that ended
    List {
        /// Only those of this volume
        #[arg(long, value_name = "VOLUME")]
        volume: Option<VolumeReference>,
        /// Only those that have not ended
        #[arg(long)]
        running: bool,
    },
    /// One rebuild
    Get { rebuild: RebuildId },
    /// Let a rebuild wait; the copy gets new writes meanwhile
    Pause { rebuild: RebuildId },
    /// Let a rebuild go on
    Resume {
        rebuild: RebuildId,
        /// At most so many bytes a second
        #[arg(long, value_name = "SIZE")]
        bandwidth: Option<Size>,
    },
    /// End a rebuild; another one is begun if the copy is still wanted
    Cancel { rebuild: RebuildId },
    /// Show how far rebuilds are until none runs and none is about to begin
    Wait {
        /// Only those of this volume
        #[arg(long, value_name = "VOLUME")]
        volume: Option<VolumeReference>,
    },
}

/// How often rebuilds are looked at.
const AGAIN: Duration = Duration::from_millis(500);
/// While a volume lacks copies, a rebuild may be about to begin: it is waited for so long.
const SOON: Duration = Duration::from_secs(10);

impl Verb {
    pub(crate) async fn run(self, remote: &Remote, out: &mut Out<'_>) -> Result<()> {
        let pace = |run, bytes_per_second| JobControl { run, bytes_per_second };
        let (rebuild, pace) = match self {
            Verb::List { volume, running } => {
                let volume = VolumeReference::find_any(volume, remote).await?;
                let running = running.then_some(true);
                let asked = RebuildQuery { volume, running, ..RebuildQuery::default() };
                let show = async |out: &mut Out<'_>| {
                    out.list(&all(|paging| remote.rebuilds(asked.clone().at(paging))).await?)
                };
                return out.show(remote, show).await;
            }
            Verb::Get { rebuild } => {
                let show = async |out: &mut Out<'_>| out.one(&remote.rebuild(rebuild).await?);
                return out.show(remote, show).await;
            }
            Verb::Wait { volume } => {
                let volume = VolumeReference::find_any(volume, remote).await?;
                return waited(remote, volume, out).await;
            }
            Verb::Pause { rebuild } => (rebuild, pace(Run::Pause, None)),
            Verb::Resume { rebuild, bandwidth } => (rebuild, pace(Run::Run, bandwidth)),
            Verb::Cancel { rebuild } => (rebuild, pace(Run::Cancel, None)),
        };
        let answer = remote.put_rebuild(rebuild, pace).await?;
        out.done(&format::ensured(format!("rebuild {rebuild}"), &answer), &answer)
    }
}

/// One bar for all that run.
async fn waited(remote: &Remote, volume: Option<VolumeId>, out: &mut Out<'_>) -> Result<()> {
    let asked = RebuildQuery { volume, running: Some(true), ..RebuildQuery::default() };
    let mut seen = BTreeMap::new();
    let mut bar = ProgressBar::new("rebuild");
    let mut since = Instant::now();
    loop {
        let running = all(|paging| remote.rebuilds(asked.clone().at(paging))).await?;
        for progress in seen.values_mut() {
            let whole: &mut Progress = progress;
            whole.done = whole.total;
        }
        seen.extend(running.iter().map(|rebuild| (rebuild.id, rebuild.progress)));
        bar.bytes(seen.values().fold(Progress::default(), |sum, one| Progress {
            total: sum.total.plus(one.total),
            done: sum.done.plus(one.done),
            copied: sum.copied.plus(one.copied),
        }));
        if running.is_empty() {
            let lacking = lacking(remote, volume).await?;
            if lacking.is_empty() || since.elapsed() >= SOON {
                bar.end();
                let ids: Vec<RebuildId> = seen.into_keys().collect();
                return out.done(&ended(ids.len(), &lacking), &ids);
            }
        } else {
            since = Instant::now();
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Volumes with fewer copies in sync than wanted.
async fn lacking(remote: &Remote, volume: Option<VolumeId>) -> Result<Vec<VolumeId>> {
    let state = Some(VolumeState::Degraded);
    let asked = VolumeQuery { state, ..VolumeQuery::default() };
    let degraded = all(|paging| remote.volumes(asked.clone().at(paging))).await?;
    let ids = degraded.iter().map(|one| *one.id());
    Ok(ids.filter(|id| volume.is_none_or(|volume| volume == *id)).collect())
}

fn ended(count: usize, lacking: &[VolumeId]) -> String {
    let said = format!("no rebuild runs; {count} ended meanwhile");
    match lacking {
        [] => said,
        [volume] => format!("{said}; volume {volume} is degraded: holdfast volume get says why"),
        some => format!("{said}; {} volumes are degraded: holdfast status says why", some.len()),
    }
}

impl Row for Rebuild {
    const COLUMNS: &'static [Column] = &[
        Column::Left("REBUILD"),
        Column::Left("VOLUME"),
        Column::Left("REPLICA"),
        Column::Left("EXTENT"),
        Column::Left("STATE"),
        Column::Right("DONE"),
        Column::Right("COPIED"),
        Column::Left("STARTED"),
        Column::Wide("ENDED"),
        Column::Wide("TARGET"),
        Column::Wide("SOURCES"),
    ];

    fn cells(&self) -> Vec<Cell> {
        let tone = match self.state() {
            RebuildState::Completed {} => Tone::Good,
            RebuildState::Failed { .. } => Tone::Bad,
            RebuildState::Cancelled {} => Tone::Faint,
            _ => Tone::Warn,
        };
        vec![
            self.id.into(),
            self.volume.into(),
            self.replica.into(),
            format::word(&self.extent).into(),
            Cell::toned(self.state(), tone),
            format!("{} %", self.progress.percent()).into(),
            self.progress.copied.into(),
            format::time(self.started_at).into(),
            Cell::maybe(self.ended_at().map(format::time)),
            self.target.into(),
            format::list(&self.sources),
        ]
    }

    fn details(&self, _: &Out<'_>) -> String {
        match self.state() {
            RebuildState::Failed { problem } => format!("\n{problem}\n"),
            _ => String::new(),
        }
    }
}
