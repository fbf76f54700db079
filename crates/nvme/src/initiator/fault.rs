//! What a status means to whoever asked: who must act.

use block::{Command, Fault, Lba, Span};

use super::transmit::Lost;
use crate::wire::Status;

/// The end of a block command on which the controller put `status`.
pub fn completion(command: Command, status: Status) -> block::Completion {
    if status.is_success() { Ok(()) } else { Err(fault(command, status)) }
}

/// The fault of a block command that was lost with its connection.
pub fn lost(why: Lost) -> Fault {
    match why {
        Lost::TimedOut => Fault::TimedOut,
        Lost::Closed | Lost::Protocol(_) | Lost::Terminated { .. } => Fault::Unreachable,
    }
}

fn fault(command: Command, status: Status) -> Fault {
    let span = command.span();
    match status.kind() {
        // The way there, or the state of it: another path, or the same one later, may do.
        path if path.is_path_error() => Fault::Unreachable,
        Status::NAMESPACE_NOT_READY
        | Status::TRANSIENT_TRANSPORT_ERROR
        | Status::DATA_TRANSFER_ERROR
        | Status::AUTHENTICATION_REQUIRED => Fault::Unreachable,
        Status::ABORT_REQUESTED
        | Status::ABORTED_SQ_DELETION
        | Status::ABORTED_FAILED_FUSED
        | Status::ABORTED_MISSING_FUSED
        | Status::COMMAND_INTERRUPTED => Fault::Aborted,
        // Withdrawn because somebody took the namespace over.
        Status::RESERVATION_CONFLICT | Status::ABORTED_PREEMPT => Fault::Fenced,
        Status::LBA_OUT_OF_RANGE => {
            span.map_or(Fault::Unsupported, |span| Fault::OutOfRange { span })
        }
        Status::CAPACITY_EXCEEDED => Fault::NoSpace,
        Status::NAMESPACE_WRITE_PROTECTED | Status::ACCESS_DENIED => Fault::ReadOnly,
        // The completion does not say where the difference is.
        Status::COMPARE_FAILURE => Fault::Miscompare { at: span.map_or(Lba(0), Span::start) },
        Status::INVALID_OPCODE
        | Status::INVALID_FIELD
        | Status::INVALID_NAMESPACE
        | Status::ATOMIC_WRITE_UNIT_EXCEEDED => Fault::Unsupported,
        // A wrong descriptor or a name used twice is a mistake of this initiator.
        Status::ID_CONFLICT
        | Status::SEQUENCE_ERROR
        | Status::INVALID_SGL_COUNT
        | Status::DATA_SGL_LENGTH_INVALID
        | Status::SGL_DESCRIPTOR_TYPE_INVALID
        | Status::SGL_OFFSET_INVALID => Fault::Internal,
        // Nor where the blocks are that nothing proves.
        Status::GUARD_CHECK => span.map_or(Fault::Aborted, |span| Fault::Unproven { span }),
        // Media errors, internal errors and whatever is unknown: this copy cannot be trusted with
        // these blocks, others may.
        _ => span.map_or(Fault::Aborted, |span| Fault::Medium { span }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::{Blame, Blocks};

    #[test]
    fn each_status_names_who_must_act() {
        let span = Span::new(Lba(8), Blocks(4)).unwrap();
        let write = Command::Write { span, fua: false };
        for (status, blame) in [
            (Status::RESERVATION_CONFLICT, Blame::Owner),
            (Status::ABORTED_PREEMPT, Blame::Owner),
            (Status::ANA_INACCESSIBLE, Blame::Path),
            (Status::ANA_PERSISTENT_LOSS, Blame::Path),
            (Status::ANA_TRANSITION, Blame::Path),
            (Status::INTERNAL_PATH_ERROR, Blame::Path),
            (Status::HOST_PATH_ERROR, Blame::Path),
            (Status::TRANSIENT_TRANSPORT_ERROR, Blame::Path),
            (Status::COMMAND_INTERRUPTED, Blame::Path),
            (Status::WRITE_FAULT, Blame::Medium),
            (Status::UNRECOVERED_READ, Blame::Medium),
            (Status::GUARD_CHECK, Blame::Medium),
            (Status::INTERNAL_ERROR, Blame::Medium),
            (Status::CAPACITY_EXCEEDED, Blame::Capacity),
            (Status::LBA_OUT_OF_RANGE, Blame::Caller),
            (Status::NAMESPACE_WRITE_PROTECTED, Blame::Caller),
            (Status::COMPARE_FAILURE, Blame::Caller),
            (Status::INVALID_FIELD, Blame::Caller),
            (Status::DATA_SGL_LENGTH_INVALID, Blame::Bug),
        ] {
            for status in [status, status.do_not_retry(), status.retry_after(2)] {
                let fault = completion(write, status).unwrap_err();
                assert_eq!(fault.blame(), blame, "{status}");
            }
        }
        assert_eq!(completion(write, Status::SUCCESS), Ok(()));
        assert_eq!(completion(write, Status::WRITE_FAULT), Err(Fault::Medium { span }));
        let read = Command::Read { span };
        assert_eq!(completion(read, Status::GUARD_CHECK), Err(Fault::Unproven { span }));
        let compare = Command::Compare { span };
        let differs = completion(compare, Status::COMPARE_FAILURE);
        assert_eq!(differs, Err(Fault::Miscompare { at: Lba(8) }));
    }

    #[test]
    fn a_lost_command_leaves_doubt() {
        for why in [Lost::Closed, Lost::TimedOut, Lost::Terminated { fes: 1, fei: 0 }] {
            assert!(lost(why).leaves_doubt());
            assert_eq!(lost(why).blame(), Blame::Path);
        }
    }

    #[test]
    fn a_flush_has_no_blocks_to_blame() {
        assert_eq!(completion(Command::Flush, Status::WRITE_FAULT), Err(Fault::Aborted));
        assert_eq!(completion(Command::Flush, Status::LBA_OUT_OF_RANGE), Err(Fault::Unsupported));
    }
}
