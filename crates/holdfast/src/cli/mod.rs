//! Commands for users of a cluster: nouns and verbs over REST.
//!
//! A noun is a module with the verbs that were typed, the columns of its tables, and nothing else.
//! Every verb writes to an [`Out`], so a test reads what a user would, and every answer can be had
//! as JSON or YAML as it came.
//!
//! Deliberately not here: anything the control plane decides; commands that need no cluster.

mod ask;
mod bar;
mod bench;
mod check;
mod create;
mod device;
mod dump;
mod event;
mod failover;
mod group;
mod host;
mod node;
mod out;
mod pool;
mod quarantine;
mod rebuild;
mod recover;
mod replica;
mod say;
mod snapshot;
mod spec;
mod status;
mod table;
mod target;
#[cfg(test)]
mod tests;
mod volume;
mod watch;
mod words;

use anyhow::Result;
use clap::{Args, Subcommand};

pub(crate) use ask::{Ask, all, explained};
pub(crate) use bench::place;
pub(crate) use create::new_id;
pub(crate) use event::line as event_line;
pub(crate) use out::{Format, Out, Row, yaml};
pub(crate) use pool::Verb as PoolVerb;
pub(crate) use say::time as text_of_time;
pub(crate) use status::screen;
pub(crate) use table::{Cell, Column, Tone, paint};
pub(crate) use words::explained as with_words;

/// A noun with what is typed after it.
#[derive(Args)]
pub(crate) struct Noun<V: Subcommand> {
    #[command(flatten)]
    ask: Ask,
    #[command(subcommand)]
    verb: V,
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
    watch: List | Get;
}

/// Commands for users of a cluster.
#[derive(Subcommand)]
pub(crate) enum Typed {
    /// The whole cluster on one screen: health, room, what is wrong and why
    Status(status::Typed),
    /// Volumes
    #[command(visible_alias = "vol")]
    Volume(Box<Noun<volume::Verb>>),
    /// Machines that run an engine
    Node(Noun<node::Verb>),
    /// Snapshots of volumes
    #[command(visible_alias = "snap")]
    Snapshot(Noun<snapshot::Verb>),
    /// Snapshots of several volumes at one moment
    Group(Noun<group::Verb>),
    /// Copies of volumes
    Replica(Noun<replica::Verb>),
    /// Copies that are set aside instead of destroyed
    Quarantine(Noun<quarantine::Verb>),
    /// Targets and their children: where volumes are served
    Target(Noun<target::Verb>),
    /// Rebuilds of copies, under way and ended
    Rebuild(Noun<rebuild::Verb>),
    /// Failovers, under way and ended
    Failover(Noun<failover::Verb>),
    /// What is in the store, record by record
    Spec(Noun<spec::Verb>),
    /// Block devices of a node: what a pool could be made of
    Device(Noun<device::Verb>),
    /// What happened
    Event(Noun<event::Verb>),
    /// Machines that use volumes
    Host(Noun<host::Verb>),
    /// Addresses that are called when something happens
    Watch(Noun<watch::Verb>),
    /// Put a load on a volume over NVMe/TCP and measure it
    Bench(bench::Typed),
    /// Write what support needs to know into a file, without secrets
    Dump(dump::Typed),
    /// Save the content of the store, to be imported elsewhere
    Backup(dump::Backup),
    /// Read volumes and snapshots back from the disks of engines, when the store is lost
    Recover(recover::Typed),
}

impl Typed {
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
                let (remote, mut out) = $noun.ask.open(to, $noun.verb.shows())?;
                $noun.verb.run(&remote, &mut out).await
            }};
        }
        match self {
            Typed::Status(typed) => typed.run(to).await,
            Typed::Volume(noun) => noun!(noun),
            Typed::Node(noun) => noun!(noun),
            Typed::Snapshot(noun) => noun!(noun),
            Typed::Group(noun) => noun!(noun),
            Typed::Replica(noun) => noun!(noun),
            Typed::Quarantine(noun) => noun!(noun),
            Typed::Target(noun) => noun!(noun),
            Typed::Rebuild(noun) => noun!(noun),
            Typed::Failover(noun) => noun!(noun),
            Typed::Spec(noun) => noun!(noun),
            Typed::Device(noun) => noun!(noun),
            Typed::Event(noun) => noun!(noun),
            Typed::Host(noun) => noun!(noun),
            Typed::Watch(noun) => noun!(noun),
            Typed::Bench(typed) => typed.run().await,
            Typed::Dump(typed) => typed.run(to).await,
            Typed::Backup(typed) => typed.run(to).await,
            Typed::Recover(typed) => typed.run(to).await,
        }
    }
}
