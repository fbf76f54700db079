//! What a status means to whoever asked: who must act.

use block::{Command, IoError, Lba, Span};

use super::transmit::Lost;
use crate::wire::Status;

/// The end of a block command on which the controller put `status`.
pub fn completion(command: Command, status: Status) -> block::Completion {
    if status.is_success() { Ok(()) } else { Err(fault(command, status)) }
}

/// The fault of a block command that was lost with its connection.
pub fn lost(why: Lost) -> IoError {
    match why {
        Lost::TimedOut => IoError::TimedOut,
        Lost::Closed | Lost::Protocol(_) | Lost::Terminated { .. } => IoError::Unreachable,
    }
}

fn fault(command: Command, status: Status) -> IoError {
    let span = command.span();
    match status.kind() {
        // The way there, or the state of it: another path, or the same one later, may do.
        path if path.is_path_error() => IoError::Unreachable,
        Status::NAMESPACE_NOT_READY
        | Status::TRANSIENT_TRANSPORT_ERROR
        | Status::DATA_TRANSFER_ERROR
        | Status::AUTHENTICATION_REQUIRED => IoError::Unreachable,
        Status::ABORT_REQUESTED
        | Status::ABORTED_SQ_DELETION
        | Status::ABORTED_FAILED_FUSED
        | Status::ABORTED_MISSING_FUSED
        | Status::COMMAND_INTERRUPTED => IoError::Aborted,
        // Withdrawn because somebody took the namespace over.
        Status::RESERVATION_CONFLICT | Status::ABORTED_PREEMPT => IoError::Fenced,
        Status::LBA_OUT_OF_RANGE => {
            span.map_or(IoError::Unsupported, |span| IoError::OutOfRange { span })
        }
        Status::CAPACITY_EXCEEDED => IoError::NoSpace,
        Status::NAMESPACE_WRITE_PROTECTED | Status::ACCESS_DENIED => IoError::ReadOnly,
        // The completion does not say where the difference is.
        Status::COMPARE_FAILURE => IoError::Miscompare { at: span.map_or(Lba(0), Span::start) },
        Status::INVALID_OPCODE
        | Status::INVALID_FIELD
        | Status::INVALID_NAMESPACE
        | Status::ATOMIC_WRITE_UNIT_EXCEEDED => IoError::Unsupported,
        // A wrong descriptor or a name used twice is a mistake of this initiator.
        Status::ID_CONFLICT
        | Status::SEQUENCE_ERROR
        | Status::INVALID_SGL_COUNT
        | Status::DATA_SGL_LENGTH_INVALID
        | Status::SGL_DESCRIPTOR_TYPE_INVALID
        | Status::SGL_OFFSET_INVALID => IoError::Internal,
        // Nor where the blocks are that nothing proves.
        Status::GUARD_CHECK => span.map_or(IoError::Aborted, |span| IoError::Unproven { span }),
        // Media errors, internal errors and whatever is unknown: this copy cannot be trusted with
        // these blocks, others may.
        _ => span.map_or(IoError::Aborted, |span| IoError::Medium { span }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::{Blocks, ErrorClass};

    #[test]
    fn each_status_names_who_must_act() {
        let span = Span::new(Lba(8), Blocks(4)).unwrap();
        let write = Command::Write { span, fua: false };
        for (status, class) in [
            (Status::RESERVATION_CONFLICT, ErrorClass::Owner),
            (Status::ABORTED_PREEMPT, ErrorClass::Owner),
            (Status::ANA_INACCESSIBLE, ErrorClass::Path),
            (Status::ANA_PERSISTENT_LOSS, ErrorClass::Path),
            (Status::ANA_TRANSITION, ErrorClass::Path),
            (Status::INTERNAL_PATH_ERROR, ErrorClass::Path),
            (Status::HOST_PATH_ERROR, ErrorClass::Path),
            (Status::TRANSIENT_TRANSPORT_ERROR, ErrorClass::Path),
            (Status::COMMAND_INTERRUPTED, ErrorClass::Path),
            (Status::WRITE_FAULT, ErrorClass::Medium),
            (Status::UNRECOVERED_READ, ErrorClass::Medium),
            (Status::GUARD_CHECK, ErrorClass::Medium),
            (Status::INTERNAL_ERROR, ErrorClass::Medium),
            (Status::CAPACITY_EXCEEDED, ErrorClass::Capacity),
            (Status::LBA_OUT_OF_RANGE, ErrorClass::Caller),
            (Status::NAMESPACE_WRITE_PROTECTED, ErrorClass::Caller),
            (Status::COMPARE_FAILURE, ErrorClass::Caller),
            (Status::INVALID_FIELD, ErrorClass::Caller),
            (Status::DATA_SGL_LENGTH_INVALID, ErrorClass::Bug),
        ] {
            for status in [status, status.do_not_retry(), status.retry_after(2)] {
                let fault = completion(write, status).unwrap_err();
                assert_eq!(fault.class(), class, "{status}");
            }
        }
        assert_eq!(completion(write, Status::SUCCESS), Ok(()));
        assert_eq!(completion(write, Status::WRITE_FAULT), Err(IoError::Medium { span }));
        let read = Command::Read { span };
        assert_eq!(completion(read, Status::GUARD_CHECK), Err(IoError::Unproven { span }));
        let compare = Command::Compare { span };
        let differs = completion(compare, Status::COMPARE_FAILURE);
        assert_eq!(differs, Err(IoError::Miscompare { at: Lba(8) }));
    }

    #[test]
    fn a_lost_command_leaves_doubt() {
        for why in [Lost::Closed, Lost::TimedOut, Lost::Terminated { fes: 1, fei: 0 }] {
            assert!(lost(why).may_be_applied());
            assert_eq!(lost(why).class(), ErrorClass::Path);
        }
    }

    #[test]
    fn a_flush_has_no_blocks_to_blame() {
        assert_eq!(completion(Command::Flush, Status::WRITE_FAULT), Err(IoError::Aborted));
        assert_eq!(completion(Command::Flush, Status::LBA_OUT_OF_RANGE), Err(IoError::Unsupported));
    }
}
