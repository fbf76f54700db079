//! What a pool offers, one thing at a time.

use std::vec;
use std::vec::Vec;

use block::{Blocks, Command, IoError, Lba, Span};

use super::disk::Random;
use super::driver::{Ended, Moment, Rig, new_disks, open};
use super::history::replica;
use super::model::stamped;
use crate::layout::BLOCK;
use crate::{Change, Id, KEY_CHECK, Label, NewReplica, NewSnapshot, QueryKind, Refused};

const SIZES: &[u64] = &[3600];
const A: Id = Id(1);

fn rig() -> Rig {
    let mut rig = open(new_disks(SIZES, 64), SIZES).unwrap();
    rig.must(replica(1, 0, 5000));
    rig
}

fn refused(rig: &mut Rig, change: Change) -> Refused {
    let token = rig.change(change);
    match rig.finish(token) {
        Ended::Changed(_, Err(refused)) => refused,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn what_was_never_written_reads_as_zeros_without_the_disk() {
    let mut rig = rig();
    let span = Span::new(Lba(0), Blocks(5000)).unwrap();
    let token = rig.submit(A, Command::Read { span }, Vec::new());
    assert!(matches!(rig.step(&mut Random(1)), Moment::Ended(Ended::Done(_, Ok(())))));
    assert!(rig.buffers[&token].iter().all(|byte| *byte == 0));
    assert_eq!(rig.pool.usage_of(A).unwrap().own.0, 0);
}

#[test]
fn a_full_pool_says_so_and_deletes_still_work() {
    let mut rig = rig();
    let clusters = rig.pool.usage().size.0 / (64 * 4096);
    for cluster in 0..clusters {
        rig.write(A, cluster * 64, &stamped(cluster + 1)).unwrap();
    }
    assert_eq!(rig.write(A, clusters * 64, &stamped(9)), Err(IoError::NoSpace));
    rig.write(A, 1, &stamped(8)).unwrap();
    rig.flush(A).unwrap();
    let snapshot = NewSnapshot { id: Id(2), created: 1, label: Label::default() };
    rig.must(Change::Snapshot { of: A, snapshot });
    assert_eq!(rig.write(A, 0, &stamped(9)), Err(IoError::NoSpace));
    rig.must(Change::Delete(Id(2)));
    rig.write(A, 0, &stamped(10)).unwrap();
    let span = Span::new(Lba(64), Blocks(64)).unwrap();
    let token = rig.submit(A, Command::Discard { span }, Vec::new());
    assert_eq!(rig.finish(token), Ended::Done(token, Ok(())));
    // The discarded cluster is free when the discard is durable; the write waits for that.
    rig.write(A, clusters * 64, &stamped(9)).unwrap();
    assert_eq!(rig.stamps(A, 64, 1), Ok(vec![0]));
    assert_eq!(rig.stamps(A, clusters * 64, 1), Ok(vec![9]));
    rig.must(Change::Delete(A));
    rig.settle();
    assert_eq!(rig.pool.usage().own.0, 0);
}

/// What there is to say about replicas must fit a checkpoint, or the pool could not go on.
#[test]
fn a_pool_full_of_replicas_says_so_and_keeps_room_for_labels_and_snapshots() {
    let mut rig = rig();
    let spec_backup = vec![7; 16_000];
    let mut made = 1;
    let refused = loop {
        let change = match made % 2 {
            0 => Change::SpecBackup { id: Id(made), spec_backup: spec_backup.clone() },
            _ => replica(made + 1, 0, 64),
        };
        let token = rig.change(change);
        match rig.finish(token) {
            Ended::Changed(_, Ok(())) => made += 1,
            other => break other,
        }
        assert!(made < 1000, "there is no end");
    };
    assert!(matches!(refused, Ended::Changed(_, Err(Refused::NoSpace))), "{refused:?}");
    // Small ones, until none fits either.
    let mut small = 10_000;
    loop {
        let token = rig.change(replica(small, 0, 64));
        if !matches!(rig.finish(token), Ended::Changed(_, Ok(()))) {
            break;
        }
        small += 1;
    }
    let label = Label { opaque: vec![3; 4000], ..Label::default() };
    rig.must(Change::Label { id: A, label: label.clone() });
    let snapshot = NewSnapshot { id: Id(9_000), created: 1, label: Label::default() };
    rig.must(Change::Snapshot { of: A, snapshot });
    rig.pool.request_checkpoint();
    rig.settle();
    assert!(!rig.pool.health().broken);
    let replicas = rig.pool.entities().count();
    let mut rig = open(rig.disks, SIZES).unwrap();
    assert_eq!(rig.pool.entities().count(), replicas);
    assert_eq!(rig.pool.entity(A).unwrap().label, label);
    rig.must(Change::Delete(Id(2)));
    rig.must(replica(small, 0, 64));
}

#[test]
fn a_write_after_a_snapshot_costs_one_block() {
    let mut rig = rig();
    let data: Vec<u8> = (0..64).flat_map(|block| stamped(100 + block)).collect();
    rig.write(A, 0, &data).unwrap();
    let snapshot = NewSnapshot { id: Id(2), created: 1, label: Label::default() };
    rig.must(Change::Snapshot { of: A, snapshot });
    rig.settle();
    let span = Span::new(Lba(5), Blocks(1)).unwrap();
    let token = rig.submit(A, Command::Write { span, fua: false }, stamped(7));
    let (mut ios, mut before) = (0, 0);
    loop {
        match rig.step(&mut Random(1)) {
            Moment::Io => ios += 1,
            Moment::Ended(ended) => {
                assert_eq!(ended, Ended::Done(token, Ok(())));
                before = ios;
            }
            Moment::Quiet => break,
        }
    }
    // And its record, in both copies of the journal: one of them is enough to answer.
    assert_eq!(ios, 1 + 2);
    assert!(before > 1, "it was answered after {before}");
    assert_eq!(rig.stamps(A, 5, 1), Ok(vec![7]));
    assert_eq!(rig.stamps(Id(2), 5, 1), Ok(vec![105]));
    let changed = QueryKind::Changed { older: Id(2), newer: A };
    assert_eq!(rig.ask(changed, Blocks(0), 9), Ok(vec![(5, 6)]));
    assert_eq!(rig.ask(QueryKind::Written(A), Blocks(0), 9), Ok(vec![(0, 64)]));
    let usage = rig.pool.usage_of(A).unwrap();
    assert_eq!((usage.own.0, usage.below.0, usage.written.0), (64 * 4096, 64 * 4096, 4096));
}

#[test]
fn an_overwrite_costs_one_write_once_its_region_is_marked() {
    let mut rig = rig();
    rig.write(A, 0, &stamped(1)).unwrap();
    rig.flush(A).unwrap();
    rig.write(A, 0, &stamped(2)).unwrap();
    rig.settle();
    assert_eq!(rig.pool.health().dirty_regions, 1);
    for stamp in 3..20 {
        let span = Span::new(Lba(0), Blocks(1)).unwrap();
        rig.submit(A, Command::Write { span, fua: false }, stamped(stamp));
        assert!(matches!(rig.step(&mut Random(1)), Moment::Io));
        assert!(matches!(rig.step(&mut Random(1)), Moment::Ended(_)));
        assert!(matches!(rig.step(&mut Random(1)), Moment::Quiet));
    }
}

#[test]
fn a_deep_chain_reads_right_and_comes_apart_in_any_order() {
    let mut rig = open(new_disks(&[9000], 64), &[9000]).unwrap();
    rig.must(replica(1, 0, 100));
    for depth in 0..60 {
        rig.write(A, depth, &stamped(depth + 1)).unwrap();
        let id = Id(100 + u128::from(depth));
        let snapshot = NewSnapshot { id, created: 1, label: Label::default() };
        rig.must(Change::Snapshot { of: A, snapshot });
    }
    let expect: Vec<u64> = (1..=60).collect();
    assert_eq!(rig.stamps(A, 0, 60), Ok(expect.clone()));
    // Deleted in any order, the rest stays right and the space comes back.
    let mut order: Vec<u128> = (0..60).collect();
    let mut random = Random(4);
    while !order.is_empty() {
        let gone = order.swap_remove(random.below(order.len() as u64) as usize);
        rig.must(Change::Delete(Id(100 + gone)));
        assert_eq!(rig.stamps(A, 0, 60), Ok(expect.clone()));
    }
    rig.settle();
    rig.pool.check_state();
    assert_eq!(rig.pool.usage().written.0, 60 * 4096);
    assert_eq!(rig.pool.usage().below.0, 0);
}

#[test]
fn encrypted_replicas_want_their_key() {
    let mut rig = rig();
    let key: Vec<u8> = (0..60).collect();
    let new = NewReplica {
        id: Id(9),
        origin: Id::NONE,
        size: Blocks(10),
        thick: false,
        created: 0,
        label: Label::default(),
        key: key.clone(),
    };
    rig.must(Change::Create(new));
    assert_eq!(rig.write(Id(9), 0, &stamped(1)), Err(IoError::Locked));
    assert_eq!(rig.pool.unlock(Id(9), [7; KEY_CHECK]), Err(Refused::WrongKey));
    let check: [u8; KEY_CHECK] = key[..KEY_CHECK].try_into().unwrap();
    rig.pool.unlock(Id(9), check).unwrap();
    rig.write(Id(9), 0, &stamped(1)).unwrap();
    let mut rewrapped = key.clone();
    rewrapped.truncate(30);
    rig.must(Change::Rewrap { id: Id(9), key: rewrapped.clone() });
    assert_eq!(rig.pool.entity(Id(9)).unwrap().key, rewrapped);
    let other = Change::Rewrap { id: Id(9), key: vec![1; 40] };
    assert_eq!(refused(&mut rig, other), Refused::WrongKey);
    let snapshot = NewSnapshot { id: Id(10), created: 1, label: Label::default() };
    rig.must(Change::Snapshot { of: Id(9), snapshot });
    rig.must(replica(11, 10, 10));
    assert_eq!(rig.stamps(Id(11), 0, 1), Err(IoError::Locked));
    // A scrub sees what is on the medium, and needs no key.
    let token = rig.token();
    rig.pool.verify(token, Id(11), Span::new(Lba(0), Blocks(1)).unwrap());
    assert_eq!(rig.finish(token), Ended::Done(token, Ok(())));
    rig.pool.unlock(Id(11), check).unwrap();
    assert_eq!(rig.stamps(Id(11), 0, 1), Ok(vec![1]));
}

#[test]
fn refusals_change_nothing() {
    let mut rig = rig();
    let before = rig.pool.usage();
    assert_eq!(refused(&mut rig, replica(1, 0, 10)), Refused::Exists);
    assert_eq!(refused(&mut rig, replica(5, 99, 10)), Refused::NotFound);
    assert_eq!(refused(&mut rig, replica(5, 1, 10)), Refused::NotSnapshot);
    assert_eq!(refused(&mut rig, Change::Delete(Id(77))), Refused::NotFound);
    let thick = Change::Create(NewReplica {
        id: Id(6),
        origin: Id::NONE,
        size: Blocks(1 << 30),
        thick: true,
        created: 0,
        label: Label::default(),
        key: Vec::new(),
    });
    assert_eq!(refused(&mut rig, thick), Refused::NoSpace);
    let label = Label { opaque: vec![0; 5000], ..Label::default() };
    assert!(matches!(refused(&mut rig, Change::Label { id: A, label }), Refused::Bad(_)));
    let spec_backup = vec![0; crate::Entity::MOST_SPEC_BACKUP + 1];
    assert!(matches!(
        refused(&mut rig, Change::SpecBackup { id: A, spec_backup }),
        Refused::Bad(_)
    ));
    assert_eq!(rig.pool.usage(), before);
    let beyond = Span::new(Lba(4999), Blocks(2)).unwrap();
    let token = rig.submit(A, Command::Read { span: beyond }, Vec::new());
    assert_eq!(rig.finish(token), Ended::Done(token, Err(IoError::OutOfRange { span: beyond })));
    let token = rig.submit(A, Command::Write { span: beyond, fua: false }, vec![0; BLOCK]);
    assert!(matches!(rig.finish(token), Ended::Done(_, Err(_))));
}

#[test]
fn a_queue_that_is_full_says_busy() {
    let mut rig = rig();
    let span = Span::new(Lba(0), Blocks(1)).unwrap();
    for _ in 0..300 {
        rig.submit(A, Command::Write { span, fua: false }, stamped(1));
    }
    let mut busy = 0;
    loop {
        match rig.step(&mut Random(1)) {
            Moment::Ended(Ended::Done(_, Err(IoError::Busy))) => busy += 1,
            Moment::Quiet => break,
            _ => {}
        }
    }
    assert_eq!(busy, 300 - 256);
}

#[test]
fn a_block_that_was_discarded_is_not_reused_before_that_is_durable() {
    for seed in 0..40 {
        let mut rig = rig();
        rig.write(A, 0, &[stamped(1), stamped(2)].concat()).unwrap();
        rig.flush(A).unwrap();
        rig.pool.request_checkpoint();
        rig.settle();
        let span = Span::new(Lba(0), Blocks(1)).unwrap();
        rig.submit(A, Command::Discard { span }, Vec::new());
        rig.submit(A, Command::Write { span, fua: false }, stamped(3));
        let random = &mut Random(seed);
        loop {
            match rig.step(random) {
                Moment::Io => {
                    let mut after = open(rig.disks.after_crash(random), SIZES).unwrap();
                    let found = after.stamps(A, 0, 2).expect("no block is damaged");
                    assert!(found[0] <= 3 && found[0] != 2 && found[1] == 2, "{found:?}");
                }
                Moment::Ended(_) => {}
                Moment::Quiet => break,
            }
        }
    }
}

#[test]
fn a_thick_replica_keeps_its_space_when_a_snapshot_of_it_goes() {
    let mut rig = rig();
    let thick = NewReplica {
        id: Id(9),
        origin: Id::NONE,
        size: Blocks(192),
        thick: true,
        created: 0,
        label: Label::default(),
        key: Vec::new(),
    };
    rig.must(Change::Create(thick));
    rig.write(Id(9), 0, &stamped(1)).unwrap();
    let snapshot = NewSnapshot { id: Id(10), created: 1, label: Label::default() };
    rig.must(Change::Snapshot { of: Id(9), snapshot });
    rig.write(Id(9), 1, &stamped(2)).unwrap();
    rig.must(Change::Delete(Id(10)));
    rig.settle();
    // Its first logical cluster has two physical ones now; the others are still its due.
    let full = (0..78).find_map(|nth| rig.write(A, nth * 64, &stamped(3)).err());
    assert_eq!(full, Some(IoError::NoSpace));
    for cluster in [1, 2] {
        assert_eq!(rig.write(Id(9), cluster * 64, &stamped(4)), Ok(()));
    }
    rig.pool.check_state();
}
