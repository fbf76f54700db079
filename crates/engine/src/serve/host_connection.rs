//! One connection to the target: its stream, its protocol machine, its buffers.
//!
//! Invariants:
//! - What was received without a copy of its own (`SlotBuffer::Arrived`) belongs to a command that
//!   is carried out at once: no host can keep the receive buffers to itself.
//! - A link with jobs at work on a device stays until they came back, also when its socket is
//!   long closed: a reservation may wait for their end.

use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use block::{Command, Completion};
use nvme::target::{Connection, Event, Need, Payload, Slot, Transmit};
use nvme::time::Instant;
use reactor::{Buffer, Chain, Io, Key, MonotonicTime, SharedBuffer};

use super::connection_quota::PeerKind;
use super::exported_subsystem::ExportedSubsystem;
use super::local_path::LocalIo;
use super::slot_buffers::{SlotBuffer, SlotBuffers};
use super::token;
use crate::device::{Both, Data, Devices, Job, Task};
use crate::stream::Stream;

/// A command of a host: of which link.
pub(super) type Owner = (Key, Slot);

/// Who started a job.
#[derive(Clone, Copy, Debug)]
pub(super) enum JobOrigin {
    /// A host.
    Host(Owner),
    /// A volume of this core.
    Volume(LocalIo),
}

/// A connection.
pub(super) struct HostConnection {
    key: Option<Key>,
    pub(super) stream: Stream,
    pub(super) machine: Connection,
    pub(super) peer: SocketAddr,
    /// Among whom it has its place.
    pub(super) share: PeerKind,
    /// Which of the core's subsystems it was admitted to.
    pub(super) subsystem: Option<Key>,
    held: SlotBuffers,
    /// Most bytes that it may hold.
    held_limit: usize,
    /// Jobs at work.
    pub(super) at_work: u32,
    /// A payload that is being received directly into its buffer.
    direct: Option<DirectReceive>,
    /// Waits for a buffer for data that came in a capsule.
    pub(super) stalled: bool,
    /// Whether it waits to be looked at.
    pub(super) is_dirty: bool,
    pub(super) phase: Phase,
    /// When its end is no longer waited for.
    end_by: Option<MonotonicTime>,
}

/// How far a link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Open,
    /// On its way to another core: nothing is taken in any more.
    Moving,
    /// Sends what is left, then closes.
    Ending,
    /// The socket is closed.
    Closed,
}

/// A payload that is being received directly into its buffer: from where to where.
#[derive(Clone, Copy)]
struct DirectReceive {
    slot: Slot,
    from: usize,
    to: usize,
}

/// Something that had to wait for a buffer.
#[derive(Clone, Copy, Debug)]
pub(super) enum BufferWait {
    /// To read into.
    Read { slot: Slot, nsid: u32, command: Command },
    /// To take the host's data.
    Grant { slot: Slot, len: usize },
}

/// Buffers for data that the host must be asked for come from the larger classes: those for data
/// in capsules are then never used up by hosts that are slow to send, and so a stream that waits
/// for such a buffer always goes on.
const LEAST_GRANT: usize = 8193;
/// How long a host may take to read its last bytes.
const END_PATIENCE: Duration = Duration::from_secs(5);

impl HostConnection {
    pub(super) fn new(
        stream: Stream,
        machine: Connection,
        peer: SocketAddr,
        held_limit: usize,
    ) -> HostConnection {
        HostConnection {
            key: None,
            stream,
            machine,
            peer,
            share: PeerKind::Unproven,
            subsystem: None,
            held: SlotBuffers::default(),
            held_limit,
            at_work: 0,
            direct: None,
            stalled: false,
            is_dirty: false,
            phase: Phase::Open,
            end_by: None,
        }
    }

    /// Whether its Connect waits for a decision.
    pub(super) fn is_undecided(&self) -> bool {
        self.phase == Phase::Open && self.machine.need() == Need::Admission
    }

