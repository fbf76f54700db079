//! The mirror in one thread, from seeds: replicas with volatile caches, a store, targets that follow
//! each other, and everything that can go wrong between them.

mod disk;
mod drive;
mod history;
mod owner;
mod random;
mod world;

use std::format;
use std::string::String;
use std::vec::Vec;

use drive::{Drive, Plan};

/// A rule that is broken on purpose, to see that the simulation notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    Nothing,
    AckBeforeRecord,
    LastGoesStale,
    MarksNotAwaited,
    NoOrder,
    NotMissed,
    NoDoubt,
    ReadUnsettled,
    NoRepair,
    CopyUnlocked,
    FenceIgnored,
    HalfSnapshot,
    /// Replicas take commands of former owners.
    NoFence,
}

/// Histories of one run of the quick tests; `HOLDFAST_SEEDS` asks for more.
fn seeds(quick: u64) -> u64 {
    std::env::var("HOLDFAST_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(quick)
}

fn run(seed: u64, broken: Broken) -> Result<(), String> {
    let loud = std::env::var_os("HOLDFAST_LOUD").is_some();
    let history = || Drive::new(Plan { seed, broken, loud }).run();
    let result = std::panic::catch_unwind(history).unwrap_or_else(|_| Err("panicked".into()));
    result.map_err(|error| format!("seed {seed}: {error}"))
}

#[test]
fn every_history_is_one_of_a_single_disk() {
    let first = std::env::var("HOLDFAST_FIRST_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(0);
    let failed: Vec<String> =
        (first..first + seeds(200)).filter_map(|seed| run(seed, Broken::Nothing).err()).collect();
    for error in &failed {
        let line: String = error.chars().take(150).collect();
        std::eprintln!("{line}");
    }
    assert!(failed.is_empty(), "{} failed, the first: {}", failed.len(), failed[0]);
}
