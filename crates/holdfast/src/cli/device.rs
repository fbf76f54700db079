//! `holdfast device`.

use anyhow::Result;
use api::rest::{Control, Remote};
use clap::Subcommand;
use model::{BlockDevice, IneligibleReason, NodeName, WriteCache};

use super::client_args::all;
use super::format;
use super::out::{Out, Row};
use super::table::{Cell, Column, Tone};

/// Commands about block devices.
#[derive(Subcommand)]
pub(crate) enum Verb {
    /// Block devices of a node, and what keeps a pool from being made on each
    List {
        node: NodeName,
        /// Only those on which a pool can be made
        #[arg(long)]
        usable: bool,
    },
}

impl Verb {
    pub(crate) async fn run(self, remote: &Remote, out: &mut Out<'_>) -> Result<()> {
        let Verb::List { node, usable } = self;
        let show = async |out: &mut Out<'_>| {
            let mut devices = all(|paging| remote.devices(node.clone(), paging)).await?;
            devices.retain(|device| !usable || device.is_usable());
            out.list(&devices)
        };
        out.show(remote, show).await
    }
}

fn obstacle(obstacle: &IneligibleReason) -> String {
    match obstacle {
        IneligibleReason::TooSmall => "too small".to_owned(),
        IneligibleReason::ReadOnly => "read-only".to_owned(),
        IneligibleReason::Partitioned => "has partitions".to_owned(),
        IneligibleReason::FileSystem { name } => format!("holds {name}"),
        IneligibleReason::Mounted { path } => format!("mounted at {path}"),
        IneligibleReason::Held { by } => format!("held by {by}"),
        IneligibleReason::Pool { pool } => format!("holds pool {pool}: import it"),
        IneligibleReason::OwnVolume => "is one of our volumes".to_owned(),
    }
}

/// What a disk does with writes that were not flushed.
fn cache(cache: WriteCache) -> Cell {
    match cache {
        WriteCache::Protected => Cell::toned("protected", Tone::Good),
        WriteCache::Volatile => "volatile".into(),
        WriteCache::Unknown => Cell::toned("unknown", Tone::Faint),
    }
}

impl Row for BlockDevice {
    const COLUMNS: &'static [Column] = &[
        Column::Left("DEVICE"),
        Column::Left("KIND"),
        Column::Right("SIZE"),
        Column::Left("USABLE"),
        Column::Left("MODEL"),
        Column::Wide("SECTOR"),
        Column::Wide("ATOMIC"),
        Column::Wide("CACHE"),
        Column::Wide("ROTATES"),
        Column::Wide("SERIAL"),
        Column::Wide("LINK"),
    ];

    fn cells(&self) -> Vec<Cell> {
        let usable = match self.obstacles.as_slice() {
            [] => Cell::toned("yes", Tone::Good),
            some => {
                let why: Vec<String> = some.iter().map(obstacle).collect();
                Cell::toned(why.join("; "), Tone::Faint)
            }
        };
        let traits = &self.traits;
        vec![
            (&self.path).into(),
            format::word(&self.kind).into(),
            self.size.into(),
            usable,
            Cell::maybe(self.model.as_ref()),
            format!("{}/{}", traits.logical_block_size, traits.physical_block_size).into(),
            traits.atomic_write_unit.to_string().into(),
            cache(traits.write_cache),
            if traits.rotational { "yes" } else { "no" }.into(),
            Cell::maybe(self.serial.as_ref()),
            Cell::maybe(self.links.first()),
        ]
    }
}
