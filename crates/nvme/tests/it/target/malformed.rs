//! What breaks the protocol ends the connection, with the right words, and nothing else.

use nvme::pdu::{Digests, IcReq, digest};
use nvme::target::testing::Driver;
use nvme::wire::{IoOpcode, Status};
use zerocopy::IntoBytes;

use super::host::*;

const BAD_FIELD: u16 = 1;
const SEQUENCE: u16 = 2;
const HEADER_DIGEST: u16 = 3;
const OUT_OF_RANGE: u16 = 4;
const LIMIT: u16 = 5;
const UNSUPPORTED: u16 = 6;

/// Sends bytes on a fresh connection that is set up; another connection must not notice.
fn after_setup(bytes: &[u8]) -> (u16, u32) {
    let mut driver = driver();
    let (_admin, mut bystander) = Queue::pair(&mut driver, HOST_B);
    let mut queue = Queue::open(&mut driver, Digests::default());
    driver.send(queue.id, bytes);
    let term = queue.term(&mut driver);
    let done = bystander.command(&mut driver, io(IoOpcode::Read, 0, 1), &[]);
    assert_eq!(done.status, Status::SUCCESS);
    term
}

fn first(bytes: &[u8]) -> (u16, u32) {
    let mut driver = driver();
    let mut queue = Queue::raw(&mut driver);
    driver.send(queue.id, bytes);
    queue.term(&mut driver)
}

/// A command capsule header with a few bytes changed.
fn command(change: &[(usize, u8)]) -> Vec<u8> {
    let mut bytes = vec![0; 72];
    bytes[..8].copy_from_slice(&[0x04, 0x00, 72, 0, 72, 0, 0, 0]);
    for (at, value) in change {
        bytes[*at] = *value;
    }
    bytes
}

#[test]
fn set_up() {
    let request = IcReq::new(0, 0, 0);
    let with = |at: usize, value: u8| {
        let mut bytes = request.as_bytes().to_vec();
        bytes[at] = value;
        bytes
    };
    assert_eq!(first(&with(8, 1)), (UNSUPPORTED, 8), "PFV");
    assert_eq!(first(&with(10, 32)), (BAD_FIELD, 10), "HPDA");
    assert_eq!(first(&with(2, 127)), (BAD_FIELD, 2), "HLEN");
    assert_eq!(first(&with(4, 129)), (BAD_FIELD, 4), "PLEN");
    assert_eq!(first(&with(0, 1)), (BAD_FIELD, 0), "ICResp to a controller");
    assert_eq!(first(&with(0, 0x55)), (BAD_FIELD, 0), "no such type");
    assert_eq!(first(&command(&[])), (SEQUENCE, 0), "a command first");
    assert_eq!(after_setup(request.as_bytes()), (SEQUENCE, 0), "set up twice");
}

#[test]
fn headers() {
    for kind in [0x01, 0x03, 0x05, 0x07, 0x08, 0x09, 0x0A, 0xFF] {
        assert_eq!(after_setup(&command(&[(0, kind)])), (BAD_FIELD, 0), "type {kind:#x}");
    }
    assert_eq!(after_setup(&command(&[(2, 71)])), (BAD_FIELD, 2), "HLEN");
    assert_eq!(after_setup(&command(&[(4, 71)])), (BAD_FIELD, 4), "PLEN below the header");
    assert_eq!(after_setup(&command(&[(4, 76), (3, 71)])), (BAD_FIELD, 3), "PDO in the header");
    assert_eq!(after_setup(&command(&[(4, 77), (3, 73)])), (BAD_FIELD, 3), "PDO not aligned");
    assert_eq!(after_setup(&command(&[(4, 76), (3, 76)])), (BAD_FIELD, 4), "PDO at the end");
    assert_eq!(after_setup(&command(&[(7, 0x80), (3, 72)])), (BAD_FIELD, 4), "2 GiB");
    // 8 KiB and one byte.
    let oversize = command(&[(3, 72), (4, 73), (5, 32)]);
    assert_eq!(after_setup(&oversize), (BAD_FIELD, 4));
    assert_eq!(after_setup(&command(&[(1, 1)])), (BAD_FIELD, 1), "digest that was not agreed");
    assert_eq!(after_setup(&command(&[(1, 2), (3, 72), (4, 80)])), (BAD_FIELD, 1));
}

#[test]
fn the_offending_head_comes_back() {
    let mut driver = driver();
    let queue = Queue::open(&mut driver, Digests::default());
    let bad = command(&[(2, 71)]);
    driver.send(queue.id, &bad);
    let sent = driver.take_sent(queue.id);
    let mut expected = vec![0x03, 0, 24, 0, 32, 0, 0, 0]; // type, flags, HLEN, PDO, PLEN
    expected.extend([1, 0, 2, 0, 0, 0]); // FES, FEI
    expected.extend([0; 10]);
    expected.extend(&bad[..8]);
    assert_eq!(sent, expected);
    // Whatever comes later is not looked at.
    driver.send(queue.id, &command(&[]));
    assert_eq!(driver.take_sent(queue.id), []);
}

