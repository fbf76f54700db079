//! One rule at a time, without trouble.

use std::collections::BTreeSet;
use std::string::String;
use std::vec::Vec;

use block::{Blocks, Command, IoError, Lba, Span};
use model::{
    ChildState, FaultReason, QosLimits, RebuildKind, RebuildState, SnapshotId, StopCause,
    SuspendReason, SuspendedIo, TargetState,
};
use uuid::Uuid;

use super::Broken;
use super::disk::Snapshot;
use super::drive::{Drive, replica};
use super::world::STORE;
use crate::{CommandId, MirrorRequest, RebuildCommand};

pub(super) fn span(start: u64, len: u64) -> Span {
    Span::new(Lba(start), Blocks(len)).unwrap()
}

pub(super) fn write(start: u64, len: u64) -> Command {
    Command::Write { span: span(start, len), fua: false }
}

fn child(drive: &Drive, nth: usize) -> ChildState {
    drive.mirror().children()[nth].state
}

#[test]
fn a_bad_block_is_read_elsewhere_and_rewritten() {
    let mut drive = Drive::quiet(2);
    drive.ask(write(0, 4)).unwrap();
    let wanted = drive.world.disks[1].view();
    drive.world.disks[0].bad.insert(2);
    drive.world.disks[1].bad.insert(1);
    drive.ask(Command::Read { span: span(2, 1) }).unwrap();
    drive.ask(Command::Read { span: span(1, 1) }).unwrap();
    assert_eq!(drive.last_read, wanted[1..2]);
    drive.pass(1000);
    assert!(drive.world.disks[0].bad.is_empty() && child(&drive, 0) == ChildState::InSync);
    // Only the copy that is asked first is repaired by reads.
    assert_eq!(drive.world.disks[1].bad, BTreeSet::from([1]));
    // What all copies have wrong is an error, never a guess.
    drive.world.disks[0].bad.insert(1);
    let refused = drive.ask(Command::Read { span: span(1, 1) });
    assert!(matches!(refused, Err(IoError::Checksum { .. })), "{refused:?}");
}

#[test]
fn what_a_child_missed_is_copied_and_no_more() {
    let mut drive = Drive::quiet(2);
    (0..8).for_each(|region| drive.ask(write(region * 8, 8)).unwrap());
    drive.ask(Command::Flush).unwrap();
    drive.request(MirrorRequest::Offline(replica(1))).unwrap();
    drive.ask(write(17, 2)).unwrap();
    drive.request(MirrorRequest::Online(replica(1))).unwrap();
    drive.until_open();
    let rebuild = drive.mirror().rebuilds().last().unwrap().clone();
    assert_eq!(
        (rebuild.extent, rebuild.state()),
        (RebuildKind::Partial, &RebuildState::Completed {})
    );
    assert_eq!(rebuild.progress.total.bytes().0, 8 * 4096);
    assert_eq!(drive.world.targets[0].copied, 8);
    assert_eq!(drive.world.disks[0].view(), drive.world.disks[1].view());
}

#[test]
fn a_new_replica_gets_what_is_written_and_its_holes() {
    let mut drive = Drive::quiet(2);
    drive.ask(write(3, 5)).unwrap();
    let mut junk = std::vec![9; 4];
    drive.world.disks[2].carry_out(write(40, 4), &mut junk).unwrap();
    drive.request(MirrorRequest::AddChild { replica: replica(2), local: false }).unwrap();
    drive.until_open();
    let rebuild = drive.mirror().rebuilds().last().unwrap();
    assert_eq!(rebuild.extent, RebuildKind::Full);
    assert_eq!(drive.world.targets[0].copied, 5);
    assert_eq!(drive.world.disks[0].view(), drive.world.disks[2].view());
    drive.request(MirrorRequest::RemoveChild(replica(0))).unwrap();
    assert_eq!(drive.mirror().children().len(), 2);
}

