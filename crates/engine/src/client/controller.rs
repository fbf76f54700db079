//! One way to one subsystem.

use std::collections::VecDeque;
use std::net::SocketAddr;

use block::IoError;
use nvme::initiator::{
    Admin, AdminEvent, AdminRequest, AnaLog, Association, ConnectRefused, ControllerInfo, IoEvent,
    IoQueue, Message, Namespace, Reservation, Ticket,
};
use nvme::time::Instant;
use reactor::{Io, Op, Outcome, Refused, Token};

use super::queue::{InFlight, Queue};
use super::request::{ControllerEvent, Rejected, Request};
use super::{CONNECT, RECEIVE, SEND};
use crate::clock::instant;
use crate::device::Data;
use crate::entropy;

/// One way to one subsystem: `connecting ─► admin up ─► queues up: ready ─► over`.
pub struct Controller {
    id: u64,
    address: SocketAddr,
    association: Association,
    admin: Queue<Admin>,
    queues: Vec<Queue<IoQueue>>,
    ready_queues: usize,
    /// The queue that the next request is tried on first.
    next_queue: usize,
    info: Option<ControllerInfo>,
    namespaces: Vec<Namespace>,
    ana: Option<AnaLog>,
    happened: VecDeque<ControllerEvent>,
    /// Why the controller did not let us in, if so.
    refusal: Option<ConnectRefused>,
    /// Why it is lost. It is over once the kernel receives into no buffer of a request any more.
    lost: Option<String>,
    is_over: bool,
    shutting_down: Option<Ticket>,
}

impl Controller {
    /// Begins to connect. `id` must differ from that of every other controller of the reactor, also
    /// of those that are over.
    pub fn connect(
        id: u64,
        address: SocketAddr,
        association: Association,
        io: &mut impl Io,
    ) -> Controller {
        let admin = Queue::new(Admin::new(association.clone()), 0);
        let mut controller = Controller {
            id,
            address,
            association,
            admin,
            queues: Vec::new(),
            ready_queues: 0,
            next_queue: 0,
            info: None,
            namespaces: Vec::new(),
            ana: None,
            happened: VecDeque::new(),
            refusal: None,
            lost: None,
            is_over: false,
            shutting_down: None,
        };
        controller.open_socket(0, io);
        controller
    }

    /// The number that a token of one of the [`TOKEN_KINDS`](super::TOKEN_KINDS) was made for.
    pub fn id_of(token: Token) -> u64 {
        (token.0 & ((1 << 56) - 1)) >> 16
    }

    /// Its own number.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Ends it at once; [`ControllerEvent::Lost`] is the last that is heard.
    pub fn give_up(&mut self, why: &str, io: &mut impl Io) {
        self.lost(why.to_owned(), io);
    }

    /// What is known of the controller, once it is up.
    pub fn info(&self) -> Option<&ControllerInfo> {
        self.info.as_ref()
    }

    /// Its namespaces.
    pub fn namespaces(&self) -> &[Namespace] {
        &self.namespaces
    }

    /// Its ANA log, if it has one.
    pub fn ana(&self) -> Option<&AnaLog> {
        self.ana.as_ref()
    }

    /// Why it did not let us in, if so.
    pub fn refusal(&self) -> Option<ConnectRefused> {
        self.refusal
    }

    /// How many requests it can carry at once.
    pub fn slots(&self) -> u32 {
        self.queues.iter().map(|queue| u32::from(queue.machine.slots())).sum()
    }

