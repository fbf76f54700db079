//! One queue against a controller that does what it is told, also what it may not.

use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::super::mock_controller::{Give, MockController, NOW, assemble, give};
use super::*;
use crate::pdu::flags;
use crate::wire::{IoOpcode, U32};

const PATIENCE: Duration = Duration::from_secs(30);

fn shape(digests: Digests) -> Shape {
    Shape { slots: 4, digests, r2ts: 2, patience: PATIENCE, quiet_reads: true }
}

fn both() -> Digests {
    Digests { header: true, data: true }
}

/// What is in the buffer of a slot.
fn memory(slot: u16) -> Vec<u8> {
    let seed = u8::try_from(slot).unwrap();
    (0..40_000u32).map(|n| seed.wrapping_add(u8::try_from(n % 251).unwrap())).collect()
}

struct Pair {
    queue: Queue,
    toy: MockController,
    buffer: Vec<u8>,
}

impl Pair {
    fn open(digests: Digests, max_h2c: u32) -> Pair {
        let mut queue = Queue::new(shape(digests));
        let mut toy = MockController::new();
        queue.start(NOW);
        toy.take(&queue.poll_transmit().unwrap(), &memory);
        let answer = toy.accept(digests, max_h2c);
        let mut pair = Pair { queue, toy, buffer: vec![0; 40_000] };
        pair.give(&answer);
        assert!(pair.queue.is_open());
        pair.toy.seen.clear();
        pair
    }

    fn enqueue(&mut self, slot: u16, data: Data) {
        let mut sqe = Sqe::new(IoOpcode::Read.code(), 0);
        sqe.nsid = U32::new(1);
        assert!(self.queue.submit(slot, sqe, data, Some(NOW)));
    }

    fn submit(&mut self, slot: u16, data: Data) -> u16 {
        self.enqueue(slot, data);
        self.flush();
        let Some((Pdu::Command { sqe, .. }, _)) = self.toy.seen.last() else { panic!() };
        sqe.cid.get()
    }

    fn flush(&mut self) {
        while let Some(transmit) = self.queue.poll_transmit() {
            self.toy.take(&transmit, &memory);
        }
    }

    fn give(&mut self, bytes: &[u8]) {
        self.give_cut(bytes, || usize::MAX);
    }

    fn give_cut(&mut self, bytes: &[u8], cut: impl FnMut() -> usize) {
        let queue = &mut self.queue;
        give(bytes, &mut self.buffer, cut, |call| match call {
            Give::Ask => (queue.need(), 0),
            Give::Feed(bytes) => (Need::Bytes, queue.feed(bytes)),
            Give::Placed(bytes) => {
                queue.placed(bytes);
                (Need::Bytes, 0)
            }
        });
    }

    fn respond(&mut self, cid: u16, status: Status) {
        let bytes = self.toy.framing.capsule_resp(&Cqe::new(cid, status));
        self.give(bytes.as_slice());
    }

    fn r2t(&mut self, cid: u16, ttag: u16, at: u32, len: u32) {
        let bytes = self.toy.framing.r2t((cid, ttag), at, len);
        self.give(bytes.as_slice());
    }

    fn ended(&mut self) -> Vec<(u16, Result<Status, Lost>)> {
        core::iter::from_fn(|| self.queue.poll_done())
            .map(|(slot, outcome)| match outcome {
                Outcome::Answered { status, .. } => (slot, Ok(status)),
                Outcome::Lost(why) => (slot, Err(why)),
            })
            .collect()
    }
}

#[test]
fn the_set_up_asks_for_what_was_configured() {
    let mut queue = Queue::new(shape(both()));
    assert_eq!(queue.poll_transmit(), None);
    queue.start(NOW);
    let sent = assemble(&queue.poll_transmit().unwrap(), &memory);
    let mut golden = vec![0, 0, 128, 0, 128, 0, 0, 0, 0, 0, 0, 3, 1];
    golden.resize(128, 0);
    assert_eq!(sent, golden);
    queue.start(NOW);
    assert_eq!(queue.poll_transmit(), None, "only once");
}