#[test]
fn a_rebuild_waits_goes_on_and_ends_when_told() {
    let mut drive = Drive::quiet(2);
    (0..8).for_each(|region| drive.ask(write(region * 8, 8)).unwrap());
    drive.request(MirrorRequest::RebuildLimit(Some(model::Size::mib(1)))).unwrap();
    drive.request(MirrorRequest::AddChild { replica: replica(2), local: false }).unwrap();
    drive.until(|drive| child(drive, 2) == ChildState::Rebuilding);
    let id = replica(2);
    drive.request(MirrorRequest::Rebuild(id, RebuildCommand::Pause)).unwrap();
    drive.pass(5000);
    assert_eq!(child(&drive, 2), ChildState::Rebuilding);
    drive.ask(write(0, 2)).unwrap();
    drive.request(MirrorRequest::Rebuild(id, RebuildCommand::Cancel)).unwrap();
    assert_eq!(child(&drive, 2), ChildState::Stale);
    drive.pass(5000);
    assert_eq!(child(&drive, 2), ChildState::Stale);
    drive.request(MirrorRequest::Rebuild(id, RebuildCommand::Start)).unwrap();
    drive.until_open();
    let states: Vec<_> = drive.mirror().rebuilds().map(|rebuild| rebuild.state().name()).collect();
    assert_eq!(states, ["cancelled", "completed"]);
    assert_eq!(drive.world.disks[0].view(), drive.world.disks[2].view());
}

#[test]
fn the_last_copy_is_waited_for_and_hosts_not_for_ever() {
    let mut drive = Drive::quiet(2);
    drive.request(MirrorRequest::Offline(replica(1))).unwrap();
    assert!(drive.request(MirrorRequest::Offline(replica(0))).is_err());
    drive.world.disks[0].up = false;
    let token = drive.begin(write(0, 1));
    drive.pass(1000);
    let held = |io| TargetState::Suspended { cause: SuspendReason::NoChild, io };
    assert_eq!(drive.mirror().state(), held(SuspendedIo::Waiting));
    drive.world.disks[0].up = true;
    assert_eq!(drive.end(token), Ok(()));
    assert!(drive.world.record.set().in_sync().contains(&replica(0)));
    drive.world.disks[0].up = false;
    assert_eq!(drive.ask(write(0, 1)), Err(IoError::Unreachable));
    assert_eq!(drive.mirror().state(), held(SuspendedIo::Failing));
    assert_eq!(drive.ask(write(0, 1)), Err(IoError::Unreachable));
    drive.world.disks[0].up = true;
    drive.until(|drive| drive.mirror().state() == TargetState::Degraded);
    assert_eq!(drive.ask(write(0, 1)), Ok(()));
}

#[test]
fn without_the_store_a_failure_holds_and_nothing_else() {
    let mut drive = Drive::quiet(2);
    drive.world.store_up = false;
    drive.ask(write(0, 1)).unwrap();
    drive.world.disks[1].up = false;
    let token = drive.begin(write(0, 1));
    drive.pass(1000);
    let cause = SuspendReason::NotRecorded;
    assert_eq!(drive.mirror().state(), TargetState::Suspended { cause, io: SuspendedIo::Waiting });
    drive.world.store_up = true;
    assert_eq!(drive.end(token), Ok(()));
    assert!(!drive.world.record.set().in_sync().contains(&replica(1)));
    let note = drive.world.disks[0].note.clone().unwrap();
    assert_eq!(note.label.set, *drive.world.record.set());
    assert!(note.missed.contains_key(&replica(1)));
}

#[test]
fn a_full_copy_goes_stale_and_full_copies_say_so() {
    let mut drive = Drive::quiet(2);
    drive.ask(write(0, 1)).unwrap();
    drive.world.disks.iter_mut().for_each(|disk| disk.full = true);
    assert_eq!(drive.ask(write(5, 1)), Err(IoError::NoSpace));
    assert_eq!(drive.ask(write(0, 1)), Ok(()));
    assert_eq!(drive.mirror().state(), TargetState::Open);
    drive.world.disks[0].full = false;
    assert_eq!(drive.ask(write(5, 1)), Ok(()));
    let full = ChildState::Faulted { reason: FaultReason::NoSpace };
    let seen = drive.changes(replica(1));
    assert!(seen.contains(&full), "{seen:?}");
    drive.world.disks[1].full = false;
    drive.until_open();
}

#[test]
fn who_is_fenced_shuts_down_and_faults_nobody() {
    fence(Broken::Nothing);
}

