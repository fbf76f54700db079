//! Taking the byte stream apart.

use zerocopy::FromBytes;

use super::header::flags;
use super::{
    CapsuleCmd, CapsuleResp, CommonHeader, DataHeader, FatalError, Framing, IcReq, IcResp, PduType,
    R2t, TermReq, digest,
};
use crate::wire::{Cqe, Sqe};

/// Longest head that can come in: a command, its digest, and padding up to 128 bytes more.
const MAX_IN: usize = 72 + 4 + 128;

/// Which side of a connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The initiator.
    Host,
    /// The target.
    Controller,
}

/// A checked head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pdu {
    /// Set-up, to the controller.
    IcReq(IcReq),
    /// Set-up, to the host.
    IcResp(IcResp),
    /// The peer ends the connection; nothing after this is worth reading.
    TermReq(TermReq),
    /// A command with so many payload bytes in the capsule.
    Command {
        /// The command.
        sqe: Sqe,
        /// Payload bytes that follow.
        payload: u32,
    },
    /// A completion.
    Response(Cqe),
    /// Data of a write; `datal` payload bytes follow.
    H2cData(DataHeader),
    /// Data of a read; `datal` payload bytes follow.
    C2hData(DataHeader),
    /// The controller asks for data.
    R2t(R2t),
}

/// What [`Reader::feed`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// A head. If it has payload, give it to [`Reader::payload`] next.
    Head(Pdu),
    /// The payload is complete, and this is what its digest says.
    Payload {
        /// Whether the digest matches.
        intact: bool,
    },
}

/// What the stream holds next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// A head or a payload digest: give bytes to [`Reader::feed`].
    Head,
    /// So many bytes of payload: give them to [`Reader::payload`].
    Payload(u32),
}

/// How far a payload is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// More payload is to come.
    Partial,
    /// All payload is there, its digest comes next through [`Reader::feed`].
    Digest,
    /// The payload is complete; it had no digest.
    Complete,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Head,
    Payload { left: u32, crc: u32 },
    Digest { crc: u32 },
}

/// Splits a stream into heads and payloads, however it is cut into reads.
///
/// After an error the reader must not be fed again.
#[derive(Clone, Debug)]
pub struct Reader {
    side: Side,
    /// `None` until the set-up PDUs have been exchanged.
    framing: Option<Framing>,
    capsule_limit: u32,
    state: State,
    /// The part of a head or digest that came with an earlier read.
    kept: [u8; MAX_IN],
    have: usize,
}

impl Reader {
    /// A reader for a new connection: only the set-up PDU may come.
    pub fn new(side: Side) -> Reader {
        Reader {
            side,
            framing: None,
            capsule_limit: 0,
            state: State::Head,
            kept: [0; MAX_IN],
            have: 0,
        }
    }

    /// The set-up PDUs were exchanged; capsules may carry up to `capsule_limit` bytes of data.
    pub fn establish(&mut self, framing: Framing, capsule_limit: u32) {
        self.framing = Some(framing);
        self.capsule_limit = capsule_limit;
    }

    /// Changes how much data a capsule may carry.
    pub fn set_capsule_limit(&mut self, capsule_limit: u32) {
        self.capsule_limit = capsule_limit;
    }

    /// What comes next.
    pub fn expect(&self) -> Expect {
        match self.state {
            State::Payload { left, .. } => Expect::Payload(left),
            State::Head | State::Digest { .. } => Expect::Head,
        }
    }

    /// The bytes of the head that was being read, for a termination request.
    pub fn offending(&self) -> &[u8] {
        self.kept.get(..self.have).unwrap_or_default()
    }

