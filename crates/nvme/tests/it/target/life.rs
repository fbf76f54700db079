//! Connections and controllers coming to an end.

use core::time::Duration;

use block::IoError;
use nvme::pdu::Digests;
use nvme::target::{Event, Hosts};
use nvme::wire::{AdminOpcode, Connect, IoOpcode, Status, U32};

use super::host::*;

#[test]
fn a_silent_host_is_dropped_with_all_its_queues() {
    let mut driver = driver();
    // KATO is 5 s, and one more second is granted.
    let (admin_queue, io_queue) = Queue::pair(&mut driver, HOST_A);
    driver.advance(Duration::from_millis(5999));
    assert!(!driver.is_closed(admin_queue.id));
    driver.advance(Duration::from_millis(1));
    assert!(driver.is_closed(admin_queue.id) && driver.is_closed(io_queue.id));
    assert_eq!(driver.subsystem.controllers().count(), 0);
}

#[test]
fn keep_alive_and_traffic_on_any_queue_count() {
    let mut driver = driver();
    let (mut admin_queue, mut io_queue) = Queue::pair(&mut driver, HOST_A);
    for turn in 0..6 {
        driver.advance(Duration::from_secs(4));
        if turn % 2 == 0 {
            admin_queue.command(&mut driver, admin(AdminOpcode::KeepAlive), &[]);
        } else {
            io_queue.command(&mut driver, io(IoOpcode::Read, 0, 1), &[]);
        }
    }
    assert!(!driver.is_closed(admin_queue.id));
    driver.advance(Duration::from_secs(6));
    assert!(driver.is_closed(admin_queue.id) && driver.is_closed(io_queue.id));
}

#[test]
fn keep_alive_can_be_changed_and_switched_off() {
    let mut driver = driver();
    let (mut queue, _) = Queue::admin(&mut driver, HOST_A);
    let set = |value| feature(AdminOpcode::SetFeatures, 0x0F, value);
    queue.command(&mut driver, set(0), &[]);
    driver.advance(Duration::from_hours(1));
    assert!(!driver.is_closed(queue.id));
    queue.command(&mut driver, set(1000), &[]);
    driver.advance(Duration::from_secs(2));
    assert!(driver.is_closed(queue.id));
}

#[test]
fn a_slow_set_up_is_dropped() {
    let mut driver = driver();
    let silent = Queue::raw(&mut driver);
    let half = Queue::open(&mut driver, Digests::default());
    driver.advance(Duration::from_secs(10));
    assert!(driver.is_closed(silent.id) && driver.is_closed(half.id));
}

#[test]
fn the_association_ends_with_its_admin_queue() {
    let mut driver = driver();
    let (admin_queue, io_queue) = Queue::pair(&mut driver, HOST_A);
    let (other, _) = Queue::pair(&mut driver, HOST_B);
    driver.close(admin_queue.id);
    assert!(driver.is_closed(io_queue.id));
    assert!(!driver.is_closed(other.id), "others are not touched");
}

#[test]
fn a_lost_io_queue_can_be_connected_again() {
    let mut driver = driver();
    let (_admin, cntlid) = Queue::admin(&mut driver, HOST_A);
    let first = Queue::io(&mut driver, HOST_A, cntlid, 1);
    driver.close(first.id);
    let mut second = Queue::io(&mut driver, HOST_A, cntlid, 1);
    let done = second.command(&mut driver, io(IoOpcode::Read, 0, 1), &[]);
    assert_eq!(done.status, Status::SUCCESS);
}

#[test]
fn hosts_that_may_no_longer_are_disconnected() {
    let mut driver = driver();
    let (a, a_io) = Queue::pair(&mut driver, HOST_A);
    let (b, _) = Queue::pair(&mut driver, HOST_B);
    driver.subsystem.set_hosts(Hosts::Listed([nqn(HOST_B)].into()));
    driver.effects();
    assert!(driver.is_closed(a.id) && driver.is_closed(a_io.id) && !driver.is_closed(b.id));
    driver.subsystem.close();
    driver.effects();
    assert!(driver.is_closed(b.id));
}

#[test]
fn commands_at_the_device_outlive_their_connection() {
    let mut driver = driver();
    driver.hold_io = true;
    let (_admin, mut queue) = Queue::pair(&mut driver, HOST_A);
    queue.submit(&mut driver, io(IoOpcode::Read, 0, 1), &[]);
    driver.close(queue.id);
    assert!(!driver.connection(queue.id).unwrap().is_drained());
    let (id, event) = driver.held.pop().unwrap();
    driver.release(id, event, None);
    assert!(driver.connection(queue.id).unwrap().is_drained());
    assert_eq!(driver.take_sent(queue.id), []);
    // A completion too many is nobody's business.
    driver.release(id, event, Some(Ok(())));
}

#[test]
fn an_abort_hurries_a_command_which_then_says_so() {
    let mut driver = driver();
    driver.hold_io = true;
    let (mut admin_queue, mut queue) = Queue::pair(&mut driver, HOST_A);
    let cid = queue.submit(&mut driver, io(IoOpcode::Read, 0, 1), &[]);
    queue.submit(&mut driver, io(IoOpcode::Read, 1, 1), &[]);
    let mut abort = admin(AdminOpcode::Abort);
    abort.cdw10 = U32::new(u32::from(cid) << 16 | 1);
    assert_eq!(admin_queue.command(&mut driver, abort, &[]).status, Status::SUCCESS);
    let (id, event) = driver.held[0];
    let Event::Io { slot, .. } = event else { panic!("{event:?}") };
    assert_eq!(driver.cancels, [(id, slot)]);
    driver.release(id, event, Some(Err(IoError::Aborted)));
    let got = queue.receive(&mut driver);
    let [Got::Response(cqe)] = got.as_slice() else { panic!("{got:?}") };
    assert_eq!((cqe.cid.get(), cqe.status()), (cid, Status::ABORT_REQUESTED.do_not_retry()));
}

#[test]
fn a_full_queue_works_and_an_overfull_one_is_an_error() {
    let mut driver = driver();
    driver.hold_io = true;
    let (_admin, cntlid) = Queue::admin(&mut driver, HOST_A);
    let mut queue = Queue::open(&mut driver, Digests::default());
    let connect = Connect { recfmt: 0, qid: 1, sqsize: 127, cattr: 0, kato: 0 };
    queue.connect_with(&mut driver, HOST_A, connect, cntlid);
    for round in 0..3 {
        for _ in 0..128 {
            queue.submit(&mut driver, io(IoOpcode::Read, 0, 1), &[]);
        }
        assert_eq!(driver.held.len(), 128);
        if round == 2 {
            break;
        }
        for (id, event) in core::mem::take(&mut driver.held) {
            driver.release(id, event, None);
        }
        assert_eq!(queue.receive(&mut driver).len(), 256);
    }
    queue.submit(&mut driver, io(IoOpcode::Read, 0, 1), &[]);
    assert_eq!(queue.term(&mut driver), (2, 0), "PDU sequence error");
}
