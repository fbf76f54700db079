//! Rules left out on purpose: the histories notice each of them.
//!
//! A rule that nobody would miss is not proved by histories that succeed. Whatever notices it
//! counts: a wrong read, a lost block, a refused import, an invariant that does not hold.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::string::String;
use std::vec::Vec;

use std::format;

use block::{Blocks, Command, IoError, Lba, Span};

use super::disk::{Lie, Random};
use super::driver::{Moment, Rig, import, new_disks};
use super::history::{Plan, replica, run};
use super::model::stamped;
use crate::mutation::{DisabledRule, Rule};
use crate::{Change, Id, Label, NewSnapshot};

/// Histories that are tried at most.
const MOST: u64 = 60;

fn plan(seed: u64) -> Plan {
    let sizes: &[u64] = if seed.is_multiple_of(2) { &[3600] } else { &[2600] };
    Plan { seed, sizes, steps: 80, cut_every: 1, lies: Lie::None }
}

/// The first history that goes wrong, and how.
fn noticed(run: impl Fn(u64) -> Result<u64, String>) -> Option<(u64, String)> {
    (0..MOST).find_map(|seed| {
        let ended = catch_unwind(AssertUnwindSafe(|| run(seed)));
        match ended {
            Ok(Ok(_)) => None,
            Ok(Err(error)) => Some((seed, error)),
            Err(_) => Some((seed, "an invariant does not hold".into())),
        }
    })
}

fn check(rule: Rule) {
    check_by(rule, |seed| run(plan(seed)));
}

/// By histories of one kind, where a random one hardly ever comes to the point.
fn check_directed(rule: Rule, history: fn(u64) -> Result<u64, String>) {
    assert_eq!(noticed(history), None, "and nothing is left out");
    check_by(rule, history);
}

fn check_by(rule: Rule, history: impl Fn(u64) -> Result<u64, String>) {
    let _disabled = DisabledRule::new(rule);
    let found = noticed(history);
    std::println!("without {rule:?}: {found:?}");
    assert!(found.is_some(), "nobody notices that {rule:?} is left out");
}

fn check_lie(lies: Lie) {
    let found = noticed(|seed| run(Plan { lies, ..plan(seed) }));
    std::println!("without flushes of {lies:?}: {found:?}");
    assert!(found.is_some(), "nobody notices that flushes of {lies:?} are left out");
}

/// A replica whose first block was written twice and is in a checkpoint, its region marked.
fn written(sizes: &[u64], id: Id) -> Rig {
    let mut rig = import(new_disks(sizes, 64), sizes).unwrap();
    rig.must(replica(id.0, 0, 100));
    for stamp in [1, 2] {
        rig.write(id, 0, &stamped(stamp)).unwrap();
        rig.flush(id).unwrap();
    }
    rig.pool.request_checkpoint();
    rig.settle();
    rig
}

#[test]
fn answers_before_a_change_is_durable() {
    check(Rule::AnswerWhenDurable);
}

#[test]
fn answers_before_a_record_is_written() {
    check(Rule::AnswerWhenWritten);
}

#[test]
fn answers_before_an_earlier_group_is_written() {
    check(Rule::AnswerInOrder);
}

#[test]
fn a_flush_of_records_before_their_data_is_written() {
    check(Rule::DataBeforeFlush);
}

#[test]
fn a_checkpoint_of_records_before_their_data_is_written() {
    check_directed(Rule::DataBeforeCheckpoint, |seed| {
        let (sizes, id) = (&[3600], Id(1));
        let mut rig = written(sizes, id);
        // More records than the journal has room for wait for a flush: a checkpoint takes their
        // place, and that of a write among them.
        rig.submit(id, Command::Flush, Vec::new());
        for byte in 0..80 {
            rig.change(Change::Share { id, share: std::vec![byte; 4000] });
        }
        let span = Span::new(Lba(70), Blocks(1)).unwrap();
        rig.slow = stamped(9);
        rig.submit(id, Command::Write { span, fua: false }, stamped(9));
        let mut random = Random(seed);
        while !matches!(rig.step(&mut random), Moment::Quiet) {
            let mut after = import(rig.disks.after_crash(&mut random), sizes)?;
            let holds = after.stamps(id, 70, 1);
            if !matches!(holds.as_deref(), Ok([0 | 9])) {
                return Err(format!("the block holds {holds:?}"));
            }
        }
        Ok(0)
    });
}

