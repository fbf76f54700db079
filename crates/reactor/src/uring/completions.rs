//! From completions to events.

use std::io;

use io_uring::cqueue;

use super::handles;
use super::ops::{PendingOp, Work, outcome};
use super::{Completed, Handle, Reactor};
use crate::io::{Event, Handler, Outcome, Socket};
use crate::memory::prefetch;
use crate::slab::Key;

/// What a completion means for its operation.
enum Next {
    /// Tell the handler; the operation is over.
    Over(Outcome),
    /// Tell the handler; more will come by itself.
    GoesOn(Outcome),
    /// Tell the handler; ask the kernel for more.
    AskForMore(Outcome),
    /// Ask the kernel for the rest.
    Unfinished,
    /// Ask the kernel again once there is a buffer.
    Starved,
}

impl<M> Reactor<M> {
    /// Tells the handler everything that is known by now.
    pub(super) fn deliver(&mut self, handler: &mut impl Handler<Message = M>) {
        // As many as are there now: what the handler causes comes after its `settle`.
        for _ in 0..self.completed.len() {
            if let Some(completed) = self.completed.pop_front() {
                self.fetch_next();
                self.deliver_one(completed, handler);
            }
        }
        while let Some(key) = self.timers.pop_due(self.now) {
            if let Some(op) = self.ops.remove(key) {
                self.timers.fired();
                handler.on(Event::Done { token: op.token, outcome: Outcome::Timer }, self);
            }
        }
        if let Some(letter) = self.letter.take() {
            handler.on(Event::Message(letter), self);
            // A turn takes no more than this, so that I/O goes on beside a flood of messages.
            for _ in 0..64 {
                let Some(letter) = self.inbox.take() else { break };
                // It may have come after the turn began: no event is later than the time.
                self.tell_time();
                handler.on(Event::Message(letter), self);
            }
        }
    }

    /// While the handler looks at one read, the processor fetches what the next one has read.
    fn fetch_next(&self) {
        let next = self.completed.front().map(|next| Key::from_bits(next.user_data));
        if let Some(Work::Read { buffer, .. }) = next.and_then(|key| Some(&self.ops.get(key)?.work))
        {
            prefetch(buffer);
        }
    }

    fn deliver_one(&mut self, completed: Completed, handler: &mut impl Handler<Message = M>) {
        let key = Key::from_bits(completed.user_data);
        let Some(op) = self.ops.get(key) else { return };
        let token = op.token;
        match self.judge(key, completed) {
            None => {}
            Some(Next::Over(outcome)) => {
                handler.on(Event::Done { token, outcome }, self);
            }
            Some(Next::GoesOn(outcome)) => handler.on(Event::Done { token, outcome }, self),
            Some(Next::AskForMore(outcome)) => {
                self.continue_or_end(key);
                handler.on(Event::Done { token, outcome }, self);
            }
            Some(Next::Unfinished) => self.continue_or_end(key),
            Some(Next::Starved) => {
                if self.is_ending(key) {
                    self.make_up(key, libc::ECANCELED);
                } else {
                    self.starved.push(key);
                }
            }
        }
    }

    /// Decides what a completion means. An operation that is over is removed.
    fn judge(&mut self, key: Key, completed: Completed) -> Option<Next> {
        let op = self.ops.get_mut(key)?;
        let more = cqueue::more(completed.flags);
        let result = outcome(completed.result);
        let next = match &mut op.work {
            Work::Accept { .. } => return self.accepted(key, result, more),
            Work::Receive { .. } => return self.received(key, result, completed.flags),
            Work::ReceiveInto { buffer, from, to, done, .. } => {
                advance(done, buffer.len().min(*to).saturating_sub(*from), &result)
            }
            Work::Read { buffer, done, .. } => advance(done, buffer.len(), &result),
            Work::Send { chain, done, .. } => advance(done, chain.len(), &result),
            Work::Write { payload, done, .. } => advance(done, payload.len(), &result),
            _ => Progress::Done,
        };
        if matches!(next, Progress::Unfinished) {
            return Some(Next::Unfinished);
        }
        let result = match next {
            Progress::Ended => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => result.map(|_| ()),
        };
        let op = self.ops.remove(key)?;
        self.release(op.work.owner());
        Some(Next::Over(self.conclude(op, result)))
    }

    fn conclude(&mut self, op: PendingOp, result: io::Result<()>) -> Outcome {
        match op.work {
            Work::Connect { socket, .. } => Outcome::Connected(self.connected(socket, result)),
            Work::ReceiveInto { buffer, .. } => Outcome::ReceivedInto { buffer, result },
            Work::Send { mut chain, message, .. } => {
                self.spare_messages.push(message);
                chain.clear();
                Outcome::Sent { chain, result }
            }
            Work::Read { buffer, .. } => Outcome::Read { buffer, result },
            Work::Write { payload, .. } => Outcome::Written { payload, result },
            Work::Sync { .. } => Outcome::Synced(result),
            Work::Allocate { .. } => Outcome::Allocated(result),
            Work::Ready { .. } => Outcome::Ready(result),
            // These three end elsewhere.
            Work::Accept { .. } | Work::Receive { .. } | Work::Timer => Outcome::Timer,
        }
    }

