//! I/O commands.

use block::{Blocks, Command, Geometry, IoError, Lba, Span};
use zerocopy::FromBytes;

use super::super::event::{Direction, Message};
use super::super::subsystem::{Access, HostId, Namespace, Readiness, Subsystem, refusal};
use super::{MAX_TRANSFER, Outcome, Peer, Request, refuse_on, reservation};
use crate::wire::{DsmRange, IoOpcode, Psdt, Sqe, Status};

pub(super) fn execute(subsystem: &mut Subsystem, peer: &Peer, request: Request<'_>) -> Outcome {
    let sqe = request.sqe;
    let Some(opcode) = IoOpcode::from_code(sqe.opcode) else {
        return Outcome::refuse(Status::INVALID_OPCODE);
    };
    let namespace = match enter(subsystem, peer, sqe, opcode) {
        Ok(namespace) => namespace,
        Err(status) => return refuse_on(subsystem, sqe.nsid.get(), status),
    };
    let outcome = match opcode {
        IoOpcode::Read | IoOpcode::Write | IoOpcode::Compare => {
            transfer(namespace, sqe, opcode).map(Outcome::Device)
        }
        IoOpcode::Flush => Ok(Outcome::Device(Command::Flush)),
        IoOpcode::WriteZeroes => write_zeroes(namespace, sqe).map(Outcome::Device),
        IoOpcode::Verify => verify(namespace, sqe).map(Outcome::Device),
        IoOpcode::DatasetManagement => deallocate(namespace, request),
        IoOpcode::Tell => message(namespace, sqe, Direction::Push),
        IoOpcode::Ask => message(namespace, sqe, Direction::Pull { room: request.room() }),
        IoOpcode::ReservationRegister
        | IoOpcode::ReservationReport
        | IoOpcode::ReservationAcquire
        | IoOpcode::ReservationRelease => {
            return reservation::execute(subsystem, peer, opcode, request);
        }
    };
    outcome.unwrap_or_else(Outcome::refuse)
}

pub(super) fn execute_fused(
    subsystem: &mut Subsystem,
    peer: &Peer,
    compare: &Sqe,
    write: &Sqe,
) -> Outcome {
    let is_pair =
        (compare.nsid, compare.slba(), compare.nlb()) == (write.nsid, write.slba(), write.nlb());
    if !is_pair {
        return Outcome::refuse(Status::INVALID_FIELD);
    }
    let checked = enter(subsystem, peer, compare, IoOpcode::Compare)
        .and_then(|namespace| transfer(namespace, compare, IoOpcode::Compare))
        .and_then(|_| enter(subsystem, peer, write, IoOpcode::Write))
        .and_then(|namespace| transfer(namespace, write, IoOpcode::Write));
    match checked {
        // What is compared and written as one is one block.
        Ok(Command::Write { span, .. }) if span.len() > Blocks(1) => {
            Outcome::refuse(Status::ATOMIC_WRITE_UNIT_EXCEEDED)
        }
        Ok(Command::Write { span, fua }) => Outcome::CompareAndWrite { span, fua },
        Ok(_) => Outcome::refuse(Status::INTERNAL_ERROR),
        Err(status) => refuse_on(subsystem, write.nsid.get(), status),
    }
}

/// What every I/O command has to pass: a namespace, its path, its reservations.
#[inline]
fn enter<'a>(
    subsystem: &'a mut Subsystem,
    peer: &Peer,
    sqe: &Sqe,
    opcode: IoOpcode,
) -> Result<&'a mut Namespace, Status> {
    if sqe.psdt() != Psdt::Sgl {
        return Err(Status::INVALID_FIELD);
    }
    let access = match opcode {
        IoOpcode::Read | IoOpcode::Compare | IoOpcode::Verify | IoOpcode::Ask => Entry::Reads,
        IoOpcode::Write | IoOpcode::WriteZeroes | IoOpcode::DatasetManagement | IoOpcode::Tell => {
            Entry::Changes
        }
        IoOpcode::Flush => Entry::Flushes,
        // They have rules of their own.
        IoOpcode::ReservationRegister
        | IoOpcode::ReservationReport
        | IoOpcode::ReservationAcquire
        | IoOpcode::ReservationRelease => Entry::Reserves,
    };
    pass(subsystem, &peer.hostid, sqe.nsid.get(), access)
}

