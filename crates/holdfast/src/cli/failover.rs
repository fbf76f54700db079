//! `holdfast failover`.

use anyhow::Result;
use api::rest::{Control, FailoverQuery, Remote};
use clap::Subcommand;
use model::{Failover, FailoverReason, FailoverStage};

use super::client_args::all;
use super::format;
use super::out::{Out, Row};
use super::reference::VolumeReference;
use super::table::{Cell, Column, Tone};

/// Commands about failovers.
#[derive(Subcommand)]
pub(crate) enum Verb {
    /// Failovers under way and the last that ended
    List {
        /// Only those of this volume
        #[arg(long, value_name = "VOLUME")]
        volume: Option<VolumeReference>,
    },
}

impl Verb {
    pub(crate) async fn run(self, remote: &Remote, out: &mut Out<'_>) -> Result<()> {
        let Verb::List { volume } = self;
        let volume = VolumeReference::find_any(volume, remote).await?;
        let asked = FailoverQuery { volume, ..FailoverQuery::default() };
        let show = async |out: &mut Out<'_>| {
            out.list(&all(|paging| remote.failovers(asked.clone().at(paging))).await?)
        };
        out.show(remote, show).await
    }
}

impl Row for Failover {
    const COLUMNS: &'static [Column] = &[
        Column::Left("FAILOVER"),
        Column::Left("VOLUME"),
        Column::Left("STAGE"),
        Column::Left("CAUSE"),
        Column::Right("RETRIES"),
        Column::Left("STARTED"),
        Column::Wide("UPDATED"),
        Column::Wide("HOSTS"),
    ];

    fn cells(&self) -> Vec<Cell> {
        let cause = match self.cause() {
            FailoverReason::PathLost { host, address } => format!("{host} lost {address}"),
            FailoverReason::NodeLapsed { node } => format!("{node} does not answer"),
            FailoverReason::Drain { node } => format!("{node} is drained"),
            FailoverReason::Asked {} => "asked for".to_owned(),
        };
        let stage = match self.stage() {
            FailoverStage::Errored { problem } => {
                Cell::toned(format!("errored ({problem})"), Tone::Bad)
            }
            FailoverStage::Successful { .. } => Cell::toned(self.stage(), Tone::Good),
            stage => Cell::toned(stage, Tone::Warn),
        };
        vec![
            self.id().into(),
            self.volume().into(),
            stage,
            cause.into(),
            self.retries().into(),
            format::time(self.started_at()).into(),
            format::time(self.updated_at()).into(),
            format::list(self.hosts().keys()),
        ]
    }
}
