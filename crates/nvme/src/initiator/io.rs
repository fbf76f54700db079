//! One I/O queue of a controller.

use alloc::vec;
use alloc::vec::Vec;

use block::{Command, Completion, IoError};

use super::Association;
use super::command::encode;
use super::connect::{ConnectRefused, Progress, QueueConnect, SLOT, Wanted};
use super::fault;
use super::info::{ControllerInfo, Namespace};
use super::message::Message;
use super::queue::{Queue, Shape};
use super::reservation::{Report, Reservation};
use super::slots::MAX_SLOTS;
use super::transfer::Outcome;
use super::transmit::{Lost, Need, Transmit};
use crate::auth::Entropy;
use crate::time::Instant;

/// One I/O queue: `Setup ─► Login ─► Ready ─► over`.
///
/// A slot is a number below [`IoQueue::slots`] that names the caller's buffer; it may be used again
/// when its [`IoEvent::Done`] was polled.
pub struct IoQueue {
    queue: Queue,
    connect: QueueConnect,
    /// What is at work in each slot.
    work: Vec<Option<Work>>,
    refused: Option<ConnectRefused>,
    told_ready: bool,
    told_over: bool,
}

#[derive(Clone, Copy)]
enum Work {
    Block(Command),
    Reservation,
    Report,
    Message,
}

/// What became of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IoEvent {
    /// Random bytes are needed: call [`IoQueue::authenticate`].
    Entropy,
    /// Commands may be submitted.
    Ready,
    /// A block command or a reservation ended.
    Done {
        /// Which.
        slot: u16,
        /// How.
        result: Completion,
    },
    /// A report of the reservations.
    Reported {
        /// Which command.
        slot: u16,
        /// What it says.
        result: Result<Report, IoError>,
    },
    /// The answer to a message; what was told needs no bytes.
    Answered {
        /// Which command.
        slot: u16,
        /// What it says.
        result: Result<Vec<u8>, IoError>,
    },
    /// The queue cannot be used; it is closed.
    Refused(ConnectRefused),
    /// The connection is over; all slots have ended.
    Lost(Lost),
}

impl IoQueue {
    /// Queue `qid`, from 1, of a controller that [`super::Admin`] brought up.
    pub fn new(association: Association, controller: &ControllerInfo, qid: u16) -> IoQueue {
        let options = association.options;
        let most = controller.queue_entries.min(MAX_SLOTS);
        let entries = options.queue_entries.clamp(2, most.max(2));
        // One entry always stays empty: a full queue could not be told from an empty one.
        let slots = entries - 1;
        let mut queue = Queue::new(Shape {
            slots,
            digests: options.digests,
            r2ts: options.r2ts,
            patience: options.io_patience,
            quiet_reads: options.quiet_reads,
        });
        queue.set_capsule_data(controller.capsule_data);
        let wanted = Wanted {
            qid,
            entries,
            cntlid: controller.cntlid,
            kato: 0,
            quiet_reads: options.quiet_reads,
        };
        IoQueue {
            queue,
            connect: QueueConnect::new(association, wanted),
            work: vec![None; slots.into()],
            refused: None,
            told_ready: false,
            told_over: false,
        }
    }

    /// The socket is connected.
    pub fn start(&mut self, now: Instant) {
        self.queue.start(now);
    }

    /// How many commands may be at work at once.
    pub fn slots(&self) -> u16 {
        self.queue.slots()
    }

    /// How many are.
    pub fn in_flight(&self) -> u16 {
        self.queue.used()
    }

    /// Whether commands may be submitted.
    pub fn is_ready(&self) -> bool {
        self.told_ready && self.queue.is_open()
    }

    /// Sends a block command. The bytes of a write are at the start of the slot's buffer, those of
    /// a read go there.
    pub fn submit(
        &mut self,
        now: Instant,
        slot: u16,
        namespace: &Namespace,
        command: Command,
    ) -> Result<(), IoError> {
        command.check(namespace.geometry)?;
        if command.is_mutation() && namespace.read_only {
            return Err(IoError::ReadOnly);
        }
        if !namespace.can(command.kind()) {
            return Err(IoError::Unsupported);
        }
        let (sqe, data) = encode(command, namespace.nsid, namespace.limits)?;
        self.enqueue(slot, Work::Block(command), |queue| queue.submit(slot, sqe, data, Some(now)))
    }

    /// Sends a reservation command; its result is a completion, or a report.
    pub fn reserve(
        &mut self,
        now: Instant,
        slot: u16,
        nsid: u32,
        command: Reservation,
    ) -> Result<(), IoError> {
        let (sqe, data) = command.encode(nsid);
        let work = match command {
            Reservation::Report => Work::Report,
            _ => Work::Reservation,
        };
        self.enqueue(slot, work, |queue| queue.submit(slot, sqe, data, Some(now)))
    }

