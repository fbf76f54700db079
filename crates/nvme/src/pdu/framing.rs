//! Making heads.

use zerocopy::IntoBytes;

use super::header::flags;
use super::{
    CapsuleCmd, CapsuleResp, CommonHeader, DataHeader, FatalError, PduType, R2t, Side, TermReq,
    digest,
};
use crate::wire::{Cqe, Sqe, U32};

/// A few bytes without an allocation.
#[derive(Clone)]
pub struct InlineBytes<const N: usize> {
    len: usize,
    bytes: [u8; N],
}

impl<const N: usize> InlineBytes<N> {
    /// No bytes.
    pub const EMPTY: InlineBytes<N> = InlineBytes { len: 0, bytes: [0; N] };

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds bytes; what does not fit is left out, which the callers here never let happen.
    pub fn push(&mut self, more: &[u8]) {
        let end = self.len.saturating_add(more.len());
        debug_assert!(end <= N, "{end} bytes do not fit in {N}");
        if let Some(room) = self.bytes.get_mut(self.len..end) {
            room.copy_from_slice(more);
            self.len = end;
        }
    }

    fn pad_to(&mut self, len: usize) {
        // The bytes past `len` have been zero since `EMPTY`.
        self.len = self.len.max(len).min(N);
    }
}

impl<const N: usize> core::fmt::Debug for InlineBytes<N> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        core::fmt::Debug::fmt(self.as_slice(), f)
    }
}

impl<const N: usize> PartialEq for InlineBytes<N> {
    fn eq(&self, other: &InlineBytes<N>) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl<const N: usize> Eq for InlineBytes<N> {}

/// Which digests a connection uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digests {
    /// After headers.
    pub header: bool,
    /// After payloads.
    pub data: bool,
}

impl Digests {
    /// From the field of ICReq or ICResp.
    pub fn from_field(dgst: u8) -> Digests {
        Digests { header: dgst & 1 != 0, data: dgst & 2 != 0 }
    }

    /// The field of ICReq or ICResp.
    pub fn to_field(self) -> u8 {
        u8::from(self.header) | u8::from(self.data) << 1
    }
}

/// Alignment of payloads: a number of dwords from 1 to 32, as CPDA and HPDA say it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Align(u8);

impl Align {
    /// From the field of ICReq or ICResp, which counts from zero up to 31.
    pub fn from_field(pda: u8) -> Option<Align> {
        (pda <= 31).then_some(Align(pda))
    }

    /// The field of ICReq or ICResp.
    pub fn to_field(self) -> u8 {
        self.0
    }

    /// In bytes.
    pub fn bytes(self) -> u8 {
        (self.0 + 1) * 4
    }

    /// The first aligned offset at or after `at`.
    fn up(self, at: u8) -> u8 {
        at.div_ceil(self.bytes()) * self.bytes()
    }
}

/// What both sides agreed on for the framing of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Framing {
    /// Digests, the same both ways.
    pub digests: Digests,
    /// Alignment of the payloads that this side sends.
    pub send_align: Align,
    /// Alignment of the payloads that this side receives.
    pub receive_align: Align,
}

impl Framing {
    /// Longest head: a termination request with the offending head.
    pub const MAX_HEAD: usize = 152;
    /// Bytes of a digest.
    pub const DIGEST: usize = 4;

    /// Head of a command capsule with `payload` bytes of data in it.
    pub fn capsule_cmd(self, sqe: &Sqe, payload: u32) -> InlineBytes<{ Self::MAX_HEAD }> {
        let ch = self.common(PduType::CapsuleCmd, payload, 0);
        self.seal(CapsuleCmd { ch, sqe: *sqe }.as_bytes(), ch)
    }

    /// A response capsule.
    pub fn capsule_resp(self, cqe: &Cqe) -> InlineBytes<{ Self::MAX_HEAD }> {
        let ch = self.common(PduType::CapsuleResp, 0, 0);
        self.seal(CapsuleResp { ch, cqe: *cqe }.as_bytes(), ch)
    }

    /// Head of data of a write: `tags` are the command's and the transfer's.
    pub fn h2c_data(
        self,
        tags: (u16, u16),
        datao: u32,
        datal: u32,
        last: bool,
    ) -> InlineBytes<{ Self::MAX_HEAD }> {
        let ch = self.common(PduType::H2cData, datal, if last { flags::LAST } else { 0 });
        self.seal(DataHeader::new(ch, tags, datao, datal).as_bytes(), ch)
    }

    /// Head of data of a read, with [`flags::LAST`] and [`flags::SUCCESS`] as given.
    pub fn c2h_data(
        self,
        cccid: u16,
        datao: u32,
        datal: u32,
        ends: u8,
    ) -> InlineBytes<{ Self::MAX_HEAD }> {
        let ch = self.common(PduType::C2hData, datal, ends & (flags::LAST | flags::SUCCESS));
        self.seal(DataHeader::new(ch, (cccid, 0), datao, datal).as_bytes(), ch)
    }

    /// Asks for data: `tags` are the command's and the transfer's.
    pub fn r2t(self, tags: (u16, u16), r2to: u32, r2tl: u32) -> InlineBytes<{ Self::MAX_HEAD }> {
        let ch = self.common(PduType::R2t, 0, 0);
        self.seal(R2t::new(ch, tags, r2to, r2tl).as_bytes(), ch)
    }

    /// Head of a PDU of the set-up phase, which never has digests.
    pub fn plain(header: &[u8]) -> InlineBytes<{ Self::MAX_HEAD }> {
        let mut head = InlineBytes::EMPTY;
        head.push(header);
        head
    }

    /// Says to the peer why this side ends the connection, with the head that was wrong.
    pub fn term_req(side: Side, error: FatalError, head: &[u8]) -> InlineBytes<{ Self::MAX_HEAD }> {
        let kind = match side {
            Side::Host => PduType::H2cTermReq,
            Side::Controller => PduType::C2hTermReq,
        };
        let (fes, fei) = error.fes_fei();
        let head = head.get(..head.len().min(128)).unwrap_or_default();
        let data = u8::try_from(head.len()).unwrap_or(0);
        let mut out = InlineBytes::EMPTY;
        out.push(TermReq::new(kind, fes.code(), fei, data).as_bytes());
        out.push(head);
        out
    }

    fn common(self, kind: PduType, payload: u32, ends: u8) -> CommonHeader {
        let hlen = kind.header_len();
        let with_digest = hlen + if self.digests.header { 4 } else { 0 };
        let mut flags = ends | if self.digests.header { flags::HDGST } else { 0 };
        let mut pdo = 0;
        let mut plen = u32::from(with_digest);
        if payload > 0 {
            pdo = self.send_align.up(with_digest);
            plen = u32::from(pdo).saturating_add(payload);
            if self.digests.data {
                flags |= flags::DDGST;
                plen = plen.saturating_add(4);
            }
        }
        CommonHeader { kind: kind.code(), flags, hlen, pdo, plen: U32::new(plen) }
    }

    fn seal(self, header: &[u8], ch: CommonHeader) -> InlineBytes<{ Self::MAX_HEAD }> {
        let mut head = InlineBytes::EMPTY;
        head.push(header);
        if self.digests.header {
            head.push(&digest(0, header).to_le_bytes());
        }
        head.pad_to(ch.pdo.into());
        head
    }
}