#[test]
fn an_answer_that_gives_less_than_asked_is_refused() {
    for (at, value) in [(8, 1), (10, 32), (11, 2), (11, 0), (12, 0), (12, 2), (13, 8)] {
        let mut queue = Queue::new(shape(both()));
        queue.start(NOW);
        queue.poll_transmit();
        let mut answer = IcResp::new(0, 3, 8192).as_bytes().to_vec();
        if at == 13 {
            answer[13] = 0x0F;
        } else {
            answer[at] = value;
            if at == 12 {
                answer[13] = if value == 0 { 8 } else { 0x20 };
            }
        }
        queue.feed(&answer);
        assert!(matches!(queue.lost(), Some(Lost::Protocol(_))), "byte {at} = {value}");
        let end = assemble(&queue.poll_transmit().unwrap(), &memory);
        assert_eq!(end[0], PduType::H2cTermReq.code());
        assert_eq!(queue.need(), Need::Nothing);
    }
}

#[test]
fn small_data_travel_in_the_capsule() {
    let mut pair = Pair::open(both(), 8192);
    pair.queue.set_capsule_data(4096);
    let cid = pair.submit(1, Data::Out { len: 4096 });
    let (Pdu::Command { sqe, payload }, bytes) = &pair.toy.seen[0] else { panic!() };
    assert_eq!((*payload, sqe.sgl), (4096, Sgl::in_capsule(4096)));
    assert_eq!(bytes[..], memory(1)[..4096]);
    assert!(pair.toy.intact);
    pair.respond(cid, Status::SUCCESS);
    assert_eq!(pair.ended(), [(1, Ok(Status::SUCCESS))]);
    pair.submit(1, Data::Out { len: 4097 });
    let (Pdu::Command { payload, .. }, _) = &pair.toy.seen[1] else { panic!() };
    assert_eq!(*payload, 0);
}

#[test]
fn large_data_travel_when_asked_for() {
    for digests in [Digests::default(), both()] {
        let mut pair = Pair::open(digests, 4096);
        let cid = pair.submit(2, Data::Out { len: 20_000 });
        // Two transfers at once, then a third.
        pair.r2t(cid, 7, 0, 10_000);
        pair.r2t(cid, 8, 10_000, 6_000);
        pair.flush();
        pair.r2t(cid, 9, 16_000, 4_000);
        pair.flush();
        let mut got = vec![0; 20_000];
        let mut ends = Vec::new();
        for (pdu, bytes) in &pair.toy.seen[1..] {
            let Pdu::H2cData(header) = pdu else { panic!("{pdu:?}") };
            assert!(header.datal.get() <= 4096);
            let at = usize::try_from(header.datao.get()).unwrap();
            got[at..at + bytes.len()].copy_from_slice(bytes);
            if header.is_last() {
                ends.push((header.ttag.get(), at + bytes.len()));
            }
        }
        assert_eq!(got[..], memory(2)[..20_000]);
        ends.sort_unstable();
        assert_eq!(ends, [(7, 10_000), (8, 16_000), (9, 20_000)]);
        assert!(pair.toy.intact);
        pair.respond(cid, Status::SUCCESS);
        assert_eq!(pair.ended(), [(2, Ok(Status::SUCCESS))]);
        assert_eq!(pair.queue.used(), 0);
    }
}

/// A controller that has the next commands asks for their data while it takes those before.
#[test]
fn commands_overtake_data() {
    let mut pair = Pair::open(both(), 4096);
    let write = pair.submit(2, Data::Out { len: 8192 });
    pair.r2t(write, 7, 0, 8192);
    pair.enqueue(0, Data::In { len: 512 });
    pair.enqueue(1, Data::None);
    pair.flush();
    let is_command = |(pdu, _): &(Pdu, Vec<u8>)| matches!(pdu, Pdu::Command { .. });
    let sent: Vec<bool> = pair.toy.seen.iter().map(is_command).collect();
    assert_eq!(sent, [true, true, true, false, false]);
}

