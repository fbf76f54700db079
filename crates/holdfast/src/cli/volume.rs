//! `holdfast volume`.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use api::rest::{
    Control, DryRunRequest, LabelMatch, Placement, RebuildQuery, Remote, ReplicaQuery,
    VolumeAction, VolumeQuery,
};
use clap::{Args, Subcommand, ValueEnum};
use model::{
    HostName, NodeName, PoolName, ProblemKind, ReplicaId, Size, Source, Volume, VolumeId,
    VolumeReplica, VolumeState,
};
use serde::Serialize;

use super::check::Check;
use super::client_args::all;
use super::create::{From, NewSize, NewVolume, Properties, agreed, copies};
use super::format;
use super::out::{Out, Row};
use super::progress::ProgressBar;
use super::reference::VolumeReference;
use super::table::{Cell, Column, Tone};
use super::try_out;

/// Commands about volumes.
#[derive(Subcommand)]
pub(crate) enum Verb {
    /// All volumes, or those that fit
    List(List),
    /// One volume with its copies
    Get { volume: VolumeReference },
    /// Make a volume: empty, from a snapshot, or as a clone of another
    Create {
        #[command(flatten)]
        new: NewVolume,
        #[command(flatten)]
        from: From,
    },
    /// Delete a volume and its data
    Delete {
        volume: VolumeReference,
        /// Yes, lose its data
        #[arg(long)]
        yes: bool,
    },
    /// Serve a volume, and print where
    Publish {
        volume: VolumeReference,
        /// The host that is to use it; left out: nobody, to heal
        #[arg(long, value_name = "HOST")]
        host: Option<HostName>,
        /// The node that is to serve it; left out: where it suits best
        #[arg(long, value_name = "NODE")]
        node: Option<NodeName>,
    },
    /// Stop serving a volume
    Unpublish {
        volume: VolumeReference,
        /// For this host only
        #[arg(long, value_name = "HOST")]
        host: Option<HostName>,
        /// Even if its node does not answer
        #[arg(long)]
        force: bool,
    },
    /// Serve a volume from another node; hosts keep their device
    Republish {
        volume: VolumeReference,
        /// The node that is to serve it; left out: where it suits best
        #[arg(long, alias = "to", value_name = "NODE")]
        node: Option<NodeName>,
    },
    /// Make a volume larger, in use or not
    #[command(override_usage = "holdfast volume resize [OPTIONS] <VOLUME> <SIZE>")]
    Resize {
        volume: VolumeReference,
        #[command(flatten)]
        size: NewSize,
        /// Show how far it is until every copy has it
        #[arg(long)]
        wait: bool,
    },
    /// Have another number of copies
    Replicas {
        volume: VolumeReference,
        /// How many copies, 1 to 8
        #[arg(value_parser = copies())]
        count: u8,
    },
    /// Change other properties
    Set {
        volume: VolumeReference,
        #[command(flatten)]
        properties: Properties,
    },
    /// Have a copy in another place instead of this one
    Move {
        volume: VolumeReference,
        /// The copy to leave
        replica: ReplicaId,
        /// The pool to move to; left out: where it suits best
        #[arg(long, value_name = "POOL")]
        pool: Option<PoolName>,
    },
    /// Give up a copy that is lost or too many
    RemoveReplica {
        volume: VolumeReference,
        /// Which copy
        replica: ReplicaId,
        /// Yes, lose it
        #[arg(long)]
        yes: bool,
    },
    /// Leave a copy alone: it misses what is written until it is used again
    Offline {
        volume: VolumeReference,
        /// Which copy
        replica: ReplicaId,
    },
    /// Use a copy again that was left alone; it is brought in sync
    Online {
        volume: VolumeReference,
        /// Which copy
        replica: ReplicaId,
    },
    /// Read a served volume on all copies in sync and compare them; what is damaged is rewritten
    Check(Check),
    /// For each pool, whether a copy could go there, and why not
    Placement { volume: VolumeReference },
    /// Rebuilds of a volume, under way and ended
    Rebuilds { volume: VolumeReference },
    /// Undo what is being done to a volume, as far as it can be: publishing, another size, a move
    Cancel { volume: VolumeReference },
    /// Forget targets that were replaced, even if their nodes do not answer
    ShutdownTargets { volume: VolumeReference },
}