/// What a command is about to do with a namespace.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Entry {
    Reads,
    Changes,
    /// Allowed to whoever may write, and harmless to what is read-only.
    Flushes,
    Reserves,
}

#[inline]
fn pass<'a>(
    subsystem: &'a mut Subsystem,
    host: &HostId,
    nsid: u32,
    entry: Entry,
) -> Result<&'a mut Namespace, Status> {
    let Subsystem { namespaces, ana, .. } = subsystem;
    let namespace = namespaces.get_mut(&nsid).ok_or(Status::INVALID_NAMESPACE)?;
    if let Some(status) = refusal(ana.state(namespace.config().ana_group)) {
        return Err(status);
    }
    if namespace.readiness != Readiness::Ready {
        return Err(Status::INTERNAL_PATH_ERROR);
    }
    let access = match entry {
        Entry::Reads => Access::Read,
        Entry::Changes | Entry::Flushes => Access::Write,
        Entry::Reserves => return Ok(namespace),
    };
    if !namespace.reservations().permits(host, access) {
        return Err(Status::RESERVATION_CONFLICT);
    }
    if entry == Entry::Changes && namespace.config().read_only {
        return Err(Status::NAMESPACE_WRITE_PROTECTED);
    }
    Ok(namespace)
}

/// The same for a block command that came without a queue entry, and whether its blocks exist.
pub(in crate::target) fn admit(
    subsystem: &mut Subsystem,
    host: &HostId,
    nsid: u32,
    command: Command,
) -> Result<(), Status> {
    let entry = match command {
        Command::Read { .. } | Command::Compare { .. } => Entry::Reads,
        Command::Write { .. } | Command::Discard { .. } | Command::WriteZeroes { .. } => {
            Entry::Changes
        }
        Command::Flush => Entry::Flushes,
    };
    let namespace = pass(subsystem, host, nsid, entry)?;
    let Some(span) = command.span() else { return Ok(()) };
    if !namespace.config().geometry.contains(span) {
        return Err(Status::LBA_OUT_OF_RANGE);
    }
    if let Command::Read { .. } | Command::Write { .. } = command {
        namespace.count(entry == Entry::Changes, span.len());
    }
    Ok(())
}

/// The blocks of a command, if they exist.
fn span(device: Geometry, sqe: &Sqe) -> Result<Span, Status> {
    let span = Span::new(Lba(sqe.slba()), Blocks::from_nlb(sqe.nlb()));
    span.filter(|span| device.contains(*span)).ok_or(Status::LBA_OUT_OF_RANGE)
}

/// The blocks of a command that moves as many bytes, if they exist and are not too many.
fn span_within_transfer(device: Geometry, sqe: &Sqe) -> Result<(Span, u32), Status> {
    let span = span(device, sqe)?;
    let bytes = device.block_size().bytes_of(span.len()).and_then(|bytes| bytes.0.try_into().ok());
    let bytes = bytes.filter(|bytes| *bytes <= MAX_TRANSFER).ok_or(Status::INVALID_FIELD)?;
    Ok((span, bytes))
}

#[inline]
fn transfer(namespace: &mut Namespace, sqe: &Sqe, opcode: IoOpcode) -> Result<Command, Status> {
    let (span, bytes) = span_within_transfer(namespace.config().geometry, sqe)?;
    if sqe.sgl.length.get() != bytes {
        return Err(Status::DATA_SGL_LENGTH_INVALID);
    }
    namespace.count(opcode == IoOpcode::Write, span.len());
    Ok(match opcode {
        IoOpcode::Write => Command::Write { span, fua: sqe.fua() },
        IoOpcode::Compare => Command::Compare { span },
        _ => Command::Read { span },
    })
}

fn write_zeroes(namespace: &Namespace, sqe: &Sqe) -> Result<Command, Status> {
    let span = span(namespace.config().geometry, sqe)?;
    Ok(Command::WriteZeroes { span, fua: sqe.fua(), deallocate: sqe.deac() })
}

