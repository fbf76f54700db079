//! The pool measured against bare files on the same disk, through the same reactor, in turns.
//!
//! Both files are fully written before, so that neither measures the file system's allocation.
//! Rounds alternate, so that a slow moment of the machine hits both; each ratio is the median of
//! its rounds.

mod instructions;
mod large;
mod plain;
pub(super) mod rig;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use block::{Blocks, Command, Lba, Span};
use engine::device::DeviceId;
use pool::{Change, Id, Label, NewSnapshot};

use super::{Options, median, real};
use crate::figure::{Figure, Target};
use rig::{Rig, Until};

const DEPTH: u64 = 32;
/// Blocks of the replica and of the bare file.
const BLOCKS: u64 = (512 << 20) / 4096;
/// Bytes of the pool's file: room for the replica, new ones, and snapshots.
const POOL_BYTES: u64 = 2 << 30;

pub(super) use instructions::child;

/// Runs it.
pub(super) fn run(options: Options) -> Result<Vec<Figure>> {
    if let Some(figures) = child()? {
        return Ok(figures);
    }
    if let Some(figures) = large::child()? {
        return Ok(figures);
    }
    // Beside the program: folders for passing files are in memory on some machines.
    let me = std::env::current_exe().context("cannot tell where this program is")?;
    let beside = me.parent().context("this program is in no folder")?;
    let folder = tempfile::tempdir_in(beside).context("cannot make a folder")?;
    let mut figures = compare(folder.path(), options)?;
    figures.extend(large::run(folder.path())?);
    figures.extend(instructions::run());
    Ok(figures)
}

/// Numbers without order, the same in every run.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

pub(super) fn write(at: u64) -> Command {
    Command::Write { span: one(at), fua: false }
}

pub(super) fn read(at: u64) -> Command {
    Command::Read { span: one(at) }
}

fn one(at: u64) -> Span {
    Span::new(Lba(at), Blocks(1)).unwrap_or_else(|| unreachable!("one block"))
}

fn filled(path: PathBuf, bytes: u64) -> Result<PathBuf> {
    use std::io::Write as _;
    let mut file = std::fs::File::create(&path).context("cannot make a file")?;
    let piece = vec![0xA5; 1 << 20];
    for _ in 0..bytes >> 20 {
        file.write_all(&piece).context("cannot fill a file")?;
    }
    file.sync_all().context("cannot flush a file")?;
    Ok(path)
}

/// Pairs of ours and theirs, in rounds.
#[derive(Default)]
struct Ratios(Vec<f64>);

impl Ratios {
    fn add(&mut self, ours: f64, theirs: f64) {
        self.0.push(ours / theirs);
    }

    fn median(self) -> f64 {
        median(self.0)
    }
}

struct Bench {
    rig: Rig,
    raw: DeviceId,
    replica: DeviceId,
    random: Random,
    time: Duration,
    rounds: u128,
}

fn compare(folder: &Path, options: Options) -> Result<Vec<Figure>> {
    // Many short rounds: a disk that others use as well wanders from one moment to the next.
    let (rounds, time) = if options.quick { (13, 100) } else { (41, 500) };
    let mut rig = Rig::new()?;
    let raw = rig.file(&filled(folder.join("raw"), BLOCKS * 4096)?)?;
    rig.create(&filled(folder.join("pool"), POOL_BYTES)?)?;
    let replica = rig.replica(Id(100), Blocks(BLOCKS))?;
    let mut at = 0..BLOCKS;
    rig.load(replica, DEPTH, Until::Count(BLOCKS), || write(at.next().unwrap_or(0)))?;
    rig.one_by_one(replica, &[Command::Flush])?;
    let time = Duration::from_millis(time);
    let mut bench = Bench { rig, raw, replica, random: Random(0x5EED), time, rounds };
    let mut figures = vec![
        bench.random_reads()?,
        bench.overwrites()?,
        bench.first_writes()?,
        bench.after_snapshots()?,
    ];
    figures.extend(bench.flushes()?);
    Ok(figures)
}

impl Bench {
    fn measure(&mut self, device: DeviceId, command: fn(u64) -> Command) -> Result<f64> {
        let (random, time) = (&mut self.random, self.time);
        let next = || command(random.below(BLOCKS));
        Ok(self.rig.load(device, DEPTH, Until::Time(time), next)?.iops())
    }

    fn random_reads(&mut self) -> Result<Figure> {
        let mut ratios = Ratios::default();
        for _ in 0..self.rounds {
            let theirs = self.measure(self.raw, read)?;
            ratios
                .add(say("pool read", self.measure(self.replica, read)?), say("raw read", theirs));
        }
        Ok(figure("pool-random-read-4k", ratios.median(), Target::AtLeast(0.9)))
    }

