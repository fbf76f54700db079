//! The bytes of one connection: what came and was not looked at yet, what goes out next.
//!
//! Invariants:
//! - At most one receive and one send are under way, so bytes keep their order.
//! - What came is bounded: who cannot take more says so with [`Stream::pause`], and the peer's
//!   bytes then stay in the kernel.

use std::collections::VecDeque;
use std::io;

use reactor::{Chain, Detached, Frozen, Io, Op, OpId, Refused, Socket, Token};

/// A socket with its two directions.
#[derive(Debug)]
pub(crate) struct Stream {
    socket: Socket,
    arrived: VecDeque<Frozen>,
    /// How much of the first piece was taken.
    taken: usize,
    receiving: Receiving,
    /// Away while a send is under way.
    chain: Option<Chain>,
    /// The peer is done, or the connection broke.
    is_over: bool,
}

#[derive(Debug)]
enum Receiving {
    Off,
    On(OpId),
    /// Cancelled; its final event is still to come.
    Stopping,
}

/// More than this not looked at, and the stream pauses by itself.
const ENOUGH: usize = 4;

impl Stream {
    pub(crate) fn new(socket: Socket) -> Stream {
        Stream {
            socket,
            arrived: VecDeque::new(),
            taken: 0,
            receiving: Receiving::Off,
            chain: Some(Chain::new()),
            is_over: false,
        }
    }

    pub(crate) fn socket(&self) -> Socket {
        self.socket
    }

    /// Sees to it that bytes come.
    pub(crate) fn resume(&mut self, token: Token, io: &mut impl Io) {
        let has_room = self.arrived.len() < ENOUGH && !self.is_over;
        if matches!(self.receiving, Receiving::Off) && has_room {
            match io.submit(Op::Receive { socket: self.socket }, token) {
                Ok(id) => self.receiving = Receiving::On(id),
                // Tried again after the next events.
                Err(Refused::Busy(_)) => {}
                Err(_) => self.is_over = true,
            }
        }
    }

    /// Lets no more bytes come after those that are on their way.
    pub(crate) fn pause(&mut self, io: &mut impl Io) {
        if let Receiving::On(id) = self.receiving {
            io.cancel(id);
            self.receiving = Receiving::Stopping;
        }
    }

    /// Bytes came, or the end.
    pub(crate) fn on_received(&mut self, result: io::Result<Frozen>, io: &mut impl Io) {
        match result {
            Ok(bytes) => {
                self.arrived.push_back(bytes);
                if self.arrived.len() >= ENOUGH {
                    self.pause(io);
                }
            }
            Err(error) => {
                let was_asked = matches!(self.receiving, Receiving::Stopping)
                    && error.kind() != io::ErrorKind::UnexpectedEof;
                self.is_over |= !was_asked;
                self.receiving = Receiving::Off;
            }
        }
    }

    /// The next bytes; empty if none are here.
    pub(crate) fn peek(&self) -> &[u8] {
        self.arrived.front().and_then(|bytes| bytes.get(self.taken..)).unwrap_or_default()
    }

    /// The first `count` bytes of [`Stream::peek`] were used.
    pub(crate) fn consume(&mut self, count: usize) {
        self.taken += count;
        if self.arrived.front().is_some_and(|bytes| self.taken >= bytes.len()) {
            self.arrived.pop_front();
            self.taken = 0;
        }
    }

    /// Sends what `fill` puts into the chain, unless a send is under way.
    pub(crate) fn flush(&mut self, token: Token, io: &mut impl Io, fill: impl FnOnce(&mut Chain)) {
        let Some(mut chain) = self.chain.take() else { return };
        fill(&mut chain);
        if chain.is_empty() {
            self.chain = Some(chain);
            return;
        }
        match io.submit(Op::Send { socket: self.socket, chain }, token) {
            Ok(_) => {}
            // Kept, and tried again after the next events.
            Err(Refused::Busy(Op::Send { chain, .. })) => self.chain = Some(chain),
            Err(_) => self.is_over = true,
        }
    }

    /// A send is over.
    pub(crate) fn on_sent(&mut self, chain: Chain, result: &io::Result<()>) {
        self.chain = Some(chain);
        self.is_over |= result.is_err();
    }

    /// Whether everything that was flushed is with the kernel.
    pub(crate) fn is_flushed(&self) -> bool {
        self.chain.as_ref().is_some_and(Chain::is_empty)
    }

    /// Whether an operation is under way.
    pub(crate) fn is_busy(&self) -> bool {
        self.chain.is_none() || matches!(self.receiving, Receiving::On(_) | Receiving::Stopping)
    }

    /// Whether the connection broke or the peer ended it.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Takes the socket and the bytes not looked at, to go on elsewhere. Only when not busy.
    pub(crate) fn detach(&mut self, io: &mut impl Io) -> Option<(Detached, VecDeque<Frozen>)> {
        let detached = io.detach(self.socket)?;
        let mut left = core::mem::take(&mut self.arrived);
        if let Some(first) = left.front_mut()
            && let Some(rest) = first.part(self.taken, first.len().saturating_sub(self.taken))
        {
            *first = rest;
        }
        self.taken = 0;
        Some((detached, left))
    }

    /// A stream that goes on with a socket and bytes from elsewhere.
    pub(crate) fn attach(socket: Socket, arrived: VecDeque<Frozen>) -> Stream {
        Stream { arrived, ..Stream::new(socket) }
    }

    /// Closes the socket.
    pub(crate) fn close(&mut self, io: &mut impl Io) {
        io.close(self.socket);
    }
}
