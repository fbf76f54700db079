//! Parts of maps that a disk cannot read, and what several commands do to each other meanwhile.

use std::ops::Range;
use std::vec::Vec;

use block::{Blocks, Bytes, Command, IoError, Lba, Span};

use super::disk::Random;
use super::driver::{Ended, Moment, Rig, new_disks, open, open_with};
use super::history::{new_replica, replica};
use super::model::stamped;
use crate::layout::Use;
use crate::{BlockQuery, Change, Id, ImportError, Label, NewSnapshot, Place, QueryKind, Refused};

const CLUSTER: u64 = 64;
const SIZES: &[u64] = &[40_000];
const A: Id = Id(1);
const B: Id = Id(2);
/// A snapshot of the first.
const S: Id = Id(3);
/// Clusters with a block each, so many that their pages fill the first block of a checkpoint;
/// behind them there is room for more.
const USED: u64 = 100;

fn stamp(id: Id, nth: u64) -> u64 {
    1000 * id.0 as u64 + nth
}

/// Two replicas of several pages, none of which is in memory.
fn two() -> Rig {
    let mut rig = open_with(new_disks(SIZES, CLUSTER), SIZES, Bytes::ZERO);
    for id in [A, B] {
        rig.must(replica(id.0, 0, (USED + 2) * CLUSTER));
        for nth in 0..USED {
            rig.write(id, nth * CLUSTER, &stamped(stamp(id, nth))).unwrap();
        }
    }
    rig.flush(A).unwrap();
    rig.pool.request_checkpoint();
    rig.settle();
    rig
}

/// The bodies of checkpoints.
pub(super) fn bodies(rig: &Rig) -> Vec<Range<Place>> {
    let slots = [(0, 0), (0, 1), (1, 0), (1, 1)];
    let body = |(slot, copy)| {
        let area = rig.pool.superblock().area(Use::Checkpoint { slot, copy }).unwrap();
        let at = |block| Place { block: area.start.block + block, ..area.start };
        at(1)..at(area.blocks)
    };
    slots.map(body).into_iter().collect()
}

fn all_is_there(rig: &mut Rig) {
    for (id, nth) in [A, B].into_iter().flat_map(|id| (0..USED).map(move |nth| (id, nth))) {
        assert_eq!(rig.stamps(id, nth * CLUSTER, 1), Ok(std::vec![stamp(id, nth)]), "{id:?} {nth}");
    }
    assert_eq!(rig.pool.health().damaged, []);
}

#[test]
fn a_checkpoint_that_cannot_copy_a_page_is_given_up_and_nothing_is_lost() {
    let mut rig = two();
    rig.disks.unreadable = bodies(&rig);
    rig.pool.request_checkpoint();
    rig.settle();
    assert_eq!(rig.write(A, 0, &stamped(1)), Err(IoError::ReadOnly));
    // The disk is well again.
    rig.disks.unreadable.clear();
    all_is_there(&mut open(rig.disks, SIZES).unwrap());
}

#[test]
fn a_shrink_over_a_page_that_cannot_be_read_fails_and_can_be_asked_again() {
    // Where the new end is, and only behind it.
    for end_is_in_memory in [false, true] {
        shrink_over_an_unreadable_page(end_is_in_memory);
    }
}

fn shrink_over_an_unreadable_page(end_is_in_memory: bool) {
    let mut rig = two();
    if end_is_in_memory {
        rig.write(A, CLUSTER - 1, &stamped(5)).unwrap();
    }
    rig.disks.unreadable = bodies(&rig);
    let shrink = Change::Resize { id: A, size: Blocks(CLUSTER) };
    let token = rig.change(shrink.clone());
    assert_eq!(rig.finish(token), Ended::Changed(token, Err(Refused::Damaged)));
    rig.settle();
    rig.disks.unreadable.clear();
    rig.must(shrink);
    rig.settle();
    rig.pool.check_state();
    let written = if end_is_in_memory { 8 } else { 4 };
    assert_eq!(rig.pool.usage_of(A).unwrap().written, Bytes::kib(written));
}

