//! Bits that go bad: noticed, healed or isolated; never a panic, never wrong bytes.

use std::vec;
use std::vec::Vec;

use block::{Blocks, IoError, Lba, Span};

use super::disk::Disks;
use super::disk::Random;
use super::driver::{Ended, Moment, Rig, new_disks, open};
use super::history::replica;
use super::model::stamped;
use crate::layout::{BLOCK, Use};
use crate::mutation::{DisabledRule, Rule};
use crate::superblock::Superblock;
use crate::{Change, Disk, Id, ImportError, Label, NewSnapshot, Place, QueryKind};

const SIZES: &[u64] = &[3600];
const A: Id = Id(1);
const B: Id = Id(2);

/// A pool with two replicas, one of them over a snapshot, some in the journal, some not.
fn sample() -> (Disks, Superblock) {
    let mut rig = open(new_disks(SIZES, 64), SIZES).unwrap();
    rig.must(replica(1, 0, 100));
    rig.must(replica(2, 0, 100));
    for block in 0..80 {
        rig.write(A, block, &stamped(100 + block)).unwrap();
    }
    rig.flush(A).unwrap();
    rig.pool.request_checkpoint();
    rig.settle();
    let snapshot = NewSnapshot { id: Id(3), created: 1, label: Label::default() };
    rig.must(Change::Snapshot { of: A, snapshot });
    for block in 10..20 {
        rig.write(A, block, &stamped(500 + block)).unwrap();
        rig.write(B, block, &stamped(900 + block)).unwrap();
    }
    rig.flush(A).unwrap();
    // The last group: nothing proves that it was acknowledged, so its loss shows nowhere.
    rig.must(Change::Share { id: B, share: vec![1] });
    let superblock = rig.pool.superblock().clone();
    (rig.disks, superblock)
}

fn expected(id: Id, block: u64) -> u64 {
    match (id.0, block) {
        (1, 10..20) => 500 + block,
        (1 | 3, 0..80) => 100 + block,
        (2, 10..20) => 900 + block,
        _ => 0,
    }
}

/// Every block reads as it should, or is refused.
fn check(rig: &mut Rig) -> Vec<IoError> {
    let mut faults = Vec::new();
    for id in [A, B, Id(3)] {
        for block in 0..100 {
            match rig.stamps(id, block, 1) {
                Ok(found) => assert_eq!(found, [expected(id, block)], "{id:?} {block}"),
                Err(fault) => faults.push(fault),
            }
        }
    }
    faults
}

fn area(superblock: &Superblock, usage: Use) -> (Place, u64) {
    let area = superblock.area(usage).unwrap();
    (area.start, area.blocks)
}

/// Damages one block and opens the pool.
fn with_damage(disks: &Disks, places: &[Place], byte: usize) -> Result<Vec<IoError>, ImportError> {
    let mut disks = disks.clone();
    for place in places {
        disks.damage(*place, byte, 0x10);
    }
    let mut rig = open(disks, SIZES)?;
    rig.pool.check_state();
    let faults = check(&mut rig);
    rig.settle();
    rig.pool.check_state();
    Ok(faults)
}

#[test]
fn one_bad_copy_of_any_metadata_block_is_healed() {
    let (disks, superblock) = sample();
    let mut healed = 0;
    for copy in [0, 1] {
        for usage in [
            Use::Journal { copy },
            Use::Checkpoint { slot: 0, copy },
            Use::Checkpoint { slot: 1, copy },
        ] {
            let (start, blocks) = area(&superblock, usage);
            for block in (0..blocks.min(24)).map(|at| start.block + at) {
                for byte in [3, 30, 2000, 4093] {
                    let place = Place { block, ..start };
                    assert_eq!(with_damage(&disks, &[place], byte), Ok(vec![]), "{place:?}");
                    healed += 1;
                }
            }
        }
        let place = Place { disk: Disk(0), block: u64::from(copy) * 256 };
        assert_eq!(with_damage(&disks, &[place], 20), Ok(vec![]));
    }
    assert!(healed > 300);
}

/// Damages one copy after the other; answers whether all was healed.
fn heals(disks: &Disks, usage: Use, superblock: &Superblock) -> bool {
    let (start, blocks) = area(superblock, usage);
    (0..blocks.min(24)).all(|at| {
        let place = Place { block: start.block + at, ..start };
        with_damage(disks, &[place], 30) == Ok(vec![])
    })
}

#[test]
fn second_copies_left_out_are_noticed() {
    let _disabled = DisabledRule::new(Rule::SecondCopy);
    let (disks, superblock) = sample();
    assert!(!heals(&disks, Use::Journal { copy: 0 }, &superblock));
    let slots = [0, 1].map(|slot| Use::Checkpoint { slot, copy: 0 });
    assert!(!slots.into_iter().all(|slot| heals(&disks, slot, &superblock)));
}

