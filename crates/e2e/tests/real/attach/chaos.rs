//! Everything that may die or stop does so, again and again, under several writers.
//!
//! The order of things follows from a seed, which is printed; their moments do not. What each
//! writer has committed is there at the end, and all copies of every volume are equal.

use std::env;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use e2e::cluster::{Cluster, Pace, is_able};
use e2e::committer::{Committer, check};
use e2e::process::Program;

const NODES: usize = 5;
const VOLUMES: u32 = 3;
/// How long there is trouble, in seconds, unless `HOLDFAST_SECONDS` says otherwise.
const SECONDS: u64 = 40;
/// Unless `HOLDFAST_FIRST_SEED` says otherwise.
const SEED: u64 = 613;
/// Nodes in trouble at once: of three copies, one is left.
const AT_ONCE: usize = 2;

/// What happens to a part of the cluster, or of its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Disruption {
    /// `kill -9` of the engine of a node.
    Killed(usize),
    /// The engine of a node stands still.
    Paused(usize),
    NoControl,
    NoStore,
    NoAgent,
    /// `kill -9` of the worker of a volume, which is replaced by its supervisor.
    NoWorker(usize),
}

impl Disruption {
    fn node(self) -> Option<usize> {
        match self {
            Disruption::Killed(node) | Disruption::Paused(node) => Some(node),
            _ => None,
        }
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % end
    }

    fn index(&mut self, end: usize) -> usize {
        let end = u64::try_from(end).unwrap_or(1);
        usize::try_from(self.below(end)).unwrap_or_default()
    }

    fn disruption(&mut self) -> Disruption {
        match self.below(10) {
            0..=2 => Disruption::Killed(1 + self.index(NODES)),
            3..=5 => Disruption::Paused(1 + self.index(NODES)),
            6 => Disruption::NoControl,
            7 => Disruption::NoStore,
            8 => Disruption::NoAgent,
            _ => Disruption::NoWorker(self.index(3)),
        }
    }
}

/// The cluster, and what is the matter with it.
struct Chaos {
    cluster: Cluster,
    volumes: Vec<String>,
    agent: Option<Program>,
    /// Until when.
    disruptions: Vec<(Instant, Disruption)>,
    began: Instant,
}

impl Chaos {
    /// Whether this can happen now, as well.
    fn allows(&self, next: Disruption) -> bool {
        let nodes = self.disruptions.iter().filter_map(|(_, it)| it.node());
        match next.node() {
            Some(node) => nodes.clone().count() < AT_ONCE && nodes.clone().all(|it| it != node),
            None => self.disruptions.iter().all(|(_, it)| *it != next),
        }
    }

    fn begin(&mut self, disruption: Disruption, lasts: Duration) -> Result<()> {
        println!("{:6.2} s: {disruption:?} for {lasts:?}", self.began.elapsed().as_secs_f32());
        match disruption {
            Disruption::Killed(node) => self.cluster.kill_engine(node)?,
            Disruption::Paused(node) => self.cluster.pause_engine(node)?,
            Disruption::NoControl => self.cluster.kill_control()?,
            Disruption::NoStore => self.cluster.store().program().kill()?,
            Disruption::NoAgent => self.agent.as_mut().context("an agent")?.kill()?,
            Disruption::NoWorker(nth) => {
                let volume = self.volumes.get(nth).context("no such volume")?;
                return self.cluster.kill_worker_of(volume);
            }
        }
        self.disruptions.push((Instant::now() + lasts, disruption));
        Ok(())
    }

    fn end(&mut self, disruption: Disruption) -> Result<()> {
        println!("{:6.2} s: no longer {disruption:?}", self.began.elapsed().as_secs_f32());
        match disruption {
            Disruption::Killed(node) => self.cluster.start_engine(node)?,
            Disruption::Paused(node) => self.cluster.resume_engine(node)?,
            Disruption::NoControl => self.cluster.start_control()?,
            Disruption::NoStore => self.cluster.store().restart()?,
            Disruption::NoAgent => self.agent = Some(self.cluster.agent()?),
            Disruption::NoWorker(_) => {}
        }
        Ok(())
    }

