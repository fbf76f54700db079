//! Golden bytes: written by hand from the specifications' figures, not by our own encoders.

extern crate std;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::*;

/// A command as Linux sends it: read of 8 blocks from 0x1_0000_0002, identifier 0x1234.
#[test]
fn read_command() {
    let bytes: [u8; 64] = {
        let mut bytes = [0; 64];
        bytes[0] = 0x02; // opcode
        bytes[1] = 0x40; // PSDT 01b
        bytes[2..4].copy_from_slice(&[0x34, 0x12]); // CID
        bytes[4] = 1; // NSID
        bytes[32..36].copy_from_slice(&[0x00, 0x80, 0x00, 0x00]); // SGL length 32 KiB
        bytes[39] = 0x5A; // transport data block
        bytes[40] = 2; // SLBA
        bytes[44] = 1;
        bytes[48] = 7; // NLB, zero-based
        bytes[51] = 0x40; // FUA
        bytes
    };
    let sqe = Sqe::read_from_bytes(&bytes).unwrap();
    assert_eq!(IoOpcode::from_code(sqe.opcode), Some(IoOpcode::Read));
    assert_eq!((sqe.cid.get(), sqe.nsid.get()), (0x1234, 1));
    assert_eq!((sqe.slba(), sqe.nlb(), sqe.fua(), sqe.deac()), (0x1_0000_0002, 7, true, false));
    assert_eq!((sqe.psdt(), sqe.fuse()), (Psdt::Sgl, Fuse::Normal));
    assert_eq!((sqe.sgl.kind(), sqe.sgl.length.get()), (Some(SglKind::Transport), 32768));
    let mut made = Sqe::new(0x02, 0x1234);
    made.nsid = U32::new(1);
    made.set_slba(0x1_0000_0002);
    made.cdw12 = U32::new(7 | Sqe::CDW12_FUA);
    made.sgl = Sgl::transport(32768);
    assert_eq!(made.as_bytes(), bytes);
}

#[test]
fn flags_of_commands() {
    let with = |flags| Sqe { flags, ..Sqe::new_zeroed() };
    assert_eq!(
        [0, 1, 2, 3].map(|flags| with(flags).fuse()),
        [Fuse::Normal, Fuse::First, Fuse::Second, Fuse::Reserved]
    );
    assert_eq!(
        [0, 0x40, 0x80, 0xC0].map(|flags| with(flags).psdt()),
        [Psdt::Prp, Psdt::Sgl, Psdt::SglMetadata, Psdt::Reserved]
    );
    let sgl = |identifier| {
        let mut sgl = Sgl::in_capsule(1);
        sgl.identifier = identifier;
        sgl
    };
    assert_eq!(sgl(0x01).kind(), Some(SglKind::InCapsule { offset: 0 }));
    for other in [0x00, 0x0A, 0x0F, 0x20, 0x40, 0x50, 0x5B] {
        assert_eq!(sgl(other).kind(), None, "{other:#x}");
    }
}

#[test]
fn completion() {
    let bytes = [
        0x78, 0x56, 0x34, 0x12, 0xEF, 0xCD, 0xAB, 0x90, // result
        0x05, 0x00, // SQHD
        0x00, 0x00, // SQID
        0x34, 0x12, // CID
        0x06, 0x86, // status: DNR, path related, ANA transition, phase 0
    ];
    let cqe = Cqe::read_from_bytes(&bytes).unwrap();
    assert_eq!(cqe.result(), 0x90AB_CDEF_1234_5678);
    assert_eq!((cqe.sqhd.get(), cqe.cid.get()), (5, 0x1234));
    assert_eq!(cqe.status(), Status::ANA_TRANSITION.do_not_retry());
    assert!(cqe.status().is_path_error() && !cqe.status().is_success());
    let mut made = Cqe::new(0x1234, Status::ANA_TRANSITION.do_not_retry());
    made.set_result(0x90AB_CDEF_1234_5678);
    made.sqhd = U16::new(5);
    assert_eq!(made.as_bytes(), bytes);
}

