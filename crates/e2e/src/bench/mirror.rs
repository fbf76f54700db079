//! The mirrored volume measured: against one of its copies, and while copies fail and come back.
//!
//! Engines are real processes on this machine, with pools in files. Every number is compared only
//! with numbers of the same run.
//!
//! What is compared is measured in turns, round by round, on fleets of their own that are all there
//! at once: a slow moment of the machine hits all of them. A ratio is the median of its rounds.
//!
//! What a write is compared with:
//! - At depth 1 with the same write through a target that has one remote copy: what more copies
//!   cost. The same against a copy without a target is watched: it adds the hop through the target,
//!   which on a machine with fewer cores than processes is mostly waiting for a core.
//! - At depth 32 with the slowest leg: the copy that is slowest while bare clients write to all of
//!   the copies at once, as the target does. All of them share this machine, so a copy that has the
//!   machine for itself is no measure of what a mirror could do here; that share is watched.

mod beside;
mod turns;

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use block::Blocks;
use engine::client::Session;
use engine::client::perf::{self, Load, Measured, Pattern};
use model::{Nqn, RebuildState, ReplicaId, VolumeId};
use nvme::initiator::Options as Wishes;
use tokio::runtime::Runtime;

use super::{Options, real};
use crate::bench::median;
use crate::figure::{Figure, Target};
use crate::fleet::{self, Fleet, Plan, Protection};
use crate::store::Kind;

const HOST: &str = "nqn.2026-11.io.holdfast:node:bench";
/// Size of the volume, in MiB.
const MIB: u32 = 256;
/// A lost connection is noticed at once.
const CLOSED_SECONDS: f64 = 1.5;

/// Where the copies are, seen from the target.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Layout {
    name: &'static str,
    copies: &'static [usize],
}

const THREE: Layout = Layout { name: "one local, two remote", copies: &[0, 1, 2] };

/// What a load saw.
#[derive(Clone, Copy)]
struct Seen {
    iops: f64,
    /// Microseconds.
    p50: f64,
    p99: f64,
    most: f64,
}

/// Runs it.
pub(super) fn run(options: Options) -> Result<Vec<Figure>> {
    let runtime = Runtime::new().context("cannot start a runtime")?;
    let mut bench = Bench { runtime, quick: options.quick, figures: Vec::new() };
    let wanted = |name| options.only.is_none_or(|only| only == name);
    let parts: Vec<_> = PARTS.iter().filter(|(name, _)| wanted(*name)).collect();
    if parts.is_empty() {
        let names: Vec<_> = PARTS.iter().map(|(name, _)| *name).collect();
        bail!("the benchmark has these parts: {}", names.join(", "));
    }
    for (_, part) in parts {
        part(&mut bench)?;
    }
    Ok(bench.figures)
}

type Part = fn(&mut Bench) -> Result<()>;

/// What it measures, in this order.
const PARTS: &[(&str, Part)] = &[
    ("one-write", Bench::one_write),
    ("many-writes", Bench::many_writes),
    ("local-reads", Bench::local_reads),
    ("failures", Bench::failures),
    ("beside-rebuild", Bench::beside_rebuild),
];

struct Bench {
    runtime: Runtime,
    quick: bool,
    figures: Vec<Figure>,
}

impl Bench {
    fn time(&self) -> Duration {
        Duration::from_millis(if self.quick { 700 } else { 3000 })
    }

    fn add(&mut self, name: &str, value: f64, unit: &'static str, target: Target) {
        self.figures.push(Figure { name: name.to_owned(), value, unit, target });
    }

    fn fleet(&self, layout: Layout) -> Result<Fleet> {
        let plan = Plan {
            copies: layout.copies.to_vec(),
            cores: vec![0, 1, 1],
            pool: 1024,
            volume: MIB,
            ..Plan::default_for(Kind::Embedded, HOST)
        };
        self.runtime.block_on(Fleet::start(plan))
    }

    fn open(&self, fleet: &mut Fleet) -> Result<SocketAddr> {
        let target = fleet::id(40)?;
        self.runtime.block_on(async {
            fleet.open(target, 0).await?;
            fleet.until_open(target, 0).await
        })?;
        Ok(fleet.machine(0)?.listen())
    }

