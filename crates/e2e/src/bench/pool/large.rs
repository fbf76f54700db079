//! A pool of ten tebibytes with a million clusters: how long it takes to make, and to open after a
//! crash, when all is in the journal and when all is in a checkpoint; and the memory for its maps.

use std::path::Path;
use std::process::Command as Process;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use block::{Blocks, Command, Lba, Span};

use super::plain::Plain;
use super::rig::Rig;
use super::{real, write};
use crate::figure::{Figure, Target};

const POOL_BYTES: u64 = 10 << 40;
/// Clusters with one block each.
const PARTS: u64 = 1_000_000;
/// Clusters with every block.
const WHOLE: u64 = 30_000;
/// Writes under way at once: they share groups, so that the journal has room for all.
const AT_ONCE: u64 = 256;
/// Blocks of a cluster of 1 MiB.
const CLUSTER: u64 = 256;
/// Tells this program to open the pool on this file, and to say what memory that took.
const VARIABLE: &str = "HOLDFAST_POOL_MEMORY";

pub(super) fn run(folder: &Path) -> Result<Vec<Figure>> {
    let path = folder.join("large");
    let file = std::fs::File::create(&path).context("cannot make a file")?;
    file.set_len(POOL_BYTES).context("the file system has no files of 10 TiB")?;
    let mut rig = Rig::new()?;
    let begun = Instant::now();
    rig.create(&path)?;
    let created = begun.elapsed();
    drop(rig);
    let blank = |bytes: u64| Plain::new(&path, bytes, Blocks(bytes / 4096));
    let mut plain = blank(POOL_BYTES)?;
    for first in (0..PARTS).step_by(usize::try_from(AT_ONCE)?) {
        let some = first..PARTS.min(first + AT_ONCE);
        plain.run_all(some.map(|nth| write(nth * CLUSTER)))?;
    }
    plain.run(Command::Flush)?;
    plain.sync()?;
    // A crash: nothing is written down.
    let journal = import(&path)?;
    plain.checkpoint()?;
    plain.sync()?;
    let checkpoint = import(&path)?;
    let parts = memory(&path, PARTS)?;
    // Just large enough: what a pool needs for its size is not for its maps.
    plain = blank((WHOLE << 20) + (8 << 30))?;
    for nth in 0..WHOLE {
        let span = Span::new(Lba(nth * CLUSTER), Blocks(CLUSTER)).context("no span")?;
        plain.run(Command::Write { span, fua: false })?;
    }
    plain.checkpoint()?;
    plain.sync()?;
    let whole = memory(&path, WHOLE)?;
    let figure =
        |name: &str, value, unit, target| Figure { name: name.to_owned(), value, unit, target };
    let soon = Target::AtMost(2.0);
    Ok(vec![
        figure("pool-create-10tib", created.as_secs_f64() * 1e3, "ms", Target::AtMost(100.0)),
        figure("pool-import-from-journal", journal.as_secs_f64(), "s", soon),
        figure("pool-import-from-checkpoint", checkpoint.as_secs_f64(), "s", soon),
        figure("pool-memory-per-tib-whole", whole, "MiB", Target::Watched),
        figure("pool-memory-per-tib-partly", parts, "MiB", Target::Watched),
    ])
}

/// Opens the pool and leaves it as it is; says how long it took.
fn import(path: &Path) -> Result<Duration> {
    let mut rig = Rig::new()?;
    let begun = Instant::now();
    rig.import(path)?;
    Ok(begun.elapsed())
}

/// Memory for the maps in MiB for a tebibyte of clusters, as a process of its own sees it.
fn memory(path: &Path, clusters: u64) -> Result<f64> {
    let me = std::env::current_exe().context("cannot tell where this program is")?;
    let output = Process::new(me).arg("pool").env(VARIABLE, path).output();
    let output = output.context("cannot run this program")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8_lossy(&output.stdout);
    let kibibytes = said.lines().find_map(|line| line.strip_prefix("figure pool-memory "));
    let kibibytes = kibibytes.and_then(|text| text.split(' ').next()).context("no figure")?;
    let tebibytes = real(clusters * CLUSTER * 4096) / real(1 << 40);
    Ok(kibibytes.parse::<f64>().context("no number")? / 1024.0 / tebibytes)
}

/// If this is the program that is to open a pool, does that.
pub(super) fn child() -> Result<Option<Vec<Figure>>> {
    let Some(path) = std::env::var_os(VARIABLE) else { return Ok(None) };
    // What every pool needs is not counted: another one was open before.
    let small = tempfile::NamedTempFile::new().context("cannot make a file")?;
    small.as_file().set_len(64 << 20).context("cannot make a file")?;
    let mut first = Rig::new()?;
    first.create(small.path())?;
    first.leave()?;
    let without = resident()?;
    first.import(Path::new(&path))?;
    let value = real(resident()?.saturating_sub(without));
    let (name, unit) = ("pool-memory".to_owned(), "KiB");
    Ok(Some(vec![Figure { name, value, unit, target: Target::Watched }]))
}

/// Memory of this process in KiB.
fn resident() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status").context("no /proc")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let text = line.context("no VmRSS")?.trim().trim_end_matches(" kB");
    text.parse().context("VmRSS is no number")
}
