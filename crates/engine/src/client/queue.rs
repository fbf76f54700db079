//! One connection to a controller: its stream, its machine, the data of its slots.

use nvme::initiator::{Admin, IoQueue, Need, Payload, Transmit};
use nvme::time::Instant;
use reactor::{Buffer, Chain, Io, Socket, Token};

use crate::device::Data;
use crate::stream::Stream;

/// What the two kinds of queue have in common.
pub(super) trait Machine {
    fn start(&mut self, now: Instant);
    fn need(&mut self) -> Need;
    fn feed(&mut self, bytes: &[u8]) -> usize;
    fn placed(&mut self, bytes: &[u8]);
    fn poll_transmit(&mut self) -> Option<Transmit>;
    fn close(&mut self);
}

macro_rules! machine {
    ($type:ty, $placed:expr) => {
        impl Machine for $type {
            fn start(&mut self, now: Instant) {
                self.start(now);
            }
            fn need(&mut self) -> Need {
                self.need()
            }
            fn feed(&mut self, bytes: &[u8]) -> usize {
                self.feed(bytes)
            }
            fn placed(&mut self, bytes: &[u8]) {
                let placed: fn(&mut $type, &[u8]) = $placed;
                placed(self, bytes);
            }
            fn poll_transmit(&mut self) -> Option<Transmit> {
                self.poll_transmit()
            }
            fn close(&mut self) {
                self.close();
            }
        }
    };
}

// The admin queue keeps its small payloads itself.
machine!(Admin, |_, _| ());
machine!(IoQueue, IoQueue::placed);

/// A request that is at work.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) tag: u64,
    pub(super) data: Data,
}

/// A connection to a controller.
pub(super) struct Queue<M> {
    pub(super) machine: M,
    stream: Option<Stream>,
    flights: Vec<Option<InFlight>>,
    free: Vec<u16>,
    /// Reads of much data that are at work.
    large: usize,
    /// A payload that is being received directly into its buffer.
    direct: Option<DirectReceive>,
}

/// A payload that is being received directly into its buffer: from where to where.
#[derive(Clone, Copy)]
struct DirectReceive {
    slot: u16,
    from: usize,
    to: usize,
}

impl InFlight {
    fn is_large(&self) -> bool {
        matches!(&self.data, Data::Fill(buffer) if buffer.len() >= Stream::LARGE)
    }
}

/// No more bytes than this are handed to the kernel in one send.
const SEND_AT_ONCE: usize = 1 << 20;

impl<M: Machine> Queue<M> {
    pub(super) fn new(machine: M, slots: u16) -> Queue<M> {
        let flights = (0..slots).map(|_| None).collect();
        let free = (0..slots).rev().collect();
        Queue { machine, stream: None, flights, free, large: 0, direct: None }
    }

    pub(super) fn connected(&mut self, socket: Socket, now: Instant) {
        self.stream = Some(Stream::new(socket));
        self.machine.start(now);
    }

    pub(super) fn stream(&mut self) -> Option<&mut Stream> {
        self.stream.as_mut()
    }

    pub(super) fn free_slot(&self) -> Option<u16> {
        self.free.last().copied()
    }

    /// Notes that the free slot is at work.
    pub(super) fn launch(&mut self, flight: InFlight) {
        if let Some(slot) = self.free.pop()
            && let Some(place) = self.flights.get_mut(usize::from(slot))
        {
            self.large += usize::from(flight.is_large());
            *place = Some(flight);
        }
    }

    /// A slot's command is over.
    pub(super) fn land(&mut self, slot: u16) -> Option<InFlight> {
        let flight = self.flights.get_mut(usize::from(slot))?.take()?;
        self.large = self.large.saturating_sub(usize::from(flight.is_large()));
        self.free.push(slot);
        Some(flight)
    }

    /// Everything still at work, when the connection is over; but not what the kernel still
    /// receives into.
    pub(super) fn land_all(&mut self) -> Vec<InFlight> {
        let away = self.direct.map(|direct| usize::from(direct.slot));
        let here = self.flights.iter_mut().enumerate().filter(|(slot, _)| Some(*slot) != away);
        here.filter_map(|(_, flight)| flight.take()).collect()
    }

    /// Whether the kernel still receives into a buffer of a request.
    pub(super) fn is_receiving_into(&self) -> bool {
        self.direct.is_some()
    }

