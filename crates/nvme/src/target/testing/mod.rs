//! A driver for tests: memory instead of devices, vectors instead of sockets.
//!
//! It does what the module's documentation asks of a driver, one call at a time, so that tests and
//! fuzzers see exactly what a host would see. Device commands are carried out at once, or kept
//! until the test lets them go ([`Driver::hold_io`]).

pub mod fuzz;

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use block::{Command, Completion, IoError, Span};

use super::{
    ConnId, Connection, ConnectionConfig, Direction, Effect, Event, LocalCommand, Message, Need,
    Payload, Slot, Subsystem,
};
use crate::auth::{ControllerSide, Entropy, Sequence};
use crate::time::Instant;

/// Makes the authentication of a queue from its Connect.
pub type Authentication = Box<dyn FnMut(&super::ConnectRequest) -> Option<ControllerSide>>;

/// A driver around one subsystem.
pub struct Driver {
    /// The subsystem.
    pub subsystem: Subsystem,
    /// Contents of the namespaces.
    pub disks: BTreeMap<u32, Vec<u8>>,
    /// What the clock says.
    pub now: Instant,
    /// Keep device commands in [`Driver::held`] instead of carrying them out.
    pub hold_io: bool,
    /// Device commands that were kept.
    pub held: Vec<(ConnId, Event)>,
    /// Keep what is to be made durable or proved in [`Driver::unpersisted`] instead of answering
    /// it.
    pub hold_persist: bool,
    /// Another node serves all volumes.
    pub is_replaced: bool,
    /// Effects that were kept.
    pub unpersisted: Vec<Effect>,
    /// What was told, by topic; asked for, it is given back.
    pub notes: BTreeMap<u32, Vec<u8>>,
    /// Cancels that were asked for.
    pub cancels: Vec<(ConnId, Slot)>,
    /// How many bytes at most reach a connection in one piece.
    pub chunk: usize,
    /// Authentication, if hosts must.
    pub authentication: Option<Authentication>,
    sequence: Sequence,
    config: ConnectionConfig,
    links: BTreeMap<ConnId, Link>,
    next: u64,
}

struct Link {
    conn: Connection,
    inbox: Vec<u8>,
    buffers: BTreeMap<Slot, Vec<u8>>,
    sent: Vec<u8>,
    closed: bool,
}

impl Driver {
    /// A driver around `subsystem`.
    pub fn new(subsystem: Subsystem, config: ConnectionConfig) -> Driver {
        Driver {
            subsystem,
            disks: BTreeMap::new(),
            now: Instant::default(),
            hold_io: false,
            held: Vec::new(),
            hold_persist: false,
            is_replaced: false,
            unpersisted: Vec::new(),
            notes: BTreeMap::new(),
            cancels: Vec::new(),
            chunk: usize::MAX,
            authentication: None,
            sequence: Sequence::starting_at(1),
            config,
            links: BTreeMap::new(),
            next: 0,
        }
    }

    /// Accepts a connection.
    pub fn open(&mut self) -> ConnId {
        let id = ConnId(self.next);
        self.next += 1;
        let conn = Connection::new(id, self.config, self.now);
        let (inbox, sent) = (Vec::new(), Vec::new());
        self.links.insert(id, Link { conn, inbox, buffers: BTreeMap::new(), sent, closed: false });
        id
    }

    /// Bytes come from the host.
    pub fn send(&mut self, id: ConnId, bytes: &[u8]) {
        for chunk in bytes.chunks(self.chunk.max(1)) {
            if let Some(link) = self.links.get_mut(&id) {
                link.inbox.extend_from_slice(chunk);
            }
            self.run(id);
        }
    }

    /// Bytes for the host.
    pub fn take_sent(&mut self, id: ConnId) -> Vec<u8> {
        self.links.get_mut(&id).map(|link| core::mem::take(&mut link.sent)).unwrap_or_default()
    }

    /// Whether the connection is over.
    pub fn is_closed(&self, id: ConnId) -> bool {
        self.links.get(&id).is_none_or(|link| link.closed)
    }

    /// The connection.
    pub fn connection(&self, id: ConnId) -> Option<&Connection> {
        self.links.get(&id).map(|link| &link.conn)
    }

    /// The host closes its end.
    pub fn close(&mut self, id: ConnId) {
        if let Some(link) = self.links.get_mut(&id) {
            link.closed = true;
            link.conn.detach(&mut self.subsystem);
        }
        self.effects();
    }

