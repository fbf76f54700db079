//! `holdfast recover`: what the disks say when the store is lost.
//!
//! Every replica carries a label with its volume, size and which copies are in sync. Of several
//! labels of a volume the one with the highest stamp is right. This asks the engines directly, so
//! it works without a control plane and without a store; it changes nothing.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use api::node::{Node, Remote};
use api::{Client, ClientConfig, TlsClient, Token};
use clap::Args;
use http::uri::Authority;
use model::{Label, NodeName, PoolName, ReplicaId, Size, SnapshotLabel, VolumeId};
use serde::Serialize;

use super::ask::all;
use super::out::{Format, Out, Row};
use super::table::{Cell, Column, Tone};

/// Options of `recover`.
#[derive(Args)]
pub(crate) struct Typed {
    /// The node API of every engine; may be given more than once
    #[arg(long = "engine", value_name = "HOST:PORT", required = true)]
    engines: Vec<Authority>,
    /// A file with the token to show to engines
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Use TLS, and believe only engines with a certificate of these authorities (PEM)
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// How to print
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: Format,
}

/// A copy as its engine has it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Copy {
    node: NodeName,
    pool: PoolName,
    label: Label,
}

/// What is known of a volume.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Found {
    volume: VolumeId,
    size: Size,
    /// What the newest label says of its copies.
    label: Label,
    /// The copies that were found.
    copies: BTreeMap<ReplicaId, Copy>,
    /// Its snapshots.
    snapshots: Vec<SnapshotLabel>,
}

impl Found {
    /// Whether a copy that can be believed was found.
    fn is_whole(&self) -> bool {
        self.label.set.in_sync().iter().any(|id| self.copies.contains_key(id))
    }
}

impl Typed {
    pub(crate) async fn run(self, to: &mut (dyn Write + Send)) -> Result<()> {
        let (mut copies, mut snapshots) = (Vec::new(), Vec::new());
        let token = self.token_file.as_deref().map(Token::read).transpose()?;
        let tls = self.ca.as_deref().map(TlsClient::read).transpose()?;
        for server in self.engines {
            let (token, tls) = (token.clone(), tls.clone());
            let config = ClientConfig { token, tls, ..ClientConfig::plain(server.clone()) };
            let engine = Remote::new(Client::new(config)?);
            let read = read(&engine).await;
            let (some, taken) = read.with_context(|| format!("cannot ask the engine {server}"))?;
            copies.extend(some);
            snapshots.extend(taken);
        }
        let found = put_together(copies, snapshots);
        Out::new(to, self.output, false).list(&found)
    }
}

async fn read(engine: &Remote) -> Result<(Vec<Copy>, Vec<SnapshotLabel>)> {
    let node = engine.node().await?.name;
    let replicas = all(|paging| engine.replicas(paging)).await?;
    let copies = replicas.into_iter().filter_map(|replica| {
        let (pool, label) = (replica.spec.pool, replica.status.label?);
        Some(Copy { node: node.clone(), pool, label })
    });
    let copies = copies.collect();
    let snapshots = all(|paging| engine.snapshots(paging)).await?;
    Ok((copies, snapshots.into_iter().map(|snapshot| snapshot.label).collect()))
}

fn put_together(copies: Vec<Copy>, snapshots: Vec<SnapshotLabel>) -> Vec<Found> {
    let mut volumes: BTreeMap<VolumeId, Found> = BTreeMap::new();
    for copy in copies {
        let label = &copy.label;
        let found = volumes.entry(label.volume).or_insert_with(|| Found {
            volume: label.volume,
            size: label.size,
            label: label.clone(),
            copies: BTreeMap::new(),
            snapshots: Vec::new(),
        });
        if label.stamp() > found.label.stamp() {
            (found.label, found.size) = (label.clone(), label.size);
        }
        found.copies.insert(label.replica, copy);
    }
    for snapshot in snapshots {
        let Some(found) = volumes.get_mut(&snapshot.volume) else { continue };
        let known = found.snapshots.iter().any(|have| have.snapshot == snapshot.snapshot);
        if !known {
            found.snapshots.push(snapshot);
        }
    }
    volumes.into_values().collect()
}

impl Row for Found {
    const COLUMNS: &'static [Column] = &[
        Column::Left("VOLUME"),
        Column::Right("SIZE"),
        Column::Right("EPOCH"),
        Column::Right("COPIES"),
        Column::Left("IN SYNC"),
        Column::Right("SNAPSHOTS"),
        Column::Left("VERDICT"),
    ];

    fn cells(&self) -> Vec<Cell> {
        let mut in_sync = String::new();
        for id in self.label.set.in_sync() {
            let place = self.copies.get(id).map(|copy| format!("{}/{}", copy.node, copy.pool));
            let gap = if in_sync.is_empty() { "" } else { "," };
            // Writing to a string cannot fail.
            let _ = write!(in_sync, "{gap}{}", place.unwrap_or_else(|| "(not found)".to_owned()));
        }
        let verdict = if self.is_whole() {
            Cell::toned("can be read back", Tone::Good)
        } else {
            Cell::toned("no copy in sync was found: ask more engines", Tone::Bad)
        };
        vec![
            self.volume.into(),
            self.size.into(),
            self.label.epoch.into(),
            format!("{}/{}", self.copies.len(), self.label.set.replicas().len()).into(),
            in_sync.into(),
            self.snapshots.len().into(),
            verdict,
        ]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use model::{Epoch, ReplicaSet, SetChange};

    use super::*;

    fn id<T: std::str::FromStr<Err: std::fmt::Debug>>(n: u32) -> T {
        format!("00000000-0000-4000-8000-{n:012}").parse().unwrap()
    }

    fn copy(replica: u32, epoch: u64, set: &ReplicaSet) -> Copy {
        let (volume, replica) = (id(10), id(replica));
        let epoch = Epoch::new(epoch).unwrap();
        let label = Label { volume, replica, size: Size::gib(1), epoch, set: set.clone() };
        Copy { node: "n".parse().unwrap(), pool: "p".parse().unwrap(), label }
    }

    #[test]
    fn the_newest_label_says_who_is_in_sync() {
        let both = ReplicaSet::new(BTreeSet::from([id(20), id(21)])).unwrap();
        let one = both.on(SetChange::Stale(id(21))).unwrap();
        let found = put_together(vec![copy(21, 1, &both), copy(20, 2, &one)], Vec::new());
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].label.set, one);
        assert!(found[0].is_whole());
        let late = put_together(vec![copy(21, 2, &one)], Vec::new());
        assert!(!late[0].is_whole(), "only the stale copy was found");
    }
}
