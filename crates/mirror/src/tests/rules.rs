//! Histories that failed once, each by hand: what happens does not change with the generator. Each
//! is run with its rule left out, too, and then has to fail.

use block::{Command, IoError};
use model::TargetState;

use super::Broken;
use super::drive::{Drive, replica};
use super::scenarios::{span, write};
use crate::MirrorRequest;

fn read(start: u64, len: u64) -> Command {
    Command::Read { span: span(start, len) }
}

/// A volume whose first region was written and acknowledged, and is on one copy only: the other one
/// lost its cache, the target died, and the next one does not get to compare them.
fn in_doubt(broken: Broken) -> Drive {
    let mut drive = Drive::quiet_but(2, broken);
    drive.ask(write(0, 8)).unwrap();
    drive.ask(Command::Flush).unwrap();
    drive.pass(500);
    drive.ask(write(0, 8)).unwrap();
    drive.crash_target(0);
    drive.lose_cache(1);
    drive.config.copies = 0;
    drive.take_over(1);
    drive.until_open();
    drive
}

#[test]
fn a_region_in_doubt_is_not_read() {
    read_in_doubt(Broken::Nothing);
}

pub(super) fn read_in_doubt(broken: Broken) {
    let mut drive = in_doubt(broken);
    let token = drive.begin(read(0, 8));
    drive.pass(500);
    assert!(!drive.world.targets[1].ended.contains_key(&token), "it was not compared yet");
}

#[test]
fn a_flush_does_not_promise_what_one_copy_in_sync_lacks() {
    flush_in_doubt(Broken::Nothing);
}

pub(super) fn flush_in_doubt(broken: Broken) {
    let mut drive = in_doubt(broken);
    drive.begin(Command::Flush);
    drive.pass(500);
    // The copy that has it is away for good.
    drive.crash_target(1);
    drive.world.disks[0].up = false;
    drive.take_over(1);
    drive.until(|drive| drive.mirror().state() == TargetState::Degraded);
    drive.ask(read(0, 8)).unwrap();
}

#[test]
fn that_a_copy_lost_its_cache_is_known_to_the_next_target() {
    loss_known(Broken::Nothing);
}

pub(super) fn loss_known(broken: Broken) {
    let mut drive = in_doubt(broken);
    let epoch = drive.world.record.epoch();
    drive.until(|drive| {
        let notes = drive.world.disks[..2].iter().map(|disk| disk.note.as_ref());
        notes.flatten().all(|note| note.label.epoch == epoch)
    });
    drive.crash_target(1);
    drive.config.copies = 4;
    drive.take_over(1);
    drive.ask(read(0, 8)).unwrap();
}

/// The copy that has the newest data cannot read one block of a region in doubt: that block comes
/// from the other copy, no other does, and the next flush says that something was lost.
#[test]
fn one_bad_block_makes_no_other_older() {
    let mut drive = in_doubt(Broken::Nothing);
    let (newer, older) = (drive.world.disks[0].view(), drive.world.disks[1].view());
    drive.world.disks[0].bad.insert(3);
    drive.crash_target(1);
    drive.config.copies = 4;
    drive.take_over(1);
    drive.until_open();
    drive.pass(500);
    let mut wanted = newer;
    wanted[3] = older[3];
    for disk in 0..2 {
        assert_eq!(drive.world.disks[disk].view(), wanted, "copy {disk}");
    }
    let told = drive.ask(Command::Flush);
    assert!(matches!(told, Err(IoError::Medium { .. })), "{told:?}");
}

#[test]
fn a_read_does_not_block_the_comparison_it_waits_for() {
    read_waits_aside(Broken::Nothing);
}

pub(super) fn read_waits_aside(broken: Broken) {
    let mut drive = in_doubt(broken);
    drive.crash_target(1);
    drive.config.copies = 4;
    drive.take_over(1);
    let token = drive.begin(read(0, 8));
    drive.pass(2000);
    assert!(drive.world.targets[2].ended.contains_key(&token), "the read waits for itself");
}

#[test]
fn a_copy_that_is_away_and_in_sync_has_every_mark() {
    marked_everywhere(Broken::Nothing);
}

