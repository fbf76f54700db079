//! The data thread of a worker: the descriptor of the kernel and the paths to the target.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use block::{Completion, Geometry};
use engine::client::{Remote, TOKEN_KINDS};
use engine::device::{Data, Finished};
use linux::fuse::{self, Channel, Reaction, Received, RequestId, Session};
use model::{PathState, PathStatus};
use nvme::initiator::{Association, Limits, PathId, PathState as InitiatorPath, Policy};
use nvme::wire::AnaState;
use reactor::{Event, FileId, Handler, Io, Key, MonotonicTime, Op, OpId, Token};
use tokio::sync::watch;

use super::{BEAT, NSID, READY, READY_FOR_GOOD, REQUESTS};
use crate::follow::{Phase, Rotation, Seen, changes};
use crate::requests::{Reply, Requests, Slot, Step};

/// What other threads tell the data thread.
#[derive(Debug)]
pub(super) enum Order {
    /// The target is there.
    Addresses(Vec<SocketAddr>),
    /// No path will ever work again.
    Dismissed,
}

const READABLE: u8 = 1;
const TICK: u8 = 2;
/// No token of a controller is of these kinds.
const _: () = assert!(READABLE < *TOKEN_KINDS.start() && TICK < *TOKEN_KINDS.start());

/// An address that has not worked for so long is left for the next one.
const ROTATE_AFTER: Duration = Duration::from_secs(2);
const BEAT_EVERY: Duration = Duration::from_secs(1);
const LEAST_PAUSE: Duration = Duration::from_millis(5);
/// Messages that are read before others have their turn.
const AT_ONCE: usize = 128;
/// The kernel reads no message into less than this.
const LARGEST_MESSAGE: usize = (1 << 20) + 4096;

pub(super) struct Worker {
    channel: Channel,
    readable: FileId,
    waits_for_more: bool,
    session: Session,
    volume: Geometry,
    requests: Requests,
    remote: Remote<Slot>,
    association: Association,
    next_path: u16,
    rotation: Rotation,
    /// When the address in use is left for another; unless it works.
    rotate_at: MonotonicTime,
    /// The publication is over: there is no path, and none is made.
    dismissed: bool,
    /// The last message; kept while there is no slot or buffer for it.
    message: Vec<u8>,
    kept: Option<Kept>,
    tick: Option<(MonotonicTime, OpId)>,
    beat_at: MonotonicTime,
    /// When a successor asks for what its predecessor had.
    resume_at: Option<MonotonicTime>,
    phase: Phase,
    seen: watch::Sender<Seen>,
}

/// A message that waits: a request, or a command whose slot it has.
#[derive(Clone, Copy)]
enum Kept {
    Request(RequestId, fuse::Command),
    Command(Slot, block::Command),
}

impl Worker {
    pub(super) fn new(
        (channel, readable): (Channel, FileId),
        (session, volume): (Session, Geometry),
        association: Association,
        policy: Policy,
        seen: watch::Sender<Seen>,
    ) -> Worker {
        let limits = Limits::of_protocol(volume.block_size());
        Worker {
            channel,
            readable,
            waits_for_more: false,
            session,
            volume,
            requests: Requests::new(REQUESTS, limits),
            remote: Remote::new(NSID, policy, 0),
            association,
            next_path: 0,
            rotation: Rotation::default(),
            rotate_at: MonotonicTime::default(),
            dismissed: false,
            message: vec![0xFF; LARGEST_MESSAGE],
            kept: None,
            tick: None,
            beat_at: MonotonicTime::default(),
            resume_at: None,
            phase: Phase::Starting,
            seen,
        }
    }

    /// Makes the path lead to one of these addresses.
    pub(super) fn follow(&mut self, addresses: &[SocketAddr], io: &mut impl Io) {
        if !self.dismissed && !addresses.is_empty() {
            self.rotation.set(addresses);
            self.connect_current(io);
        }
    }