    /// Time passes.
    pub fn advance(&mut self, by: core::time::Duration) {
        self.now = self.now.after(by);
        let ids: Vec<ConnId> = self.links.keys().copied().collect();
        for id in ids {
            let Some(link) = self.links.get_mut(&id) else { continue };
            if link.conn.poll_timeout().is_some_and(|at| at <= self.now) {
                link.conn.handle_timeout(Some(&mut self.subsystem), self.now);
            }
            self.run(id);
        }
        self.effects();
    }

    /// Carries out a device command that was kept, or ends it as told.
    pub fn release(&mut self, id: ConnId, event: Event, end: Option<Completion>) {
        let (Event::Io { slot, .. }
        | Event::CompareAndWrite { write: slot, .. }
        | Event::Message { slot, .. }) = event
        else {
            return;
        };
        let completion = end.unwrap_or_else(|| self.carry_out(id, event));
        if let Some(link) = self.links.get_mut(&id) {
            link.conn.complete(slot, completion);
        }
        self.run(id);
    }

    /// Takes down what is told, and gives back what is asked for.
    fn answer(&mut self, id: ConnId, slot: Slot, message: Message) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let answer = match message.way {
            Direction::Push => {
                self.notes.insert(message.topic, link.conn.message_payload(slot).to_vec());
                Ok(Vec::new())
            }
            Direction::Pull { .. } => {
                self.notes.get(&message.topic).cloned().ok_or(IoError::Unsupported)
            }
        };
        link.conn.answer(slot, answer);
    }

    /// Begins a command that comes without a stream, on the first namespace.
    pub fn begin_local(&mut self, id: ConnId, command: Command) -> Result<LocalCommand, IoError> {
        let link = self.links.get_mut(&id).ok_or(IoError::Unreachable)?;
        link.conn.begin_local(&mut self.subsystem, 1, command)
    }

    /// A command that came without a stream is over.
    pub fn end_local(&mut self, id: ConnId, direct: LocalCommand) {
        if self.links.get_mut(&id).is_some_and(|link| link.conn.end_local(direct)) {
            self.run(id);
        }
    }

    /// Says that kept persist effects are durable, or that they failed.
    pub fn persist(&mut self, done: bool) {
        for effect in core::mem::take(&mut self.unpersisted) {
            match effect {
                Effect::Persist { nsid, version, .. } => {
                    self.subsystem.persisted(nsid, version, done);
                }
                Effect::ProveOwnership { nsid, number } => {
                    self.subsystem.ownership_proved(nsid, number, done);
                }
                Effect::Disconnect(_) | Effect::Wake(_) => {}
            }
        }
        self.effects();
    }

    /// Does everything that can be done.
    pub fn effects(&mut self) {
        while let Some(effect) = self.subsystem.poll_effect() {
            match effect {
                Effect::Persist { .. } | Effect::ProveOwnership { .. } if self.hold_persist => {
                    self.unpersisted.push(effect);
                }
                Effect::Persist { nsid, version, .. } => {
                    self.subsystem.persisted(nsid, version, true);
                }
                Effect::ProveOwnership { nsid, number } => {
                    self.subsystem.ownership_proved(nsid, number, !self.is_replaced);
                }
                Effect::Disconnect(id) => {
                    self.flush(id);
                    if let Some(link) = self.links.get_mut(&id) {
                        link.closed = true;
                        link.conn.detach(&mut self.subsystem);
                    }
                }
                Effect::Wake(id) => self.work(id),
            }
        }
    }

    fn run(&mut self, id: ConnId) {
        while self.step(id) {
            self.work(id);
        }
        self.work(id);
        self.effects();
        let ended = self
            .links
            .get(&id)
            .is_some_and(|link| matches!(link.conn.need(), Need::Nothing) && !link.closed);
        if ended {
            self.close(id);
        }
    }

    /// Gives the connection what it needs next; says whether anything moved.
    fn step(&mut self, id: ConnId) -> bool {
        let Some(link) = self.links.get_mut(&id) else { return false };
        match link.conn.need() {
            Need::Nothing => false,
            Need::Admission => {
                let Some(request) = link.conn.connect_request() else { return false };
                let auth = self.authentication.as_mut().and_then(|make| make(request));
                // A refusal is answered by the connection itself.
                let _ = link.conn.admit(&mut self.subsystem, self.now, auth);
                true
            }
            Need::Bytes => {
                let count = link.conn.feed(&link.inbox);
                link.inbox.drain(..count);
                count > 0
            }
            Need::Payload { slot, offset, len, total, .. } => {
                let count = link.inbox.len().min(usize::try_from(len).unwrap_or(0));
                let bytes: Vec<u8> = link.inbox.drain(..count).collect();
                let buffer = link.buffers.entry(slot).or_default();
                buffer.resize(usize::try_from(total).unwrap_or(0), 0);
                let at = usize::try_from(offset).unwrap_or(0);
                if let Some(room) = buffer.get_mut(at..at + count) {
                    room.copy_from_slice(&bytes);
                }
                link.conn.placed(&bytes);
                count > 0
            }
        }
    }

    fn work(&mut self, id: ConnId) {
        loop {
            let Some(link) = self.links.get_mut(&id) else { return };
            let Some(event) = link.conn.poll(&mut self.subsystem, self.now) else { break };
            match event {
                Event::Buffer { slot, len } => {
                    let len = usize::try_from(len).unwrap_or(0);
                    link.buffers.insert(slot, alloc::vec![0; len]);
                    link.conn.buffer_ready(slot);
                }
                Event::Cancel { slot } => self.cancels.push((id, slot)),
                Event::Entropy => {
                    let mut random = [7; Entropy::LEN];
                    let entropy = Entropy::new(&mut random, self.sequence.advance());
                    link.conn.authenticate(entropy);
                }
                Event::Io { .. } | Event::CompareAndWrite { .. } | Event::Message { .. }
                    if self.hold_io =>
                {
                    self.held.push((id, event));
                }
                Event::Message { slot, message, .. } => self.answer(id, slot, message),
                Event::Io { slot, .. } | Event::CompareAndWrite { write: slot, .. } => {
                    let completion = self.carry_out(id, event);
                    if let Some(link) = self.links.get_mut(&id) {
                        link.conn.complete(slot, completion);
                    }
                }
            }
        }
        self.flush(id);
    }

    /// Sends what the connection has to send.
    fn flush(&mut self, id: ConnId) {
        let Some(link) = self.links.get_mut(&id) else { return };
        while let Some(transmit) = link.conn.poll_transmit() {
            let payload = match &transmit.payload {
                Payload::None => Vec::new(),
                Payload::Bytes(bytes) => bytes.clone(),
                Payload::Slot { slot, len } => {
                    let mut bytes = link.buffers.get(slot).cloned().unwrap_or_default();
                    bytes.resize(usize::try_from(*len).unwrap_or(0), 0);
                    bytes
                }
            };
            if let Some(slot) = transmit.frees {
                link.buffers.remove(&slot);
            }
            if !link.closed {
                link.sent.extend_from_slice(transmit.head.as_slice());
                link.sent.extend_from_slice(&payload);
                link.sent.extend_from_slice(transmit.seal(&payload).as_slice());
            }
        }
    }

    fn carry_out(&mut self, id: ConnId, event: Event) -> Completion {
        match event {
            Event::Io { slot, nsid, command } => self.device(id, slot, nsid, command),
            Event::CompareAndWrite { compare, write, nsid, span, fua } => {
                self.device(id, compare, nsid, Command::Compare { span })?;
                self.device(id, write, nsid, Command::Write { span, fua })
            }
            _ => Ok(()),
        }
    }

    fn device(&mut self, id: ConnId, slot: Slot, nsid: u32, command: Command) -> Completion {
        let namespace = self.subsystem.namespace(nsid).ok_or(IoError::Internal)?;
        let shift = namespace.config().geometry.block_size().shift();
        let (Some(disk), Some(link)) = (self.disks.get_mut(&nsid), self.links.get_mut(&id)) else {
            return Err(IoError::Unreachable);
        };
        let Some(span) = command.span() else { return Ok(()) };
        let blocks = bytes_of(disk, span, shift).ok_or(IoError::OutOfRange { span })?;
        let buffer = link.buffers.entry(slot).or_default();
        match command {
            Command::Read { .. } => *buffer = blocks.to_vec(),
            Command::Write { .. } if buffer.len() == blocks.len() => {
                blocks.copy_from_slice(buffer);
            }
            Command::Compare { .. } if *buffer == *blocks => {}
            Command::Compare { .. } => return Err(IoError::Miscompare { at: span.start() }),
            Command::Discard { .. } | Command::WriteZeroes { .. } => blocks.fill(0),
            Command::Write { .. } | Command::Flush => return Err(IoError::Internal),
        }
        Ok(())
    }
}

fn bytes_of(disk: &mut [u8], span: Span, shift: u8) -> Option<&mut [u8]> {
    let at = usize::try_from(span.start().0 << shift).ok()?;
    let end = usize::try_from(span.end().0 << shift).ok()?;
    disk.get_mut(at..end)
}
