//! What a crash leaves in doubt, and nothing else: blocks that were being written are not proven,
//! blocks that went bad are never returned as good nor given a sum.

use std::ops::Range;
use std::vec;
use std::vec::Vec;

use block::{Blocks, IoError, Lba, Span};

use super::disk::{Disks, Random};
use super::driver::{Ended, Moment, Rig, new_disks, open};
use super::history::replica;
use super::model::stamped;
use crate::mutation::{DisabledRule, Rule};
use crate::{Disk, Id, Place};

const SIZES: &[u64] = &[3600];
const A: Id = Id(1);

/// A replica with blocks 0 to 63, each with its number and 100 as stamp, durable and in a
/// checkpoint; all of them lie in one region.
fn sample() -> Rig {
    let mut rig = open(new_disks(SIZES, 64), SIZES).unwrap();
    rig.must(replica(1, 0, 100));
    for block in 0..64 {
        rig.write(A, block, &stamped(100 + block)).unwrap();
    }
    rig.flush(A).unwrap();
    rig.pool.request_checkpoint();
    rig.settle();
    rig
}

/// Overwrites block 3 and flushes: the region of all blocks is dirty.
fn dirty() -> Rig {
    let mut rig = sample();
    rig.write(A, 3, &stamped(203)).unwrap();
    rig.flush(A).unwrap();
    rig
}

fn place_of(disks: &Disks, stamp: u64) -> Place {
    let places = (512..3600).map(|block| Place { disk: Disk(0), block });
    let found: Vec<_> = places.filter(|at| disks.read(*at, 1) == stamped(stamp)).collect();
    assert_eq!(found.len(), 1);
    found[0]
}

fn only(at: Place) -> Range<Place> {
    at..Place { block: at.block + 1, ..at }
}

fn one(block: u64) -> Span {
    Span::new(Lba(block), Blocks(1)).unwrap()
}

fn reopen(rig: &Rig) -> Rig {
    open(rig.disks.after_crash(&mut Random(0)), SIZES).unwrap()
}

/// Reads through all regions in doubt.
fn pass(rig: &mut Rig) {
    for _ in 0..10_000 {
        let token = rig.token();
        if !rig.pool.narrow_doubt(token) {
            return;
        }
        assert_eq!(rig.finish(token), Ended::Done(token, Ok(())));
    }
    panic!("the pass never ends");
}

#[test]
fn rot_in_a_dirty_region_is_not_returned_after_a_crash() {
    let mut rig = dirty();
    let at = place_of(&rig.disks, 120);
    rig.disks.damage(at, 7, 1);
    let mut rig = reopen(&rig);
    let found = rig.read(A, 20, 1).err();
    assert_eq!(found, Some(IoError::Unproven { span: one(20) }));
    assert_eq!(rig.stamps(A, 21, 43).map(|stamps| stamps.len()), Ok(43));
}

#[test]
fn rot_outside_of_dirty_regions_is_a_checksum_fault_after_a_crash() {
    let mut rig = sample();
    let at = place_of(&rig.disks, 120);
    rig.disks.damage(at, 7, 1);
    let mut rig = reopen(&rig);
    assert_eq!(rig.read(A, 20, 1).err(), Some(IoError::Checksum { span: one(20) }));
}

#[test]
fn the_pass_after_a_crash_gives_no_block_a_sum() {
    let mut rig = dirty();
    let at = place_of(&rig.disks, 120);
    rig.disks.damage(at, 7, 1);
    let mut rig = reopen(&rig);
    pass(&mut rig);
    let unproven = Some(IoError::Unproven { span: one(20) });
    assert_eq!(rig.read(A, 20, 1).err(), unproven);
    // Nor do checkpoints, nor another crash.
    for _ in 0..2 {
        rig.pool.request_checkpoint();
        rig.settle();
        rig = reopen(&rig);
        assert_eq!(rig.read(A, 20, 1).err(), unproven);
        pass(&mut rig);
    }
    assert_eq!(rig.pool.health().doubtful_regions, 0);
}

#[test]
fn a_flushed_overwrite_is_proven_after_a_crash() {
    let rig = dirty();
    let mut disks = rig.disks.after_crash(&mut Random(0));
    let mut again = open(disks.clone(), SIZES).unwrap();
    assert_eq!(again.stamps(A, 0, 5), Ok(vec![100, 101, 102, 203, 104]));
    // So if it is not what was flushed, that is noticed.
    disks.damage(place_of(&disks, 203), 0, 1);
    let mut rig = open(disks, SIZES).unwrap();
    assert!(rig.read(A, 3, 1).is_err());
}

