//! Commands for users of a cluster: nouns and verbs over REST.
//!
//! A noun is a module with the verbs that were typed, the columns of its tables, and nothing else.
//! Every verb writes to an [`Out`], so a test reads what a user would, and every answer can be had
//! as JSON or YAML as it came.
//!
//! Deliberately not here: anything the control plane decides; commands that need no cluster.

mod arg_help;
mod bench;
mod check;
mod client_args;
mod create;
mod device;
mod dump;
mod event;
mod explain;
mod failover;
mod format;
mod group;
mod host;
mod maintenance;
mod node;
mod out;
mod pool;
mod progress;
mod quarantine;
mod rebuild;
mod recover;
mod reference;
mod replica;
mod snapshot;
mod spec;
mod status;
mod table;
mod target;
#[cfg(test)]
mod tests;
mod volume;
mod webhook;

use anyhow::Result;
use api::rest::Remote;
use clap::{Args, Subcommand};

pub(crate) use arg_help::explained as with_words;
pub(crate) use bench::place;
pub(crate) use client_args::{ClientArgs, all, explained};
pub(crate) use create::new_id;
pub(crate) use event::line as event_line;
use explain::try_out;
pub(crate) use format::time as text_of_time;
pub(crate) use out::{Format, Out, Row, yaml};
pub(crate) use pool::Verb as PoolVerb;
pub(crate) use reference::VolumeReference;
pub(crate) use status::screen;
pub(crate) use table::{Cell, Column, Tone, paint};

/// A noun with what is typed after it.
#[derive(Args)]
pub(crate) struct Noun<V: Subcommand> {
    #[command(flatten)]
    ask: ClientArgs,
    #[command(subcommand)]
    verb: V,
}

impl<V: Subcommand + Shows + Tries> Noun<V> {
    /// A client, and where to write.
    pub(crate) fn open<'a>(
        &self,
        to: &'a mut (dyn std::io::Write + Send),
    ) -> Result<(Remote, Out<'a>)> {
        self.ask.may_try(self.verb.tries())?;
        self.ask.open(to, self.verb.shows())
    }
}

/// A verb that may only show something.
pub(crate) trait Shows {
    /// Whether it does: then it can do so again whenever something happens (`--watch`).
    fn shows(&self) -> bool;
}

macro_rules! shows {
    ($($noun:ident: $($verb:ident)|+;)+) => {$(
        impl Shows for $noun::Verb {
            fn shows(&self) -> bool {
                matches!(self, $($noun::Verb::$verb { .. })|+)
            }
        }
    )+};
}

shows! {
    volume: List | Get | Placement | Rebuilds;
    node: List | Get;
    pool: List | Get;
    snapshot: List | Get;
    group: List | Get;
    replica: List | Get;
    quarantine: List;
    target: List | Get;
    rebuild: List | Get;
    failover: List;
    spec: List;
    device: List;
    event: List | Follow;
    host: List | Get;
    webhook: List | Get;
    maintenance: Get;
}

/// A verb that may be one that changes something and can be tried first.
pub(crate) trait Tries {
    /// Whether it can (`--dry-run`).
    fn tries(&self) -> bool {
        false
    }
}

macro_rules! tries {
    ($($noun:ident: $($verb:ident)|*;)+) => {$(
        impl Tries for $noun::Verb {
            fn tries(&self) -> bool {
                matches!(self, $($noun::Verb::$verb { .. })|*)
            }
        }
    )+};
}

tries! {
    volume: Create | Delete | Publish | Unpublish | Republish | Resize | Replicas | Move
        | RemoveReplica | Offline | Online;
    node: Cordon | Uncordon | Drain;
    pool: Export | Cordon | Uncordon | Delete;
    snapshot: Delete;
}

macro_rules! tries_nothing {
    ($($noun:ident)+) => {
        $(impl Tries for $noun::Verb {})+
    };
}

tries_nothing!(
    group replica quarantine target rebuild failover spec device event host webhook maintenance
);

