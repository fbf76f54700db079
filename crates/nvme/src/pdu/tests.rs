//! Golden bytes of every PDU, and the reader against every cut.

extern crate std;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;
use zerocopy::IntoBytes;

use super::*;
use crate::wire::{Cqe, Sqe, Status};

fn framing(header: bool, data: bool, send: u8) -> Framing {
    Framing {
        digests: Digests { header, data },
        send_align: Align::from_field(send).unwrap(),
        receive_align: Align::default(),
    }
}

/// CRC-32C check values from RFC 3720, appendix B.4.
#[test]
fn digest_is_crc32c() {
    assert_eq!(digest(0, &[0; 32]).to_le_bytes(), [0xAA, 0x36, 0x91, 0x8A]);
    assert_eq!(digest(0, &[0xFF; 32]).to_le_bytes(), [0x43, 0xAB, 0xA8, 0x62]);
    let up: Vec<u8> = (0..32).collect();
    assert_eq!(digest(0, &up).to_le_bytes(), [0x4E, 0x79, 0xDD, 0x46]);
    assert_eq!(digest(digest(0, &up[..7]), &up[7..]), digest(0, &up));
}

#[test]
fn icreq_bytes() {
    let mut expected = [0u8; 128];
    expected[..16].copy_from_slice(&[
        0x00, 0x00, 0x80, 0x00, 0x80, 0x00, 0x00, 0x00, // common header
        0x00, 0x00, 0x1F, 0x03, // PFV 0, HPDA 31, both digests
        0x0F, 0x00, 0x00, 0x00, // MAXR2T 16
    ]);
    assert_eq!(IcReq::new(31, 3, 15).as_bytes(), expected);
}

#[test]
fn capsule_cmd_bytes() {
    let sqe = Sqe::new(0x02, 0x0201);
    let plain = framing(false, false, 0).capsule_cmd(&sqe, 0);
    assert_eq!(plain.as_slice()[..12], [0x04, 0, 72, 0, 72, 0, 0, 0, 0x02, 0x40, 0x01, 0x02]);
    assert_eq!(plain.as_slice().len(), 72);
    // 8 KiB in the capsule, digests, aligned to 64 bytes: data begin at 128.
    let full = framing(true, true, 15).capsule_cmd(&sqe, 8192);
    let plen = u32::to_le_bytes(128 + 8192 + 4);
    assert_eq!(full.as_slice()[..4], [0x04, 0b11, 72, 128]);
    assert_eq!(full.as_slice()[4..8], plen);
    assert_eq!(full.as_slice()[72..76], digest(0, &full.as_slice()[..72]).to_le_bytes());
    assert_eq!(full.as_slice()[76..], [0; 52]);
}

#[test]
fn capsule_resp_bytes() {
    let cqe = Cqe::new(0x0201, Status::INVALID_OPCODE.do_not_retry());
    let resp = framing(false, true, 0).capsule_resp(&cqe);
    assert_eq!(
        resp.as_slice(),
        [
            0x05, 0, 24, 0, 24, 0, 0, 0, // common header: no data, no data digest
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x01, 0x02, 0x02, 0x80,
        ]
    );
    let resp = framing(true, false, 0).capsule_resp(&cqe);
    assert_eq!(resp.as_slice()[..8], [0x05, 1, 24, 0, 28, 0, 0, 0]);
    assert_eq!(resp.as_slice().len(), 28);
}

