//! What each command does: functions from a command and the subsystem to an [`Outcome`].
//!
//! All data that came with the command are there when one of these is called; nothing here knows of
//! PDUs, slots or buffers.

mod admin;
mod fabrics;
mod feature;
mod identify;
mod io;
mod log;
mod reservation;

use alloc::vec::Vec;

use block::{Command, Span};
use zerocopy::FromBytes;

pub(super) use admin::{ABORTS, EVENT_REQUESTS};
pub(super) use io::{Ranges, admit, fault_status};

use super::event::{ConnId, Message};
use super::subsystem::{Hold, HostId, Subsystem};
use crate::time::Instant;
use crate::wire::{Sqe, Status};

/// Base-two logarithm of the largest transfer in pages of 4 KiB: 1 MiB.
pub(super) const MDTS: u8 = 8;
/// The largest transfer in bytes.
pub(super) const MAX_TRANSFER: u32 = 4096 << MDTS;

/// Where a command came from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    pub(super) conn: ConnId,
    pub(super) cntlid: u16,
    pub(super) qid: u16,
    pub(super) hostid: HostId,
}

/// A command with all its data.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'a> {
    pub(super) sqe: &'a Sqe,
    /// Data from the host, except those of writes and compares.
    pub(super) data: &'a [u8],
    pub(super) now: Instant,
}

impl Request<'_> {
    /// The data as a structure, if they are long enough.
    fn data_as<T: FromBytes>(&self) -> Result<T, Status> {
        let read = T::read_from_prefix(self.data);
        read.map(|(value, _)| value).map_err(|_| Status::DATA_SGL_LENGTH_INVALID)
    }

    /// How many bytes the host takes.
    fn room(&self) -> u32 {
        self.sqe.sgl.length.get()
    }
}

/// What to answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: Status,
    pub(super) result: u64,
    /// Data for the host; empty for none.
    pub(super) data: Vec<u8>,
}

impl Answer {
    pub(super) const OK: Answer = Answer { status: Status::SUCCESS, result: 0, data: Vec::new() };

    pub(super) fn result(result: u64) -> Answer {
        Answer { result, ..Answer::OK }
    }

    pub(super) fn data(data: Vec<u8>) -> Answer {
        Answer { data, ..Answer::OK }
    }

    pub(super) fn error(status: Status) -> Answer {
        Answer { status, ..Answer::OK }
    }
}

/// What becomes of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It is over.
    Answer(Answer),
    /// It is over, and so is the connection.
    Last(Answer),
    /// The device does it.
    Device(Command),
    /// The device does it, with the compare before it.
    CompareAndWrite { span: Span, fua: bool },
    /// The device deallocates the ranges in the command's data.
    Deallocate(Ranges),
    /// The owner of the namespace answers it.
    Message(Message),
    /// It waits for what it caused elsewhere, or rests on; then this is the answer.
    Hold(Hold, Answer),
    /// It waits for an event.
    AwaitEvent,
    /// It withdraws another command of this connection.
    AbortHere { cid: u16 },
    /// It carries on the authentication.
    Authenticate,
}

impl From<Result<Answer, Status>> for Outcome {
    /// A refusal is final: the same command will be refused again.
    fn from(result: Result<Answer, Status>) -> Outcome {
        match result {
            Ok(answer) => Outcome::Answer(answer),
            Err(status) => Outcome::refuse(status),
        }
    }
}

impl Outcome {
    /// Refused for good: the same command will be refused again, here.
    fn refuse(status: Status) -> Outcome {
        let is_passing = status.is_path_error() || status == Status::INTERNAL_ERROR;
        let status = if is_passing { status } else { status.do_not_retry() };
        Outcome::Answer(Answer::error(status))
    }
}

/// Refuses a command on a namespace. A conflict with a reservation is told only when it is known
/// that no other node serves the volume by now, with other reservations.
fn refuse_on(subsystem: &mut Subsystem, nsid: u32, status: Status) -> Outcome {
    let is_conflict = status == Status::RESERVATION_CONFLICT;
    match is_conflict.then(|| subsystem.conflict(nsid)).flatten() {
        Some(hold) => Outcome::Hold(hold, Answer::error(status.do_not_retry())),
        None => Outcome::refuse(status),
    }
}

/// Carries out a command that is not part of a fused pair.
pub(super) fn execute(subsystem: &mut Subsystem, peer: &Peer, request: Request<'_>) -> Outcome {
    if request.sqe.opcode == Sqe::FABRICS {
        return fabrics::execute(subsystem, peer, request);
    }
    if peer.qid == 0 {
        return admin::execute(subsystem, peer, request);
    }
    io::execute(subsystem, peer, request)
}

/// Carries out a fused compare and write.
pub(super) fn execute_fused(
    subsystem: &mut Subsystem,
    peer: &Peer,
    compare: &Sqe,
    write: &Sqe,
) -> Outcome {
    io::execute_fused(subsystem, peer, compare, write)
}