/// Commands for users of a cluster.
#[derive(Subcommand)]
pub(crate) enum ClusterCommand {
    /// The whole cluster on one screen: health, room, what is wrong and why
    Status(status::StatusArgs),
    /// Why a thing is as it is: what it waits for, what comes next, what you can do
    Explain(explain::ExplainArgs),
    /// Pause automatic failover and healing for a while
    Maintenance(Noun<maintenance::Verb>),
    /// Volumes
    #[command(visible_alias = "vol", alias = "volumes")]
    Volume(Box<Noun<volume::Verb>>),
    /// Machines that run an engine
    #[command(alias = "nodes")]
    Node(Noun<node::Verb>),
    /// Snapshots of volumes
    #[command(visible_alias = "snap", alias = "snapshots")]
    Snapshot(Noun<snapshot::Verb>),
    /// Snapshots of several volumes at one moment
    #[command(alias = "groups")]
    Group(Noun<group::Verb>),
    /// Copies of volumes
    #[command(alias = "replicas")]
    Replica(Noun<replica::Verb>),
    /// Copies that are set aside instead of destroyed
    #[command(alias = "quarantines")]
    Quarantine(Noun<quarantine::Verb>),
    /// Targets and their children: where volumes are served
    #[command(alias = "targets")]
    Target(Noun<target::Verb>),
    /// Rebuilds of copies, under way and ended
    #[command(alias = "rebuilds")]
    Rebuild(Noun<rebuild::Verb>),
    /// Failovers, under way and ended
    #[command(alias = "failovers")]
    Failover(Noun<failover::Verb>),
    /// What is in the store, record by record
    #[command(alias = "specs")]
    Spec(Noun<spec::Verb>),
    /// Block devices of a node: what a pool could be made of
    #[command(alias = "devices")]
    Device(Noun<device::Verb>),
    /// What happened
    #[command(alias = "events")]
    Event(Noun<event::Verb>),
    /// Machines that use volumes
    #[command(alias = "hosts")]
    Host(Noun<host::Verb>),
    /// Addresses that are called when something happens
    #[command(alias = "webhooks")]
    Webhook(Noun<webhook::Verb>),
    /// Put a load on a volume over NVMe/TCP and measure it
    Bench(bench::BenchArgs),
    /// Write what support needs to know into a file, without secrets
    Dump(dump::DumpArgs),
    /// Save the content of the store, to be imported elsewhere
    Backup(dump::Backup),
    /// Read volumes and snapshots back from the disks of engines, when the store is lost
    Recover(recover::RecoverArgs),
}

impl ClusterCommand {
    pub(crate) async fn run(self) -> Result<()> {
        let mut stdout = std::io::stdout();
        self.write(&mut stdout).await
    }

    async fn write(self, to: &mut (dyn std::io::Write + Send)) -> Result<()> {
        self.do_it(to).await.map_err(explained)
    }

    async fn do_it(self, to: &mut (dyn std::io::Write + Send)) -> Result<()> {
        macro_rules! noun {
            ($noun:expr) => {{
                let (remote, mut out) = $noun.open(to)?;
                $noun.verb.run(&remote, &mut out).await
            }};
        }
        match self {
            ClusterCommand::Status(typed) => typed.run(to).await,
            ClusterCommand::Explain(typed) => typed.run(to).await,
            ClusterCommand::Maintenance(noun) => noun!(noun),
            ClusterCommand::Volume(noun) => noun!(noun),
            ClusterCommand::Node(noun) => noun!(noun),
            ClusterCommand::Snapshot(noun) => noun!(noun),
            ClusterCommand::Group(noun) => noun!(noun),
            ClusterCommand::Replica(noun) => noun!(noun),
            ClusterCommand::Quarantine(noun) => noun!(noun),
            ClusterCommand::Target(noun) => noun!(noun),
            ClusterCommand::Rebuild(noun) => noun!(noun),
            ClusterCommand::Failover(noun) => noun!(noun),
            ClusterCommand::Spec(noun) => noun!(noun),
            ClusterCommand::Device(noun) => noun!(noun),
            ClusterCommand::Event(noun) => noun!(noun),
            ClusterCommand::Host(noun) => noun!(noun),
            ClusterCommand::Webhook(noun) => noun!(noun),
            ClusterCommand::Bench(typed) => typed.run().await,
            ClusterCommand::Dump(typed) => typed.run(to).await,
            ClusterCommand::Backup(typed) => typed.run(to).await,
            ClusterCommand::Recover(typed) => typed.run(to).await,
        }
    }
}