/// Without the store nobody can be recorded stale: what is written then must not be on one copy.
pub(super) fn marked_everywhere(broken: Broken) {
    let mut drive = Drive::quiet_but(2, broken);
    drive.ask(write(0, 4)).unwrap();
    drive.ask(Command::Flush).unwrap();
    drive.pass(500);
    drive.world.store_up = false;
    drive.world.disks[1].up = false;
    drive.begin(write(8, 4));
    drive.pass(500);
    drive.crash_target(0);
    drive.world.disks[0].up = false;
    (drive.world.disks[1].up, drive.world.store_up) = (true, true);
    drive.take_over(1);
    drive.until(|drive| drive.mirror().state() == TargetState::Degraded);
    drive.world.disks[0].up = true;
    drive.until_open();
    assert_eq!(drive.world.disks[0].view(), drive.world.disks[1].view());
}

#[test]
fn a_copy_that_is_about_to_join_is_compared_too() {
    joiner_compared(Broken::Nothing);
}

/// The store does not say whether a copy is recorded in sync; meanwhile a region is in doubt.
pub(super) fn joiner_compared(broken: Broken) {
    let mut drive = Drive::quiet_but(2, broken);
    drive.ask(write(0, 4)).unwrap();
    drive.request(MirrorRequest::AddChild { replica: replica(2), local: false }).unwrap();
    drive.world.store_up = false;
    drive.pass(2000);
    let mut junk = std::vec![9; 1];
    drive.world.disks[2].carry_out(write(41, 1), &mut junk).unwrap();
    drive.world.disks.iter_mut().for_each(|disk| disk.full = true);
    assert_eq!(drive.ask(write(40, 1)), Err(IoError::NoSpace));
    drive.world.disks.iter_mut().for_each(|disk| disk.full = false);
    drive.pass(500);
    drive.world.store_up = true;
    drive.until_open();
    assert_eq!(drive.world.disks[0].view(), drive.world.disks[2].view());
}

#[test]
fn the_map_of_a_copy_that_came_back_in_sync_goes() {
    map_goes(Broken::Nothing);
}

pub(super) fn map_goes(broken: Broken) {
    let mut drive = Drive::quiet_but(2, broken);
    drive.request(MirrorRequest::Offline(replica(1))).unwrap();
    // The last copy in sync is away for a while, and is believed when it is back.
    drive.world.disks[0].up = false;
    let token = drive.begin(write(0, 1));
    drive.pass(500);
    drive.world.disks[0].up = true;
    drive.end(token).unwrap();
    drive.request(MirrorRequest::Online(replica(1))).unwrap();
    drive.until_open();
    drive.request(MirrorRequest::Stop).unwrap();
    for disk in &drive.world.disks[..2] {
        let note = disk.note.as_ref().unwrap();
        assert!(note.missed.is_empty(), "a copy in sync misses nothing: {note:?}");
    }
}

#[test]
fn what_a_former_target_acknowledged_is_not_flushed_after_it_was_lost() {
    loss_told(Broken::Nothing);
}

/// The last copy in sync loses what a former target acknowledged on it: hosts are told.
pub(super) fn loss_told(broken: Broken) {
    let mut drive = Drive::quiet_but(2, broken);
    drive.request(MirrorRequest::Offline(replica(1))).unwrap();
    drive.ask(write(0, 4)).unwrap();
    drive.crash_target(0);
    drive.take_over(0);
    drive.until(|drive| drive.mirror().state() == TargetState::Degraded);
    drive.request(MirrorRequest::Offline(replica(1))).unwrap();
    drive.lose_cache(0);
    let told = drive.ask(Command::Flush);
    assert!(matches!(told, Err(IoError::Medium { .. })), "{told:?}");
}

#[test]
fn a_read_does_not_overtake_a_write_around_the_mirror() {
    read_overtakes(Broken::Nothing);
}