#[test]
fn a_refused_write_sends_no_more_data() {
    let mut pair = Pair::open(both(), 4096);
    let cid = pair.submit(2, Data::Out { len: 20_000 });
    pair.r2t(cid, 7, 0, 20_000);
    assert!(pair.queue.poll_transmit().is_some());
    pair.respond(cid, Status::CAPACITY_EXCEEDED);
    assert_eq!(pair.queue.poll_transmit(), None);
    assert_eq!(pair.ended(), [(2, Ok(Status::CAPACITY_EXCEEDED))]);
    // The slot serves again, under another name.
    assert_ne!(pair.submit(2, Data::None), cid);
}

#[test]
fn a_read_without_a_response() {
    let mut pair = Pair::open(both(), 4096);
    let cid = pair.submit(0, Data::In { len: 8192 });
    let bytes = pair.toy.data(cid, 0, &[1; 5000], 0);
    pair.give(&bytes);
    let bytes = pair.toy.data(cid, 5000, &[2; 3192], flags::LAST | flags::SUCCESS);
    pair.give(&bytes);
    assert_eq!(pair.ended(), [(0, Ok(Status::SUCCESS))]);
    assert_eq!((pair.buffer[4999], pair.buffer[5000], pair.buffer[8191]), (1, 2, 2));
}

#[test]
fn structures_are_kept_here_and_may_be_short() {
    let mut pair = Pair::open(both(), 4096);
    let cid = pair.submit(0, Data::InOwned { len: 4096 });
    let bytes = pair.toy.data(cid, 0, &[7; 100], flags::LAST);
    pair.give(&bytes);
    pair.respond(cid, Status::SUCCESS);
    let Some((0, Outcome::Answered { bytes, .. })) = pair.queue.poll_done() else { panic!() };
    assert_eq!(bytes, [7; 100]);
}

#[test]
fn damaged_data_fail_the_command_and_not_the_queue() {
    let mut pair = Pair::open(both(), 4096);
    let cid = pair.submit(0, Data::In { len: 512 });
    let mut bytes = pair.toy.data(cid, 0, &[1; 512], flags::LAST | flags::SUCCESS);
    let last = bytes.len() - 5;
    bytes[last] ^= 1;
    pair.give(&bytes);
    assert_eq!(pair.ended(), [(0, Ok(Status::TRANSIENT_TRANSPORT_ERROR))]);
    assert!(pair.queue.is_open());
}

/// Each breach of the protocol ends the connection and every command on it.
#[test]
fn breaches_end_the_connection() {
    type Breach = fn(&mut Pair, u16);
    let writes: [(&str, Breach); 8] = [
        ("R2T for an unknown command", |pair, cid| pair.r2t(cid ^ 0x1000, 0, 0, 1)),
        ("R2T past the end", |pair, cid| pair.r2t(cid, 0, 0, 20_001)),
        ("R2T that wraps", |pair, cid| pair.r2t(cid, 0, u32::MAX, 2)),
        ("R2T for nothing", |pair, cid| pair.r2t(cid, 0, 0, 0)),
        ("R2T that leaves a gap", |pair, cid| pair.r2t(cid, 0, 4, 4)),
        ("R2T for the same data twice", |pair, cid| {
            pair.r2t(cid, 0, 0, 100);
            pair.flush();
            pair.r2t(cid, 0, 50, 100);
        }),
        ("more R2Ts than allowed", |pair, cid| {
            for at in [0, 100, 200] {
                pair.r2t(cid, 0, at, 100);
            }
        }),
        ("success before the data", |pair, cid| pair.respond(cid, Status::SUCCESS)),
    ];
    for (name, breach) in writes {
        check_breach(name, Data::Out { len: 20_000 }, breach);
    }
    let reads: [(&str, Breach); 9] = [
        ("data for an unknown command", |pair, cid| data(pair, cid ^ 0x1000, 0, 4, 0)),
        ("data past the end", |pair, cid| data(pair, cid, 0, 8196, 0)),
        ("data out of order", |pair, cid| data(pair, cid, 4, 4, 0)),
        ("data twice", |pair, cid| {
            data(pair, cid, 0, 512, 0);
            data(pair, cid, 0, 512, 0);
        }),
        ("success that is not last", |pair, cid| data(pair, cid, 0, 8192, flags::SUCCESS)),
        ("success with data missing", |pair, cid| {
            data(pair, cid, 0, 512, flags::LAST | flags::SUCCESS);
        }),
        ("a response with data missing", |pair, cid| pair.respond(cid, Status::SUCCESS)),
        ("a response to nobody", |pair, cid| pair.respond(cid ^ 3, Status::SUCCESS)),
        ("R2T for a read", |pair, cid| pair.r2t(cid, 0, 0, 512)),
    ];
    for (name, breach) in reads {
        check_breach(name, Data::In { len: 8192 }, breach);
    }
}

