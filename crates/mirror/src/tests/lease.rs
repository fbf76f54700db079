//! What a former owner may answer, and what becomes of copies that contradict what is known.

use core::time::Duration;

use block::{Command, IoError, Span};
use model::{ConflictReason, FaultReason, StopCause, TargetState};

use super::Broken;
use super::drive::{Drive, replica};
use super::scenarios::{span, write};
use super::world::STORE;
use crate::MirrorRequest;

fn read(span: Span) -> Command {
    Command::Read { span }
}

#[test]
fn a_former_owner_that_was_stopped_answers_no_reads() {
    stopped_owner(Broken::Nothing);
}

/// The node of a target stands still while another one takes the volume and writes. A host asks
/// the former one meanwhile; its local copy is all that it needs for an answer.
pub(super) fn stopped_owner(broken: Broken) {
    for bypass_reads in [false, true] {
        let mut drive = Drive::quiet_but(2, broken);
        drive.world.bypass_reads = bypass_reads;
        drive.ask(write(0, 1)).unwrap();
        let pending = drive.begin(read(span(0, 1)));
        drive.world.pause(0, 5000, false);
        drive.take_over(1);
        drive.until(|drive| drive.mirror().state() == TargetState::Degraded);
        drive.ask(write(0, 1)).unwrap();
        // Its own copy answers sooner than the one that could tell it.
        drive.world.slow = Some(1);
        let token = drive.begin_on(0, read(span(0, 1)));
        assert_eq!(drive.end_on(0, token), Err(IoError::Fenced));
        // It was asked before the write, and may be answered with what was there then.
        assert_eq!(drive.end_on(0, pending), Err(IoError::Fenced));
    }
}

#[test]
fn a_read_around_the_mirror_is_checked_when_it_ends() {
    stopped_during_read(Broken::Nothing);
}

/// The copy has answered, and nobody looked: then everything stands still. In which order news are
/// seen afterwards is up to chance.
pub(super) fn stopped_during_read(broken: Broken) {
    for chance in 0..20 {
        let mut drive = Drive::quiet_but(2, broken);
        drive.world.random = block::testing::Random(chance);
        drive.world.bypass_reads = true;
        drive.ask(write(0, 1)).unwrap();
        drive.world.slow = Some(0);
        let before = drive.world.disks[0].read;
        let pending = drive.begin(read(span(0, 1)));
        drive.until(|drive| drive.world.disks[0].read > before);
        drive.world.pause(0, 5000, false);
        drive.take_over(1);
        drive.until(|drive| drive.mirror().state() == TargetState::Degraded);
        drive.ask(write(0, 1)).unwrap();
        drive.world.slow = Some(1);
        assert_eq!(drive.end_on(0, pending), Err(IoError::Fenced));
    }
}

#[test]
fn an_opening_waits_from_the_moment_it_fenced_a_copy() {
    late_fence(Broken::Nothing);
}

#[test]
fn an_owner_without_a_lease_waits_for_a_former_one_that_has_it() {
    late_fence_with(Broken::Nothing, Duration::ZERO);
}

/// The new owner reaches nothing for longer than it waits, then one copy; the former owner has
/// proofs of that one until then, and cannot be reached itself.
pub(super) fn late_fence(broken: Broken) {
    late_fence_with(broken, super::drive::config().lease.own);
}

fn late_fence_with(broken: Broken, lease: Duration) {
    let mut drive = Drive::quiet_but(2, broken);
    drive.ask(write(0, 1)).unwrap();
    // The new owner does not reach the node of the former one, and the other copy late.
    drive.world.cut.extend([(2, 0), (0, 2), (0, STORE)]);
    drive.world.stalled = Some(1);
    drive.config.lease.own = lease;
    drive.take_over(2);
    drive.pass(490);
    let last = drive.begin_on(0, write(0, 1));
    drive.end_on(0, last).unwrap();
    drive.world.stalled = None;
    // What the former owner asks is lost from now on, and it does not learn of it for a while.
    drive.world.cut.extend([(0, 1), (1, 0)]);
    let fenced = drive.world.now;
    drive.until(|drive| drive.mirror().state().serves());
    let waited = drive.world.now - fenced;
    assert!(waited >= 375, "it served {waited} ms after it fenced a copy");
    drive.ask(write(0, 1)).unwrap();
    let token = drive.begin_on(0, read(span(0, 1)));
    assert_eq!(drive.end_on(0, token), Err(IoError::Unreachable));
}

