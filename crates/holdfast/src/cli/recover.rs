//! `holdfast recover`: what the disks say when the store is lost.
//!
//! The same when the store was put back to an earlier state: volumes of which the disks know more
//! are named, and `--apply` adopts the newest label.
//!
//! Every replica carries a label with its volume, size and which copies are in sync. Of several
//! labels of a volume the one with the highest stamp is right. The control plane shows what it
//! would read back, and does so when told to. Or the engines are asked directly, which works
//! without a control plane and without a store, and changes nothing.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write;

use anyhow::{Context, Result};
use api::node::{Node, Remote as Engine};
use api::rest::{Control as _, RecoverRequest, Recovery};
use clap::Args;
use http::uri::Authority;
use model::{NodeName, PoolName, ReplicaId, ReplicaLabel, Size, SnapshotLabel, Subject, VolumeId};
use serde::Serialize;

use super::client_args::{ClientArgs, all};
use super::out::Row;
use super::table::{Cell, Column, Tone};

/// Options of `recover`.
#[derive(Args)]
pub(crate) struct RecoverArgs {
    #[command(flatten)]
    ask: ClientArgs,
    /// Read back what is shown; without it nothing is changed
    #[arg(long)]
    apply: bool,
    /// Also read back this volume, of which copies were not found: they will not come back. If one
    /// does, it is set aside and not used: see `holdfast quarantine list`. May be given more than
    /// once
    #[arg(long, value_name = "VOLUME", requires = "apply")]
    incomplete: Vec<VolumeId>,
    /// Ask this engine by its node API instead of the control plane, and change nothing; may be
    /// given more than once
    #[arg(long = "engine", value_name = "HOST:PORT", conflicts_with = "apply")]
    engines: Vec<Authority>,
}

/// One thing that was found.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    what: String,
    found: String,
    /// Whether it is read back.
    good: bool,
    verdict: String,
}

impl Line {
    fn new(what: &Subject, found: String, verdict: &str) -> Line {
        Line { what: what.to_string(), found, good: true, verdict: verdict.to_owned() }
    }
}

fn lines(found: Recovery, verdict: &str) -> Vec<Line> {
    let bare = |subject: Subject| Line::new(&subject, String::new(), verdict);
    let mut lines: Vec<Line> = found.pools.into_iter().map(Subject::Pool).map(bare).collect();
    for (id, volume) in found.volumes {
        let copies = (volume.copies.len(), volume.copies.len() + volume.missing.len());
        let served = volume.served_by.as_ref();
        let served = served.map_or(String::new(), |node| format!(", served by {node}"));
        let newer = if volume.newer_than_store { ", newer than the store" } else { "" };
        let found = format!("{}, {} of {} copies{served}{newer}", volume.size, copies.0, copies.1);
        lines.push(Line::new(&Subject::Volume(id), found, verdict));
    }
    lines.extend(found.snapshots.into_iter().map(Subject::Snapshot).map(bare));
    for left in found.left {
        let line = Line::new(&left.subject, String::new(), &left.message);
        lines.push(Line { good: false, ..line });
    }
    lines
}

impl Row for Line {
    const COLUMNS: &'static [Column] =
        &[Column::Left("WHAT"), Column::Left("FOUND"), Column::Left("VERDICT")];

    fn cells(&self) -> Vec<Cell> {
        let tone = if self.good { Tone::Good } else { Tone::Bad };
        let verdict = Cell::toned(&self.verdict, tone);
        vec![self.what.as_str().into(), self.found.as_str().into(), verdict]
    }
}

/// A copy as its engine has it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Copy {
    node: NodeName,
    pool: PoolName,
    label: ReplicaLabel,
}

/// What is known of a volume.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Found {
    volume: VolumeId,
    size: Size,
    /// What the newest label says of its copies.
    label: ReplicaLabel,
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

impl RecoverArgs {
    pub(crate) async fn run(self, to: &mut (dyn Write + Send)) -> Result<()> {
        let (remote, mut out) = self.ask.open(to, false)?;
        if self.engines.is_empty() {
            let request = RecoverRequest { incomplete: self.incomplete.into_iter().collect() };
            let (found, verdict) = if self.apply {
                (remote.recover(request).await?, "is read back")
            } else {
                (remote.recovery().await?, "can be read back: --apply")
            };
            let lines = lines(found, verdict);
            if lines.is_empty() && out.is_for_people() {
                return out
                    .text("nothing to read back: the store knows all that the engines have\n");
            }
            return out.list(&lines);
        }
        let (mut copies, mut snapshots) = (Vec::new(), Vec::new());
        for server in self.engines {
            let engine = Engine::new(self.ask.client(server.clone())?);
            let read = read(&engine).await;
            let (some, taken) = read.with_context(|| format!("cannot ask the engine {server}"))?;
            copies.extend(some);
            snapshots.extend(taken);
        }
        let found = put_together(copies, snapshots);
        out.list(&found)
    }
}

async fn read(engine: &Engine) -> Result<(Vec<Copy>, Vec<SnapshotLabel>)> {
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
        let label = ReplicaLabel { volume, replica, size: Size::gib(1), epoch, set: set.clone() };
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