fn data(pair: &mut Pair, cid: u16, at: u32, len: usize, ends: u8) {
    let bytes = pair.toy.data(cid, at, &vec![0; len], ends);
    pair.give(&bytes);
}

fn check_breach(name: &str, what: Data, breach: fn(&mut Pair, u16)) {
    let mut pair = Pair::open(both(), 8192);
    pair.submit(0, Data::In { len: 4096 });
    let cid = pair.submit(3, what);
    breach(&mut pair, cid);
    assert!(matches!(pair.queue.lost(), Some(Lost::Protocol(_))), "{name}");
    let ended = pair.ended();
    assert_eq!(ended.iter().map(|(slot, _)| *slot).collect::<Vec<_>>(), [0, 3], "{name}");
    assert!(ended.iter().all(|(_, end)| end.is_err()), "{name}");
    let end = assemble(&pair.queue.poll_transmit().unwrap(), &memory);
    assert_eq!(end[0], PduType::H2cTermReq.code(), "{name}");
    assert_eq!(pair.queue.poll_transmit(), None, "{name}");
    assert!(!pair.queue.submit(1, Sqe::new(0, 0), Data::None, None), "{name}");
}

#[test]
fn the_controller_may_end_the_connection() {
    let mut pair = Pair::open(both(), 8192);
    pair.submit(1, Data::None);
    let error = FatalError::OutOfSequence { kind: PduType::CapsuleCmd };
    let bytes = Framing::term_req(Side::Controller, error, &[0; 72]);
    pair.give(bytes.as_slice());
    let lost = Lost::Terminated { fes: 2, fei: 0 };
    assert_eq!(pair.queue.lost(), Some(lost));
    assert_eq!(pair.ended(), [(1, Err(lost))]);
}

#[test]
fn a_command_that_takes_too_long_ends_the_connection() {
    let mut pair = Pair::open(both(), 8192);
    let step = Duration::from_secs(1);
    for slot in 0..3 {
        let from = NOW.after(step * u32::from(slot));
        assert!(pair.queue.submit(slot, Sqe::new(0, 0), Data::None, Some(from)));
    }
    // One without a deadline, as event requests are.
    assert!(pair.queue.submit(3, Sqe::new(0, 0), Data::None, None));
    assert_eq!(pair.queue.poll_timeout(), Some(NOW.after(PATIENCE)));
    let early = Duration::from_secs(29);
    pair.queue.handle_timeout(NOW.after(early));
    assert_eq!(pair.queue.lost(), None);
    pair.queue.handle_timeout(NOW.after(PATIENCE + step));
    assert_eq!(pair.queue.lost(), Some(Lost::TimedOut));
    let (late, other) = (Err(Lost::TimedOut), Err(Lost::Closed));
    assert_eq!(pair.ended(), [(0, late), (1, late), (2, other), (3, other)]);
    assert_eq!(pair.queue.poll_timeout(), None);
}

#[test]
fn a_set_up_that_takes_too_long_ends_too() {
    let mut queue = Queue::new(shape(both()));
    assert_eq!(queue.poll_timeout(), None);
    queue.start(NOW);
    queue.handle_timeout(NOW.after(PATIENCE));
    assert_eq!(queue.lost(), Some(Lost::TimedOut));
}

#[test]
fn slots_are_the_limit() {
    let mut pair = Pair::open(both(), 8192);
    for slot in 0..4 {
        pair.submit(slot, Data::None);
    }
    assert!(!pair.queue.submit(0, Sqe::new(0, 0), Data::None, Some(NOW)), "taken");
    assert!(!pair.queue.submit(4, Sqe::new(0, 0), Data::None, Some(NOW)), "no such slot");
}

