//! Damage, one rule at a time: who is asked, who is believed, who is rewritten.

use std::collections::BTreeSet;
use std::vec::Vec;

use block::{Blocks, Command, IoError, Lba, Span};
use model::{ChildState, ReplicaId};

use super::Broken;
use super::drive::{Drive, replica};
use crate::{Checked, MirrorRequest, UnreadableBlocks};

fn span(start: u64, len: u64) -> Span {
    Span::new(Lba(start), Blocks(len)).unwrap()
}

fn read(start: u64, len: u64) -> Command {
    Command::Read { span: span(start, len) }
}

/// A volume of so many copies with eight blocks written and flushed, and what they hold.
fn written(copies: usize) -> (Drive, Vec<u64>) {
    let mut drive = Drive::quiet(copies);
    drive.ask(Command::Write { span: span(0, 8), fua: false }).unwrap();
    drive.ask(Command::Flush).unwrap();
    let view = drive.world.disks[0].view();
    (drive, view)
}

impl Drive {
    fn check_blocks(&mut self, span: Span, believed: Option<ReplicaId>) -> Checked {
        let target = self.world.targets.len() - 1;
        let token = self.give(
            target,
            MirrorRequest::Check { span, believed, unreadable: UnreadableBlocks::Tell },
        );
        self.until(|drive| drive.world.targets[target].answers.contains_key(&token));
        self.world.targets[target].answers.remove(&token).unwrap().unwrap();
        self.world.targets[target].checked.remove(&token).unwrap()
    }

    fn damaged(&self, disk: usize) -> Vec<u64> {
        let disk = &self.world.disks[disk];
        disk.bad.union(&disk.unproven).copied().collect()
    }
}

#[test]
fn a_check_mends_the_copy_that_is_not_read() {
    let (mut drive, wanted) = written(2);
    drive.world.disks[1].bad.insert(5);
    let found = drive.check_blocks(span(0, 64), None);
    assert_eq!(found, Checked { bad: 1, repaired: 1, ..Checked::default() });
    assert!(drive.damaged(1).is_empty());
    assert_eq!(drive.check_blocks(span(0, 64), None), Checked::default());
    assert_eq!(drive.world.disks[1].view(), wanted);
}

/// Repairs of a block by a check, and by a read that finds it, and writes over it that are none.
fn repairs(broken: Broken) -> Vec<(u64, u64)> {
    let repairs = [false, true].into_iter().map(|is_read| {
        let mut drive = Drive::quiet_but(2, broken);
        drive.ask(Command::Write { span: span(0, 8), fua: false }).unwrap();
        drive.ask(Command::Flush).unwrap();
        let wanted = drive.world.disks[1].view();
        drive.world.disks[0].bad.insert(5);
        if is_read {
            drive.ask(read(4, 4)).unwrap();
            assert_eq!(drive.last_read, wanted[4..8]);
            drive.pass(1000);
        } else {
            drive.check_blocks(span(0, 64), None);
        }
        let disk = &drive.world.disks[0];
        assert!(disk.bad.is_empty() && disk.view() == wanted);
        (disk.repaired, disk.blind)
    });
    repairs.collect()
}

#[test]
fn a_bad_block_is_repaired_and_not_merely_overwritten() {
    assert_eq!(repairs(Broken::Nothing), [(1, 0); 2]);
    assert_eq!(repairs(Broken::RepairByWriting), [(0, 1); 2], "else nobody would notice");
}

#[test]
fn blocks_that_are_bad_on_different_copies_are_read_one_by_one() {
    let (mut drive, wanted) = written(2);
    drive.world.disks[0].bad.insert(2);
    drive.world.disks[1].bad.insert(6);
    drive.ask(read(0, 8)).unwrap();
    assert_eq!(drive.last_read, wanted[..8]);
    assert!(drive.damaged(0).is_empty() && drive.damaged(1).is_empty());
}