    fn connected(&mut self, socket: Socket, result: io::Result<()>) -> io::Result<Socket> {
        if result.is_err() {
            self.sockets.remove(socket.0);
        }
        result.map(|()| socket)
    }

    fn accepted(&mut self, key: Key, result: io::Result<usize>, more: bool) -> Option<Next> {
        let fd = match result {
            Ok(number) => adopt(number)?,
            Err(error) => {
                let op = self.ops.remove(key)?;
                self.release(op.work.owner());
                return Some(Next::Over(Outcome::Accepted(Err(error))));
            }
        };
        handles::tune(&fd);
        let peer = handles::peer_address(&fd);
        let next = |outcome| if more { Next::GoesOn(outcome) } else { Next::AskForMore(outcome) };
        match (peer, self.sockets.insert(Handle::new(fd))) {
            (Ok(peer), Ok(socket)) => Some(next(Outcome::Accepted(Ok((Socket(socket), peer))))),
            (peer, socket) => {
                // Gone before it was looked at, or one too many: closed, not worth an event.
                if let Ok(socket) = socket {
                    self.sockets.remove(socket);
                }
                drop(peer);
                (!more).then_some(Next::Unfinished)
            }
        }
    }

    fn received(&mut self, key: Key, result: io::Result<usize>, flags: u32) -> Option<Next> {
        let received = match result {
            Ok(len) if len > 0 => {
                let id = cqueue::buffer_select(flags)?;
                Ok(self.provided.claim(id, len)?.freeze())
            }
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                self.provided.want_more();
                return Some(Next::Starved);
            }
            // Zero bytes: the peer is done. There is no buffer with it.
            Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) => Err(error),
        };
        let op = self.ops.remove(key)?;
        self.release(op.work.owner());
        Some(Next::Over(Outcome::Received(received)))
    }

    fn is_ending(&self, key: Key) -> bool {
        self.ops.get(key).is_none_or(|op| {
            op.cancelled
                || match op.work.owner() {
                    super::Owner::Socket(socket) => {
                        self.sockets.get(socket.0).is_none_or(|handle| handle.closing)
                    }
                    _ => false,
                }
        })
    }

    fn continue_or_end(&mut self, key: Key) {
        if self.is_ending(key) {
            self.make_up(key, libc::ECANCELED);
        } else {
            self.begin(key);
        }
    }

    /// At the end: completions only free what they held.
    pub(super) fn bury_completed(&mut self) {
        while let Some(completed) = self.completed.pop_front() {
            let key = Key::from_bits(completed.user_data);
            if let Some(Work::Accept { .. }) = self.ops.get(key).map(|op| &op.work)
                && let Ok(number) = outcome(completed.result)
            {
                drop(adopt(number));
            }
            if !cqueue::more(completed.flags)
                && let Some(op) = self.ops.remove(key)
            {
                self.release(op.work.owner());
            }
        }
    }

    /// At the end: timers, and receives that wait for buffers, are not the kernel's business.
    pub(super) fn forget_what_the_kernel_never_saw(&mut self) {
        let starved = core::mem::take(&mut self.starved);
        let timers = self.ops.iter().filter(|(_, op)| matches!(op.work, Work::Timer));
        let gone: Vec<Key> = timers.map(|(key, _)| key).chain(starved).collect();
        for key in gone {
            if let Some(op) = self.ops.remove(key) {
                self.release(op.work.owner());
            }
        }
        self.bury_completed();
    }
}

enum Progress {
    Done,
    Unfinished,
    Ended,
}

/// Counts what was moved of `len` bytes.
fn advance(done: &mut usize, len: usize, result: &io::Result<usize>) -> Progress {
    match result {
        Err(_) => Progress::Done,
        Ok(0) if *done < len => Progress::Ended,
        Ok(moved) => {
            *done = done.saturating_add(*moved);
            if *done < len { Progress::Unfinished } else { Progress::Done }
        }
    }
}

/// The descriptor of a connection that the kernel just accepted for us.
#[expect(unsafe_code, reason = "the kernel returns descriptors as numbers")]
fn adopt(number: usize) -> Option<std::os::fd::OwnedFd> {
    use std::os::fd::{FromRawFd, OwnedFd};
    let raw = i32::try_from(number).ok()?;
    // SAFETY: an accept completion carries a new descriptor that nobody else owns, and each
    // completion is looked at once.
    Some(unsafe { OwnedFd::from_raw_fd(raw) })
}
