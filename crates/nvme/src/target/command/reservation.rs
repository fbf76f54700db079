//! Reservation commands.

use alloc::vec::Vec;

use zerocopy::{FromZeros, IntoBytes};

use super::super::subsystem::{AcquireKeys, Hold, Reservations, Subsystem};
use super::{Answer, Outcome, Peer, Request, refuse_on};
use crate::wire::{
    AcquireAction, AcquireData, CNTLID_DYNAMIC, IoOpcode, RegisterAction, RegisterData,
    RegistrantExtended, ReleaseAction, ReleaseData, ReportHeaderExtended, ReservationArgs,
    ReservationType, Status, U16, U32, U64,
};

pub(super) fn execute(
    subsystem: &mut Subsystem,
    peer: &Peer,
    opcode: IoOpcode,
    request: Request<'_>,
) -> Outcome {
    let nsid = request.sqe.nsid.get();
    let held = match opcode {
        IoOpcode::ReservationRegister => register(subsystem, peer, request),
        IoOpcode::ReservationAcquire => acquire(subsystem, peer, request),
        IoOpcode::ReservationRelease => release(subsystem, peer, request),
        _ => return report(subsystem, request).unwrap_or_else(Outcome::refuse),
    };
    match held {
        Ok(hold) => Outcome::Hold(hold, Answer::OK),
        Err(status) => refuse_on(subsystem, nsid, status),
    }
}

fn register(subsystem: &mut Subsystem, peer: &Peer, request: Request<'_>) -> Result<Hold, Status> {
    let args = ReservationArgs::from_sqe(request.sqe);
    let action = RegisterAction::from_code(args.action).ok_or(Status::INVALID_FIELD)?;
    let persist = match args.cptpl {
        0 => None,
        2 => Some(false),
        3 => Some(true),
        _ => return Err(Status::INVALID_FIELD),
    };
    let data: RegisterData = request.data_as()?;
    let current = (!args.iekey).then(|| data.crkey.get());
    let host = peer.hostid;
    subsystem.reserve(request.sqe.nsid.get(), persist, |state| {
        state.register(host, action, current, data.nrkey.get())
    })
}

fn acquire(subsystem: &mut Subsystem, peer: &Peer, request: Request<'_>) -> Result<Hold, Status> {
    let args = ReservationArgs::from_sqe(request.sqe);
    let action = AcquireAction::from_code(args.action).ok_or(Status::INVALID_FIELD)?;
    let kind = ReservationType::from_code(args.rtype).ok_or(Status::INVALID_FIELD)?;
    let data: AcquireData = request.data_as()?;
    if args.iekey {
        return Err(Status::INVALID_FIELD);
    }
    let keys = AcquireKeys { current: data.crkey.get(), preempt: data.prkey.get() };
    let host = peer.hostid;
    subsystem.acquire((peer.conn, host), request.sqe.nsid.get(), |state| {
        state.acquire(host, action, kind, keys)
    })
}

fn release(subsystem: &mut Subsystem, peer: &Peer, request: Request<'_>) -> Result<Hold, Status> {
    let args = ReservationArgs::from_sqe(request.sqe);
    let action = ReleaseAction::from_code(args.action).ok_or(Status::INVALID_FIELD)?;
    let data: ReleaseData = request.data_as()?;
    if args.iekey {
        return Err(Status::INVALID_FIELD);
    }
    let host = peer.hostid;
    subsystem.reserve(request.sqe.nsid.get(), None, |state| {
        state.release(host, action, args.rtype, data.crkey.get())
    })
}

/// A report shows the state of this moment, and is sent when that state is durable and no command
/// of those whom it shows gone is at work.
fn report(subsystem: &mut Subsystem, request: Request<'_>) -> Result<Outcome, Status> {
    let sqe = request.sqe;
    // Host identifiers have 128 bits, which only the extended form can show.
    if sqe.cdw11.get() & 1 == 0 {
        return Err(Status::HOST_ID_INCONSISTENT);
    }
    let length = (u64::from(sqe.cdw10.get()) + 1) * 4;
    if length > u64::from(request.room()) || length > u64::from(super::MAX_TRANSFER) {
        return Err(Status::DATA_SGL_LENGTH_INVALID);
    }
    let hold = subsystem.report(sqe.nsid.get())?;
    let namespace = subsystem.namespace(sqe.nsid.get()).ok_or(Status::INVALID_NAMESPACE)?;
    let mut data = extended_report(namespace.reservations());
    data.resize(usize::try_from(length).unwrap_or(0), 0);
    Ok(Outcome::Hold(hold, Answer::data(data)))
}

fn extended_report(state: &Reservations) -> Vec<u8> {
    let mut head = ReportHeaderExtended::new_zeroed();
    head.header.generation = U32::new(state.generation);
    head.header.rtype = state.reservation.map_or(0, |held| held.kind.code());
    head.header.regctl = U16::new(u16::try_from(state.registrants.len()).unwrap_or(u16::MAX));
    head.header.ptpls = u8::from(state.persist);
    let mut data = head.as_bytes().to_vec();
    for registrant in &state.registrants {
        let mut entry = RegistrantExtended::new_zeroed();
        // Controllers are dynamic: a registrant is a host, not a controller.
        entry.cntlid = U16::new(CNTLID_DYNAMIC);
        entry.rcsts = u8::from(state.holds(&registrant.host));
        entry.rkey = U64::new(registrant.key);
        entry.hostid = registrant.host;
        data.extend_from_slice(entry.as_bytes());
    }
    data
}