    /// Drops every path for good: whatever is asked fails at once.
    fn dismiss(&mut self, io: &mut impl Io) {
        self.dismissed = true;
        let all: Vec<PathId> = self.remote.paths().map(|(id, ..)| id).collect();
        for id in all {
            self.remote.remove(id, io);
        }
    }

    fn connect_current(&mut self, io: &mut impl Io) {
        self.rotate_at = io.now().after(ROTATE_AFTER);
        let current: Vec<SocketAddr> = self.rotation.current().into_iter().collect();
        self.change_paths(&current, io);
    }

    /// Tries the next address if the one in use has not worked for long.
    fn rotate(&mut self, io: &mut impl Io) {
        if self.remote.is_usable(io) {
            self.rotate_at = io.now().after(ROTATE_AFTER);
        } else if self.rotation.has_choice() && !self.dismissed && self.rotate_at <= io.now() {
            self.rotation.advance();
            self.connect_current(io);
        }
    }

    fn change_paths(&mut self, addresses: &[SocketAddr], io: &mut impl Io) {
        let have: Vec<_> = self.remote.paths().map(|(id, address, _)| (id, address)).collect();
        let changes = changes(&have, addresses);
        for address in changes.add {
            // Ids of paths that are long gone may be used again.
            self.next_path = self.next_path.wrapping_add(1) % (u16::MAX - 1);
            let (id, association) = (PathId(self.next_path), self.association.clone());
            self.remote.add(id, address, association, address.ip().is_loopback(), io);
        }
        for id in changes.remove {
            self.remote.remove(id, io);
        }
    }

    /// Asks the kernel for the requests of a predecessor after this time.
    pub(super) fn resume_after(&mut self, pause: Duration, io: &mut impl Io) {
        self.phase = Phase::Greeted;
        self.resume_at = Some(io.now().after(pause));
    }

    /// Answers what has ended, and reads what is new, as far as there is room.
    fn pump(&mut self, io: &mut impl Io) {
        while let Some(Finished { owner: slot, completion, data }) = self.remote.poll() {
            self.ended(slot, completion, data, io);
        }
        if !self.retry_kept(io) {
            return;
        }
        for _ in 0..AT_ONCE {
            match self.channel.read(&mut self.message) {
                Ok(Received::Message(length)) => {
                    self.received(length, io);
                    if self.kept.is_some() {
                        return;
                    }
                }
                Ok(Received::Nothing) => break,
                Ok(Received::Unmounted) => {
                    self.phase = Phase::Over;
                    return;
                }
                Err(error) => {
                    tracing::error!(%error, "requests of the kernel cannot be read");
                    break;
                }
            }
        }
        self.wait_for_more(io);
    }

    fn wait_for_more(&mut self, io: &mut impl Io) {
        if !self.waits_for_more {
            let token = Token::of(READABLE, Key::from_bits(0));
            let op = Op::Ready { file: self.readable };
            self.waits_for_more = io.submit(op, token).is_ok();
        }
    }

    /// Whether nothing is kept any more.
    fn retry_kept(&mut self, io: &mut impl Io) -> bool {
        match self.kept.take() {
            None => {}
            Some(Kept::Request(id, command)) => self.begin(id, command, io),
            Some(Kept::Command(slot, command)) => self.submit(slot, command, io),
        }
        self.kept.is_none()
    }

    fn received(&mut self, length: usize, io: &mut impl Io) {
        let message = self.message.get(..length).unwrap_or_default();
        match self.session.receive(message) {
            Reaction::Reply(reply) => {
                if self.phase == Phase::Starting {
                    self.phase = Phase::Greeted;
                }
                self.write(&reply, &[]);
            }
            Reaction::Submit(id, command) => {
                // The bytes of a write are the last of the message, wherever its header ends.
                if let fuse::Command::Write { length: bytes, .. } = command {
                    let bytes = usize::try_from(bytes).unwrap_or_default();
                    let start = length.saturating_sub(bytes);
                    self.message.copy_within(start..length, 0);
                }
                self.begin(id, command, io);
            }
            Reaction::Ignore => {}
            Reaction::Unmounted => self.phase = Phase::Over,
        }
    }