#[test]
fn a_journal_block_bad_in_both_copies_refuses_the_import() {
    let (disks, superblock) = sample();
    let places = [0, 1].map(|copy| area(&superblock, Use::Journal { copy }).0);
    // The first block after the checkpoint; later ones prove that it was acknowledged.
    let mut refused = 0;
    for at in 0..24 {
        let places = places.map(|start| Place { block: start.block + at, ..start });
        match with_damage(&disks, &places, 100) {
            Err(ImportError::JournalGap) => refused += 1,
            // Before the checkpoint, or beyond the end: no loss.
            Ok(faults) if faults.is_empty() => {}
            other => panic!("block {at}: {other:?}"),
        }
    }
    assert!(refused > 0);
}

#[test]
fn no_metadata_block_that_is_bad_in_both_copies_makes_wrong_bytes() {
    let (disks, superblock) = sample();
    let both = |usage: fn(u8) -> Use| [0, 1].map(|copy| area(&superblock, usage(copy)));
    let areas = [
        both(|copy| Use::Journal { copy }),
        both(|copy| Use::Checkpoint { slot: 0, copy }),
        both(|copy| Use::Checkpoint { slot: 1, copy }),
        [(Place { disk: Disk(0), block: 0 }, 1), (Place { disk: Disk(0), block: 256 }, 1)],
    ];
    let (mut whole, mut faults, mut refused) = (0, 0, 0);
    for [(one, blocks), (other, _)] in areas {
        for at in 0..blocks.min(16) {
            let places = [one, other].map(|start| Place { block: start.block + at, ..start });
            for byte in [3, 30, 60, 900, 4093] {
                // What is read is right: `check` says so.
                match std::panic::catch_unwind(|| with_damage(&disks, &places, byte)) {
                    Ok(Ok(found)) if found.is_empty() => whole += 1,
                    Ok(Ok(_)) => faults += 1,
                    Ok(Err(_)) => refused += 1,
                    // Without a superblock there is no pool to open.
                    Err(_) => assert_eq!(blocks, 1, "{places:?} byte {byte}"),
                }
            }
        }
    }
    assert!(whole > 0 && refused > 0, "{whole} {faults} {refused}");
}

#[test]
fn a_lost_map_isolates_its_replicas_only() {
    let (disks, superblock) = sample();
    let mut rig = open(disks, SIZES).unwrap();
    rig.pool.request_checkpoint();
    rig.settle();
    let used = rig.pool.usage().own;
    let (disks, mut isolated) = (rig.disks.clone(), 0);
    for slot in [0, 1] {
        let starts = [0, 1].map(|copy| area(&superblock, Use::Checkpoint { slot, copy }).0);
        // The first block of the body has pages, the second what an import reads.
        for (block, byte) in (0..2 * BLOCK).step_by(7).map(|at| (1 + at / BLOCK, at % BLOCK)) {
            let mut disks = disks.clone();
            for start in starts {
                disks.damage(Place { block: start.block + block as u64, ..start }, byte, 0x40);
            }
            let Ok(mut rig) = open(disks, SIZES) else { continue };
            rig.pool.check_state();
            assert!(rig.pool.usage().own >= used, "byte {byte}: no cluster is given away");
            // It is noticed when it is needed.
            for id in [A, B, Id(3)] {
                let _ = rig.stamps(id, 12, 1);
            }
            let damaged = rig.pool.health().damaged;
            isolated += usize::from(!damaged.is_empty() && damaged.len() < 3);
            for id in [A, B, Id(3)] {
                let span = Span::new(Lba(12), Blocks(1)).unwrap();
                let found = rig.stamps(id, 12, 1);
                if damaged.contains(&id) {
                    assert_eq!(found, Err(IoError::Medium { span }));
                } else {
                    assert_eq!(found, Ok(vec![expected(id, 12)]));
                }
            }
            if damaged.contains(&A) && !damaged.contains(&B) {
                rig.write(B, 90, &stamped(7)).unwrap();
                rig.must(Change::Delete(A));
                rig.must(Change::Delete(Id(3)));
                rig.settle();
                rig.pool.check_state();
                assert_eq!(rig.pool.usage().quarantined.0, 0);
                assert_eq!(rig.stamps(B, 90, 1), Ok(vec![7]));
            }
        }
    }
    assert!(isolated > 5, "{isolated}");
}

