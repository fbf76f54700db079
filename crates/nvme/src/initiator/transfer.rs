//! A command at work: its data and how far they have moved.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::transmit::{Lost, Payload};
use crate::time::Instant;
use crate::wire::{Sqe, Status};

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Answered { status: Status, result: u64, bytes: Vec<u8> },
    Lost(Lost),
}

/// Data of a command.
#[derive(Debug)]
pub(super) enum Data {
    None,
    /// To the controller, from the caller's buffer.
    Out {
        len: u32,
    },
    /// To the controller, from here.
    OutOwned {
        bytes: Box<[u8]>,
    },
    /// From the controller, into the caller's buffer.
    In {
        len: u32,
    },
    /// From the controller, to here.
    InOwned {
        len: u32,
    },
}

/// A command at work.
pub(super) struct Transfer {
    pub(super) sqe: Sqe,
    pub(super) data: Data,
    pub(super) deadline: Option<Instant>,
    /// Bytes that travel in the capsule.
    pub(super) in_capsule: u32,
    pub(super) sent: bool,
    /// Bytes asked for by R2Ts, all before this offset.
    pub(super) granted: u32,
    /// Bytes that have moved.
    pub(super) moved: u32,
    pub(super) r2ts: u8,
    pub(super) inbox: Vec<u8>,
    pub(super) damaged: bool,
}

impl Transfer {
    pub(super) fn new(
        sqe: Sqe,
        data: Data,
        in_capsule: u32,
        deadline: Option<Instant>,
    ) -> Transfer {
        Transfer {
            sqe,
            data,
            deadline,
            in_capsule,
            sent: false,
            granted: 0,
            moved: 0,
            r2ts: 0,
            inbox: Vec::new(),
            damaged: false,
        }
    }

    /// Whether enough data have moved for the command to have succeeded. Structures may be shorter
    /// than the room for them.
    pub(super) fn is_settled(&self) -> bool {
        matches!(self.data, Data::InOwned { .. }) || self.moved == self.data.len()
    }
}

impl Data {
    /// Bytes in either direction.
    pub(super) fn len(&self) -> u32 {
        match self {
            Data::None => 0,
            Data::In { len } | Data::InOwned { len } => *len,
            Data::Out { .. } | Data::OutOwned { .. } => self.out_len(),
        }
    }

    pub(super) fn out_len(&self) -> u32 {
        match self {
            Data::Out { len } => *len,
            // Owned structures have a few kilobytes.
            Data::OutOwned { bytes } => u32::try_from(bytes.len()).unwrap_or(u32::MAX),
            Data::None | Data::In { .. } | Data::InOwned { .. } => 0,
        }
    }

    pub(super) fn is_in(&self) -> bool {
        matches!(self, Data::In { .. } | Data::InOwned { .. })
    }

    pub(super) fn part(&self, slot: u16, offset: u32, len: u32) -> Payload {
        match self {
            _ if len == 0 => Payload::None,
            Data::OutOwned { bytes } => {
                let at = usize::try_from(offset).unwrap_or(usize::MAX);
                let len = usize::try_from(len).unwrap_or(usize::MAX);
                Payload::Owned(bytes.iter().copied().skip(at).take(len).collect())
            }
            _ => Payload::Slot { slot, offset, len },
        }
    }
}
