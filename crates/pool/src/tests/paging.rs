//! Maps that are larger than the memory for them.

use std::vec;

use block::{Blocks, Bytes, IoError};

use super::disk::Random;
use super::driver::{Rig, new_disks, open, open_with};
use super::history::replica;
use super::model::stamped;
use crate::layout::Use;
use crate::mutation::{DisabledRule, Rule};
use crate::{Change, Id, Place, QueryKind};

const CLUSTER: u64 = 64;
const CLUSTERS: u64 = 1200;
const SIZES: &[u64] = &[CLUSTER * (CLUSTERS + 200)];
const A: Id = Id(1);
const B: Id = Id(2);

/// Writes a block of every cluster, and reads all in any order. Answers the most memory that maps
/// took, and what they would take if all were in memory.
fn most_memory(cache: Bytes) -> (u64, u64) {
    let mut rig = open_with(new_disks(SIZES, CLUSTER), SIZES, cache);
    rig.must(replica(1, 0, CLUSTERS * CLUSTER));
    let mut most = 0;
    let mut note = |rig: &Rig| most = most.max(rig.pool.health().maps.0);
    for nth in 0..CLUSTERS {
        rig.write(A, nth * CLUSTER, &stamped(1 + nth)).unwrap();
        note(&rig);
    }
    rig.flush(A).unwrap();
    rig.pool.request_checkpoint();
    rig.settle();
    rig.pool.check_state();
    let mut rig = open_with(rig.disks, SIZES, cache);
    let random = &mut Random(5);
    for _ in 0..2 * CLUSTERS {
        let nth = random.below(CLUSTERS);
        assert_eq!(rig.stamps(A, nth * CLUSTER, 1), Ok(vec![1 + nth]));
        note(&rig);
    }
    // Everything that walks through all of a map.
    let mut from = Blocks(0);
    let mut runs = 0;
    loop {
        let found = rig.ask(QueryKind::Written(A), from, 100).unwrap();
        note(&rig);
        let Some((_, end)) = found.last() else { break };
        (from, runs) = (Blocks(*end), runs + found.len() as u64);
    }
    assert_eq!(runs, CLUSTERS);
    let half = CLUSTERS / 2;
    rig.must(Change::Resize { id: A, size: Blocks(half * CLUSTER) });
    note(&rig);
    assert_eq!(rig.pool.usage().written.0, half * 4096);
    rig.must(Change::Delete(A));
    rig.settle();
    note(&rig);
    assert_eq!(rig.pool.usage().own.0, 0);
    rig.pool.check_state();
    // An entry with a bitmap of 64 blocks: 24 bytes, and its share of a tree.
    (most, CLUSTERS * (24 + 32))
}

/// What maps may take with this cache: a quarter of it for what was read and as much for changes,
/// at least what is always allowed; and the windows of one command.
fn bound(cache: Bytes) -> u64 {
    (cache.0 / 4).max(8 << 10) + (1 << 10)
}

#[test]
fn maps_take_no_more_memory_than_they_may() {
    for cache in [Bytes::ZERO, Bytes::kib(64)] {
        let (most, all) = most_memory(cache);
        assert!(most <= bound(cache), "{most} of {}", bound(cache));
        assert!(all > 3 * bound(cache), "{all}");
    }
}

#[test]
fn giving_nothing_up_is_noticed() {
    let _disabled = DisabledRule::new(Rule::GiveUpPages);
    let (most, all) = most_memory(Bytes::kib(64));
    assert!(most >= all, "{most} of {all}");
}

/// Two replicas, each with several pages that are not in memory.
fn two() -> Rig {
    let mut rig = open_with(new_disks(&[9000], CLUSTER), &[9000], Bytes::ZERO);
    for id in [1, 2] {
        rig.must(replica(id, 0, 12 * CLUSTER));
        for nth in 0..12 {
            rig.write(Id(id), nth * CLUSTER, &stamped(100 * id as u64 + nth)).unwrap();
        }
    }
    rig.flush(A).unwrap();
    rig.pool.request_checkpoint();
    rig.settle();
    assert_eq!(rig.pool.health().maps, Bytes::ZERO);
    rig
}

/// Damages a byte of the first block of all bodies, in these copies.
fn damage(rig: &mut Rig, copies: &[u8], byte: usize) {
    for (slot, copy) in [0, 1].into_iter().flat_map(|slot| copies.iter().map(move |c| (slot, *c))) {
        let area = rig.pool.superblock().area(Use::Checkpoint { slot, copy }).unwrap();
        rig.disks.damage(Place { block: area.start.block + 1, ..area.start }, byte, 0x20);
    }
}

/// Reads all, and answers who is damaged.
fn damaged(rig: &mut Rig) -> vec::Vec<Id> {
    let mut bad = vec![];
    for (id, nth) in [A, B].into_iter().flat_map(|id| (0..12).map(move |nth| (id, nth))) {
        match rig.stamps(id, nth * CLUSTER, 1) {
            Ok(found) => assert_eq!(found, [100 * id.0 as u64 + nth]),
            Err(IoError::Medium { .. }) => bad.push(id),
            Err(other) => panic!("{other}"),
        }
    }
    bad.dedup();
    assert_eq!(bad, rig.pool.health().damaged);
    bad
}

#[test]
fn a_page_with_one_bad_copy_is_read_from_the_other() {
    for (copy, byte) in [(0, 0), (0, 130), (1, 5), (1, 300)] {
        let mut rig = two();
        damage(&mut rig, &[copy], byte);
        assert_eq!(damaged(&mut rig), []);
        // The checkpoint that copies it heals it.
        rig.pool.request_checkpoint();
        rig.settle();
        damage(&mut rig, &[1 - copy], 0);
        assert_eq!(damaged(&mut rig), []);
    }
}

#[test]
fn a_page_that_is_bad_in_both_copies_isolates_its_replicas_only() {
    let (mut read, mut copied) = (0, 0);
    for byte in (0..600).step_by(23) {
        let mut rig = two();
        damage(&mut rig, &[0, 1], byte);
        if byte % 2 == 0 {
            // It is found when it is to be copied.
            rig.pool.request_checkpoint();
            rig.settle();
            copied += rig.pool.health().damaged.len();
        }
        let bad = damaged(&mut rig);
        read += bad.len();
        assert!(bad.len() < 2);
        rig.pool.check_state();
        rig.pool.request_checkpoint();
        rig.settle();
        let sizes = &[9000];
        rig = open(rig.disks, sizes).unwrap();
        assert_eq!(damaged(&mut rig), bad, "it stays so");
        for id in &bad {
            rig.must(Change::Delete(*id));
        }
        rig.settle();
        rig.pool.check_state();
        let usage = rig.pool.usage();
        let left = 2 - bad.len() as u64;
        assert_eq!((usage.quarantined.0, usage.own.0), (0, left * 12 * CLUSTER * 4096));
    }
    assert!(read > 3 && copied > 3, "{read} {copied}");
}
