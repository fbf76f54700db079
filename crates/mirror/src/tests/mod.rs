//! The mirror in one thread, from seeds: replicas with volatile caches, a store, targets that
//! follow each other, and everything that can go wrong between them.

mod checking;
mod directed;
mod disk;
mod drive;
mod history;
mod owner;
mod quiet;
mod rebuilding;
mod reservation;
mod world;

use std::format;
use std::string::String;
use std::vec::Vec;

use drive::{Drive, Plan};

/// A rule that is broken on purpose, to see that the simulation notices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Broken {
    #[default]
    Nothing,
    AckBeforeRecord,
    MarksNotAwaited,
    NoOrder,
    NotMissed,
    ReadInDoubt,
    ReadUnsettled,
    /// Reads go around the mirror whatever is under way.
    AroundOthers,
    CopyUnlocked,
    FenceIgnored,
    HalfSnapshot,
    MixedSnapshot,
    AnyAttempt,
    FlushInDoubt,
    MarkedUnsettled,
    LossForgotten,
    JoinerNotCompared,
    JoinerNotAsked,
    /// The first copy that holds a block without proof is believed, whatever others have.
    AcceptUnasked,
    /// What no copy can prove is never believed.
    NeverAccepted,
    /// Reservations are acknowledged when those copies have them that are there.
    ReservationsOnSome,
    /// Replicas take commands of former owners.
    NoFence,
}

