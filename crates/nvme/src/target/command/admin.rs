//! Admin commands.

use super::super::subsystem::Subsystem;
use super::{Answer, Outcome, Peer, Request, feature, identify, log};
use crate::wire::{AdminOpcode, Psdt, Sqe, Status};

/// Event requests of one controller at once.
pub(in crate::target) const EVENT_REQUESTS: usize = 4;
/// Abort commands of one controller at once; they are answered at once, so never more.
pub(in crate::target) const ABORTS: u8 = 4;

pub(super) fn execute(subsystem: &mut Subsystem, peer: &Peer, request: Request<'_>) -> Outcome {
    let sqe = request.sqe;
    let Some(controller) = subsystem.controller(peer.cntlid) else {
        return Outcome::refuse(Status::INTERNAL_ERROR);
    };
    if !controller.is_ready() {
        return Outcome::refuse(Status::SEQUENCE_ERROR);
    }
    if sqe.psdt() != Psdt::Sgl || sqe.flags & 3 != 0 {
        return Outcome::refuse(Status::INVALID_FIELD);
    }
    match AdminOpcode::from_code(sqe.opcode) {
        Some(AdminOpcode::Identify) => identify::execute(subsystem, peer, request).into(),
        Some(AdminOpcode::GetLogPage) => log::execute(subsystem, peer, request).into(),
        Some(AdminOpcode::SetFeatures) => feature::set(subsystem, peer, request),
        Some(AdminOpcode::GetFeatures) => feature::get(subsystem, peer, request).into(),
        Some(AdminOpcode::AsyncEventRequest) => Outcome::AwaitEvent,
        Some(AdminOpcode::KeepAlive) => keep_alive(subsystem, peer, request).into(),
        Some(AdminOpcode::Abort) => abort(subsystem, peer, sqe),
        None => Outcome::refuse(Status::INVALID_OPCODE),
    }
}

fn keep_alive(
    subsystem: &mut Subsystem,
    peer: &Peer,
    request: Request<'_>,
) -> Result<Answer, Status> {
    let controller = subsystem.controller(peer.cntlid).ok_or(Status::INTERNAL_ERROR)?;
    controller.last_seen = request.now;
    Ok(Answer::OK)
}

/// The answer to an abort that may or may not have come in time: the aborted command tells.
const NOT_ABORTED: u64 = 1;

fn abort(subsystem: &mut Subsystem, peer: &Peer, sqe: &Sqe) -> Outcome {
    let [q0, q1, c0, c1] = sqe.cdw10.get().to_le_bytes();
    let (qid, cid) = (u16::from_le_bytes([q0, q1]), u16::from_le_bytes([c0, c1]));
    if qid == peer.qid {
        return Outcome::AbortHere { cid };
    }
    match subsystem.queue(peer.cntlid, qid) {
        None => Outcome::refuse(Status::INVALID_FIELD),
        Some(conn) => {
            subsystem.request_abort(conn, cid);
            Outcome::Answer(Answer::result(NOT_ABORTED))
        }
    }
}
