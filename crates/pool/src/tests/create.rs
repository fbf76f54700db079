//! Life of a pool: growing, adding disks, leaving, coming back.

use std::string::String;
use std::vec;
use std::vec::Vec;

use block::{Blocks, IoError};

use super::disk::{Disks, Random};
use super::driver::{Ended, Moment, Rig, new_disks, open};
use super::history::replica;
use super::model::stamped;
use crate::create::{NewPool, Probe, Step, assemble, create, wipe};
use crate::{BadPool, ClusterSize, CommandId, Disk, Id, Member, NotSuper, Place, Superblock};

const A: Id = Id(1);

/// A pool with ten blocks of A written and flushed.
fn rig(sizes: &[u64]) -> Rig {
    let mut rig = open(new_disks(sizes, 64), sizes).unwrap();
    rig.must(replica(1, 0, 100_000));
    for block in 0..10 {
        rig.write(A, block, &stamped(block + 1)).unwrap();
    }
    rig.flush(A).unwrap();
    rig
}

fn check(rig: &mut Rig) {
    rig.pool.check_state();
    assert_eq!(rig.stamps(A, 0, 10), Ok((1..=10).collect()));
}

/// Runs a change of the table, cutting the power after every I/O.
fn grows_through_any_cut(mut rig: Rig, before: &[u64], after: &[u64], token: CommandId) -> Rig {
    let random = &mut Random(9);
    let mut done = false;
    loop {
        match rig.step(random) {
            Moment::Io => {
                let left: Disks = rig.disks.after_crash(random);
                let supers = [0, 256].map(|block| left.read(Place { disk: Disk(0), block }, 1));
                let probe = Probe { blocks: Blocks(after[0]), supers: [&supers[0], &supers[1]] };
                let found = probe.superblock().unwrap();
                let same = found.disks.len() == before.len();
                let sizes = if done || !same { after } else { &after[..before.len()] };
                let mut rig = open(left, sizes).unwrap();
                check(&mut rig);
                rig.settle();
                check(&mut rig);
            }
            Moment::Ended(ended) => {
                assert_eq!(ended, Ended::Changed(token, Ok(())));
                done = true;
            }
            Moment::Quiet => break,
        }
    }
    assert!(done);
    rig
}

fn fill(rig: &mut Rig) -> u64 {
    let mut clusters = 1;
    while rig.write(A, clusters * 64, &stamped(1000 + clusters)) != Err(IoError::NoSpace) {
        clusters += 1;
    }
    clusters
}

#[test]
fn a_disk_grows() {
    let mut rig = rig(&[3600]);
    let before = rig.pool.usage().size;
    let token = rig.token();
    rig.pool.grow(token, &[Blocks(60_000)]);
    let mut rig = grows_through_any_cut(rig, &[3600], &[60_000], token);
    assert!(rig.pool.usage().size.0 > before.0 * 10);
    // Both slots have moved, with room for the larger maps.
    rig.pool.request_checkpoint();
    rig.settle();
    rig.pool.request_checkpoint();
    rig.settle();
    let filled = fill(&mut rig);
    assert_eq!(filled * 64 * 4096, rig.pool.usage().size.0);
    rig.flush(A).unwrap();
    rig.pool.request_checkpoint();
    rig.settle();
    let mut rig = open(rig.disks.after_crash(&mut Random(0)), &[60_000]).unwrap();
    check(&mut rig);
    assert_eq!(rig.stamps(A, (filled - 1) * 64, 1), Ok(vec![1000 + filled - 1]));
    let token = rig.token();
    rig.pool.grow(token, &[Blocks(60_000)]);
    assert_eq!(rig.finish(token), Ended::Changed(token, Err(crate::Refused::NotLarger)));
}

#[test]
fn a_disk_is_added() {
    let mut rig = rig(&[3600]);
    let token = rig.token();
    rig.pool.add_disk(token, Member { id: Id(51), blocks: Blocks(3000) });
    let mut rig = grows_through_any_cut(rig, &[3600], &[3600, 3000], token);
    fill(&mut rig);
    rig.flush(A).unwrap();
    let used = rig.pool.usage();
    assert_eq!(used.own, used.size);
    let mut rig = open(rig.disks.after_crash(&mut Random(0)), &[3600, 3000]).unwrap();
    check(&mut rig);
    assert_eq!(rig.pool.usage().own, used.own);
}

#[test]
fn an_export_leaves_nothing_in_doubt() {
    let mut rig = rig(&[3600]);
    for block in 0..10 {
        rig.write(A, block, &stamped(block + 1)).unwrap();
    }
    let token = rig.token();
    rig.pool.export(token);
    assert_eq!(rig.finish(token), Ended::Changed(token, Ok(())));
    assert_eq!(rig.write(A, 0, &stamped(1)), Err(IoError::ReadOnly));
    check(&mut rig);
    let mut rig = open(rig.disks.after_crash(&mut Random(0)), &[3600]).unwrap();
    let health = rig.pool.health();
    assert_eq!((health.dirty_regions, health.doubtful_regions, health.changed_pages), (0, 0, 0));
    check(&mut rig);
    rig.write(A, 0, &stamped(1)).unwrap();
}