#[test]
fn a_bad_data_block_is_reported_exactly_and_repaired() {
    let (disks, _) = sample();
    let mut rig = open(disks, SIZES).unwrap();
    // Find where block 42 of the snapshot is, by its content.
    let data: Vec<Place> = (512..3600)
        .map(|block| Place { disk: Disk(0), block })
        .filter(|place| rig.disks.read(*place, 1) == stamped(142))
        .collect();
    assert_eq!(data.len(), 1);
    rig.disks.damage(data[0], 999, 1);
    let bad = Span::new(Lba(42), Blocks(1)).unwrap();
    for id in [A, Id(3)] {
        assert_eq!(rig.stamps(id, 40, 5), Err(IoError::Checksum { span: bad }));
        assert_eq!(rig.stamps(id, 43, 1), Ok(vec![143]));
    }
    let token = rig.token();
    rig.buffers.insert(token, stamped(142));
    rig.pool.repair(token, Id(3), bad, &stamped(142));
    assert_eq!(rig.finish(token), Ended::Done(token, Ok(())));
    assert_eq!(check(&mut rig), vec![]);
    // The repair stays after the next checkpoint and import.
    rig.pool.request_checkpoint();
    rig.settle();
    rig.pool.request_checkpoint();
    rig.settle();
    assert_eq!(rig.pool.health().dirty_regions, 0);
    let mut rig = open(rig.disks, SIZES).unwrap();
    assert_eq!(check(&mut rig), vec![]);
}

#[test]
fn sums_pages_are_healed_from_the_second_copy_and_their_loss_is_a_fault() {
    let (disks, superblock) = sample();
    let mut rig = open(disks, SIZES).unwrap();
    rig.pool.request_checkpoint();
    rig.settle();
    let is_data = |area: &&crate::layout::Area| matches!(area.usage, Use::Data { .. });
    let sums = superblock.areas.iter().find(is_data).unwrap().start;
    let disks = rig.disks;
    let pages = (0..8).map(|at| Place { block: sums.block + at, ..sums });
    let pages: Vec<_> = pages.filter(|at| disks.read(*at, 1).starts_with(b"HSUM")).collect();
    assert!(pages.len() >= 2);
    let half = pages.len() / 2;
    for byte in [0, 5, 30, 64, 4095] {
        for page in &pages {
            assert_eq!(with_damage(&disks, &[*page], byte), Ok(vec![]));
        }
        let faults = with_damage(&disks, &[pages[0], pages[half]], byte).unwrap();
        assert!(!faults.is_empty());
        assert!(faults.iter().all(|fault| matches!(fault, IoError::Checksum { .. })));
    }
}

#[test]
fn lost_sums_can_be_accepted() {
    let (disks, superblock) = sample();
    let mut rig = open(disks, SIZES).unwrap();
    rig.pool.request_checkpoint();
    rig.settle();
    let is_data = |area: &&crate::layout::Area| matches!(area.usage, Use::Data { .. });
    let area = *superblock.areas.iter().find(is_data).unwrap();
    for block in 0..8 {
        let place = Place { block: area.start.block + block, ..area.start };
        rig.disks.damage(place, 100, 1);
    }
    let mut rig = open(rig.disks, SIZES).unwrap();
    let all = Span::new(Lba(0), Blocks(100)).unwrap();
    assert!(!check(&mut rig).is_empty());
    for id in [A, B, Id(3)] {
        let token = rig.token();
        rig.pool.accept(token, id, all);
        assert_eq!(rig.finish(token), Ended::Done(token, Ok(())));
    }
    assert_eq!(check(&mut rig), vec![]);
}

#[test]
fn a_lost_map_that_was_collapsed_later_is_not_forgotten() {
    let (disks, superblock) = sample();
    let mut rig = open(disks, SIZES).unwrap();
    rig.pool.request_checkpoint();
    rig.settle();
    rig.must(Change::Delete(Id(3)));
    rig.settle();
    rig.write(B, 70, &stamped(3)).unwrap();
    rig.flush(B).unwrap();
    let disks = rig.disks;
    let mut lost = 0;
    for slot in [0, 1] {
        let starts = [0, 1].map(|copy| area(&superblock, Use::Checkpoint { slot, copy }).0);
        // The first block of the body has pages, the second what an import reads.
        for (block, byte) in (0..2 * BLOCK).step_by(7).map(|at| (1 + at / BLOCK, at % BLOCK)) {
            let mut disks = disks.clone();
            for start in starts {
                disks.damage(Place { block: start.block + block as u64, ..start }, byte, 0x40);
            }
            let Ok(mut rig) = open(disks, SIZES) else { continue };
            rig.pool.check_state();
            // Block 40 of A came from the snapshot.
            let _ = rig.stamps(A, 40, 1);
            let damaged = rig.pool.health().damaged.contains(&A);
            assert_eq!(rig.stamps(A, 40, 1).is_err(), damaged);
            if !damaged {
                assert_eq!(rig.stamps(A, 40, 1), Ok(vec![140]));
            }
            lost += usize::from(damaged);
        }
    }
    assert!(lost > 5);
}

