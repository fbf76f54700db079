//! Rebuilds, comparisons, and who is read from, one rule at a time.

use core::time::Duration;
use std::vec::Vec;

use block::{Blocks, Command, IoError, Lba, Span};
use model::{
    ChildState, QosLimits, RebuildKind, RebuildState, Size, SuspendReason, SuspendedIo, TargetState,
};

use super::drive::{Drive, replica};
use crate::MirrorRequest;

fn span(start: u64, len: u64) -> Span {
    Span::new(Lba(start), Blocks(len)).unwrap()
}

fn write(start: u64, len: u64) -> Command {
    Command::Write { span: span(start, len), fua: false }
}

/// Blocks that were looked at since this was asked last, by disk.
fn read(drive: &mut Drive) -> Vec<u64> {
    drive.world.disks.iter_mut().map(|disk| core::mem::take(&mut disk.read)).collect()
}

/// A volume of so many copies whose regions are all written, and marked no more.
fn written(copies: usize) -> Drive {
    let mut drive = Drive::quiet(copies);
    (0..8).for_each(|region| drive.ask(write(region * 8, 8)).unwrap());
    drive.ask(Command::Flush).unwrap();
    drive.pass(1000);
    read(&mut drive);
    drive
}

fn states(drive: &Drive) -> Vec<ChildState> {
    drive.mirror().children().iter().map(|child| child.state).collect()
}

#[test]
fn a_rebuild_reads_from_all_copies_in_sync() {
    let mut drive = written(3);
    drive.request(MirrorRequest::AddChild { replica: replica(3), local: false }).unwrap();
    drive.until_open();
    let rebuild = drive.mirror().rebuilds().last().unwrap().clone();
    assert_eq!((rebuild.extent, rebuild.sources.len()), (RebuildKind::Full, 3));
    let read = read(&mut drive);
    assert!(read.iter().take(3).all(|blocks| *blocks > 0), "{read:?}");
    assert_eq!(read.iter().sum::<u64>(), 64);
    assert_eq!(drive.world.disks[0].view(), drive.world.disks[3].view());
}

#[test]
fn several_copies_are_rebuilt_at_once() {
    let mut drive = written(3);
    for nth in [1, 2] {
        drive.request(MirrorRequest::Offline(replica(nth))).unwrap();
    }
    (0..8).for_each(|region| drive.ask(write(region * 8, 8)).unwrap());
    drive.request(MirrorRequest::RebuildLimit(Some(Size::mib(1)))).unwrap();
    for nth in [1, 2] {
        drive.request(MirrorRequest::Online(replica(nth))).unwrap();
    }
    drive.until(|drive| states(drive)[1..] == [ChildState::Rebuilding; 2]);
    drive.until_open();
    let ended = |rebuild: &&model::Rebuild| *rebuild.state() == RebuildState::Completed {};
    assert_eq!(drive.mirror().rebuilds().filter(ended).count(), 2);
    for nth in [1, 2] {
        assert_eq!(drive.world.disks[0].view(), drive.world.disks[nth].view());
    }
}

#[test]
fn a_rebuild_keeps_its_limit() {
    // 64 blocks; a tenth of a second's worth goes at once.
    for (limit, least, most) in [(None, 0, 150), (Some(Size::mib(1)), 140, 400)] {
        let mut drive = written(2);
        drive.request(MirrorRequest::Offline(replica(1))).unwrap();
        (0..8).for_each(|region| drive.ask(write(region * 8, 8)).unwrap());
        drive.pass(10);
        drive.request(MirrorRequest::RebuildLimit(limit)).unwrap();
        let before = drive.world.now;
        drive.request(MirrorRequest::Online(replica(1))).unwrap();
        drive.until_open();
        let took = drive.world.now - before;
        assert!((least..most).contains(&took), "{limit:?}: {took}");
    }
}

#[test]
fn what_a_copy_did_not_keep_is_noticed_by_looking() {
    for verify in [false, true] {
        let mut drive = written(2);
        drive.config.verify = verify;
        drive.take_over(1);
        drive.until_open();
        drive.world.disks[2].forgets = 3;
        drive.request(MirrorRequest::AddChild { replica: replica(2), local: false }).unwrap();
        drive.until_open();
        let is_same = drive.world.disks[0].view() == drive.world.disks[2].view();
        assert_eq!(is_same, verify);
    }
}