#[test]
fn data_and_r2t_bytes() {
    let head = framing(false, false, 0).h2c_data((0x0201, 0x0403), 0x1000, 0x2000, true);
    assert_eq!(
        head.as_slice(),
        [
            0x06, 0x04, 24, 24, 0x18, 0x20, 0, 0, // LAST; PDO 24; PLEN 24 + 8192
            0x01, 0x02, 0x03, 0x04, 0x00, 0x10, 0, 0, 0x00, 0x20, 0, 0, 0, 0, 0, 0,
        ]
    );
    let head = framing(true, true, 0).c2h_data(0x0201, 0, 512, flags::LAST | flags::SUCCESS);
    assert_eq!(
        head.as_slice()[..20],
        [
            0x07, 0b1111, 24, 28, 0x20, 0x02, 0, 0, // PDO 28; PLEN 28 + 512 + 4
            0x01, 0x02, 0, 0, 0, 0, 0, 0, 0x00, 0x02, 0, 0,
        ]
    );
    assert_eq!(head.as_slice().len(), 28);
    let head = framing(false, false, 0).r2t((0x0201, 0x0403), 0x1000, 0x0010_0000);
    assert_eq!(
        head.as_slice(),
        [
            0x09, 0, 24, 0, 24, 0, 0, 0, // common header
            0x01, 0x02, 0x03, 0x04, 0x00, 0x10, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0,
        ]
    );
}

#[test]
fn term_req_bytes() {
    let error = FatalError::HeaderDigest { kind: PduType::R2t, received: 0x0403_0201, computed: 0 };
    let term = Framing::term_req(Side::Host, error, &[0xAB; 200]);
    assert_eq!(term.as_slice()[..14], [2, 0, 24, 0, 152, 0, 0, 0, 3, 0, 1, 2, 3, 4]);
    assert_eq!(term.as_slice().len(), 152, "at most 128 bytes of the offending head");
    assert_eq!(Framing::term_req(Side::Controller, error, &[]).as_slice()[0], 3);
}

#[test]
fn alignment() {
    for pda in 0..=31 {
        let head = framing(true, false, pda).h2c_data((1, 1), 0, 1, true);
        let pdo = head.as_slice()[3];
        assert!(pdo >= 28 && usize::from(pdo) == head.as_slice().len());
        assert_eq!(pdo % ((pda + 1) * 4), 0);
    }
    assert_eq!(Align::from_field(32), None);
}

/// A stream from a controller: every PDU a host can get, with its payloads.
fn stream(framing: Framing, sizes: &[u16]) -> (Vec<u8>, Vec<Received>) {
    let mut bytes = Vec::new();
    let mut expected = Vec::new();
    for (at, size) in (0u16..).zip(sizes) {
        let cqe = Cqe::new(at, Status::SUCCESS);
        bytes.extend_from_slice(framing.capsule_resp(&cqe).as_slice());
        expected.push(Received::Head(Pdu::Response(cqe)));
        bytes.extend_from_slice(framing.r2t((at, at), 0, 4).as_slice());
        let size = u32::from(*size) + 1;
        let payload: Vec<u8> = (0..size).map(|byte| byte.to_le_bytes()[0]).collect();
        bytes.extend_from_slice(framing.c2h_data(at, 0, size, flags::LAST).as_slice());
        bytes.extend_from_slice(&payload);
        if framing.digests.data {
            bytes.extend_from_slice(&digest(0, &payload).to_le_bytes());
            expected.push(Received::Payload { intact: true });
        }
    }
    (bytes, expected)
}

/// Reads a stream in pieces; leaves out heads that the test does not compare.
fn read(reader: &mut Reader, bytes: &[u8], cuts: &[usize]) -> (Vec<Received>, Vec<u8>) {
    let (mut all, mut payload) = (Vec::new(), Vec::new());
    let mut rest = bytes;
    let mut cuts = cuts.iter().cycle();
    while !rest.is_empty() {
        let size = cuts.next().copied().unwrap_or(usize::MAX).clamp(1, rest.len());
        let (mut piece, later) = rest.split_at(size);
        rest = later;
        while !piece.is_empty() {
            match reader.expect() {
                Expect::Payload(left) => {
                    let count = piece.len().min(usize::try_from(left).unwrap());
                    payload.extend_from_slice(&piece[..count]);
                    reader.payload(&piece[..count]);
                    piece = &piece[count..];
                }
                Expect::Head => {
                    let (count, received) = reader.feed(piece).unwrap();
                    assert!(count > 0);
                    piece = &piece[count..];
                    all.extend(received);
                }
            }
        }
    }
    (all, payload)
}