/// Leaves a pool in the middle of an overwrite of block 30 of B.
fn torn() -> Rig {
    let (disks, _) = sample();
    let mut rig = open(disks, SIZES).unwrap();
    rig.write(B, 30, &stamped(1)).unwrap();
    rig.write(B, 31, &stamped(1)).unwrap();
    rig.flush(B).unwrap();
    rig.write(B, 30, &stamped(2)).unwrap();
    // Overwritten behind the back of the pool: as a torn write leaves it.
    let at = place_of(&rig.disks, 2);
    rig.disks.damage(at, 0, 0xff);
    open(rig.disks.after_crash(&mut Random(0)), SIZES).unwrap()
}

fn place_of(disks: &Disks, stamp: u64) -> Place {
    let places = (512..3600).map(|block| Place { disk: Disk(0), block });
    let found: Vec<_> = places.filter(|at| disks.read(*at, 1) == stamped(stamp)).collect();
    assert_eq!(found.len(), 1);
    found[0]
}

#[test]
fn doubt_after_a_crash_is_listed_and_ends() {
    let mut rig = torn();
    assert_eq!(rig.pool.health().doubtful_regions, 1);
    let unproven = Err(IoError::Unproven { span: Span::new(Lba(30), Blocks(1)).unwrap() });
    assert_eq!(rig.read(B, 29, 3), unproven);
    loop {
        let token = rig.token();
        if !rig.pool.narrow_doubt(token) {
            break;
        }
        assert_eq!(rig.finish(token), Ended::Done(token, Ok(())));
    }
    let health = rig.pool.health();
    assert_eq!((health.doubtful_regions, health.unproven_blocks), (0, 1));
    assert_eq!(rig.read(B, 29, 3), unproven);
    for _ in 0..2 {
        rig.pool.request_checkpoint();
        rig.settle();
    }
    let mut rig = open(rig.disks, SIZES).unwrap();
    let health = rig.pool.health();
    assert_eq!((health.doubtful_regions, health.unproven_blocks), (0, 1));
    assert_eq!(rig.read(B, 29, 3), unproven);
    rig.accept_unproven(B, 29, 3).unwrap();
    rig.read(B, 29, 3).unwrap();
    assert_eq!(rig.pool.health().unproven_blocks, 0);
    // From now on damage there is damage.
    let at = place_of(&rig.disks, 500 + 11);
    rig.disks.damage(at, 9, 1);
    let span = Span::new(Lba(11), Blocks(1)).unwrap();
    assert_eq!(rig.stamps(A, 11, 1), Err(IoError::Checksum { span }));
}

#[test]
fn a_scrub_sees_every_block_once_and_finds_the_bad_one() {
    let (disks, _) = sample();
    let mut rig = open(disks, SIZES).unwrap();
    let at = place_of(&rig.disks, 100 + 42);
    rig.disks.damage(at, 4000, 4);
    let (mut seen, mut bad) = (0, Vec::new());
    for id in [A, B, Id(3)] {
        for (from, to) in rig.ask(QueryKind::Own(id), Blocks(0), 100).unwrap() {
            for block in from..to {
                let token = rig.token();
                rig.pool.verify(token, id, Span::new(Lba(block), Blocks(1)).unwrap());
                let Ended::Done(_, result) = rig.finish(token) else { panic!("no block command") };
                bad.extend(result.err().map(|_| (id, block)));
                seen += 1;
            }
        }
    }
    assert_eq!((seen, bad), (100, vec![(Id(3), 42)]));
}

#[test]
fn a_disk_that_fails_ends_commands_and_not_the_process() {
    let (disks, _) = sample();
    let mut rig = open(disks, SIZES).unwrap();
    rig.fails = true;
    assert!(matches!(rig.write(B, 50, &stamped(1)), Err(IoError::Medium { .. })));
    assert!(matches!(rig.stamps(A, 5, 1), Err(IoError::Medium { .. } | IoError::Checksum { .. })));
    assert!(rig.flush(B).is_err());
    assert!(rig.pool.health().broken);
    rig.fails = false;
    assert_eq!(rig.write(B, 50, &stamped(1)), Err(IoError::ReadOnly));
    assert_eq!(rig.stamps(A, 5, 1), Ok(vec![105]));
    assert!(matches!(rig.step(&mut Random(1)), Moment::Quiet));
    let mut rig = open(rig.disks.after_crash(&mut Random(0)), SIZES).unwrap();
    assert_eq!(check(&mut rig), vec![]);
}
