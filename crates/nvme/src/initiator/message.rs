//! Messages to the owner of a replica: commands of our own making.
//!
//! They travel with the I/O commands and so under the same reservation: whoever may not write may
//! not tell either. What they mean is for the two engines to know.

use alloc::boxed::Box;

use block::IoError;

use super::transfer::Data;
use crate::pdu::ADMIN_CAPSULE_DATA;
use crate::wire::{IoOpcode, Sqe, U32, halves};

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// What it is about.
    pub topic: u32,
    /// Which part of it.
    pub argument: u64,
    /// Which of several things of one kind; 0 where there is one.
    pub object: u64,
    /// What is told or asked for.
    pub content: Content,
}

/// What a message brings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// These bytes; [`Message::MOST_BYTES`] at most.
    Tell(Box<[u8]>),
    /// Room for so many bytes of an answer.
    Ask {
        /// A longer answer is cut.
        room: u32,
    },
}

impl Message {
    /// Most bytes that can be told at once.
    pub const MOST_BYTES: u32 = ADMIN_CAPSULE_DATA;

    pub(super) fn encode(self, nsid: u32) -> Result<(Sqe, Data), IoError> {
        let (opcode, data) = match self.content {
            Content::Tell(bytes) => {
                u32::try_from(bytes.len())
                    .ok()
                    .filter(|len| *len <= Message::MOST_BYTES)
                    .ok_or(IoError::Unsupported)?;
                (IoOpcode::Tell, Data::OutOwned { bytes })
            }
            Content::Ask { room } => (IoOpcode::Ask, Data::InOwned { len: room }),
        };
        let mut sqe = Sqe::new(opcode.code(), 0);
        let [low, high] = halves(self.argument);
        sqe.nsid = U32::new(nsid);
        sqe.cdw10 = U32::new(self.topic);
        sqe.cdw12 = U32::new(low);
        sqe.cdw13 = U32::new(high);
        let [low, high] = halves(self.object);
        sqe.cdw14 = U32::new(low);
        sqe.cdw15 = U32::new(high);
        Ok((sqe, data))
    }
}
