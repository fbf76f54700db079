//! Get and Set Features.

use core::time::Duration;

use zerocopy::{FromZeros, IntoBytes};

use super::super::subsystem::{Change, Controller, Readiness, Reservations, Subsystem, round_up};
use super::{Answer, Outcome, Peer, Request};
use crate::wire::{EventConfig, FeatureId, HostBehavior, Sqe, Status, Timestamp};

/// Bits of the reservation notification mask that mean something.
const NOTICE_MASK: u32 = 0b1110;
/// The power state; there is only state 0.
const POWER_STATE: u32 = 0x1F;
/// Set Features: save across resets.
const SAVE: u32 = 1 << 31;

pub(super) fn set(subsystem: &mut Subsystem, peer: &Peer, request: Request<'_>) -> Outcome {
    let sqe = request.sqe;
    let id = match feature(subsystem, sqe) {
        Ok(id) => id,
        Err(status) => return Outcome::refuse(status),
    };
    if sqe.cdw10.get() & SAVE != 0 {
        return Outcome::refuse(Status::FEATURE_NOT_SAVEABLE);
    }
    match id {
        FeatureId::NumberOfQueues => set_queues(subsystem, peer, sqe.cdw11.get()).into(),
        FeatureId::ReservationPersistence => set_persistence(subsystem, sqe),
        _ => set_of_controller(subsystem, peer, request, id).into(),
    }
}

fn set_of_controller(
    subsystem: &mut Subsystem,
    peer: &Peer,
    request: Request<'_>,
    id: FeatureId,
) -> Result<Answer, Status> {
    let value = request.sqe.cdw11.get();
    let controller = subsystem.controller(peer.cntlid).ok_or(Status::INTERNAL_ERROR)?;
    let features = &mut controller.features;
    match id {
        FeatureId::Arbitration => features.arbitration = value,
        FeatureId::TemperatureThreshold => features.temperature = value,
        FeatureId::ErrorRecovery => features.error_recovery = value,
        FeatureId::WriteAtomicity => features.write_atomicity = value & 1,
        FeatureId::AsyncEventConfig => features.events = EventConfig(value),
        FeatureId::ReservationMask => features.reservation_mask = value & NOTICE_MASK,
        FeatureId::HostBehavior => features.acre = request.data_as::<HostBehavior>()?.acre == 1,
        FeatureId::Timestamp => {
            let given = request.data_as::<Timestamp>()?.milliseconds;
            let milliseconds = given.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
            features.timestamp = Some((milliseconds, request.now));
        }
        FeatureId::KeepAliveTimer => {
            controller.kato = round_up(Duration::from_millis(value.into()));
            controller.last_seen = request.now;
        }
        // Only the state that it is in: fully on.
        FeatureId::PowerManagement if value & POWER_STATE == 0 => {}
        FeatureId::PowerManagement => return Err(Status::INVALID_FIELD),
        // The cache is what the owner says; a host may ask for it to be on.
        FeatureId::VolatileWriteCache if value & 1 == 1 => {}
        FeatureId::VolatileWriteCache => return Err(Status::FEATURE_NOT_CHANGEABLE),
        // Without meaning over fabrics, or done before.
        FeatureId::InterruptCoalescing
        | FeatureId::InterruptVector
        | FeatureId::NumberOfQueues
        | FeatureId::ReservationPersistence => {}
        // Fabrics give the host identifier with Connect.
        FeatureId::HostIdentifier => return Err(Status::SEQUENCE_ERROR),
    }
    Ok(Answer::OK)
}

pub(super) fn get(
    subsystem: &mut Subsystem,
    peer: &Peer,
    request: Request<'_>,
) -> Result<Answer, Status> {
    let sqe = request.sqe;
    let id = feature(subsystem, sqe)?;
    let select = (sqe.cdw10.get() >> 8) & 7;
    if select == SELECT_CAPABILITIES {
        return Ok(Answer::result(capabilities(id)));
    }
    if select > SELECT_CAPABILITIES {
        return Err(Status::INVALID_FIELD);
    }
    let queues = u64::from(subsystem.config.limits.io_queues - 1);
    let has_cache = subsystem.has_write_cache();
    let persistence = namespace_persistence(subsystem, sqe);
    let controller = subsystem.controller(peer.cntlid).ok_or(Status::INTERNAL_ERROR)?;
    let features = controller.features;
    Ok(Answer::result(match id {
        FeatureId::Arbitration => features.arbitration.into(),
        FeatureId::PowerManagement
        | FeatureId::InterruptCoalescing
        | FeatureId::InterruptVector => 0,
        FeatureId::TemperatureThreshold => features.temperature.into(),
        FeatureId::ErrorRecovery => features.error_recovery.into(),
        FeatureId::VolatileWriteCache => u64::from(has_cache),
        FeatureId::NumberOfQueues => {
            let granted = match controller.granted {
                0 => queues,
                granted => u64::from(granted - 1),
            };
            granted << 16 | granted
        }
        FeatureId::WriteAtomicity => features.write_atomicity.into(),
        FeatureId::AsyncEventConfig => features.events.0.into(),
        FeatureId::KeepAliveTimer => u64::try_from(controller.kato.as_millis()).unwrap_or(u64::MAX),
        FeatureId::ReservationMask => features.reservation_mask.into(),
        FeatureId::ReservationPersistence => u64::from(persistence?),
        FeatureId::HostIdentifier => return host_identifier(controller, sqe),
        FeatureId::Timestamp => return Ok(timestamp(controller, request)),
        FeatureId::HostBehavior => {
            let mut data = HostBehavior::new_zeroed();
            data.acre = u8::from(features.acre);
            return Ok(Answer::data(data.as_bytes().to_vec()));
        }
    }))
}

