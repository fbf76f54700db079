//! Fences: an answer that says who owns a namespace waits for the commands of those who owned it.
//!
//! A fence is raised by a preempt-and-abort and stays up until the last command that it aborts has
//! ended. It belongs to the namespace, not to the command that raised it: whoever asks next waits
//! as well.

use nvme::target::testing::Rim;
use nvme::target::{ConnId, Event, NamespaceConfig, Reservations, Subsystem};
use nvme::wire::{AcquireData, IoOpcode, Sgl, Status, U32};
use zerocopy::IntoBytes;

use super::host::*;
use super::reservation::*;

/// A write of host A is at work when host B preempts and aborts it, and B's connections end before
/// the answer. Returns the write.
fn interrupted(rim: &mut Rim) -> (ConnId, Event) {
    let [(_x, mut a), (by, mut b)] = hosts(rim);
    let (id, event, _) = take_over(rim, &mut a, &mut b);
    rim.close(b.id);
    rim.close(by.id);
    (id, event)
}

/// Sends an acquire with this action and does not wait for its end.
fn ask(rim: &mut Rim, queue: &mut Queue, action: u8, keys: (u64, u64)) {
    let data = AcquireData { crkey: keys.0.into(), prkey: keys.1.into() };
    let sqe = command(IoOpcode::ReservationAcquire, args(action, 1), 16);
    queue.submit(rim, sqe, data.as_bytes());
}

#[test]
fn an_interrupted_preempt_and_abort_is_not_forgotten() {
    let mut rim = rim();
    let (id, event) = interrupted(&mut rim);
    let (_y, mut b) = Queue::pair(&mut rim, HOST_B);
    ask(&mut rim, &mut b, 0, (KEY_B, 0));
    assert_eq!(b.receive(&mut rim), [], "a write of the first victim is still at work");
    rim.release(id, event, None);
    assert!(is_success(&mut rim, &mut b));
}

#[test]
fn a_third_host_waits_for_the_victims_of_the_second() {
    let mut rim = rim();
    let (id, event) = interrupted(&mut rim);
    let (_z, mut c) = Queue::pair(&mut rim, HOST_C);
    assert_eq!(register(&mut rim, &mut c, args(0, 0), (0, 0xC)), Status::SUCCESS);
    ask(&mut rim, &mut c, 2, (0xC, KEY_B));
    assert_eq!(c.receive(&mut rim), [], "preempt-and-abort of one who has nothing at work");
    ask(&mut rim, &mut c, 1, (0xC, 0xC));
    assert_eq!(c.receive(&mut rim), [], "preempt");
    rim.release(id, event, None);
    assert_eq!(c.receive(&mut rim).len(), 2);
}

#[test]
fn a_report_does_not_show_a_victim_gone_while_its_write_is_at_work() {
    let mut rim = rim();
    let (id, event) = interrupted(&mut rim);
    let (_y, mut b) = Queue::pair(&mut rim, HOST_B);
    let mut sqe = io(IoOpcode::ReservationReport, 0, 1);
    (sqe.cdw10, sqe.cdw11, sqe.cdw12) = (U32::new(1023), U32::new(1), U32::ZERO);
    sqe.sgl = Sgl::transport(4096);
    b.submit(&mut rim, sqe, &[]);
    assert_eq!(b.receive(&mut rim), [], "whoever sees the key gone believes that it is fenced");
    rim.release(id, event, None);
    assert_eq!(b.receive(&mut rim).len(), 2, "data and response");
}

#[test]
fn a_fence_holds_up_commands_without_a_stream_as_well() {
    let mut rim = rim();
    let [(_x, mut a), (by, mut b)] = hosts(&mut rim);
    register(&mut rim, &mut a, args(0, 0), (0, KEY_A));
    register(&mut rim, &mut b, args(0, 0), (0, KEY_B));
    let write = rim.begin(a.id, write_of(1)).unwrap();
    ask(&mut rim, &mut b, 2, (KEY_B, KEY_A));
    rim.close(b.id);
    rim.close(by.id);
    let (_y, mut b) = Queue::pair(&mut rim, HOST_B);
    ask(&mut rim, &mut b, 0, (KEY_B, 0));
    assert_eq!(b.receive(&mut rim), [], "a write of the first victim is still at work");
    rim.end(a.id, write);
    assert!(is_success(&mut rim, &mut b));
}

/// On a replica the promise is about everybody else, however they lost the namespace.
#[test]
fn a_new_owner_of_a_replica_waits_for_those_who_left_by_themselves() {
    let mut subsystem = Subsystem::new(config(SUBSYSTEM));
    let guarded = Reservations { least_key: Some(1), ..Reservations::default() };
    let config = NamespaceConfig { reservations: guarded, ..namespace() };
    subsystem.add_namespace(1, config).unwrap();
    let mut rim = Rim::new(subsystem, nvme::target::ConnectionConfig::default());
    rim.disks.insert(1, vec![0; BLOCK * 512]);
    let [(_x, mut a), (_y, mut b)] = hosts(&mut rim);
    register(&mut rim, &mut a, args(0, 0), (0, KEY_A));
    assert_eq!(acquire(&mut rim, &mut a, args(0, 2), (KEY_A, 0)), Status::SUCCESS);
    rim.hold_io = true;
    a.submit(&mut rim, in_capsule(io(IoOpcode::Write, 0, 1), BLOCK), &[1; BLOCK]);
    let (id, event) = rim.held.pop().unwrap();
    assert_eq!(register(&mut rim, &mut a, args(1, 0), (KEY_A, 0)), Status::SUCCESS, "it leaves");
    register(&mut rim, &mut b, args(0, 0), (0, KEY_B));
    ask(&mut rim, &mut b, 0, (KEY_B, 0));
    assert_eq!(b.receive(&mut rim), [], "a write of the former owner is still at work");
    rim.release(id, event, None);
    assert!(is_success(&mut rim, &mut b));
}
