//! A controller for tests that does exactly what a test tells it to.

use alloc::vec::Vec;
use core::time::Duration;

use zerocopy::IntoBytes;

use super::transmit::{Need, Payload, Transmit};
use crate::pdu::{
    Align, Digests, Expect, Framing, IcResp, InlineBytes, Pdu, Reader, Received, Side, digest,
};
use crate::time::Instant;

/// A moment.
pub(super) const NOW: Instant = Instant::since_start(Duration::from_secs(1000));

/// The controller's end of one connection.
pub(super) struct MockController {
    reader: Reader,
    pub(super) framing: Framing,
    /// What arrived: heads, each with its payload.
    pub(super) seen: Vec<(Pdu, Vec<u8>)>,
    pub(super) intact: bool,
}

impl MockController {
    pub(super) fn new() -> MockController {
        let reader = Reader::new(Side::Controller);
        MockController { reader, framing: Framing::default(), seen: Vec::new(), intact: true }
    }

    /// Answers the set-up.
    pub(super) fn accept(&mut self, digests: Digests, max_h2c: u32) -> Vec<u8> {
        self.framing = Framing { digests, ..Framing::default() };
        self.reader.establish(self.framing, 8192);
        IcResp::new(Align::default().to_field(), digests.to_field(), max_h2c).as_bytes().to_vec()
    }

    /// Takes what the host sent; `memory` yields the bytes of its slots.
    pub(super) fn take(&mut self, transmit: &Transmit, memory: &dyn Fn(u16) -> Vec<u8>) {
        let bytes = assemble(transmit, memory);
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let used = match self.reader.expect() {
                Expect::Payload(len) => {
                    let len = usize::try_from(len).unwrap().min(rest.len());
                    self.reader.payload(&rest[..len]);
                    self.seen.last_mut().unwrap().1.extend_from_slice(&rest[..len]);
                    len
                }
                Expect::Head => {
                    let (used, received) = self.reader.feed(rest).unwrap();
                    match received {
                        // What follows an end is for people to read.
                        Some(Received::Head(Pdu::TermReq(_))) => return,
                        Some(Received::Head(pdu)) => self.seen.push((pdu, Vec::new())),
                        Some(Received::Payload { intact }) => self.intact &= intact,
                        None => {}
                    }
                    used
                }
            };
            rest = &rest[used..];
        }
    }

    /// Data for the host, with the digest if there is one.
    pub(super) fn data(&self, cid: u16, at: u32, bytes: &[u8], ends: u8) -> Vec<u8> {
        let len = u32::try_from(bytes.len()).unwrap();
        let mut out = self.framing.c2h_data(cid, at, len, ends).as_slice().to_vec();
        out.extend_from_slice(bytes);
        if self.framing.digests.data {
            out.extend_from_slice(&digest(0, bytes).to_le_bytes());
        }
        out
    }
}

/// The bytes of a PDU on the wire.
pub(super) fn assemble(transmit: &Transmit, memory: &dyn Fn(u16) -> Vec<u8>) -> Vec<u8> {
    let payload = match &transmit.payload {
        Payload::None => Vec::new(),
        Payload::Owned(bytes) => bytes.to_vec(),
        Payload::Slot { slot, offset, len } => {
            let at = usize::try_from(*offset).unwrap();
            memory(*slot)[at..at + usize::try_from(*len).unwrap()].to_vec()
        }
    };
    let tail: InlineBytes<4> = transmit.tail([payload.as_slice()]);
    [transmit.head.as_slice(), &payload, tail.as_slice()].concat()
}

/// Gives bytes to a connection, putting payload into `buffer`; `cut` says how many at a time.
pub(super) fn give(
    mut bytes: &[u8],
    buffer: &mut [u8],
    mut cut: impl FnMut() -> usize,
    mut connection: impl FnMut(Give<'_>) -> (Need, usize),
) {
    while !bytes.is_empty() {
        let part = &bytes[..cut().clamp(1, bytes.len())];
        let (need, _) = connection(Give::Ask);
        let used = match need {
            Need::Nothing => return,
            Need::Bytes => connection(Give::Feed(part)).1,
            Need::Payload { offset, len, .. } => {
                let part = &part[..part.len().min(usize::try_from(len).unwrap())];
                let at = usize::try_from(offset).unwrap();
                buffer[at..at + part.len()].copy_from_slice(part);
                connection(Give::Placed(part));
                part.len()
            }
        };
        bytes = &bytes[used..];
    }
}

/// One call of [`give`] to its connection.
pub(super) enum Give<'a> {
    Ask,
    Feed(&'a [u8]),
    Placed(&'a [u8]),
}
