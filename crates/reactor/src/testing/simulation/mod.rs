//! Reactors without a kernel: sockets, files and time of a made-up [`World`], on one thread.
//!
//! Everything that a real machine leaves open is drawn from a seed: how long an operation takes,
//! in which order operations finish, how many bytes a receive brings, how much of a send is taken
//! at a time. The same seed gives the same run. Time stands still until nobody has anything to do.
//!
//! ```text
//! loop { for each reactor: turn; if nobody moved: world.advance(the next thing due) }
//! ```
//!
//! Deliberately not here: loss of what was written and not synced (`pool` has its own disk for
//! that), and packets: a connection is a stream that is there or cut.

#[cfg(test)]
mod tests;
mod turn;
mod world;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use crate::io::{
    Access, Detached, FileId, Io, Op, OpId, Opened, Owner, Refused, Socket, SocketOrigin, Token,
};
use crate::mailbox::{Inbox, Mailbox, mailbox};
use crate::memory::{Arena, Buffer, Class, PAGE};
use crate::monotonic_time::MonotonicTime;
use crate::slab::{Key, Slab};
pub use turn::Turn;
pub(crate) use world::End;
pub use world::World;

/// What direct I/O must be aligned to here.
const ALIGNMENT: u32 = 512;
/// The most bytes that a receive brings.
const RECEIVE: usize = 32 * PAGE;

/// One reactor of a [`World`].
pub struct SimulatedReactor<M> {
    world: World,
    arena: Arena,
    receive_arena: Arena,
    ops: Slab<PendingOp>,
    sockets: Slab<SimulatedSocket>,
    files: Slab<OpenFile>,
    mailbox: Mailbox<M>,
    inbox: Inbox<M>,
}

/// An operation.
struct PendingOp {
    op: Op,
    token: Token,
    /// Nothing of it happens before.
    due: MonotonicTime,
    /// Bytes that were moved.
    done: usize,
    is_cancelled: bool,
}

/// A socket.
struct SimulatedSocket {
    kind: Kind,
    under_way: u32,
    is_closing: bool,
}

#[derive(Clone, Copy)]
enum Kind {
    Listening(SocketAddr),
    Connected(End),
}

struct OpenFile {
    path: PathBuf,
    is_exclusive: bool,
    under_way: u32,
    is_closing: bool,
}

impl<M> SimulatedReactor<M> {
    /// A reactor in this world.
    pub fn new(world: &World) -> io::Result<SimulatedReactor<M>> {
        let crate::Config { buffers, operations, sockets, files, messages, .. } =
            crate::Config::default();
        let arena = |classes: &[Class]| Arena::new(classes).map_err(io::Error::other);
        let (mailbox, inbox) = mailbox(messages)?;
        Ok(SimulatedReactor {
            world: world.clone(),
            arena: arena(&buffers)?,
            receive_arena: arena(&[Class { bytes: RECEIVE, count: 32 }])?,
            ops: Slab::new(operations),
            sockets: Slab::new(sockets),
            files: Slab::new(files),
            mailbox,
            inbox,
        })
    }

    /// Where to post to this reactor.
    pub fn mailbox(&self) -> Mailbox<M> {
        self.mailbox.clone()
    }

    /// When the next operation that waits only for time may go on.
    pub fn next_due(&self) -> Option<MonotonicTime> {
        let now = self.world.now();
        self.ops.iter().map(|(_, op)| op.due).filter(|due| *due > now).min()
    }

    fn hold(&mut self, kind: Kind) -> Result<Socket, Kind> {
        let held = SimulatedSocket { kind, under_way: 0, is_closing: false };
        self.sockets.insert(held).map(Socket).map_err(|held| held.kind)
    }

    /// Whether an operation may begin on what it names.
    fn is_open(&self, op: &Op) -> bool {
        match op.owner() {
            Owner::Socket(socket) => self.sockets.get(socket.0).is_some_and(|s| !s.is_closing),
            Owner::File(file) => self.files.get(file.0).is_some_and(|f| !f.is_closing),
            Owner::Nobody => true,
        }
    }

    fn count(&mut self, owner: Owner) {
        match owner {
            Owner::Socket(socket) => {
                if let Some(held) = self.sockets.get_mut(socket.0) {
                    held.under_way += 1;
                }
            }
            Owner::File(file) => {
                if let Some(open) = self.files.get_mut(file.0) {
                    open.under_way += 1;
                }
            }
            Owner::Nobody => {}
        }
    }

    /// One operation less on what it names, which goes if that was awaited.
    fn release(&mut self, owner: Owner) {
        match owner {
            Owner::Socket(socket) => {
                if let Some(held) = self.sockets.get_mut(socket.0) {
                    held.under_way = held.under_way.saturating_sub(1);
                    self.let_go(socket);
                }
            }
            Owner::File(file) => {
                if let Some(open) = self.files.get_mut(file.0) {
                    open.under_way = open.under_way.saturating_sub(1);
                    self.let_go_file(file);
                }
            }
            Owner::Nobody => {}
        }
    }

