//! `holdfast snapshot`.

use anyhow::{Context, Result};
use api::rest::{Control, DryRunRequest, LabelMatch, Remote, SnapshotQuery};
use clap::Subcommand;
use model::{
    GivenName, PoolName, Size, Snapshot, SnapshotChange, SnapshotCopy, SnapshotId, SnapshotSpec,
    Source,
};
use serde::Serialize;

use super::client_args::all;
use super::create::{LabelEdit, LabelText, NewVolume, agreed, edited, new_id};
use super::format;
use super::out::{Out, Row};
use super::reference::{SnapshotReference, VolumeReference};
use super::table::{Cell, Column, Tone};
use super::try_out;

/// Commands about snapshots.
#[derive(Subcommand)]
pub(crate) enum Verb {
    /// All snapshots
    List {
        /// Only those of this volume
        #[arg(long, value_name = "VOLUME")]
        volume: Option<VolumeReference>,
        /// Only those with this label
        #[arg(short, long, value_name = "KEY[=VALUE]")]
        label: Option<LabelMatch>,
    },
    /// One snapshot with where it lies
    Get { snapshot: SnapshotReference },
    /// Take a snapshot of a volume
    Create {
        volume: VolumeReference,
        /// What to call it
        #[arg(long, value_name = "NAME")]
        name: Option<GivenName>,
        /// Its id; left out: a new one
        #[arg(long, value_name = "UUID")]
        id: Option<SnapshotId>,
        /// A label; may be given more than once
        #[arg(short, long = "label", value_name = "KEY=VALUE")]
        labels: Vec<LabelText>,
    },
    /// Make a new volume with the content of a snapshot
    Restore {
        snapshot: SnapshotReference,
        #[command(flatten)]
        new: Box<NewVolume>,
    },
    /// Set labels (KEY=VALUE) and take them away (KEY-)
    Label {
        snapshot: SnapshotReference,
        /// What to set and what to take away, such as zone=a disk-
        #[arg(required = true, value_name = "KEY=VALUE|KEY-")]
        labels: Vec<LabelEdit>,
    },
    /// Delete a snapshot; volumes made from it keep what they need
    Delete {
        snapshot: SnapshotReference,
        /// Yes, lose it
        #[arg(long)]
        yes: bool,
    },
}

impl Verb {
    pub(crate) async fn run(self, remote: &Remote, out: &mut Out<'_>) -> Result<()> {
        match self {
            Verb::List { volume, label } => {
                let volume = VolumeReference::find_any(volume, remote).await?;
                let asked = SnapshotQuery { volume, label, ..SnapshotQuery::default() };
                let show = async |out: &mut Out<'_>| {
                    out.list(&all(|paging| remote.snapshots(asked.clone().at(paging))).await?)
                };
                out.show(remote, show).await
            }
            Verb::Get { snapshot } => {
                let snapshot = snapshot.find(remote).await?;
                let show = async |out: &mut Out<'_>| out.one(&remote.snapshot(snapshot).await?);
                out.show(remote, show).await
            }
            Verb::Create { volume, name, id, labels } => {
                let volume = volume.find(remote).await?;
                let id = id.map_or_else(new_id, Ok)?;
                let labels = labels.into_iter().map(|LabelText(key, value)| (key, value)).collect();
                let spec = SnapshotSpec { name, labels, ..SnapshotSpec::new(volume) };
                let answer = remote.put_snapshot(id, spec).await?;
                out.done(&format::ensured(format!("snapshot {id}"), &answer), &answer)
            }
            Verb::Restore { snapshot, new } => {
                let snapshot = snapshot.find(remote).await?;
                let status = remote.snapshot(snapshot).await?.status;
                let status = status.context("nothing is known of the snapshot yet; try again")?;
                let source = Some(Source::Snapshot { snapshot });
                let (id, spec) = new.spec(source, Some(status.size))?;
                let answer = remote.put_volume(id, spec).await?;
                out.done(&format::ensured(format!("volume {id}"), &answer), &answer)
            }
            Verb::Label { snapshot, labels } => {
                let snapshot = snapshot.find(remote).await?;
                let have = remote.snapshot(snapshot).await?;
                let labels = edited(&have.spec().labels, labels);
                let change = SnapshotChange::Label { labels };
                let answer = remote.change_snapshot(snapshot, change, None).await?;
                out.done(&format::ensured(format!("snapshot {snapshot}"), &answer), &answer)
            }
            Verb::Delete { snapshot, .. } if out.tries() => {
                let snapshot = snapshot.find(remote).await?;
                try_out(remote, out, DryRunRequest::DeleteSnapshot { snapshot }).await
            }
            Verb::Delete { snapshot, yes } => {
                let snapshot = snapshot.find(remote).await?;
                agreed(yes, &format!("this destroys snapshot {snapshot}"))?;
                let gone = remote.delete_snapshot(snapshot, None).await?;
                out.done(&format::gone(format!("snapshot {snapshot}"), gone), &gone)
            }
        }
    }
}

impl Row for Snapshot {
    const COLUMNS: &'static [Column] = &[
        Column::Left("SNAPSHOT"),
        Column::Left("NAME"),
        Column::Left("VOLUME"),
        Column::Left("TAKEN"),
        Column::Right("SIZE"),
        Column::Right("USED"),
        Column::Left("STATE"),
        Column::Left("OPERATION"),
        Column::Wide("CONSISTENCY"),
        Column::Wide("GROUP"),
        Column::Wide("LABELS"),
    ];

    fn cells(&self) -> Vec<Cell> {
        let (spec, status) = (self.spec(), self.status.as_ref());
        let most = |copies: &std::collections::BTreeMap<PoolName, SnapshotCopy>| {
            copies.values().map(|copy| copy.usage.allocated).max().unwrap_or(Size::ZERO)
        };
        vec![
            self.id().into(),
            Cell::maybe(spec.name.as_ref()),
            spec.volume.into(),
            Cell::maybe(status.map(|status| format::time(status.taken_at))),
            Cell::maybe(status.map(|status| status.size)),
            Cell::maybe(status.map(|status| most(&status.copies))),
            format::snapshot_state(status.map(|status| status.state)),
            format::life(self),
            Cell::maybe(status.map(|status| format::word(&status.consistency))),
            Cell::maybe(spec.group),
            format::labels(&spec.labels),
        ]
    }

    fn details(&self, out: &Out<'_>) -> String {
        let copies = self.status.iter().flat_map(|status| &status.copies);
        let copies: Vec<Copy<'_>> = copies.map(|(pool, copy)| Copy { pool, copy }).collect();
        if copies.is_empty() { String::new() } else { format!("\n{}", out.table(&copies)) }
    }
}

/// A copy of a snapshot as a row.
#[derive(Serialize)]
struct Copy<'a> {
    pool: &'a PoolName,
    copy: &'a SnapshotCopy,
}

impl Row for Copy<'_> {
    const COLUMNS: &'static [Column] = &[
        Column::Left("POOL"),
        Column::Left("REPLICA"),
        Column::Left("STATE"),
        Column::Right("USED"),
    ];

    fn cells(&self) -> Vec<Cell> {
        let state = if self.copy.online {
            Cell::toned("online", Tone::Good)
        } else {
            Cell::toned("not seen", Tone::Warn)
        };
        vec![self.pool.into(), self.copy.replica.into(), state, self.copy.usage.allocated.into()]
    }
}
