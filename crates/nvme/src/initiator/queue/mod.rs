//! One queue on one TCP connection: framing, slots, data transfer. It does not know what a command
//! means.
//!
//! ```text
//! New ─start─► Setup ─ICResp─► Open ─close, error, time─► Closed
//! ```
//!
//! Invariants:
//! - Each submitted command ends exactly once: answered, or lost with the connection.
//! - Data come in order and within what the command asked for; an answer of success is believed
//!   only when all data have moved.
//! - What waits to be sent is bounded by the slots and by the number of R2Ts we allow.

use alloc::collections::VecDeque;
use core::time::Duration;

use zerocopy::IntoBytes;

use super::slots::Slots;
use super::transfer::{Data, Outcome, Transfer};
use super::transmit::{Lost, Need, Payload, Transmit};
use crate::pdu::{
    ADMIN_CAPSULE_DATA, Align, DataHeader, Digests, Expect, FatalError, Framing, IcReq, IcResp,
    InlineBytes, MIN_MAXH2CDATA, Pdu, PduType, Progress, R2t, Reader, Received, Side,
};
use crate::time::Instant;
use crate::wire::{Cqe, Sgl, Sqe, Status, U16};

/// How a queue shall behave.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) slots: u16,
    pub(super) digests: Digests,
    /// R2Ts at once per command.
    pub(super) r2ts: u8,
    /// How long a command, or the set-up, may take.
    pub(super) patience: Duration,
    /// Whether the controller may leave out the response to a read that succeeded.
    pub(super) quiet_reads: bool,
}

pub(super) struct Queue {
    state: State,
    shape: Shape,
    reader: Reader,
    framing: Framing,
    max_h2c: u32,
    capsule_data: u32,
    slots: Slots<Transfer>,
    /// Set-up, commands, and the last word.
    sends: VecDeque<Send>,
    /// Data that were asked for. Commands go first: they are small, and while the data are on their
    /// way the controller asks for the next.
    asked: VecDeque<Asked>,
    incoming: Option<Incoming>,
    done: VecDeque<(u16, Outcome)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    New,
    Setup { until: Instant },
    Open,
    Closed(Lost),
}

enum Send {
    Head(Transmit),
    Command { cid: u16 },
}

/// Data that an R2T asked for.
#[derive(Clone, Copy)]
struct Asked {
    cid: u16,
    ttag: u16,
    at: u32,
    end: u32,
}

/// Payload that is coming in.
#[derive(Clone, Copy)]
struct Incoming {
    cid: u16,
    at: u32,
    success: bool,
}

impl Queue {
    pub(super) fn new(shape: Shape) -> Queue {
        Queue {
            state: State::New,
            shape,
            reader: Reader::new(Side::Host),
            framing: Framing::default(),
            max_h2c: MIN_MAXH2CDATA,
            capsule_data: 0,
            slots: Slots::new(shape.slots),
            sends: VecDeque::new(),
            asked: VecDeque::new(),
            incoming: None,
            done: VecDeque::new(),
        }
    }

    /// The socket is connected.
    pub(super) fn start(&mut self, now: Instant) {
        if self.state == State::New {
            self.state = State::Setup { until: now.after(self.shape.patience) };
            let r2ts = u32::from(self.shape.r2ts.max(1)) - 1;
            let request = IcReq::new(0, self.shape.digests.to_field(), r2ts);
            self.sends.push_back(Send::Head(Transmit::bare(Framing::plain(request.as_bytes()))));
        }
    }

    /// Whether commands can be submitted.
    pub(super) fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// Why it is over, if it is.
    pub(super) fn lost(&self) -> Option<Lost> {
        match self.state {
            State::Closed(lost) => Some(lost),
            _ => None,
        }
    }

    /// How much data I/O commands may carry in their capsule.
    pub(super) fn set_capsule_data(&mut self, bytes: u32) {
        self.capsule_data = bytes;
    }

    pub(super) fn slots(&self) -> u16 {
        self.slots.count()
    }

    pub(super) fn used(&self) -> u16 {
        self.slots.used()
    }

