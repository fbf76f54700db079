//! The real reactor: one thread, one io_uring.
//!
//! Invariants:
//! - What the kernel reads or writes for an operation is owned by the operation's entry in
//!   `ops`, which is removed only when its last completion was read.
//! - A descriptor is closed only when no operation of it is under way, so that a number the
//!   kernel reuses never meets an old operation.
//! - Dropping the reactor ends and awaits everything first; if the kernel keeps an operation
//!   (a disk that hangs), its memory is leaked rather than freed under it.

mod completions;
mod handles;
mod ops;
mod provided_buffers;
mod setup;
mod wait;

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;

use io_uring::squeue::Entry;
use io_uring::types::{CancelBuilder, Fd};
use io_uring::{IoUring, opcode};

use crate::io::{
    Access, Detached, FileId, Handler, Io, Op, OpId, Opened, Owner, Refused, Socket, SocketOrigin,
    Token,
};
use crate::mailbox::{Inbox, Mailbox, mailbox};
use crate::memory::{Arena, Buffer, Class};
use crate::monotonic_time::MonotonicTime;
use crate::slab::{Key, Slab};
use crate::spin_policy::SpinPolicy;
use crate::timers::Timers;
use handles::Handle;
use ops::{Address, Message, PendingOp, Work};
use provided_buffers::ProvidedBuffers;
pub use setup::{Config, SetupError, pin_to_core};

/// An io_uring, its buffers and everything under way on it. Made and used on one thread.
#[derive(Debug)]
pub struct Reactor<M> {
    // First, so that it is dropped first: the kernel lets go of all memory below.
    ring: Ring,
    ops: Slab<PendingOp>,
    sockets: Slab<Handle>,
    reset_on_close: bool,
    files: Slab<Handle>,
    provided: ProvidedBuffers,
    receive_arena: Arena,
    arena: Arena,
    arena_is_registered: bool,
    /// Completions that were read or made up, not yet delivered.
    completed: VecDeque<Completed>,
    /// Receives that wait for a buffer to receive into.
    starved: Vec<Key>,
    spare_messages: Vec<Message>,
    timers: Timers,
    waiting: SpinPolicy,
    inbox: Inbox<M>,
    letter: Option<M>,
    mailbox: Mailbox<M>,
    bell_is_armed: bool,
    /// What the kernel writes when the bell rings; never read.
    bell_counter: Box<[u64; 1]>,
    now: MonotonicTime,
    /// The first failure of the ring itself; it ends the loop.
    broken: Option<io::Error>,
}

struct Ring(IoUring);

impl core::fmt::Debug for Ring {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Ring")
    }
}

#[derive(Clone, Copy, Debug)]
struct Completed {
    user_data: u64,
    result: i32,
    flags: u32,
}

/// Completions that belong to no operation. Keys of operations never have the top bit set.
const OF_CANCEL: u64 = u64::MAX;
const OF_BELL: u64 = u64::MAX - 1;

impl<M> Reactor<M> {
    /// Makes a reactor for the calling thread; it must stay there.
    pub fn new(config: &Config) -> Result<Reactor<M>, SetupError> {
        let other = |doing| move |source| SetupError::Other { doing, source };
        let ring = setup::ring()?;
        let arena = Arena::new(&config.buffers)?;
        let count = config.receive_buffers;
        if !count.is_power_of_two() || count < 2 {
            let what = "the number of receive buffers must be a power of two, e.g. 64";
            return Err(SetupError::Limits { what });
        }
        let receive_class = Class { bytes: config.receive_bytes, count: u32::from(count) };
        let receive_arena = Arena::new(&[receive_class])?;
        let provided = ProvidedBuffers::new(&ring, count / 2, config.receive_bytes)
            .map_err(|_| SetupError::Unsupported { feature: "io_uring buffer rings" })?;
        ring.submitter()
            .register_files_sparse(config.files)
            .map_err(|_| SetupError::Unsupported { feature: "io_uring sparse file tables" })?;
        let arena_is_registered = setup::register_arena(&ring, &arena);
        let (mailbox, inbox) = mailbox(config.messages).map_err(other("make a mailbox"))?;
        Ok(Reactor {
            ring: Ring(ring),
            ops: Slab::new(config.operations),
            sockets: Slab::new(config.sockets),
            reset_on_close: config.reset_on_close,
            files: Slab::new(config.files),
            provided,
            receive_arena,
            arena,
            arena_is_registered,
            completed: VecDeque::new(),
            starved: Vec::new(),
            spare_messages: Vec::new(),
            timers: Timers::default(),
            waiting: SpinPolicy::new(config.spin),
            inbox,
            letter: None,
            mailbox,
            bell_is_armed: false,
            bell_counter: Box::new([0]),
            now: setup::monotonic_time(),
            broken: None,
        })
    }

