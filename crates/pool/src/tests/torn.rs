//! Disks that tear blocks: each block is wholly old or wholly new, and nobody runs out of space for
//! that (O9).

use std::vec;
use std::vec::Vec;

use block::{Blocks, Command, IoError, Lba, Span};

use super::disk::Random;
use super::driver::{Ended, Moment, Rig, new_disks, open};
use super::history::{new_replica, replica};
use super::model::{stamped, stamps};
use crate::layout::{BLOCK, Use};
use crate::mutation::{DisabledRule, Rule};
use crate::{Change, Id, Label, NewSnapshot, Place, TornWrites};

const SIZES: &[u64] = &[3600];
const A: Id = Id(1);
const CLUSTER: u64 = 64;

fn rig(sizes: &[u64], torn_writes: TornWrites) -> Rig {
    let mut disks = new_disks(sizes, CLUSTER);
    disks.torn_writes = torn_writes;
    open(disks, sizes).unwrap()
}

/// A replica whose blocks hold their number and 100, flushed.
fn sample(torn_writes: TornWrites) -> Rig {
    let mut rig = rig(SIZES, torn_writes);
    rig.must(replica(1, 0, 100));
    for block in 0..100 {
        rig.write(A, block, &stamped(100 + block)).unwrap();
    }
    rig.flush(A).unwrap();
    rig.pool.request_checkpoint();
    rig.settle();
    rig
}

/// How many blocks are torn after cuts at every step of an overwrite that is not flushed.
fn torn_blocks(torn_writes: TornWrites) -> usize {
    let mut torn = 0;
    for seed in 0..20 {
        let mut rig = sample(torn_writes);
        let random = &mut Random(seed);
        let span = Span::new(Lba(10), Blocks(70)).unwrap();
        let data: Vec<u8> = (10..80).flat_map(|block| stamped(200 + block)).collect();
        rig.submit(A, Command::Write { span, fua: false }, data);
        loop {
            let is_over = matches!(rig.step(random), Moment::Quiet);
            let mut after = open(rig.disks.after_crash(random), SIZES).unwrap();
            after.pool.set_sole(A, true);
            let read = after.read(A, 0, 100).unwrap();
            for (block, bytes) in (0..).zip(read.chunks_exact(4096)) {
                let found = stamps(bytes).unwrap();
                assert!(found.iter().all(|stamp| [100 + block, 200 + block].contains(stamp)));
                torn += usize::from(found.len() > 1);
            }
            if is_over {
                break;
            }
        }
    }
    torn
}

#[test]
fn an_overwritten_block_is_wholly_old_or_wholly_new() {
    assert_eq!(torn_blocks(TornWrites::Possible), 0);
    // The same disks, when nobody says that they tear blocks: that is why they must be asked.
    assert!(torn_blocks(TornWrites::Impossible) > 100);
}

#[test]
fn an_overwrite_that_fails_leaves_the_flushed_block() {
    let mut rig = sample(TornWrites::Possible);
    rig.refused = stamped(203);
    assert!(matches!(rig.write(A, 3, &stamped(203)), Err(IoError::Medium { .. })));
    assert_eq!(rig.stamps(A, 2, 3), Ok(vec![102, 103, 104]));
    rig.flush(A).unwrap();
    let mut after = open(rig.disks.after_crash(&mut Random(1)), SIZES).unwrap();
    assert_eq!(after.stamps(A, 2, 3), Ok(vec![102, 103, 104]));
    // What was beside it is there: of a write that fails in part, the rest.
    let data: Vec<u8> = [303, 304].into_iter().flat_map(stamped).collect();
    rig.refused = data.clone();
    rig.write(A, 3, &data).unwrap_err();
    rig.refused = Vec::new();
    rig.write(A, 3, &data).unwrap();
    let mut after = open(rig.disks.after_death(&mut Random(1)), SIZES).unwrap();
    assert_eq!(after.stamps(A, 2, 3), Ok(vec![102, 303, 304]));
    rig.pool.check_state();
}