pub(super) fn fence(broken: Broken) {
    let mut drive = Drive::quiet_but(2, broken);
    drive.take_over(1);
    drive.until_open();
    let token = drive.begin_on(0, write(0, 1));
    assert_eq!(drive.end_on(0, token), Err(IoError::Fenced));
    let down = TargetState::Shutdown { cause: StopCause::Fenced };
    drive.until(|drive| drive.world.targets[0].mirror.state() == down);
    assert!(drive.world.record.set().is_whole());
    assert_eq!(drive.ask(write(0, 1)), Ok(()));
}

#[test]
fn a_volume_grows_when_its_replicas_have() {
    let mut drive = Drive::quiet(2);
    assert!(drive.ask(write(70, 1)).is_err());
    assert!(drive.request(MirrorRequest::Resize(Blocks(500))).is_err());
    assert!(drive.request(MirrorRequest::Resize(Blocks(10))).is_err());
    drive.request(MirrorRequest::Resize(Blocks(96))).unwrap();
    drive.request(MirrorRequest::Resize(Blocks(96))).unwrap();
    assert_eq!(drive.ask(write(70, 1)), Ok(()));
    let label = drive.world.disks[1].note.clone().unwrap().label;
    assert_eq!(label.size.bytes().0, 96 * 4096);
}

#[test]
fn a_snapshot_is_on_all_copies_or_on_none() {
    snapshot(Broken::Nothing);
}

pub(super) fn snapshot(broken: Broken) {
    let mut drive = Drive::quiet_but(2, broken);
    drive.ask(write(0, 4)).unwrap();
    drive.snapshot(1).unwrap();
    drive.world.disks[1].full = true;
    assert!(drive.snapshot(2).is_err());
    let taken = |disk: usize| drive.world.disks[disk].snapshots.keys().copied().collect::<Vec<_>>();
    assert_eq!((taken(0), taken(1)), (std::vec![snapshot_id(1)], std::vec![snapshot_id(1)]));
}

fn snapshot_id(n: u128) -> SnapshotId {
    SnapshotId::new(Uuid::from_u128(n)).unwrap()
}

impl Drive {
    /// Asks for a snapshot, and goes on.
    pub(super) fn begin_snapshot(&mut self, n: u128) -> CommandId {
        let request = MirrorRequest::Snapshot(snapshot_id(n), self.attempt());
        self.give(self.world.targets.len() - 1, request)
    }

    fn snapshot(&mut self, n: u128) -> Result<(), String> {
        let request = MirrorRequest::Snapshot(snapshot_id(n), self.attempt());
        self.request(request)
    }

    /// What a disk has of a snapshot.
    fn taken(&self, disk: usize, n: u128) -> Option<Snapshot> {
        self.world.disks[disk].snapshots.get(&snapshot_id(n)).cloned()
    }
}

#[test]
fn a_snapshot_that_failed_is_taken_anew_by_all() {
    snapshot_again(Broken::Nothing);
}

/// One copy is lost when it has taken a snapshot and others drop theirs; it is back. Another has
/// a snapshot that nobody remembers.
pub(super) fn snapshot_again(broken: Broken) {
    let mut drive = Drive::quiet_but(2, broken);
    drive.ask(write(0, 4)).unwrap();
    drive.world.disks[0].full = true;
    let token = drive.begin_snapshot(1);
    drive.until(|drive| drive.taken(1, 1).is_some());
    drive.world.disks[1].up = false;
    drive.until(|drive| drive.world.targets[0].answers.contains_key(&token));
    assert!(drive.taken(0, 1).is_none() && drive.taken(1, 1).is_some());
    drive.world.disks[0].full = false;
    drive.ask(write(2, 4)).unwrap();
    drive.world.disks[1].up = true;
    drive.until_open();
    drive.snapshot(1).unwrap();
    assert_eq!(drive.taken(0, 1), drive.taken(1, 1));
    // Of two moments it is refused; what was there stays.
    let stray = Snapshot { view: drive.world.disks[1].view(), attempt: None };
    drive.world.disks[1].snapshots.insert(snapshot_id(2), stray);
    drive.ask(write(2, 4)).unwrap();
    assert!(drive.snapshot(2).is_err());
    assert!(drive.taken(0, 2).is_none() && drive.taken(1, 2).is_some());
    // All of them have it: it is the same one, asked for twice.
    let before = drive.taken(0, 1);
    drive.snapshot(1).unwrap();
    assert!(before.is_some() && drive.taken(0, 1) == before && drive.taken(1, 1) == before);
}