    /// Takes in a descriptor that was opened elsewhere, for [`Op::Ready`]; `None` if there are as
    /// many files as the reactor allows. The caller keeps a descriptor of its own to read from.
    pub fn adopt(&mut self, fd: OwnedFd) -> Option<FileId> {
        self.files.insert(Handle::new(fd)).ok().map(FileId)
    }

    /// Where other threads post to this reactor.
    pub fn mailbox(&self) -> Mailbox<M> {
        self.mailbox.clone()
    }

    /// The memory that [`Io::take`] gives out.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Whether the buffers are registered with the kernel (they are not if RLIMIT_MEMLOCK forbids).
    pub fn buffers_are_registered(&self) -> bool {
        self.arena_is_registered
    }

    /// Runs the handler until it says stop; then ends what is still under way. It is told to settle
    /// once before anything happened, so that it can ask for its first operations there.
    pub fn run(&mut self, handler: &mut impl Handler<Message = M>) -> io::Result<()> {
        self.tell_time();
        let mut goes_on = handler.settle(self);
        while goes_on {
            goes_on = self.turn(handler)?;
        }
        self.drain()
    }

    /// Waits for news and tells it to the handler; returns whether the handler wants to go on.
    pub fn turn(&mut self, handler: &mut impl Handler<Message = M>) -> io::Result<bool> {
        self.feed_receives();
        self.wait()?;
        self.tell_time();
        self.deliver(handler);
        let go_on = handler.settle(self);
        match self.broken.take() {
            Some(error) => Err(error),
            None => Ok(go_on),
        }
    }

    /// How many sockets are open, those on their way to being closed included.
    pub fn open_sockets(&self) -> usize {
        self.sockets.len()
    }

    /// Takes the time anew, for one who did not turn for a while.
    pub fn tell_time(&mut self) {
        self.now = setup::monotonic_time();
    }

    /// Queues a request; the next wait hands it to the kernel.
    #[expect(unsafe_code, reason = "requests carry addresses")]
    fn push(&mut self, entry: &Entry) {
        // SAFETY: every address in it is of memory that its operation in `ops` owns until its
        // last completion (or of `ProvidedBuffers`'s and the bell's, which live as long as the
        // ring).
        while unsafe { self.ring.0.submission().push(entry) }.is_err() {
            if let Err(error) = self.ring.0.submit() {
                self.broken.get_or_insert(error);
                return;
            }
        }
    }

    /// Asks the kernel for the next part of an operation.
    fn begin(&mut self, key: Key) {
        let registered = self.arena_is_registered.then_some(&self.arena);
        let Some(op) = self.ops.get_mut(key) else { return };
        let handle = match op.work.owner() {
            Owner::Socket(socket) => self.sockets.get(socket.0),
            Owner::File(file) => self.files.get(file.0),
            Owner::Nobody => return,
        };
        // The handle is there: it is kept while anything is under way on it.
        if let Some(handle) = handle {
            let entry = op.work.entry(handle, registered).user_data(key.to_bits());
            self.push(&entry);
        }
    }

    fn handle_of(&mut self, owner: Owner) -> Option<&mut Handle> {
        match owner {
            Owner::Socket(socket) => self.sockets.get_mut(socket.0),
            Owner::File(file) => self.files.get_mut(file.0),
            Owner::Nobody => None,
        }
    }

    /// Makes the operation's entry. The handle is known to be open.
    fn admit(&mut self, work: Work, token: Token) -> Result<OpId, Work> {
        let owner = work.owner();
        let op = PendingOp { token, work, cancelled: false };
        let key = self.ops.insert(op).map_err(|op| op.work)?;
        if let Some(handle) = self.handle_of(owner) {
            handle.under_way += 1;
        }
        self.begin(key);
        Ok(OpId(key))
    }

