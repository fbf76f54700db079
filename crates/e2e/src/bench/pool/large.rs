//! A pool of ten tebibytes with a million clusters: how long it takes to make, and to open after a
//! crash, when all is in the journal and when all is in a checkpoint; and the memory it takes, when
//! it has just been opened and when all of it was looked at.

use std::path::Path;
use std::process::Command as Process;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use block::{Blocks, Bytes, Command, Lba, Span};

use super::plain::{Plain, REPLICA};
use super::rig::{Rig, Until};
use super::{DEPTH, read, real, write};
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
/// What the pool may keep in memory, and what it takes then at most: beside the cache there are its
/// index, its bitmaps, and what is under way.
const CACHE: Bytes = Bytes::mib(32);
const MOST_MIB: f64 = 40.0;
/// One in so many clusters is read, so that every page of the maps is.
const READ_EVERY: u64 = 8;
/// Tells this program to open the pool on this file, and to say what memory that took.
const VARIABLE: &str = "HOLDFAST_POOL_MEMORY";
const CLUSTERS: &str = "HOLDFAST_POOL_CLUSTERS";
const OPENED: &str = "pool-memory-opened";
const LOOKED_AT: &str = "pool-memory-looked-at";

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
        figure(
            "pool-memory-per-tib-whole",
            whole.opened / tebibytes(WHOLE),
            "MiB",
            Target::Watched,
        ),
        figure(
            "pool-memory-per-tib-partly",
            parts.opened / tebibytes(PARTS),
            "MiB",
            Target::Watched,
        ),
        figure("pool-memory-cache-of-32mib", parts.looked_at, "MiB", Target::AtMost(MOST_MIB)),
    ])
}

/// Opens the pool and leaves it as it is; says how long it took.
fn import(path: &Path) -> Result<Duration> {
    let mut rig = Rig::new()?;
    let begun = Instant::now();
    rig.import(path)?;
    Ok(begun.elapsed())
}

fn tebibytes(clusters: u64) -> f64 {
    real(clusters * CLUSTER * 4096) / real(1 << 40)
}

/// Memory of a pool in MiB.
struct Memory {
    opened: f64,
    looked_at: f64,
}

/// What a process of its own sees that opens the pool and reads all over these clusters.
fn memory(path: &Path, clusters: u64) -> Result<Memory> {
    let me = std::env::current_exe().context("cannot tell where this program is")?;
    let mut process = Process::new(me);
    process.arg("pool").env(VARIABLE, path).env(CLUSTERS, clusters.to_string());
    let output = process.output().context("cannot run this program")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8_lossy(&output.stdout);
    let figure = |name: &str| -> Result<f64> {
        let line = said.lines().find_map(|line| line.strip_prefix("figure ")?.strip_prefix(name));
        let kibibytes =
            line.and_then(|text| text.split_whitespace().next()).context("no figure")?;
        Ok(kibibytes.parse::<f64>().context("no number")? / 1024.0)
    };
    Ok(Memory { opened: figure(OPENED)?, looked_at: figure(LOOKED_AT)? })
}

/// If this is the program that is to open a pool, does that.
pub(super) fn child() -> Result<Option<Vec<Figure>>> {
    let Some(path) = std::env::var_os(VARIABLE) else { return Ok(None) };
    let clusters: u64 = std::env::var(CLUSTERS)?.parse().context("no number of clusters")?;
    // What every pool needs is not counted: another one was open before.
    let small = tempfile::NamedTempFile::new().context("cannot make a file")?;
    small.as_file().set_len(64 << 20).context("cannot make a file")?;
    let mut rig = Rig::new()?;
    rig.set_cache(CACHE);
    rig.create(small.path())?;
    let replica = rig.replica(REPLICA, Blocks(CLUSTER))?;
    rig.load(replica, DEPTH, Until::Count(1000), || read(0))?;
    rig.leave()?;
    let without = resident()?;
    rig.import(Path::new(&path))?;
    let opened = resident()?;
    let replica = rig.attach(REPLICA)?;
    let mut at = (0..clusters).step_by(usize::try_from(READ_EVERY)?).cycle();
    let reads = Until::Count(clusters / READ_EVERY);
    rig.load(replica, DEPTH, reads, || read(at.next().unwrap_or(0) * CLUSTER))?;
    let looked_at = resident()?;
    let figure = |name: &str, memory: u64| {
        let value = real(memory.saturating_sub(without));
        Figure { name: name.to_owned(), value, unit: "KiB", target: Target::Watched }
    };
    Ok(Some(vec![figure(OPENED, opened), figure(LOOKED_AT, looked_at)]))
}

/// Memory of this process in KiB.
fn resident() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status").context("no /proc")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let text = line.context("no VmRSS")?.trim().trim_end_matches(" kB");
    text.parse().context("VmRSS is no number")
}