#[test]
fn disks_are_told_apart() {
    let sizes = [7000, 2600];
    let disks = new_disks(&sizes, 64);
    let supers: Vec<[Vec<u8>; 2]> = (0..2)
        .map(|disk| [0, 256].map(|block| disks.read(Place { disk: Disk(disk), block }, 1)))
        .collect();
    let probe = |disk: usize, blocks: u64| Probe {
        blocks: Blocks(blocks),
        supers: [&supers[disk][0], &supers[disk][1]],
    };
    let order = |probes: &[Probe<'_>]| assemble(probes).map(|(_, order)| order);
    assert_eq!(order(&[probe(1, 2600), probe(0, 7000)]), Ok(vec![1, 0]));
    let missing = BadPool::Missing { number: Disk(1), of: 2 };
    assert_eq!(order(&[probe(0, 7000)]), Err(missing));
    let twice = BadPool::Twice { number: Disk(0) };
    assert_eq!(order(&[probe(0, 7000), probe(0, 7000), probe(1, 2600)]), Err(twice));
    let shrunk = BadPool::Shrunk { number: Disk(0) };
    assert_eq!(order(&[probe(0, 6999), probe(1, 2600)]), Err(shrunk));
    let blank = vec![0; 4096];
    let foreign = Probe { blocks: Blocks(9), supers: [&blank, &blank] };
    let not_ours = BadPool::NotSuper { given: 1, source: NotSuper::Foreign };
    assert_eq!(order(&[probe(0, 7000), foreign]), Err(not_ours));
    let mut other = Superblock::decode(&supers[0][0]).unwrap();
    other.pool = Id(99);
    let other = other.encode(Disk(0));
    let other = Probe { blocks: Blocks(7000), supers: [&other, &other] };
    assert_eq!(order(&[probe(0, 7000), other]), Err(BadPool::OtherPool { given: 1 }));
}

#[test]
fn creation_is_a_few_small_writes_at_any_size() {
    let new = |blocks: u64| NewPool {
        id: Id(1),
        name: "big".into(),
        cluster: ClusterSize::DEFAULT,
        disks: vec![Member { id: Id(2), blocks: Blocks(blocks) }],
    };
    assert!(create(&new(1 << 38)).unwrap().len() < 12);
    for step in wipe(1) {
        if let Step::Write { place, bytes } = step {
            assert!(matches!(place.block, 0 | 256) && bytes.iter().all(|byte| *byte == 0));
        }
    }
    assert!(matches!(create(&new(1500)), Err(BadPool::TooSmall { .. })));
    assert_eq!(create(&NewPool { name: String::new(), ..new(9000) }), Err(BadPool::Name));
}

#[test]
fn power_lost_while_a_disk_is_added_leaves_a_pool() {
    for seed in 0..40 {
        let mut rig = open(new_disks(&[3600], 64), &[3600]).unwrap();
        let token = rig.token();
        rig.pool.add_disk(token, Member { id: Id(51), blocks: Blocks(3000) });
        let random = &mut Random(seed);
        for _ in 0..seed % 12 {
            rig.step(random);
        }
        // In some of them only an old disk, or only the new one, has the new table.
        assert!(super::driver::import(rig.disks.after_crash(random), &[3600, 3000]).is_ok());
    }
}

#[test]
fn power_lost_in_two_changes_of_the_superblock_leaves_one() {
    for seed in 0..300 {
        let random = &mut Random(seed);
        let mut disks = new_disks(&[3600], 64);
        // The second copy is being written when the power goes, the next time the first one.
        for (size, steps) in [(4200, 3), (4800, 1)] {
            let mut rig = super::driver::import(disks, &[4800]).expect("a superblock is left");
            let token = rig.token();
            rig.pool.grow(token, &[Blocks(size)]);
            for _ in 0..steps {
                rig.step(random);
            }
            disks = rig.disks.after_crash(random);
        }
        assert!(super::driver::import(disks, &[4800]).is_ok(), "seed {seed}");
    }
}

#[test]
fn what_an_earlier_pool_of_the_same_id_left_is_not_found() {
    let sizes = [3600];
    let mut old = rig(&sizes);
    old.pool.request_checkpoint();
    old.settle();
    check(&mut old);
    old.flush(A).unwrap();
    let mut disks = old.disks;
    let member = Member { id: Id(60), blocks: Blocks(sizes[0]) };
    let cluster = ClusterSize::of_blocks(64).unwrap();
    let new = NewPool { id: Id(7), name: "sim".into(), cluster, disks: vec![member] };
    for step in create(&new).unwrap() {
        match step {
            Step::Write { place, bytes } => {
                let number = disks.write(place, &bytes);
                disks.written(number);
            }
            Step::Flush => disks.flushed(&disks.completed()),
        }
    }
    let mut rig = open(disks, &sizes).unwrap();
    assert_eq!(rig.pool.entities().count(), 0);
    rig.must(replica(1, 0, 100_000));
    let mut again = open(rig.disks.after_crash(&mut Random(1)), &sizes).unwrap();
    assert_eq!(again.stamps(A, 0, 10), Ok(vec![0; 10]));
}