#[test]
fn header_digest() {
    let mut driver = driver();
    let mut queue = Queue::open(&mut driver, Digests { header: true, data: false });
    let mut bytes = queue.capsule(&io(IoOpcode::Read, 0, 1), &[]);
    let received = digest(0, &bytes[..72]);
    bytes[40] ^= 0x10;
    driver.send(queue.id, &bytes);
    assert_eq!(queue.term(&mut driver), (HEADER_DIGEST, received));
}

/// A write that was asked for its data; returns its id and tag.
fn asked(driver: &mut Driver) -> (Queue, u16, u16) {
    let (_admin, mut queue) = Queue::pair(driver, HOST_A);
    let cid = queue.submit(driver, io(IoOpcode::Write, 0, 2), &[]);
    let got = queue.receive(driver);
    let [Got::Ask { tag, .. }] = got.as_slice() else { panic!("{got:?}") };
    (queue, cid, *tag)
}

fn data_answer(make: impl FnOnce(&Queue, u16, u16) -> Vec<u8>) -> (u16, u32) {
    let mut driver = driver();
    let (mut queue, cid, tag) = asked(&mut driver);
    let bytes = make(&queue, cid, tag);
    driver.send(queue.id, &bytes);
    assert_eq!(driver.disks[&1][..BLOCK], [0; BLOCK], "nothing was written");
    queue.term(&mut driver)
}

#[test]
fn data_that_nobody_asked_for() {
    let block = [1; BLOCK];
    let two = [1; 2 * BLOCK];
    let answer = data_answer(|queue, cid, tag| queue.data((cid, tag + 1), 0, &two, true));
    assert_eq!(answer, (BAD_FIELD, 10), "unknown tag");
    let answer = data_answer(|queue, cid, _| queue.data((cid, 0xFFFF), 0, &two, true));
    assert_eq!(answer, (BAD_FIELD, 10));
    let answer = data_answer(|queue, cid, tag| queue.data((cid + 1, tag), 0, &two, true));
    assert_eq!(answer, (BAD_FIELD, 8), "another command's tag");
    let answer = data_answer(|queue, cid, tag| queue.data((cid, tag), 4096, &block, true));
    assert_eq!(answer, (OUT_OF_RANGE, 0), "a hole");
    let answer = data_answer(|queue, cid, tag| queue.data((cid, tag), 0, &[1; 8196], true));
    assert_eq!(answer, (OUT_OF_RANGE, 0), "too much");
    let answer = data_answer(|queue, cid, tag| queue.data((cid, tag), u32::MAX, &block, true));
    assert_eq!(answer, (OUT_OF_RANGE, 0), "wraps");
    let answer = data_answer(|queue, cid, tag| {
        let once = queue.data((cid, tag), 0, &block, false);
        [once.clone(), once].concat()
    });
    assert_eq!(answer, (OUT_OF_RANGE, 0), "the same twice");
    let answer = data_answer(|queue, cid, tag| queue.data((cid, tag), 0, &block, true));
    assert_eq!(answer, (BAD_FIELD, 1), "last too early");
    let answer = data_answer(|queue, cid, tag| queue.data((cid, tag), 0, &two, false));
    assert_eq!(answer, (BAD_FIELD, 1), "the last is not marked");
    let answer = data_answer(|queue, cid, tag| {
        let mut bytes = queue.data((cid, tag), 0, &two, true);
        bytes[16] ^= 4;
        bytes
    });
    assert_eq!(answer, (BAD_FIELD, 16), "DATAL is not PLEN");
    let answer = data_answer(|queue, cid, tag| {
        let mut bytes = queue.data((cid, tag), 0, &two, true);
        bytes[4..8].copy_from_slice(&24u32.to_le_bytes());
        bytes
    });
    assert_eq!(answer, (BAD_FIELD, 4), "no data");
}

#[test]
fn data_after_the_end_of_the_command() {
    let mut driver = driver();
    let (mut queue, cid, tag) = asked(&mut driver);
    let bytes = queue.data((cid, tag), 0, &[1; 2 * BLOCK], true);
    driver.send(queue.id, &bytes);
    assert!(matches!(queue.receive(&mut driver).as_slice(), [Got::Response(_)]));
    driver.send(queue.id, &bytes);
    assert_eq!(queue.term(&mut driver), (BAD_FIELD, 10));
}

#[test]
fn more_than_maxh2cdata() {
    let subsystem = driver().subsystem;
    let config = nvme::target::ConnectionConfig { max_h2c_data: 4096, ..Default::default() };
    let mut driver = Driver::new(subsystem, config);
    let (mut queue, cid, tag) = asked(&mut driver);
    let bytes = queue.data((cid, tag), 0, &[1; 2 * BLOCK], true);
    driver.send(queue.id, &bytes);
    assert_eq!(queue.term(&mut driver), (LIMIT, 0));
}

#[test]
fn a_termination_by_the_host_is_not_answered() {
    let mut driver = driver();
    let (_admin, queue) = Queue::pair(&mut driver, HOST_A);
    let mut bytes = vec![0x02, 0, 24, 0, 24, 0, 0, 0, 1, 0];
    bytes.resize(24, 0);
    driver.send(queue.id, &bytes);
    assert!(driver.is_closed(queue.id));
    assert_eq!(driver.take_sent(queue.id), []);
}