    /// The median of three.
    fn measure(&self, layout: &str, session: &mut Session, what: Shape) -> Result<Seen> {
        let mut all = Vec::new();
        for seed in 1..=3 {
            all.push(seen(&perf::run(session, what.load(self.time() / 3, seed))?));
        }
        all.sort_by(|one, other| one.iops.total_cmp(&other.iops));
        let median = *all.get(1).context("nothing was measured")?;
        print(layout, what, median);
        Ok(median)
    }

    fn failures(&mut self) -> Result<()> {
        let mut fleet = self.fleet(THREE)?;
        let address = self.open(&mut fleet)?;
        let target = fleet::id(40)?;
        let mut host = volume(address, fleet.volume)?;
        perf::run(&mut host, fill(1))?;
        drop(host);
        // A copy dies while a host writes.
        let name = Nqn::volume(fleet.volume).to_string();
        let load = Shape::new(Pattern::RandomWrite, 1).load(Duration::from_secs(4), 5);
        let writer = writing_host(address, name.clone(), load);
        fleet.machines.get_mut(2).context("three nodes")?.kill()?;
        self.runtime.block_on(fleet.until_lost((target, 0), 2))?;
        let gone = writer.join().map_err(|_| anyhow::anyhow!("the host panicked"))??;
        print("a copy is killed", Shape::new(Pattern::RandomWrite, 1), gone);
        self.add("mirror-kill-longest-wait", gone.most / 1e6, "s", Target::AtMost(CLOSED_SECONDS));
        self.runtime.block_on(fleet.restart(2))?;
        self.runtime.block_on(fleet.until_open(target, 0))?;
        let mut shares = Vec::new();
        for seed in 2..if self.quick { 3 } else { 7 } {
            shares.push(self.rebuild(&mut fleet, address, seed)?);
        }
        self.add("mirror-rebuild-of-sequential", median(shares), "%", Target::AtLeast(80.0));
        self.hang(&fleet)
    }

    /// A copy goes, misses all of it, and comes back. How quick it is rebuilt, in percent of what
    /// all of them gave a host just before.
    fn rebuild(&self, fleet: &mut Fleet, address: SocketAddr, seed: u64) -> Result<f64> {
        let target = fleet::id(40)?;
        let mut host = volume(address, fleet.volume)?;
        let large_read = Shape { blocks: 64, ..Shape::new(Pattern::Read, 8) };
        let large_write = Shape { blocks: 64, ..Shape::new(Pattern::Write, 8) };
        let reading = self.measure(THREE.name, &mut host, large_read)?;
        let writing = self.measure(THREE.name, &mut host, large_write)?;
        fleet.machines.get_mut(2).context("three nodes")?.kill()?;
        self.runtime.block_on(fleet.until_lost((target, 0), 2))?;
        perf::run(&mut host, fill(seed))?;
        drop(host);
        self.runtime.block_on(fleet.restart(2))?;
        self.runtime.block_on(fleet.until_open(target, 0))?;
        let rebuilds = self.runtime.block_on(fleet.rebuilds(0, 2))?;
        let last = rebuilds.last().context("nothing was rebuilt")?;
        let (Some(end), RebuildState::Completed {}) = (last.ended_at(), last.state()) else {
            bail!("the rebuild did not end: {last:?}");
        };
        let seconds = end.since(last.started_at).as_secs_f64().max(1e-3);
        let mib = real(last.progress.copied.bytes().0) / 1_048_576.0;
        let most = reading.iops.min(writing.iops) * 0.25;
        println_rebuild(mib, seconds);
        Ok(100.0 * (mib / seconds) / most)
    }

