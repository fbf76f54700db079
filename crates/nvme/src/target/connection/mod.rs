//! One connection: a queue of a host.
//!
//! ```text
//! Setup ─ICReq─► AwaitConnect ─Connect─► Deciding ─admit─► Live ─┐
//!   └───────────────┴────────────────────────┴── error, end ─────┴─► Ending
//! ```

mod authentication;
mod execute;
mod local_command;
mod receive;
mod slots;
mod transmit;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::mem::{replace, take};
use core::net::IpAddr;
use core::time::Duration;

use block::{Completion, IoError, SequenceMap};

use self::authentication::Authentication;
pub use self::authentication::{AuthDone, AuthWork};
pub use self::local_command::LocalCommand;
use self::slots::{Entry, Slots, Stage};
use super::command::{Answer, Peer, Ranges, fault_status};
use super::event::{ConnId, Event, Need, Slot};
use super::subsystem::{ConnectRequest, Hold, Refusal, Subsystem};
use crate::auth::{ControllerSide, Entropy};
use crate::pdu::{Align, Digests, Expect, FatalError, Framing, InlineBytes, Reader, Side};
use crate::time::Instant;
use crate::wire::{AUTH_REQUIRED, BadConnect, Fuse, IoOpcode, Sqe, Status};

/// What the driver says of its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionConfig {
    /// Most data in one data PDU of the host: at least 4096, a multiple of 4.
    pub max_h2c_data: u32,
    /// Digests that are agreed to if the host asks for them.
    pub digests: Digests,
    /// Alignment of payloads from the host. Linux takes nothing but the default.
    pub align: Align,
    /// How long a host may take from its first byte to the end of Connect.
    pub setup_timeout: Duration,
    /// How long a host may take to authenticate.
    pub auth_timeout: Duration,
    /// By which of our addresses the host came, if that is known. Discovery tells it this one
    /// where a listener has all of them.
    pub local: Option<IpAddr>,
}

impl Default for ConnectionConfig {
    fn default() -> ConnectionConfig {
        ConnectionConfig {
            max_h2c_data: 1 << 20,
            digests: Digests { header: true, data: true },
            align: Align::default(),
            setup_timeout: Duration::from_secs(5),
            auth_timeout: Duration::from_secs(30),
            local: None,
        }
    }
}

/// Commands that a host may send before it has a queue: one Connect, and a mistake or two.
const SETUP_DEPTH: u16 = 4;

enum Phase {
    Setup,
    AwaitConnect,
    Deciding { slot: Slot, request: Box<ConnectRequest> },
    Live(Peer),
    Ending,
}

/// Where the payload that is being read goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Into {
    /// Nowhere: its command was refused.
    Nothing,
    /// To the command's own data.
    Data(Slot),
    /// To the driver's buffer.
    Buffer(Slot),
}

/// Something to send.
enum Out {
    Head(InlineBytes<{ Framing::MAX_HEAD }>),
    AskForData(Slot),
    Answer(Slot),
}

/// How a host ended the connection.
#[derive(Clone, Copy, Debug)]
enum End {
    /// It broke the protocol.
    Error(FatalError),
    /// It said that we did.
    ByHost,
}

/// A preempt-and-abort that waits for commands of this connection.
#[derive(Clone, Copy, Debug)]
struct Fence {
    id: u64,
    nsid: u32,
    /// Commands that the device got before this are waited for.
    before: u64,
}

/// One connection of a host.
pub struct Connection {
    id: ConnId,
    config: ConnectionConfig,
    phase: Phase,
    reader: Reader,
    framing: Framing,
    slots: Slots,
    into: Into,
    /// A compare that waits for the write it is fused with.
    first: Option<Slot>,
    /// Commands to be carried out, in the order in which they became complete.
    ready: VecDeque<Slot>,
    events: VecDeque<Event>,
    /// The command whose ranges are being handed out.
    expanding: Option<(Slot, Ranges)>,
    /// Reservation commands that wait, with their answers.
    held: Vec<(Slot, Hold, Answer)>,
    /// Event requests.
    waiting: VecDeque<Slot>,
    out: VecDeque<Out>,
    fences: Vec<Fence>,
    auth: Authentication,
    /// The authentication message that waits for random bytes, or is worked on.
    auth_slot: Option<Slot>,
    queue_depth: u16,
    sqhd: u16,
    no_sq_flow: bool,
    issues: u64,
    /// Commands at work that came without a stream: when they were issued, on which namespace.
    direct: SequenceMap<u32>,
    epoch: u64,
    touched: Instant,
    deadline: Option<Instant>,
    detached: bool,
    /// The end came, and waits until what came before it has been carried out.
    end: Option<End>,
    error: Option<FatalError>,
}