#[test]
fn an_import_that_cannot_read_a_page_fails_and_loses_nothing() {
    let mut rig = two();
    // A record that needs a page.
    rig.write(A, 1, &stamped(7)).unwrap();
    rig.flush(A).unwrap();
    // Nothing else is in the first block.
    for body in bodies(&rig) {
        let end = Place { block: body.start.block + 1, ..body.start };
        rig.disks.unreadable.push(body.start..end);
    }
    let failed = open(rig.disks.clone(), SIZES).err();
    assert!(matches!(failed, Some(ImportError::Unreadable)), "{failed:?}");
    rig.disks.unreadable.clear();
    let mut rig = open(rig.disks, SIZES).unwrap();
    all_is_there(&mut rig);
    assert_eq!(rig.stamps(A, 1, 1), Ok(std::vec![7]));
}

/// A cluster that the records of a damaged replica took and gave up is another's by then.
#[test]
fn what_a_damaged_replica_gave_up_can_be_anothers() {
    let mut rig = two();
    rig.write(A, 1, &stamped(7)).unwrap();
    rig.write(A, USED * CLUSTER, &stamped(8)).unwrap();
    let span = Span::new(Lba(USED * CLUSTER), Blocks(CLUSTER)).unwrap();
    let token = rig.submit(A, Command::Discard { span }, Vec::new());
    assert_eq!(rig.finish(token), Ended::Done(token, Ok(())));
    rig.flush(A).unwrap();
    rig.write(B, USED * CLUSTER, &stamped(9)).unwrap();
    rig.flush(B).unwrap();
    for body in bodies(&rig) {
        rig.disks.damage(body.start, 0, 0x20);
    }
    let mut rig = open(rig.disks, SIZES).unwrap();
    assert_eq!(rig.pool.health().damaged, [A]);
    assert_eq!(rig.stamps(B, USED * CLUSTER, 1), Ok(std::vec![9]));
    rig.pool.check_state();
}

fn snapshot(rig: &mut Rig, of: Id, id: Id) {
    let snapshot = NewSnapshot { id, created: 5, label: Label::default() };
    rig.must(Change::Snapshot { of, snapshot });
}

#[test]
fn differences_are_the_same_however_many_are_asked_for() {
    let mut rig = two();
    snapshot(&mut rig, A, S);
    for id in [4, 5] {
        rig.must(replica(id, 3, (USED + 2) * CLUSTER));
    }
    let random = &mut Random(3);
    for _ in 0..300 {
        let (id, at) = (Id(4 + u128::from(random.below(2))), random.below(USED * CLUSTER));
        rig.write(id, at, &stamped(9)).unwrap();
    }
    let about = QueryKind::Changed { older: Id(4), newer: Id(5) };
    let whole = rig.ask(about, Blocks(0), 10_000).unwrap();
    assert!(whole.len() > 100);
    for most in 1..6 {
        let mut found: Vec<(u64, u64)> = Vec::new();
        while let Some(more) = Some(found.last().map_or(0, |(_, end)| *end))
            .map(|from| rig.ask(about, Blocks(from), most).unwrap())
            .filter(|more| !more.is_empty())
        {
            for run in more {
                match found.last_mut() {
                    Some(last) if last.1 == run.0 => last.1 = run.1,
                    _ => found.push(run),
                }
            }
        }
        assert_eq!(found, whole, "{most}");
    }
}

#[test]
fn a_question_about_all_of_a_map_needs_one_page_at_a_time() {
    let mut rig = two();
    rig.pool.ask(
        crate::CommandId(900),
        BlockQuery { about: QueryKind::Own(A), from: Blocks(0), most: 1000 },
    );
    let (random, mut most) = (&mut Random(4), 0);
    let answer = loop {
        most = most.max(rig.pool.health().maps.0);
        match rig.step(random) {
            Moment::Ended(Ended::Answered(_, answer)) => break answer,
            Moment::Quiet => panic!("it never ends"),
            _ => {}
        }
    };
    assert_eq!(answer.unwrap().len() as u64, USED);
    let all = USED * (24 + 32);
    assert!(most * 3 <= all, "{most} of {all}");
}