    /// Sends a command; its identifier and data descriptor are filled in here. A command without a
    /// time may wait for ever. False if the queue is not open or the slot is taken.
    pub(super) fn submit(
        &mut self,
        slot: u16,
        mut sqe: Sqe,
        data: Data,
        from: Option<Instant>,
    ) -> bool {
        if self.state != State::Open {
            return false;
        }
        let out = data.out_len();
        let limit = if sqe.opcode == Sqe::FABRICS { ADMIN_CAPSULE_DATA } else { self.capsule_data };
        let in_capsule = if out <= limit { out } else { 0 };
        sqe.sgl = match data {
            Data::None => Sgl::transport(0),
            _ if in_capsule > 0 => Sgl::in_capsule(in_capsule),
            _ => Sgl::transport(data.len()),
        };
        let deadline = from.map(|now| now.after(self.shape.patience));
        let flight = Transfer::new(sqe, data, in_capsule, deadline);
        let Ok(cid) = self.slots.insert(slot, flight, from.is_some()) else { return false };
        if let Some((_, flight)) = self.slots.by_cid(cid) {
            flight.sqe.cid = U16::new(cid);
        }
        self.sends.push_back(Send::Command { cid });
        true
    }

    /// Takes how one command ended. Everything is taken before the loss of the connection counts.
    pub(super) fn poll_done(&mut self) -> Option<(u16, Outcome)> {
        self.done.pop_front()
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        match self.state {
            State::Setup { until } => Some(until),
            State::Open => self.slots.oldest().and_then(|(_, flight)| flight.deadline),
            State::New | State::Closed(_) => None,
        }
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if self.poll_timeout().is_some_and(|due| due <= now) {
            self.close(Lost::TimedOut, Some(now));
        }
    }

    /// Ends the connection: commands at work are lost, those overdue at `now` by their own fault.
    pub(super) fn close(&mut self, why: Lost, now: Option<Instant>) {
        if matches!(self.state, State::Closed(_)) {
            return;
        }
        self.state = State::Closed(why);
        self.incoming = None;
        self.sends.retain(|send| matches!(send, Send::Head(_)));
        self.asked.clear();
        for (slot, flight) in self.slots.drain() {
            let overdue = now.zip(flight.deadline).is_some_and(|(now, due)| due <= now);
            let lost = if why == Lost::TimedOut && !overdue { Lost::Closed } else { why };
            self.done.push_back((slot, Outcome::Lost(lost)));
        }
    }

    pub(super) fn need(&mut self) -> Need {
        if matches!(self.state, State::Closed(_)) {
            return Need::Nothing;
        }
        let (Expect::Payload(len), Some(incoming)) = (self.reader.expect(), self.incoming) else {
            return Need::Bytes;
        };
        match self.slots.by_cid(incoming.cid) {
            Some((slot, Transfer { data: Data::In { .. }, .. })) => {
                Need::Payload { slot, offset: incoming.at, len }
            }
            _ => Need::Bytes,
        }
    }