    fn overwrites(&mut self) -> Result<Figure> {
        let mut ratios = Ratios::default();
        // The first overwrite of a region marks it: that is not what is measured here.
        self.measure(self.replica, write)?;
        for _ in 0..self.rounds {
            let theirs = self.measure(self.raw, write)?;
            let ours = self.measure(self.replica, write)?;
            ratios.add(say("pool overwrite", ours), say("raw write", theirs));
        }
        Ok(figure("pool-overwrite-4k", ratios.median(), Target::AtLeast(0.85)))
    }

    /// Writes to a new replica, each to a block that was not written before.
    fn first_writes(&mut self) -> Result<Figure> {
        let mut ratios = Ratios::default();
        for round in 0..self.rounds {
            let theirs = self.measure(self.raw, write)?;
            let id = Id(1000 + round);
            let device = self.rig.replica(id, Blocks(BLOCKS))?;
            let count = BLOCKS / 32;
            // An odd step goes round all blocks without meeting one twice.
            let mut at = 0;
            let next = || {
                at = (at + 40_503) % BLOCKS;
                write(at)
            };
            let ours = self.rig.load(device, DEPTH, Until::Count(count), next)?.iops();
            ratios.add(say("pool first write", ours), say("raw write", theirs));
            self.rig.change(Change::Delete(id))?;
            self.rig.one_by_one(self.replica, &[Command::Flush])?;
        }
        Ok(figure("pool-first-write-4k", ratios.median(), Target::AtLeast(0.6)))
    }

    /// On a replica of its own. Each round ends when what the snapshot left is merged.
    fn after_snapshots(&mut self) -> Result<Figure> {
        let mut ratios = Ratios::default();
        let blocks = BLOCKS / 2;
        let (of, time) = (Id(101), self.time);
        let device = self.rig.replica(of, Blocks(blocks))?;
        let mut at = 0..blocks;
        let fill = || write(at.next().unwrap_or(0));
        self.rig.load(device, DEPTH, Until::Count(blocks), fill)?;
        self.rig.one_by_one(device, &[Command::Flush])?;
        for round in 0..self.rounds {
            // The first writes mark the regions; then it is steady.
            let mut seen = [0.0; 3];
            for (nth, iops) in seen.iter_mut().enumerate() {
                if nth == 2 {
                    let (id, label) = (Id(2000 + round), Label::default());
                    let snapshot = NewSnapshot { id, created: 0, label };
                    self.rig.change(Change::Snapshot { of, snapshot })?;
                }
                let random = &mut self.random;
                let next = || write(random.below(blocks));
                *iops = self.rig.load(device, DEPTH, Until::Time(time), next)?.iops();
            }
            let [_, before, after] = seen;
            ratios.add(say("after a snapshot", after), say("before", before));
            self.rig.change(Change::Delete(Id(2000 + round)))?;
            self.rig.wait_for_space((BLOCKS + blocks) / 256)?;
        }
        Ok(figure("pool-after-snapshot-4k", ratios.median(), Target::AtLeast(0.8)))
    }

    fn flushes(&mut self) -> Result<[Figure; 2]> {
        let mut first = Ratios::default();
        let mut over = Ratios::default();
        let pairs = 64;
        let device = self.rig.replica(Id(3000), Blocks(BLOCKS))?;
        for round in 0..self.rounds {
            let start = u64::try_from(round).unwrap_or(0) * pairs;
            let commands = |from: u64| -> Vec<Command> {
                (from..from + pairs).flat_map(|at| [write(at), Command::Flush]).collect()
            };
            let micros = |time: Duration| time.as_secs_f64() * 1e6 / real(pairs);
            let raw = micros(self.rig.one_by_one(self.raw, &commands(start))?);
            let new = micros(self.rig.one_by_one(device, &commands(start))?);
            let old = micros(self.rig.one_by_one(self.replica, &commands(start))?);
            first.add(say("pool first write + flush, us", new), say("raw, us", raw));
            over.add(say("pool overwrite + flush, us", old), raw);
        }
        Ok([
            figure("pool-flush-first-write", first.median(), Target::AtMost(2.5)),
            figure("pool-flush-overwrite", over.median(), Target::AtMost(2.5)),
        ])
    }
}

#[expect(clippy::print_stdout, reason = "printing is what a benchmark is for")]
fn say(what: &str, value: f64) -> f64 {
    println!("{what:32} {value:12.0}");
    value
}

fn figure(name: &str, value: f64, target: Target) -> Figure {
    Figure { name: name.to_owned(), value, unit: "x", target }
}
