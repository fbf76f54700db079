//! How a command ends.

use crate::Span;

/// How a command ended: done, or a fault that says who must act.
pub type Completion = Result<(), IoError>;

/// Why a command was not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum IoError {
    /// The blocks do not exist on this device.
    #[error("{span} lie beyond the end of the device")]
    OutOfRange {
        /// What was asked for.
        span: Span,
    },
    /// The command makes no sense to this device.
    #[error("the device does not support this command")]
    Unsupported,
    /// The device does not take changes.
    #[error("the device is read-only")]
    ReadOnly,
    /// The data are encrypted, and nobody has given the key yet.
    #[error("the device is locked: its key was not given")]
    Locked,
    /// A compare found other bytes.
    #[error("{at} differs from the bytes given")]
    Miscompare {
        /// The first block that differs.
        at: crate::Lba,
    },
    /// Somebody with a newer epoch owns the device.
    #[error("a newer owner has taken the device")]
    Fenced,
    /// The caller or the owner withdrew the command; whether it took effect is unknown.
    #[error("the command was aborted")]
    Aborted,
    /// The pool has no space left for a first write.
    #[error("no space is left in the pool")]
    NoSpace,
    /// The medium could not read or write these blocks.
    #[error("the medium failed at {span}")]
    Medium {
        /// The smallest range known to hold the failure.
        span: Span,
    },
    /// The medium returned bytes that are not the ones written there.
    #[error("the checksum of {span} does not match")]
    Checksum {
        /// Exactly the blocks whose sums do not match.
        span: Span,
    },
    /// The blocks were being written when the pool went down, and no flush had covered them: they
    /// hold old or new bytes, and nothing proves which. They are read again when every copy was
    /// compared, or when they are written.
    #[error("{span} were being written when the pool went down and have no proven checksum")]
    Unproven {
        /// Exactly these blocks; from another engine, the blocks of the command.
        span: Span,
    },
    /// The way to the device is gone; whether the command took effect is unknown.
    #[error("the device cannot be reached")]
    Unreachable,
    /// No answer in time; whether the command took effect is unknown.
    #[error("the device did not answer in time")]
    TimedOut,
    /// A bounded queue was full; the command was not begun.
    #[error("the device is busy")]
    Busy,
    /// A bug of ours.
    #[error("internal error")]
    Internal,
}

/// Who must act on a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// The command itself: sending it again changes nothing.
    Caller,
    /// Whoever thought it owned the device: stop using it.
    Owner,
    /// The way there: try again, or by another way.
    Path,
    /// This copy of the data: read it elsewhere and repair it here.
    Medium,
    /// The operator: give the pool space.
    Capacity,
    /// Us: this is a bug to report.
    Bug,
}

impl IoError {
    /// Who must act.
    pub fn class(self) -> ErrorClass {
        match self {
            IoError::OutOfRange { .. }
            | IoError::Unsupported
            | IoError::ReadOnly
            | IoError::Miscompare { .. } => ErrorClass::Caller,
            IoError::Fenced => ErrorClass::Owner,
            // Who has the key may give it; until then another copy may serve.
            IoError::Locked
            | IoError::Aborted
            | IoError::Unreachable
            | IoError::TimedOut
            | IoError::Busy => ErrorClass::Path,
            IoError::Medium { .. } | IoError::Checksum { .. } | IoError::Unproven { .. } => {
                ErrorClass::Medium
            }
            IoError::NoSpace => ErrorClass::Capacity,
            IoError::Internal => ErrorClass::Bug,
        }
    }

    /// Whether the command may have taken effect although it failed.
    ///
    /// Until it is written again or read back, such a range holds the old or the new bytes.
    pub fn may_be_applied(self) -> bool {
        matches!(
            self,
            IoError::Aborted
                | IoError::Unreachable
                | IoError::TimedOut
                | IoError::Medium { .. }
                | IoError::Internal
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_command_leaves_no_doubt() {
        for fault in [
            IoError::Unsupported,
            IoError::ReadOnly,
            IoError::Locked,
            IoError::NoSpace,
            IoError::Busy,
        ] {
            assert!(!fault.may_be_applied(), "{fault}");
        }
    }

    #[test]
    fn an_unproven_block_is_the_copys_fault() {
        let fault = IoError::Unproven { span: Span::one(crate::Lba(7)).unwrap() };
        assert_eq!(fault.class(), ErrorClass::Medium);
        assert!(!fault.may_be_applied(), "only reads end so");
    }

    #[test]
    fn a_lost_answer_is_the_paths_fault_and_leaves_doubt() {
        for fault in [IoError::Unreachable, IoError::TimedOut, IoError::Aborted] {
            assert_eq!(fault.class(), ErrorClass::Path);
            assert!(fault.may_be_applied(), "{fault}");
        }
    }
}
