//! What it costs to use a volume as a block device of this machine, by FUSE and a loop device.
//!
//! The same load takes turns on the device, by fio, and on the target itself, by `holdfast bench`:
//! each ratio is the median of its rounds. Then nothing is read or written for a while, and the
//! processor time of the agent and of the worker is counted.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::Pid;
use serde_json::Value;

use super::{Options, median};
use crate::cluster::{Cluster, Pace, is_able};
use crate::figure::{Figure, Target};

/// Commands at work at once.
const DEPTH: &str = "32";
/// How long nothing happens while processor time is counted.
const IDLE: Duration = Duration::from_secs(5);

pub(super) fn run(options: Options) -> Result<Vec<Figure>> {
    ensure!(is_able(), "volumes cannot be attached: run it as root, where /dev/fuse is");
    let (rounds, seconds) = if options.quick { (3, 2) } else { (9, 4) };
    let cluster = Cluster::of(3, Pace::Default)?;
    let agent = cluster.agent()?;
    let volume = cluster.volume(1, "512MiB")?;
    cluster.run(&["attach", &volume, "--transport", "fuse"])?;
    let device = cluster.attached(&volume)?;
    let device = device["device"].as_str().context("a device")?.to_owned();
    fio(&device, ("write", "1M"), 0)?;
    let mut figures = Vec::new();
    let mut add = |name: &str, value: f64, unit: &'static str, target: Target| {
        figures.push(Figure { name: format!("attach-{name}"), value, unit, target });
    };
    for pattern in ["randread", "randwrite"] {
        let (mut ratios, mut rates) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            let ours = fio(&device, (pattern, "4k"), seconds)?;
            let direct = target(&cluster, &volume, (pattern, seconds))?;
            show(pattern, ours, direct);
            ratios.push(ours / direct);
            rates.push(ours);
        }
        add(&format!("{pattern}-4096-qd32"), median(rates), "/s", Target::Watched);
        let name = format!("{pattern}-4096-qd32-of-target");
        add(&name, median(ratios) * 100.0, "%", Target::AtLeast(50.0));
    }
    let worker = cluster.worker_of(&volume)?;
    let processes = [agent.pid(), worker];
    let before: u64 = processes.map(ticks).into_iter().sum::<Result<u64>>()?;
    std::thread::sleep(IDLE);
    let after: u64 = processes.map(ticks).into_iter().sum::<Result<u64>>()?;
    add("idle-ticks", super::real(after - before), "ticks", Target::AtMost(0.0));
    add("worker-memory", memory(worker)?, "MiB", Target::AtMost(128.0));
    cluster.run(&["detach", &volume])?;
    Ok(figures)
}

#[expect(clippy::print_stdout, reason = "a benchmark shows how far it is")]
fn show(pattern: &str, ours: f64, direct: f64) {
    println!("{pattern}: {ours:.0}/s on the device, {direct:.0}/s on the target");
}

/// Commands a second of fio on the device, for so many seconds; once over all of it if none.
fn fio(device: &str, (pattern, size): (&str, &str), seconds: u32) -> Result<f64> {
    let mut command = Command::new("fio");
    command.args(["--name=load", "--direct=1", "--ioengine=libaio", "--output-format=json"]);
    command.arg(format!("--iodepth={DEPTH}")).arg(format!("--filename={device}"));
    command.arg(format!("--rw={pattern}")).arg(format!("--bs={size}"));
    if seconds > 0 {
        command.args(["--time_based", &format!("--runtime={seconds}")]);
    }
    let output = command.output().context("cannot run fio")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "fio on {device}: {said}");
    let report: Value = serde_json::from_slice(&output.stdout).context("what fio reports")?;
    let side = if pattern.ends_with("read") { "read" } else { "write" };
    report["jobs"][0][side]["iops"].as_f64().context("fio reports no IOPS")
}

/// Commands a second of the target itself.
fn target(cluster: &Cluster, volume: &str, (pattern, seconds): (&str, u32)) -> Result<f64> {
    let time = format!("{seconds}s");
    let words = ["bench", volume, "--rw", pattern, "--qd", DEPTH, "--time", &time];
    cluster.json(&words)?["iops"].as_f64().context("the benchmark reports no IOPS")
}

/// Processor time of a process so far.
fn ticks(process: Pid) -> Result<u64> {
    let path = format!("/proc/{}/stat", process.as_raw_nonzero());
    let stat = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let (_, fields) = stat.rsplit_once(')').context("a name in parentheses")?;
    // The 14th and 15th of all; the first after the name is the third.
    let times = fields.split_whitespace().skip(11).take(2);
    times.map(|it| it.parse::<u64>().context("a number of ticks")).sum()
}

/// Memory of a process, in MiB.
fn memory(process: Pid) -> Result<f64> {
    let path = format!("/proc/{}/status", process.as_raw_nonzero());
    let status = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|it| it.split_whitespace().next()).context("a resident set")?;
    Ok(kib.parse::<f64>()? / 1024.0)
}
