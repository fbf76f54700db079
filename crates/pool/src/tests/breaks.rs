//! Rules left out on purpose: the histories notice each of them.
//!
//! A rule that nobody would miss is not proved by histories that succeed. Whatever notices it
//! counts: a wrong read, a lost block, a refused import, an invariant that does not hold.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::string::String;

use super::disk::Lie;
use super::history::{Plan, run};
use crate::breaks::{LeftOut, Rule};

/// Histories that are tried at most.
const MOST: u64 = 60;

fn plan(seed: u64) -> Plan {
    let sizes: &[u64] = if seed.is_multiple_of(2) { &[3600] } else { &[2600] };
    Plan { seed, sizes, steps: 80, cut_every: 1, lies: Lie::None }
}

/// The first history that goes wrong, and how.
fn noticed(first: u64, run: impl Fn(u64) -> Result<u64, String>) -> Option<(u64, String)> {
    (first..first + MOST).find_map(|seed| {
        let ended = catch_unwind(AssertUnwindSafe(|| run(seed)));
        match ended {
            Ok(Ok(_)) => None,
            Ok(Err(error)) => Some((seed, error)),
            Err(_) => Some((seed, "an invariant does not hold".into())),
        }
    })
}

fn check(rule: Rule) {
    check_from(0, rule);
}

/// Begins with the history that is known to notice, where that needs a rare moment.
fn check_from(first: u64, rule: Rule) {
    let _left_out = LeftOut::new(rule);
    let found = noticed(first, |seed| run(plan(seed)));
    std::println!("without {rule:?}: {found:?}");
    assert!(found.is_some(), "nobody notices that {rule:?} is left out");
}

fn check_lie(lies: Lie) {
    let found = noticed(0, |seed| run(Plan { lies, ..plan(seed) }));
    std::println!("without flushes of {lies:?}: {found:?}");
    assert!(found.is_some(), "nobody notices that flushes of {lies:?} are left out");
}

#[test]
fn answers_before_a_change_is_durable() {
    check(Rule::AnswerWhenDurable);
}

#[test]
fn records_of_writes_that_did_not_arrive() {
    check(Rule::CheckLastGroup);
}

#[test]
fn a_group_after_dropped_records() {
    check(Rule::CheckpointAfterDrop);
}

#[test]
fn a_rewrite_before_its_record_is_proved() {
    check(Rule::ProveBeforeRewrite);
}

#[test]
fn an_overwrite_before_its_region_is_marked() {
    check(Rule::MarkBeforeOverwrite);
}

#[test]
fn clusters_used_again_too_early() {
    check_from(5, Rule::ReuseWhenDurable);
}

#[test]
fn a_checkpoint_over_the_current_one() {
    check(Rule::OtherSlot);
}

#[test]
fn a_checkpoint_that_replays_what_it_contains() {
    check(Rule::HeaderPosition);
}

#[test]
fn reads_that_are_not_verified() {
    check_from(5, Rule::VerifyReads);
}

#[test]
fn snapshots_that_are_written() {
    check(Rule::SealSnapshots);
}

#[test]
fn a_collapse_before_the_delete_is_durable() {
    check_from(5, Rule::CollapseWhenDurable);
}

#[test]
fn keys_that_are_not_kept() {
    check(Rule::KeepKeys);
}

#[test]
fn no_flush_after_a_group() {
    check_lie(Lie::Groups);
}

#[test]
fn no_flush_before_the_headers_of_a_checkpoint() {
    check_lie(Lie::Bodies);
}

#[test]
fn no_flush_between_superblocks() {
    check_lie(Lie::Supers);
}

#[test]
fn no_flush_at_all() {
    check_lie(Lie::All);
}
