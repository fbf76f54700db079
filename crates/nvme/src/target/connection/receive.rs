//! What comes from the host.

use alloc::boxed::Box;

use zerocopy::{FromBytes, IntoBytes};

use super::super::command::{Answer, MAX_TRANSFER, Peer};
use super::super::event::{Event, Slot};
use super::super::subsystem::{ConnectRequest, Refusal};
use super::slots::Stage;
use super::{Connection, End, Into, Out, Phase};
use crate::pdu::{
    ADMIN_CAPSULE_DATA, Align, DataHeader, Digests, Expect, FatalError, Framing, IcReq, IcResp,
    MIN_MAXH2CDATA, Pdu, PduType, Progress, Received,
};
use crate::wire::{
    BadConnect, Connect, ConnectData, FabricsType, Fuse, IoOpcode, Nqn, SglKind, Sqe, Status,
};

/// Data that a command brings from the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Inbound {
    /// None.
    Nothing,
    /// In its capsule.
    Capsule,
    /// To be asked for.
    Ask(u32),
}

impl Connection {
    /// Takes bytes from the stream: returns how many.
    ///
    /// Fewer than given means that [`Connection::need`] has changed.
    pub fn feed(&mut self, bytes: &[u8]) -> usize {
        let mut taken = 0;
        while let Some(rest) = bytes.get(taken..).filter(|rest| !rest.is_empty()) {
            // What comes after the end is of no interest.
            if self.end.is_some() {
                return bytes.len();
            }
            match (&self.phase, self.reader.expect(), self.into) {
                (Phase::Ending, ..) => return bytes.len(),
                (Phase::Deciding { .. }, ..) | (_, Expect::Payload(_), Into::Buffer(_)) => {
                    return taken;
                }
                (_, Expect::Payload(left), _) => taken += self.take_payload(rest, left),
                (_, Expect::Head, _) => match self.reader.feed(rest) {
                    Ok((count, received)) => {
                        taken += count;
                        if let Some(received) = received
                            && let Err(error) = self.on_received(received)
                        {
                            self.stop_reading(End::Error(error));
                        }
                    }
                    Err(error) => self.stop_reading(End::Error(error)),
                },
            }
        }
        taken
    }

    /// The driver has put these bytes of the stream where [`Need::Payload`](super::Need) said.
    pub fn placed(&mut self, bytes: &[u8]) {
        let Into::Buffer(slot) = self.into else { return };
        let Expect::Payload(left) = self.reader.expect() else { return };
        let count = u32::try_from(bytes.len()).unwrap_or(u32::MAX).min(left);
        if let Some(entry) = self.slots.get_mut(slot) {
            entry.received = entry.received.saturating_add(count);
        }
        if self.reader.payload(bytes) == Progress::Complete {
            self.payload_done(true);
        }
    }

    /// Takes payload that is not the driver's.
    fn take_payload(&mut self, bytes: &[u8], left: u32) -> usize {
        let count = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
        let bytes = bytes.get(..count).unwrap_or_default();
        if let Into::Data(slot) = self.into
            && let Some(entry) = self.slots.get_mut(slot)
        {
            entry.data.extend_from_slice(bytes);
            entry.received = entry.received.saturating_add(u32::try_from(count).unwrap_or(0));
        }
        if self.reader.payload(bytes) == Progress::Complete {
            self.payload_done(true);
        }
        count
    }

    fn on_received(&mut self, received: Received) -> Result<(), FatalError> {
        match received {
            Received::Payload { intact } => {
                self.payload_done(intact);
                Ok(())
            }
            Received::Head(Pdu::IcReq(request)) => self.on_setup(&request),
            Received::Head(Pdu::Command { sqe, payload }) => self.on_command(&sqe, payload),
            Received::Head(Pdu::H2cData(data)) => self.on_data(&data),
            // The host says that we broke the protocol; there is nothing to say to that.
            Received::Head(Pdu::TermReq(_)) => {
                self.stop_reading(End::ByHost);
                Ok(())
            }
            // The reader lets nothing else through to a controller.
            Received::Head(Pdu::IcResp(_) | Pdu::Response(_) | Pdu::C2hData(_) | Pdu::R2t(_)) => {
                Err(FatalError::UnknownKind { kind: 0 })
            }
        }
    }

    fn on_setup(&mut self, request: &IcReq) -> Result<(), FatalError> {
        let kind = PduType::IcReq;
        if request.pfv.get() != 0 {
            return Err(FatalError::Unsupported { kind, at: 8 });
        }
        let Some(send_align) = Align::from_field(request.hpda) else {
            return Err(FatalError::BadField { kind, at: 10 });
        };
        let wanted = Digests::from_field(request.dgst);
        let digests = Digests {
            header: wanted.header && self.config.digests.header,
            data: wanted.data && self.config.digests.data,
        };
        self.framing = Framing { digests, send_align, receive_align: self.config.align };
        self.reader.establish(self.framing, ADMIN_CAPSULE_DATA);
        let limit = self.max_h2c_data();
        let response = IcResp::new(self.config.align.to_field(), digests.to_field(), limit);
        self.out.push_back(Out::Head(Framing::plain(response.as_bytes())));
        self.phase = Phase::AwaitConnect;
        Ok(())
    }

