//! `holdfast target`.

use anyhow::Result;
use api::rest::{Control, Remote, TargetQuery};
use clap::Subcommand;
use model::{ChildStatus, NodeName, Target, TargetId};

use super::client_args::all;
use super::format;
use super::out::{Out, Row};
use super::reference::VolumeReference;
use super::table::{Cell, Column};

/// Commands about targets.
#[derive(Subcommand)]
pub(crate) enum Verb {
    /// All targets
    List {
        /// Only those of this volume
        #[arg(long, value_name = "VOLUME")]
        volume: Option<VolumeReference>,
        /// Only those on this node
        #[arg(long, value_name = "NODE")]
        node: Option<NodeName>,
    },
    /// One target with its children
    Get { target: TargetId },
}

impl Verb {
    pub(crate) async fn run(self, remote: &Remote, out: &mut Out<'_>) -> Result<()> {
        match self {
            Verb::List { volume, node } => {
                let volume = VolumeReference::find_any(volume, remote).await?;
                let asked = TargetQuery { volume, node, ..TargetQuery::default() };
                let show = async |out: &mut Out<'_>| {
                    out.list(&all(|paging| remote.targets(asked.clone().at(paging))).await?)
                };
                out.show(remote, show).await
            }
            Verb::Get { target } => {
                let show = async |out: &mut Out<'_>| out.one(&remote.target(target).await?);
                out.show(remote, show).await
            }
        }
    }
}

impl Row for Target {
    const COLUMNS: &'static [Column] = &[
        Column::Left("TARGET"),
        Column::Left("VOLUME"),
        Column::Left("NODE"),
        Column::Right("EPOCH"),
        Column::Left("STATE"),
        Column::Left("HOSTS"),
        Column::Right("CHILDREN"),
        Column::Left("OPERATION"),
        Column::Wide("ADDRESSES"),
        Column::Wide("ANA"),
        Column::Wide("CONNECTED"),
    ];

    fn cells(&self) -> Vec<Cell> {
        let (spec, status) = (self.spec(), self.status.as_ref());
        vec![
            self.id().into(),
            spec.volume.into(),
            (&spec.node).into(),
            spec.epoch.into(),
            format::target_state(status.map(|status| status.state)),
            format::list(spec.hosts.keys()),
            spec.children.len().into(),
            format::life(self),
            format::list(status.into_iter().flat_map(|status| &status.addresses)),
            format::word(&spec.ana).into(),
            Cell::maybe(status.map(|status| status.connected.len())),
        ]
    }

    fn details(&self, out: &Out<'_>) -> String {
        let Some(status) = &self.status else { return String::new() };
        format!("\n{}", out.table(&status.children))
    }
}

impl Row for ChildStatus {
    const COLUMNS: &'static [Column] =
        &[Column::Left("CHILD"), Column::Left("STATE"), Column::Right("REBUILD")];

    fn cells(&self) -> Vec<Cell> {
        vec![
            self.replica.into(),
            format::child_state(Some(self.state)),
            Cell::maybe(self.progress.map(|progress| format!("{} %", progress.percent()))),
        ]
    }
}
