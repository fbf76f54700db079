//! What a large cluster costs the control plane, with simulated nodes and a store in memory; and
//! what it costs a whole process of it over a store on disk ([`real`]).
//!
//! The first measures the control plane alone: reading what is stored, deciding, and writing it
//! down as JSON. Engines have benchmarks of their own.

mod real;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use control::controller::Request;
use control::testing::{Cluster, Loss, Sim, fill, fill_published, volume_id};
use model::{EventName, Size, Timestamp, VolumeSpec};

use super::Options;
use crate::figure::{Figure, Target};

const NODES: usize = 1000;
const CROWD: usize = 300;
const CREATES: usize = 200;

/// What was measured with one number of volumes.
struct Measured {
    restart: f64,
    page: f64,
    idle: f64,
    plan: f64,
    creates: f64,
    /// Of each volume, from the request to the answer.
    each: Vec<f64>,
}

pub(super) fn run(_: Options) -> Result<Vec<Figure>> {
    let small = measure(1_000)?;
    let large = measure(10_000)?;
    let mut figures = Vec::new();
    let mut add = |name: &str, value: f64, unit: &'static str, target: Target| {
        figures.push(Figure { name: format!("control-{name}"), value, unit, target });
    };
    for (count, of) in [("1k", &small), ("10k", &large)] {
        add(&format!("restart-{count}"), of.restart, "s", Target::AtMost(5.0));
        add(&format!("page-1000-{count}"), of.page * 1e3, "ms", Target::AtMost(50.0));
        add(&format!("idle-{count}"), of.idle * 100.0, "%", Target::AtMost(2.0));
        add(&format!("node-lost-plan-{count}"), of.plan, "s", Target::AtMost(1.0));
        add(&format!("creates-{count}"), of.creates, "/s", Target::AtLeast(100.0));
        for (name, hundredths) in [("median", 50), ("p99", 99), ("slowest", 100)] {
            let value = rank(&of.each, hundredths) * 1e3;
            add(&format!("creates-{name}-{count}"), value, "ms", Target::AtMost(5000.0));
        }
    }
    for (count, volumes) in [("1k", 1_000), ("10k", 10_000)] {
        let of = real::measure((NODES, CROWD), volumes)?;
        add(&format!("process-restart-{count}"), of.restart, "s", Target::AtMost(5.0));
        let (median, slowest) = (rank(&of.pages, 50) * 1e3, rank(&of.pages, 100) * 1e3);
        add(&format!("http-page-1000-{count}"), median, "ms", Target::AtMost(50.0));
        add(&format!("http-page-1000-slowest-{count}"), slowest, "ms", Target::Watched);
    }
    let lost = lose_targets(10_000)?;
    add("targets-lost-longest-turn-10k", lost.longest_turn * 1e3, "ms", Target::AtMost(100.0));
    add("targets-lost-plan-10k", lost.plan * 1e3, "ms", Target::AtMost(1000.0));
    add("targets-lost-moved-10k", lost.moved, "s", Target::AtMost(30.0));
    let growth = (large.restart / small.restart).max(large.plan / small.plan);
    add("growth-10x", growth, "x", Target::AtMost(10.0));
    Ok(figures)
}

fn measure(volumes: usize) -> Result<Measured> {
    let mut cluster = Cluster::new(NODES);
    let now = Timestamp::from_millis(1_000_000_000);
    fill(&mut cluster, (volumes, CROWD), now);
    let began = Instant::now();
    let mut sim = Sim::over(cluster, now);
    // Serving: everything is read, every node was heard and listed, and one plan was made.
    sim.run();
    let restart = began.elapsed().as_secs_f64();
    let began = Instant::now();
    let text = sim.page_of_volumes(1000);
    let page = began.elapsed().as_secs_f64();
    ensure!(text.len() > 100_000, "a page of {volumes} volumes has {} bytes", text.len());
    sim.pass(Duration::from_secs(10));
    let began = Instant::now();
    sim.pass(Duration::from_mins(1));
    let idle = began.elapsed().as_secs_f64() / 60.0;
    let (creates, each) = create_many(&mut sim, volumes)?;
    let plan = lose_a_node(&mut sim);
    Ok(Measured { restart, page, idle, plan, creates, each })
}

fn create_many(sim: &mut Sim, volumes: usize) -> Result<(f64, Vec<f64>)> {
    let began = Instant::now();
    let spec = Box::new(VolumeSpec::new(Size::gib(1), 3));
    let asked = |at| Request::CreateVolume(volume_id(volumes + at), spec.clone());
    let tickets: Vec<_> = (0..CREATES).map(|at| sim.ask(asked(at))).collect();
    sim.run();
    let all = began.elapsed().as_secs_f64();
    let mut each = Vec::new();
    for ticket in &tickets {
        let answer = sim.answers.get(ticket);
        ensure!(answer.is_some_and(Result::is_ok), "a volume was not made: {answer:?}");
        let answered = sim.answered.get(ticket).context("nobody saw the answer")?;
        each.push(answered.duration_since(began).as_secs_f64());
    }
    let count = u32::try_from(CREATES)?;
    Ok((f64::from(count) / all, each))
}

/// What the loss of a node with 300 targets costs.
struct TargetsLost {
    /// The longest that the control plane took no input: heartbeats and requests are taken in after
    /// it at the latest. Plans are made beside it.
    longest_turn: f64,
    /// A plan, on average.
    plan: f64,
    /// From the loss until all are served elsewhere, as the cluster's clock shows it.
    moved: f64,
}

/// How many nodes share the published volumes.
const SHARING: usize = 30;
/// How many targets are on the node that is lost.
const TARGETS: usize = 300;

fn lose_targets(volumes: usize) -> Result<TargetsLost> {
    let mut cluster = Cluster::new(SHARING);
    cluster.is_large = true;
    let now = Timestamp::from_millis(1_000_000_000);
    fill_published(&mut cluster, (volumes, TARGETS), now);
    let mut sim = Sim::over(cluster, now);
    sim.pass(Duration::from_secs(30));
    sim.longest_turn = Duration::ZERO;
    let (plans, took) = (sim.controller.work().plans(), sim.controller.work().plan_time());
    sim.cluster.lose(&"n1".parse()?, Loss::Stopped);
    let lost = sim.now;
    let moved = |sim: &Sim| {
        let ended = sim.told.iter().filter(|it| it.name == EventName::FailoverEnded);
        ended.count() >= TARGETS
    };
    while !moved(&sim) {
        ensure!(sim.now.since(lost) < Duration::from_mins(5), "not all targets have moved");
        sim.pass(Duration::from_millis(500));
    }
    let plans = u32::try_from(sim.controller.work().plans() - plans)?.max(1);
    let took = sim.controller.work().plan_time().saturating_sub(took);
    Ok(TargetsLost {
        longest_turn: sim.longest_turn.as_secs_f64(),
        plan: took.as_secs_f64() / f64::from(plans),
        moved: sim.now.since(lost).as_secs_f64(),
    })
}

/// The value that so many hundredths of all do not exceed.
fn rank(values: &[f64], hundredths: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = (sorted.len() * hundredths).div_ceil(100).saturating_sub(1);
    sorted.get(at).copied().unwrap_or_default()
}

/// A node with many copies is lost: how long the round takes in which all of that is planned.
fn lose_a_node(sim: &mut Sim) -> f64 {
    sim.cluster.engine("n1").stop();
    sim.pass(Duration::from_secs(80));
    let began = Instant::now();
    sim.now = sim.now.after(Duration::from_secs(1));
    sim.controller.plan_now(sim.now);
    began.elapsed().as_secs_f64()
}
