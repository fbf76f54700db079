//! How long programs on an attached volume wait while its target moves.
//!
//! A writer commits to a file system on a volume of three copies, attached by FUSE; a stall is its
//! longest commit. The cluster runs with the times of detection that `control serve` has by itself.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::{Options, median};
use crate::cluster::{Cluster, Pace, is_able};
use crate::committer::Committer;
use crate::figure::{Figure, Target};

/// Seconds after which a host's path counts as lost when nothing comes back.
const KEEP_ALIVE: f64 = 5.0;
/// Commits that show that I/O flows again.
const COMMITS: u64 = 20;
/// Targets of the node that is lost with many.
const TARGETS: usize = 200;
/// How long those may take to move.
const PATIENCE: Duration = Duration::from_mins(3);

pub(super) fn run(options: Options) -> Result<Vec<Figure>> {
    ensure!(is_able(), "volumes cannot be attached: run it as root, where /dev/fuse is");
    let (kills, cuts, moves) = if options.quick { (3, 1, 3) } else { (20, 5, 20) };
    let mut attached = Attached::start()?;
    let moved = stalls("moved", moves, || attached.move_target())?;
    let killed = stalls("killed", kills, || attached.kill_target())?;
    let silent = stalls("silent", cuts, || attached.silence_target())?;
    attached.end()?;
    let lost = lose_many()?;
    let mut figures = Vec::new();
    let mut add = |name: &str, value: f64, unit: &'static str, target: Target| {
        figures.push(Figure { name: format!("failover-{name}"), value, unit, target });
    };
    add("move-stall-median", median(moved.clone()) * 1e3, "ms", Target::Watched);
    add("move-stall-worst", worst(&moved) * 1e3, "ms", Target::AtMost(200.0));
    add("kill-stall-median", median(killed.clone()), "s", Target::AtMost(2.0));
    add("kill-stall-worst", worst(&killed), "s", Target::AtMost(5.0));
    add("silence-stall-worst", worst(&silent), "s", Target::AtMost(KEEP_ALIVE + 3.0));
    add("200-targets", lost.as_secs_f64(), "s", Target::AtMost(30.0));
    Ok(figures)
}

fn worst(stalls: &[f64]) -> f64 {
    stalls.iter().copied().fold(0.0, f64::max)
}

/// The stalls of so many rounds, in seconds.
#[expect(clippy::print_stdout, reason = "a benchmark shows how far it is")]
fn stalls(
    what: &str,
    rounds: u32,
    mut round: impl FnMut() -> Result<Duration>,
) -> Result<Vec<f64>> {
    let mut all = Vec::new();
    for nth in 1..=rounds {
        let stall = round().with_context(|| format!("round {nth} of {what}"))?.as_secs_f64();
        println!("{what} {nth}/{rounds}: {stall:.3} s");
        all.push(stall);
    }
    Ok(all)
}

/// A cluster with a volume that is mounted and written to.
struct Attached {
    cluster: Cluster,
    volume: String,
    writer: Committer,
}

impl Attached {
    fn start() -> Result<Attached> {
        let cluster = Cluster::of(3, Pace::Default)?;
        let volume = cluster.volume(1, "512MiB")?;
        let point = cluster.mount_point("mnt");
        let mount = point.display().to_string();
        cluster.run(&["attach", &volume, "--transport", "fuse", "--mount", &mount])?;
        let writer = Committer::start(point.join("log"))?;
        Ok(Attached { cluster, volume, writer })
    }

    /// The longest commit of those that began before I/O flows again.
    fn stall(&self, after: &str) -> Result<Duration> {
        self.writer.go_on(after, COMMITS)?;
        Ok(self.writer.take_longest())
    }

    /// All copies are in sync, and the writer is not held up.
    fn rest(&self) -> Result<()> {
        self.cluster.until_in_sync(&self.volume)?;
        self.writer.go_on("a rest", COMMITS)?;
        self.writer.take_longest();
        Ok(())
    }

    fn move_target(&mut self) -> Result<Duration> {
        self.rest()?;
        let (node, _) = self.cluster.target(&self.volume)?;
        let next = if node == "node-1" { "node-2" } else { "node-1" };
        self.cluster.run(&["volume", "republish", &self.volume, "--node", next])?;
        crate::cluster::until("the target has moved", || {
            Ok(self.cluster.target(&self.volume)?.0 == next)
        })?;
        self.stall("a move")
    }

    fn kill_target(&mut self) -> Result<Duration> {
        self.rest()?;
        let nth = self.cluster.kill_target(&self.volume)?;
        let stall = self.stall("the death of the target")?;
        self.cluster.start_engine(nth)?;
        Ok(stall)
    }

    fn silence_target(&mut self) -> Result<Duration> {
        self.rest()?;
        let (node, _) = self.cluster.target(&self.volume)?;
        let nth = node.trim_start_matches("node-").parse()?;
        self.cluster.pause_engine(nth)?;
        let stall = self.stall("the silence of the target")?;
        self.cluster.resume_engine(nth)?;
        Ok(stall)
    }

    fn end(self) -> Result<()> {
        self.writer.stop()?;
        self.cluster.run(&["detach", &self.volume])?;
        Ok(())
    }
}

/// From the death of a node until all of its targets are served elsewhere.
#[expect(clippy::print_stdout, reason = "a benchmark shows how far it is")]
fn lose_many() -> Result<Duration> {
    let mut cluster = Cluster::of(3, Pace::Default)?;
    for nth in 1..=TARGETS {
        let id = format!("00000000-0000-4000-8000-{nth:012}");
        cluster.run(&["volume", "create", "--id", &id, "--size", "16MiB", "--replicas", "3"])?;
        cluster.run(&["volume", "publish", &id, "--node", "node-1"])?;
    }
    let served = |volume: &Value| {
        let target = &volume["status"]["target"];
        target["state"]["name"] == "open" || target["state"]["name"] == "degraded"
    };
    let on = |volume: &Value| volume["status"]["target"]["node"] == "node-1";
    let volumes = cluster.json(&["volume", "list"])?;
    let volumes = volumes.as_array().context("a list of volumes")?;
    ensure!(volumes.iter().filter(|it| served(it) && on(it)).count() == TARGETS, "not all serve");
    let began = Instant::now();
    cluster.kill_engine(1)?;
    loop {
        let volumes = cluster.json(&["volume", "list"])?;
        let volumes = volumes.as_array().context("a list of volumes")?;
        let moved = volumes.iter().filter(|it| served(it) && !on(it)).count();
        if moved == TARGETS {
            println!("{TARGETS} targets moved in {:.1} s", began.elapsed().as_secs_f64());
            return Ok(began.elapsed());
        }
        ensure!(began.elapsed() < PATIENCE, "{moved} of {TARGETS} targets moved");
        std::thread::sleep(Duration::from_millis(100));
    }
}
