//! What an application asks of a reactor and what it hears back.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;

use crate::chain::Chain;
use crate::memory::{Buffer, SharedBuffer};
use crate::monotonic_time::MonotonicTime;
use crate::slab::Key;

/// The application's own name for an operation, given back with its events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

impl Token {
    /// A token for a thing of some kind.
    pub fn of(kind: u8, key: Key) -> Token {
        Token((u64::from(kind) << 56) | key.to_bits())
    }

    /// What [`Token::of`] made it from.
    pub fn parts(self) -> (u8, Key) {
        let kind = u8::try_from(self.0 >> 56).unwrap_or(u8::MAX);
        (kind, Key::from_bits(self.0 & ((1 << 56) - 1)))
    }
}

/// The reactor's name for an operation, to cancel it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OpId(pub Key);

/// A connected or listening socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Socket(pub Key);

/// An open file or block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub Key);

/// One operation.
#[derive(Debug)]
pub enum Op {
    /// Take connections of a listening socket: one [`Outcome::Accepted`] each, until one says
    /// that it failed.
    Accept {
        /// From [`Io::listen`].
        listener: Socket,
    },
    /// Open a connection.
    Connect {
        /// Where to.
        to: SocketAddr,
    },
    /// Take what arrives next, in a buffer that the reactor picks when there is something, so that
    /// an idle connection holds none. Not while another receive is under way on the same socket:
    /// they would tear the stream apart.
    Receive {
        /// From whom.
        socket: Socket,
        /// No more bytes than this, and no more than a receive buffer holds.
        most: usize,
    },
    /// Fill a part of a buffer with what arrives next, without a copy on the way. Not while another
    /// receive is under way on the same socket.
    ReceiveInto {
        /// From whom.
        socket: Socket,
        /// What to fill.
        buffer: Buffer,
        /// Where in it to begin.
        from: usize,
        /// Where in it to end.
        to: usize,
    },
    /// Send all of a chain. Not while another send is under way on the same socket.
    Send {
        /// To whom.
        socket: Socket,
        /// What.
        chain: Chain,
    },
    /// Fill a buffer from a file.
    Read {
        /// Which file.
        file: FileId,
        /// Offset in bytes.
        at: u64,
        /// What to fill.
        buffer: Buffer,
    },
    /// Write all of a payload to a file.
    Write {
        /// Which file.
        file: FileId,
        /// Offset in bytes.
        at: u64,
        /// What to write.
        payload: SharedBuffer,
        /// Whether it must be on the medium before it completes.
        durable: bool,
    },
    /// Bring every completed write of a file to the medium, with the metadata to find it.
    Sync {
        /// Which file.
        file: FileId,
    },
    /// Change the space behind a range of a file.
    Allocate {
        /// Which file.
        file: FileId,
        /// Offset in bytes.
        at: u64,
        /// Length in bytes.
        len: u64,
        /// What becomes of it.
        space: Space,
    },
    /// Wait until a descriptor that was taken in ([`crate::Reactor::adopt`]) has something to read
    /// for its owner, who reads it by other means.
    Ready {
        /// Which descriptor.
        file: FileId,
    },
    /// Wake up at some time.
    Timer {
        /// When.
        at: MonotonicTime,
    },
}

/// What an operation is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    Socket(Socket),
    File(FileId),
    Nobody,
}

impl Op {
    /// What it is on.
    pub(crate) fn owner(&self) -> Owner {
        match self {
            Op::Accept { listener: socket }
            | Op::Receive { socket, .. }
            | Op::ReceiveInto { socket, .. }
            | Op::Send { socket, .. } => Owner::Socket(*socket),
            Op::Read { file, .. }
            | Op::Write { file, .. }
            | Op::Sync { file }
            | Op::Ready { file }
            | Op::Allocate { file, .. } => Owner::File(*file),
            Op::Connect { .. } | Op::Timer { .. } => Owner::Nobody,
        }
    }
}

/// What becomes of a range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// Reads as zeros, its space is given back.
    Released,
    /// Reads as zeros, its space stays reserved.
    Zeroed,
}

