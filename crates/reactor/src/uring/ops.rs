//! What is under way, and how it looks to the kernel.
#![expect(unsafe_code, reason = "operations carry addresses of memory they own")]

use std::io;

use io_uring::squeue::{Entry, Flags};
use io_uring::types::{Fd, Fixed};
use io_uring::{opcode, types};
use rustix::net::addr::SocketAddrArg;

use super::handles::Handle;
use super::provided_buffers::GROUP;
use crate::chain::Chain;
use crate::io::{FileId, Owner, Socket, Space, Token};
use crate::memory::{Arena, Buffer, SharedBuffer};

/// An operation under way. It owns everything the kernel reads or writes for it.
#[derive(Debug)]
pub(super) struct PendingOp {
    pub(super) token: Token,
    pub(super) work: Work,
    /// Somebody asked to end it: it is not begun again.
    pub(super) cancelled: bool,
}

#[derive(Debug)]
pub(super) enum Work {
    Accept { listener: Socket },
    Connect { socket: Socket, to: Box<Address> },
    Receive { socket: Socket, most: usize },
    ReceiveInto { socket: Socket, buffer: Buffer, from: usize, to: usize, done: usize },
    Send { socket: Socket, chain: Chain, message: Message, done: usize },
    Read { file: FileId, at: u64, buffer: Buffer, done: usize },
    Write { file: FileId, at: u64, payload: SharedBuffer, durable: bool, done: usize },
    Sync { file: FileId },
    Allocate { file: FileId, at: u64, len: u64, space: Space },
    Ready { file: FileId },
    Timer,
}

impl Work {
    pub(super) fn owner(&self) -> Owner {
        match self {
            Work::Accept { listener: socket }
            | Work::Connect { socket, .. }
            | Work::Receive { socket, .. }
            | Work::ReceiveInto { socket, .. }
            | Work::Send { socket, .. } => Owner::Socket(*socket),
            Work::Read { file, .. }
            | Work::Write { file, .. }
            | Work::Sync { file }
            | Work::Ready { file }
            | Work::Allocate { file, .. } => Owner::File(*file),
            Work::Timer => Owner::Nobody,
        }
    }

    /// The next request to the kernel for it. `registered` is the arena that is the ring's
    /// buffer 0, if there is one.
    pub(super) fn entry(&mut self, handle: &Handle, registered: Option<&Arena>) -> Entry {
        let fd = Fd(handle.raw());
        match self {
            Work::Accept { .. } => opcode::AcceptMulti::new(fd).flags(libc::SOCK_CLOEXEC).build(),
            Work::Connect { to, .. } => opcode::Connect::new(fd, to.pointer(), to.len).build(),
            Work::Receive { most, .. } => {
                // Of a selected buffer, which is smaller; a negative number it would refuse.
                let most = i32::try_from(*most).unwrap_or(i32::MAX).cast_unsigned();
                opcode::Recv::new(fd, core::ptr::null_mut(), most)
                    .buf_group(GROUP)
                    .build()
                    .flags(Flags::BUFFER_SELECT)
            }
            Work::ReceiveInto { buffer, from, to, done, .. } => {
                let (start, most) = rest_mut(buffer, from.saturating_add(*done));
                let len = u32::try_from(to.saturating_sub(*from + *done)).unwrap_or(most).min(most);
                opcode::Recv::new(fd, start, len).flags(libc::MSG_WAITALL).build()
            }
            Work::Send { chain, message, done, .. } => {
                let header = message.describe(chain, *done);
                opcode::SendMsg::new(fd, header).flags(SEND_FLAGS).build()
            }
            Work::Read { at, buffer, done, .. } => {
                let offset = at.saturating_add(widen(*done));
                let (start, len) = rest_mut(buffer, *done);
                read_entry(handle, registered, (start, len), offset)
            }
            Work::Write { at, payload, durable, done, .. } => {
                let offset = at.saturating_add(widen(*done));
                let flags = if *durable { libc::RWF_DSYNC } else { 0 };
                write_entry(handle, registered, rest(payload, *done), (offset, flags))
            }
            Work::Sync { .. } => {
                let how = types::FsyncFlags::DATASYNC;
                match handle.fixed {
                    Some(place) => opcode::Fsync::new(Fixed(place)).flags(how).build(),
                    None => opcode::Fsync::new(fd).flags(how).build(),
                }
            }
            Work::Allocate { at, len, space, .. } => {
                let mode = libc::FALLOC_FL_KEEP_SIZE
                    | match space {
                        Space::Released => libc::FALLOC_FL_PUNCH_HOLE,
                        Space::Zeroed => libc::FALLOC_FL_ZERO_RANGE,
                    };
                opcode::Fallocate::new(fd, *len).offset(*at).mode(mode).build()
            }
            Work::Ready { .. } => {
                opcode::PollAdd::new(fd, i32::from(libc::POLLIN).cast_unsigned()).build()
            }
            Work::Timer => opcode::Nop::new().build(),
        }
    }
}

