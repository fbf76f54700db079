//! A queue that must authenticate. The exchange itself is tested with the initiator.

use core::time::Duration;

use nvme::auth::{Accepted, ControllerSide, Keys, Names, Secret};
use nvme::pdu::Digests;
use nvme::target::testing::Driver;
use nvme::wire::{AdminOpcode, Auth, PropertyGet, Status};

use super::host::*;

const REQUIRED: u64 = 1 << 17;

fn guarded() -> Driver {
    let mut driver = driver();
    driver.authentication = Some(Box::new(|request| {
        let names = Names { host: request.host.to_string(), subsystem: SUBSYSTEM.into() };
        let keys = Keys { host: Secret::new(&[7; 32], None).unwrap(), controller: None };
        Some(ControllerSide::new(names, keys, Accepted::default()))
    }));
    driver
}

#[test]
fn nothing_works_before_authentication() {
    let mut driver = guarded();
    let mut queue = Queue::open(&mut driver, Digests::default());
    let done = queue.connect(&mut driver, HOST_A, 0, 0xFFFF);
    assert_eq!((done.status, done.result), (Status::SUCCESS, REQUIRED | 1));
    let required = Status::AUTHENTICATION_REQUIRED.do_not_retry();
    let get = PropertyGet { offset: 0, wide: Some(true) }.to_sqe(0);
    for sqe in [get, identify(1, 0), admin(AdminOpcode::KeepAlive)] {
        assert_eq!(queue.command(&mut driver, sqe, &[]).status, required);
    }
}

#[test]
fn a_wrong_message_is_told_and_ends_the_queue() {
    let mut driver = guarded();
    let mut queue = Queue::open(&mut driver, Digests::default());
    queue.connect(&mut driver, HOST_A, 0, 0xFFFF);
    let auth = Auth { spsp: Auth::SPSP, secp: Auth::SECP_NVME, length: 64 };
    let other = Auth { secp: 0, ..auth };
    let refused = queue.command(&mut driver, other.to_send(0), &[0; 64]).status;
    assert_eq!(refused, Status::INVALID_FIELD.do_not_retry());
    assert_eq!(queue.command(&mut driver, auth.to_send(0), &[0; 64]).status, Status::SUCCESS);
    let answer = queue.command(&mut driver, auth.to_receive(0), &[]);
    assert_eq!(answer.status, Status::SUCCESS);
    // AUTH_type common messages, AUTH_id failure1.
    assert_eq!(answer.data[..2], [0x00, 0xF1]);
    assert!(driver.is_closed(queue.id));
}

#[test]
fn a_host_that_does_not_authenticate_is_dropped() {
    let mut driver = guarded();
    let mut queue = Queue::open(&mut driver, Digests::default());
    queue.connect(&mut driver, HOST_A, 0, 0xFFFF);
    driver.advance(Duration::from_secs(29));
    assert!(!driver.is_closed(queue.id));
    driver.advance(Duration::from_secs(1));
    assert!(driver.is_closed(queue.id));
    assert_eq!(driver.subsystem.controllers().count(), 0);
}

#[test]
fn authentication_that_nobody_asked_for_is_refused() {
    let mut driver = driver();
    let (mut queue, _) = Queue::admin(&mut driver, HOST_A);
    let auth = Auth { spsp: Auth::SPSP, secp: Auth::SECP_NVME, length: 64 };
    let refused = queue.command(&mut driver, auth.to_send(0), &[0; 64]).status;
    assert_eq!(refused, Status::INVALID_OPCODE.do_not_retry());
}