    fn connect(&mut self, to: SocketAddr, token: Token) -> Result<OpId, Refused> {
        let fd = handles::new_socket(to).map_err(Refused::NoSocket)?;
        handles::tune(&fd);
        if self.reset_on_close {
            handles::reset_on_close(&fd).map_err(Refused::NoSocket)?;
        }
        let Ok(key) = self.sockets.insert(Handle::new(fd)) else {
            return Err(Refused::Busy(Op::Connect { to }));
        };
        let work = Work::Connect { socket: Socket(key), to: Box::new(Address::new(to)) };
        self.admit(work, token).map_err(|_| {
            self.sockets.remove(key);
            Refused::Busy(Op::Connect { to })
        })
    }

    fn message(&mut self) -> Message {
        self.spare_messages.pop().unwrap_or_else(Message::new)
    }

    /// One operation less on a handle; closes it if that was awaited.
    fn release(&mut self, owner: Owner) {
        let Some(handle) = self.handle_of(owner) else { return };
        handle.under_way = handle.under_way.saturating_sub(1);
        if handle.closing && handle.under_way == 0 {
            self.discard(owner);
        }
    }

    fn discard(&mut self, owner: Owner) {
        match owner {
            Owner::Socket(socket) => {
                self.sockets.remove(socket.0);
            }
            Owner::File(file) => {
                let Some(handle) = self.files.remove(file.0) else { return };
                handles::unlock(&handle.fd);
                if let Some(place) = handle.fixed {
                    // The table's own hold on the file; it fails only if the place is empty.
                    let _ = self.ring.0.submitter().register_files_update(place, &[-1]);
                }
            }
            Owner::Nobody => {}
        }
    }

    /// A completion that the kernel will not send.
    fn make_up(&mut self, key: Key, error: i32) {
        self.completed.push_back(Completed { user_data: key.to_bits(), result: -error, flags: 0 });
    }
}

impl<M> Io for Reactor<M> {
    type Message = M;

    fn now(&self) -> MonotonicTime {
        self.now
    }

    fn take(&mut self, bytes: usize) -> Option<Buffer> {
        self.arena.take(bytes)
    }

    fn submit(&mut self, op: Op, token: Token) -> Result<OpId, Refused> {
        if let Op::Connect { to } = op {
            return self.connect(to, token);
        }
        let owner = op.owner();
        if owner != Owner::Nobody && self.handle_of(owner).is_none_or(|handle| handle.closing) {
            return Err(Refused::Closed(op));
        }
        let timer = if let Op::Timer { at } = op { Some(at) } else { None };
        let work = match op {
            Op::Send { socket, chain } => {
                Work::Send { socket, chain, message: self.message(), done: 0 }
            }
            other => match work_of(other) {
                Ok(work) => work,
                Err(op) => return Err(Refused::Busy(op)),
            },
        };
        match self.admit(work, token) {
            Ok(id) => {
                if let Some(at) = timer {
                    self.timers.add(at, id.0);
                }
                Ok(id)
            }
            Err(work) => Err(Refused::Busy(op_of(work, timer))),
        }
    }

    fn cancel(&mut self, op: OpId) {
        let Some(entry) = self.ops.get_mut(op.0) else { return };
        entry.cancelled = true;
        if matches!(entry.work, Work::Timer) {
            self.ops.remove(op.0);
            self.timers.forget_one(|key| self.ops.get(key).is_some());
        } else if let Some(place) = self.starved.iter().position(|key| *key == op.0) {
            self.starved.swap_remove(place);
            self.make_up(op.0, libc::ECANCELED);
        } else {
            let request = opcode::AsyncCancel::new(op.0.to_bits()).build().user_data(OF_CANCEL);
            self.push(&request);
        }
    }

    fn listen(&mut self, on: SocketAddr) -> io::Result<(Socket, SocketAddr)> {
        let (fd, address) = handles::listen(on)?;
        match self.sockets.insert(Handle::new(fd)) {
            Ok(key) => Ok((Socket(key), address)),
            Err(_) => Err(io::ErrorKind::QuotaExceeded.into()),
        }
    }

    fn local_address(&self, socket: Socket) -> io::Result<SocketAddr> {
        let handle = self.sockets.get(socket.0).ok_or(io::ErrorKind::NotConnected)?;
        handles::local_address(&handle.fd)
    }

