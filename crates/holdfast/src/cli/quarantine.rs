//! `holdfast quarantine`.

use anyhow::Result;
use api::rest::{Control, Quarantined, Remote, RescueRequest};
use clap::Subcommand;
use model::{QuarantineCause, ReplicaId, SnapshotId};

use super::client_args::all;
use super::create::{agreed, new_id};
use super::format;
use super::out::{Out, Row};
use super::table::{Cell, Column, Tone};

/// Commands about copies that are set aside.
#[derive(Subcommand)]
pub(crate) enum Verb {
    /// All copies that are set aside, why, and until when
    List,
    /// Make a snapshot of one; a volume can be restored from that. Nothing else changes
    Restore {
        replica: ReplicaId,
        /// Id of the snapshot; left out: a new one
        #[arg(long, value_name = "UUID")]
        snapshot: Option<SnapshotId>,
    },
    /// Destroy one; snapshots that were made of it stay
    Delete {
        replica: ReplicaId,
        /// Really
        #[arg(long)]
        yes: bool,
    },
}

impl Verb {
    pub(crate) async fn run(self, remote: &Remote, out: &mut Out<'_>) -> Result<()> {
        match self {
            Verb::List => {
                let show = async |out: &mut Out<'_>| {
                    out.list(&all(|paging| remote.quarantine(paging)).await?)
                };
                out.show(remote, show).await
            }
            Verb::Restore { replica, snapshot } => {
                let snapshot = snapshot.map_or_else(new_id, Ok)?;
                let answer = remote.rescue(replica, RescueRequest { snapshot }).await?;
                let said = format::ensured(format!("snapshot {snapshot}"), &answer);
                let next = format!("`holdfast snapshot restore {snapshot}` makes a volume of it");
                out.done(&format!("{said}; {next}"), &answer)
            }
            Verb::Delete { replica, yes } => {
                let what = "this destroys what may be the only copy of some writes: replica";
                agreed(yes, &format!("{what} {replica}"))?;
                let gone = remote.discard(replica).await?;
                out.done(&format::gone(format!("replica {replica}"), gone), &gone)
            }
        }
    }
}

impl Row for Quarantined {
    const COLUMNS: &'static [Column] = &[
        Column::Left("REPLICA"),
        Column::Left("VOLUME"),
        Column::Left("POOL"),
        Column::Left("NODE"),
        Column::Right("SIZE"),
        Column::Right("USED"),
        Column::Left("CAUSE"),
        Column::Left("SINCE"),
        Column::Left("UNTIL"),
        Column::Wide("EPOCH"),
        Column::Wide("GENERATION"),
    ];

    fn cells(&self) -> Vec<Cell> {
        let record = &self.record;
        let cause = match (record.discard, record.cause) {
            (true, _) => Cell::toned("being destroyed", Tone::Warn),
            (false, QuarantineCause::Newer) => Cell::toned("may be newer", Tone::Bad),
            (false, QuarantineCause::Degraded) => Cell::toned("volume not whole", Tone::Warn),
        };
        let until = self.until.map_or_else(|| "you decide".to_owned(), format::time);
        vec![
            record.replica.into(),
            record.volume.into(),
            (&record.pool).into(),
            Cell::maybe(self.node.as_ref()),
            record.size.into(),
            Cell::maybe(self.used),
            cause,
            format::time(record.since).into(),
            until.into(),
            record.epoch.into(),
            record.generation.into(),
        ]
    }
}
