//! Disks that say a write is done which is not there, or is elsewhere; that fail to read once or
//! for ever; whose flush fails once. No block is ever read as another than it should be.

use std::vec;
use std::vec::Vec;

use block::IoError;

use super::disk::{Disks, Failing, FalseWrite, Random};
use super::driver::{Rig, import, new_disks, open};
use super::history::replica;
use super::model::{stamp_of, stamped};
use crate::{Change, Id, TornWrites};

const SIZES: &[u64] = &[3600];
const A: Id = Id(1);
const BLOCKS: u64 = 40;

fn share(rig: &mut Rig, byte: u8) {
    let token = rig.change(Change::Share { id: A, share: vec![byte] });
    let _ = rig.finish(token);
}

/// What each block holds after [`act`].
fn expected(block: u64) -> u64 {
    match block {
        10..15 => 300 + block,
        5..20 => 200 + block,
        _ => 100 + block,
    }
}

/// First writes, overwrites and more of them, each flushed; a checkpoint between, and changes at
/// the end that prove all groups before. A command may fail, when the disk lied about what it
/// needs.
fn act(rig: &mut Rig) {
    let token = rig.change(replica(1, 0, 100));
    let _ = rig.finish(token);
    for block in 0..BLOCKS {
        let _ = rig.write(A, block, &stamped(100 + block));
    }
    let _ = rig.flush(A);
    for block in 5..20 {
        let _ = rig.write(A, block, &stamped(200 + block));
    }
    let _ = rig.flush(A);
    rig.pool.request_checkpoint();
    rig.settle();
    for block in 10..15 {
        let _ = rig.write(A, block, &stamped(300 + block));
    }
    let _ = rig.flush(A);
    share(rig, 1);
    share(rig, 2);
    rig.settle();
}

/// Reads every block: how many are refused. One that is read is as it should be.
fn faults(rig: &mut Rig, about: &str) -> usize {
    let mut refused = 0;
    for block in 0..BLOCKS {
        match rig.read(A, block, 1) {
            Ok(bytes) => assert_eq!(stamp_of(&bytes), Some(expected(block)), "{block} {about}"),
            Err(_) => refused += 1,
        }
    }
    refused
}

fn disks(torn_writes: TornWrites) -> Disks {
    let mut disks = new_disks(SIZES, 64);
    disks.torn_writes = torn_writes;
    disks
}

/// Has every write in turn go wrong; answers how many imports were refused, how many blocks, and
/// how many of the pools noticed nothing because nothing was wrong.
fn each_write(how: FalseWrite, torn_writes: TornWrites) -> (usize, usize, usize) {
    let mut all = open(disks(torn_writes), SIZES).unwrap();
    let first = all.disks.writes() + 1;
    act(&mut all);
    let last = all.disks.writes();
    let (mut imports, mut blocks, mut harmless) = (0, 0, 0);
    for number in first..=last {
        let mut disks = disks(torn_writes);
        disks.false_write = Some((number, how));
        let mut rig = open(disks, SIZES).unwrap();
        act(&mut rig);
        if rig.pool.entity(A).is_some() {
            faults(&mut rig, &std::format!("before, write {number} {how:?}"));
        }
        match import(rig.disks.after_crash(&mut Random(0)), SIZES) {
            Err(_) => imports += 1,
            Ok(mut rig) => {
                let refused = faults(&mut rig, &std::format!("after, write {number} {how:?}"));
                blocks += refused;
                harmless += usize::from(refused == 0);
            }
        }
    }
    (imports, blocks, harmless)
}

#[test]
fn a_lost_write_is_noticed_or_harmless() {
    for torn_writes in [TornWrites::Possible, TornWrites::Impossible] {
        let (imports, blocks, harmless) = each_write(FalseWrite::Lost, torn_writes);
        std::println!("lost: {imports} imports refused, {blocks} blocks, {harmless} harmless");
        assert!(blocks > 0 && harmless > 0);
    }
}

#[test]
fn a_misdirected_write_is_noticed_or_harmless() {
    let both = [TornWrites::Possible, TornWrites::Impossible];
    for (by, torn_writes) in [1, 7].into_iter().flat_map(|by| both.map(|torn| (by, torn))) {
        let (imports, blocks, harmless) = each_write(FalseWrite::Shifted(by), torn_writes);
        std::println!("by {by}: {imports} imports refused, {blocks} blocks, {harmless} harmless");
        assert!(blocks > 0 && harmless > 0);
    }
}

fn acted() -> Disks {
    let mut rig = open(new_disks(SIZES, 64), SIZES).unwrap();
    act(&mut rig);
    rig.disks.after_crash(&mut Random(0))
}

#[test]
fn a_read_that_fails_once_at_an_import_changes_nothing() {
    let disks = acted();
    let reads = open(disks.clone(), SIZES).unwrap().disks.reads;
    assert!(reads > 10);
    for nth in 1..=reads {
        let mut disks = disks.clone();
        disks.failing = Some((nth, Failing::Once));
        let mut rig = open(disks, SIZES).unwrap();
        assert_eq!(faults(&mut rig, &std::format!("read {nth} fails once")), 0);
    }
}

#[test]
fn a_read_that_fails_for_ever_at_an_import_makes_no_wrong_bytes() {
    let disks = acted();
    let reads = open(disks.clone(), SIZES).unwrap().disks.reads;
    let mut refused = 0;
    for nth in 1..=reads {
        let mut failing = disks.clone();
        failing.failing = Some((nth, Failing::Forever));
        match import(failing, SIZES) {
            Err(_) => refused += 1,
            Ok(mut rig) => {
                faults(&mut rig, &std::format!("read {nth} always fails"));
            }
        }
        // When the disk is well again, all is there.
        assert_eq!(faults(&mut open(disks.clone(), SIZES).unwrap(), "again"), 0);
    }
    std::println!("of {reads} reads, {refused} cannot be done without");
}

#[test]
fn a_flush_that_fails_once_is_the_last_thing_acknowledged() {
    let mut rig = open(new_disks(SIZES, 64), SIZES).unwrap();
    act(&mut rig);
    rig.write(A, 3, &stamped(903)).unwrap();
    rig.flush_fails = true;
    assert!(rig.flush(A).is_err());
    // What the disk dropped from its cache then it will never write, whatever it says later.
    assert!(rig.flush(A).is_err());
    assert_eq!(rig.write(A, 4, &stamped(904)), Err(IoError::ReadOnly));
    let mut rig = open(rig.disks.after_crash(&mut Random(0)), SIZES).unwrap();
    let held: Vec<u64> = vec![103, 903];
    match rig.stamps(A, 3, 1) {
        Ok(stamps) => assert!(held.contains(&stamps[0])),
        Err(fault) => assert!(matches!(fault, IoError::Unproven { .. })),
    }
    assert_eq!(rig.stamps(A, 4, 1), Ok(vec![104]));
}
