//! A host with one association at a time: what it sent by a path that it lost never takes effect
//! after what it sent again by another.

use nvme::target::testing::Rim;
use nvme::wire::{IoOpcode, Status};

use super::host::*;

fn single() -> Rim {
    let mut rim = rim();
    rim.subsystem.set_single_association([nqn(HOST_A)]);
    rim
}

/// How a new admin queue of a host is answered.
fn connects(rim: &mut Rim, host: &str) -> Status {
    let mut queue = Queue::open(rim, nvme::pdu::Digests::default());
    queue.connect(rim, host, 0, 0xFFFF).status
}

fn write(rim: &mut Rim, queue: &mut Queue, value: u8) {
    queue.submit(rim, in_capsule(io(IoOpcode::Write, 0, 1), BLOCK), &[value; BLOCK]);
}

#[test]
fn a_write_of_the_former_association_ends_before_the_next_one_begins() {
    let mut rim = single();
    let (_admin, mut lost) = Queue::pair(&mut rim, HOST_A);
    rim.hold_io = true;
    write(&mut rim, &mut lost, 1);
    let (conn, late) = rim.held.pop().expect("a write at work");
    rim.hold_io = false;
    // The host gave the path up; the target has not noticed.
    assert_eq!(connects(&mut rim, HOST_A), Status::CONNECT_CONTROLLER_BUSY);
    assert!(rim.is_closed(lost.id), "the former association is over");
    rim.release(conn, late, None);
    let (_admin, mut next) = Queue::pair(&mut rim, HOST_A);
    for value in [1, 2] {
        let done = next.command(&mut rim, io(IoOpcode::Write, 0, 1), &[value; BLOCK]);
        assert_eq!(done.status, Status::SUCCESS);
    }
    let read = next.command(&mut rim, io(IoOpcode::Read, 0, 1), &[]);
    assert_eq!(read.data, [2; BLOCK], "no write of the former association came later");
}

#[test]
fn what_arrives_late_on_the_former_association_is_not_done() {
    let mut rim = single();
    let (_admin, mut lost) = Queue::pair(&mut rim, HOST_A);
    let (_other, mut live) = Queue::pair(&mut rim, HOST_B);
    write(&mut rim, &mut live, 7);
    assert_eq!(rim.disks[&1][..BLOCK], [7; BLOCK], "such a packet is a write");
    assert_eq!(connects(&mut rim, HOST_A), Status::CONNECT_CONTROLLER_BUSY);
    assert_eq!(connects(&mut rim, HOST_A), Status::SUCCESS, "nothing was at work");
    write(&mut rim, &mut lost, 1);
    assert_eq!(rim.disks[&1][..BLOCK], [7; BLOCK], "packets that the network had held up");
}

#[test]
fn other_hosts_and_other_kinds_of_hosts_are_left_alone() {
    let mut rim = single();
    let (_a, _) = Queue::pair(&mut rim, HOST_B);
    let (_b, mut second) = Queue::pair(&mut rim, HOST_B);
    let (_c, mut alone) = Queue::pair(&mut rim, HOST_A);
    for queue in [&mut second, &mut alone] {
        let done = queue.command(&mut rim, io(IoOpcode::Read, 0, 1), &[]);
        assert_eq!(done.status, Status::SUCCESS);
    }
    assert_eq!(rim.subsystem.controllers().count(), 3);
}