    /// Whether nothing of it is left on the reactor.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Sends a request; hands it back with the reason if that cannot be now or ever.
    pub fn submit(&mut self, request: Request, io: &impl Io) -> Result<(), Rejected> {
        let Some(namespace) = self.namespaces.iter().find(|found| found.nsid == request.nsid)
        else {
            return Err(Rejected { fault: IoError::Unreachable, request });
        };
        let now = instant(io);
        let count = self.queues.len();
        for offset in 0..count {
            let index = (self.next_queue + offset) % count;
            let Some(queue) = self.queues.get_mut(index) else { continue };
            let Some(slot) = queue.free_slot() else { continue };
            match queue.machine.submit(now, slot, namespace, request.command) {
                Ok(()) => {
                    queue.launch(InFlight { tag: request.tag, data: request.data });
                    self.next_queue = (index + 1) % count;
                    return Ok(());
                }
                Err(IoError::Busy) => {}
                Err(fault) => return Err(Rejected { fault, request }),
            }
        }
        let fault = if self.is_lost() { IoError::Unreachable } else { IoError::Busy };
        Err(Rejected { fault, request })
    }

    /// Sends a reservation command; `false` if that cannot be now. Its result comes like that of a
    /// request with this tag, or as [`ControllerEvent::Reported`].
    pub fn reserve(&mut self, tag: u64, nsid: u32, reservation: Reservation, io: &impl Io) -> bool {
        let now = instant(io);
        let Some(queue) = self.queues.first_mut() else { return false };
        let Some(slot) = queue.free_slot() else { return false };
        if queue.machine.reserve(now, slot, nsid, reservation).is_err() {
            return false;
        }
        queue.launch(InFlight { tag, data: Data::None });
        true
    }

    /// Sends a message to the engine of a replica; hands it back if that cannot be now. Its answer
    /// comes as [`ControllerEvent::Replied`]; if the way is lost, as that of a request with this
    /// tag.
    pub fn send(
        &mut self,
        tag: u64,
        nsid: u32,
        message: Message,
        io: &impl Io,
    ) -> Result<(), Message> {
        let now = instant(io);
        let Some(queue) = self.queues.first_mut() else { return Err(message) };
        let Some(slot) = queue.free_slot() else { return Err(message) };
        if queue.machine.send(now, slot, nsid, message.clone()).is_err() {
            return Err(message);
        }
        queue.launch(InFlight { tag, data: Data::None });
        Ok(())
    }

    /// Reads the ANA log again; [`ControllerEvent::Ana`] follows, if the controller has one.
    pub fn refresh(&mut self, io: &impl Io) {
        self.admin.machine.refresh(instant(io));
    }

    /// Sends an admin command.
    pub fn request(&mut self, request: AdminRequest, io: &impl Io) -> Option<Ticket> {
        self.admin.machine.request(instant(io), request)
    }

    /// Ends the association in good order; [`ControllerEvent::Lost`] is the last that is heard.
    pub fn shut_down(&mut self, io: &impl Io) {
        self.shutting_down = self.admin.machine.shut_down(instant(io));
        if self.shutting_down.is_none() {
            self.close_all();
        }
    }

    /// An event with a token of ours.
    pub fn on(&mut self, token: Token, outcome: Outcome, io: &mut impl Io) {
        let (kind, _) = token.parts();
        let number = u16::try_from(token.0 & 0xFFFF).unwrap_or(u16::MAX);
        match (kind, outcome) {
            (CONNECT, Outcome::Connected(Ok(socket))) => {
                let now = instant(io);
                if self.is_lost() {
                    io.close(socket);
                } else if number == 0 {
                    self.admin.connected(socket, now);
                } else if let Some(queue) = self.queue(number) {
                    queue.connected(socket, now);
                }
            }
            (CONNECT, Outcome::Connected(Err(error))) => {
                self.lost(format!("cannot connect to {}: {error}", self.address), io);
            }
            (RECEIVE, Outcome::Received(result)) => {
                if number == 0 {
                    if let Some(stream) = self.admin.stream() {
                        stream.on_received(result);
                    }
                    self.admin.take_in();
                } else if let Some(queue) = self.queue(number) {
                    if let Some(stream) = queue.stream() {
                        stream.on_received(result);
                    }
                    queue.take_in();
                }
            }
            (RECEIVE, Outcome::ReceivedInto { buffer, result }) => {
                // The admin queue has no buffers.
                if let Some(queue) = self.queue(number) {
                    queue.received_into(buffer, &result);
                }
                self.end_if_lost();
            }
            (SEND, Outcome::Sent { chain, result }) => {
                let stream = if number == 0 {
                    self.admin.stream()
                } else {
                    self.queue(number).and_then(Queue::stream)
                };
                if let Some(stream) = stream {
                    stream.on_sent(chain, &result);
                }
            }
            _ => {}
        }
    }