    /// Lets more bytes come, if they are wanted.
    pub(super) fn resume(&mut self, io: &mut impl Io) {
        if self.phase != Phase::Open || self.stalled || !self.stream.is_waiting() {
            return;
        }
        let token = token(super::RECEIVE, self.key);
        match self.machine.need() {
            Need::Payload { slot, offset, len, .. } if self.is_worth_it(slot, len) => {
                self.receive_into(slot, offset..offset.saturating_add(len), io);
            }
            Need::Bytes | Need::Payload { .. } => {
                let most = if self.held.expects_large() { Stream::LITTLE } else { Stream::MUCH };
                self.stream.receive(most, token, io);
            }
            Need::Admission | Need::Nothing => {}
        }
    }

    fn is_worth_it(&self, slot: Slot, len: u32) -> bool {
        usize::try_from(len).is_ok_and(|len| len >= Stream::WORTH_IT) && self.held.is_filling(slot)
    }

    /// Lets the rest of a payload come directly into its buffer.
    fn receive_into(&mut self, slot: Slot, part: Range<u32>, io: &mut impl Io) {
        let bytes = |count| usize::try_from(count).unwrap_or(usize::MAX);
        let (from, to) = (bytes(part.start), bytes(part.end));
        let SlotBuffer::Filling(buffer) = self.held.take(slot) else { return };
        self.held.put(slot, SlotBuffer::Away(buffer.len()));
        let token = token(super::RECEIVE, self.key);
        match self.stream.receive_into(buffer, (from, to), token, io) {
            Ok(()) => self.direct = Some(DirectReceive { slot, from, to }),
            Err(buffer) => self.held.put(slot, SlotBuffer::Filling(buffer)),
        }
    }

    /// A payload was received directly, or not.
    pub(super) fn received_into(&mut self, buffer: Buffer, result: &std::io::Result<()>) {
        self.stream.on_received_into(result);
        let Some(DirectReceive { slot, from, to }) = self.direct.take() else { return };
        if result.is_err() || self.phase != Phase::Open {
            self.held.take(slot);
            return;
        }
        self.machine.placed(buffer.get(from..to).unwrap_or_default());
        self.held.put(slot, SlotBuffer::Filling(buffer));
    }

    /// Sends what is left to send, then closes.
    pub(super) fn end(&mut self) {
        if self.phase != Phase::Closed {
            self.phase = Phase::Ending;
        }
    }

    /// Whether the time for its socket has come: it broke, or everything is said.
    pub(super) fn should_close(&mut self, now: MonotonicTime) -> bool {
        if self.phase == Phase::Closed {
            return false;
        }
        if self.machine.need() == Need::Nothing {
            self.end();
        }
        if self.phase == Phase::Ending {
            let deadline = *self.end_by.get_or_insert(now.after(END_PATIENCE));
            return self.stream.is_over() || self.stream.is_flushed() || now >= deadline;
        }
        self.stream.is_over()
    }

    /// Whether it must be looked at because of the time.
    pub(super) fn is_due(&self, now: Instant, moment: MonotonicTime) -> bool {
        self.machine.poll_timeout().is_some_and(|at| at <= now)
            || self.end_by.is_some_and(|at| at <= moment)
    }

    /// Its name, known once it has a place.
    pub(super) fn named(&mut self, key: Key) {
        self.key = Some(key);
    }

    /// Whether nothing of it is anywhere any more.
    pub(super) fn is_gone(&self) -> bool {
        self.phase == Phase::Closed && self.at_work == 0 && !self.stream.is_busy()
    }

    /// Feeds the machine with what came. Returns whether it got anything.
    pub(super) fn take_in(&mut self, io: &mut impl Io) -> bool {
        let mut progressed = false;
        self.stalled = false;
        while self.phase == Phase::Open {
            let bytes = self.stream.peek();
            if bytes.is_empty() {
                break;
            }
            let used = match self.machine.need() {
                Need::Bytes => self.machine.feed(bytes),
                Need::Payload { slot, len, total, at_once, .. }
                    if at_once && len == total && self.share(slot, len) =>
                {
                    usize::try_from(len).unwrap_or(usize::MAX)
                }
                Need::Payload { slot, offset, len, total, .. } => {
                    if !self.has_buffer(slot, total, io) {
                        self.stalled = true;
                        break;
                    }
                    self.place(slot, offset, len)
                }
                Need::Admission | Need::Nothing => break,
            };
            if used == 0 {
                break;
            }
            self.stream.consume(used);
            progressed = true;
        }
        progressed
    }