    /// Sends a message to the owner of a replica, if it is another engine of ours.
    pub fn send(
        &mut self,
        now: Instant,
        slot: u16,
        nsid: u32,
        message: Message,
    ) -> Result<(), IoError> {
        let (sqe, data) = message.encode(nsid)?;
        self.enqueue(slot, Work::Message, |queue| queue.submit(slot, sqe, data, Some(now)))
    }

    /// Random bytes, asked for by [`IoEvent::Entropy`].
    pub fn authenticate(&mut self, now: Instant, entropy: Entropy) {
        self.connect.authenticate(entropy, &mut self.queue, now);
    }

    /// What to do with bytes that arrive.
    pub fn need(&mut self) -> Need {
        self.queue.need()
    }

    /// Takes bytes from the socket; returns how many.
    pub fn feed(&mut self, bytes: &[u8]) -> usize {
        self.queue.feed(bytes)
    }

    /// Bytes that were put where [`Need::Payload`] said.
    pub fn placed(&mut self, bytes: &[u8]) {
        self.queue.placed(bytes);
    }

    /// The next PDU to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.queue.poll_transmit()
    }

    /// When to call [`IoQueue::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.queue.poll_timeout()
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.queue.handle_timeout(now);
    }

    /// The socket is gone, or the path is given up: every slot ends.
    pub fn close(&mut self) {
        self.queue.close(Lost::Closed, None);
    }

    /// What happened since the last call; to be called until there is nothing more.
    pub fn poll(&mut self, now: Instant) -> Option<IoEvent> {
        self.connect.begin(&mut self.queue, now);
        while let Some((slot, outcome)) = self.queue.poll_done() {
            let event = if self.connect.is_done() {
                self.on_done(slot, outcome)
            } else {
                self.on_login(outcome, now)
            };
            if event.is_some() {
                return event;
            }
        }
        let over = self.queue.lost().filter(|_| !self.told_over)?;
        self.told_over = true;
        Some(self.refused.map_or(IoEvent::Lost(over), IoEvent::Refused))
    }

    fn enqueue(
        &mut self,
        slot: u16,
        work: Work,
        submit: impl FnOnce(&mut Queue) -> bool,
    ) -> Result<(), IoError> {
        if !self.told_ready || !submit(&mut self.queue) {
            return Err(IoError::Busy);
        }
        if let Some(place) = self.work.get_mut(usize::from(slot)) {
            *place = Some(work);
        }
        Ok(())
    }

    fn on_login(&mut self, outcome: Outcome, now: Instant) -> Option<IoEvent> {
        debug_assert_eq!(SLOT, 0, "the login uses the first slot");
        match self.connect.on(outcome, &mut self.queue, now) {
            Progress::Pending => None,
            Progress::Entropy => Some(IoEvent::Entropy),
            Progress::Connected { .. } => {
                self.told_ready = true;
                Some(IoEvent::Ready)
            }
            Progress::Refused(why) => {
                self.refused = Some(why);
                self.close();
                None
            }
        }
    }

    fn on_done(&mut self, slot: u16, outcome: Outcome) -> Option<IoEvent> {
        let work = self.work.get_mut(usize::from(slot)).and_then(Option::take)?;
        Some(match (work, outcome) {
            (Work::Report, Outcome::Lost(why)) => {
                IoEvent::Reported { slot, result: Err(fault::lost(why)) }
            }
            (Work::Message, Outcome::Lost(why)) => {
                IoEvent::Answered { slot, result: Err(fault::lost(why)) }
            }
            (_, Outcome::Lost(why)) => IoEvent::Done { slot, result: Err(fault::lost(why)) },
            (Work::Block(command), Outcome::Answered { status, .. }) => {
                IoEvent::Done { slot, result: fault::completion(command, status) }
            }
            (Work::Reservation, Outcome::Answered { status, .. }) => {
                IoEvent::Done { slot, result: fault::completion(Command::Flush, status) }
            }
            (Work::Report, Outcome::Answered { status, bytes, .. }) => {
                let result = fault::completion(Command::Flush, status)
                    .and_then(|()| Report::parse(&bytes).ok_or(IoError::Internal));
                IoEvent::Reported { slot, result }
            }
            (Work::Message, Outcome::Answered { status, bytes, .. }) => {
                let result = fault::completion(Command::Flush, status).map(|()| bytes);
                IoEvent::Answered { slot, result }
            }
        })
    }
}
