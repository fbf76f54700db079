//! Golden bytes, written by hand from the layouts in the NVMe base specification.

use super::*;
use proptest::prelude::*;

fn padded(mut head: Vec<u8>, len: usize) -> Vec<u8> {
    head.resize(len, 0);
    head
}

#[test]
fn negotiate() {
    let message = Negotiate {
        transaction: 0x0102,
        concatenation: 0,
        hashes: vec![Hash::Sha256, Hash::Sha512],
        groups: vec![Group::Null, Group::Ffdhe8192],
    };
    let mut golden = padded(vec![0, 0, 0, 0, 0x02, 0x01, 0, 1, 1, 0, 2, 2, 1, 3], 72);
    golden[42..44].copy_from_slice(&[0, 5]);
    assert_eq!(message.encode(), golden);
    assert_eq!(FromHost::parse(&golden), Ok(FromHost::Negotiate(message)));
}

#[test]
fn what_linux_sends_first_is_understood() {
    let mut bytes = padded(vec![0, 0, 0, 0, 7, 0, 0, 1, 1, 0, 3, 6, 1, 2, 3], 72);
    bytes[42..48].copy_from_slice(&[0, 1, 2, 3, 4, 5]);
    let Ok(FromHost::Negotiate(read)) = FromHost::parse(&bytes) else { panic!() };
    assert_eq!(read.hashes, Hash::ALL);
    assert_eq!(read.groups, Group::ALL);
    assert_eq!((read.transaction, read.concatenation), (7, 0));
}

#[test]
fn unknown_protocols_and_algorithms_are_skipped() {
    let mut bytes = padded(vec![0, 0, 0, 0, 7, 0, 0, 2, 9], 8 + 128);
    bytes[72..80].copy_from_slice(&[1, 0, 3, 1, 0xEE, 2, 0, 0]);
    bytes[72 + 34] = 0xE0;
    let Ok(FromHost::Negotiate(read)) = FromHost::parse(&bytes) else { panic!() };
    assert_eq!((read.hashes, read.groups), (vec![Hash::Sha384], vec![]));
    bytes[72] = 8;
    assert_eq!(FromHost::parse(&bytes), Err(Reason::ProtocolUnusable));
    assert_eq!(FromHost::parse(&bytes[..135]), Err(Reason::IncorrectPayload));
    bytes[72..76].copy_from_slice(&[1, 0, 31, 1]);
    assert_eq!(FromHost::parse(&bytes), Err(Reason::IncorrectPayload));
}

#[test]
fn challenge() {
    let public = vec![0xDD; 256];
    let message = Challenge {
        transaction: 0xBEEF,
        hash: Hash::Sha384,
        group: Group::Ffdhe2048,
        sequence: 0x0A0B_0C0D,
        value: &[0xCC; 48],
        public: &public,
    };
    let mut golden = vec![1, 1, 0, 0, 0xEF, 0xBE, 48, 0, 2, 1, 0, 1, 0x0D, 0x0C, 0x0B, 0x0A];
    golden.extend([0xCC; 48]);
    golden.extend([0xDD; 256]);
    assert_eq!(message.encode(), golden);
    // A Linux target fills the rest of the host's buffer with zeros.
    let received = padded(golden.clone(), MAX_MESSAGE);
    assert_eq!(FromController::parse(&received), Ok(FromController::Challenge(message)));
    for (at, value, reason) in [
        (0, 2, Reason::IncorrectMessage),
        (1, 2, Reason::IncorrectMessage),
        (6, 32, Reason::IncorrectPayload),
        (8, 0, Reason::HashUnusable),
        (9, 6, Reason::GroupUnusable),
        (9, 0, Reason::IncorrectPayload),
        (11, 2, Reason::IncorrectPayload),
    ] {
        let mut bytes = golden.clone();
        bytes[at] = value;
        assert_eq!(FromController::parse(&bytes), Err(reason), "byte {at} = {value}");
    }
    assert_eq!(FromController::parse(&golden[..319]), Err(Reason::IncorrectPayload));
}