/// Status field values as in the specification's tables: SCT in bits 11:9, SC in bits 8:1.
#[test]
fn statuses() {
    for (status, sct, sc) in [
        (Status::INVALID_OPCODE, 0, 0x01),
        (Status::ABORT_REQUESTED, 0, 0x07),
        (Status::SGL_DESCRIPTOR_TYPE_INVALID, 0, 0x11),
        (Status::TRANSIENT_TRANSPORT_ERROR, 0, 0x22),
        (Status::LBA_OUT_OF_RANGE, 0, 0x80),
        (Status::RESERVATION_CONFLICT, 0, 0x83),
        (Status::CONNECT_INVALID_PARAMETERS, 1, 0x82),
        (Status::AUTHENTICATION_REQUIRED, 1, 0x91),
        (Status::UNRECOVERED_READ, 2, 0x81),
        (Status::GUARD_CHECK, 2, 0x82),
        (Status::COMPARE_FAILURE, 2, 0x85),
        (Status::ANA_INACCESSIBLE, 3, 0x02),
        (Status::HOST_PATH_ERROR, 3, 0x70),
    ] {
        let field: u16 = (sct << 8 | sc) << 1;
        assert_eq!(status.to_field(), field, "{status}");
        assert_eq!(Status::from_field(field | 1), status, "the phase is not part of it");
        assert_eq!(status.do_not_retry().to_field(), field | 0x8000);
        assert_eq!(status.retry_after(2).to_field(), field | 0x2000);
        assert_eq!(status.retry_after(3).retry_delay(), 3);
    }
}

#[test]
fn connect_command() {
    let mut bytes = [0u8; 64];
    bytes[0] = 0x7F;
    bytes[1] = 0x40;
    bytes[2] = 9; // CID
    bytes[4] = 0x01; // FCTYPE
    bytes[32..36].copy_from_slice(&[0x00, 0x04, 0, 0]); // 1024 bytes
    bytes[39] = 0x01; // data block, offset
    bytes[40..42].copy_from_slice(&[0, 0]); // RECFMT
    bytes[42..44].copy_from_slice(&[3, 0]); // QID
    bytes[44..46].copy_from_slice(&[127, 0]); // SQSIZE
    bytes[46] = 0x04; // CATTR: no SQ flow control
    bytes[48..52].copy_from_slice(&[0x88, 0x13, 0, 0]); // KATO 5000 ms
    let sqe = Sqe::read_from_bytes(&bytes).unwrap();
    assert_eq!(FabricsType::from_code(sqe.fctype()), Some(FabricsType::Connect));
    let connect = Connect::from_sqe(&sqe);
    assert_eq!(connect, Connect { recfmt: 0, qid: 3, sqsize: 127, cattr: 4, kato: 5000 });
    assert!(connect.no_sq_flow());
    assert_eq!(connect.to_sqe(9).as_bytes(), bytes);
}

#[test]
fn connect_data() {
    let mut bytes = vec![0u8; 1024];
    bytes[..16].fill(0x5A);
    bytes[16..18].copy_from_slice(&[0xFF, 0xFF]);
    bytes[256..286].copy_from_slice(b"nqn.2026-01.io.holdfast:target");
    bytes[512..540].copy_from_slice(b"nqn.2026-01.io.holdfast:host");
    let (target, host) = ("nqn.2026-01.io.holdfast:target", "nqn.2026-01.io.holdfast:host");
    let (target, host) = (Nqn::new(target).unwrap(), Nqn::new(host).unwrap());
    let data = ConnectData::read_from_bytes(&bytes).unwrap();
    assert_eq!(Nqn::from_field(&data.subnqn), Ok(target.clone()));
    assert_eq!(Nqn::from_field(&data.hostnqn), Ok(host.clone()));
    let made = ConnectData::new(&host, [0x5A; 16], &target, CNTLID_DYNAMIC);
    assert_eq!(made.as_bytes(), bytes);
}

