//! `holdfast group`.

use std::collections::BTreeMap;

use anyhow::Result;
use api::rest::{Control, GroupQuery, Remote};
use clap::Subcommand;
use model::{GivenName, SnapshotGroup, SnapshotGroupId, SnapshotGroupSpec};

use super::client_args::all;
use super::create::{LabelText, agreed, new_id};
use super::format;
use super::out::{Out, Row};
use super::reference::{GroupReference, VolumeReference};
use super::table::{Cell, Column};

/// Commands about groups of snapshots.
#[derive(Subcommand)]
pub(crate) enum Verb {
    /// All groups
    List,
    /// One group
    Get { group: GroupReference },
    /// Take snapshots of several volumes at one moment, all or none
    Create {
        /// The volumes, by names or ids; `volume list` shows them
        #[arg(required = true, value_name = "VOLUME")]
        volumes: Vec<VolumeReference>,
        /// What to call it
        #[arg(long, value_name = "NAME")]
        name: Option<GivenName>,
        /// Its id; left out: a new one
        #[arg(long, value_name = "UUID")]
        id: Option<SnapshotGroupId>,
        /// A label; may be given more than once
        #[arg(short, long = "label", value_name = "KEY=VALUE")]
        labels: Vec<LabelText>,
    },
    /// Delete a group with its snapshots
    Delete {
        group: GroupReference,
        /// Yes, lose them
        #[arg(long)]
        yes: bool,
    },
}

impl Verb {
    pub(crate) async fn run(self, remote: &Remote, out: &mut Out<'_>) -> Result<()> {
        match self {
            Verb::List => {
                let show = async |out: &mut Out<'_>| {
                    let ask = |paging| remote.groups(GroupQuery::default().at(paging));
                    out.list(&all(ask).await?)
                };
                out.show(remote, show).await
            }
            Verb::Get { group } => out.one(&remote.group(group.find(remote).await?).await?),
            Verb::Create { volumes, name, id, labels } => {
                let id = id.map_or_else(new_id, Ok)?;
                let labels = labels.into_iter().map(|LabelText(key, value)| (key, value)).collect();
                let mut snapshots = BTreeMap::new();
                for volume in volumes {
                    snapshots.insert(volume.find(remote).await?, new_id()?);
                }
                let spec = SnapshotGroupSpec { name, snapshots, labels };
                let answer = remote.put_group(id, spec).await?;
                out.done(&format::ensured(format!("group {id}"), &answer), &answer)
            }
            Verb::Delete { group, yes } => {
                let group = group.find(remote).await?;
                agreed(yes, &format!("this destroys group {group} and its snapshots"))?;
                let gone = remote.delete_group(group, None).await?;
                out.done(&format::gone(format!("group {group}"), gone), &gone)
            }
        }
    }
}

impl Row for SnapshotGroup {
    const COLUMNS: &'static [Column] = &[
        Column::Left("GROUP"),
        Column::Left("NAME"),
        Column::Right("SNAPSHOTS"),
        Column::Left("TAKEN"),
        Column::Left("STATE"),
        Column::Left("OPERATION"),
        Column::Wide("VOLUMES"),
        Column::Wide("LABELS"),
    ];

    fn cells(&self) -> Vec<Cell> {
        let (spec, status) = (self.spec(), self.status.as_ref());
        vec![
            self.id().into(),
            Cell::maybe(spec.name.as_ref()),
            spec.snapshots.len().into(),
            Cell::maybe(status.map(|status| format::time(status.taken_at))),
            format::snapshot_state(status.map(|status| status.state)),
            format::life(self),
            format::list(spec.snapshots.keys()),
            format::labels(&spec.labels),
        ]
    }

    fn details(&self, _: &Out<'_>) -> String {
        let each = self.spec().snapshots.iter();
        let lines = each.map(|(volume, snapshot)| format!("{snapshot} of volume {volume}\n"));
        format!("\n{}", lines.collect::<String>())
    }
}