/// All of it or an error, and no signal when the peer is gone.
const SEND_FLAGS: u32 = (libc::MSG_WAITALL | libc::MSG_NOSIGNAL).cast_unsigned();

fn read_entry(
    handle: &Handle,
    registered: Option<&Arena>,
    (start, len): (*mut u8, u32),
    offset: u64,
) -> Entry {
    let own = registered.is_some_and(|arena| arena.holds(start));
    match (own, handle.fixed) {
        (true, Some(place)) => {
            opcode::ReadFixed::new(Fixed(place), start, len, 0).offset(offset).build()
        }
        (true, None) => {
            opcode::ReadFixed::new(Fd(handle.raw()), start, len, 0).offset(offset).build()
        }
        (false, Some(place)) => opcode::Read::new(Fixed(place), start, len).offset(offset).build(),
        (false, None) => opcode::Read::new(Fd(handle.raw()), start, len).offset(offset).build(),
    }
}

fn write_entry(
    handle: &Handle,
    registered: Option<&Arena>,
    (start, len): (*const u8, u32),
    (offset, flags): (u64, i32),
) -> Entry {
    let own = registered.is_some_and(|arena| arena.holds(start));
    match (own, handle.fixed) {
        (true, Some(place)) => opcode::WriteFixed::new(Fixed(place), start, len, 0)
            .offset(offset)
            .rw_flags(flags)
            .build(),
        (true, None) => opcode::WriteFixed::new(Fd(handle.raw()), start, len, 0)
            .offset(offset)
            .rw_flags(flags)
            .build(),
        (false, Some(place)) => {
            opcode::Write::new(Fixed(place), start, len).offset(offset).rw_flags(flags).build()
        }
        (false, None) => {
            opcode::Write::new(Fd(handle.raw()), start, len).offset(offset).rw_flags(flags).build()
        }
    }
}

fn rest_mut(buffer: &mut Buffer, done: usize) -> (*mut u8, u32) {
    let left = buffer.len().saturating_sub(done);
    (buffer.as_mut_ptr().wrapping_add(done), u32::try_from(left).unwrap_or(u32::MAX))
}

fn rest(payload: &SharedBuffer, done: usize) -> (*const u8, u32) {
    let left = payload.len().saturating_sub(done);
    (payload.as_ptr().wrapping_add(done), u32::try_from(left).unwrap_or(u32::MAX))
}

fn widen(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// A socket address as the kernel reads it.
#[derive(Debug)]
pub(super) struct Address {
    bytes: [u64; 16],
    len: u32,
}

impl Address {
    pub(super) fn new(of: std::net::SocketAddr) -> Address {
        let mut bytes = [0u64; 16];
        // SAFETY: the closure gets an address valid for `len` bytes; `bytes` has room for the
        // largest one there is (128 bytes), and they do not overlap.
        let len = unsafe {
            of.with_sockaddr(|from, len| {
                let count = usize::try_from(len).unwrap_or(0).min(size_of_val(&bytes));
                core::ptr::copy_nonoverlapping(
                    from.cast::<u8>(),
                    bytes.as_mut_ptr().cast::<u8>(),
                    count,
                );
                len
            })
        };
        Address { bytes, len }
    }

    fn pointer(&self) -> *const libc::sockaddr {
        self.bytes.as_ptr().cast()
    }
}

/// The header and the list of pieces of a sendmsg. Reused from send to send.
pub(super) struct Message {
    /// On the heap: the kernel has its address while the operation moves about.
    header: Box<libc::msghdr>,
    pieces: Vec<libc::iovec>,
}

impl Message {
    pub(super) fn new() -> Message {
        // SAFETY: a msghdr of zeros is the empty message.
        let header = unsafe { core::mem::zeroed() };
        Message { header: Box::new(header), pieces: Vec::with_capacity(2 * Chain::MANY_PIECES) }
    }

    /// Points at what is left of `chain` after its first `done` bytes. The kernel reads header
    /// and list until the send completes: both stay in the operation that owns them.
    fn describe(&mut self, chain: &Chain, mut done: usize) -> *const libc::msghdr {
        self.pieces.clear();
        for piece in chain.pieces() {
            let skipped = done.min(piece.len());
            done -= skipped;
            if skipped < piece.len() {
                self.pieces.push(libc::iovec {
                    iov_base: piece.as_ptr().wrapping_add(skipped).cast_mut().cast(),
                    iov_len: piece.len() - skipped,
                });
            }
        }
        self.header.msg_iov = self.pieces.as_mut_ptr();
        self.header.msg_iovlen = self.pieces.len();
        &raw const *self.header
    }
}

impl core::fmt::Debug for Message {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Message({} pieces)", self.pieces.len())
    }
}

/// The kernel's result as one of ours.
pub(super) fn outcome(result: i32) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))
}
