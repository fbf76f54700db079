//! What goes to the socket and what comes from it, as the driver sees it.

use alloc::boxed::Box;

use crate::pdu::{FatalError, Framing, InlineBytes, digest};

/// What a connection wants of the bytes that arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Give them to `feed`.
    Bytes,
    /// Put up to `len` of them at `offset` of the buffer of `slot`, then give those to `placed`.
    Payload {
        /// Whose buffer.
        slot: u16,
        /// Where in it.
        offset: u32,
        /// How many at most.
        len: u32,
    },
    /// Close the socket once everything of `poll_transmit` is sent.
    Nothing,
}

/// One PDU to send: head, payload, tail, in this order and with nothing in between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Header, its digest and padding.
    pub head: InlineBytes<{ Framing::MAX_HEAD }>,
    /// What follows it.
    pub payload: Payload,
    /// Whether a digest of the payload follows that.
    pub(super) with_digest: bool,
}

/// Payload of a PDU to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// None.
    None,
    /// Bytes of the caller's buffer. A command may end while they are being sent; the buffer then
    /// stays with the send operation until that has ended too.
    Slot {
        /// Whose buffer.
        slot: u16,
        /// From where in it.
        offset: u32,
        /// How many.
        len: u32,
    },
    /// Bytes of a small structure.
    Owned(Box<[u8]>),
}

impl Transmit {
    pub(super) fn bare(head: InlineBytes<{ Framing::MAX_HEAD }>) -> Transmit {
        Transmit { head, payload: Payload::None, with_digest: false }
    }

    /// What follows the payload: its digest, or nothing. `payload` yields the payload in order, in
    /// as many parts as it lies in.
    pub fn tail<'a>(
        &self,
        payload: impl IntoIterator<Item = &'a [u8]>,
    ) -> InlineBytes<{ Framing::DIGEST }> {
        let mut tail = InlineBytes::EMPTY;
        if self.with_digest {
            tail.push(&payload.into_iter().fold(0, digest).to_le_bytes());
        }
        tail
    }
}

/// Why a connection is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// The socket was closed, or the owner gave the path up.
    #[error("the connection was closed")]
    Closed,
    /// The controller broke the protocol.
    #[error("the controller broke the protocol")]
    Protocol(#[from] FatalError),
    /// The controller says that we broke the protocol.
    #[error("the controller ended the connection with error {fes}, information {fei:#x}")]
    Terminated {
        /// Fatal error status.
        fes: u16,
        /// Fatal error information.
        fei: u32,
    },
    /// A command, or the connection itself, was not answered in time.
    #[error("the controller did not answer in time")]
    TimedOut,
}