#[test]
fn after_an_unclean_end_only_marked_regions_are_compared() {
    let mut drive = written(2);
    drive.ask(write(17, 2)).unwrap();
    drive.world.targets[0].alive = false;
    drive.take_over(1);
    drive.until_open();
    drive.pass(1000);
    // One region, read on one copy and compared on the other.
    assert_eq!(read(&mut drive), [8, 8, 0]);
    drive.request(MirrorRequest::Stop).unwrap();
    drive.take_over(0);
    drive.until_open();
    drive.pass(1000);
    assert_eq!(read(&mut drive), [0, 0, 0], "it ended well");
}

#[test]
fn reads_go_to_the_local_copy_else_to_the_quickest() {
    let mut drive = written(3);
    let mut looked_at = |nearest: &[(usize, u64, bool)]| {
        let target = drive.world.targets.len() - 1;
        for (slot, millis, local) in nearest {
            let latency = Duration::from_millis(*millis);
            drive.world.targets[target].mirror.place(*slot, latency, *local);
        }
        drive.ask(Command::Read { span: span(0, 1) }).unwrap();
        read(&mut drive)
    };
    assert_eq!(looked_at(&[(0, 9, true), (1, 1, false), (2, 2, false)]), [1, 0, 0, 0]);
    assert_eq!(looked_at(&[(0, 9, false), (1, 1, false), (2, 2, false)]), [0, 1, 0, 0]);
    assert_eq!(looked_at(&[(0, 9, false), (1, 8, false), (2, 2, false)]), [0, 0, 1, 0]);
}

#[test]
fn hosts_do_not_wait_for_the_store_for_ever() {
    let mut drive = written(2);
    drive.world.store_up = false;
    drive.world.disks[1].up = false;
    assert_eq!(drive.ask(write(0, 1)), Err(IoError::Unreachable));
    let held =
        TargetState::Suspended { cause: SuspendReason::NotRecorded, io: SuspendedIo::Failing };
    assert_eq!(drive.mirror().state(), held);
    drive.world.store_up = true;
    drive.until(|drive| drive.mirror().state() == TargetState::Degraded);
    drive.ask(write(0, 1)).unwrap();
}

/// Whether a read of the first block could go around the mirror now.
fn goes_around(drive: &mut Drive) -> bool {
    let now = super::world::at(drive.world.now);
    let mirror = &mut drive.world.targets.last_mut().unwrap().mirror;
    let found = mirror.try_bypass(Command::Read { span: span(0, 1) }, now).is_some();
    if found {
        let _ = mirror.bypass_done(block::Instant::ZERO);
    }
    found
}

#[test]
fn reads_of_a_local_copy_go_around_while_nothing_else_is_under_way() {
    let mut drive = written(2);
    assert!(!goes_around(&mut drive), "nothing was proved for long");
    drive.ask(Command::Read { span: span(0, 1) }).unwrap();
    assert!(goes_around(&mut drive));
    let token = drive.begin(write(8, 1));
    assert!(!goes_around(&mut drive), "a write is under way");
    drive.end(token).unwrap();
    assert!(goes_around(&mut drive));
    drive
        .request(MirrorRequest::Limit(QosLimits { iops: Some(1000), bytes_per_second: None }))
        .unwrap();
    assert!(!goes_around(&mut drive), "there is a limit");
    drive.request(MirrorRequest::Limit(QosLimits::default())).unwrap();
    drive.request(MirrorRequest::Offline(replica(0))).unwrap();
    drive.until(|drive| drive.mirror().state() == TargetState::Degraded);
    assert!(!goes_around(&mut drive), "the local copy is away");
}

#[test]
fn a_stop_waits_for_reads_that_went_around() {
    let mut drive = written(2);
    drive.ask(Command::Read { span: span(0, 1) }).unwrap();
    let now = super::world::at(drive.world.now);
    let mirror = &mut drive.world.targets[0].mirror;
    assert!(mirror.try_bypass(Command::Read { span: span(0, 1) }, now).is_some());
    drive.give(0, MirrorRequest::Stop);
    drive.pass(500);
    assert!(!matches!(drive.mirror().state(), TargetState::Shutdown { .. }));
    let now = super::world::at(drive.world.now);
    assert!(drive.world.targets[0].mirror.bypass_done(now));
    drive.world.drain(0);
    drive.until(|drive| drive.world.record.end() == model::ShutdownState::Clean);
}