#[test]
fn bad_connect_names_the_field() {
    let cqe = BadConnect::SUBNQN.cqe(7);
    assert_eq!(cqe.as_bytes()[..4], [0x00, 0x01, 0x01, 0x00], "IPO 256, IATTR data");
    assert_eq!(BadConnect::QID.cqe(7).as_bytes()[..4], [42, 0, 0, 0]);
    assert_eq!(cqe.as_bytes()[12..], [7, 0, 0x04, 0x03], "it may be tried again");
    assert_eq!(BadConnect::QID.cqe(7).as_bytes()[12..], [7, 0, 0x04, 0x83], "for good");
}

#[test]
fn property_commands() {
    let get = PropertyGet { offset: 0x1C, wide: Some(false) }.to_sqe(1);
    assert_eq!(get.as_bytes()[40..48], [0, 0, 0, 0, 0x1C, 0, 0, 0]);
    assert_eq!(get.as_bytes()[4], 0x04);
    let set = PropertySet { offset: 0x14, wide: Some(true), value: 0x0102_0304_0506_0708 };
    let sqe = set.to_sqe(1);
    let expected = [1, 0, 0, 0, 0x14, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1];
    assert_eq!(sqe.as_bytes()[40..56], expected);
    assert_eq!(PropertySet::from_sqe(&sqe), set);
    let mut odd = get;
    odd.cdw10 = U32::new(2);
    assert_eq!(PropertyGet::from_sqe(&odd).wide, None);
}

#[test]
fn authentication_commands() {
    let auth = Auth { spsp: Auth::SPSP, secp: Auth::SECP_NVME, length: 0x204 };
    let send = auth.to_send(1);
    assert_eq!(send.as_bytes()[4], 0x05);
    assert_eq!(send.as_bytes()[40..48], [0, 0x01, 0x01, 0xE9, 0x04, 0x02, 0, 0]);
    assert_eq!(send.as_bytes()[39], 0x01);
    assert_eq!(Auth::from_sqe(&send), auth);
    let receive = auth.to_receive(1);
    assert_eq!((receive.as_bytes()[4], receive.as_bytes()[39]), (0x06, 0x5A));
}

#[test]
fn reservation_arguments() {
    let args = ReservationArgs { action: 2, iekey: true, rtype: 6, cptpl: 3 };
    assert_eq!(args.cdw10(), 0b11 << 30 | 6 << 8 | 1 << 3 | 2);
    let mut sqe = Sqe::new_zeroed();
    sqe.cdw10 = U32::new(args.cdw10());
    assert_eq!(ReservationArgs::from_sqe(&sqe), args);
}

#[test]
fn reservation_report() {
    let bytes: Vec<u8> = [
        &[0x07, 0, 0, 0, 3, 2, 0, 0, 0, 1][..], // GEN, RTYPE, REGCTL, reserved, PTPLS
        &[0; 54],
        &[0xFF, 0xFF, 1, 0, 0, 0, 0, 0], // CNTLID, RCSTS
        &[8, 7, 6, 5, 4, 3, 2, 1],       // RKEY
        &[0x11; 16],                     // HOSTID
        &[0; 32],
    ]
    .concat();
    let (head, rest) = ReportHeaderExtended::read_from_prefix(&bytes).unwrap();
    assert_eq!((head.header.generation.get(), head.header.rtype), (7, 3));
    assert_eq!((head.header.regctl.get(), head.header.ptpls), (2, 1));
    let one = RegistrantExtended::read_from_bytes(rest).unwrap();
    assert_eq!((one.cntlid.get(), one.rcsts, one.hostid), (0xFFFF, 1, [0x11; 16]));
    assert_eq!(one.rkey.get(), 0x0102_0304_0506_0708);
}

