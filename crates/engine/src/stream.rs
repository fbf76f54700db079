//! The bytes of one connection: what came and was not looked at yet, what goes out next.
//!
//! Invariants:
//! - At most one receive and one send are under way, so bytes keep their order.
//! - Nothing is received while bytes wait to be looked at: who cannot take more leaves them here,
//!   and those that follow stay in the kernel.
//!
//! A receive takes whatever is there. Who knows that a large payload is about to come asks for
//! [little](Stream::LITTLE) at a time, just enough to learn where it goes, and then has the rest
//! of it [received there](Stream::receive_into) without a copy.

use std::io;

use reactor::{Buffer, Chain, Detached, Io, Op, PAGE, Refused, SharedBuffer, Socket, Token};

/// A socket with its two directions.
#[derive(Debug)]
pub(crate) struct Stream {
    socket: Socket,
    arrived: Option<SharedBuffer>,
    /// How much of it was taken.
    taken: usize,
    is_receiving: bool,
    /// Away while a send is under way.
    chain: Option<Chain>,
    /// The peer is done, or the connection broke.
    is_over: bool,
}

impl Stream {
    /// Payloads from this size on are worth being received in two parts: the first bytes with their
    /// header, the rest directly into their buffer.
    pub(crate) const LARGE: usize = 32 * 1024;
    /// What is received at a time while large payloads are expected: the header of a data PDU and a
    /// page, so that what is received into a buffer after it begins at a page.
    pub(crate) const LITTLE: usize = 24 + PAGE;
    /// What is received at a time otherwise: as much as a receive buffer holds.
    pub(crate) const MUCH: usize = usize::MAX;
    /// A rest of a payload smaller than this is copied: that is cheaper than another receive.
    pub(crate) const WORTH_IT: usize = 16 * 1024;

    pub(crate) fn new(socket: Socket) -> Stream {
        Stream::attach(socket, None)
    }

    /// A stream that goes on with a socket and bytes from elsewhere.
    pub(crate) fn attach(socket: Socket, arrived: Option<SharedBuffer>) -> Stream {
        let chain = Some(Chain::new());
        Stream { socket, arrived, taken: 0, is_receiving: false, chain, is_over: false }
    }

    pub(crate) fn socket(&self) -> Socket {
        self.socket
    }

    /// Whether everything that came was taken, and nothing more is being received.
    pub(crate) fn is_waiting(&self) -> bool {
        self.arrived.is_none() && !self.is_receiving && !self.is_over
    }

    /// Sees to it that bytes come, at most so many. Only when [waiting](Stream::is_waiting).
    pub(crate) fn receive(&mut self, most: usize, token: Token, io: &mut impl Io) {
        match io.submit(Op::Receive { socket: self.socket, most }, token) {
            Ok(_) => self.is_receiving = true,
            // Tried again after the next events.
            Err(Refused::Busy(_)) => {}
            Err(_) => self.is_over = true,
        }
    }

    /// Sees to it that the next bytes come into a part of `buffer`. Only when
    /// [waiting](Stream::is_waiting). Hands the buffer back if that cannot be now.
    pub(crate) fn receive_into(
        &mut self,
        buffer: Buffer,
        (from, to): (usize, usize),
        token: Token,
        io: &mut impl Io,
    ) -> Result<(), Buffer> {
        match io.submit(Op::ReceiveInto { socket: self.socket, buffer, from, to }, token) {
            Ok(_) => {
                self.is_receiving = true;
                Ok(())
            }
            Err(Refused::Busy(Op::ReceiveInto { buffer, .. })) => Err(buffer),
            Err(Refused::Closed(Op::ReceiveInto { buffer, .. })) => {
                self.is_over = true;
                Err(buffer)
            }
            Err(_) => unreachable!("a refusal hands back the operation that was refused"),
        }
    }

    /// Bytes came, or the end.
    pub(crate) fn on_received(&mut self, result: io::Result<SharedBuffer>) {
        self.is_receiving = false;
        match result {
            Ok(bytes) => self.arrived = Some(bytes),
            Err(_) => self.is_over = true,
        }
    }

    /// What [`Stream::receive_into`] began is over.
    pub(crate) fn on_received_into(&mut self, result: &io::Result<()>) {
        self.is_receiving = false;
        self.is_over |= result.is_err();
    }

    /// The next bytes; empty if none are here.
    pub(crate) fn peek(&self) -> &[u8] {
        self.arrived.as_ref().and_then(|bytes| bytes.get(self.taken..)).unwrap_or_default()
    }

    /// The first `count` bytes of [`Stream::peek`], shared; `None` if there are fewer.
    pub(crate) fn share(&self, count: usize) -> Option<SharedBuffer> {
        self.arrived.as_ref()?.part(self.taken, count)
    }

    /// The first `count` bytes of [`Stream::peek`] were used.
    pub(crate) fn consume(&mut self, count: usize) {
        self.taken += count;
        if self.arrived.as_ref().is_some_and(|bytes| self.taken >= bytes.len()) {
            self.arrived = None;
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
            Err(Refused::Closed(Op::Send { mut chain, .. })) => {
                chain.clear();
                self.chain = Some(chain);
                self.is_over = true;
            }
            Err(_) => unreachable!("a refusal hands back the operation that was refused"),
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
        self.chain.is_none() || self.is_receiving
    }

    /// Whether the connection broke or the peer ended it.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Takes the socket and the bytes not looked at, to go on elsewhere. Only when not busy.
    pub(crate) fn detach(&mut self, io: &mut impl Io) -> Option<(Detached, Option<SharedBuffer>)> {
        let detached = io.detach(self.socket)?;
        let left = self.share(self.peek().len());
        (self.arrived, self.taken) = (None, 0);
        Some((detached, left))
    }

    /// Closes the socket.
    pub(crate) fn close(&mut self, io: &mut impl Io) {
        io.close(self.socket);
    }
}
