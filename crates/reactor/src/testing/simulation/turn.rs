//! What becomes of operations.

use std::io;
use std::net::SocketAddr;

use super::{End, Kind, PendingOp, RECEIVE, SimulatedReactor};
use crate::chain::Chain;
use crate::io::{Event, Handler, Op, Outcome, Owner, Socket};
use crate::memory::Buffer;
use crate::slab::Key;

/// What happened in a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Whether anything happened.
    pub moved: bool,
    /// Whether the handler wants to go on.
    pub goes_on: bool,
}

/// What an operation came to.
enum Step {
    /// It waits for somebody else.
    Waits,
    /// Some of it happened.
    Moved,
    /// There is news of it.
    Over(Outcome),
}

impl<M> SimulatedReactor<M> {
    /// Lets everything happen that is due, each once, and tells the handler.
    pub fn turn(&mut self, handler: &mut impl Handler<Message = M>) -> Turn {
        let mut moved = false;
        let now = self.world.now();
        let is_due = |op: &PendingOp| op.due <= now || op.is_cancelled || self.is_ending(&op.op);
        let due = self.ops.iter().filter(|(_, op)| is_due(op));
        let mut due: Vec<_> = due.map(|(key, op)| (op.due, key)).collect();
        due.sort_unstable();
        for (_, key) in due {
            // The handler may have cancelled it meanwhile, or closed what it is on.
            let Some(token) = self.ops.get(key).map(|op| op.token) else { continue };
            match self.step(key) {
                Step::Waits => {}
                Step::Moved => moved = true,
                Step::Over(outcome) => {
                    moved = true;
                    handler.on(Event::Done { token, outcome }, self);
                }
            }
        }
        while let Some(letter) = self.inbox.take() {
            moved = true;
            handler.on(Event::Message(letter), self);
        }
        let goes_on = handler.settle(self);
        Turn { moved, goes_on }
    }

    fn step(&mut self, key: Key) -> Step {
        let ending = self.ops.get(key).is_some_and(|op| op.is_cancelled || self.is_ending(&op.op));
        let Some(under_way) = self.ops.get_mut(key) else { return Step::Waits };
        // It is away while it is worked on; its name stays.
        let away = Op::Timer { at: under_way.due };
        let (op, done) = (core::mem::replace(&mut under_way.op, away), under_way.done);
        let on = op.owner();
        let worked = if ending {
            let cancelled = io::Error::from_raw_os_error(libc::ECANCELED);
            Worked::Over(ended(op, Err(cancelled)))
        } else {
            self.work(op, done)
        };
        match worked {
            Worked::Over(outcome) => {
                self.ops.remove(key);
                self.release(on);
                Step::Over(outcome)
            }
            Worked::Waits(op) => {
                self.put_back(key, op, done);
                Step::Waits
            }
            Worked::Moved(op, done) => {
                self.put_back(key, op, done);
                self.delay(key);
                Step::Moved
            }
            Worked::Accepted(op, accepted) => {
                self.put_back(key, op, done);
                Step::Over(Outcome::Accepted(Ok(accepted)))
            }
        }
    }

    fn put_back(&mut self, key: Key, op: Op, done: usize) {
        if let Some(under_way) = self.ops.get_mut(key) {
            (under_way.op, under_way.done) = (op, done);
        }
    }

    /// The rest of it happens a little later.
    fn delay(&mut self, key: Key) {
        let due = self.world.some_time_from_now();
        if let Some(under_way) = self.ops.get_mut(key) {
            under_way.due = due;
        }
    }

    /// Whether what it is on is being closed.
    fn is_ending(&self, op: &Op) -> bool {
        match op.owner() {
            Owner::Socket(socket) => self.sockets.get(socket.0).is_none_or(|held| held.is_closing),
            Owner::File(_) | Owner::Nobody => false,
        }
    }

    fn work(&mut self, op: Op, done: usize) -> Worked {
        match op {
            Op::Timer { .. } => Worked::Over(Outcome::Timer),
            Op::Connect { to } => {
                let connected = self.world.connect(to).and_then(|end| {
                    self.hold(Kind::Connected(end)).map_err(|_| io::ErrorKind::QuotaExceeded.into())
                });
                Worked::Over(Outcome::Connected(connected))
            }
            Op::Accept { listener } => self.accept(listener),
            Op::Receive { socket, most } => self.receive(socket, most),
            Op::ReceiveInto { socket, buffer, from, to } => {
                self.receive_into((socket, buffer), (from, to), done)
            }
            Op::Send { socket, chain } => self.send(socket, chain, done),
            Op::Read { .. }
            | Op::Write { .. }
            | Op::Sync { .. }
            | Op::Ready { .. }
            | Op::Allocate { .. } => {
                let result = self.use_file(op);
                Worked::Over(result)
            }
        }
    }

    fn accept(&mut self, listener: Socket) -> Worked {
        let held = self.sockets.get(listener.0).map(|held| held.kind);
        let Some(Kind::Listening(address)) = held else {
            return Worked::Over(Outcome::Accepted(Err(io::ErrorKind::InvalidInput.into())));
        };
        let op = Op::Accept { listener };
        let Some((end, peer)) = self.world.accept(address) else { return Worked::Waits(op) };
        if let Ok(socket) = self.hold(Kind::Connected(end)) {
            Worked::Accepted(op, (socket, peer))
        } else {
            // One too many: closed, not worth an event.
            self.world.hang_up(end);
            Worked::Moved(op, 0)
        }
    }