#[test]
fn a_disk_that_tears_no_block_is_overwritten_in_place() {
    let mut rig = sample(TornWrites::Impossible);
    rig.write(A, 3, &stamped(203)).unwrap();
    rig.flush(A).unwrap();
    let (sent, used) = (rig.disks.writes(), rig.pool.usage());
    for stamp in 300..400 {
        rig.write(A, 3, &stamped(stamp)).unwrap();
    }
    assert_eq!((rig.disks.writes() - sent, rig.pool.usage()), (100, used));
}

#[test]
fn nothing_is_in_doubt_after_a_crash_where_overwrites_are_redirected() {
    let mut rig = sample(TornWrites::Possible);
    rig.write(A, 3, &stamped(203)).unwrap();
    let mut disks = rig.disks.after_crash(&mut Random(0));
    assert!(disks.rot(&stamped(120), &stamped(99)));
    let mut rig = open(disks, SIZES).unwrap();
    rig.pool.set_sole(A, true);
    let span = Span::one(Lba(20)).unwrap();
    assert_eq!(rig.read(A, 20, 1).err(), Some(IoError::Checksum { span }));
    assert_eq!(rig.pool.health().doubtful_regions, 0);
}

/// A pool of one replica, thick or not, that has all of its space and is written once.
fn full(thick: bool) -> (Rig, u64) {
    let mut rig = rig(SIZES, TornWrites::Possible);
    let clusters = rig.pool.usage().size.0 / (CLUSTER * 4096);
    let size = clusters * CLUSTER;
    let new = crate::NewReplica { thick, ..new_replica(A, Id::NONE, size) };
    rig.must(Change::Create(new));
    for at in (0..size).step_by(32) {
        let data: Vec<u8> = (at..at + 32).flat_map(|block| stamped(1 + block)).collect();
        rig.write(A, at, &data).unwrap();
    }
    rig.flush(A).unwrap();
    (rig, size)
}

#[test]
fn a_full_pool_can_be_overwritten_for_ever() {
    for thick in [false, true] {
        let (mut rig, size) = full(thick);
        let mut expected: Vec<u64> = (1..=size).collect();
        let random = &mut Random(7);
        for round in 0..600 {
            // Single blocks, and now and then more clusters than are spare.
            let len = if round % 50 == 0 { 5 * CLUSTER } else { 1 + random.below(3) };
            let at = random.below(size - len);
            let data: Vec<u8> =
                (0..len).flat_map(|nth| stamped(10_000 + 1000 * round + nth)).collect();
            let span = Span::new(Lba(at), Blocks(len)).unwrap();
            let fua = round % 7 == 0;
            let token = rig.submit(A, Command::Write { span, fua }, data);
            assert_eq!(rig.finish(token), Ended::Done(token, Ok(())), "round {round}");
            for nth in 0..len {
                expected[(at + nth) as usize] = 10_000 + 1000 * round + nth;
            }
            let usage = rig.pool.usage();
            assert!(usage.own <= usage.size, "{usage:?}");
        }
        rig.pool.check_state();
        assert_eq!(rig.stamps(A, 0, size), Ok(expected.clone()));
        rig.flush(A).unwrap();
        let mut after = open(rig.disks.after_crash(&mut Random(3)), SIZES).unwrap();
        assert_eq!(after.stamps(A, 0, size), Ok(expected));
    }
}