/// Which value is asked for: 3 is what can be done with the feature.
const SELECT_CAPABILITIES: u32 = 3;

/// Bit 0 saveable, bit 1 per namespace, bit 2 changeable.
fn capabilities(id: FeatureId) -> u64 {
    match id {
        FeatureId::ReservationPersistence => 0b110,
        FeatureId::HostIdentifier | FeatureId::PowerManagement => 0,
        _ => 0b100,
    }
}

fn feature(subsystem: &Subsystem, sqe: &Sqe) -> Result<FeatureId, Status> {
    let id = FeatureId::from_code(sqe.cdw10.get().to_le_bytes()[0]).ok_or(Status::INVALID_FIELD)?;
    let in_discovery = matches!(id, FeatureId::AsyncEventConfig | FeatureId::KeepAliveTimer);
    if subsystem.discovery.is_some() && !in_discovery {
        return Err(Status::INVALID_FIELD);
    }
    Ok(id)
}

fn set_queues(subsystem: &mut Subsystem, peer: &Peer, value: u32) -> Result<Answer, Status> {
    let [s0, s1, c0, c1] = value.to_le_bytes();
    let (submission, completion) = (u16::from_le_bytes([s0, s1]), u16::from_le_bytes([c0, c1]));
    let limit = subsystem.config.limits.io_queues;
    let controller = subsystem.controller(peer.cntlid).ok_or(Status::INTERNAL_ERROR)?;
    if submission == u16::MAX || completion == u16::MAX {
        return Err(Status::INVALID_FIELD);
    }
    if !controller.queues.is_empty() {
        return Err(Status::SEQUENCE_ERROR);
    }
    // Over fabrics a queue is a pair: the smaller number counts.
    controller.granted = (submission.min(completion) + 1).min(limit);
    let granted = u64::from(controller.granted - 1);
    Ok(Answer::result(granted << 16 | granted))
}

/// Persistence through power loss of one namespace.
fn set_persistence(subsystem: &mut Subsystem, sqe: &Sqe) -> Outcome {
    let persist = Some(sqe.cdw11.get() & 1 == 1);
    let unchanged = |_: &mut Reservations| Ok(Change::default());
    match subsystem.reserve(sqe.nsid.get(), persist, unchanged) {
        Ok(hold) => Outcome::Hold(hold, Answer::OK),
        Err(status) => Outcome::refuse(status),
    }
}

fn namespace_persistence(subsystem: &Subsystem, sqe: &Sqe) -> Result<bool, Status> {
    let namespace = subsystem.namespaces.get(&sqe.nsid.get()).ok_or(Status::INVALID_NAMESPACE)?;
    if namespace.readiness != Readiness::Ready {
        return Err(Status::INTERNAL_PATH_ERROR);
    }
    Ok(namespace.reservations().persist)
}

fn host_identifier(controller: &Controller, sqe: &Sqe) -> Result<Answer, Status> {
    // Extended identifiers only: the short ones are half of what Connect gave.
    if sqe.cdw11.get() & 1 == 0 {
        return Err(Status::HOST_ID_INCONSISTENT);
    }
    Ok(Answer::data(controller.hostid.to_vec()))
}

fn timestamp(controller: &Controller, request: Request<'_>) -> Answer {
    let (milliseconds, origin) = match controller.features.timestamp {
        None => (0, 0),
        Some((given, at)) => {
            let since = u64::try_from(request.now.since(at).as_millis()).unwrap_or(0);
            (given.saturating_add(since), ORIGIN_HOST)
        }
    };
    let mut data = Timestamp::new_zeroed();
    for (to, from) in data.milliseconds.iter_mut().zip(milliseconds.to_le_bytes()) {
        *to = from;
    }
    data.attributes = origin;
    Answer::data(data.as_bytes().to_vec())
}

/// The timestamp was set by a host (bits 3:1 of its attributes).
const ORIGIN_HOST: u8 = 1 << 1;