/// Discards of many clones at once, each of which fits alone.
#[test]
fn discards_that_wait_for_pages_do_not_outgrow_a_checkpoint() {
    const CLUSTERS: u64 = 400;
    let sizes: &[u64] = &[CLUSTER * (CLUSTERS + 300)];
    let mut rig = open_with(new_disks(sizes, CLUSTER), sizes, Bytes::ZERO);
    rig.must(replica(1, 0, CLUSTERS * CLUSTER));
    for nth in 0..CLUSTERS {
        rig.write(A, nth * CLUSTER, &stamped(1 + nth)).unwrap();
    }
    snapshot(&mut rig, A, S);
    for id in 0..80 {
        rig.must(replica(10 + id, 3, CLUSTERS * CLUSTER));
    }
    rig.pool.request_checkpoint();
    rig.settle();
    let span = Span::new(Lba(0), Blocks(CLUSTERS * CLUSTER)).unwrap();
    for id in 0..80 {
        rig.submit(Id(10 + id), Command::Discard { span }, Vec::new());
    }
    let (random, mut refused, mut done) = (&mut Random(6), 0, 0);
    loop {
        match rig.step(random) {
            Moment::Ended(Ended::Done(_, Ok(()))) => done += 1,
            Moment::Ended(Ended::Done(_, Err(IoError::NoSpace))) => refused += 1,
            Moment::Ended(other) => panic!("{other:?}"),
            Moment::Io => {}
            Moment::Quiet => break,
        }
    }
    assert_eq!(refused + done, 80);
    assert!(refused > 0, "there is room for all: the test says nothing");
    rig.pool.request_checkpoint();
    rig.settle();
    rig.pool.check_state();
    let mut rig = open(rig.disks, sizes).unwrap();
    assert_eq!(rig.stamps(A, 0, 1), Ok(std::vec![1]));
}

/// Three replicas: of the first a snapshot, most of which was written over since.
fn with_snapshot() -> Rig {
    let mut rig = two();
    rig.must(replica(4, 0, USED * CLUSTER));
    snapshot(&mut rig, A, S);
    for nth in 0..USED / 2 {
        rig.write(A, nth * CLUSTER, &stamped(stamp(A, nth))).unwrap();
    }
    rig.flush(A).unwrap();
    rig.pool.request_checkpoint();
    rig.settle();
    rig
}

/// A full pool does not wait for space that comes only when a map can be read.
#[test]
fn there_is_no_space_while_what_was_deleted_cannot_be_read() {
    let mut rig = with_snapshot();
    let usage = rig.pool.usage();
    let most = (usage.size.0 - usage.own.0 - usage.pending.0) / Bytes::kib(4).0;
    let mut thick = new_replica(Id(5), Id::NONE, (most / CLUSTER - 10) * CLUSTER);
    thick.thick = true;
    rig.must(Change::Create(thick));
    rig.disks.unreadable = bodies(&rig);
    rig.must(Change::Delete(S));
    let wrote = (0..20).map(|nth| rig.write(Id(4), nth * CLUSTER, &stamped(1)));
    let first = wrote.into_iter().find_map(Result::err);
    assert_eq!(first, Some(IoError::NoSpace));
    rig.disks.unreadable.clear();
    rig.flush(A).unwrap();
    rig.settle();
    assert_eq!(rig.write(Id(4), 20 * CLUSTER, &stamped(1)), Ok(()));
    rig.pool.check_state();
}

/// Whatever was read to be moved into a map that turns out to be damaged does not stay in memory.
#[test]
fn a_collapse_into_a_damaged_map_keeps_nothing() {
    let disks = with_snapshot().disks;
    let mut damaged = 0;
    for (nth, byte) in (0..3).flat_map(|nth| [1000, 3000].map(|byte| (nth, byte))) {
        let mut rig = open_with(disks.clone(), SIZES, Bytes::ZERO);
        for body in bodies(&rig) {
            let place = Place { block: body.start.block + nth, ..body.start };
            rig.disks.damage(place, byte, 0x20);
        }
        rig.must(Change::Delete(S));
        rig.settle();
        // What has changed is in memory until then.
        rig.pool.request_checkpoint();
        rig.settle();
        damaged += u32::from(rig.pool.health().damaged == [A]);
        assert_eq!(rig.pool.health().maps, Bytes::ZERO, "{nth} {byte}");
    }
    assert!(damaged > 0, "no map was damaged");
}