#[test]
fn events() {
    for (event, dw0) in [
        (AsyncEvent::NamespaceChanged, 0x0004_0002),
        (AsyncEvent::AnaChanged, 0x000C_0302),
        (AsyncEvent::DiscoveryChanged, 0x0070_F002),
        (AsyncEvent::ReservationNotice, 0x0080_0006),
    ] {
        assert_eq!(event.dw0(), dw0);
        assert_eq!(AsyncEvent::from_dw0(dw0), Some(event));
    }
    assert_eq!(AsyncEvent::from_dw0(0x0001_0000), None);
}

#[test]
fn properties() {
    let cap = Cap::new(128, 30, Cap::CQR | Cap::CSS_NVM);
    assert_eq!(cap.0, 0x0000_0020_1E01_007F);
    assert_eq!((cap.queue_entries(), cap.ready_halfseconds()), (128, 30));
    let cc = Cc(0x0046_4001);
    assert!(cc.enabled());
    assert_eq!((cc.iosqes(), cc.iocqes(), cc.shutdown()), (6, 4, Shutdown::Normal));
    assert_eq!(Cc::ENABLE_NVM.0, 0x0046_0001);
    assert_eq!(Cc::ENABLE_NVM.with_normal_shutdown(), cc);
    assert!(Csts(0b1001).ready() && Csts(0b1001).shutdown_complete() && !Csts(0b1001).fatal());
}

#[test]
fn text_is_padded_and_cut() {
    assert_eq!(&padded_ascii::<6>("ab"), b"ab    ");
    assert_eq!(&padded_ascii::<2>("abc"), b"ab");
    assert_eq!(&padded_ascii::<4>("a\n\u{e4}"), b"a???");
}

#[test]
fn names() {
    for good in [
        Nqn::DISCOVERY,
        "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555",
        "nqn.2026-12.d",
    ] {
        assert_eq!(Nqn::new(good).unwrap().as_str(), good);
    }
    for bad in [
        "",
        "nqn.",
        "nqn.2026-01.",
        "nqn.2026-13.io",
        "nqn.2026-00.io",
        "nqn.20x6-01.io.x",
        "NQN.2026-01.io.x",
        "nqn.2026-01.-io",
        "nqn.2026-01.io\n",
        "eui.0123456789abcdef",
    ] {
        assert!(Nqn::new(bad).is_err(), "{bad}");
    }
    let long = std::format!("nqn.2026-01.{}", "x".repeat(211));
    assert_eq!(Nqn::new(&long).unwrap().as_str().len(), 223);
    assert_eq!(Nqn::new(&(long + "x")), Err(BadNqn::Length { bytes: 224 }));
    assert_eq!(Nqn::from_field(&[b'n'; 256]), Err(BadNqn::NotText));
    let mut field = Nqn::new("nqn.2026-01.io.x").unwrap().to_field();
    field[14] = 0xFF;
    assert_eq!(Nqn::from_field(&field), Err(BadNqn::NotText));
}

proptest! {
    #[test]
    fn any_bytes_are_a_name_or_not(bytes in prop::collection::vec(any::<u8>(), 256)) {
        let mut field: [u8; 256] = bytes.try_into().unwrap();
        field[..12].copy_from_slice(b"nqn.2026-01.");
        if let Ok(name) = Nqn::from_field(&field) {
            prop_assert_eq!(Nqn::from_field(&name.to_field()), Ok(name));
        }
    }

    #[test]
    fn arguments_survive_the_wire(
        qid: u16, sqsize: u16, cattr: u8, kato: u32, offset: u32, value: u64, slba: u64,
    ) {
        let connect = Connect { recfmt: 0, qid, sqsize, cattr, kato };
        prop_assert_eq!(Connect::from_sqe(&connect.to_sqe(1)), connect);
        let set = PropertySet { offset, wide: Some(true), value };
        prop_assert_eq!(PropertySet::from_sqe(&set.to_sqe(1)), set);
        let mut sqe = Sqe::new(1, 1);
        sqe.set_slba(slba);
        prop_assert_eq!(sqe.slba(), slba);
    }
}