    /// What happened, one at a time; to be called until there is nothing more.
    pub fn poll(&mut self, io: &mut impl Io) -> Option<ControllerEvent> {
        let now = instant(io);
        loop {
            if let Some(happened) = self.happened.pop_front() {
                return Some(happened);
            }
            if self.is_lost() {
                return None;
            }
            if let Some(event) = self.admin.machine.poll(now) {
                self.on_admin(event, io);
            } else if let Some((index, event)) = self
                .queues
                .iter_mut()
                .enumerate()
                .find_map(|(index, queue)| queue.machine.poll(now).map(|event| (index, event)))
            {
                self.on_queue(index, event, io);
            } else {
                return None;
            }
        }
    }

    /// A batch of events is over: sends what they left to send.
    pub fn settle(&mut self, io: &mut impl Io) {
        let (admin_send, admin_receive) = (self.token(SEND, 0), self.token(RECEIVE, 0));
        self.admin.flush(admin_send, admin_receive, io);
        let id = self.id;
        for (queue, number) in self.queues.iter_mut().zip(1..) {
            queue.flush(token(SEND, id, number), token(RECEIVE, id, number), io);
        }
    }

    /// When [`Controller::handle_timeout`] is to be called, at the latest.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let queues = self.queues.iter().filter_map(|queue| queue.machine.poll_timeout());
        queues.chain(self.admin.machine.poll_timeout()).min()
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, io: &impl Io) {
        let now = instant(io);
        self.admin.machine.handle_timeout(now);
        for queue in &mut self.queues {
            queue.machine.handle_timeout(now);
        }
    }

    fn queue(&mut self, number: u16) -> Option<&mut Queue<IoQueue>> {
        self.queues.get_mut(usize::from(number.checked_sub(1)?))
    }

    fn token(&self, kind: u8, number: u16) -> Token {
        token(kind, self.id, number)
    }

    fn open_socket(&mut self, number: u16, io: &mut impl Io) {
        let op = Op::Connect { to: self.address };
        match io.submit(op, self.token(CONNECT, number)) {
            Ok(_) => {}
            Err(Refused::NoSocket(error)) => {
                self.lost(format!("cannot open a socket: {error}"), io);
            }
            Err(_) => self.lost("too many connections in this process".into(), io),
        }
    }

    fn on_admin(&mut self, event: AdminEvent, io: &mut impl Io) {
        match event {
            AdminEvent::Entropy => match entropy::fresh() {
                Ok(entropy) => self.admin.machine.authenticate(instant(io), entropy),
                Err(error) => self.lost(format!("there are no random numbers: {error}"), io),
            },
            AdminEvent::Ready { controller, namespaces, ana } => {
                (self.namespaces, self.ana) = (namespaces, ana);
                self.open_queues(controller, io);
            }
            AdminEvent::Ana(log) => {
                self.ana = Some(log);
                self.happened.push_back(ControllerEvent::Ana);
            }
            AdminEvent::Namespaces(found) => {
                self.namespaces = found;
                self.happened.push_back(ControllerEvent::Namespaces);
            }
            AdminEvent::Discovery => self.happened.push_back(ControllerEvent::Discovery),
            AdminEvent::Reservation(it) => {
                self.happened.push_back(ControllerEvent::Notice(it.kind));
            }
            AdminEvent::Answered(ticket, _) if self.shutting_down == Some(ticket) => {
                self.lost("shut down".into(), io);
            }
            AdminEvent::Answered(ticket, answer) => {
                self.happened.push_back(ControllerEvent::Answered(ticket, answer));
            }
            AdminEvent::Refused(why) => self.refused(why, io),
            AdminEvent::Lost(why) => self.lost(why.to_string(), io),
        }
    }

    fn open_queues(&mut self, info: ControllerInfo, io: &mut impl Io) {
        let wanted = self.association.options.io_queues.min(info.io_queues);
        for number in 1..=wanted {
            let machine = IoQueue::new(self.association.clone(), &info, number);
            let slots = machine.slots();
            self.queues.push(Queue::new(machine, slots));
            self.open_socket(number, io);
        }
        self.info = Some(info);
        if wanted == 0 {
            self.happened.push_back(ControllerEvent::Ready);
        }
    }

    fn on_queue(&mut self, index: usize, event: IoEvent, io: &mut impl Io) {
        let Some(queue) = self.queues.get_mut(index) else { return };
        match event {
            IoEvent::Entropy => match entropy::fresh() {
                Ok(entropy) => queue.machine.authenticate(instant(io), entropy),
                Err(error) => self.lost(format!("there are no random numbers: {error}"), io),
            },
            IoEvent::Ready => {
                self.ready_queues += 1;
                if self.ready_queues == self.queues.len() {
                    self.happened.push_back(ControllerEvent::Ready);
                }
            }
            IoEvent::Done { slot, result } => {
                if let Some(InFlight { tag, data }) = queue.land(slot) {
                    self.happened.push_back(ControllerEvent::Done { tag, result, data });
                }
            }
            IoEvent::Reported { slot, result } => {
                if let Some(InFlight { tag, .. }) = queue.land(slot) {
                    self.happened.push_back(ControllerEvent::Reported { tag, result });
                }
            }
            IoEvent::Answered { slot, result } => {
                if let Some(InFlight { tag, .. }) = queue.land(slot) {
                    self.happened.push_back(ControllerEvent::Replied { tag, result });
                }
            }
            IoEvent::Refused(why) => self.refused(why, io),
            IoEvent::Lost(why) => self.lost(why.to_string(), io),
        }
    }

    fn close_all(&mut self) {
        self.admin.machine.close();
        for queue in &mut self.queues {
            queue.machine.close();
        }
    }

    fn refused(&mut self, why: ConnectRefused, io: &mut impl Io) {
        self.refusal = Some(why);
        let cause = std::error::Error::source(&why).map(|cause| format!(": {cause}"));
        self.lost(format!("{why}{}", cause.unwrap_or_default()), io);
    }

    /// Ends everything: a controller with a part missing is of no use.
    fn lost(&mut self, why: String, io: &mut impl Io) {
        if self.is_lost() {
            return;
        }
        self.lost = Some(why);
        self.close_all();
        self.admin.disconnect(io);
        for queue in &mut self.queues {
            queue.disconnect(io);
        }
        self.end_if_lost();
    }

    fn is_lost(&self) -> bool {
        self.is_over || self.lost.is_some()
    }

    /// Hands all requests back after a loss, and says so when that were all.
    fn end_if_lost(&mut self) {
        if self.lost.is_none() {
            return;
        }
        for queue in &mut self.queues {
            for InFlight { tag, data } in queue.land_all() {
                let result = Err(IoError::Unreachable);
                self.happened.push_back(ControllerEvent::Done { tag, result, data });
            }
        }
        if !self.queues.iter().any(Queue::is_receiving_into)
            && let Some(why) = self.lost.take()
        {
            self.is_over = true;
            self.happened.push_back(ControllerEvent::Lost { why });
        }
    }
}

fn token(kind: u8, id: u64, number: u16) -> Token {
    Token((u64::from(kind) << 56) | ((id << 16) & ((1 << 56) - 1)) | u64::from(number))
}