#[test]
fn an_opening_waits_for_the_reader_of_a_copy_that_was_given_up() {
    given_up(Broken::Nothing);
}

/// The copy beside the former owner is taken out of the set while its node cannot be reached: the
/// new owner has every copy it knows of at once, and none that fences the former one's own.
pub(super) fn given_up(broken: Broken) {
    let mut drive = Drive::quiet_but(2, broken);
    drive.ask(write(0, 1)).unwrap();
    drive.world.cut.extend([(0, 1), (1, 0), (0, STORE)]);
    let without = drive.world.record.give_up(replica(0)).unwrap();
    drive.world.set_record(without);
    drive.take_over(1);
    drive.until(|drive| drive.mirror().state().serves());
    drive.ask(write(0, 1)).unwrap();
    let token = drive.begin_on(0, read(span(0, 1)));
    assert_eq!(drive.end_on(0, token), Err(IoError::Unreachable));
}

#[test]
fn an_idle_volume_asks_nothing_and_its_first_read_is_answered() {
    let mut drive = Drive::quiet(2);
    drive.ask(write(0, 1)).unwrap();
    drive.ask(Command::Flush).unwrap();
    drive.pass(3000);
    let asked = drive.world.asked;
    drive.pass(20_000);
    assert_eq!(drive.world.asked, asked, "an idle volume is asked nothing");
    drive.ask(read(span(0, 1))).unwrap();
    assert_eq!(drive.world.asked, asked + 3, "the read, and one proof of each copy");
}

#[test]
fn without_a_lease_each_read_is_proved_after_it_came() {
    let mut drive = Drive::quiet(2);
    drive.config.lease.own = Duration::ZERO;
    drive.take_over(0);
    drive.until_open();
    drive.ask(write(0, 1)).unwrap();
    // Its clock stands still, too: no lease could tell.
    drive.world.pause(0, 5000, true);
    drive.take_over(1);
    drive.until(|drive| drive.mirror().state() == TargetState::Degraded);
    drive.ask(write(0, 1)).unwrap();
    let token = drive.begin_on(1, read(span(0, 1)));
    assert_eq!(drive.end_on(1, token), Err(IoError::Fenced));
}

#[test]
fn a_store_older_than_the_labels_is_not_believed() {
    store_went_back(Broken::Nothing);
}

/// A backup with both copies in sync; one fails, the other is written and flushed; the backup is
/// restored, and the one that failed is back.
pub(super) fn store_went_back(broken: Broken) {
    let mut drive = Drive::quiet_but(2, broken);
    drive.ask(write(0, 4)).unwrap();
    let backup = drive.world.record.clone();
    drive.world.disks[1].up = false;
    drive.ask(write(0, 4)).unwrap();
    drive.ask(Command::Flush).unwrap();
    drive.crash_target(0);
    drive.world.record = backup;
    drive.world.disks[1].up = true;
    let (notes, wrote): (std::vec::Vec<_>, u64) = {
        let disks = drive.world.disks.iter();
        (disks.map(|disk| disk.note.clone()).collect(), drive.world.records.len() as u64)
    };
    drive.take_over(1);
    let token = drive.begin(read(span(0, 4)));
    let result = drive.end(token);
    assert_eq!(result, Err(IoError::Fenced), "{:?}", drive.last_read);
    assert_eq!(drive.mirror().state(), TargetState::Shutdown { cause: StopCause::LabelConflict });
    let [conflict] = drive.mirror().conflicts() else { panic!("one copy is newer") };
    assert_eq!(conflict.replica, replica(0));
    assert!(matches!(conflict.reason, ConflictReason::NewerSet { .. }), "{conflict}");
    let after: std::vec::Vec<_> = drive.world.disks.iter().map(|disk| disk.note.clone()).collect();
    assert_eq!(after, notes, "nothing is written to labels");
    assert_eq!(drive.world.records.len() as u64, wrote + 1, "nothing but the epoch is recorded");
}

#[test]
fn an_epoch_that_copies_refuse_is_a_store_that_went_back() {
    let mut drive = Drive::quiet(2);
    let backup = drive.world.records[0].clone();
    for node in [1, 0, 1] {
        drive.take_over(node);
        drive.until_open();
    }
    drive.ask(write(0, 1)).unwrap();
    drive.world.record = backup;
    drive.take_over(0);
    let down = TargetState::Shutdown { cause: StopCause::LabelConflict };
    drive.until(|drive| drive.mirror().state() == down);
    let is_refusal = |reason| matches!(reason, ConflictReason::RefusesEpoch { .. });
    assert!(drive.mirror().conflicts().iter().all(|one| is_refusal(one.reason)));
    // Whoever owns the volume by what the copies remember still serves it.
    let owner = drive.world.targets.len() - 2;
    let token = drive.begin_on(owner, read(span(0, 1)));
    drive.end_on(owner, token).unwrap();
}