    /// Leaves a payload that is here as a whole where it is, if its slot has no buffer yet.
    fn share(&mut self, slot: Slot, len: u32) -> bool {
        if self.held.is_filling(slot) {
            return false;
        }
        let Some(bytes) = self.stream.share(usize::try_from(len).unwrap_or(usize::MAX)) else {
            return false;
        };
        self.machine.placed(&bytes);
        self.held.put(slot, SlotBuffer::Arrived(bytes));
        true
    }

    /// Puts arrived bytes into the buffer of a slot; returns how many.
    fn place(&mut self, slot: Slot, offset: u32, len: u32) -> usize {
        let bytes = self.stream.peek();
        let count = bytes.len().min(usize::try_from(len).unwrap_or(usize::MAX));
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let Some(SlotBuffer::Filling(buffer)) = self.held.get_mut(slot) else { return 0 };
        let place = start.checked_add(count).and_then(|end| buffer.get_mut(start..end));
        match (place, bytes.get(..count)) {
            (Some(place), Some(bytes)) => {
                place.copy_from_slice(bytes);
                self.machine.placed(place);
                count
            }
            _ => 0,
        }
    }

    fn has_buffer(&mut self, slot: Slot, total: u32, io: &mut impl Io) -> bool {
        if self.held.is_filling(slot) {
            return true;
        }
        let len = usize::try_from(total).unwrap_or(usize::MAX);
        match self.take(len, len, io) {
            Some(buffer) => self.held.put(slot, SlotBuffer::Filling(buffer)),
            None => return false,
        }
        true
    }

    /// A buffer, if there is one and this connection may have it.
    fn take(&mut self, len: usize, at_least: usize, io: &mut impl Io) -> Option<Buffer> {
        let held = self.held.bytes();
        if held > 0 && held.saturating_add(len) > self.held_limit {
            return None;
        }
        let mut buffer = io.take(len.max(at_least))?;
        buffer.truncate(len);
        Some(buffer)
    }

    /// Begins what an event asks for; gives back what must wait for a buffer.
    pub(super) fn begin(
        &mut self,
        event: Event,
        exported: &ExportedSubsystem,
        devices: &mut Devices<JobOrigin>,
        io: &mut impl Io,
    ) -> Option<BufferWait> {
        match event {
            Event::Io { slot, nsid, command: command @ Command::Read { .. } } => {
                return self.want(BufferWait::Read { slot, nsid, command }, exported, devices, io);
            }
            Event::Io { slot, nsid, command } => {
                let data = match command {
                    Command::Write { .. } | Command::Compare { .. } => match self.frozen(slot) {
                        Some(bytes) => Data::Bytes(bytes),
                        None => Data::None,
                    },
                    _ => Data::None,
                };
                self.start(slot, nsid, Task::Command(command), data, (exported, devices, io));
            }
            Event::CompareAndWrite { compare, write, nsid, span, fua } => {
                let data = match (self.frozen(compare), self.frozen(write)) {
                    (Some(expected), Some(new)) => Data::Both(Box::new(Both { expected, new })),
                    _ => Data::None,
                };
                let task = Task::CompareAndWrite { span, fua };
                self.start(write, nsid, task, data, (exported, devices, io));
            }
            Event::Buffer { slot, len } => {
                let len = usize::try_from(len).unwrap_or(usize::MAX);
                return self.want(BufferWait::Grant { slot, len }, exported, devices, io);
            }
            // Jobs are short; the answer comes when they are done. Messages were given to the
            // core, and what concerns authentication to the prover.
            Event::Cancel { .. } | Event::Entropy | Event::Message { .. } => {}
        }
        None
    }