    fn close(&mut self, socket: Socket) {
        let Some(handle) = self.sockets.get_mut(socket.0).filter(|handle| !handle.closing) else {
            return;
        };
        handle.closing = true;
        if handle.under_way == 0 {
            self.discard(Owner::Socket(socket));
            return;
        }
        let raw = handle.raw();
        // Not connected any more is fine; the cancellation below is what must work.
        let _ = rustix::net::shutdown(&handle.fd, rustix::net::Shutdown::Both);
        let of_socket = |key: &Key| {
            self.ops.get(*key).is_some_and(|op| op.work.owner() == Owner::Socket(socket))
        };
        if let Some(place) = self.starved.iter().position(of_socket) {
            let key = self.starved.swap_remove(place);
            self.make_up(key, libc::ECANCELED);
        }
        let all = CancelBuilder::fd(Fd(raw)).all();
        self.push(&opcode::AsyncCancel2::new(all).build().user_data(OF_CANCEL));
    }

    fn detach(&mut self, socket: Socket) -> Option<Detached> {
        let handle = self.sockets.get(socket.0)?;
        if handle.under_way > 0 || handle.closing {
            return None;
        }
        self.sockets.remove(socket.0).map(|handle| Detached::from_fd(handle.fd))
    }

    fn attach(&mut self, socket: Detached) -> Result<Socket, Detached> {
        let fd = match socket.0 {
            SocketOrigin::Kernel(fd) => fd,
            #[cfg(any(test, feature = "testing"))]
            other @ SocketOrigin::Simulated(_) => return Err(Detached(other)),
        };
        match self.sockets.insert(Handle::new(fd)) {
            Ok(key) => Ok(Socket(key)),
            Err(handle) => Err(Detached::from_fd(handle.fd)),
        }
    }

    fn open(&mut self, path: &Path, access: Access) -> io::Result<Opened> {
        let found = handles::open(path, access)?;
        let raw = std::os::fd::AsRawFd::as_raw_fd(&found.fd);
        let Ok(key) = self.files.insert(Handle::new(found.fd)) else {
            return Err(io::ErrorKind::QuotaExceeded.into());
        };
        let fixed = handles::fix(&self.ring.0, key.index(), raw);
        if let Some(handle) = self.files.get_mut(key) {
            handle.fixed = fixed;
        }
        let (bytes, direct, alignment) = (found.bytes, found.direct, found.alignment);
        Ok(Opened { file: FileId(key), bytes, direct, alignment })
    }

    fn close_file(&mut self, file: FileId) {
        let Some(handle) = self.files.get_mut(file.0) else { return };
        handle.closing = true;
        if handle.under_way == 0 {
            self.discard(Owner::File(file));
        }
    }
}

/// The work of an operation that needs nothing from the reactor to become one.
fn work_of(op: Op) -> Result<Work, Op> {
    Ok(match op {
        Op::Accept { listener } => Work::Accept { listener },
        Op::Receive { socket, most } => Work::Receive { socket, most },
        Op::ReceiveInto { socket, buffer, from, to } => {
            Work::ReceiveInto { socket, buffer, from, to, done: 0 }
        }
        Op::Read { file, at, buffer } => Work::Read { file, at, buffer, done: 0 },
        Op::Write { file, at, payload, durable } => {
            Work::Write { file, at, payload, durable, done: 0 }
        }
        Op::Sync { file } => Work::Sync { file },
        Op::Allocate { file, at, len, space } => Work::Allocate { file, at, len, space },
        Op::Ready { file } => Work::Ready { file },
        Op::Timer { .. } => Work::Timer,
        other @ (Op::Connect { .. } | Op::Send { .. }) => return Err(other),
    })
}

/// The operation that a refused work was.
fn op_of(work: Work, timer: Option<MonotonicTime>) -> Op {
    match work {
        Work::Accept { listener } => Op::Accept { listener },
        Work::Receive { socket, most } => Op::Receive { socket, most },
        Work::Connect { socket, .. } => Op::Receive { socket, most: 0 },
        Work::ReceiveInto { socket, buffer, from, to, .. } => {
            Op::ReceiveInto { socket, buffer, from, to }
        }
        Work::Send { socket, chain, .. } => Op::Send { socket, chain },
        Work::Read { file, at, buffer, .. } => Op::Read { file, at, buffer },
        Work::Write { file, at, payload, durable, .. } => Op::Write { file, at, payload, durable },
        Work::Sync { file } => Op::Sync { file },
        Work::Allocate { file, at, len, space } => Op::Allocate { file, at, len, space },
        Work::Ready { file } => Op::Ready { file },
        Work::Timer => Op::Timer { at: timer.unwrap_or_default() },
    }
}