    /// Ends what has lasted long enough; all of it if `all`.
    fn heal(&mut self, all: bool) -> Result<()> {
        let now = Instant::now();
        // The store first: who starts needs it.
        self.disruptions.sort_by_key(|(_, it)| *it != Disruption::NoStore);
        for (until, disruption) in std::mem::take(&mut self.disruptions) {
            let has_store = self.disruptions.iter().all(|(_, it)| *it != Disruption::NoStore);
            let may_start =
                has_store || matches!(disruption, Disruption::Paused(_) | Disruption::NoStore);
            if all || (until <= now && may_start) {
                self.end(disruption).with_context(|| format!("after {disruption:?}"))?;
            } else {
                self.disruptions.push((until, disruption));
            }
        }
        Ok(())
    }

    fn rage(&mut self, random: &mut Random, lasts: Duration) -> Result<()> {
        let end = Instant::now() + lasts;
        while Instant::now() < end {
            self.heal(false)?;
            let (next, lasts) = (random.disruption(), 500 + random.below(6000));
            if self.allows(next) {
                self.begin(next, Duration::from_millis(lasts))?;
            }
            // This is how often something happens; nothing is waited for.
            std::thread::sleep(Duration::from_millis(100 + random.below(1500)));
        }
        self.heal(true)
    }
}

fn number(variable: &str, otherwise: u64) -> Result<u64> {
    match env::var(variable) {
        Ok(text) => text.parse().with_context(|| format!("{variable} is {text:?}")),
        Err(_) => Ok(otherwise),
    }
}

#[test]
fn whatever_dies_or_stops_nothing_committed_is_lost_and_copies_agree() -> Result<()> {
    if !is_able() {
        return Ok(());
    }
    let seed = number("HOLDFAST_FIRST_SEED", SEED)?;
    let lasts = Duration::from_secs(number("HOLDFAST_SECONDS", SECONDS)?);
    println!("HOLDFAST_FIRST_SEED={seed} HOLDFAST_SECONDS={}", lasts.as_secs());
    let cluster = Cluster::of(NODES, Pace::Quick)?;
    let agent = Some(cluster.agent()?);
    let volumes = (1..=VOLUMES).map(|nth| cluster.volume(nth, "64MiB"));
    let volumes: Vec<String> = volumes.collect::<Result<_>>()?;
    let began = Instant::now();
    let mut chaos = Chaos { cluster, volumes, agent, disruptions: Vec::new(), began };
    let mut writers = Vec::new();
    for volume in &chaos.volumes {
        let point = chaos.cluster.mount_point(volume);
        let mount = point.display().to_string();
        chaos.cluster.run(&["attach", volume, "--transport", "fuse", "--mount", &mount])?;
        writers.push((volume.clone(), point.join("log"), Committer::start(point.join("log"))?));
    }
    let raged = chaos.rage(&mut Random(seed), lasts);
    raged.with_context(|| format!("seed {seed}"))?;

    let mut logs = Vec::new();
    for (volume, log, writer) in writers {
        writer.go_on("the trouble", 20).with_context(|| format!("seed {seed}, {volume}"))?;
        let (acknowledged, longest) = writer.stop()?;
        println!("{volume}: {acknowledged} commits, the longest took {longest:?}");
        ensure!(acknowledged > 20, "nothing was committed in the trouble");
        logs.push((volume, log, acknowledged));
    }
    let cluster = &chaos.cluster;
    for (volume, log, acknowledged) in logs {
        cluster.until_in_sync(&volume).with_context(|| format!("seed {seed}, {volume}"))?;
        cluster.run(&["volume", "check", &volume, "--compare"])?;
        cluster.run(&["detach", &volume])?;
        // Not out of any cache of this machine.
        let mount = log.parent().context("a mount point")?.display().to_string();
        cluster.run(&["attach", &volume, "--mount", &mount, "--read-only"])?;
        check(&log, acknowledged).with_context(|| format!("seed {seed}, {volume}"))?;
        cluster.run(&["detach", &volume])?;
    }
    drop(chaos.agent.take());
    chaos.cluster.check_nothing_left()
}