/// How an operation went. Buffers come home with it, whatever the result.
#[derive(Debug)]
pub enum Outcome {
    /// A connection, and who opened it. After an error nothing more comes: submit again.
    Accepted(io::Result<(Socket, SocketAddr)>),
    /// A connection of ours.
    Connected(io::Result<Socket>),
    /// Some bytes; `UnexpectedEof` is the peer's orderly end.
    Received(io::Result<SharedBuffer>),
    /// The buffer, with that part of it full, or an error and a part of unknown contents.
    ReceivedInto {
        /// The buffer of the operation.
        buffer: Buffer,
        /// `UnexpectedEof` if the peer finished first.
        result: io::Result<()>,
    },
    /// The chain, ready for reuse.
    Sent {
        /// The chain of the operation, cleared.
        chain: Chain,
        /// Done only if all of it was taken by the kernel.
        result: io::Result<()>,
    },
    /// The buffer, full, or an error and a buffer of unknown contents.
    Read {
        /// The buffer of the operation.
        buffer: Buffer,
        /// `UnexpectedEof` if the file ends earlier.
        result: io::Result<()>,
    },
    /// The payload.
    Written {
        /// The payload of the operation.
        payload: SharedBuffer,
        /// Done only if all of it was written.
        result: io::Result<()>,
    },
    /// [`Op::Sync`] is done.
    Synced(io::Result<()>),
    /// [`Op::Allocate`] is done.
    Allocated(io::Result<()>),
    /// There is something to read, or the descriptor failed: reading says which.
    Ready(io::Result<()>),
    /// It is that time.
    Timer,
}

/// What a handler is told.
#[derive(Debug)]
pub enum Event<M> {
    /// News of an operation.
    Done {
        /// As given to [`Io::submit`].
        token: Token,
        /// The news.
        outcome: Outcome,
    },
    /// Somebody posted to this reactor's mailbox.
    Message(M),
}

/// Why an operation was not begun. It is handed back with everything in it.
#[derive(Debug)]
pub enum Refused {
    /// As many operations are under way as the reactor allows: try again after some events.
    Busy(Op),
    /// The socket or file is closed.
    Closed(Op),
    /// The kernel gave no socket.
    NoSocket(io::Error),
}

/// How a file shall be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads only.
    ReadOnly,
    /// Reads and writes.
    ReadWrite,
    /// Reads and writes, and nobody else may open it so, here or in another process, until it is
    /// closed; `ResourceBusy` if somebody has, or if a block device is mounted or otherwise used.
    Exclusive,
}

/// A file that was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Its name in operations.
    pub file: FileId,
    /// Its size now.
    pub bytes: u64,
    /// Whether I/O goes around the page cache, and so must be aligned to `alignment`.
    pub direct: bool,
    /// What offsets, lengths and memory must be multiples of; 1 if anything goes.
    pub alignment: u32,
}

/// A socket on its way to another reactor.
#[derive(Debug)]
pub struct Detached(pub(crate) SocketOrigin);

/// Whose socket it is.
#[derive(Debug)]
pub(crate) enum SocketOrigin {
    Kernel(OwnedFd),
    #[cfg(any(test, feature = "testing"))]
    Simulated(crate::testing::simulation::End),
}

impl Detached {
    /// Takes over a connected socket that was opened elsewhere.
    pub fn from_fd(fd: OwnedFd) -> Detached {
        Detached(SocketOrigin::Kernel(fd))
    }
}

/// What a reactor does for its handler. The real one is [`crate::Reactor`].
pub trait Io {
    /// What its mailbox carries.
    type Message;

    /// The time of the event being handled: read after it had come, never before.
    fn now(&self) -> MonotonicTime;

    /// A buffer, or `None` while none is free: that is back-pressure, not an error.
    fn take(&mut self, bytes: usize) -> Option<Buffer>;

    /// Begins an operation.
    fn submit(&mut self, op: Op, token: Token) -> Result<OpId, Refused>;

    /// Ends an operation early if that is still possible. Its final event says how it ended; a
    /// cancelled timer says nothing.
    fn cancel(&mut self, op: OpId);

    /// Listens on an address; port 0 picks one. Returns the address it really is.
    fn listen(&mut self, on: SocketAddr) -> io::Result<(Socket, SocketAddr)>;

    /// The address of our end of a connection.
    fn local_address(&self, socket: Socket) -> io::Result<SocketAddr>;

    /// Closes a socket: what is under way on it ends first, each with its final event.
    fn close(&mut self, socket: Socket);

    /// Takes a socket out, to hand it to another reactor; `None` while anything is under way.
    fn detach(&mut self, socket: Socket) -> Option<Detached>;

    /// Takes a socket in; hands it back if there are as many as the reactor allows, or it is of
    /// another kind of reactor.
    fn attach(&mut self, socket: Detached) -> Result<Socket, Detached>;

    /// Opens a file or block device, around the page cache if that can be.
    fn open(&mut self, path: &Path, access: Access) -> io::Result<Opened>;

    /// Closes a file as soon as nothing is under way on it.
    fn close_file(&mut self, file: FileId);
}

/// The application of a reactor: owns its state, hears one event at a time.
pub trait Handler {
    /// What is posted to it.
    type Message;

    /// Something happened.
    fn on(&mut self, event: Event<Self::Message>, io: &mut impl Io<Message = Self::Message>);

    /// All events that were there have been handled; the place to send what they left to send.
    /// `false` stops the reactor, which cancels what is still under way.
    fn settle(&mut self, io: &mut impl Io<Message = Self::Message>) -> bool;
}
