//! What the pool asks of the one who drives it, and how disk I/O is named.

use block::Completion;

use crate::entity::Id;
use crate::layout::{Disk, Place};
use crate::state::Refused;

/// The caller's name for a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandId(pub u64);

/// The pool's name for a disk I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IoId(pub u32);

/// Whose bytes an I/O moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffer {
    /// The buffer of a command, from this block of it on.
    Caller {
        /// Which command.
        token: CommandId,
        /// Blocks from the start of its buffer.
        block: u32,
    },
    /// The pool's own: of a write, [`crate::Pool::bytes`] has them; those of a read are handed over
    /// with its completion.
    Own,
}

/// What is to be done next. Effects may be carried out at once and in any order, except that a
/// flush must cover the writes whose completion was reported before it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Read blocks of a disk.
    Read {
        /// Name for the completion.
        io: IoId,
        /// From where.
        place: Place,
        /// How many blocks.
        blocks: u32,
        /// Where to.
        into: Buffer,
    },
    /// Write blocks to a disk.
    Write {
        /// Name for the completion.
        io: IoId,
        /// To where.
        place: Place,
        /// How many blocks.
        blocks: u32,
        /// The bytes.
        from: Buffer,
    },
    /// Make every completed write of a disk durable.
    Flush {
        /// Name for the completion.
        io: IoId,
        /// Which disk.
        disk: Disk,
    },
    /// Fill a part of a command's buffer with zeros. They were never encrypted.
    Zero {
        /// Which command.
        token: CommandId,
        /// First block of its buffer.
        block: u32,
        /// How many blocks.
        blocks: u32,
    },
    /// A block command has ended; its buffer is the caller's again.
    Done {
        /// Which one.
        token: CommandId,
        /// How.
        result: Completion,
    },
    /// A change has ended; if well, it is durable.
    Changed {
        /// Which one.
        token: CommandId,
        /// How.
        result: Result<(), Refused>,
    },
    /// A question has ended; [`crate::Pool::answer`] has the answer.
    Answered {
        /// Which one.
        token: CommandId,
    },
    /// Unproven blocks were believed, because nobody else has a copy (see
    /// [`crate::Pool::set_sole`]).
    Believed {
        /// Whose.
        id: Id,
        /// In the blocks of this read.
        span: block::Span,
        /// How many.
        blocks: block::Blocks,
    },
}

/// A disk failed an I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskFailed;