#[test]
fn an_unreadable_block_in_the_pass_concerns_itself_only() {
    let rig = dirty();
    let mut rig = reopen(&rig);
    let at = place_of(&rig.disks, 140);
    rig.disks.unreadable = vec![only(at)];
    pass(&mut rig);
    assert_eq!(rig.stamps(A, 0, 40).map(|stamps| stamps[3]), Ok(203));
    assert!(matches!(rig.read(A, 40, 1), Err(IoError::Medium { .. })));
    rig.disks.unreadable.clear();
    assert_eq!(rig.stamps(A, 40, 1), Ok(vec![140]));
}

/// Leaves block 5 half overwritten and not flushed, and opens the pool again.
fn torn() -> Rig {
    let mut rig = dirty();
    rig.write(A, 5, &stamped(205)).unwrap();
    let at = place_of(&rig.disks, 205);
    let mut rig = open(rig.disks.after_death(&mut Random(0)), SIZES).unwrap();
    rig.disks.damage(at, 0, 0xff);
    rig
}

#[test]
fn only_what_was_being_written_is_unproven_and_writing_or_accepting_proves_it() {
    let mut rig = torn();
    assert_eq!(rig.read(A, 0, 64).err(), Some(IoError::Unproven { span: one(5) }));
    assert_eq!(rig.stamps(A, 0, 5), Ok(vec![100, 101, 102, 203, 104]));
    assert_eq!(rig.stamps(A, 6, 58).map(|stamps| stamps.len()), Ok(58));
    // Accepting what is not unproven changes nothing.
    rig.accept_unproven(A, 6, 20).unwrap();
    assert_eq!(rig.read(A, 5, 1).err(), Some(IoError::Unproven { span: one(5) }));
    rig.accept_unproven(A, 0, 64).unwrap();
    let bytes = rig.read(A, 5, 1).unwrap();
    // That is durable, and from now on damage is damage.
    let mut rig = reopen(&rig);
    pass(&mut rig);
    assert_eq!(rig.read(A, 5, 1), Ok(bytes.clone()));
    let mut places = (512..3600).map(|block| Place { disk: Disk(0), block });
    let at = places.find(|at| rig.disks.read(*at, 1) == bytes).unwrap();
    rig.disks.damage(at, 1, 1);
    assert_eq!(rig.read(A, 5, 1).err(), Some(IoError::Checksum { span: one(5) }));
    let mut rig = torn();
    rig.write(A, 5, &stamped(305)).unwrap();
    rig.flush(A).unwrap();
    let mut rig = reopen(&rig);
    assert_eq!(rig.stamps(A, 5, 1), Ok(vec![305]));
}

#[test]
fn a_block_that_went_bad_is_never_accepted_with_the_unproven_ones() {
    let mut rig = sample();
    let at = place_of(&rig.disks, 120);
    rig.disks.damage(at, 7, 1);
    let mut rig = reopen(&rig);
    rig.accept_unproven(A, 0, 64).unwrap();
    assert_eq!(rig.read(A, 20, 1).err(), Some(IoError::Checksum { span: one(20) }));
    // An operator may.
    let token = rig.token();
    rig.pool.accept(token, A, one(20));
    assert_eq!(rig.finish(token), Ended::Done(token, Ok(())));
    rig.read(A, 20, 1).unwrap();
    let mut rig = reopen(&rig);
    rig.read(A, 20, 1).unwrap();
}

#[test]
fn a_copy_that_nobody_else_has_believes_what_was_being_written_and_says_so() {
    let mut rig = torn();
    rig.pool.set_sole(A, true);
    rig.read(A, 0, 64).unwrap();
    assert_eq!(rig.believed, 1);
    rig.read(A, 5, 1).unwrap();
    rig.flush(A).unwrap();
    let mut rig = reopen(&rig);
    rig.read(A, 5, 1).unwrap();
    // A verify hands nothing out, and believes nothing.
    let mut rig = torn();
    rig.pool.set_sole(A, true);
    let token = rig.token();
    rig.pool.verify(token, A, one(5));
    let unproven = Err(IoError::Unproven { span: one(5) });
    assert_eq!(rig.finish(token), Ended::Done(token, unproven));
}