/// Which volumes.
#[derive(Args)]
pub(crate) struct List {
    /// Only those that are so well
    #[arg(long, value_name = "STATE")]
    state: Option<StateText>,
    /// Only those with a copy or the target on this node
    #[arg(long, value_name = "NODE")]
    node: Option<NodeName>,
    /// Only those with a copy in this pool
    #[arg(long, value_name = "POOL")]
    pool: Option<PoolName>,
    /// Only those that this host may use
    #[arg(long, value_name = "HOST")]
    host: Option<HostName>,
    /// Only those with this label
    #[arg(short, long, value_name = "KEY[=VALUE]")]
    label: Option<LabelMatch>,
}

#[derive(Clone, Copy, ValueEnum)]
enum StateText {
    Online,
    Degraded,
    Faulted,
    Unknown,
}

impl List {
    fn asked(self) -> VolumeQuery {
        let state = self.state.map(|state| match state {
            StateText::Online => VolumeState::Online,
            StateText::Degraded => VolumeState::Degraded,
            StateText::Faulted => VolumeState::Faulted,
            StateText::Unknown => VolumeState::Unknown,
        });
        let List { node, pool, host, label, .. } = self;
        VolumeQuery { state, node, pool, host, label, ..VolumeQuery::default() }
    }
}

impl Verb {
    pub(crate) async fn run(self, remote: &Remote, out: &mut Out<'_>) -> Result<()> {
        match self {
            Verb::List(list) => {
                let asked = list.asked();
                let show = async |out: &mut Out<'_>| {
                    out.list(&all(|paging| remote.volumes(asked.clone().at(paging))).await?)
                };
                out.show(remote, show).await
            }
            Verb::Get { volume } => {
                let volume = volume.find(remote).await?;
                let show = async |out: &mut Out<'_>| out.one(&remote.volume(volume).await?);
                out.show(remote, show).await
            }
            Verb::Create { new, from } => create(remote, out, new, from).await,
            Verb::Delete { volume, .. } if out.tries() => {
                let volume = volume.find(remote).await?;
                try_out(remote, out, DryRunRequest::DeleteVolume { volume }).await
            }
            Verb::Delete { volume, yes } => {
                let volume = volume.find(remote).await?;
                agreed(yes, &format!("this destroys volume {volume} and its data"))?;
                let gone = remote.delete_volume(volume, None).await?;
                out.done(&format::gone(format!("volume {volume}"), gone), &gone)
            }
            Verb::Set { volume, properties } => {
                set(remote, out, volume.find(remote).await?, properties).await
            }
            Verb::Check(check) => check.run(remote, out).await,
            Verb::Placement { volume } => {
                let volume = volume.find(remote).await?;
                let show = async |out: &mut Out<'_>| {
                    out.list(&all(|paging| remote.placement(volume, paging)).await?)
                };
                out.show(remote, show).await
            }
            Verb::Rebuilds { volume } => {
                let volume = volume.find(remote).await?;
                let asked = RebuildQuery { volume: Some(volume), ..RebuildQuery::default() };
                let show = async |out: &mut Out<'_>| {
                    out.list(&all(|paging| remote.rebuilds(asked.clone().at(paging))).await?)
                };
                out.show(remote, show).await
            }
            Verb::Resize { volume, size, .. } if out.tries() => {
                let volume = volume.find(remote).await?;
                let change = VolumeAction::Resize { size: size.get()? };
                try_out(remote, out, DryRunRequest::ChangeVolume { volume, change }).await
            }
            Verb::Resize { volume, size, wait } => {
                resize(remote, out, (volume.find(remote).await?, size.get()?), wait).await
            }
            Verb::RemoveReplica { yes: false, replica, .. } if !out.tries() => {
                agreed(false, &format!("this destroys replica {replica}"))
            }
            other => other.change(remote, out).await,
        }
    }

    /// The verbs that are one change each.
    async fn change(self, remote: &Remote, out: &mut Out<'_>) -> Result<()> {
        let (volume, action) = match self {
            Verb::Publish { volume, host, node } => (volume, VolumeAction::Publish { host, node }),
            Verb::Unpublish { volume, host, force } => {
                (volume, VolumeAction::Unpublish { host, force })
            }
            Verb::Republish { volume, node } => (volume, VolumeAction::Republish { node }),
            Verb::Replicas { volume, count } => {
                (volume, VolumeAction::SetReplicas { replicas: count })
            }
            Verb::Move { volume, replica, pool } => {
                (volume, VolumeAction::MoveReplica { replica, pool })
            }
            Verb::RemoveReplica { volume, replica, .. } => {
                (volume, VolumeAction::RemoveReplica { replica })
            }
            Verb::Offline { volume, replica } => {
                (volume, VolumeAction::SetReplicaOffline { replica, offline: true })
            }
            Verb::Online { volume, replica } => {
                (volume, VolumeAction::SetReplicaOffline { replica, offline: false })
            }
            Verb::ShutdownTargets { volume } => (volume, VolumeAction::RemoveShutdownTargets {}),
            Verb::Cancel { volume } => (volume, VolumeAction::Cancel {}),
            _ => return Ok(()),
        };
        let volume = volume.find(remote).await?;
        if out.tries() {
            let request = DryRunRequest::ChangeVolume { volume, change: action };
            return try_out(remote, out, request).await;
        }
        let serves =
            matches!(action, VolumeAction::Publish { .. } | VolumeAction::Republish { .. });
        let answer = remote.change_volume(volume, action, None).await?;
        let mut said = format::ensured(format!("volume {volume}"), &answer);
        let target = answer.now.status.as_ref().and_then(|status| status.target.as_ref());
        if let (true, Some(target)) = (serves, target) {
            write!(said, ", served by {} at {}", target.node, listed(&target.addresses))?;
            write!(said, "\n{}", target.nqn)?;
        }
        out.done(&said, &answer)
    }
}

