//! Space of deleted snapshots comes back: clusters that are partly needed are merged.

use std::vec::Vec;

use block::{Blocks, IoError, Lba, Span};

use super::disk::Random;
use super::driver::{Moment, Rig, new_disks, open};
use super::history::replica;
use super::model::stamped;
use crate::{Change, Id, Label, NewSnapshot};

const A: Id = Id(1);
const SIZES: &[u64] = &[9000];
/// Blocks of the replica: eight clusters.
const BLOCKS: u64 = 8 * 64;

/// A replica of which every block is written, with a model of it.
struct Sample {
    rig: Rig,
    stamps: Vec<u64>,
    random: Random,
    next: u64,
}

impl Sample {
    fn new() -> Sample {
        let mut rig = open(new_disks(SIZES, 64), SIZES).unwrap();
        rig.must(replica(1, 0, BLOCKS));
        let stamps = (0..BLOCKS).collect();
        let mut sample = Sample { rig, stamps, random: Random(3), next: BLOCKS };
        for at in 0..BLOCKS {
            sample.write(at);
        }
        sample.rig.flush(A).unwrap();
        sample
    }

    fn write(&mut self, at: u64) {
        self.next += 1;
        self.stamps[usize::try_from(at).unwrap()] = self.next;
        self.rig.write(A, at, &stamped(self.next)).unwrap();
    }

    fn rewrite(&mut self, blocks: u64) {
        for _ in 0..blocks {
            let at = self.random.below(BLOCKS);
            self.write(at);
        }
    }

    fn snapshot(&mut self, id: u128) {
        let snapshot = NewSnapshot { id: Id(id), created: 1, label: Label::default() };
        self.rig.must(Change::Snapshot { of: A, snapshot });
    }

    fn delete(&mut self, id: u128) {
        self.rig.must(Change::Delete(Id(id)));
        self.rig.settle();
        self.rig.pool.check_state();
    }

    /// Clusters in use.
    fn used(&self) -> u64 {
        let usage = self.rig.pool.usage();
        assert_eq!(usage.pending.0, 0);
        usage.own.0 / (64 * 4096)
    }
}

#[test]
fn rewriting_under_snapshots_takes_no_more_than_the_live_data() {
    let mut sample = Sample::new();
    for round in 0..12 {
        sample.snapshot(100 + round);
        sample.rewrite(150);
        sample.delete(100 + round);
        assert_eq!(sample.used(), BLOCKS / 64, "in round {round}");
    }
    assert_eq!(sample.rig.stamps(A, 0, BLOCKS), Ok(sample.stamps.clone()));
    let mut again = open(sample.rig.disks.after_crash(&mut Random(1)), SIZES).unwrap();
    // The last commit of the merges was durable; what was not flushed may be older.
    again.settle();
    again.pool.check_state();
    assert_eq!(again.pool.usage().own.0 / (64 * 4096), BLOCKS / 64);
}

#[test]
fn a_row_of_snapshots_that_moves_on_takes_one_share_each() {
    let mut sample = Sample::new();
    for round in 0..16 {
        sample.snapshot(100 + round);
        sample.rewrite(60);
        if round >= 3 {
            sample.delete(100 + round - 3);
        }
        // The live data, and for each of three snapshots no more than that.
        assert!(sample.used() <= 4 * BLOCKS / 64, "{} in round {round}", sample.used());
    }
    assert_eq!(sample.rig.stamps(A, 0, BLOCKS), Ok(sample.stamps.clone()));
}

#[test]
fn a_bad_block_stays_where_it_is_and_is_found() {
    let mut sample = Sample::new();
    sample.snapshot(100);
    for at in 0..10 {
        sample.write(at);
    }
    sample.rig.flush(A).unwrap();
    sample.rig.settle();
    // One of the blocks that would be moved.
    assert!(sample.rig.disks.rot(&stamped(sample.stamps[5]), &stamped(9)));
    sample.delete(100);
    assert_eq!(sample.used(), BLOCKS / 64 + 1);
    let span = Span::new(Lba(5), Blocks(1)).unwrap();
    assert_eq!(sample.rig.stamps(A, 0, 10), Err(IoError::Checksum { span }));
    assert_eq!(sample.rig.stamps(A, 6, BLOCKS - 6), Ok(sample.stamps[6..].to_vec()));
}

#[test]
fn a_merge_that_is_cut_anywhere_loses_nothing() {
    let mut sample = Sample::new();
    sample.snapshot(100);
    sample.rewrite(100);
    sample.rig.flush(A).unwrap();
    let token = sample.rig.change(Change::Delete(Id(100)));
    let _ = sample.rig.finish(token);
    let random = &mut Random(5);
    let mut cuts = 0;
    while !matches!(sample.rig.step(random), Moment::Quiet) {
        cuts += 1;
        if cuts % 5 == 0 {
            let mut again = open(sample.rig.disks.after_crash(random), SIZES).unwrap();
            assert_eq!(again.stamps(A, 0, BLOCKS), Ok(sample.stamps.clone()));
            again.settle();
            again.pool.check_state();
            assert_eq!(again.stamps(A, 0, BLOCKS), Ok(sample.stamps.clone()));
        }
    }
    assert!(cuts > 100, "{cuts}");
}
