//! What a connection and a subsystem tell the driver, and the driver them.

use alloc::vec::Vec;

use block::{Command, Span};

use super::subsystem::Reservations;
use crate::pdu::{Framing, InlineBytes, digest};

/// A connection, by the number that the driver gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u64);

/// A command at work on a connection; below the depth of its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u16);

impl Slot {
    /// As an index into what the driver keeps per slot.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// What a connection needs next from its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Bytes, through [`Connection::feed`](super::Connection::feed).
    Bytes,
    /// Payload of a write or compare: put up to `len` bytes at `offset` of the buffer of `slot`,
    /// then say so through [`Connection::placed`](super::Connection::placed).
    Payload {
        /// Whose buffer. At offset zero of a payload that came in the capsule it has none yet.
        slot: Slot,
        /// Where in the buffer.
        offset: u32,
        /// How many bytes the stream holds for it.
        len: u32,
        /// How large the buffer has to be.
        total: u32,
        /// Whether the command is carried out as soon as all of it is there. If not (it waits for
        /// the command that it is fused with), the host decides how long that takes.
        at_once: bool,
    },
    /// A decision on [`Connection::connect_request`](super::Connection::connect_request).
    Admission,
    /// Nothing: send what is left to send, then close.
    Nothing,
}

/// Work for the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Carry out a block command with the buffer of the slot, then complete it.
    ///
    /// A read needs a buffer of the driver's choice; it is sent if the connection says so later.
    Io {
        /// Whose command.
        slot: Slot,
        /// On which namespace.
        nsid: u32,
        /// What to do.
        command: Command,
    },
    /// Compare with the bytes of one slot and, only if they are equal, write those of another, so
    /// that no other command comes between. Then complete `write`, with a miscompare if so.
    CompareAndWrite {
        /// Has the bytes to compare with.
        compare: Slot,
        /// Has the bytes to write.
        write: Slot,
        /// On which namespace.
        nsid: u32,
        /// Which blocks.
        span: Span,
        /// Durable before it completes.
        fua: bool,
    },
    /// Have a buffer of `len` bytes for `slot`, then grant it: the host is then asked for data.
    Buffer {
        /// For which slot.
        slot: Slot,
        /// How large.
        len: u32,
    },
    /// Read or answer a message of another engine, then
    /// [answer](super::Connection::answer). Its bytes are in
    /// [`Connection::message_payload`](super::Connection::told).
    Message {
        /// Whose command.
        slot: Slot,
        /// On which namespace.
        nsid: u32,
        /// What it is about.
        message: Message,
    },
    /// The host or a new owner withdraws this command: complete it soon, done or aborted.
    Cancel {
        /// Which.
        slot: Slot,
    },
    /// Authentication needs random bytes.
    Entropy,
}

/// A message from the owner of a volume to that of a replica. What it means is theirs to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Whether bytes come with it, or are wanted back.
    pub way: Direction,
    /// What it is about.
    pub topic: u32,
    /// Which part of it.
    pub argument: u64,
    /// Which of several things of one kind.
    pub object: u64,
}

/// Which way the bytes of a message go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// They came with it.
    Push,
    /// They go back with the answer; so many at most.
    Pull {
        /// The rest is cut off.
        room: u32,
    },
}

/// Something a subsystem wants done outside of the call at hand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Make this durable, then call
    /// [`Subsystem::persisted`](super::Subsystem::persisted). Acknowledgements wait for it.
    Persist {
        /// Whose reservations.
        nsid: u32,
        /// To be given back.
        version: u64,
        /// What to write; to be forgotten if it does not persist through power loss.
        reservations: Reservations,
    },
    /// Find out whether the volume of a namespace is still owned here, asked from now on, then call
    /// [`Subsystem::ownership_proved`](super::Subsystem::ownership_proved). Answers wait for it.
    ProveOwnership {
        /// Whose volume.
        nsid: u32,
        /// To be given back.
        number: u64,
    },
    /// Send what the connection still has, then close it.
    Disconnect(ConnId),
    /// Poll this connection: there is something for it.
    Wake(ConnId),
}

/// Payload of a transmit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// None.
    None,
    /// The first `len` bytes of the buffer of `slot`.
    Slot {
        /// Whose buffer.
        slot: Slot,
        /// How many bytes.
        len: u32,
    },
    /// These bytes.
    Bytes(Vec<u8>),
}

/// Bytes to send: `head`, then the payload, then `tail`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Comes first.
    pub head: InlineBytes<{ Framing::MAX_HEAD }>,
    /// Comes next.
    pub payload: Payload,
    /// Comes last. Complete only after [`Transmit::seal`].
    tail: InlineBytes<{ Transmit::MAX_TAIL }>,
    /// This slot's command ends with this transmit and the slot may come again; a buffer that the
    /// payload names stays until it is sent.
    pub frees: Option<Slot>,
    /// Whether a data digest goes before the tail.
    digest: bool,
}

impl Transmit {
    /// A data digest and a response capsule with its digest.
    const MAX_TAIL: usize = 32;

    pub(super) fn head(head: InlineBytes<{ Framing::MAX_HEAD }>) -> Transmit {
        Transmit {
            head,
            payload: Payload::None,
            tail: InlineBytes::EMPTY,
            frees: None,
            digest: false,
        }
    }

    /// Adds a payload; `digest` says whether its digest follows.
    pub(super) fn with_payload(mut self, payload: Payload, digest: bool) -> Transmit {
        self.payload = payload;
        self.digest = digest;
        self
    }

    pub(super) fn with_tail(mut self, tail: &[u8]) -> Transmit {
        self.tail.push(tail);
        self
    }

    /// Computes the data digest over the payload, if there is to be one, and gives the tail.
    ///
    /// The payload is what the driver sends: the bytes in the slot's buffer, or those given here.
    pub fn seal(&self, payload: &[u8]) -> InlineBytes<{ Transmit::MAX_TAIL }> {
        if !self.digest {
            return self.tail.clone();
        }
        let mut tail = InlineBytes::EMPTY;
        tail.push(&digest(0, payload).to_le_bytes());
        tail.push(self.tail.as_slice());
        tail
    }
}