fn listed(addresses: &[std::net::SocketAddr]) -> String {
    let each: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    if each.is_empty() { "no address yet".to_owned() } else { each.join(", ") }
}

async fn create(remote: &Remote, out: &mut Out<'_>, new: NewVolume, from: From) -> Result<()> {
    let (source, size) = match (from.from_snapshot, from.clone_of) {
        (Some(snapshot), _) => {
            let snapshot = snapshot.find(remote).await?;
            let status = remote.snapshot(snapshot).await?.status;
            let status = status.context("nothing is known of the snapshot yet; try again")?;
            (Some(Source::Snapshot { snapshot }), Some(status.size))
        }
        (None, Some(volume)) => {
            let volume = volume.find(remote).await?;
            (Some(Source::Volume { volume }), Some(remote.volume(volume).await?.spec().size))
        }
        (None, None) => (None, None),
    };
    let (id, spec) = new.spec(source, size)?;
    if out.tries() {
        let request = DryRunRequest::CreateVolume { volume: id, spec: Box::new(spec) };
        return try_out(remote, out, request).await;
    }
    let answer = remote.put_volume(id, spec).await?;
    out.done(&format::ensured(format!("volume {id}"), &answer), &answer)
}

/// How often the growth of copies is looked at.
const AGAIN: Duration = Duration::from_millis(500);

async fn resize(
    remote: &Remote,
    out: &mut Out<'_>,
    (volume, size): (VolumeId, Size),
    wait: bool,
) -> Result<()> {
    let answer = match remote.change_volume(volume, VolumeAction::Resize { size }, None).await {
        // What was begun goes on; who waits need not ask again.
        Err(problem) if wait && problem.kind == ProblemKind::TimedOut => None,
        answer => Some(answer?),
    };
    if wait {
        grown(remote, volume, size).await?;
    }
    let Some(answer) = answer else {
        return out.done(&format!("volume {volume} changed"), &remote.volume(volume).await?);
    };
    out.done(&format::ensured(format!("volume {volume}"), &answer), &answer)
}

