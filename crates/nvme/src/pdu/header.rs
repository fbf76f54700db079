//! The headers, byte by byte.

use crate::wire::{Cqe, Sqe, U16, U32, layout};

/// Flags of the common header.
pub mod flags {
    /// A header digest follows the header.
    pub const HDGST: u8 = 1;
    /// A data digest follows the payload.
    pub const DDGST: u8 = 1 << 1;
    /// Last data of this request (data PDUs).
    pub const LAST: u8 = 1 << 2;
    /// The command succeeded and no response capsule follows (C2HData).
    pub const SUCCESS: u8 = 1 << 3;
}

/// Types of PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PduType {
    /// Initialize connection request, host to controller.
    IcReq,
    /// Its answer.
    IcResp,
    /// Termination by the host.
    H2cTermReq,
    /// Termination by the controller.
    C2hTermReq,
    /// A command.
    CapsuleCmd,
    /// A completion.
    CapsuleResp,
    /// Data of a write.
    H2cData,
    /// Data of a read.
    C2hData,
    /// Ready to transfer: the controller asks for data.
    R2t,
}

impl PduType {
    /// From its number.
    pub fn from_code(code: u8) -> Option<PduType> {
        Some(match code {
            0x00 => PduType::IcReq,
            0x01 => PduType::IcResp,
            0x02 => PduType::H2cTermReq,
            0x03 => PduType::C2hTermReq,
            0x04 => PduType::CapsuleCmd,
            0x05 => PduType::CapsuleResp,
            0x06 => PduType::H2cData,
            0x07 => PduType::C2hData,
            0x09 => PduType::R2t,
            _ => return None,
        })
    }

    /// Its number.
    pub fn code(self) -> u8 {
        match self {
            PduType::IcReq => 0x00,
            PduType::IcResp => 0x01,
            PduType::H2cTermReq => 0x02,
            PduType::C2hTermReq => 0x03,
            PduType::CapsuleCmd => 0x04,
            PduType::CapsuleResp => 0x05,
            PduType::H2cData => 0x06,
            PduType::C2hData => 0x07,
            PduType::R2t => 0x09,
        }
    }

    /// Length of its header without digest.
    pub fn header_len(self) -> u8 {
        match self {
            PduType::IcReq | PduType::IcResp => 128,
            PduType::CapsuleCmd => 72,
            _ => 24,
        }
    }

    /// Whether digests can be on: not while setting up or tearing down.
    pub fn has_digest(self) -> bool {
        !matches!(
            self,
            PduType::IcReq | PduType::IcResp | PduType::H2cTermReq | PduType::C2hTermReq
        )
    }

    /// Whether payload can follow the head.
    pub fn has_payload(self) -> bool {
        matches!(self, PduType::CapsuleCmd | PduType::H2cData | PduType::C2hData)
    }
}

layout! {
    /// First eight bytes of every PDU.
    pub struct CommonHeader: 8 {
        /// Type, see [`PduType`].
        0: pub kind: u8,
        /// See [`flags`].
        1: pub flags: u8,
        /// Length of the header without digest.
        2: pub hlen: u8,
        /// Offset of the payload.
        3: pub pdo: u8,
        /// Length of the whole PDU.
        4: pub plen: U32,
    }
}

layout! {
    /// Initialize connection request.
    pub struct IcReq: 128 {
        /// Common header.
        0: pub ch: CommonHeader,
        /// Format version, zero.
        8: pub pfv: U16,
        /// Host's data alignment, in dwords minus one.
        10: pub hpda: u8,
        /// Bit 0 header digest, bit 1 data digest.
        11: pub dgst: u8,
        /// R2Ts at once per command, minus one.
        12: pub maxr2t: U32,
        16: _reserved: [u8; 112],
    }
}

layout! {
    /// Initialize connection response.
    pub struct IcResp: 128 {
        /// Common header.
        0: pub ch: CommonHeader,
        /// Format version, zero.
        8: pub pfv: U16,
        /// Controller's data alignment, in dwords minus one.
        10: pub cpda: u8,
        /// Bit 0 header digest, bit 1 data digest.
        11: pub dgst: u8,
        /// Most data in one H2CData.
        12: pub maxh2cdata: U32,
        16: _reserved: [u8; 112],
    }
}