#[test]
fn what_two_targets_left_of_one_snapshot_is_no_snapshot() {
    snapshot_of_two_attempts(Broken::Nothing);
}

/// One target dies when the first copy has a snapshot and the second has not; the next one when the
/// second has it, too. All copies have it then, of two moments.
pub(super) fn snapshot_of_two_attempts(broken: Broken) {
    let mut drive = Drive::quiet_but(2, broken);
    drive.ask(write(0, 4)).unwrap();
    drive.world.disks[1].full = true;
    for disk in 0..2 {
        drive.begin_snapshot(1);
        drive.until(|drive| drive.taken(disk, 1).is_some());
        drive.crash_target(0);
        drive.world.disks[1].full = false;
        drive.take_over(0);
        drive.until_open();
        drive.ask(write(2, 4)).unwrap();
    }
    let left = [drive.taken(0, 1), drive.taken(1, 1)];
    assert_ne!(left[0].as_ref().map(|one| &one.view), left[1].as_ref().map(|one| &one.view));
    let refused = drive.snapshot(1);
    assert!(refused.as_ref().is_err_and(|why| why.contains("another moment")), "{refused:?}");
    // Nobody knows which of them somebody relies on.
    assert_eq!([drive.taken(0, 1), drive.taken(1, 1)], left);
    drive.snapshot(2).unwrap();
    assert_eq!(drive.taken(0, 2), drive.taken(1, 2));
}

#[test]
fn limits_slow_hosts_down() {
    let slow = QosLimits { iops: Some(10), bytes_per_second: None };
    let narrow = QosLimits { iops: None, bytes_per_second: Some(QosLimits::LEAST_BANDWIDTH) };
    // Ten a second, and 256 blocks a second: a tenth of a second's worth goes at once.
    for (limits, commands, blocks) in [(slow, 20, 1), (narrow, 64, 8)] {
        let mut drive = Drive::quiet(2);
        (0..4).for_each(|_| drive.ask(write(0, blocks)).unwrap());
        assert_eq!(drive.mirror().throttled(), 0);
        drive.request(MirrorRequest::Limit(limits)).unwrap();
        let before = drive.world.now;
        (0..commands).for_each(|_| drive.ask(write(0, blocks)).unwrap());
        let took = drive.world.now - before;
        assert!((1800..2500).contains(&took), "{took}");
        let throttled = drive.mirror().throttled();
        assert!(throttled >= commands / 2, "{throttled}");
        drive.request(MirrorRequest::Limit(QosLimits::default())).unwrap();
        let before = drive.world.now;
        (0..commands).for_each(|_| drive.ask(write(0, blocks)).unwrap());
        assert!(drive.world.now - before < 500, "{}", drive.world.now - before);
        assert_eq!(drive.mirror().throttled(), throttled);
    }
}

#[test]
fn an_ordered_stop_is_clean_unless_a_copy_in_sync_is_away() {
    let mut drive = Drive::quiet(2);
    drive.ask(write(0, 1)).unwrap();
    drive.request(MirrorRequest::Stop).unwrap();
    assert_eq!(drive.world.record.end(), model::ShutdownState::Clean);
    let mut drive = Drive::quiet(2);
    drive.ask(write(0, 1)).unwrap();
    drive.world.cut.insert((0, STORE));
    drive.request(MirrorRequest::Stop).unwrap();
    assert_eq!(drive.world.record.end(), model::ShutdownState::Unclean);
}

#[test]
fn a_former_owner_that_is_cut_off_answers_no_reads() {
    read_by_a_former_owner(Broken::Nothing);
}

pub(super) fn read_by_a_former_owner(broken: Broken) {
    let mut drive = Drive::quiet_but(2, broken);
    drive.ask(write(0, 1)).unwrap();
    // Its local copy is all that it reaches.
    drive.cut(0, 1);
    drive.cut(0, STORE);
    drive.take_over(1);
    drive.until(|drive| drive.mirror().state() == TargetState::Degraded);
    drive.ask(write(0, 1)).unwrap();
    let token = drive.begin_on(0, Command::Read { span: span(0, 1) });
    assert_eq!(drive.end_on(0, token), Err(IoError::Unreachable));
}