    fn begin(&mut self, id: RequestId, command: fuse::Command, io: &mut impl Io) {
        match self.requests.begin(id, command, self.volume) {
            Ok(Step::Submit(slot, command)) => self.submit(slot, command, io),
            Ok(Step::Reply(reply)) => self.reply(reply, &[]),
            Err(_) => self.kept = Some(Kept::Request(id, command)),
        }
    }

    /// Sends the first command of a request, whose bytes are at the beginning of the message.
    fn submit(&mut self, slot: Slot, command: block::Command, io: &mut impl Io) {
        let Some(data) = self.data(command, io) else {
            self.kept = Some(Kept::Command(slot, command));
            return;
        };
        self.send(slot, command, data, io);
    }

    fn send(&mut self, slot: Slot, command: block::Command, data: Data, io: &mut impl Io) {
        if let Err((fault, data)) = self.remote.submit(slot, command, data, io) {
            self.ended(slot, Err(fault), data, io);
        }
    }

    /// A buffer for a command, filled if it writes; nothing while there is none.
    fn data(&self, command: block::Command, io: &mut impl Io) -> Option<Data> {
        let length = |span: block::Span| {
            let bytes = self.volume.block_size().bytes_of(span.len());
            bytes.and_then(|bytes| usize::try_from(bytes.0).ok()).unwrap_or(usize::MAX)
        };
        Some(match command {
            block::Command::Read { span } => Data::Fill(io.take(length(span))?),
            block::Command::Write { span, .. } => {
                let mut buffer = io.take(length(span))?;
                let bytes = self.message.get(..buffer.len()).unwrap_or_default();
                buffer.copy_from_slice(bytes);
                Data::Bytes(buffer.freeze())
            }
            _ => Data::None,
        })
    }

    fn ended(&mut self, slot: Slot, completion: Completion, data: Data, io: &mut impl Io) {
        match self.requests.done(slot, completion) {
            // What is larger than one command has no bytes: all that have fit into one.
            Some(Step::Submit(slot, rest)) => self.send(slot, rest, Data::None, io),
            Some(Step::Reply(reply)) => match data {
                Data::Fill(buffer) => self.reply(reply, &buffer),
                _ => self.reply(reply, &[]),
            },
            None => {}
        }
    }

    fn reply(&mut self, reply: Reply, data: &[u8]) {
        let Reply { id, command, outcome } = reply;
        if let Err(errno) = outcome {
            let error = io::Error::from_raw_os_error(errno);
            tracing::error!(?command, %error, "request of the kernel failed");
        }
        let data = if outcome.is_ok() { data } else { &[] };
        let head = self.session.complete(id, command, outcome.map(|()| data));
        self.write(&head, data);
    }

    fn write(&self, head: &[u8], data: &[u8]) {
        if let Err(error) = self.channel.write(head, data) {
            tracing::error!(%error, "an answer to the kernel was not taken");
        }
    }

    /// What is due by time.
    fn tick(&mut self, io: &mut impl Io) {
        self.remote.handle_timeout(io);
        if self.resume_at.is_some_and(|at| at <= io.now()) {
            self.resume_at = None;
            if let Some(notice) = fuse::resend(self.session.state()) {
                self.write(&notice, &[]);
            }
        }
        if self.beat_at <= io.now() {
            self.beat_at = io.now().after(BEAT_EVERY);
            say(BEAT);
            self.rotate(io);
            self.look(io);
        }
    }