    fn let_go(&mut self, socket: Socket) {
        let is_last = |held: &SimulatedSocket| held.is_closing && held.under_way == 0;
        if self.sockets.get(socket.0).is_some_and(is_last)
            && let Some(held) = self.sockets.remove(socket.0)
        {
            match held.kind {
                Kind::Listening(address) => self.world.unlisten(address),
                Kind::Connected(end) => self.world.hang_up(end),
            }
        }
    }

    fn let_go_file(&mut self, file: FileId) {
        let is_last = |open: &OpenFile| open.is_closing && open.under_way == 0;
        if self.files.get(file.0).is_some_and(is_last)
            && let Some(OpenFile { path, is_exclusive: true, .. }) = self.files.remove(file.0)
        {
            self.world.unlock(&path);
        }
    }
}

impl<M> Drop for SimulatedReactor<M> {
    /// As when a process ends: its peers notice.
    fn drop(&mut self) {
        let sockets: Vec<Key> = self.sockets.keys().collect();
        for key in sockets {
            match self.sockets.remove(key).map(|held| held.kind) {
                Some(Kind::Listening(address)) => self.world.unlisten(address),
                Some(Kind::Connected(end)) => self.world.hang_up(end),
                None => {}
            }
        }
        for (_, open) in self.files.iter().filter(|(_, open)| open.is_exclusive) {
            self.world.unlock(&open.path);
        }
    }
}

impl<M> Io for SimulatedReactor<M> {
    type Message = M;

    fn now(&self) -> MonotonicTime {
        self.world.now()
    }

    fn take(&mut self, bytes: usize) -> Option<Buffer> {
        self.arena.take(bytes)
    }

    fn submit(&mut self, op: Op, token: Token) -> Result<OpId, Refused> {
        if !self.is_open(&op) {
            return Err(Refused::Closed(op));
        }
        let due = match op {
            Op::Timer { at } => at,
            _ => self.world.some_time_from_now(),
        };
        let owner = op.owner();
        let under_way = PendingOp { op, token, due, done: 0, is_cancelled: false };
        match self.ops.insert(under_way) {
            Ok(key) => {
                self.count(owner);
                Ok(OpId(key))
            }
            Err(under_way) => Err(Refused::Busy(under_way.op)),
        }
    }

    fn cancel(&mut self, op: OpId) {
        let Some(found) = self.ops.get_mut(op.0) else { return };
        if matches!(found.op, Op::Timer { .. }) {
            self.ops.remove(op.0);
        } else {
            found.is_cancelled = true;
        }
    }

    fn listen(&mut self, on: SocketAddr) -> io::Result<(Socket, SocketAddr)> {
        let address = self.world.listen(on)?;
        let held = self.hold(Kind::Listening(address));
        held.map(|socket| (socket, address)).map_err(|_| {
            self.world.unlisten(address);
            io::ErrorKind::QuotaExceeded.into()
        })
    }

    fn local_address(&self, socket: Socket) -> io::Result<SocketAddr> {
        match self.sockets.get(socket.0).map(|held| held.kind) {
            Some(Kind::Listening(address)) => Ok(address),
            Some(Kind::Connected(end)) => {
                self.world.address_of(end).ok_or_else(|| io::ErrorKind::NotConnected.into())
            }
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    fn close(&mut self, socket: Socket) {
        if let Some(held) = self.sockets.get_mut(socket.0) {
            held.is_closing = true;
            self.let_go(socket);
        }
    }

    fn detach(&mut self, socket: Socket) -> Option<Detached> {
        let held = self.sockets.get(socket.0)?;
        let Kind::Connected(end) = held.kind else { return None };
        if held.under_way > 0 || held.is_closing {
            return None;
        }
        self.sockets.remove(socket.0);
        Some(Detached(SocketOrigin::Simulated(end)))
    }

    fn attach(&mut self, socket: Detached) -> Result<Socket, Detached> {
        let SocketOrigin::Simulated(end) = socket.0 else { return Err(socket) };
        self.hold(Kind::Connected(end)).map_err(|_| Detached(SocketOrigin::Simulated(end)))
    }

    fn open(&mut self, path: &Path, access: Access) -> io::Result<Opened> {
        let is_exclusive = access == Access::Exclusive;
        let bytes = self.world.open(path, is_exclusive)?;
        let open =
            OpenFile { path: path.to_owned(), is_exclusive, under_way: 0, is_closing: false };
        let opened = |key| Opened { file: FileId(key), bytes, direct: true, alignment: ALIGNMENT };
        self.files.insert(open).map(opened).map_err(|_| {
            if is_exclusive {
                self.world.unlock(path);
            }
            io::ErrorKind::QuotaExceeded.into()
        })
    }

    fn close_file(&mut self, file: FileId) {
        if let Some(open) = self.files.get_mut(file.0) {
            open.is_closing = true;
            self.let_go_file(file);
        }
    }
}
