//! What can be asked of a device.

use crate::{Geometry, IoError, Span};

/// One block command. The bytes of a read, write or compare travel beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// Fill the caller's buffer from the device.
    Read {
        /// Which blocks.
        span: Span,
    },
    /// Put the caller's bytes on the device.
    Write {
        /// Which blocks.
        span: Span,
        /// Force unit access: durable before it completes, like a flush of just these blocks.
        fua: bool,
    },
    /// Make every write that completed before this command was issued durable.
    Flush,
    /// The caller no longer needs these blocks; they read as zeros afterwards.
    Discard {
        /// Which blocks.
        span: Span,
    },
    /// These blocks read as zeros afterwards.
    WriteZeroes {
        /// Which blocks.
        span: Span,
        /// Durable before it completes.
        fua: bool,
        /// Space may be given back (NVMe DEAC). Without it the blocks stay allocated.
        deallocate: bool,
    },
    /// Succeed only if the device holds exactly the caller's bytes.
    Compare {
        /// Which blocks.
        span: Span,
    },
}

/// The kind of a command without its arguments, for statistics and rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the same names as the commands")]
pub enum CommandKind {
    Read,
    Write,
    Flush,
    Discard,
    WriteZeroes,
    Compare,
}

impl Command {
    /// The blocks it touches; a flush touches none in particular.
    pub fn span(self) -> Option<Span> {
        match self {
            Command::Read { span }
            | Command::Write { span, .. }
            | Command::Discard { span }
            | Command::WriteZeroes { span, .. }
            | Command::Compare { span } => Some(span),
            Command::Flush => None,
        }
    }

    /// Its kind.
    pub fn kind(self) -> CommandKind {
        match self {
            Command::Read { .. } => CommandKind::Read,
            Command::Write { .. } => CommandKind::Write,
            Command::Flush => CommandKind::Flush,
            Command::Discard { .. } => CommandKind::Discard,
            Command::WriteZeroes { .. } => CommandKind::WriteZeroes,
            Command::Compare { .. } => CommandKind::Compare,
        }
    }

    /// Whether it changes what later reads return.
    pub fn is_mutation(self) -> bool {
        matches!(self.kind(), CommandKind::Write | CommandKind::Discard | CommandKind::WriteZeroes)
    }

    /// Whether its effect must be durable before it completes.
    pub fn is_durable(self) -> bool {
        matches!(
            self,
            Command::Flush
                | Command::Write { fua: true, .. }
                | Command::WriteZeroes { fua: true, .. }
        )
    }

    /// Refuses what this device can never do, before anything is touched.
    pub fn check(self, device: Geometry) -> Result<(), IoError> {
        match self.span() {
            Some(span) if !device.contains(span) => Err(IoError::OutOfRange { span }),
            _ => Ok(()),
        }
    }

    /// Whether the two may run at once: they share no block, or neither changes one.
    ///
    /// A flush covers only what completed before it, so it conflicts with nothing.
    pub fn conflicts(self, other: Command) -> bool {
        match (self.span(), other.span()) {
            (Some(a), Some(b)) => a.overlaps(b) && (self.is_mutation() || other.is_mutation()),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BlockSize, Blocks, Lba};

    fn span(start: u64, len: u64) -> Span {
        Span::new(Lba(start), Blocks(len)).unwrap()
    }

    #[test]
    fn out_of_range_is_the_callers_fault() {
        let device = Geometry::new(BlockSize::B4096, Blocks(8)).unwrap();
        assert_eq!(Command::Read { span: span(0, 8) }.check(device), Ok(()));
        assert_eq!(Command::Flush.check(device), Ok(()));
        let beyond = span(7, 2);
        for command in [
            Command::Read { span: beyond },
            Command::Write { span: beyond, fua: false },
            Command::Discard { span: beyond },
            Command::WriteZeroes { span: beyond, fua: false, deallocate: true },
            Command::Compare { span: beyond },
        ] {
            assert_eq!(command.check(device), Err(IoError::OutOfRange { span: beyond }));
        }
    }

    #[test]
    fn only_shared_blocks_that_change_conflict() {
        let read = Command::Read { span: span(0, 4) };
        let write = Command::Write { span: span(3, 4), fua: false };
        let apart = Command::Discard { span: span(8, 1) };
        assert!(read.conflicts(write) && write.conflicts(read));
        assert!(!read.conflicts(read));
        assert!(write.conflicts(write));
        assert!(!write.conflicts(apart));
        assert!(!Command::Flush.conflicts(write));
    }
}