#[test]
fn a_first_write_that_failed_is_not_believed() {
    let mut rig = reopen(&dirty());
    assert_eq!(rig.pool.health().doubtful_regions, 1);
    rig.pool.set_sole(A, true);
    rig.refused = stamped(270);
    assert!(matches!(rig.write(A, 70, &stamped(270)), Err(IoError::Medium { .. })));
    let bad = Some(IoError::Checksum { span: one(70) });
    assert_eq!(rig.read(A, 70, 1).err(), bad);
    rig.accept_unproven(A, 70, 1).unwrap();
    assert_eq!(rig.read(A, 70, 1).err(), bad);
    // Two more groups: all records before them count at an import.
    for block in [71, 72] {
        rig.write(A, block, &stamped(block)).unwrap();
        rig.flush(A).unwrap();
    }
    let mut rig = reopen(&rig);
    rig.pool.set_sole(A, true);
    assert_eq!(rig.read(A, 70, 1).err(), bad);
    assert_eq!(rig.believed, 0);
    rig.write(A, 70, &stamped(370)).unwrap();
    rig.flush(A).unwrap();
    assert_eq!(reopen(&rig).stamps(A, 70, 3), Ok(vec![370, 71, 72]));
}

#[test]
fn a_repair_that_is_interrupted_leaves_a_bad_block_bad() {
    let mut cuts = 0;
    for seed in 0..16 {
        // Once the region is clean, and once the block before is overwritten and never flushed.
        let mut rig = sample();
        let at = place_of(&rig.disks, 120);
        rig.disks.damage(at, 7, 1);
        let bad = rig.disks.read(at, 1);
        if seed % 2 == 1 {
            rig.write(A, 19, &stamped(219)).unwrap();
        }
        let sent = rig.disks.writes();
        rig.repair(A, one(20), stamped(120));
        let random = &mut Random(seed);
        while !matches!(rig.step(random), Moment::Quiet) {
            for _ in 0..4 {
                cuts += 1;
                let mut after = open(rig.disks.after_crash(random), SIZES).unwrap();
                after.pool.set_sole(A, true);
                match after.read(A, 20, 1) {
                    Ok(bytes) if bytes == stamped(120) => {}
                    // In a dirty region, before anything of the repair is durable.
                    Ok(bytes) => {
                        assert!(seed % 2 == 1 && rig.disks.writes() < sent + 3, "{bytes:?}");
                    }
                    Err(fault) => assert_eq!(fault, IoError::Checksum { span: one(20) }),
                }
            }
        }
        assert_ne!(rig.disks.read(at, 1), bad);
        assert_eq!(rig.stamps(A, 20, 1), Ok(vec![120]));
    }
    assert!(cuts > 200, "{cuts}");
}

#[test]
fn regions_stay_in_doubt_when_the_list_of_their_blocks_is_full() {
    let mut rig = dirty();
    for block in 10..50 {
        let at = place_of(&rig.disks, 100 + block);
        rig.disks.damage(at, 7, 1);
    }
    let mut rig = reopen(&rig);
    pass(&mut rig);
    let health = rig.pool.health();
    assert_eq!((health.doubtful_regions, health.unproven_blocks), (1, 24));
    for block in 10..50 {
        assert_eq!(rig.read(A, block, 1).err(), Some(IoError::Unproven { span: one(block) }));
        rig.write(A, block, &stamped(300 + block)).unwrap();
    }
    pass(&mut rig);
    let health = rig.pool.health();
    assert_eq!((health.doubtful_regions, health.unproven_blocks), (0, 0));
}

#[test]
fn a_block_that_found_no_room_on_the_list_stays_in_doubt() {
    let mut rig = dirty();
    for block in 10..50 {
        let at = place_of(&rig.disks, 100 + block);
        rig.disks.damage(at, 7, 1);
    }
    let mut rig = reopen(&rig);
    // The list is full after the first step; then there is room again, before the pass is through.
    let token = rig.token();
    assert!(rig.pool.narrow_doubt(token));
    assert_eq!(rig.finish(token), Ended::Done(token, Ok(())));
    rig.write(A, 10, &stamped(310)).unwrap();
    pass(&mut rig);
    for block in 11..50 {
        assert_eq!(rig.read(A, block, 1).err(), Some(IoError::Unproven { span: one(block) }));
    }
}