#[test]
fn reply() {
    let message = Reply {
        transaction: 3,
        answer: &[0xAA; 32],
        challenge: Some((9, &[0xBB; 32])),
        public: &[],
    };
    let mut golden = vec![1, 2, 0, 0, 3, 0, 32, 0, 1, 0, 0, 0, 9, 0, 0, 0];
    golden.extend([0xAA; 32]);
    golden.extend([0xBB; 32]);
    assert_eq!(message.encode(), golden);
    assert_eq!(FromHost::parse(&golden), Ok(FromHost::Reply(message)));
    for (at, value) in [(6, 31), (6, 64), (6, 0), (8, 2), (10, 1), (12, 0)] {
        let mut bytes = golden.clone();
        bytes[at] = value;
        assert_eq!(FromHost::parse(&bytes), Err(Reason::IncorrectPayload), "byte {at}");
    }
}

#[test]
fn a_reply_without_a_challenge_keeps_its_room() {
    let public = vec![0xDD; 384];
    let message = Reply { transaction: 3, answer: &[0xAA; 64], challenge: None, public: &public };
    let mut golden = vec![1, 2, 0, 0, 3, 0, 64, 0, 0, 0, 0x80, 1, 0, 0, 0, 0];
    golden.extend([0xAA; 64]);
    golden.extend([0; 64]);
    golden.extend([0xDD; 384]);
    assert_eq!(message.encode(), golden);
    assert_eq!(FromHost::parse(&golden), Ok(FromHost::Reply(message)));
}

#[test]
fn success() {
    let plain = Success1 { transaction: 3, hash: Hash::Sha256, answer: None };
    let golden = [1, 3, 0, 0, 3, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(plain.encode(), golden);
    assert_eq!(FromController::parse(&golden), Ok(FromController::Success1(plain)));
    let proven = Success1 { transaction: 3, hash: Hash::Sha256, answer: Some(&[0xAA; 32]) };
    let mut golden = vec![1, 3, 0, 0, 3, 0, 32, 0, 1, 0, 0, 0, 0, 0, 0, 0];
    golden.extend([0xAA; 32]);
    assert_eq!(proven.encode(), golden);
    assert_eq!(FromController::parse(&golden), Ok(FromController::Success1(proven)));
    let last = FromHost::Success2 { transaction: 3 };
    let golden = [1, 4, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(last.encode(), golden);
    assert_eq!(FromHost::parse(&golden), Ok(last));
}

#[test]
fn failure_messages() {
    for code in 1..=8 {
        let reason = Reason::from_code(code);
        assert_eq!(reason.code(), code);
        let controller = FromController::Failure1 { transaction: 5, reason };
        assert_eq!(controller.encode(), [0, 0xF1, 0, 0, 5, 0, 1, code]);
        assert_eq!(FromController::parse(&controller.encode()), Ok(controller));
        let host = FromHost::Failure2 { transaction: 5, reason };
        assert_eq!(host.encode(), [0, 0xF0, 0, 0, 5, 0, 1, code]);
        assert_eq!(FromHost::parse(&host.encode()), Ok(host));
    }
}

#[test]
fn the_largest_message_fits_its_room() {
    let public = vec![1; Group::Ffdhe8192.value_len()];
    let reply = Reply { transaction: 0, answer: &[1; 64], challenge: None, public: &public };
    assert!(reply.encode().len() <= MAX_MESSAGE);
}

proptest! {
    #[test]
    fn any_bytes_are_a_message_or_refused(
        start in proptest::sample::select(vec![
            [0u8, 0], [1, 1], [1, 2], [1, 3], [1, 4], [0, 0xF0], [0, 0xF1], [3, 3],
        ]),
        rest in proptest::collection::vec(any::<u8>(), 0..400),
    ) {
        let mut bytes = start.to_vec();
        bytes.extend(rest);
        if let Ok(message) = FromHost::parse(&bytes) {
            let again = message.encode();
            prop_assert_eq!(FromHost::parse(&again), Ok(message));
        }
        if let Ok(message) = FromController::parse(&bytes) {
            let again = message.encode();
            prop_assert_eq!(FromController::parse(&again), Ok(message));
        }
    }
}