layout! {
    /// Termination request, either way; the head of the offending PDU follows.
    pub struct TermReq: 24 {
        /// Common header.
        0: pub ch: CommonHeader,
        /// Fatal error status.
        8: pub fes: U16,
        /// Fatal error information.
        10: pub fei: U32,
        14: _reserved: [u8; 10],
    }
}

layout! {
    /// Command capsule without its data.
    pub struct CapsuleCmd: 72 {
        /// Common header.
        0: pub ch: CommonHeader,
        /// The command.
        8: pub sqe: Sqe,
    }
}

layout! {
    /// Response capsule.
    pub struct CapsuleResp: 24 {
        /// Common header.
        0: pub ch: CommonHeader,
        /// The completion.
        8: pub cqe: Cqe,
    }
}

layout! {
    /// Head of H2CData and C2HData.
    pub struct DataHeader: 24 {
        /// Common header.
        0: pub ch: CommonHeader,
        /// The command.
        8: pub cccid: U16,
        /// Transfer tag of the R2T (H2CData only).
        10: pub ttag: U16,
        /// Offset of the payload in the command's data.
        12: pub datao: U32,
        /// Length of the payload.
        16: pub datal: U32,
        20: _reserved: [u8; 4],
    }
}

layout! {
    /// Ready to transfer.
    pub struct R2t: 24 {
        /// Common header.
        0: pub ch: CommonHeader,
        /// The command.
        8: pub cccid: U16,
        /// Tag that the data must carry.
        10: pub ttag: U16,
        /// Offset of the data asked for.
        12: pub r2to: U32,
        /// Length of the data asked for.
        16: pub r2tl: U32,
        20: _reserved: [u8; 4],
    }
}

impl IcReq {
    /// A request with these parameters.
    pub fn new(hpda: u8, dgst: u8, maxr2t: u32) -> IcReq {
        IcReq {
            ch: CommonHeader::plain(PduType::IcReq),
            pfv: U16::ZERO,
            hpda,
            dgst,
            maxr2t: U32::new(maxr2t),
            _reserved: [0; 112],
        }
    }
}

impl IcResp {
    /// An answer with these parameters.
    pub fn new(cpda: u8, dgst: u8, maxh2cdata: u32) -> IcResp {
        IcResp {
            ch: CommonHeader::plain(PduType::IcResp),
            pfv: U16::ZERO,
            cpda,
            dgst,
            maxh2cdata: U32::new(maxh2cdata),
            _reserved: [0; 112],
        }
    }
}

impl TermReq {
    /// A termination with `data` bytes of the offending head after it.
    pub(super) fn new(kind: PduType, fes: u16, fei: u32, data: u8) -> TermReq {
        let mut ch = CommonHeader::plain(kind);
        ch.plen = U32::new(u32::from(ch.hlen) + u32::from(data));
        TermReq { ch, fes: U16::new(fes), fei: U32::new(fei), _reserved: [0; 10] }
    }
}

impl CommonHeader {
    /// A header without digests and payload.
    pub(super) fn plain(kind: PduType) -> CommonHeader {
        let hlen = kind.header_len();
        CommonHeader { kind: kind.code(), flags: 0, hlen, pdo: 0, plen: U32::new(hlen.into()) }
    }
}

impl DataHeader {
    pub(super) fn new(ch: CommonHeader, tags: (u16, u16), datao: u32, datal: u32) -> DataHeader {
        DataHeader {
            ch,
            cccid: U16::new(tags.0),
            ttag: U16::new(tags.1),
            datao: U32::new(datao),
            datal: U32::new(datal),
            _reserved: [0; 4],
        }
    }

    /// Whether this is the last of its transfer.
    pub fn is_last(&self) -> bool {
        self.ch.flags & flags::LAST != 0
    }

    /// Whether the command succeeded and no response capsule follows.
    pub fn is_success(&self) -> bool {
        self.ch.flags & flags::SUCCESS != 0
    }
}

impl R2t {
    pub(super) fn new(ch: CommonHeader, tags: (u16, u16), r2to: u32, r2tl: u32) -> R2t {
        R2t {
            ch,
            cccid: U16::new(tags.0),
            ttag: U16::new(tags.1),
            r2to: U32::new(r2to),
            r2tl: U32::new(r2tl),
            _reserved: [0; 4],
        }
    }
}
