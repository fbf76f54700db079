//! A host with one association at a time: what it sent by a path that it lost never takes effect
//! after what it sent again by another.

use nvme::target::testing::Driver;
use nvme::wire::{IoOpcode, Status};

use super::host::*;

fn single() -> Driver {
    let mut driver = driver();
    driver.subsystem.set_single_association([nqn(HOST_A)]);
    driver
}

/// How a new admin queue of a host is answered.
fn connects(driver: &mut Driver, host: &str) -> Status {
    let mut queue = Queue::open(driver, nvme::pdu::Digests::default());
    queue.connect(driver, host, 0, 0xFFFF).status
}

fn write(driver: &mut Driver, queue: &mut Queue, value: u8) {
    queue.submit(driver, in_capsule(io(IoOpcode::Write, 0, 1), BLOCK), &[value; BLOCK]);
}

#[test]
fn a_write_of_the_former_association_ends_before_the_next_one_begins() {
    let mut driver = single();
    let (_admin, mut lost) = Queue::pair(&mut driver, HOST_A);
    driver.hold_io = true;
    write(&mut driver, &mut lost, 1);
    let (conn, late) = driver.held.pop().expect("a write at work");
    driver.hold_io = false;
    // The host gave the path up; the target has not noticed.
    assert_eq!(connects(&mut driver, HOST_A), Status::CONNECT_CONTROLLER_BUSY);
    assert!(driver.is_closed(lost.id), "the former association is over");
    driver.release(conn, late, None);
    let (_admin, mut next) = Queue::pair(&mut driver, HOST_A);
    for value in [1, 2] {
        let done = next.command(&mut driver, io(IoOpcode::Write, 0, 1), &[value; BLOCK]);
        assert_eq!(done.status, Status::SUCCESS);
    }
    let read = next.command(&mut driver, io(IoOpcode::Read, 0, 1), &[]);
    assert_eq!(read.data, [2; BLOCK], "no write of the former association came later");
}

#[test]
fn what_arrives_late_on_the_former_association_is_not_done() {
    let mut driver = single();
    let (_admin, mut lost) = Queue::pair(&mut driver, HOST_A);
    let (_other, mut live) = Queue::pair(&mut driver, HOST_B);
    write(&mut driver, &mut live, 7);
    assert_eq!(driver.disks[&1][..BLOCK], [7; BLOCK], "such a packet is a write");
    assert_eq!(connects(&mut driver, HOST_A), Status::CONNECT_CONTROLLER_BUSY);
    assert_eq!(connects(&mut driver, HOST_A), Status::SUCCESS, "nothing was at work");
    write(&mut driver, &mut lost, 1);
    assert_eq!(driver.disks[&1][..BLOCK], [7; BLOCK], "packets that the network had held up");
}

#[test]
fn other_hosts_and_other_kinds_of_hosts_are_left_alone() {
    let mut driver = single();
    let (_a, _) = Queue::pair(&mut driver, HOST_B);
    let (_b, mut second) = Queue::pair(&mut driver, HOST_B);
    let (_c, mut alone) = Queue::pair(&mut driver, HOST_A);
    for queue in [&mut second, &mut alone] {
        let done = queue.command(&mut driver, io(IoOpcode::Read, 0, 1), &[]);
        assert_eq!(done.status, Status::SUCCESS);
    }
    assert_eq!(driver.subsystem.controllers().count(), 3);
}