    /// Takes bytes from the socket until they are used up or payload for the caller is next.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> usize {
        let mut used = 0;
        while used < bytes.len() && self.need() == Need::Bytes {
            let rest = bytes.get(used..).unwrap_or_default();
            used += match self.reader.expect() {
                Expect::Payload(len) => {
                    let len = usize::try_from(len).unwrap_or(usize::MAX).min(rest.len());
                    let part = rest.get(..len).unwrap_or_default();
                    self.keep(part);
                    self.placed(part);
                    len
                }
                Expect::Head => match self.reader.feed(rest) {
                    Ok((taken, received)) => {
                        if let Err(error) = received.map_or(Ok(()), |what| self.on_received(what)) {
                            self.fail(error);
                        }
                        taken
                    }
                    Err(error) => {
                        self.fail(error);
                        rest.len()
                    }
                },
            };
        }
        if matches!(self.state, State::Closed(_)) { bytes.len() } else { used }
    }

    /// Counts payload that is where it belongs.
    pub(super) fn placed(&mut self, bytes: &[u8]) {
        let Some(incoming) = &mut self.incoming else { return };
        incoming.at = incoming.at.saturating_add(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        if self.reader.payload(bytes) == Progress::Complete {
            self.on_payload(true);
        }
    }

    /// The next PDU to send.
    pub(super) fn poll_transmit(&mut self) -> Option<Transmit> {
        while let Some(send) = self.sends.pop_front() {
            match send {
                Send::Head(transmit) => return Some(transmit),
                Send::Command { cid } => {
                    // A command that ended before it was sent is not sent.
                    let Some((slot, flight)) = self.slots.by_cid(cid) else { continue };
                    flight.sent = true;
                    flight.moved += flight.in_capsule;
                    let head = self.framing.capsule_cmd(&flight.sqe, flight.in_capsule);
                    let payload = flight.data.part(slot, 0, flight.in_capsule);
                    return Some(self.framed(head, payload));
                }
            }
        }
        self.next_data()
    }

    /// The next PDU with data that were asked for.
    fn next_data(&mut self) -> Option<Transmit> {
        loop {
            let asked @ Asked { cid, ttag, at, end } = self.asked.pop_front()?;
            let Some((slot, flight)) = self.slots.by_cid(cid) else { continue };
            let len = (end - at).min(self.max_h2c);
            let last = at + len == end;
            flight.moved += len;
            flight.r2ts -= u8::from(last);
            let payload = flight.data.part(slot, at, len);
            let head = self.framing.h2c_data((cid, ttag), at, len, last);
            if !last {
                // At the end of the line: one large write does not hold up the others.
                self.asked.push_back(Asked { at: at + len, ..asked });
            }
            return Some(self.framed(head, payload));
        }
    }

    fn framed(&self, head: InlineBytes<{ Framing::MAX_HEAD }>, payload: Payload) -> Transmit {
        let with_digest = self.framing.digests.data && payload != Payload::None;
        Transmit { head, payload, with_digest }
    }

    fn fail(&mut self, error: FatalError) {
        let head = Framing::term_req(Side::Host, error, self.reader.offending());
        self.close(Lost::Protocol(error), None);
        self.sends.push_back(Send::Head(Transmit::bare(head)));
    }

    fn on_received(&mut self, received: Received) -> Result<(), FatalError> {
        match received {
            Received::Payload { intact } => {
                self.on_payload(intact);
                Ok(())
            }
            Received::Head(Pdu::IcResp(answer)) => self.on_setup(answer),
            Received::Head(Pdu::Response(cqe)) => self.on_response(&cqe),
            Received::Head(Pdu::C2hData(header)) => self.on_data(&header),
            Received::Head(Pdu::R2t(r2t)) => self.on_r2t(&r2t),
            Received::Head(Pdu::TermReq(request)) => {
                let (fes, fei) = (request.fes.get(), request.fei.get());
                self.close(Lost::Terminated { fes, fei }, None);
                Ok(())
            }
            Received::Head(Pdu::IcReq(_) | Pdu::Command { .. } | Pdu::H2cData(_)) => {
                unreachable!("the reader of a host refuses what only hosts send")
            }
        }
    }

    fn on_setup(&mut self, answer: IcResp) -> Result<(), FatalError> {
        let bad = |at| FatalError::Unsupported { kind: PduType::IcResp, at };
        if answer.pfv.get() != 0 {
            return Err(bad(8));
        }
        let send_align = Align::from_field(answer.cpda).ok_or(bad(10))?;
        // Less than what was asked for would silently give up protection.
        if Digests::from_field(answer.dgst) != self.shape.digests {
            return Err(bad(11));
        }
        let max_h2c = answer.maxh2cdata.get();
        if max_h2c < MIN_MAXH2CDATA || !max_h2c.is_multiple_of(4) {
            return Err(bad(12));
        }
        self.framing =
            Framing { digests: self.shape.digests, send_align, receive_align: Align::default() };
        self.reader.establish(self.framing, 0);
        self.max_h2c = max_h2c;
        self.state = State::Open;
        Ok(())
    }

    fn on_response(&mut self, cqe: &Cqe) -> Result<(), FatalError> {
        let bad = FatalError::BadField { kind: PduType::CapsuleResp, at: 20 };
        let (slot, flight) = self.slots.by_cid(cqe.cid.get()).ok_or(bad)?;
        let status = cqe.status();
        if !flight.sent {
            return Err(FatalError::OutOfSequence { kind: PduType::CapsuleResp });
        }
        if status.is_success() && !flight.is_settled() {
            return Err(FatalError::OutOfSequence { kind: PduType::CapsuleResp });
        }
        self.finish(slot, status, cqe.result());
        Ok(())
    }

    fn on_data(&mut self, header: &DataHeader) -> Result<(), FatalError> {
        let kind = PduType::C2hData;
        let cid = header.cccid.get();
        let unknown = FatalError::BadField { kind, at: 8 };
        let (_, flight) = self.slots.by_cid(cid).ok_or(unknown)?;
        if !flight.sent || !flight.data.is_in() {
            return Err(unknown);
        }
        let (at, len) = (header.datao.get(), header.datal.get());
        let end = at.checked_add(len).filter(|end| *end <= flight.data.len());
        let end = end.ok_or(FatalError::OutOfRange { kind })?;
        if at != flight.moved {
            return Err(FatalError::OutOfRange { kind });
        }
        let success = header.is_success();
        flight.moved = end;
        if success && !(header.is_last() && self.shape.quiet_reads && flight.is_settled()) {
            return Err(FatalError::BadField { kind, at: 1 });
        }
        if at == 0
            && let Data::InOwned { len } = flight.data
        {
            flight.inbox.reserve_exact(usize::try_from(len).unwrap_or_default());
        }
        self.incoming = Some(Incoming { cid, at, success });
        Ok(())
    }

    fn on_r2t(&mut self, r2t: &R2t) -> Result<(), FatalError> {
        let kind = PduType::R2t;
        let (cid, ttag) = (r2t.cccid.get(), r2t.ttag.get());
        let unknown = FatalError::BadField { kind, at: 8 };
        let (_, flight) = self.slots.by_cid(cid).ok_or(unknown)?;
        if !flight.sent || flight.in_capsule > 0 || flight.data.out_len() == 0 {
            return Err(unknown);
        }
        let (at, len) = (r2t.r2to.get(), r2t.r2tl.get());
        let end = at.checked_add(len).filter(|end| *end <= flight.data.len());
        let end = end.ok_or(FatalError::OutOfRange { kind })?;
        if len == 0 || at != flight.granted {
            return Err(FatalError::OutOfRange { kind });
        }
        if flight.r2ts >= self.shape.r2ts.max(1) {
            return Err(FatalError::Limit { kind });
        }
        flight.granted = end;
        flight.r2ts += 1;
        self.asked.push_back(Asked { cid, ttag, at, end });
        Ok(())
    }

    fn keep(&mut self, bytes: &[u8]) {
        if let Some(incoming) = self.incoming
            && let Some((_, flight)) = self.slots.by_cid(incoming.cid)
        {
            flight.inbox.extend_from_slice(bytes);
        }
    }

    fn on_payload(&mut self, intact: bool) {
        let Some(incoming) = self.incoming.take() else { return };
        let Some((slot, flight)) = self.slots.by_cid(incoming.cid) else { return };
        flight.damaged |= !intact;
        if incoming.success {
            self.finish(slot, Status::SUCCESS, 0);
        }
    }

    fn finish(&mut self, slot: u16, status: Status, result: u64) {
        let Some(flight) = self.slots.remove(slot) else { return };
        if flight.r2ts > 0 {
            // Refused before all of its data were sent: the rest is of no use to anybody.
            self.asked.retain(|asked| asked.cid != flight.sqe.cid.get());
        }
        let damaged = flight.damaged && status.is_success();
        let status = if damaged { Status::TRANSIENT_TRANSPORT_ERROR } else { status };
        let outcome = Outcome::Answered { status, result, bytes: flight.inbox };
        self.done.push_back((slot, outcome));
    }
}

#[cfg(test)]
mod tests;