impl Connection {
    /// A connection that was just accepted.
    pub fn new(id: ConnId, config: ConnectionConfig, now: Instant) -> Connection {
        Connection {
            id,
            config,
            phase: Phase::Setup,
            reader: Reader::new(Side::Controller),
            framing: Framing::default(),
            slots: Slots::new(SETUP_DEPTH),
            into: Into::Nothing,
            first: None,
            ready: VecDeque::new(),
            events: VecDeque::new(),
            expanding: None,
            held: Vec::new(),
            waiting: VecDeque::new(),
            out: VecDeque::new(),
            fences: Vec::new(),
            auth: Authentication::None,
            auth_slot: None,
            queue_depth: SETUP_DEPTH,
            sqhd: 0,
            no_sq_flow: false,
            issues: 0,
            direct: SequenceMap::default(),
            epoch: 0,
            touched: now,
            deadline: Some(now.after(config.setup_timeout)),
            detached: false,
            end: None,
            error: None,
        }
    }

    /// Its number.
    pub fn id(&self) -> ConnId {
        self.id
    }

    /// How many slots it has: the length of the driver's table of buffers. Fixed once admitted.
    pub fn slots(&self) -> usize {
        self.queue_depth.max(SETUP_DEPTH).into()
    }

    /// What ended it, if the host broke the protocol.
    pub fn error(&self) -> Option<FatalError> {
        self.error
    }

    /// What it needs next from its stream.
    pub fn need(&self) -> Need {
        match (&self.phase, self.into, self.reader.expect()) {
            (Phase::Ending, ..) => Need::Nothing,
            (Phase::Deciding { .. }, ..) => Need::Admission,
            (_, Into::Buffer(slot), Expect::Payload(len)) => {
                let (offset, total, at_once) = self.slots.get(slot).map_or((0, 0, true), |entry| {
                    (entry.received, entry.total, entry.sqe.fuse() == Fuse::Normal)
                });
                Need::Payload { slot, offset, len, total, at_once }
            }
            _ => Need::Bytes,
        }
    }

    /// The Connect command that waits for a decision.
    pub fn connect_request(&self) -> Option<&ConnectRequest> {
        match &self.phase {
            Phase::Deciding { request, .. } => Some(request),
            _ => None,
        }
    }

    /// Lets the subsystem decide on the Connect. With `auth` the host must prove itself first,
    /// unless that is optional.
    ///
    /// The answer, good or bad, waits in [`Connection::poll_transmit`].
    pub fn admit(
        &mut self,
        subsystem: &mut Subsystem,
        now: Instant,
        auth: Option<ControllerSide>,
    ) -> Result<(), Refusal> {
        let Some((slot, request)) = self.take_request() else {
            return Err(Refusal::Status(Status::SEQUENCE_ERROR));
        };
        let cntlid = match subsystem.connect(self.id, &request, now) {
            Ok(cntlid) => cntlid,
            Err(refusal) => {
                self.answer_connect(slot, refusal);
                return Err(refusal);
            }
        };
        let depth = request.connect.sqsize.saturating_add(1);
        self.slots.grow(depth);
        self.queue_depth = depth;
        self.ready.reserve(depth.into());
        self.out.reserve(depth.into());
        self.no_sq_flow = request.connect.no_sq_flow();
        self.epoch = subsystem.epoch();
        self.touched = now;
        let must_prove = auth.as_ref().is_some_and(|side| !side.is_optional());
        let required = if must_prove { AUTH_REQUIRED } else { 0 };
        self.deadline = must_prove.then(|| now.after(self.config.auth_timeout));
        self.auth = auth.map_or(Authentication::None, |side| Authentication::Here(Box::new(side)));
        if let Some(controller) = subsystem.controller(cntlid).filter(|_| request.connect.qid == 0)
        {
            controller.local = self.config.local;
        }
        let peer = Peer { conn: self.id, cntlid, qid: request.connect.qid, hostid: request.hostid };
        self.phase = Phase::Live(peer);
        self.arm_keep_alive(subsystem);
        self.finish(slot, Answer::result(u64::from(cntlid) | u64::from(required)));
        Ok(())
    }