#[test]
fn overwrites_at_once_in_a_full_pool_all_end() {
    let (mut rig, size) = full(true);
    let random = &mut Random(11);
    for round in 0..60 {
        let tokens: Vec<_> = (0..12)
            .map(|nth| {
                let len = 1 + random.below(2 * CLUSTER);
                let at = random.below(size - len);
                let span = Span::new(Lba(at), Blocks(len)).unwrap();
                let data = stamped(100_000 + 100 * round + nth).repeat(len as usize);
                rig.submit(A, Command::Write { span, fua: false }, data)
            })
            .collect();
        let mut left = tokens.len();
        while left > 0 {
            match rig.step(random) {
                Moment::Ended(Ended::Done(token, result)) => {
                    assert_eq!((tokens.contains(&token), result), (true, Ok(())));
                    left -= 1;
                }
                Moment::Ended(other) => panic!("{other:?}"),
                Moment::Io => {}
                Moment::Quiet => panic!("{left} never end in round {round}"),
            }
        }
    }
    rig.settle();
    rig.pool.check_state();
}

/// Clusters that a pool says are free.
fn left(rig: &Rig) -> u64 {
    let usage = rig.pool.usage();
    (usage.size.0 - usage.own.0 - usage.promised.0 - usage.pending.0) / (CLUSTER * 4096)
}

/// Makes a replica of all space that is left, and writes a block of each cluster.
fn fill_up(rig: &mut Rig, id: Id, thick: bool) {
    rig.flush(A).unwrap();
    let clusters = left(rig);
    let new = new_replica(id, Id::NONE, clusters * CLUSTER);
    rig.must(Change::Create(crate::NewReplica { thick, ..new }));
    for nth in 0..clusters {
        rig.write(id, nth * CLUSTER, &stamped(5000 + nth)).unwrap();
    }
    for nth in 0..clusters {
        assert_eq!(rig.stamps(id, nth * CLUSTER, 1), Ok(vec![5000 + nth]));
    }
    rig.pool.check_state();
}

#[test]
fn second_clusters_of_a_hidden_layer_that_clones_need_come_back() {
    let mut rig = rig(&[9000], TornWrites::Possible);
    rig.must(replica(1, 0, 8 * CLUSTER));
    let mut expected: Vec<u64> = (1..=8 * CLUSTER).collect();
    for (at, stamp) in (0..).zip(&expected) {
        rig.write(A, at, &stamped(*stamp)).unwrap();
    }
    for round in 0..12u64 {
        let (snapshot, clones) = (Id(100 + u128::from(round)), [200, 300].map(|id| id + round));
        // One of two blocks moves to a second cluster.
        let first = (round % 8) * CLUSTER + round;
        for at in [first, first + 1, first] {
            expected[at as usize] = 1000 + 100 * round + at;
            rig.write(A, at, &stamped(expected[at as usize])).unwrap();
        }
        let new = NewSnapshot { id: snapshot, created: 1, label: Label::default() };
        rig.must(Change::Snapshot { of: A, snapshot: new });
        for clone in clones {
            rig.must(replica(clone.into(), snapshot.0, 8 * CLUSTER));
        }
        rig.must(Change::Delete(snapshot));
        rig.settle();
        for clone in clones {
            assert_eq!(rig.stamps(Id(clone.into()), 0, 8 * CLUSTER), Ok(expected.clone()));
        }
    }
    fill_up(&mut rig, Id(50), false);
    assert_eq!(rig.stamps(A, 0, 8 * CLUSTER), Ok(expected));
}

#[test]
fn space_of_second_clusters_can_be_promised_and_had() {
    let mut rig = rig(&[9000], TornWrites::Possible);
    let size = left(&rig) / 2 * CLUSTER;
    rig.must(replica(1, 0, size));
    for at in (0..size).step_by(64) {
        rig.write(A, at, &stamped(5).repeat(64)).unwrap();
    }
    for at in (0..size).step_by(64) {
        rig.write(A, at + 7, &stamped(6)).unwrap();
    }
    rig.flush(A).unwrap();
    fill_up(&mut rig, Id(50), true);
    assert_eq!(rig.stamps(A, 6, 2), Ok(vec![5, 6]));
}

