//! Fences: an answer that says who owns a namespace waits for the commands of those who owned it.
//!
//! A fence is raised by a preempt-and-abort and stays up until the last command that it aborts has
//! ended. It belongs to the namespace, not to the command that raised it: whoever asks next waits
//! as well.

use nvme::target::testing::Driver;
use nvme::target::{ConnId, Event, NamespaceConfig, Reservations, Subsystem};
use nvme::wire::{AcquireData, IoOpcode, Sgl, Status, U32};
use zerocopy::IntoBytes;

use super::host::*;
use super::reservation::*;

/// A write of host A is at work when host B preempts and aborts it, and B's connections end before
/// the answer. Returns the write.
fn interrupted(driver: &mut Driver) -> (ConnId, Event) {
    let [(_x, mut a), (by, mut b)] = hosts(driver);
    let (id, event, _) = take_over(driver, &mut a, &mut b);
    driver.close(b.id);
    driver.close(by.id);
    (id, event)
}

/// Sends an acquire with this action and does not wait for its end.
fn ask(driver: &mut Driver, queue: &mut Queue, action: u8, keys: (u64, u64)) {
    let data = AcquireData { crkey: keys.0.into(), prkey: keys.1.into() };
    let sqe = command(IoOpcode::ReservationAcquire, args(action, 1), 16);
    queue.submit(driver, sqe, data.as_bytes());
}

#[test]
fn an_interrupted_preempt_and_abort_is_not_forgotten() {
    let mut driver = driver();
    let (id, event) = interrupted(&mut driver);
    let (_y, mut b) = Queue::pair(&mut driver, HOST_B);
    ask(&mut driver, &mut b, 0, (KEY_B, 0));
    assert_eq!(b.receive(&mut driver), [], "a write of the first victim is still at work");
    driver.release(id, event, None);
    assert!(is_success(&mut driver, &mut b));
}

#[test]
fn a_third_host_waits_for_the_victims_of_the_second() {
    let mut driver = driver();
    let (id, event) = interrupted(&mut driver);
    let (_z, mut c) = Queue::pair(&mut driver, HOST_C);
    assert_eq!(register(&mut driver, &mut c, args(0, 0), (0, 0xC)), Status::SUCCESS);
    ask(&mut driver, &mut c, 2, (0xC, KEY_B));
    assert_eq!(c.receive(&mut driver), [], "preempt-and-abort of one who has nothing at work");
    ask(&mut driver, &mut c, 1, (0xC, 0xC));
    assert_eq!(c.receive(&mut driver), [], "preempt");
    driver.release(id, event, None);
    assert_eq!(c.receive(&mut driver).len(), 2);
}

#[test]
fn a_report_does_not_show_a_victim_gone_while_its_write_is_at_work() {
    let mut driver = driver();
    let (id, event) = interrupted(&mut driver);
    let (_y, mut b) = Queue::pair(&mut driver, HOST_B);
    let mut sqe = io(IoOpcode::ReservationReport, 0, 1);
    (sqe.cdw10, sqe.cdw11, sqe.cdw12) = (U32::new(1023), U32::new(1), U32::ZERO);
    sqe.sgl = Sgl::transport(4096);
    b.submit(&mut driver, sqe, &[]);
    assert_eq!(b.receive(&mut driver), [], "whoever sees the key gone believes that it is fenced");
    driver.release(id, event, None);
    assert_eq!(b.receive(&mut driver).len(), 2, "data and response");
}

#[test]
fn a_fence_holds_up_commands_without_a_stream_as_well() {
    let mut driver = driver();
    let [(_x, mut a), (by, mut b)] = hosts(&mut driver);
    register(&mut driver, &mut a, args(0, 0), (0, KEY_A));
    register(&mut driver, &mut b, args(0, 0), (0, KEY_B));
    let write = driver.begin_local(a.id, write_of(1)).unwrap();
    ask(&mut driver, &mut b, 2, (KEY_B, KEY_A));
    driver.close(b.id);
    driver.close(by.id);
    let (_y, mut b) = Queue::pair(&mut driver, HOST_B);
    ask(&mut driver, &mut b, 0, (KEY_B, 0));
    assert_eq!(b.receive(&mut driver), [], "a write of the first victim is still at work");
    driver.end_local(a.id, write);
    assert!(is_success(&mut driver, &mut b));
}

/// On a replica the promise is about everybody else, however they lost the namespace.
#[test]
fn a_new_owner_of_a_replica_waits_for_those_who_left_by_themselves() {
    let mut subsystem = Subsystem::new(config(SUBSYSTEM));
    let guarded = Reservations { least_key: Some(1), ..Reservations::default() };
    let config = NamespaceConfig { reservations: guarded, ..namespace() };
    subsystem.add_namespace(1, config).unwrap();
    let mut driver = Driver::new(subsystem, nvme::target::ConnectionConfig::default());
    driver.disks.insert(1, vec![0; BLOCK * 512]);
    let [(_x, mut a), (_y, mut b)] = hosts(&mut driver);
    register(&mut driver, &mut a, args(0, 0), (0, KEY_A));
    assert_eq!(acquire(&mut driver, &mut a, args(0, 2), (KEY_A, 0)), Status::SUCCESS);
    driver.hold_io = true;
    a.submit(&mut driver, in_capsule(io(IoOpcode::Write, 0, 1), BLOCK), &[1; BLOCK]);
    let (id, event) = driver.held.pop().unwrap();
    assert_eq!(register(&mut driver, &mut a, args(1, 0), (KEY_A, 0)), Status::SUCCESS, "it leaves");
    register(&mut driver, &mut b, args(0, 0), (0, KEY_B));
    ask(&mut driver, &mut b, 0, (KEY_B, 0));
    assert_eq!(b.receive(&mut driver), [], "a write of the former owner is still at work");
    driver.release(id, event, None);
    assert!(is_success(&mut driver, &mut b));
}
