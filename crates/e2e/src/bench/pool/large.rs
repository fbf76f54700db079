//! A pool of ten tebibytes: how long it takes to make, and to open after a crash.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use block::{Blocks, Command};
use pool::Id;

use super::rig::{Rig, Until};
use super::{DEPTH, real, write};
use crate::bench::Options;
use crate::figure::{Figure, Target};

const POOL_BYTES: u64 = 10 << 40;
/// Blocks of a cluster of 1 MiB.
const CLUSTER: u64 = 256;

pub(super) fn run(folder: &Path, options: Options) -> Result<Vec<Figure>> {
    let clusters: u64 = if options.quick { 100_000 } else { 1_000_000 };
    let path = folder.join("large");
    let file = std::fs::File::create(&path).context("cannot make a file")?;
    file.set_len(POOL_BYTES).context("the file system has no files of 10 TiB")?;
    let mut rig = Rig::new()?;
    let begun = Instant::now();
    rig.create(&path)?;
    let created = begun.elapsed();
    let device = rig.replica(Id(100), Blocks(POOL_BYTES / 4096))?;
    let mut at = 0;
    let next = || {
        at += CLUSTER;
        write(at)
    };
    rig.load(device, DEPTH, Until::Count(clusters), next)?;
    rig.one_by_one(device, &[Command::Flush])?;
    // A crash: nothing is written down.
    drop(rig);
    let mut rig = Rig::new()?;
    let without = resident()?;
    let begun = Instant::now();
    rig.import(&path)?;
    let imported = begun.elapsed();
    let grown = resident()?.saturating_sub(without);
    drop(rig);
    let tebibytes = real(clusters * CLUSTER * 4096) / real(1 << 40);
    let watched = |name: &str, value, unit, target| Figure {
        name: format!("pool-{name}"),
        value,
        unit,
        target,
    };
    let import = watched("import-clusters", real(clusters), "clusters", Target::Watched);
    Ok(vec![
        watched("create-10tib", created.as_secs_f64() * 1e3, "ms", Target::AtMost(100.0)),
        import,
        watched("import-after-crash", imported.as_secs_f64(), "s", Target::AtMost(2.0)),
        watched("memory-per-tib", real(grown) / 1024.0 / tebibytes, "MiB", Target::Watched),
    ])
}

/// Memory of this process in KiB.
fn resident() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status").context("no /proc")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let text = line.context("no VmRSS")?.trim().trim_end_matches(" kB");
    text.parse().context("VmRSS is no number")
}