    fn end_of(&self, socket: Socket) -> io::Result<End> {
        match self.sockets.get(socket.0).map(|held| held.kind) {
            Some(Kind::Connected(end)) => Ok(end),
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    fn receive(&mut self, socket: Socket, most: usize) -> Worked {
        let op = Op::Receive { socket, most };
        let Some(mut buffer) = self.receive_arena.take(RECEIVE) else { return Worked::Waits(op) };
        let received = self.end_of(socket).and_then(|end| {
            // Any part of what has arrived.
            let here = self.world.arrived(end).min(most).min(RECEIVE);
            let count = if here == 0 { 1 } else { 1 + self.world.below(here) };
            self.world.receive(end, buffer.get_mut(..count).unwrap_or_default())
        });
        match received {
            Ok(None) => Worked::Waits(op),
            Ok(Some(0)) => {
                Worked::Over(Outcome::Received(Err(io::ErrorKind::UnexpectedEof.into())))
            }
            Ok(Some(count)) => {
                buffer.truncate(count);
                Worked::Over(Outcome::Received(Ok(buffer.freeze())))
            }
            Err(error) => Worked::Over(Outcome::Received(Err(error))),
        }
    }

    fn receive_into(
        &mut self,
        (socket, mut buffer): (Socket, Buffer),
        (from, to): (usize, usize),
        done: usize,
    ) -> Worked {
        let received = self.end_of(socket).and_then(|end| {
            let room = buffer.get_mut(from + done..to).unwrap_or_default();
            self.world.receive(end, room)
        });
        let op = |buffer| Op::ReceiveInto { socket, buffer, from, to };
        let over = |buffer, result| Worked::Over(Outcome::ReceivedInto { buffer, result });
        match received {
            Ok(None) => Worked::Waits(op(buffer)),
            Ok(Some(0)) => over(buffer, Err(io::ErrorKind::UnexpectedEof.into())),
            Ok(Some(count)) if from + done + count < to => Worked::Moved(op(buffer), done + count),
            Ok(Some(_)) => over(buffer, Ok(())),
            Err(error) => over(buffer, Err(error)),
        }
    }

    fn send(&mut self, socket: Socket, mut chain: Chain, done: usize) -> Worked {
        let mut sent = 0;
        let result = self.end_of(socket).and_then(|end| {
            let mut skip = done;
            for piece in chain.pieces() {
                let left = piece.get(skip..).unwrap_or_default();
                skip = skip.saturating_sub(piece.len());
                // Sometimes only a part of it, as a busy kernel does.
                let part = left.get(..left.len() - self.world.below(left.len() / 2 + 1));
                let taken = self.world.send(end, part.unwrap_or_default())?;
                sent += taken;
                if taken < left.len() {
                    break;
                }
            }
            Ok(())
        });
        match result {
            Ok(()) if done + sent < chain.len() && sent == 0 => {
                Worked::Waits(Op::Send { socket, chain })
            }
            Ok(()) if done + sent < chain.len() => {
                Worked::Moved(Op::Send { socket, chain }, done + sent)
            }
            result => {
                chain.clear();
                Worked::Over(Outcome::Sent { chain, result })
            }
        }
    }

    fn use_file(&mut self, op: Op) -> Outcome {
        let path = match op.owner() {
            Owner::File(file) => self.files.get(file.0).map(|open| open.path.clone()),
            Owner::Socket(_) | Owner::Nobody => None,
        };
        let Some(path) = path else { return ended(op, Err(io::ErrorKind::NotFound.into())) };
        match op {
            Op::Read { at, mut buffer, .. } => {
                let fill = |bytes: &mut [u8], into: &mut Buffer| into.copy_from_slice(bytes);
                let part = (at, buffer.len());
                let result = self.world.part(&path, part, |bytes| fill(bytes, &mut buffer));
                Outcome::Read { buffer, result }
            }
            Op::Write { at, payload, .. } => {
                let part = (at, payload.len());
                let result = self.world.part(&path, part, |bytes| bytes.copy_from_slice(&payload));
                Outcome::Written { payload, result }
            }
            Op::Allocate { at, len, .. } => {
                let len = usize::try_from(len).unwrap_or(usize::MAX);
                // Both ways of giving space back read as zeros.
                Outcome::Allocated(self.world.part(&path, (at, len), |bytes| bytes.fill(0)))
            }
            other => ended(other, Ok(())),
        }
    }
}

/// What became of an operation that was worked on.
enum Worked {
    Over(Outcome),
    /// It waits for somebody else.
    Waits(Op),
    /// So many bytes of it are done.
    Moved(Op, usize),
    /// A connection came, and more may come.
    Accepted(Op, (Socket, SocketAddr)),
}

/// The last event of an operation that did nothing more.
fn ended(op: Op, result: io::Result<()>) -> Outcome {
    let error = |result: io::Result<()>| {
        result.err().unwrap_or_else(|| io::Error::from_raw_os_error(libc::ECANCELED))
    };
    match op {
        Op::Accept { .. } => Outcome::Accepted(Err(error(result))),
        Op::Connect { .. } => Outcome::Connected(Err(error(result))),
        Op::Receive { .. } => Outcome::Received(Err(error(result))),
        Op::ReceiveInto { buffer, .. } => Outcome::ReceivedInto { buffer, result },
        Op::Send { mut chain, .. } => {
            chain.clear();
            Outcome::Sent { chain, result }
        }
        Op::Read { buffer, .. } => Outcome::Read { buffer, result },
        Op::Write { payload, .. } => Outcome::Written { payload, result },
        Op::Sync { .. } => Outcome::Synced(result),
        Op::Allocate { .. } => Outcome::Allocated(result),
        Op::Ready { .. } => Outcome::Ready(result),
        Op::Timer { .. } => Outcome::Timer,
    }
}
