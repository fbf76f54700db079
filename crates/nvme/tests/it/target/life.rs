//! Connections and controllers coming to an end.

use core::time::Duration;

use block::Fault;
use nvme::pdu::Digests;
use nvme::target::{Event, Hosts};
use nvme::wire::{AdminOpcode, Connect, IoOpcode, Status, U32};

use super::host::*;

#[test]
fn a_silent_host_is_dropped_with_all_its_queues() {
    let mut rim = rim();
    // KATO is 5 s, and one more second is granted.
    let (admin_queue, io_queue) = Queue::pair(&mut rim, HOST_A);
    rim.advance(Duration::from_millis(5999));
    assert!(!rim.is_closed(admin_queue.id));
    rim.advance(Duration::from_millis(1));
    assert!(rim.is_closed(admin_queue.id) && rim.is_closed(io_queue.id));
    assert_eq!(rim.subsystem.controllers().count(), 0);
}

#[test]
fn keep_alive_and_traffic_on_any_queue_count() {
    let mut rim = rim();
    let (mut admin_queue, mut io_queue) = Queue::pair(&mut rim, HOST_A);
    for turn in 0..6 {
        rim.advance(Duration::from_secs(4));
        if turn % 2 == 0 {
            admin_queue.command(&mut rim, admin(AdminOpcode::KeepAlive), &[]);
        } else {
            io_queue.command(&mut rim, io(IoOpcode::Read, 0, 1), &[]);
        }
    }
    assert!(!rim.is_closed(admin_queue.id));
    rim.advance(Duration::from_secs(6));
    assert!(rim.is_closed(admin_queue.id) && rim.is_closed(io_queue.id));
}

#[test]
fn keep_alive_can_be_changed_and_switched_off() {
    let mut rim = rim();
    let (mut queue, _) = Queue::admin(&mut rim, HOST_A);
    let set = |value| feature(AdminOpcode::SetFeatures, 0x0F, value);
    queue.command(&mut rim, set(0), &[]);
    rim.advance(Duration::from_hours(1));
    assert!(!rim.is_closed(queue.id));
    queue.command(&mut rim, set(1000), &[]);
    rim.advance(Duration::from_secs(2));
    assert!(rim.is_closed(queue.id));
}

#[test]
fn a_slow_set_up_is_dropped() {
    let mut rim = rim();
    let silent = Queue::raw(&mut rim);
    let half = Queue::open(&mut rim, Digests::default());
    rim.advance(Duration::from_secs(10));
    assert!(rim.is_closed(silent.id) && rim.is_closed(half.id));
}

#[test]
fn the_association_ends_with_its_admin_queue() {
    let mut rim = rim();
    let (admin_queue, io_queue) = Queue::pair(&mut rim, HOST_A);
    let (other, _) = Queue::pair(&mut rim, HOST_B);
    rim.close(admin_queue.id);
    assert!(rim.is_closed(io_queue.id));
    assert!(!rim.is_closed(other.id), "others are not touched");
}

#[test]
fn a_lost_io_queue_can_be_connected_again() {
    let mut rim = rim();
    let (_admin, cntlid) = Queue::admin(&mut rim, HOST_A);
    let first = Queue::io(&mut rim, HOST_A, cntlid, 1);
    rim.close(first.id);
    let mut second = Queue::io(&mut rim, HOST_A, cntlid, 1);
    let done = second.command(&mut rim, io(IoOpcode::Read, 0, 1), &[]);
    assert_eq!(done.status, Status::SUCCESS);
}

#[test]
fn hosts_that_may_no_longer_are_disconnected() {
    let mut rim = rim();
    let (a, a_io) = Queue::pair(&mut rim, HOST_A);
    let (b, _) = Queue::pair(&mut rim, HOST_B);
    rim.subsystem.set_hosts(Hosts::Listed([nqn(HOST_B)].into()));
    rim.effects();
    assert!(rim.is_closed(a.id) && rim.is_closed(a_io.id) && !rim.is_closed(b.id));
    rim.subsystem.close();
    rim.effects();
    assert!(rim.is_closed(b.id));
}

#[test]
fn commands_at_the_device_outlive_their_connection() {
    let mut rim = rim();
    rim.hold_io = true;
    let (_admin, mut queue) = Queue::pair(&mut rim, HOST_A);
    queue.submit(&mut rim, io(IoOpcode::Read, 0, 1), &[]);
    rim.close(queue.id);
    assert!(!rim.connection(queue.id).unwrap().is_drained());
    let (id, event) = rim.held.pop().unwrap();
    rim.release(id, event, None);
    assert!(rim.connection(queue.id).unwrap().is_drained());
    assert_eq!(rim.take_sent(queue.id), []);
    // A completion too many is nobody's business.
    rim.release(id, event, Some(Ok(())));
}

#[test]
fn an_abort_hurries_a_command_which_then_says_so() {
    let mut rim = rim();
    rim.hold_io = true;
    let (mut admin_queue, mut queue) = Queue::pair(&mut rim, HOST_A);
    let cid = queue.submit(&mut rim, io(IoOpcode::Read, 0, 1), &[]);
    queue.submit(&mut rim, io(IoOpcode::Read, 1, 1), &[]);
    let mut abort = admin(AdminOpcode::Abort);
    abort.cdw10 = U32::new(u32::from(cid) << 16 | 1);
    assert_eq!(admin_queue.command(&mut rim, abort, &[]).status, Status::SUCCESS);
    let (id, event) = rim.held[0];
    let Event::Io { slot, .. } = event else { panic!("{event:?}") };
    assert_eq!(rim.cancels, [(id, slot)]);
    rim.release(id, event, Some(Err(Fault::Aborted)));
    let got = queue.receive(&mut rim);
    let [Got::Response(cqe)] = got.as_slice() else { panic!("{got:?}") };
    assert_eq!((cqe.cid.get(), cqe.status()), (cid, Status::ABORT_REQUESTED.do_not_retry()));
}

#[test]
fn a_full_queue_works_and_an_overfull_one_is_an_error() {
    let mut rim = rim();
    rim.hold_io = true;
    let (_admin, cntlid) = Queue::admin(&mut rim, HOST_A);
    let mut queue = Queue::open(&mut rim, Digests::default());
    let connect = Connect { recfmt: 0, qid: 1, sqsize: 127, cattr: 0, kato: 0 };
    queue.connect_with(&mut rim, HOST_A, connect, cntlid);
    for round in 0..3 {
        for _ in 0..128 {
            queue.submit(&mut rim, io(IoOpcode::Read, 0, 1), &[]);
        }
        assert_eq!(rim.held.len(), 128);
        if round == 2 {
            break;
        }
        for (id, event) in core::mem::take(&mut rim.held) {
            rim.release(id, event, None);
        }
        assert_eq!(queue.receive(&mut rim).len(), 256);
    }
    queue.submit(&mut rim, io(IoOpcode::Read, 0, 1), &[]);
    assert_eq!(queue.term(&mut rim), (2, 0), "PDU sequence error");
}