#[test]
fn groups_that_are_said_to_be_durable_and_are_not() {
    check(Rule::ProvedWhenDurable);
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
fn a_group_that_proves_what_came_after_it() {
    check(Rule::ProvedByLater);
}

#[test]
fn an_overwrite_before_its_region_is_marked() {
    check(Rule::MarkBeforeOverwrite);
}

#[test]
fn an_overwrite_in_place_on_a_disk_that_tears_blocks() {
    check(Rule::RedirectOverwrites);
}

#[test]
fn a_flush_that_leaves_out_the_sums_of_overwrites() {
    check(Rule::RecordOverwrites);
}

#[test]
fn a_block_that_is_written_after_a_failure_without_its_record() {
    check_directed(Rule::RecordAfterFailure, |seed| {
        let (sizes, id) = (&[3600], Id(1));
        let mut rig = written(sizes, id);
        rig.refused = stamped(3);
        if rig.write(id, 70, &stamped(3)).is_ok() {
            return Err("the disk took it".into());
        }
        // The journal says that the block has no sum, and so does a second import.
        rig.flush(id).unwrap();
        if seed % 2 == 1 {
            rig = import(rig.disks.after_crash(&mut Random(seed)), sizes)?;
        }
        rig.write(id, 70, &stamped(4)).unwrap();
        let mut after = import(rig.disks.after_death(&mut Random(seed)), sizes)?;
        match after.stamps(id, 70, 1).as_deref() {
            Ok([4]) => Ok(0),
            read => Err(format!("an acknowledged block reads as {read:?}")),
        }
    });
}

#[test]
fn a_sum_for_what_a_crash_left_without_comparing_copies() {
    check_directed(Rule::ProveByComparison, |seed| {
        let (sizes, id) = (&[3600], Id(1));
        let mut rig = written(sizes, id);
        for stamp in [3, 4] {
            rig.write(id, 1 + seed % 60, &stamped(stamp)).unwrap();
            rig.flush(id).unwrap();
        }
        if !rig.disks.rot(&stamped(2), &stamped(99)) {
            return Err("there is no such block".into());
        }
        let mut rig = import(rig.disks.after_crash(&mut Random(seed)), sizes)?;
        for token in 1000.. {
            if !rig.pool.narrow_doubt(crate::CommandId(token)) {
                break;
            }
            rig.settle();
        }
        match rig.stamps(id, 0, 1) {
            Err(IoError::Unproven { .. }) => Ok(0),
            read => Err(format!("a block that went bad reads as {read:?}")),
        }
    });
}

#[test]
fn clusters_used_again_too_early() {
    check(Rule::ReuseWhenDurable);
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
    check_directed(Rule::VerifyReads, |seed| {
        let (sizes, id) = (&[3600], Id(1));
        let mut rig = written(sizes, id);
        if !rig.disks.rot(&stamped(2), &stamped(3 + seed)) {
            return Err("there is nothing to go bad".into());
        }
        let span = Span::new(Lba(0), Blocks(1)).unwrap();
        match rig.read(id, 0, 1) {
            Err(IoError::Checksum { span: said }) if said == span => Ok(0),
            other => Err(format!("a block went bad and {:?} was said", other.err())),
        }
    });
}

#[test]
fn snapshots_that_are_written() {
    check(Rule::SealSnapshots);
}

#[test]
fn a_collapse_before_the_delete_is_durable() {
    check_directed(Rule::CollapseWhenDurable, |seed| {
        let (sizes, id, snapshot) = (&[3600], Id(1), Id(2));
        let mut rig = written(sizes, id);
        let new = NewSnapshot { id: snapshot, created: 1, label: Label::default() };
        rig.must(Change::Snapshot { of: id, snapshot: new });
        rig.settle();
        // The block is the snapshot's. It may be overwritten when that is gone for good, not when
        // a batch ends that was begun before.
        rig.submit(id, Command::Flush, Vec::new());
        rig.change(Change::Delete(snapshot));
        let span = Span::new(Lba(0), Blocks(1)).unwrap();
        let mut random = Random(seed);
        for step in 0.. {
            if step == seed % 8 {
                rig.submit(id, Command::Write { span, fua: false }, stamped(9));
            }
            if matches!(rig.step(&mut random), Moment::Quiet) {
                break;
            }
            let mut after = import(rig.disks.after_crash(&mut random), sizes)?;
            let is_back = after.pool.entity(snapshot).is_some();
            let holds = after.stamps(snapshot, 0, 1);
            if is_back && holds.as_deref() != Ok(&[2]) {
                return Err(format!("the snapshot holds {holds:?}"));
            }
        }
        Ok(0)
    });
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