#[test]
fn a_thick_replica_whose_map_is_lost_keeps_no_space_from_others() {
    let mut rig = rig(SIZES, TornWrites::Possible);
    let clusters = rig.pool.usage().size.0 / (CLUSTER * 4096);
    let half = clusters / 2 * CLUSTER;
    for (id, thick) in [(A, true), (Id(2), false)] {
        rig.must(Change::Create(crate::NewReplica { thick, ..new_replica(id, Id::NONE, half) }));
        for at in (0..half).step_by(64) {
            rig.write(id, at, &stamped(5).repeat(64)).unwrap();
        }
    }
    rig.flush(A).unwrap();
    rig.pool.request_checkpoint();
    rig.settle();
    // The first page of the maps is that of the first layer, the thick one's.
    for (slot, copy) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let area = rig.pool.superblock().area(Use::Checkpoint { slot, copy }).unwrap();
        rig.disks.damage(Place { block: area.start.block + 1, ..area.start }, 4, 1);
    }
    let mut rig = open(rig.disks.after_crash(&mut Random(0)), SIZES).unwrap();
    assert!(rig.read(A, 0, 1).is_err());
    assert_eq!(rig.pool.health().damaged, [A]);
    assert_eq!(rig.pool.usage().promised.0, 0);
    for at in 0..half {
        rig.write(Id(2), at, &stamped(1000 + at)).unwrap();
    }
    rig.pool.check_state();
    assert_eq!(rig.stamps(Id(2), 0, half), Ok((1000..1000 + half).collect()));
}

#[test]
fn a_repair_heals_the_snapshot_that_has_the_block() {
    for torn_writes in [TornWrites::Possible, TornWrites::Impossible] {
        let mut rig = sample(torn_writes);
        let snapshot = Id(9);
        let new = NewSnapshot { id: snapshot, created: 1, label: Label::default() };
        rig.must(Change::Snapshot { of: A, snapshot: new });
        rig.settle();
        assert!(rig.disks.rot(&stamped(120), &[7; BLOCK]));
        let span = Span::one(Lba(20)).unwrap();
        let bad = Some(IoError::Checksum { span });
        assert_eq!((rig.read(A, 20, 1).err(), rig.read(snapshot, 20, 1).err()), (bad, bad));
        let token = rig.repair(A, span, stamped(120));
        assert_eq!(rig.finish(token), Ended::Done(token, Ok(())));
        assert_eq!(rig.stamps(snapshot, 20, 1), Ok(vec![120]));
        // That is durable when it is answered.
        let mut after = open(rig.disks.after_crash(&mut Random(0)), SIZES).unwrap();
        assert_eq!(
            (after.stamps(A, 20, 1), after.stamps(snapshot, 20, 1)),
            (Ok(vec![120]), Ok(vec![120]))
        );
    }
}

/// Whether a block that a crash left as it was stays so at the next crash, though what was to be
/// written there is written to the same place by somebody else meanwhile.
fn stays_as_it_was() -> bool {
    let mut tried = 0;
    for seed in 0..60 {
        let mut rig = sample(TornWrites::Possible);
        rig.write(A, 3, &stamped(777)).unwrap();
        let random = &mut Random(seed);
        let mut rig = open(rig.disks.after_crash(random), SIZES).unwrap();
        if rig.stamps(A, 3, 1) != Ok(vec![103]) {
            continue;
        }
        // The same place of the other logical cluster.
        let span = Span::one(Lba(67)).unwrap();
        rig.submit(A, Command::Write { span, fua: false }, stamped(777));
        while !matches!(rig.step(random), Moment::Quiet) {
            tried += 1;
            let mut after = open(rig.disks.after_crash(random), SIZES).unwrap();
            if after.stamps(A, 3, 1) != Ok(vec![103]) {
                return false;
            }
        }
    }
    assert!(tried > 50, "{tried}");
    true
}

#[test]
fn what_a_crash_left_as_it_was_stays_so_at_the_next_one() {
    assert!(stays_as_it_was());
    let _disabled = DisabledRule::new(Rule::HoldAfterDrop);
    assert!(!stays_as_it_was(), "nobody notices that writes are not held back");
}