#[test]
fn what_no_copy_can_give_is_told_block_by_block_and_left() {
    let (mut drive, _) = written(2);
    for disk in 0..2 {
        drive.world.disks[disk].bad.extend([3, 4]);
    }
    drive.world.disks[1].bad.insert(6);
    let found = drive.check_blocks(span(0, 64), None);
    assert_eq!((found.bad, found.repaired), (5, 1));
    assert_eq!(found.unreadable, [span(3, 1), span(4, 1)]);
    assert_eq!(drive.damaged(0), [3, 4]);
    assert!(matches!(drive.ask(read(0, 8)), Err(IoError::Checksum { .. })));
    drive.ask(read(5, 3)).unwrap();
}

#[test]
fn a_block_that_another_copy_proves_is_not_believed_without_proof() {
    let (mut drive, wanted) = written(2);
    drive.world.disks[0].unproven.insert(5);
    drive.world.disks[0].rot(5);
    drive.ask(read(4, 4)).unwrap();
    assert_eq!(drive.last_read, wanted[4..8]);
    drive.pass(1000);
    assert!(drive.damaged(0).is_empty());
    assert_eq!(drive.world.disks[0].view(), wanted);
}

#[test]
fn what_no_copy_can_prove_is_believed_when_all_were_asked() {
    let (mut drive, wanted) = written(3);
    (0..3).for_each(|disk| drive.world.disks[disk].unproven.extend([5, 6]));
    drive.ask(read(5, 1)).unwrap();
    assert_eq!(drive.last_read, wanted[5..6]);
    for disk in 0..3 {
        assert_eq!(drive.damaged(disk), [6]);
    }
    drive.ask(read(0, 8)).unwrap();
    assert_eq!(drive.last_read, wanted[..8]);
    assert!((0..3).all(|disk| drive.damaged(disk).is_empty()));
}

#[test]
fn a_rotten_block_is_never_the_one_that_is_believed() {
    let (mut drive, wanted) = written(2);
    drive.world.disks[0].bad.insert(5);
    drive.world.disks[1].unproven.insert(5);
    drive.ask(read(5, 1)).unwrap();
    assert_eq!(drive.last_read, wanted[5..6]);
    assert!(drive.damaged(0).is_empty() && drive.damaged(1).is_empty());
    assert_eq!(drive.world.disks[0].view(), wanted);
}

#[test]
fn nobody_is_believed_while_a_copy_in_sync_is_away() {
    let (mut drive, wanted) = written(2);
    drive.world.disks[0].unproven.insert(5);
    drive.world.store_up = false;
    drive.cut(0, 1);
    let token = drive.begin(read(5, 1));
    drive.pass(1000);
    assert_eq!(drive.damaged(0), [5]);
    // When that is recorded, there is nobody else to ask.
    drive.world.store_up = true;
    drive.end(token).unwrap();
    assert_eq!(drive.last_read, wanted[5..6]);
    assert!(drive.damaged(0).is_empty());
}

#[test]
fn a_rebuild_believes_what_its_only_source_cannot_prove() {
    let (mut drive, wanted) = written(2);
    drive.request(MirrorRequest::RemoveChild(replica(1))).unwrap();
    drive.world.disks[0].unproven.extend([1, 7]);
    drive.request(MirrorRequest::AddChild { replica: replica(2), local: false }).unwrap();
    drive.until_open();
    assert!(drive.damaged(0).is_empty());
    assert_eq!(drive.world.disks[2].view(), wanted);
    assert_eq!(drive.mirror().children()[1].state, ChildState::InSync);
}

