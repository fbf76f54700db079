//! Fabrics commands on a connected queue.

use super::super::subsystem::{Configured, Subsystem};
use super::{Answer, Outcome, Peer, Request};
use crate::wire::{
    Cap, Cc, FabricsType, Property, PropertyGet, PropertySet, Sqe, Status, VERSION_2_0,
};

/// Ready within this many half seconds; in truth at once.
const READY_HALFSECONDS: u8 = 30;

pub(super) fn execute(subsystem: &mut Subsystem, peer: &Peer, request: Request<'_>) -> Outcome {
    let sqe = request.sqe;
    match FabricsType::from_code(sqe.fctype()) {
        Some(FabricsType::PropertyGet) if peer.qid == 0 => {
            property_get(subsystem, peer, sqe).into()
        }
        Some(FabricsType::PropertySet) if peer.qid == 0 => {
            property_set(subsystem, peer, sqe).into()
        }
        // Properties belong to the admin queue.
        Some(FabricsType::PropertyGet | FabricsType::PropertySet) => {
            Outcome::refuse(Status::INVALID_OPCODE)
        }
        Some(FabricsType::Disconnect) => disconnect(peer, sqe),
        Some(FabricsType::AuthSend | FabricsType::AuthReceive) => Outcome::Authenticate,
        // A queue is connected once.
        Some(FabricsType::Connect) => Outcome::refuse(Status::SEQUENCE_ERROR),
        None => Outcome::refuse(Status::INVALID_OPCODE),
    }
}

fn property_get(subsystem: &mut Subsystem, peer: &Peer, sqe: &Sqe) -> Result<Answer, Status> {
    let get = PropertyGet::from_sqe(sqe);
    let property = Property::from_offset(get.offset).ok_or(Status::INVALID_FIELD)?;
    if get.wide != Some(property.is_wide()) {
        return Err(Status::INVALID_FIELD);
    }
    let cap = capabilities(subsystem);
    let controller = subsystem.controller(peer.cntlid).ok_or(Status::INTERNAL_ERROR)?;
    let value = match property {
        Property::Cap => cap.0,
        Property::Vs => u64::from(VERSION_2_0),
        Property::Cc => u64::from(controller.cc.0),
        Property::Csts => u64::from(controller.csts),
        Property::Crto => u64::from(READY_HALFSECONDS),
        Property::Nssr => return Err(Status::INVALID_FIELD),
    };
    Ok(Answer::result(value))
}

fn property_set(subsystem: &mut Subsystem, peer: &Peer, sqe: &Sqe) -> Result<Answer, Status> {
    let set = PropertySet::from_sqe(sqe);
    let is_cc = Property::from_offset(set.offset) == Some(Property::Cc);
    if !is_cc || set.wide != Some(false) {
        return Err(Status::INVALID_FIELD);
    }
    let cc = Cc(u32::try_from(set.value).map_err(|_| Status::INVALID_FIELD)?);
    let controller = subsystem.controller(peer.cntlid).ok_or(Status::INTERNAL_ERROR)?;
    match controller.configure(cc) {
        Configured::Fine => {}
        Configured::QueuesGo => subsystem.drop_queues(peer.cntlid),
        Configured::Refused => return Err(Status::INVALID_FIELD),
    }
    Ok(Answer::OK)
}

fn disconnect(peer: &Peer, sqe: &Sqe) -> Outcome {
    // The record format is in the low half of dword 10; only zero is defined.
    if sqe.cdw10.get() & 0xFFFF != 0 {
        return Outcome::refuse(Status::CONNECT_INCOMPATIBLE_FORMAT);
    }
    if peer.qid == 0 {
        return Outcome::refuse(Status::DISCONNECT_INVALID_QUEUE);
    }
    Outcome::Last(Answer::OK)
}

fn capabilities(subsystem: &Subsystem) -> Cap {
    let modes = Cap::CQR | Cap::CSS_NVM | Cap::CSS_IOCSS | Cap::CRWMS;
    Cap::new(subsystem.config.limits.queue_depth, READY_HALFSECONDS, modes)
}