    /// Refuses the Connect: there is no such subsystem here.
    pub fn refuse(&mut self, refusal: Refusal) {
        if let Some((slot, _)) = self.take_request() {
            self.answer_connect(slot, refusal);
        }
    }

    /// Refuses the Connect because no subsystem has the name that was asked for.
    pub fn refuse_unknown(&mut self) {
        self.refuse(Refusal::Parameter(BadConnect::SUBNQN));
    }

    /// A buffer for the data of `slot` is there: the host may send them.
    pub fn buffer_ready(&mut self, slot: Slot) {
        if let Some(entry) = self.slots.get_mut(slot)
            && entry.stage == Stage::AwaitGrant
        {
            entry.stage = Stage::Transferring;
            self.out.push_back(Out::AskForData(slot));
        }
    }

    /// A device command of `slot` is complete. Poll the connection afterwards.
    pub fn complete(&mut self, slot: Slot, completion: Completion) {
        let is_expanding = self.expanding.is_some_and(|(expanding, _)| expanding == slot);
        let Some(entry) = self.slots.get_mut(slot) else { return };
        if entry.stage != Stage::Device || entry.issued == 0 {
            return;
        }
        entry.issued -= 1;
        if let Err(fault) = completion
            && entry.failure.is_none()
        {
            let is_write = entry.sqe.opcode != IoOpcode::Read.code();
            entry.failure = Some(fault_status(fault, is_write));
        }
        if entry.issued == 0 && !is_expanding {
            self.device_done(slot);
        }
    }

    /// The bytes that came with the message of `slot`.
    pub fn message_payload(&self, slot: Slot) -> &[u8] {
        self.slots.get(slot).map_or(&[], |entry| &entry.data)
    }

    /// The message of `slot` was read, and this is the answer to it.
    pub fn answer(&mut self, slot: Slot, answer: Result<Vec<u8>, IoError>) {
        let Some(entry) = self.slots.get_mut(slot) else { return };
        let is_asked = entry.sqe.opcode == IoOpcode::Ask.code();
        match answer {
            Ok(bytes) if is_asked && entry.stage == Stage::Device => {
                entry.issued = 0;
                self.finish(slot, Answer::data(bytes));
            }
            answer => self.complete(slot, answer.map(|_| ())),
        }
    }

    /// Random bytes that [`Event::Entropy`] asked for. The message is worked on at once, which may
    /// take milliseconds; [`Connection::begin_authentication`] lets another thread do that.
    pub fn authenticate(&mut self, entropy: Entropy) {
        if let Some(work) = self.begin_authentication(entropy) {
            self.authenticated(work.run());
        }
    }

    /// Random bytes that [`Event::Entropy`] asked for, and back the work to be done with them. Its
    /// result is for [`Connection::authenticated`]; until then the host gets no answer.
    pub fn begin_authentication(&mut self, entropy: Entropy) -> Option<AuthWork> {
        let message = self.slots.get_mut(self.auth_slot?).map(|entry| take(&mut entry.data))?;
        let away = Authentication::Away { authenticated: self.is_authenticated() };
        match replace(&mut self.auth, away) {
            Authentication::Here(side) => Some(AuthWork { side, message, entropy }),
            other => {
                self.auth = other;
                None
            }
        }
    }

    /// The work of [`Connection::begin_authentication`] is done. Poll the connection afterwards.
    pub fn authenticated(&mut self, done: AuthDone) {
        if !matches!(self.auth, Authentication::Away { .. }) {
            return;
        }
        let is_over = done.side.failure().is_some();
        self.auth = Authentication::Here(done.side);
        match self.auth_slot.take() {
            Some(slot) if is_over => self.finish_last(slot, Answer::OK),
            Some(slot) => self.finish(slot, Answer::OK),
            None => {}
        }
    }