#[test]
fn an_owner_that_the_store_forgot_stops_when_it_has_to_record() {
    let mut drive = Drive::quiet(2);
    let backup = drive.world.records[0].clone();
    drive.take_over(1);
    drive.until_open();
    drive.world.record = backup;
    drive.world.disks[0].up = false;
    let token = drive.begin(write(0, 1));
    assert_eq!(drive.end(token), Err(IoError::Fenced));
    assert_eq!(drive.mirror().state(), TargetState::Shutdown { cause: StopCause::LabelConflict });
}

#[test]
fn a_copy_that_was_rolled_back_is_copied_anew() {
    rolled_back(Broken::Nothing);
}

/// A copy in sync is what it was some notes ago; once under a target that lives, once for the next.
pub(super) fn rolled_back(broken: Broken) {
    for lives in [true, false] {
        let mut drive = Drive::quiet_but(2, broken);
        drive.ask(write(0, 8)).unwrap();
        drive.ask(Command::Flush).unwrap();
        drive.world.disks[1].save();
        for region in 1..4 {
            drive.ask(write(region * 8, 8)).unwrap();
            drive.ask(Command::Flush).unwrap();
            drive.pass(500);
        }
        if lives {
            drive.crash_disk(1);
            drive.world.disks[1].roll_back();
            drive.pass(700);
        } else {
            drive.crash_target(0);
            drive.crash_disk(1);
            drive.world.disks[1].roll_back();
            drive.pass(700);
            drive.take_over(1);
        }
        drive.until_open();
        assert_eq!(drive.world.disks[0].view(), drive.world.disks[1].view());
        for region in 1..4 {
            drive.ask(read(span(region * 8, 8))).unwrap();
        }
        let told = drive.mirror().conflicts().iter().find(|one| one.replica == replica(1));
        let reason = told.expect("it is told").reason;
        assert!(matches!(reason, ConflictReason::RolledBack { .. }), "{reason}");
    }
}

/// A copy is what it was since its last note: only what hosts wrote since can be missing, and that
/// lies in the intents of the note, which the next target compares. (A copy that was recorded stale
/// meanwhile gets what it missed, and no more: its note does not show that it was rolled back.)
#[test]
fn a_copy_that_was_rolled_back_within_a_note_is_compared() {
    let mut drive = Drive::quiet(2);
    drive.config.idle = Duration::from_mins(1);
    drive.config.renew = Duration::from_mins(1);
    drive.take_over(0);
    drive.until_open();
    drive.ask(write(0, 8)).unwrap();
    drive.ask(Command::Flush).unwrap();
    drive.pass(50);
    drive.world.disks[1].save();
    drive.ask(write(0, 8)).unwrap();
    drive.ask(Command::Flush).unwrap();
    let note = drive.world.disks[1].note.clone();
    drive.crash_target(0);
    drive.crash_disk(1);
    drive.world.disks[1].roll_back();
    assert_eq!(drive.world.disks[1].note, note, "its note is the one that is expected");
    drive.pass(700);
    drive.take_over(1);
    drive.until_open();
    drive.ask(read(span(0, 8))).unwrap();
    assert_eq!(drive.world.disks[0].view(), drive.world.disks[1].view());
}

#[test]
fn the_only_copy_in_sync_is_not_believed_after_it_was_rolled_back() {
    let mut drive = Drive::quiet(2);
    drive.ask(write(0, 8)).unwrap();
    drive.request(MirrorRequest::Offline(replica(1))).unwrap();
    drive.world.disks[0].save();
    for region in 1..4 {
        drive.ask(write(region * 8, 8)).unwrap();
        drive.ask(Command::Flush).unwrap();
        drive.pass(500);
    }
    drive.crash_disk(0);
    drive.world.disks[0].roll_back();
    assert_eq!(drive.ask(read(span(8, 8))), Err(IoError::Unreachable));
    let lost = model::ChildState::Faulted { reason: FaultReason::LabelConflict };
    assert_eq!(drive.mirror().children()[0].state, lost);
    assert_eq!(drive.mirror().conflicts().len(), 1);
}
