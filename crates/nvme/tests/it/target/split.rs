//! However the stream is cut into reads, the target does the same.

use nvme::pdu::{Digests, IcReq};
use nvme::target::testing::Driver;
use nvme::wire::{AdminOpcode, Connect, ConnectData, IoOpcode, PropertySet, Sqe, U16};
use proptest::prelude::*;
use zerocopy::IntoBytes;

use super::host::*;

fn capsule(queue: &Queue, mut sqe: Sqe, cid: u16, data: &[u8]) -> Vec<u8> {
    sqe.cid = U16::new(cid);
    queue.capsule(&sqe, data)
}

fn connect(queue: &Queue, qid: u16, cntlid: u16) -> Vec<u8> {
    let connect = Connect { recfmt: 0, qid, sqsize: 31, cattr: 0, kato: 0 };
    let data = ConnectData::new(&nqn(HOST_A), hostid(HOST_A), &nqn(SUBSYSTEM), cntlid);
    capsule(queue, connect.to_sqe(0), 1, data.as_bytes())
}

/// How a stream reaches the target: in pieces of these sizes, over and over.
fn send(driver: &mut Driver, queue: &Queue, mut stream: &[u8], cuts: &[usize]) {
    let mut cuts = cuts.iter().cycle();
    while !stream.is_empty() {
        let size = cuts.next().copied().unwrap_or(usize::MAX).clamp(1, stream.len());
        let (piece, later) = stream.split_at(size);
        driver.send(queue.id, piece);
        stream = later;
    }
}

/// What the target says, with transfer tags left out: those are its own affair.
fn heard(driver: &mut Driver, queue: &mut Queue) -> Vec<Got> {
    let got = queue.receive(driver).into_iter();
    got.map(|got| match got {
        Got::Ask { cid, offset, len, .. } => Got::Ask { cid, tag: 0, offset, len },
        other => other,
    })
    .collect()
}

fn open(driver: &mut Driver, digests: Digests, cuts: &[usize]) -> Queue {
    let mut queue = Queue::raw(driver);
    send(driver, &queue, IcReq::new(0, digests.to_field(), 0).as_bytes(), cuts);
    assert!(matches!(heard(driver, &mut queue).as_slice(), [Got::Setup(_)]));
    queue.establish(digests);
    queue
}

/// A session on two queues, cut into these pieces, with one byte changed on the way: what the
/// target says, and what is on the disk afterwards.
fn outcome(digests: Digests, cuts: &[usize], damage: Option<(usize, u8)>) -> (Vec<Got>, Vec<u8>) {
    let mut driver = driver();
    let mut queue = open(&mut driver, digests, cuts);
    let enable = PropertySet { offset: 0x14, wide: Some(false), value: 0x0046_0001 };
    let mut stream = connect(&queue, 0, 0xFFFF);
    stream.extend(capsule(&queue, enable.to_sqe(0), 2, &[]));
    stream.extend(capsule(&queue, identify(1, 0), 3, &[]));
    stream.extend(capsule(&queue, get_log(0x0C, 64, 0, false), 4, &[]));
    stream.extend(capsule(&queue, admin(AdminOpcode::AsyncEventRequest), 5, &[]));
    send(&mut driver, &queue, &stream, cuts);
    let mut all = heard(&mut driver, &mut queue);

    let mut queue = open(&mut driver, digests, cuts);
    let mut stream = connect(&queue, 1, 1);
    let write = in_capsule(io(IoOpcode::Write, 3, 2), 2 * BLOCK);
    stream.extend(capsule(&queue, write, 2, &pattern(1, 2 * BLOCK)));
    stream.extend(capsule(&queue, io(IoOpcode::Write, 5, 3), 3, &[]));
    stream.extend(capsule(&queue, io(IoOpcode::Read, 3, 2), 4, &[]));
    if let Some((at, flip)) = damage {
        let at = at % stream.len();
        stream[at] ^= flip;
    }
    send(&mut driver, &queue, &stream, cuts);
    let got = queue.receive(&mut driver);
    let tag = got.iter().find_map(|got| match got {
        Got::Ask { tag, cid: 3, .. } => Some(*tag),
        _ => None,
    });
    all.extend(got.into_iter().filter(|got| !matches!(got, Got::Ask { .. })));
    let tags = (3, tag.unwrap_or(0));
    let mut stream = queue.data(tags, 0, &pattern(2, BLOCK), false);
    stream.extend(capsule(&queue, io(IoOpcode::Flush, 0, 1), 5, &[]));
    stream.extend(queue.data(tags, 4096, &pattern(3, 2 * BLOCK), true));
    stream.extend(capsule(&queue, io(IoOpcode::Read, 5, 3), 6, &[]));
    // And an error at the end.
    stream.extend([0xEE; 8]);
    send(&mut driver, &queue, &stream, cuts);
    all.extend(heard(&mut driver, &mut queue));
    (all, driver.disks.remove(&1).unwrap())
}

