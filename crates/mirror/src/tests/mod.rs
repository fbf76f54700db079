//! The mirror in one thread, from seeds: replicas with volatile caches, a store, targets that
//! follow each other, and everything that can go wrong between them.

mod directed;
mod disk;
mod drive;
mod history;
mod owner;
mod quiet;
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
    MarksNotAwaited,
    NoOrder,
    NotMissed,
    NoDoubt,
    ReadUnsettled,
    CopyUnlocked,
    FenceIgnored,
    HalfSnapshot,
    FlushInDoubt,
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
    assert!(failed.is_empty(), "{} failed, the first: {}", failed.len(), failed[0]);
}

/// Each rule, and a history that needs it.
const NEEDED: &[(Broken, u64)] = &[
    (Broken::AckBeforeRecord, 0),
    (Broken::MarksNotAwaited, 0),
    (Broken::NoOrder, 0),
    (Broken::NotMissed, 0),
    (Broken::NoDoubt, 0),
    (Broken::ReadUnsettled, 0),
    (Broken::CopyUnlocked, 0),
    (Broken::FenceIgnored, 0),
    (Broken::HalfSnapshot, 0),
    (Broken::FlushInDoubt, 0),
    (Broken::NoFence, 0),
];

#[test]
fn a_broken_rule_is_noticed() {
    for (rule, first) in NEEDED {
        let noticed = (*first..*first + seeds(1)).find(|seed| run(*seed, *rule).is_err());
        std::eprintln!("{rule:?} {noticed:?}");
    }
}