    /// Takes bytes of a head or of a digest: returns how many, and what they completed.
    ///
    /// Takes nothing while payload is expected, and never a byte past the head.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(usize, Option<Received>), FatalError> {
        match self.state {
            State::Payload { .. } => Ok((0, None)),
            State::Digest { crc } => Ok(self.feed_digest(bytes, crc)),
            State::Head => self.feed_head(bytes),
        }
    }

    /// Counts payload bytes that the caller has put where they belong.
    ///
    /// At most as many as [`Reader::expect`] said; more are not counted.
    pub fn payload(&mut self, bytes: &[u8]) -> Progress {
        let State::Payload { left, crc } = self.state else { return Progress::Complete };
        let with_digest = self.framing.is_some_and(|framing| framing.digests.data);
        let count = u32::try_from(bytes.len()).unwrap_or(u32::MAX).min(left);
        let crc = if with_digest { digest(crc, bytes) } else { 0 };
        let left = left - count;
        let (state, progress) = match (left, with_digest) {
            (0, false) => (State::Head, Progress::Complete),
            (0, true) => (State::Digest { crc }, Progress::Digest),
            _ => (State::Payload { left, crc }, Progress::Partial),
        };
        self.state = state;
        progress
    }

    fn feed_digest(&mut self, bytes: &[u8], crc: u32) -> (usize, Option<Received>) {
        let taken = self.keep(bytes, 4);
        let Some(&digest) = self.kept.first_chunk::<4>().filter(|_| self.have == 4) else {
            return (taken, None);
        };
        self.have = 0;
        self.state = State::Head;
        (taken, Some(Received::Payload { intact: u32::from_le_bytes(digest) == crc }))
    }

    fn feed_head(&mut self, bytes: &[u8]) -> Result<(usize, Option<Received>), FatalError> {
        // The usual case first: all of the head is in this read and nothing is kept.
        if self.have == 0
            && let Some((common, len)) = self.common(bytes)?
            && let Some(head) = bytes.get(..len)
        {
            return match self.finish(common, head) {
                Ok(pdu) => Ok((len, Some(Received::Head(pdu)))),
                Err(error) => {
                    self.keep(head, len);
                    Err(error)
                }
            };
        }
        let mut taken = self.keep(bytes, size_of::<CommonHeader>());
        let kept = self.kept;
        let Some((common, len)) = self.common(kept.get(..self.have).unwrap_or_default())? else {
            return Ok((taken, None));
        };
        taken += self.keep(bytes.get(taken..).unwrap_or_default(), len);
        if self.have < len {
            return Ok((taken, None));
        }
        let kept = self.kept;
        let pdu = self.finish(common, kept.get(..len).unwrap_or_default())?;
        self.have = 0;
        Ok((taken, Some(Received::Head(pdu))))
    }

    /// Keeps bytes until there are `want`; returns how many it took.
    fn keep(&mut self, bytes: &[u8], want: usize) -> usize {
        let count = want.min(MAX_IN).saturating_sub(self.have).min(bytes.len());
        let end = self.have + count;
        if let (Some(to), Some(from)) = (self.kept.get_mut(self.have..end), bytes.get(..count)) {
            to.copy_from_slice(from);
        }
        self.have = end;
        count
    }

    /// Checks the common header, if it is there, and says how long the head is.
    fn common(&mut self, bytes: &[u8]) -> Result<Option<(Common, usize)>, FatalError> {
        let Ok((header, _)) = CommonHeader::ref_from_prefix(bytes) else { return Ok(None) };
        match Common::check(*header, self) {
            Ok(common) => Ok(Some((common, common.head_len))),
            Err(error) => {
                if self.have == 0 {
                    let header = *header;
                    self.keep(zerocopy::IntoBytes::as_bytes(&header), size_of::<CommonHeader>());
                }
                Err(error)
            }
        }
    }

    /// Checks a complete head and moves on to what follows it.
    fn finish(&mut self, common: Common, head: &[u8]) -> Result<Pdu, FatalError> {
        let Common { kind, payload, .. } = common;
        if kind.has_digest() && self.framing.is_some_and(|framing| framing.digests.header) {
            check_digest(kind, head)?;
        }
        let pdu = read(kind, payload, head).ok_or(FatalError::BadField { kind, at: 2 })?;
        if let Pdu::H2cData(data) | Pdu::C2hData(data) = &pdu
            && data.datal.get() != payload
        {
            return Err(FatalError::BadField { kind, at: 16 });
        }
        self.state =
            if payload > 0 { State::Payload { left: payload, crc: 0 } } else { State::Head };
        Ok(pdu)
    }
}

/// A checked common header.
#[derive(Clone, Copy, Debug)]
struct Common {
    kind: PduType,
    payload: u32,
    head_len: usize,
}

