//! The fuzzers' corpus, replayed without a fuzzer.
//!
//! The seeds are made here; with `HOLDFAST_WRITE_CORPUS` set they are written, otherwise they are
//! compared. What fuzzers found later lies beside them and is replayed too.

use block::testing::corpus;
use nvme::pdu::{Digests, FatalError, Framing, IcReq, PduType, Side};
use nvme::target::testing::fuzz;
use nvme::wire::{AcquireData, Connect, ConnectData, Cqe, IoOpcode, RegisterData, Sqe, Status};
use proptest::prelude::*;
use zerocopy::IntoBytes;

use super::host::*;

type Replay = fn(&[u8]);

const TARGETS: [(&str, Replay); 4] = [
    ("nvme_reader", fuzz::reader),
    ("nvme_structures", fuzz::structures),
    ("nvme_stream", fuzz::stream),
    ("nvme_commands", fuzz::commands),
];

fn connect(qid: u16) -> (Sqe, ConnectData) {
    let connect = Connect { recfmt: 0, qid, sqsize: 31, cattr: 0, kato: 5000 };
    let subsystem = nqn("nqn.2026-01.io.holdfast:fuzz");
    let data = ConnectData::new(&nqn(HOST_A), hostid(HOST_A), &subsystem, 0xFFFF);
    (connect.to_sqe(1), data)
}

/// One command of the command fuzzer: on queue 0 or 1, tamed, with data in the capsule.
fn step(queue: u8, sqe: Sqe, data: &[u8]) -> Vec<u8> {
    assert_eq!(data.len() % 16, 0);
    let sixteenths = u8::try_from(data.len() / 16).unwrap();
    let sqe = if data.is_empty() { sqe } else { in_capsule(sqe, data.len()) };
    [&[queue | 2 | sixteenths << 2], sqe.as_bytes(), data].concat()
}

fn seeds(target: &str) -> Vec<(String, Vec<u8>)> {
    let plain = Framing::default();
    let digests = Digests { header: true, data: true };
    let framed = Framing { digests, ..plain };
    let setup = IcReq::new(0, 0, 0);
    let (connect, data) = connect(0);
    let mut session = setup.as_bytes().to_vec();
    session.extend_from_slice(plain.capsule_cmd(&connect, 1024).as_slice());
    session.extend_from_slice(data.as_bytes());
    let property = nvme::wire::PropertyGet { offset: 0, wide: Some(true) };
    session.extend_from_slice(plain.capsule_cmd(&property.to_sqe(2), 0).as_slice());
    let error = FatalError::OutOfSequence { kind: PduType::R2t };
    match target {
        "nvme_reader" => vec![
            ("session".into(), [&[0], session.as_slice()].concat()),
            ("command".into(), [&[0b1110], framed.capsule_cmd(&connect, 4).as_slice()].concat()),
            (
                "data".into(),
                [&[2], plain.h2c_data((1, 2), 0, 4, true).as_slice(), &[1; 4]].concat(),
            ),
            (
                "response".into(),
                [&[3], plain.capsule_resp(&Cqe::new(1, Status::SUCCESS)).as_slice()].concat(),
            ),
            ("r2t".into(), [&[0b0111], framed.r2t((1, 2), 0, 4).as_slice()].concat()),
            (
                "term".into(),
                [&[3], Framing::term_req(Side::Controller, error, &[1; 8]).as_slice()].concat(),
            ),
        ],
        "nvme_structures" => vec![
            ("connect_data".into(), data.as_bytes().to_vec()),
            ("connect".into(), connect.as_bytes().to_vec()),
            ("name".into(), HOST_A.as_bytes().to_vec()),
        ],
        "nvme_stream" => vec![
            ("whole".into(), [&[255], session.as_slice()].concat()),
            ("bytewise".into(), [&[1], session.as_slice()].concat()),
        ],
        _ => command_seeds(),
    }
}

fn command_seeds() -> Vec<(String, Vec<u8>)> {
    let resv = |opcode: IoOpcode, cdw10: u32| {
        let mut sqe = io(opcode, 0, 1);
        sqe.cdw12 = 0u32.into();
        sqe.cdw10 = cdw10.into();
        sqe
    };
    let register = RegisterData { crkey: 0.into(), nrkey: 1.into() };
    let acquire = AcquireData { crkey: 1.into(), prkey: 1.into() };
    let reservations = [
        step(1, resv(IoOpcode::ReservationRegister, 3 << 30), register.as_bytes()),
        step(1, resv(IoOpcode::ReservationAcquire, 1 << 8), acquire.as_bytes()),
        step(1, resv(IoOpcode::ReservationAcquire, 0x102), acquire.as_bytes()),
        vec![5 << 5],
    ]
    .concat();
    let mut read = io(IoOpcode::Read, 3, 2);
    read.sgl = nvme::wire::Sgl::transport(1024);
    let mut write = read;
    write.opcode = IoOpcode::Write.code();
    let mut first = write;
    (first.opcode, first.flags) = (IoOpcode::Compare.code(), first.flags | 1);
    let mut second = write;
    second.flags |= 2;
    let mut dsm = io(IoOpcode::DatasetManagement, 0, 1);
    (dsm.cdw10, dsm.cdw11) = (1u32.into(), 4u32.into());
    let ranges = [[0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]; 2].concat();
    let device = [
        step(1, read, &[]),
        step(1, write, &[]),
        step(1, first, &[]),
        step(1, second, &[]),
        step(1, dsm, &ranges),
        step(1, io(IoOpcode::Flush, 0, 1), &[]),
        vec![5 << 5 | 1],
    ]
    .concat();
    let event = admin(nvme::wire::AdminOpcode::AsyncEventRequest);
    let admin_steps = [
        step(0, feature(nvme::wire::AdminOpcode::SetFeatures, 0x0B, 0x900), &[]),
        step(0, event, &[]),
        vec![7 << 5 | 2, 7 << 5 | 0xC],
        step(0, identify(1, 0), &[]),
        step(0, identify(3, 1), &[]),
        step(0, get_log(0x0C, 64, 0, false), &[]),
        step(0, get_log(0x04, 4096, 0, false), &[]),
        vec![6 << 5 | 31],
    ]
    .concat();
    let with = |how: u8, steps: &[u8]| [&[how], steps].concat();
    vec![
        ("reservations".into(), with(2, &reservations)),
        ("device".into(), with(0, &device)),
        ("device_held".into(), with(1, &device)),
        ("device_digests".into(), with(12, &device)),
        ("admin".into(), with(0, &admin_steps)),
    ]
}

#[test]
fn every_seed_and_every_find_passes() {
    for (target, replay) in TARGETS {
        for input in corpus(env!("CARGO_MANIFEST_DIR"), target, &seeds(target)).unwrap() {
            replay(&input);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// A fuzzer without a fuzzer: seeds with a few bytes changed, and seeds one after another.
    #[test]
    fn seeds_with_changes_pass(
        target in 0..TARGETS.len(),
        picks in prop::collection::vec(any::<prop::sample::Index>(), 1..4),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..12),
    ) {
        let (name, replay) = TARGETS[target];
        let seeds = seeds(name);
        let mut bytes: Vec<u8> = Vec::new();
        for pick in picks {
            let seed = &pick.get(&seeds).1;
            // The first byte says how; it is kept of the first seed only.
            bytes.extend_from_slice(&seed[usize::from(!bytes.is_empty())..]);
        }
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        replay(&bytes);
    }
}