#[test]
fn a_block_that_was_written_again_is_not_on_the_list_after_the_next_crash() {
    let mut rig = dirty();
    let at = place_of(&rig.disks, 120);
    rig.disks.damage(at, 7, 1);
    let mut rig = reopen(&rig);
    pass(&mut rig);
    rig.pool.request_checkpoint();
    rig.settle();
    assert_eq!(rig.pool.health().unproven_blocks, 1);
    rig.write(A, 20, &stamped(320)).unwrap();
    rig.flush(A).unwrap();
    let rig = reopen(&rig);
    assert_eq!(rig.pool.health().unproven_blocks, 0);
}

#[test]
fn one_unreadable_block_at_an_import_drops_no_other_record() {
    let mut rig = open(new_disks(SIZES, 64), SIZES).unwrap();
    rig.must(replica(1, 0, 100));
    for block in 0..64 {
        rig.write(A, block, &stamped(100 + block)).unwrap();
    }
    // Nothing proves this flush to the next import, which so reads all blocks.
    rig.flush(A).unwrap();
    let mut disks = rig.disks.after_crash(&mut Random(0));
    let at = place_of(&disks, 140);
    disks.unreadable = vec![only(at)];
    let mut rig = open(disks, SIZES).unwrap();
    assert_eq!(rig.stamps(A, 0, 40).map(|stamps| stamps[39]), Ok(139));
    assert!(matches!(rig.read(A, 40, 1), Err(IoError::Medium { .. })));
    rig.disks.unreadable.clear();
    assert_eq!(rig.stamps(A, 0, 64).map(|stamps| stamps[40]), Ok(140));
}

/// A block whose CRC-32C is 0: its last four bytes are the solution of a linear equation.
fn block_without_crc() -> Vec<u8> {
    let crc = |end: u32| crc32c::crc32c(&[&stamped(77)[..4092], &end.to_le_bytes()].concat());
    let (base, mut end, mut wanted) = (crc(0), 0u32, crc(0));
    // Each bit of the end changes the sum by an amount of its own: reduced to one leading bit each.
    let mut rows: Vec<(u32, u32)> = (0..32).map(|bit| (crc(1 << bit) ^ base, 1 << bit)).collect();
    for bit in (0..32).rev() {
        let Some(at) = rows.iter().position(|(change, _)| change >> bit == 1) else { continue };
        let (change, bits) = rows.swap_remove(at);
        for row in rows.iter_mut().filter(|(other, _)| other >> bit == 1) {
            *row = (row.0 ^ change, row.1 ^ bits);
        }
        if wanted >> bit == 1 {
            (wanted, end) = (wanted ^ change, end ^ bits);
        }
    }
    let block = [&stamped(77)[..4092], &end.to_le_bytes()].concat();
    assert_eq!(crc32c::crc32c(&block), 0);
    block
}

/// Whether a block whose CRC-32C is 0 is, when it is being overwritten, unproven as any other.
fn zero_crc_is_a_checksum() -> bool {
    let block = block_without_crc();
    let mut rig = dirty();
    rig.write(A, 30, &block).unwrap();
    rig.flush(A).unwrap();
    rig.pool.request_checkpoint();
    rig.settle();
    assert_eq!(rig.read(A, 30, 1), Ok(block.clone()));
    rig.write(A, 30, &stamped(230)).unwrap();
    let mut after = open(rig.disks.after_death(&mut Random(0)), SIZES).unwrap();
    let is_unproven = after.read(A, 30, 1).err() == Some(IoError::Unproven { span: one(30) });
    after.pool.set_sole(A, true);
    if after.stamps(A, 30, 1) != Ok(vec![230]) {
        return false;
    }
    // And the other way round.
    after.flush(A).unwrap();
    after.write(A, 30, &block).unwrap();
    let mut after = open(after.disks.after_death(&mut Random(0)), SIZES).unwrap();
    after.pool.set_sole(A, true);
    is_unproven && after.read(A, 30, 1) == Ok(block)
}

#[test]
fn a_block_whose_crc_is_zero_has_a_checksum() {
    assert!(zero_crc_is_a_checksum());
    let _disabled = DisabledRule::new(Rule::SumIsNeverNone);
    assert!(!zero_crc_is_a_checksum(), "nobody notices that it is taken for none");
}