    /// Lets more bytes come: the rest of a large payload directly into its buffer.
    fn resume(&mut self, token: Token, io: &mut impl Io) {
        let Some(stream) = self.stream.as_mut().filter(|stream| stream.is_waiting()) else {
            return;
        };
        let most = if self.large > 0 { Stream::LITTLE } else { Stream::MUCH };
        let Need::Payload { slot, offset, len } = self.machine.need() else {
            stream.receive(most, token, io);
            return;
        };
        let bytes = |count| usize::try_from(count).unwrap_or(usize::MAX);
        let (from, to) = (bytes(offset), bytes(offset).saturating_add(bytes(len)));
        let flight = self.flights.get_mut(usize::from(slot)).and_then(Option::as_mut);
        match flight.map(|flight| &mut flight.data) {
            Some(data @ Data::Fill(_)) if to - from >= Stream::WORTH_IT => {
                let Data::Fill(buffer) = core::mem::replace(data, Data::None) else { return };
                match stream.receive_into(buffer, (from, to), token, io) {
                    Ok(()) => self.direct = Some(DirectReceive { slot, from, to }),
                    Err(buffer) => *data = Data::Fill(buffer),
                }
            }
            _ => stream.receive(most, token, io),
        }
    }

    /// A payload was received directly, or not.
    pub(super) fn received_into(&mut self, buffer: Buffer, result: &std::io::Result<()>) {
        if let Some(stream) = &mut self.stream {
            stream.on_received_into(result);
        }
        let Some(DirectReceive { slot, from, to }) = self.direct.take() else { return };
        if result.is_ok() {
            self.machine.placed(buffer.get(from..to).unwrap_or_default());
        }
        if let Some(flight) = self.flights.get_mut(usize::from(slot)).and_then(Option::as_mut) {
            flight.data = Data::Fill(buffer);
        }
        self.take_in();
    }

    /// Feeds the machine with what came.
    pub(super) fn take_in(&mut self) {
        let Some(stream) = &mut self.stream else { return };
        loop {
            let bytes = stream.peek();
            if bytes.is_empty() {
                break;
            }
            let used = match self.machine.need() {
                Need::Bytes => self.machine.feed(bytes),
                Need::Payload { slot, offset, len } => {
                    let count = bytes.len().min(usize::try_from(len).unwrap_or(usize::MAX));
                    let Some(bytes) = bytes.get(..count) else { break };
                    let start = usize::try_from(offset).unwrap_or(usize::MAX);
                    let flight = self.flights.get_mut(usize::from(slot)).and_then(Option::as_mut);
                    // A read whose owner gave up has no place for its bytes.
                    if let Some(InFlight { data: Data::Fill(buffer), .. }) = flight
                        && let Some(end) = start.checked_add(count)
                        && let Some(place) = buffer.get_mut(start..end)
                    {
                        place.copy_from_slice(bytes);
                    }
                    self.machine.placed(bytes);
                    count
                }
                Need::Nothing => break,
            };
            if used == 0 {
                break;
            }
            stream.consume(used);
        }
        if stream.is_over() {
            self.machine.close();
        }
    }

    /// Sends what is to be sent, and lets more come.
    pub(super) fn flush(&mut self, send: Token, receive: Token, io: &mut impl Io) {
        let Some(stream) = &mut self.stream else { return };
        let (machine, flights) = (&mut self.machine, &self.flights);
        stream.flush(send, io, |chain| {
            while !chain.is_full()
                && chain.len() < SEND_AT_ONCE
                && let Some(transmit) = machine.poll_transmit()
            {
                append(chain, &transmit, flights);
            }
        });
        if machine.need() == Need::Nothing {
            if stream.is_flushed() || stream.is_over() {
                self.disconnect(io);
            }
        } else {
            self.resume(receive, io);
        }
    }

    pub(super) fn disconnect(&mut self, io: &mut impl Io) {
        if let Some(mut stream) = self.stream.take() {
            stream.close(io);
        }
    }
}

fn append(chain: &mut Chain, transmit: &Transmit, flights: &[Option<InFlight>]) {
    chain.copy(transmit.head.as_slice());
    let tail = match &transmit.payload {
        Payload::None => transmit.tail([]),
        Payload::Owned(bytes) => {
            chain.copy(bytes);
            transmit.tail([&**bytes])
        }
        Payload::Slot { slot, offset, len } => {
            let flight = flights.get(usize::from(*slot)).and_then(Option::as_ref);
            let start = usize::try_from(*offset).unwrap_or(usize::MAX);
            let len = usize::try_from(*len).unwrap_or(usize::MAX);
            let part = match flight {
                Some(InFlight { data: Data::Bytes(bytes), .. }) => bytes.part(start, len),
                _ => None,
            };
            match part {
                Some(part) => {
                    let tail = transmit.tail([&*part]);
                    chain.take(part);
                    tail
                }
                None => transmit.tail([]),
            }
        }
    };
    chain.copy(tail.as_slice());
}