impl Common {
    fn check(header: CommonHeader, reader: &Reader) -> Result<Common, FatalError> {
        let kind = PduType::from_code(header.kind)
            .filter(|kind| is_for(*kind, reader.side))
            .ok_or(FatalError::UnknownKind { kind: header.kind })?;
        let is_setup = matches!(kind, PduType::IcReq | PduType::IcResp);
        let is_end = matches!(kind, PduType::H2cTermReq | PduType::C2hTermReq);
        if !is_end && is_setup != reader.framing.is_none() {
            return Err(FatalError::OutOfSequence { kind });
        }
        let bad = |at| Err(FatalError::BadField { kind, at });
        if header.hlen != kind.header_len() {
            return bad(2);
        }
        let framing = reader.framing.unwrap_or_default();
        let header_digest = kind.has_digest() && framing.digests.header;
        if kind.has_digest() && (header.flags & flags::HDGST != 0) != header_digest {
            return bad(1);
        }
        let plain_len = header.hlen + if header_digest { 4 } else { 0 };
        let plen = header.plen.get();
        if is_end {
            // Whatever follows is for people to read; the connection is over.
            return Ok(Common { kind, payload: 0, head_len: usize::from(plain_len) });
        }
        let is_data = matches!(kind, PduType::H2cData | PduType::C2hData);
        if plen < u32::from(plain_len) || (plen > u32::from(plain_len) && !kind.has_payload()) {
            return bad(4);
        }
        if plen == u32::from(plain_len) {
            // A data PDU without data is no data PDU.
            let head_len = usize::from(plain_len);
            return if is_data { bad(4) } else { Ok(Common { kind, payload: 0, head_len }) };
        }
        Common::check_payload(header, reader, kind, plain_len)
    }

    fn check_payload(
        header: CommonHeader,
        reader: &Reader,
        kind: PduType,
        plain_len: u8,
    ) -> Result<Common, FatalError> {
        let bad = |at| Err(FatalError::BadField { kind, at });
        let framing = reader.framing.unwrap_or_default();
        let pdo = header.pdo;
        let aligned = pdo.is_multiple_of(framing.receive_align.bytes());
        if pdo < plain_len || pdo - plain_len > 128 || !aligned {
            return bad(3);
        }
        if (header.flags & flags::DDGST != 0) != framing.digests.data {
            return bad(1);
        }
        let around = u32::from(pdo) + if framing.digests.data { 4 } else { 0 };
        let payload = match header.plen.get().checked_sub(around) {
            None | Some(0) => return bad(4),
            Some(payload) => payload,
        };
        if kind == PduType::CapsuleCmd && payload > reader.capsule_limit {
            return bad(4);
        }
        Ok(Common { kind, payload, head_len: usize::from(pdo) })
    }
}

fn is_for(kind: PduType, side: Side) -> bool {
    match side {
        Side::Controller => {
            matches!(
                kind,
                PduType::IcReq | PduType::H2cTermReq | PduType::CapsuleCmd | PduType::H2cData
            )
        }
        Side::Host => matches!(
            kind,
            PduType::IcResp
                | PduType::C2hTermReq
                | PduType::CapsuleResp
                | PduType::C2hData
                | PduType::R2t
        ),
    }
}

fn check_digest(kind: PduType, head: &[u8]) -> Result<(), FatalError> {
    let bad = FatalError::BadField { kind, at: 2 };
    let (header, rest) = head.split_at_checked(kind.header_len().into()).ok_or(bad)?;
    let received = u32::from_le_bytes(*rest.first_chunk::<4>().ok_or(bad)?);
    let computed = digest(0, header);
    if received == computed {
        Ok(())
    } else {
        Err(FatalError::HeaderDigest { kind, received, computed })
    }
}

fn read(kind: PduType, payload: u32, head: &[u8]) -> Option<Pdu> {
    fn prefix<T: FromBytes>(head: &[u8]) -> Option<T> {
        T::read_from_prefix(head).ok().map(|(value, _)| value)
    }
    Some(match kind {
        PduType::IcReq => Pdu::IcReq(prefix(head)?),
        PduType::IcResp => Pdu::IcResp(prefix(head)?),
        PduType::H2cTermReq | PduType::C2hTermReq => Pdu::TermReq(prefix(head)?),
        PduType::CapsuleCmd => Pdu::Command { sqe: prefix::<CapsuleCmd>(head)?.sqe, payload },
        PduType::CapsuleResp => Pdu::Response(prefix::<CapsuleResp>(head)?.cqe),
        PduType::H2cData => Pdu::H2cData(prefix(head)?),
        PduType::C2hData => Pdu::C2hData(prefix(head)?),
        PduType::R2t => Pdu::R2t(prefix(head)?),
    })
}