fn message(namespace: &Namespace, sqe: &Sqe, way: Direction) -> Result<Outcome, Status> {
    if !namespace.config().takes_messages {
        return Err(Status::INVALID_OPCODE);
    }
    let argument = u64::from(sqe.cdw13.get()) << 32 | u64::from(sqe.cdw12.get());
    let object = u64::from(sqe.cdw15.get()) << 32 | u64::from(sqe.cdw14.get());
    Ok(Outcome::Message(Message { way, topic: sqe.cdw10.get(), argument, object }))
}

/// A verify is a read whose bytes nobody wants.
fn verify(namespace: &Namespace, sqe: &Sqe) -> Result<Command, Status> {
    let (span, _) = span_within_transfer(namespace.config().geometry, sqe)?;
    Ok(Command::Read { span })
}

/// Ranges to deallocate: which of the command's data come next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::target) struct Ranges {
    next: u16,
    count: u16,
}

impl Ranges {
    /// The next range that is not empty. They were all checked before.
    pub(in crate::target) fn next(&mut self, data: &[u8]) -> Option<Span> {
        while self.next < self.count {
            let at = usize::from(self.next) * size_of::<DsmRange>();
            self.next += 1;
            let (range, _) = DsmRange::read_from_prefix(data.get(at..)?).ok()?;
            let span = Span::new(Lba(range.slba.get()), Blocks(range.nlb.get().into()));
            if span.is_some() {
                return span;
            }
        }
        None
    }
}

fn deallocate(namespace: &Namespace, request: Request<'_>) -> Result<Outcome, Status> {
    let sqe = request.sqe;
    let count = u16::from(sqe.dsm_nr()) + 1;
    let needed = usize::from(count) * size_of::<DsmRange>();
    let data = request.data.get(..needed).ok_or(Status::DATA_SGL_LENGTH_INVALID)?;
    if !sqe.dsm_deallocate() {
        // The other attributes are hints, and taking no hint is always right.
        return Ok(Outcome::Answer(super::Answer::OK));
    }
    let device = namespace.config().geometry;
    for raw in data.as_chunks::<{ size_of::<DsmRange>() }>().0 {
        let range = DsmRange::ref_from_bytes(raw).map_err(|_| Status::INTERNAL_ERROR)?;
        let (start, blocks) = (Lba(range.slba.get()), Blocks(range.nlb.get().into()));
        let is_inside = match Span::new(start, blocks) {
            Some(span) => device.contains(span),
            None => blocks == Blocks::ZERO,
        };
        if !is_inside {
            return Err(Status::LBA_OUT_OF_RANGE);
        }
    }
    Ok(Outcome::Deallocate(Ranges { next: 0, count }))
}

/// How a fault of the device looks to the host.
pub(in crate::target) fn fault_status(fault: IoError, is_write: bool) -> Status {
    match fault {
        IoError::OutOfRange { .. } => Status::LBA_OUT_OF_RANGE.do_not_retry(),
        IoError::Unsupported => Status::INVALID_FIELD.do_not_retry(),
        IoError::ReadOnly => Status::NAMESPACE_WRITE_PROTECTED.do_not_retry(),
        IoError::Miscompare { .. } => Status::COMPARE_FAILURE.do_not_retry(),
        IoError::NoSpace => Status::CAPACITY_EXCEEDED.do_not_retry(),
        IoError::Medium { .. } if is_write => Status::WRITE_FAULT.do_not_retry(),
        IoError::Medium { .. } | IoError::Checksum { .. } => {
            Status::UNRECOVERED_READ.do_not_retry()
        }
        IoError::Unproven { .. } => Status::GUARD_CHECK.do_not_retry(),
        // Another path may lead to the new owner, or to the same device.
        IoError::Fenced | IoError::Unreachable | IoError::TimedOut => Status::INTERNAL_PATH_ERROR,
        IoError::Aborted => Status::COMMAND_INTERRUPTED,
        IoError::Busy | IoError::Locked => Status::NAMESPACE_NOT_READY,
        IoError::Internal => Status::INTERNAL_ERROR,
    }
}