    /// Tries to satisfy a want; gives it back if there is still no buffer.
    pub(super) fn want(
        &mut self,
        want: BufferWait,
        exported: &ExportedSubsystem,
        devices: &mut Devices<JobOrigin>,
        io: &mut impl Io,
    ) -> Option<BufferWait> {
        match want {
            BufferWait::Read { slot, nsid, command } => {
                let bytes = exported.bytes_of(nsid, command);
                match self.take(bytes, 0, io) {
                    Some(buffer) => {
                        let task = Task::Command(command);
                        self.start(slot, nsid, task, Data::Fill(buffer), (exported, devices, io));
                        None
                    }
                    None => Some(want),
                }
            }
            BufferWait::Grant { slot, len } => match self.take(len, LEAST_GRANT, io) {
                Some(buffer) => {
                    self.held.put(slot, SlotBuffer::Filling(buffer));
                    self.machine.buffer_ready(slot);
                    None
                }
                None => Some(want),
            },
        }
    }

    fn start(
        &mut self,
        slot: Slot,
        nsid: u32,
        task: Task,
        data: Data,
        (exported, devices, io): (&ExportedSubsystem, &mut Devices<JobOrigin>, &mut impl Io),
    ) {
        let bytes = match &data {
            Data::None => 0,
            Data::Fill(buffer) => buffer.len(),
            Data::Found(bytes) | Data::Bytes(bytes) => bytes.len(),
            Data::Both(both) => both.new.len(),
        };
        let (Some(key), Some(device)) = (self.key, exported.device(nsid)) else {
            self.machine.complete(slot, Err(block::IoError::Internal));
            return;
        };
        self.held.put(slot, SlotBuffer::Away(bytes));
        self.at_work += 1;
        if devices
            .start(device, Job { owner: JobOrigin::Host((key, slot)), task, data }, io)
            .is_err()
        {
            self.finished(slot, Err(block::IoError::Busy), Data::None);
        }
    }

    /// A job came back.
    pub(super) fn finished(&mut self, slot: Slot, completion: Completion, data: Data) {
        self.at_work = self.at_work.saturating_sub(1);
        match data {
            Data::Fill(buffer) if completion.is_ok() => {
                self.held.put(slot, SlotBuffer::Ready(buffer.freeze()));
            }
            Data::Found(bytes) if completion.is_ok() => {
                self.held.put(slot, SlotBuffer::Ready(bytes));
            }
            _ => {
                self.held.take(slot);
            }
        }
        self.machine.complete(slot, completion);
    }

    /// A message is being worked on; until it is answered the link stays.
    pub(super) fn message_begun(&mut self) {
        self.at_work += 1;
    }

    /// A message was worked on.
    pub(super) fn answered(&mut self, slot: Slot, answer: Result<Vec<u8>, block::IoError>) {
        self.at_work = self.at_work.saturating_sub(1);
        self.machine.answer(slot, answer);
    }

    fn frozen(&mut self, slot: Slot) -> Option<SharedBuffer> {
        match self.held.take(slot) {
            SlotBuffer::Filling(buffer) => Some(buffer.freeze()),
            SlotBuffer::Arrived(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// Hands everything that is to be sent to the kernel, as much at a time as it takes well.
    pub(super) fn flush(&mut self, io: &mut impl Io) {
        let token = token(super::SEND, self.key);
        let (machine, held) = (&mut self.machine, &mut self.held);
        self.stream.flush(token, io, |chain| {
            while !chain.is_full()
                && chain.len() < super::SEND_AT_ONCE
                && let Some(transmit) = machine.poll_transmit()
            {
                append(chain, &transmit, held);
            }
        });
    }
}

fn append(chain: &mut Chain, transmit: &Transmit, held: &mut SlotBuffers) {
    chain.copy(transmit.head.as_slice());
    match &transmit.payload {
        Payload::None => chain.copy(transmit.seal(&[]).as_slice()),
        Payload::Bytes(bytes) => {
            chain.copy(bytes);
            chain.copy(transmit.seal(bytes).as_slice());
        }
        Payload::Slot { slot, len } => {
            let len = usize::try_from(*len).unwrap_or(usize::MAX);
            if let Some(payload) = held.ready(*slot, len) {
                let tail = transmit.seal(&payload);
                chain.take(payload);
                chain.copy(tail.as_slice());
            }
        }
    }
    if let Some(slot) = transmit.frees {
        held.take(slot);
    }
}
