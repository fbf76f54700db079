//! Instructions that the pool itself needs for a block: callgrind counts a run of this program
//! with few and one with many commands; the difference is what the commands cost.
//!
//! The data goes nowhere, so that nothing but the pool is counted.

use std::process::{Command as Process, Stdio};

use anyhow::{Context, Result, bail};
use block::{Blocks, Command};

use super::plain::Plain;
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
    let file = tempfile::NamedTempFile::new().context("cannot make a file")?;
    let mut plain = Plain::new(file.path(), 1 << 30, Blocks(SPAN))?;
    // Twice: the second time every region is marked.
    for at in (0..SPAN).chain(0..SPAN) {
        plain.run(write(at))?;
        if at + 1 == SPAN {
            plain.run(Command::Flush)?;
        }
    }
    let mut random = Random(7);
    for _ in 0..count.parse::<u64>().context("no count")? {
        let at = random.below(SPAN);
        plain.run(if what == "read" { super::read(at) } else { write(at) })?;
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

#[expect(clippy::print_stdout, reason = "printing is what a benchmark is for")]
fn say(text: &str) {
    println!("{text}");
}