proptest! {
    #[test]
    fn any_cutting_of_the_stream_gives_the_same(
        cuts in proptest::collection::vec(1usize..300, 1..50),
        header: bool, data: bool,
    ) {
        let mut pair = Pair::open(Digests { header, data }, 4096);
        let read = pair.submit(0, Data::In { len: 6000 });
        let list = pair.submit(1, Data::InOwned { len: 500 });
        let write = pair.submit(2, Data::Out { len: 9000 });
        let bytes: Vec<u8> = (0..6000u32).map(|n| u8::try_from(n % 241).unwrap()).collect();
        let framing = pair.toy.framing;
        let stream = [
            pair.toy.data(read, 0, &bytes[..2500], 0),
            framing.r2t((write, 5), 0, 9000).as_slice().to_vec(),
            pair.toy.data(list, 0, &[9; 500], flags::LAST),
            framing.capsule_resp(&Cqe::new(list, Status::SUCCESS)).as_slice().to_vec(),
            pair.toy.data(read, 2500, &bytes[2500..], flags::LAST | flags::SUCCESS),
        ].concat();
        let mut cut = cuts.iter().copied().cycle();
        pair.give_cut(&stream, || cut.next().unwrap());
        prop_assert_eq!(pair.queue.lost(), None);
        prop_assert_eq!(&pair.buffer[..6000], &bytes[..]);
        let ended: Vec<_> = core::iter::from_fn(|| pair.queue.poll_done()).collect();
        let done = |bytes| Outcome::Answered { status: Status::SUCCESS, result: 0, bytes };
        prop_assert_eq!(ended, vec![(1, done(vec![9; 500])), (0, done(vec![]))]);
        pair.flush();
        pair.respond(write, Status::SUCCESS);
        prop_assert_eq!(pair.ended(), [(2, Ok(Status::SUCCESS))]);
    }

    /// A controller that sends anything at all, some of it almost right.
    #[test]
    fn anything_is_survived(
        frames in proptest::collection::vec(
            (0u8..8, any::<[u8; 24]>(), proptest::option::of((0usize..24, any::<u8>()))), 1..30
        ),
        set_up: bool,
    ) {
        let mut pair = if set_up {
            Pair::open(Digests::default(), 4096)
        } else {
            let mut queue = Queue::new(shape(Digests::default()));
            queue.start(NOW);
            queue.poll_transmit();
            Pair { queue, toy: MockController::new(), buffer: vec![0; 40_000] }
        };
        let submitted = if set_up { 3 } else { 0 };
        let cids = if set_up {
            vec![
                pair.submit(0, Data::In { len: 4096 }),
                pair.submit(1, Data::Out { len: 9000 }),
                pair.submit(2, Data::InOwned { len: 64 }),
            ]
        } else {
            vec![0, 1, 2]
        };
        for (kind, mut frame, change) in frames {
            let cid = cids[usize::from(kind % 3)];
            let (lead, plen): (u8, u8) = match kind {
                0..=2 => (PduType::CapsuleResp.code(), 24),
                3..=5 => (PduType::R2t.code(), 24),
                6 => (PduType::C2hData.code(), 24 + 16),
                _ => (frame[0], frame[4]),
            };
            let pdo = if kind == 6 { 24 } else { 0 };
            frame[..8].copy_from_slice(&[lead, 0, 24, pdo, plen, 0, 0, 0]);
            frame[8..10].copy_from_slice(&cid.to_le_bytes());
            if kind >= 3 {
                let page = frame[13] & 15;
                frame[12..20].copy_from_slice(&[0, page, 0, 0, 16, 0, 0, 0]);
            } else {
                frame[20..22].copy_from_slice(&cid.to_le_bytes());
            }
            if let Some((at, value)) = change {
                frame[at] = value;
            }
            pair.give(&frame);
            if kind == 6 {
                pair.give(&[0x5A; 16]);
            }
            while pair.queue.poll_transmit().is_some() {}
        }
        pair.queue.close(Lost::Closed, None);
        let mut ended: Vec<u16> = pair.ended().iter().map(|(slot, _)| *slot).collect();
        ended.sort_unstable();
        prop_assert_eq!(ended, (0..submitted).collect::<Vec<u16>>());
    }
}
