//! The mirror in one thread, from seeds: replicas with volatile caches, a store, targets that
//! follow each other, and everything that can go wrong between them.

mod check;
mod disk;
mod drive;
mod history;
mod lease;
mod owner;
mod rebuild;
mod reservation;
mod rules;
mod scenarios;
mod steady_state;
mod with_and_without;
mod world;

use std::format;
use std::string::String;
use std::vec::Vec;

use drive::{Drive, Plan};
use with_and_without::Also;

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
    /// What no copy in sync can read is not asked of one that is about to join.
    JoinerNotAsked,
    /// Of copies that lost their caches any is believed.
    LossesUnordered,
    /// A copy joins while others are asked for a snapshot.
    JoinsDuringSnapshot,
    /// A copy is rebuilt while it may still be called in sync.
    RebuiltUnrecorded,
    /// The first copy that holds a block without proof is believed, whatever others have.
    AcceptUnasked,
    /// What no copy can prove is never believed.
    NeverAccepted,
    /// Reservations are acknowledged when those copies have them that are there.
    ReservationsOnSome,
    /// Replicas take commands of former owners.
    NoFence,
    /// A read that waits for a comparison keeps it from its blocks.
    ReadInTheWay,
    /// What a copy missed is remembered after it is believed.
    MapKept,
    /// That a former target acknowledged something is forgotten.
    LossUntold,
    /// Labels that are newer than the record are not looked at.
    LabelsBelieved,
    /// Notes of copies are not compared.
    NotesNotCompared,
    /// Reads are answered while copies in sync are attached, whatever the time.
    LeaseIgnored,
    /// Reads around the mirror are answered whatever became of the lease.
    BypassUnchecked,
    /// An opening waits from its beginning, not from the moment it fenced a copy.
    WaitFromStart,
    /// An opening with all copies of its set does not wait for owners of copies given up before.
    GivenUpForgotten,
    /// Damaged blocks are overwritten as if they were good.
    RepairByWriting,
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
    live(Plan { seed, broken, bypass_reads: true, ..Plan::default() })
}

/// Crashes leave blocks that nothing proves; reads go by the mirror.
fn run_unproven(seed: u64, broken: Broken) -> Result<(), String> {
    live(Plan { seed, broken, unproven: true, ..Plan::default() })
}

/// The same, and reads go around the mirror where they may.
fn run_unproven_around(seed: u64, broken: Broken) -> Result<(), String> {
    live(Plan { seed, broken, unproven: true, bypass_reads: true, ..Plan::default() })
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

fn run_also(seed: u64, broken: Broken, also: Also) -> Result<(), String> {
    live(Plan { seed, broken, bypass_reads: seed.is_multiple_of(2), also, ..Plan::default() })
}

#[test]
fn every_history_with_pauses_is_one_of_a_single_disk() {
    check_all(|seed, broken| run_also(seed, broken, Also::Pauses));
}

#[test]
fn every_history_with_clocks_that_stand_still_is_one_of_a_single_disk() {
    check_all(|seed, broken| run_also(seed, broken, Also::StandingClocks));
}

#[test]
fn every_history_with_a_store_that_goes_back_is_one_of_a_single_disk() {
    check_all(|seed, broken| run_also(seed, broken, Also::StoreBack));
}

#[test]
fn every_history_with_a_copy_that_is_rolled_back_is_one_of_a_single_disk() {
    check_all(|seed, broken| run_also(seed, broken, Also::Rollback));
}

/// Each rule, and where to look for a history that needs it.
const NEEDED: &[(Broken, u64)] = &[
    (Broken::AckBeforeRecord, 0),
    (Broken::MarksNotAwaited, 5),
    (Broken::NoOrder, 5),
    (Broken::NotMissed, 5),
    (Broken::CopyUnlocked, 3),
    (Broken::NoFence, 0),
];

#[test]
fn a_broken_rule_is_noticed() {
    for (rule, seed) in NEEDED {
        let noticed = (*seed..seed + seeds(400)).find(|seed| run(*seed, *rule).is_err());
        assert!(noticed.is_some(), "nobody noticed {rule:?}");
        std::println!("{rule:?} is noticed by seed {noticed:?}");
    }
    for rule in [Broken::AcceptUnasked, Broken::NeverAccepted] {
        let noticed = (0..seeds(400)).find(|seed| run_unproven(*seed, rule).is_err());
        assert!(noticed.is_some(), "nobody noticed {rule:?}");
        std::println!("{rule:?} is noticed by seed {noticed:?}");
    }
    let stands = |seed: &u64| run_also(*seed, Broken::LeaseIgnored, Also::StandingClocks).is_err();
    let noticed = (0..seeds(400)).find(stands);
    assert!(noticed.is_some(), "nobody noticed a lease by clocks that stand still");
    std::println!("a lease by clocks that stand still is noticed by seed {noticed:?}");
    for (rule, check) in [
        (Broken::FenceIgnored, scenarios::fence as fn(Broken)),
        (Broken::HalfSnapshot, scenarios::snapshot),
        (Broken::MixedSnapshot, scenarios::snapshot_again),
        (Broken::AnyAttempt, scenarios::snapshot_of_two_attempts),
        (Broken::ReadUnsettled, scenarios::read_by_a_former_owner),
        (Broken::AroundOthers, rules::read_overtakes),
        (Broken::ReadInDoubt, rules::read_in_doubt),
        (Broken::FlushInDoubt, rules::flush_in_doubt),
        (Broken::LossForgotten, rules::loss_known),
        (Broken::ReadInTheWay, rules::read_waits_aside),
        (Broken::MarkedUnsettled, rules::marked_everywhere),
        (Broken::JoinerNotCompared, rules::joiner_compared),
        (Broken::JoinerNotAsked, rules::joiner_asked),
        (Broken::LossesUnordered, rules::first_loss_believed),
        (Broken::JoinsDuringSnapshot, rules::join_waits_for_snapshot),
        (Broken::RebuiltUnrecorded, rules::not_rebuilt_unrecorded),
        (Broken::MapKept, rules::map_goes),
        (Broken::LossUntold, rules::loss_told),
        (Broken::LeaseIgnored, lease::stopped_owner),
        (Broken::LeaseIgnored, reservation::stopped_owner),
        (Broken::BypassUnchecked, lease::stopped_during_read),
        (Broken::WaitFromStart, lease::late_fence),
        (Broken::GivenUpForgotten, lease::given_up),
        (Broken::LabelsBelieved, lease::store_went_back),
        (Broken::NotesNotCompared, lease::rolled_back),
    ] {
        assert!(std::panic::catch_unwind(|| check(rule)).is_err(), "nobody noticed {rule:?}");
    }
}