/// Waits until every copy, and then the volume, has the size.
async fn grown(remote: &Remote, volume: VolumeId, size: Size) -> Result<()> {
    let asked = ReplicaQuery { volume: Some(volume), ..ReplicaQuery::default() };
    let mut bar = ProgressBar::new(format!("resize of {volume}"));
    loop {
        let now = remote.volume(volume).await?;
        let copies = all(|paging| remote.replicas(asked.clone().at(paging))).await?;
        let small = copies.iter().filter(|copy| copy.spec().size < size).count();
        let under_way = !now.lifecycle().is_idle();
        bar.count(small + usize::from(under_way));
        if small == 0 && !under_way {
            bar.end();
            ensure!(now.spec().size >= size, "the resize of volume {volume} was undone: ask again");
            return Ok(());
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Reads, changes and writes; again when somebody else was quicker.
async fn set(
    remote: &Remote,
    out: &mut Out<'_>,
    volume: VolumeId,
    properties: Properties,
) -> Result<()> {
    loop {
        let have = remote.volume(volume).await?;
        let mut spec = have.spec().clone();
        properties.clone().apply(&mut spec);
        let action = VolumeAction::Modify { spec: Box::new(spec) };
        match remote.change_volume(volume, action, Some(have.generation())).await {
            Err(problem) if problem.kind == ProblemKind::StaleGeneration => {}
            answer => {
                let answer = answer?;
                return out.done(&format::ensured(format!("volume {volume}"), &answer), &answer);
            }
        }
    }
}

impl Row for Volume {
    const COLUMNS: &'static [Column] = &[
        Column::Left("VOLUME"),
        Column::Left("NAME"),
        Column::Right("SIZE"),
        Column::Right("USED"),
        Column::Left("COPIES"),
        Column::Left("STATE"),
        Column::Left("TARGET"),
        Column::Left("HOSTS"),
        Column::Left("OPERATION"),
        Column::Wide("THIN"),
        Column::Wide("SNAPSHOTS"),
        Column::Wide("CREATED"),
        Column::Wide("LABELS"),
    ];

    fn cells(&self) -> Vec<Cell> {
        let (spec, status) = (self.spec(), self.status.as_ref());
        let target = status.and_then(|status| status.target.as_ref());
        let in_sync = |copy: &&VolumeReplica| {
            copy.child.is_none_or(|child| child == model::ChildState::InSync)
                && copy.state == model::ReplicaState::Online
        };
        let good = status.map(|status| status.replicas.values().filter(in_sync).count());
        let copies = format!("{}/{}", good.unwrap_or(0), spec.replicas);
        let whole = good == Some(usize::from(spec.replicas));
        vec![
            self.id().into(),
            Cell::maybe(spec.name.as_ref()),
            spec.size.into(),
            Cell::maybe(status.map(|status| status.usage.allocated)),
            Cell::toned(copies, if whole { Tone::Good } else { Tone::Warn }),
            format::volume_state(status.map(|status| status.state)),
            Cell::maybe(target.map(|target| &target.node)),
            format::list(target.into_iter().flat_map(|target| &target.hosts)),
            format::life(self),
            spec.thin.into(),
            Cell::maybe(status.map(|status| status.snapshots)),
            format::time(self.created_at()).into(),
            format::labels(&spec.labels),
        ]
    }

    fn details(&self, out: &Out<'_>) -> String {
        let Some(status) = &self.status else { return String::new() };
        let mut text = String::new();
        // Writing to a string cannot fail.
        for reason in &status.reasons {
            let _ = write!(text, "\n{reason}");
        }
        if !status.reasons.is_empty() {
            text.push('\n');
        }
        if let Some(target) = &status.target {
            let at = listed(&target.addresses);
            let _ = write!(text, "\nserved at {at}\n  {}\n  epoch {}\n", target.nqn, target.epoch);
        }
        let copies: Vec<Copy<'_>> =
            status.replicas.iter().map(|(id, copy)| Copy { id: *id, copy }).collect();
        if !copies.is_empty() {
            text.push('\n');
            text.push_str(&out.table(&copies));
        }
        text
    }
}

/// A copy of a volume as a row.
#[derive(Serialize)]
struct Copy<'a> {
    id: ReplicaId,
    copy: &'a VolumeReplica,
}

impl Row for Copy<'_> {
    const COLUMNS: &'static [Column] = &[
        Column::Left("REPLICA"),
        Column::Left("NODE"),
        Column::Left("POOL"),
        Column::Left("STATE"),
        Column::Left("CHILD"),
        Column::Right("REBUILD"),
        Column::Right("USED"),
        Column::Wide("SNAPSHOTS"),
    ];

    fn cells(&self) -> Vec<Cell> {
        let VolumeReplica { node, pool, state, child, usage, progress } = self.copy;
        vec![
            self.id.into(),
            node.into(),
            pool.into(),
            format::replica_state(Some(state)),
            format::child_state(*child),
            Cell::maybe(progress.map(|progress| format!("{} %", progress.percent()))),
            usage.allocated.into(),
            usage.snapshots.into(),
        ]
    }
}

impl Row for Placement {
    const COLUMNS: &'static [Column] = &[
        Column::Left("POOL"),
        Column::Left("NODE"),
        Column::Right("RANK"),
        Column::Left("HAS"),
        Column::Left("WHY NOT"),
    ];

    fn cells(&self) -> Vec<Cell> {
        vec![
            (&self.pool).into(),
            (&self.node).into(),
            Cell::maybe(self.rank),
            Cell::maybe(self.replica),
            Cell::maybe(self.refused.as_ref()),
        ]
    }
}