/// A write is on one copy when a read of that copy comes; it never gets to the other one.
pub(super) fn read_overtakes(broken: Broken) {
    let mut drive = Drive::quiet_but(2, broken);
    drive.world.bypass_reads = true;
    drive.ask(write(0, 1)).unwrap();
    drive.ask(Command::Flush).unwrap();
    drive.begin(write(0, 1));
    drive.world.cut.extend([(0, 1), (1, 0)]);
    drive.pass(10);
    drive.begin(read(0, 1));
    drive.pass(10);
    drive.crash_target(0);
    drive.world.disks[0].up = false;
    drive.take_over(1);
    drive.until(|drive| drive.mirror().state() == TargetState::Degraded);
    drive.ask(read(0, 1)).unwrap();
}

#[test]
fn of_copies_that_lost_their_caches_the_one_that_did_first_is_believed() {
    first_loss_believed(Broken::Nothing);
}

/// One copy lost its cache, then both were written, then the other one lost its own.
pub(super) fn first_loss_believed(broken: Broken) {
    let mut drive = in_doubt(broken);
    drive.ask(write(8, 8)).unwrap();
    drive.crash_target(1);
    drive.lose_cache(0);
    drive.config.copies = 4;
    drive.take_over(0);
    drive.ask(read(8, 8)).unwrap();
}

#[test]
fn what_no_copy_in_sync_can_read_is_asked_of_one_that_joins() {
    joiner_asked(Broken::Nothing);
}

/// The store does not say whether a copy is recorded in sync; meanwhile a region is in doubt, of
/// which the others cannot read a block for a while.
pub(super) fn joiner_asked(broken: Broken) {
    let mut drive = Drive::quiet_but(2, broken);
    drive.ask(write(41, 3)).unwrap();
    drive.request(MirrorRequest::AddChild { replica: replica(2), local: false }).unwrap();
    drive.world.store_up = false;
    drive.pass(2000);
    let mut junk = std::vec![9; 1];
    drive.world.disks[2].carry_out(write(41, 1), &mut junk).unwrap();
    for disk in &mut drive.world.disks[..2] {
        disk.bad.insert(41);
    }
    drive.world.disks.iter_mut().for_each(|disk| disk.full = true);
    assert_eq!(drive.ask(write(40, 1)), Err(IoError::NoSpace));
    drive.world.disks.iter_mut().for_each(|disk| disk.full = false);
    drive.pass(500);
    drive.world.store_up = true;
    drive.until_open();
    drive.pass(500);
    drive.world.disks[..2].iter_mut().for_each(|disk| disk.bad.clear());
    assert_eq!(drive.world.disks[0].view(), drive.world.disks[2].view());
    assert_eq!(drive.world.disks[1].view(), drive.world.disks[2].view());
}

#[test]
fn no_copy_joins_while_others_take_a_snapshot() {
    join_waits_for_snapshot(Broken::Nothing);
}

/// A copy is whole at any moment while a slow one is asked for a snapshot.
pub(super) fn join_waits_for_snapshot(broken: Broken) {
    for moment in 0..60 {
        let mut drive = Drive::quiet_but(2, broken);
        drive.ask(write(0, 8)).unwrap();
        drive.world.slow = Some(1);
        drive.give(0, MirrorRequest::AddChild { replica: replica(2), local: false });
        drive.pass(moment * 5);
        let token = drive.begin_snapshot(1);
        drive.until(|drive| drive.world.targets[0].answers.contains_key(&token));
        drive.until_open();
    }
}

#[test]
fn a_copy_that_lost_its_cache_gets_nothing_before_it_is_recorded_stale() {
    not_rebuilt_unrecorded(Broken::Nothing);
}

/// Without the store a copy that lost its cache may still be called in sync.
pub(super) fn not_rebuilt_unrecorded(broken: Broken) {
    let mut drive = Drive::quiet_but(2, broken);
    drive.ask(write(0, 8)).unwrap();
    drive.ask(Command::Flush).unwrap();
    drive.pass(500);
    drive.ask(write(0, 8)).unwrap();
    drive.world.store_up = false;
    let before = drive.world.disks[1].note.clone();
    drive.lose_cache(1);
    drive.pass(2000);
    assert_eq!(drive.world.disks[1].note, before, "its note looks like that of a copy in sync");
}