    /// A copy hangs while a host writes.
    fn hang(&mut self, fleet: &Fleet) -> Result<()> {
        let (target, address) = (fleet::id(40)?, fleet.machine(0)?.listen());
        let name = Nqn::volume(fleet.volume).to_string();
        let load = Shape::new(Pattern::RandomWrite, 1).load(Duration::from_secs(20), 7);
        let writer = writing_host(address, name, load);
        let hung = &fleet.machine(2)?.engine()?.program;
        hung.signal(rustix::process::Signal::STOP)?;
        self.runtime.block_on(fleet.until_lost((target, 0), 2))?;
        hung.signal(rustix::process::Signal::CONT)?;
        let held = writer.join().map_err(|_| anyhow::anyhow!("the host panicked"))??;
        print("a copy hangs", Shape::new(Pattern::RandomWrite, 1), held);
        let allowed = Wishes::default().keep_alive.as_secs_f64() + 1.0;
        self.add("mirror-hang-longest-wait", held.most / 1e6, "s", Target::AtMost(allowed));
        Ok(())
    }
}

/// One way of using a volume.
#[derive(Clone, Copy)]
struct Shape {
    pattern: Pattern,
    blocks: u64,
    depth: u32,
}

/// Everything once, with large writes.
fn fill(seed: u64) -> Load {
    let shape = Shape { pattern: Pattern::Write, blocks: 64, depth: 8 };
    Load { commands: u64::from(MIB) * 4, ..shape.load(Duration::from_mins(1), seed) }
}

impl Shape {
    fn new(pattern: Pattern, depth: u32) -> Shape {
        Shape { pattern, blocks: 1, depth }
    }

    fn load(self, time: Duration, seed: u64) -> Load {
        Load {
            nsid: 1,
            pattern: self.pattern,
            blocks: Blocks(self.blocks),
            depth: self.depth,
            time,
            commands: u64::MAX,
            verify: false,
            seed,
        }
    }
}

fn seen(measured: &Measured) -> Seen {
    let micros = |nanos: u64| real(nanos) / 1000.0;
    Seen {
        iops: real(measured.commands) / measured.elapsed.as_secs_f64().max(1e-6),
        p50: micros(measured.latency.value_at_quantile(0.5)),
        p99: micros(measured.latency.value_at_quantile(0.99)),
        most: micros(measured.latency.max()),
    }
}

/// A host that is not heard of between its turns.
fn wishes() -> Wishes {
    Wishes { keep_alive: Duration::ZERO, ..Wishes::default() }
}

fn session(address: SocketAddr, name: &str) -> Result<Session> {
    fleet::connect(address, (HOST, name), wishes())
}

fn volume(address: SocketAddr, id: VolumeId) -> Result<Session> {
    session(address, Nqn::volume(id).as_str())
}

/// A copy, held as a target would hold it.
fn held_replica(address: SocketAddr, replica: ReplicaId) -> Result<Session> {
    let mut direct = fleet::connect_replica(address, (HOST, replica), Protection::Full, wishes())?;
    fleet::hold(&mut direct, 1)?;
    Ok(direct)
}

type Writer = std::thread::JoinHandle<Result<Seen>>;

/// A host that writes on a thread of its own; it has begun when this returns.
fn writing_host(address: SocketAddr, name: String, load: Load) -> Writer {
    let (begun, has_begun) = std::sync::mpsc::sync_channel(1);
    let writer = std::thread::spawn(move || {
        let mut host = session(address, &name)?;
        // Whoever waits is gone if it is not sent.
        let _ = begun.send(());
        Ok(seen(&perf::run(&mut host, load)?))
    });
    // An error ends the thread, which says why.
    let _ = has_begun.recv();
    writer
}

#[expect(clippy::print_stdout, reason = "printing is what a benchmark is for")]
fn print(layout: &str, what: Shape, seen: Seen) {
    println!(
        "{layout:24} {:12} {:4} KiB qd {:3} {:>9.0} IOPS  p50 {:>8.1} us  p99 {:>9.1} us  \
         longest {:>10.1} us",
        format!("{:?}", what.pattern),
        what.blocks * 4,
        what.depth,
        seen.iops,
        seen.p50,
        seen.p99,
        seen.most
    );
}

#[expect(clippy::print_stdout, reason = "printing is what a benchmark is for")]
fn println_rebuild(mib: f64, seconds: f64) {
    println!("rebuild of {mib:.0} MiB in {seconds:.2} s: {:.0} MiB/s", mib / seconds);
}