/// Histories of one run of the quick tests; `HOLDFAST_SEEDS` asks for more.
fn seeds(quick: u64) -> u64 {
    std::env::var("HOLDFAST_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(quick)
}

/// Every read by the mirror: what was found with a seed is found with it again.
fn run(seed: u64, broken: Broken) -> Result<(), String> {
    live(Plan { seed, broken, ..Plan::default() })
}

/// Reads of a local copy go around the mirror where they may.
fn run_around(seed: u64, broken: Broken) -> Result<(), String> {
    live(Plan { seed, broken, around: true, ..Plan::default() })
}

/// Crashes leave blocks that nothing proves; reads go by the mirror.
fn run_unproven(seed: u64, broken: Broken) -> Result<(), String> {
    live(Plan { seed, broken, unproven: true, ..Plan::default() })
}

/// The same, and reads go around the mirror where they may.
fn run_unproven_around(seed: u64, broken: Broken) -> Result<(), String> {
    live(Plan { seed, broken, unproven: true, around: true, ..Plan::default() })
}

fn live(plan: Plan) -> Result<(), String> {
    let (seed, loud) = (plan.seed, std::env::var_os("HOLDFAST_LOUD").is_some());
    let history = || Drive::new(Plan { loud, ..plan }).run();
    let result = std::panic::catch_unwind(history).unwrap_or_else(|_| Err("panicked".into()));
    result.map_err(|error| format!("seed {seed}: {error}"))
}

fn check_all(run: fn(u64, Broken) -> Result<(), String>) {
    let first = std::env::var("HOLDFAST_FIRST_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(0);
    let failed: Vec<String> =
        (first..first + seeds(200)).filter_map(|seed| run(seed, Broken::Nothing).err()).collect();
    assert!(failed.is_empty(), "{} failed, the first: {}", failed.len(), failed[0]);
}

#[test]
fn every_history_is_one_of_a_single_disk() {
    check_all(run);
}

#[test]
fn every_history_with_reads_around_the_mirror_is_one_of_a_single_disk() {
    check_all(run_around);
}

#[test]
fn every_history_with_unproven_blocks_is_one_of_a_single_disk() {
    check_all(run_unproven);
}

#[test]
fn every_history_with_unproven_blocks_and_reads_around_is_one_of_a_single_disk() {
    check_all(run_unproven_around);
}

/// Histories that failed once, and what was wrong.
fn once_failed(seed: u64) {
    assert_eq!(run(seed, Broken::Nothing), Ok(()));
}

#[test]
fn the_map_of_a_copy_that_came_back_in_sync_goes() {
    once_failed(1);
}

#[test]
fn a_read_does_not_block_the_comparison_it_waits_for() {
    once_failed(14);
}

#[test]
fn what_a_former_target_acknowledged_is_not_flushed_after_it_was_lost() {
    once_failed(52);
}

#[test]
fn a_copy_that_lost_its_cache_gets_nothing_before_it_is_recorded_stale() {
    once_failed(65);
}

#[test]
fn no_copy_joins_while_others_take_a_snapshot() {
    once_failed(230);
}

#[test]
fn a_flush_does_not_promise_what_one_copy_in_sync_lacks() {
    once_failed(335);
}

#[test]
fn one_bad_block_makes_no_other_older() {
    once_failed(11562);
}

#[test]
fn that_a_copy_lost_its_cache_is_known_to_the_next_target() {
    once_failed(7696);
}

#[test]
fn of_copies_that_lost_their_caches_the_one_that_did_first_is_believed() {
    once_failed(24516);
}

#[test]
fn a_copy_that_is_about_to_join_is_compared_too() {
    once_failed(18967);
}

#[test]
fn a_copy_that_is_away_and_in_sync_has_every_mark() {
    once_failed(38747);
}

/// The checker believed one that had crashed and that nobody had attached since.
#[test]
fn a_copy_that_crashed_unnoticed_holds_nothing() {
    once_failed(1_022_977);
}

#[test]
fn what_no_copy_in_sync_can_read_is_asked_of_one_that_joins() {
    assert_eq!(run_around(7_092_707, Broken::Nothing), Ok(()));
}

/// Each rule, and where to look for a history that needs it.
const NEEDED: &[(Broken, u64)] = &[
    (Broken::AckBeforeRecord, 0),
    (Broken::MarksNotAwaited, 5),
    (Broken::NoOrder, 5),
    (Broken::NotMissed, 5),
    (Broken::ReadInDoubt, 754),
    (Broken::CopyUnlocked, 3),
    (Broken::FlushInDoubt, 335),
    (Broken::MarkedUnsettled, 38747),
    (Broken::LossForgotten, 7696),
    (Broken::JoinerNotCompared, 18967),
    (Broken::NoFence, 0),
];

#[test]
fn a_broken_rule_is_noticed() {
    for (rule, seed) in NEEDED {
        let noticed = (*seed..seed + seeds(400)).find(|seed| run(*seed, *rule).is_err());
        assert!(noticed.is_some(), "nobody noticed {rule:?}");
        std::println!("{rule:?} is noticed by seed {noticed:?}");
    }
    for (rule, seed) in [(Broken::AroundOthers, 1714), (Broken::JoinerNotAsked, 7_092_707)] {
        let noticed = (seed..seed + seeds(400)).find(|seed| run_around(*seed, rule).is_err());
        assert!(noticed.is_some(), "nobody noticed {rule:?}");
        std::println!("{rule:?} is noticed by seed {noticed:?}");
    }
    for rule in [Broken::AcceptUnasked, Broken::NeverAccepted] {
        let noticed = (0..seeds(400)).find(|seed| run_unproven(*seed, rule).is_err());
        assert!(noticed.is_some(), "nobody noticed {rule:?}");
        std::println!("{rule:?} is noticed by seed {noticed:?}");
    }
    for (rule, check) in [
        (Broken::FenceIgnored, directed::fence as fn(Broken)),
        (Broken::HalfSnapshot, directed::snapshot),
        (Broken::MixedSnapshot, directed::snapshot_again),
        (Broken::AnyAttempt, directed::snapshot_of_two_attempts),
        (Broken::ReadUnsettled, directed::read_by_a_former_owner),
    ] {
        assert!(std::panic::catch_unwind(|| check(rule)).is_err(), "nobody noticed {rule:?}");
    }
}