#[test]
fn good_copies_that_differ_are_told_and_left_unless_one_is_named() {
    let (mut drive, wanted) = written(2);
    let mut other = std::vec![77];
    let command = Command::Write { span: span(5, 1), fua: true };
    drive.world.disks[1].carry_out(command, &mut other).unwrap();
    drive.world.differing = Some(Vec::new());
    let found = drive.check_blocks(span(0, 64), None);
    let [(at, on)] = &found.differing[..] else { panic!("{found:?}") };
    assert_eq!((*at, on.iter().copied().collect()), (span(5, 1), both()));
    assert_eq!((found.bad, drive.world.disks[1].block(5)), (0, 77));
    let found = drive.check_blocks(span(0, 64), Some(replica(0)));
    assert_eq!(found.differing.len(), 1);
    assert_eq!(drive.world.disks[1].view(), wanted);
    assert_eq!(drive.check_blocks(span(0, 64), None), Checked::default());
}

#[test]
fn what_no_copy_can_give_becomes_zeroes_when_somebody_agrees() {
    let (mut drive, wanted) = written(2);
    for disk in 0..2 {
        drive.world.disks[disk].bad.insert(3);
    }
    drive.world.disks[1].bad.insert(6);
    let request = MirrorRequest::Check {
        span: span(0, 64),
        believed: None,
        unreadable: UnreadableBlocks::Zero,
    };
    drive.request(request).unwrap();
    let expected: Vec<u64> =
        (0..).zip(wanted).map(|(at, stamp)| if at == 3 { 0 } else { stamp }).collect();
    assert_eq!(drive.world.disks[0].view(), expected);
    assert!(drive.damaged(0).is_empty() && drive.damaged(1).is_empty());
    assert_eq!(drive.world.disks[0].view(), drive.world.disks[1].view());
}

#[test]
fn what_no_copy_can_give_is_kept_as_one_copy_holds_it_when_somebody_says_so() {
    let (mut drive, wanted) = written(3);
    for disk in 0..3 {
        drive.world.disks[disk].bad.insert(3);
    }
    drive.world.disks[0].bad.insert(6);
    let unreadable = UnreadableBlocks::Keep(replica(1));
    let request = MirrorRequest::Check { span: span(0, 64), believed: None, unreadable };
    drive.request(request).unwrap();
    for disk in 0..3 {
        assert!(drive.damaged(disk).is_empty(), "copy {disk}");
        assert_eq!(drive.world.disks[disk].view(), wanted, "copy {disk}");
    }
    assert_eq!(drive.check_blocks(span(0, 64), None), Checked::default());
}

/// What a check makes of a block is in no map: a copy that is away would not learn of it.
#[test]
fn nothing_is_given_up_or_believed_while_a_copy_is_away() {
    let (mut drive, _) = written(2);
    drive.world.disks[0].bad.insert(3);
    drive.cut(0, 1);
    drive.ask(Command::Write { span: span(9, 1), fua: false }).unwrap();
    let (zero, keep) = (UnreadableBlocks::Zero, UnreadableBlocks::Keep(replica(0)));
    let tell = UnreadableBlocks::Tell;
    for (believed, unreadable) in [(None, zero), (None, keep), (Some(replica(0)), tell)] {
        let request = MirrorRequest::Check { span: span(0, 64), believed, unreadable };
        let refused = drive.request(request).unwrap_err();
        assert!(refused.contains("wait until all copies are in sync"), "{refused}");
    }
    assert_eq!(drive.damaged(0), [3]);
}

fn both() -> BTreeSet<ReplicaId> {
    BTreeSet::from([replica(0), replica(1)])
}

#[test]
fn a_check_of_too_much_or_by_a_stranger_is_refused() {
    let (mut drive, _) = written(2);
    let check = |blocks, believed, unreadable| MirrorRequest::Check {
        span: span(0, blocks),
        believed,
        unreadable,
    };
    assert!(drive.request(check(65, None, UnreadableBlocks::Tell)).is_err());
    assert!(drive.request(check(1, Some(replica(3)), UnreadableBlocks::Tell)).is_err());
    assert!(drive.request(check(1, None, UnreadableBlocks::Keep(replica(3)))).is_err());
}