    /// Arms the timer for what is due next.
    fn arm(&mut self, io: &mut impl Io) {
        let due = self.remote.poll_timeout(io).map(|at| {
            let nanos = at.since(block::Instant::default()).as_nanos();
            MonotonicTime::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
        });
        let mut at = self.beat_at;
        for due in due.into_iter().chain(self.resume_at) {
            at = at.min(due);
        }
        // What cannot be done yet although its time has come is not tried without a pause.
        let at = at.max(io.now().after(LEAST_PAUSE));
        if let Some((armed, op)) = self.tick {
            if armed <= at {
                return;
            }
            io.cancel(op);
        }
        let submitted = io.submit(Op::Timer { at }, Token::of(TICK, Key::from_bits(0)));
        self.tick = submitted.ok().map(|op| (at, op));
    }

    /// Looks at size and paths, and tells the other thread what has changed.
    fn look(&mut self, io: &mut impl Io) {
        let usable = self.remote.is_usable(io);
        let found = self.remote.namespace().map(|namespace| (namespace.geometry, namespace.limits));
        if let Some((geometry, limits)) = found
            && geometry.block_size() == self.volume.block_size()
        {
            self.requests.set_limits(limits);
            self.resize(geometry);
        }
        if usable && self.phase == Phase::Greeted {
            self.phase = Phase::Serving;
            let can_resend = self.session.state().can_resend;
            say(if can_resend { READY } else { READY_FOR_GOOD });
        }
        let seen = Seen {
            phase: self.phase,
            usable,
            bytes: self.volume.bytes().0,
            paths: self.remote.paths().map(path_status).collect(),
            addresses: self.rotation.addresses().to_vec(),
            can_resend: self.session.state().can_resend,
        };
        self.seen.send_if_modified(|had| {
            let differs = *had != seen;
            if differs {
                *had = seen;
            }
            differs
        });
    }

    /// Volumes only grow; what an old path shows is not believed.
    fn resize(&mut self, geometry: Geometry) {
        if geometry.bytes() > self.volume.bytes() {
            self.volume = geometry;
            self.session.resize(geometry.bytes().0);
            if self.phase == Phase::Serving {
                self.write(&fuse::size_changed(), &[]);
            }
        }
    }

    fn has_changed(&self, io: &impl Io) -> bool {
        let seen = self.seen.borrow();
        let bytes = self.remote.namespace().map(|found| found.geometry.bytes().0);
        seen.usable != self.remote.is_usable(io)
            || bytes.is_some_and(|bytes| bytes > seen.bytes)
            || (seen.usable && self.phase == Phase::Greeted)
    }
}

fn path_status((_, address, state): (PathId, SocketAddr, InitiatorPath)) -> PathStatus {
    let state = match state {
        InitiatorPath::Live { ana: AnaState::Optimized | AnaState::NonOptimized } => {
            PathState::Live
        }
        InitiatorPath::Live { .. } | InitiatorPath::Connecting => PathState::Connecting,
        InitiatorPath::Waiting { .. } => PathState::Lost,
        InitiatorPath::Abandoned => PathState::Deleting,
    };
    PathStatus { address, state }
}

/// Tells the supervisor. One that is gone, or stands still, is not waited for.
fn say(byte: u8) {
    let _ = rustix::io::write(io::stdout(), &[byte]);
}

impl Handler for Worker {
    type Message = Order;

    fn on(&mut self, event: Event<Order>, io: &mut impl Io<Message = Order>) {
        match event {
            Event::Message(Order::Addresses(addresses)) => self.follow(&addresses, io),
            Event::Message(Order::Dismissed) => self.dismiss(io),
            Event::Done { token, outcome } => match token.parts().0 {
                READABLE => self.waits_for_more = false,
                TICK => {
                    self.tick = None;
                    self.tick(io);
                }
                _ => {
                    self.remote.on(token, outcome, io);
                }
            },
        }
    }

    fn settle(&mut self, io: &mut impl Io<Message = Order>) -> bool {
        self.pump(io);
        self.remote.settle(io);
        if self.phase == Phase::Over || self.has_changed(io) {
            self.look(io);
        }
        self.arm(io);
        self.phase != Phase::Over
    }
}