fn host(framing: Framing) -> Reader {
    let mut reader = Reader::new(Side::Host);
    let setup = IcResp::new(0, framing.digests.to_field(), 4096);
    let (_, received) = reader.feed(setup.as_bytes()).unwrap();
    assert_eq!(received, Some(Received::Head(Pdu::IcResp(setup))));
    reader.establish(framing, 0);
    reader
}

proptest! {
    #[test]
    fn any_cut_reads_the_same(
        sizes in prop::collection::vec(0u16..600, 1..6),
        cuts in prop::collection::vec(1usize..300, 1..20),
        header: bool, data: bool,
    ) {
        let framing = framing(header, data, 0);
        let (bytes, expected) = stream(framing, &sizes);
        let whole = read(&mut host(framing), &bytes, &[]);
        let pieces = read(&mut host(framing), &bytes, &cuts);
        prop_assert_eq!(&whole, &pieces);
        let compared: Vec<Received> = whole.0.into_iter()
            .filter(|one| !matches!(one, Received::Head(Pdu::R2t(_) | Pdu::C2hData(_))))
            .collect();
        prop_assert_eq!(compared, expected);
    }

    #[test]
    fn random_bytes_never_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..600),
        is_host: bool, established: bool, header: bool, data: bool,
    ) {
        let side = if is_host { Side::Host } else { Side::Controller };
        let mut reader = Reader::new(side);
        if established {
            reader.establish(framing(header, data, 0), 8192);
        }
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            match reader.expect() {
                Expect::Payload(left) => {
                    let count = rest.len().min(usize::try_from(left).unwrap());
                    reader.payload(&rest[..count]);
                    rest = &rest[count..];
                }
                Expect::Head => match reader.feed(rest) {
                    Ok((count, _)) => rest = &rest[count..],
                    Err(error) => {
                        let term = Framing::term_req(side, error, reader.offending());
                        prop_assert!(term.as_slice().len() <= 152);
                        break;
                    }
                },
            }
        }
    }
}

#[test]
fn a_damaged_payload_is_seen() {
    let framing = framing(false, true, 0);
    let (mut bytes, _) = stream(framing, &[99]);
    let at = bytes.len() - 20;
    bytes[at] ^= 1;
    let (all, _) = read(&mut host(framing), &bytes, &[]);
    assert_eq!(all.last(), Some(&Received::Payload { intact: false }));
}

#[test]
fn a_host_takes_no_commands_and_no_second_set_up() {
    let mut reader = host(Framing::default());
    let command = Framing::default().capsule_cmd(&Sqe::new(0, 0), 0);
    assert_eq!(reader.feed(command.as_slice()), Err(FatalError::UnknownKind { kind: 4 }));
    let mut reader = host(Framing::default());
    let again = IcResp::new(0, 0, 4096);
    let refused = Err(FatalError::OutOfSequence { kind: PduType::IcResp });
    assert_eq!(reader.feed(again.as_bytes()), refused);
    assert_eq!(reader.offending(), &again.as_bytes()[..8]);
}

#[test]
fn padding_up_to_the_agreed_alignment_is_skipped() {
    let receive = Framing { receive_align: Align::from_field(7).unwrap(), ..Framing::default() };
    let mut reader = Reader::new(Side::Controller);
    reader.establish(receive, 8192);
    let send = framing(false, false, 7);
    let mut bytes = send.capsule_cmd(&Sqe::new(1, 1), 3).as_slice().to_vec();
    assert_eq!(bytes.len(), 96);
    bytes.extend_from_slice(&[1, 2, 3]);
    assert_eq!(read(&mut reader, &bytes, &[5]).1, vec![1, 2, 3]);
    // Not aligned as agreed.
    let odd = Framing::default().capsule_cmd(&Sqe::new(1, 1), 3);
    let refused = Err(FatalError::BadField { kind: PduType::CapsuleCmd, at: 3 });
    assert_eq!(reader.feed(odd.as_slice()), refused);
}