    /// When [`Connection::handle_timeout`] is to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.deadline.filter(|_| !matches!(self.phase, Phase::Ending))
    }

    /// Time has passed. The subsystem is needed once the connection has been admitted.
    pub fn handle_timeout(&mut self, subsystem: Option<&mut Subsystem>, now: Instant) {
        if self.deadline.is_none_or(|deadline| now < deadline) {
            return;
        }
        match (&self.phase, subsystem) {
            (Phase::Live(peer), Some(subsystem)) if self.is_authenticated() => {
                if peer.qid == 0 && subsystem.expire(peer.cntlid, now) {
                    self.phase = Phase::Ending;
                }
                self.arm_keep_alive(subsystem);
            }
            (Phase::Live(_), None) => {}
            // Too slow to set up or to authenticate.
            _ => self.phase = Phase::Ending,
        }
    }

    /// The socket is closed, whoever closed it. The connection must be kept, and polled after each
    /// completion, until it [is drained](Connection::is_drained).
    pub fn detach(&mut self, subsystem: &mut Subsystem) {
        self.phase = Phase::Ending;
        self.detached = true;
        self.expanding = None;
        self.out.clear();
        self.ready.clear();
        subsystem.detach(self.id);
        self.settle(subsystem);
    }

    /// Whether no command of it is at work on a device.
    pub fn is_drained(&self) -> bool {
        self.direct.is_empty() && !self.slots.iter().any(|(_, entry)| entry.issued > 0)
    }

    /// The Connect to decide on; the connection ends unless it becomes live.
    fn take_request(&mut self) -> Option<(Slot, Box<ConnectRequest>)> {
        match replace(&mut self.phase, Phase::Ending) {
            Phase::Deciding { slot, request } => Some((slot, request)),
            other => {
                self.phase = other;
                None
            }
        }
    }

    fn is_authenticated(&self) -> bool {
        match &self.auth {
            Authentication::None => true,
            Authentication::Here(side) => side.is_authenticated(),
            Authentication::Away { authenticated } => *authenticated,
        }
    }

    /// The stream is over. What came before is still carried out, so that it does not matter
    /// with how many bytes it came.
    fn stop_reading(&mut self, end: End) {
        self.end = Some(end);
        self.end_if_idle();
    }

    /// Ends the connection if that was due and nothing is left to carry out. A host that broke the
    /// protocol is told so, and that is the last it hears.
    fn end_if_idle(&mut self) {
        let is_idle = self.ready.is_empty() && self.events.is_empty() && self.expanding.is_none();
        if let Some(end) = self.end.take_if(|_| is_idle) {
            if let End::Error(error) = end {
                self.error = Some(error);
                let head = self.reader.offending();
                let term = Framing::term_req(Side::Controller, error, head);
                self.out.push_back(Out::Head(term));
            }
            self.phase = Phase::Ending;
        }
    }

    fn answer_connect(&mut self, slot: Slot, refusal: Refusal) {
        let cid = self.slots.get(slot).map_or(0, Entry::cid);
        let cqe = refusal.cqe(cid);
        self.finish_last(slot, Answer { result: cqe.result(), ..Answer::error(cqe.status()) });
    }

    /// Lets the answer of a command be sent, unless the host would not look at it any more.
    fn finish(&mut self, slot: Slot, answer: Answer) {
        if matches!(self.phase, Phase::Ending) {
            self.slots.release(slot);
        } else {
            self.send_answer(slot, answer);
        }
    }

    /// The last answer before the end.
    fn finish_last(&mut self, slot: Slot, answer: Answer) {
        self.send_answer(slot, answer);
        self.phase = Phase::Ending;
    }

    fn send_answer(&mut self, slot: Slot, answer: Answer) {
        let Some(entry) = self.slots.get_mut(slot) else { return };
        entry.answer = answer;
        entry.stage = Stage::Answered;
        // No host sends more data than it takes; a longer answer is cut to what it has room for.
        let room = usize::try_from(entry.sqe.sgl.length.get()).unwrap_or(usize::MAX);
        entry.answer.data.truncate(room);
        self.out.push_back(Out::Answer(slot));
    }

    fn finish_error(&mut self, slot: Slot, status: Status) {
        self.finish(slot, Answer::error(status));
    }

    fn arm_keep_alive(&mut self, subsystem: &mut Subsystem) {
        if let Phase::Live(Peer { qid: 0, cntlid, .. }) = self.phase
            && self.is_authenticated()
        {
            self.deadline = subsystem.controller(cntlid).and_then(|one| one.deadline());
        } else if self.is_authenticated() {
            self.deadline = None;
        }
    }

    /// Whether data of this command belong to the driver.
    fn is_buffered(&self, sqe: &Sqe) -> bool {
        let on_io_queue = matches!(self.phase, Phase::Live(Peer { qid: 1.., .. }));
        on_io_queue
            && (sqe.opcode == IoOpcode::Write.code() || sqe.opcode == IoOpcode::Compare.code())
    }
}