#[test]
fn the_session_does_what_it_should() {
    let (all, disk) = outcome(Digests::default(), &[], None);
    assert_eq!(disk[3 * BLOCK..5 * BLOCK], pattern(1, 2 * BLOCK));
    assert_eq!(disk[5 * BLOCK..6 * BLOCK], pattern(2, BLOCK));
    assert_eq!(disk[6 * BLOCK..8 * BLOCK], pattern(3, 2 * BLOCK));
    let ends: Vec<u16> = all
        .iter()
        .filter_map(|got| match got {
            Got::Response(cqe) => Some(cqe.cid.get()),
            _ => None,
        })
        .collect();
    assert_eq!(ends, [1, 2, 3, 4, 1, 2, 4, 5, 3, 6]);
    assert!(matches!(all.last(), Some(Got::Term { fes: 1, fei: 0 })));
}

#[test]
fn byte_by_byte() {
    for (header, data) in [(false, false), (true, true)] {
        let digests = Digests { header, data };
        assert!(outcome(digests, &[1], None) == outcome(digests, &[], None));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_split_is_the_same(
        cuts in prop::collection::vec(prop_oneof![1usize..10, 1usize..200, 1usize..9000], 1..40),
        header: bool,
        data: bool,
    ) {
        let digests = Digests { header, data };
        prop_assert!(outcome(digests, &cuts, None) == outcome(digests, &[], None));
    }

    #[test]
    fn any_split_of_a_damaged_stream_is_the_same(
        cuts in prop::collection::vec(1usize..500, 1..20),
        at in 0usize..9000,
        flip in 1u8..,
        header: bool,
        data: bool,
    ) {
        let digests = Digests { header, data };
        let damage = Some((at, flip));
        prop_assert!(outcome(digests, &cuts, damage) == outcome(digests, &[], damage));
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..4096)) {
        let mut driver = driver();
        let queue = Queue::raw(&mut driver);
        driver.send(queue.id, &bytes);
        let (_admin, io_queue) = Queue::pair(&mut driver, HOST_A);
        driver.send(io_queue.id, &bytes);
    }

    #[test]
    fn random_commands_never_panic(
        commands in prop::collection::vec((any::<[u8; 64]>(), 0usize..64, 0u8..8), 1..32),
        on_admin: bool,
    ) {
        let mut driver = driver();
        let (admin_queue, io_queue) = Queue::pair(&mut driver, HOST_A);
        let queue = if on_admin { admin_queue } else { io_queue };
        for (raw, len, tame) in commands {
            let mut sqe: Sqe = zerocopy::transmute!(raw);
            // Mostly near what is valid, to get past the first check.
            if tame > 0 {
                sqe.flags = 0x40 | sqe.flags & 3;
                sqe.sgl = nvme::wire::Sgl::in_capsule(u32::try_from(len).unwrap());
                sqe.nsid = 1u32.into();
                sqe.opcode &= if tame > 3 { 0x1F } else { 0xFF };
            }
            driver.send(queue.id, &queue.capsule(&sqe, &vec![0; len]));
        }
    }
}
