//! Compare and write as one.

use nvme::target::testing::Driver;
use nvme::wire::{IoOpcode, Sqe, Status};

use super::host::*;

const FIRST: u8 = 1;
const SECOND: u8 = 2;

fn half(opcode: IoOpcode, slba: u64, fuse: u8) -> Sqe {
    let mut sqe = in_capsule(io(opcode, slba, 1), BLOCK);
    sqe.flags |= fuse;
    sqe
}

fn statuses(driver: &mut Driver, queue: &mut Queue) -> Vec<(u16, Status)> {
    let got = queue.receive(driver).into_iter();
    got.map(|got| match got {
        Got::Response(cqe) => (cqe.cid.get(), cqe.status()),
        other => panic!("{other:?}"),
    })
    .collect()
}

fn run(driver: &mut Driver, queue: &mut Queue, old: u8, new: u8) -> Vec<Status> {
    let first = queue.submit(driver, half(IoOpcode::Compare, 4, FIRST), &[old; BLOCK]);
    assert_eq!(statuses(driver, queue), [], "the first waits for the second");
    let second = queue.submit(driver, half(IoOpcode::Write, 4, SECOND), &[new; BLOCK]);
    let mut ends = statuses(driver, queue);
    ends.sort_unstable_by_key(|(cid, _)| *cid);
    assert_eq!(ends.iter().map(|(cid, _)| *cid).collect::<Vec<_>>(), [first, second]);
    ends.into_iter().map(|(_, status)| status).collect()
}

#[test]
fn the_write_happens_only_if_the_compare_succeeds() {
    let mut driver = driver();
    let (_admin, mut queue) = Queue::pair(&mut driver, HOST_A);
    assert_eq!(run(&mut driver, &mut queue, 0, 7), [Status::SUCCESS; 2]);
    assert_eq!(driver.disks[&1][4 * BLOCK..5 * BLOCK], [7; BLOCK]);
    let failed =
        [Status::COMPARE_FAILURE.do_not_retry(), Status::ABORTED_FAILED_FUSED.do_not_retry()];
    assert_eq!(run(&mut driver, &mut queue, 0, 9), failed);
    assert_eq!(driver.disks[&1][4 * BLOCK..5 * BLOCK], [7; BLOCK]);
}

#[test]
fn halves_that_miss_each_other_are_aborted() {
    let mut driver = driver();
    let (_admin, mut queue) = Queue::pair(&mut driver, HOST_A);
    let missing = Status::ABORTED_MISSING_FUSED.do_not_retry();
    let lone = queue.submit(&mut driver, half(IoOpcode::Write, 4, SECOND), &[1; BLOCK]);
    assert_eq!(statuses(&mut driver, &mut queue), [(lone, missing)]);
    let first = queue.submit(&mut driver, half(IoOpcode::Compare, 4, FIRST), &[0; BLOCK]);
    let between = queue.submit(&mut driver, io(IoOpcode::Flush, 0, 1), &[]);
    assert_eq!(statuses(&mut driver, &mut queue), [(first, missing), (between, Status::SUCCESS)]);
    let second = queue.submit(&mut driver, half(IoOpcode::Write, 4, SECOND), &[1; BLOCK]);
    assert_eq!(statuses(&mut driver, &mut queue), [(second, missing)]);
    assert_eq!(driver.disks[&1][4 * BLOCK], 0);
}

#[test]
fn other_pairs_are_refused() {
    let mut driver = driver();
    let (_admin, mut queue) = Queue::pair(&mut driver, HOST_A);
    let mut refused = |first: Sqe, second: Sqe, len: usize| {
        queue.submit(&mut driver, first, &vec![0; len]);
        queue.submit(&mut driver, second, &vec![0; len]);
        let ends = statuses(&mut driver, &mut queue);
        ends.into_iter().map(|(_, status)| status.kind()).collect::<Vec<_>>()
    };
    let pair = |a, b| (half(IoOpcode::Compare, a, FIRST), half(IoOpcode::Write, b, SECOND));
    let (first, second) = pair(4, 5);
    let failed = Status::ABORTED_FAILED_FUSED;
    assert_eq!(refused(first, second, BLOCK), [Status::INVALID_FIELD, failed], "other blocks");
    let (first, second) = pair(BLOCKS, BLOCKS);
    assert_eq!(refused(first, second, BLOCK), [Status::LBA_OUT_OF_RANGE, failed]);
    let mut two = [io(IoOpcode::Compare, 0, 2), io(IoOpcode::Write, 0, 2)];
    two[0].flags |= FIRST;
    two[1].flags |= SECOND;
    let two = two.map(|sqe| in_capsule(sqe, 2 * BLOCK));
    let exceeded = [Status::ATOMIC_WRITE_UNIT_EXCEEDED, failed];
    assert_eq!(refused(two[0], two[1], 2 * BLOCK), exceeded);
    let (wrong, second) = (half(IoOpcode::Write, 4, FIRST), half(IoOpcode::Write, 4, SECOND));
    let ends = [Status::INVALID_FIELD, Status::ABORTED_MISSING_FUSED];
    assert_eq!(refused(wrong, second, BLOCK), ends);
}

#[test]
fn data_of_both_halves_may_be_asked_for() {
    let mut driver = driver();
    let (_admin, mut queue) = Queue::pair(&mut driver, HOST_A);
    let mut compare = io(IoOpcode::Compare, 4, 1);
    compare.flags |= FIRST;
    let mut write = io(IoOpcode::Write, 4, 1);
    write.flags |= SECOND;
    let first = queue.submit(&mut driver, compare, &[]);
    let second = queue.submit(&mut driver, write, &[]);
    let got = queue.receive(&mut driver);
    let [Got::Ask { tag: a, .. }, Got::Ask { tag: b, .. }] = got.as_slice() else {
        panic!("{got:?}")
    };
    // The second half's data come first.
    let bytes = queue.data((second, *b), 0, &[5; BLOCK], true);
    driver.send(queue.id, &bytes);
    assert_eq!(statuses(&mut driver, &mut queue), []);
    let bytes = queue.data((first, *a), 0, &[0; BLOCK], true);
    driver.send(queue.id, &bytes);
    let ends = [(first, Status::SUCCESS), (second, Status::SUCCESS)];
    assert_eq!(statuses(&mut driver, &mut queue), ends);
    assert_eq!(driver.disks[&1][4 * BLOCK], 5);
}
