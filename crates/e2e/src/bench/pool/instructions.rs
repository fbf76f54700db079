//! Instructions that the pool itself needs for a block: callgrind counts a run of this program
//! with few and one with many commands; the difference is what the commands cost.
//!
//! The disk is one block of memory, so that nothing but the pool is counted.

use std::process::{Command as Process, Stdio};

use anyhow::{Context, Result, bail};
use block::{Blocks, Command};
use pool::{
    BLOCK, Buffer, Change, ClusterSize, Effect, Id, Label, Limits, Member, NewPool, NewReplica,
    Place, Pool, Probe, Recovery, Step, Token,
};

use super::{Random, real, write};
use crate::figure::{Figure, Target};

/// Tells this program to be the one that is counted: what, and how often.
const VARIABLE: &str = "HOLDFAST_POOL_COMMANDS";
const SPAN: u64 = 16 * 256;
const MANY: u64 = 20_000;

/// If this is the program to be counted, does its work.
pub(in crate::bench) fn child() -> Result<Option<Vec<Figure>>> {
    let Ok(text) = std::env::var(VARIABLE) else { return Ok(None) };
    let (what, count) = text.split_once(':').context("no count")?;
    let mut rig = Counted::new()?;
    let mut random = Random(7);
    for _ in 0..count.parse::<u64>().context("no count")? {
        let at = random.below(SPAN);
        rig.run(if what == "read" { super::read(at) } else { write(at) })?;
    }
    Ok(Some(Vec::new()))
}

pub(super) fn run() -> Vec<Figure> {
    let mut figures = Vec::new();
    for what in ["read", "overwrite"] {
        let value = match (count(what, 0), count(what, MANY)) {
            (Ok(few), Ok(many)) => real(many.saturating_sub(few)) / real(MANY),
            (Err(error), _) | (_, Err(error)) => {
                say(&format!("instructions are not counted: {error:#}"));
                f64::NAN
            }
        };
        let name = format!("pool-instructions-{what}-4k");
        figures.push(Figure { name, value, unit: "instructions", target: Target::Watched });
    }
    figures
}

/// Instructions of a whole run.
fn count(what: &str, commands: u64) -> Result<u64> {
    let me = std::env::current_exe().context("cannot tell where this program is")?;
    let output = Process::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(me)
        .arg("pool")
        .env(VARIABLE, format!("{what}:{commands}"))
        .stdout(Stdio::null())
        .output()
        .context("valgrind cannot be run; install it")?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("valgrind failed: {said}");
    }
    let line = said.lines().find_map(|line| line.split_once("Collected : "));
    line.context("valgrind counted nothing")?.1.trim().parse().context("no number")
}

/// A pool whose disk takes everything and has the same block everywhere.
struct Counted {
    pool: Box<Pool>,
    block: Vec<u8>,
}

impl Counted {
    fn new() -> Result<Counted> {
        let member = Member { id: Id(2), blocks: Blocks(1 << 18) };
        let (name, cluster) = ("count".to_owned(), ClusterSize::DEFAULT);
        let steps = pool::create(&NewPool { id: Id(1), name, cluster, disks: vec![member] })?;
        let mut blocks = std::collections::BTreeMap::new();
        for step in steps {
            if let Step::Write { place, bytes } = step {
                for (at, block) in (place.block..).zip(bytes.chunks(BLOCK)) {
                    blocks.insert(at, block.to_vec());
                }
            }
        }
        let read = |place: Place, count: u32| -> Vec<u8> {
            let blank = vec![0; BLOCK];
            (place.block..place.block + u64::from(count))
                .flat_map(|at| blocks.get(&at).unwrap_or(&blank).clone())
                .collect()
        };
        let supers = [0, 256].map(|block| read(Place { disk: pool::Disk(0), block }, 1));
        let probe = Probe { blocks: member.blocks, supers: [&supers[0], &supers[1]] };
        let (superblock, _) = pool::assemble(&[probe])?;
        let mut recovery = Recovery::new(superblock, Limits::default())?;
        let pool = loop {
            match recovery.poll() {
                Some(Effect::Read { io, place, blocks, .. }) => {
                    recovery.complete(io, Ok(&read(place, blocks)));
                }
                Some(Effect::Flush { io, .. }) => recovery.complete(io, Ok(&[])),
                Some(_) => {}
                None => break recovery.take().context("recovery is stuck")??,
            }
        };
        let mut rig = Counted { pool, block: vec![0x5A; BLOCK] };
        let (origin, label, key) = (Id::NONE, Label::default(), Vec::new());
        let size = Blocks(SPAN);
        let new = NewReplica { id: Id(9), origin, size, thick: false, created: 0, label, key };
        rig.pool.change(Token(0), Change::Create(new));
        rig.settle()?;
        for at in 0..SPAN {
            rig.run(write(at))?;
        }
        rig.run(Command::Flush)?;
        for at in 0..SPAN {
            rig.run(write(at))?;
        }
        Ok(rig)
    }

    fn run(&mut self, command: Command) -> Result<()> {
        let bytes = if command.is_mutation() { &self.block[..] } else { &[] };
        self.pool.submit(Token(1), Id(9), command, bytes);
        self.settle()
    }

    fn settle(&mut self) -> Result<()> {
        while let Some(effect) = self.pool.poll() {
            match effect {
                Effect::Read { io, into: Buffer::Caller { .. }, .. } => {
                    self.pool.complete(io, Ok(&self.block));
                }
                Effect::Read { .. } => bail!("the sums are not in memory"),
                Effect::Write { io, .. } | Effect::Flush { io, .. } => {
                    self.pool.complete(io, Ok(&[]));
                }
                Effect::Done { result, .. } => result?,
                Effect::Changed { result, .. } => result?,
                Effect::Zero { .. } | Effect::Doubted { .. } => {}
            }
        }
        Ok(())
    }
}

#[expect(clippy::print_stdout, reason = "printing is what a benchmark is for")]
fn say(text: &str) {
    println!("{text}");
}