    fn max_h2c_data(&self) -> u32 {
        self.config.max_h2c_data.max(MIN_MAXH2CDATA) & !3
    }

    fn on_command(&mut self, sqe: &Sqe, payload: u32) -> Result<(), FatalError> {
        // More commands than the queue holds: there is no status for that, as there is no slot.
        let overrun = FatalError::OutOfSequence { kind: PduType::CapsuleCmd };
        let slot = self.slots.take(sqe).ok_or(overrun)?;
        self.into = Into::Nothing;
        let in_buffer = self.is_buffered(sqe);
        let inbound = self.fuse(slot, sqe).and_then(|()| inbound(sqe, payload, in_buffer));
        let Some(entry) = self.slots.get_mut(slot) else { return Ok(()) };
        match inbound {
            Err(status) => {
                entry.refused = Some(status.do_not_retry());
                entry.total = payload;
                if payload == 0 {
                    self.arrived(slot);
                } else {
                    // Swallow what follows, then answer.
                    self.into = Into::Data(slot);
                }
            }
            Ok(Inbound::Nothing) => self.arrived(slot),
            Ok(Inbound::Capsule) => {
                entry.total = payload;
                entry.in_buffer = in_buffer;
                self.into = if in_buffer { Into::Buffer(slot) } else { Into::Data(slot) };
            }
            Ok(Inbound::Ask(len)) => {
                entry.total = len;
                entry.in_buffer = in_buffer;
                if in_buffer {
                    entry.stage = Stage::AwaitGrant;
                    self.events.push_back(Event::Buffer { slot, len });
                } else {
                    entry.stage = Stage::Transferring;
                    self.out.push_back(Out::AskForData(slot));
                }
            }
        }
        Ok(())
    }

    /// Pairs fused commands. They come one right after the other.
    fn fuse(&mut self, slot: Slot, sqe: &Sqe) -> Result<(), Status> {
        if !matches!(self.phase, Phase::Live(Peer { qid: 1.., .. })) {
            // Other queues know no fused commands and say so when they carry them out.
            return Ok(());
        }
        let first = self.first.take();
        let is_second =
            sqe.fuse() == Fuse::Second && sqe.opcode == IoOpcode::Write.code() && first.is_some();
        if let Some(first) = first
            && !is_second
        {
            self.refuse_command(first, Status::ABORTED_MISSING_FUSED.do_not_retry());
        }
        match (sqe.fuse(), first) {
            (Fuse::Normal, _) => Ok(()),
            (Fuse::First, _) if sqe.opcode == IoOpcode::Compare.code() => {
                self.first = Some(slot);
                Ok(())
            }
            (Fuse::Second, Some(first)) if is_second => {
                for (one, other) in [(slot, first), (first, slot)] {
                    if let Some(entry) = self.slots.get_mut(one) {
                        entry.partner = Some(other);
                    }
                }
                Ok(())
            }
            (Fuse::Second, _) => Err(Status::ABORTED_MISSING_FUSED),
            (Fuse::First | Fuse::Reserved, _) => Err(Status::INVALID_FIELD),
        }
    }

    fn on_data(&mut self, data: &DataHeader) -> Result<(), FatalError> {
        let kind = PduType::H2cData;
        let limit = self.max_h2c_data();
        let slot = Slot(data.ttag.get());
        let entry = self.slots.get_mut(slot).filter(|entry| entry.stage == Stage::Transferring);
        let Some(entry) = entry else { return Err(FatalError::BadField { kind, at: 10 }) };
        if entry.cid() != data.cccid.get() {
            return Err(FatalError::BadField { kind, at: 8 });
        }
        let end = data.datao.get().checked_add(data.datal.get());
        let is_next = data.datao.get() == entry.received;
        let Some(end) = end.filter(|end| is_next && *end <= entry.total) else {
            return Err(FatalError::OutOfRange { kind });
        };
        if data.datal.get() > limit {
            return Err(FatalError::Limit { kind });
        }
        if data.is_last() != (end == entry.total) {
            return Err(FatalError::BadField { kind, at: 1 });
        }
        self.into = if entry.in_buffer { Into::Buffer(slot) } else { Into::Data(slot) };
        Ok(())
    }

    /// The payload of one PDU is complete.
    fn payload_done(&mut self, intact: bool) {
        let (Into::Data(slot) | Into::Buffer(slot)) =
            core::mem::replace(&mut self.into, Into::Nothing)
        else {
            return;
        };
        let Some(entry) = self.slots.get_mut(slot) else { return };
        if !intact && entry.refused.is_none() {
            // The host may send the command again.
            entry.refused = Some(Status::TRANSIENT_TRANSPORT_ERROR);
        }
        if entry.received >= entry.total {
            self.arrived(slot);
        }
    }

    /// All data of a command are there.
    fn arrived(&mut self, slot: Slot) {
        let Some(entry) = self.slots.get_mut(slot) else { return };
        entry.stage = Stage::Ready;
        let (refused, partner) = (entry.refused, entry.partner);
        let is_first = self.first == Some(slot);
        match (refused, partner) {
            (Some(status), _) => self.refuse_command(slot, status),
            (None, None) if is_first => {}
            (None, None) if matches!(self.phase, Phase::AwaitConnect) => self.on_connect(slot),
            (None, None) => self.ready.push_back(slot),
            (None, Some(partner)) => {
                let other = self.slots.get(partner);
                if other.is_some_and(|other| other.stage == Stage::Ready && other.refused.is_none())
                {
                    let is_write = |slot: &Slot| {
                        let entry = self.slots.get(*slot);
                        entry.is_some_and(|one| one.sqe.opcode == IoOpcode::Write.code())
                    };
                    self.ready.extend([slot, partner].into_iter().find(is_write));
                }
            }
        }
    }

    /// Refuses a command, now or when its data are out of the way, and what is fused with it.
    pub(super) fn refuse_command(&mut self, slot: Slot, status: Status) {
        let Some(entry) = self.slots.get_mut(slot) else { return };
        entry.refused = entry.refused.or(Some(status));
        if entry.stage != Stage::Ready {
            return;
        }
        let partner = entry.partner.take();
        if self.first == Some(slot) {
            self.first = None;
        }
        self.finish_error(slot, status);
        if let Some(partner) = partner {
            self.refuse_command(partner, Status::ABORTED_FAILED_FUSED.do_not_retry());
        }
    }

    /// The first command of a connection.
    fn on_connect(&mut self, slot: Slot) {
        let Some(entry) = self.slots.get(slot) else { return };
        let is_connect =
            entry.sqe.opcode == Sqe::FABRICS && entry.sqe.fctype() == FabricsType::Connect.code();
        if !is_connect {
            self.finish_error(slot, Status::SEQUENCE_ERROR.do_not_retry());
            return;
        }
        match connect_request(&entry.sqe, &entry.data) {
            Ok(request) => self.phase = Phase::Deciding { slot, request: Box::new(request) },
            Err(refusal) => {
                let cqe = refusal.cqe(entry.cid());
                let answer = Answer { result: cqe.result(), ..Answer::error(cqe.status()) };
                self.finish_last(slot, answer);
            }
        }
    }
}

/// Which data a command brings, from its data descriptor and its capsule.
fn inbound(sqe: &Sqe, payload: u32, in_buffer: bool) -> Result<Inbound, Status> {
    let length = sqe.sgl.length.get();
    let code = if sqe.opcode == Sqe::FABRICS { sqe.fctype() } else { sqe.opcode };
    // The lowest bits of an opcode say which way its data go: 1 from the host, 2 to it.
    let from_host = code & 3 == 1;
    match sqe.sgl.kind() {
        None if length == 0 && payload == 0 && sqe.sgl.identifier == 0 => Ok(Inbound::Nothing),
        None => Err(Status::SGL_DESCRIPTOR_TYPE_INVALID),
        Some(SglKind::InCapsule { .. }) if !from_host && length > 0 => {
            Err(Status::SGL_DESCRIPTOR_TYPE_INVALID)
        }
        Some(SglKind::InCapsule { offset }) if offset != 0 => Err(Status::SGL_OFFSET_INVALID),
        Some(SglKind::InCapsule { .. }) if length != payload => {
            Err(Status::DATA_SGL_LENGTH_INVALID)
        }
        Some(SglKind::InCapsule { .. }) if payload == 0 => Ok(Inbound::Nothing),
        Some(SglKind::InCapsule { .. }) => Ok(Inbound::Capsule),
        Some(SglKind::Transport) if payload != 0 => Err(Status::DATA_SGL_LENGTH_INVALID),
        Some(SglKind::Transport) => {
            let limit = if from_host && !in_buffer { ADMIN_CAPSULE_DATA } else { MAX_TRANSFER };
            if length > limit {
                return Err(Status::INVALID_FIELD);
            }
            Ok(if from_host && length > 0 { Inbound::Ask(length) } else { Inbound::Nothing })
        }
    }
}

fn connect_request(sqe: &Sqe, data: &[u8]) -> Result<ConnectRequest, Refusal> {
    let parameter = |bad| move |_| Refusal::Parameter(bad);
    let Ok(data) = ConnectData::ref_from_bytes(data) else {
        return Err(Refusal::Status(Status::DATA_SGL_LENGTH_INVALID.do_not_retry()));
    };
    Ok(ConnectRequest {
        subsystem: Nqn::from_field(&data.subnqn).map_err(parameter(BadConnect::SUBNQN))?,
        host: Nqn::from_host_field(&data.hostnqn).map_err(parameter(BadConnect::HOSTNQN))?,
        hostid: data.hostid,
        cntlid: data.cntlid.get(),
        connect: Connect::from_sqe(sqe),
    })
}
