//! A FUSE file system with one file in it, which stands for a block device.
//!
//! [`Session`] is the protocol without a descriptor: requests of the kernel go in, replies and
//! block commands come out. A loop device on that file is then the device that hosts use, on any
//! machine that has `/dev/fuse`.
//!
//! ```text
//!   kernel ── request ──► Session ──► Reaction::Reply(bytes) ─────────────► kernel
//!                            │
//!                            └──────► Reaction::Submit(Command) ──► volume
//!   kernel ◄── bytes ─── Session::complete(id, outcome) ◄────────────┘
//! ```
//!
//! Invariants:
//! - FSYNC is always carried out, never answered with "not implemented": the kernel would believe
//!   the answer for ever and report every later flush as done.
//! - A request is answered exactly once, or handed to the successor of this process, which gets it
//!   from the kernel again ([`resend`]). So every command must bear being repeated.
//! - What the kernel sends is checked like what any peer sends: a length that does not fit is
//!   answered with an error.
//!
//! Not here: waiting for the descriptor, the volume.

mod channel;
mod wire;

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::Path;

pub use channel::{Channel, Received};
use rustix::mount::MountFlags;
use wire::{Attributes, Opcode, Request, flag};

use crate::kernel::MountCall;
use crate::{Kernel, SystemError};

/// The node of the folder that is mounted, and of the file in it.
const ROOT: u64 = 1;
const FILE: u64 = 2;
/// The name of the file.
pub const FILE_NAME: &str = "volume";
/// The most one request may carry, in bytes.
pub const MAX_TRANSFER: u32 = 1 << 20;
/// What is before the payload of the largest request, in bytes.
pub const MAX_HEADER: usize = 80;
/// How many requests the kernel may send before an answer.
const MAX_BACKGROUND: u16 = 256;
/// How long the kernel may believe what it was told of a node, in seconds: sizes change under it,
/// and whoever grows the file tells it to look again.
const VALID: u64 = 3600;

/// The kernel's number of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(u64);

/// What the kernel wants done to the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Read bytes.
    Read {
        /// Where.
        offset: u64,
        /// How many.
        length: u32,
    },
    /// Write the last `length` bytes of the request.
    Write {
        /// Where.
        offset: u64,
        /// How many.
        length: u32,
    },
    /// Make everything durable that was answered before.
    Flush,
    /// These bytes are no longer needed; they read as zeros.
    Discard {
        /// Where.
        offset: u64,
        /// How many.
        length: u64,
    },
    /// Write zeros.
    WriteZeroes {
        /// Where.
        offset: u64,
        /// How many.
        length: u64,
    },
}

/// What a request leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reaction {
    /// Write this to the kernel.
    Reply(Vec<u8>),
    /// Carry this out, then call [`Session::complete`].
    Submit(RequestId, Command),
    /// Nothing: the kernel expects no answer.
    Ignore,
    /// The file system was unmounted; no request follows.
    Unmounted,
}

/// How a command ended: bytes that were read, or nothing; or an error number.
pub type Outcome<'a> = Result<&'a [u8], i32>;

/// The conversation with the kernel about one mount.
#[derive(Debug)]
pub struct Session {
    bytes: u64,
    block: u32,
    read_only: bool,
    /// Whether the kernel can send requests again that a predecessor got.
    can_resend: bool,
}

/// What a successor must know to go on with a session that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionState {
    /// Whether the kernel can send requests again.
    pub can_resend: bool,
}

impl Session {
    /// A session that begins with the kernel's first request.
    pub fn new(bytes: u64, block: u32, read_only: bool) -> Session {
        Session { bytes, block, read_only, can_resend: false }
    }

    /// Goes on with the session of a process that died; see [`resend`].
    pub fn resume(bytes: u64, block: u32, read_only: bool, state: SessionState) -> Session {
        Session { bytes, block, read_only, can_resend: state.can_resend }
    }

    /// What a successor would have to know.
    pub fn state(&self) -> SessionState {
        SessionState { can_resend: self.can_resend }
    }

    /// The volume has another size now.
    pub fn resize(&mut self, bytes: u64) {
        self.bytes = bytes;
    }

    /// A message of the kernel, whole.
    pub fn receive(&mut self, message: &[u8]) -> Reaction {
        let Some(request) = Request::parse(message) else {
            // Without a header there is nobody to answer.
            return Reaction::Ignore;
        };
        let id = RequestId(request.unique);
        match request.opcode {
            Opcode::Init => self.initialise(&request),
            Opcode::Destroy => Reaction::Unmounted,
            // An interrupted request is answered all the same: what it does cannot be undone.
            Opcode::Forget | Opcode::BatchForget | Opcode::Interrupt => Reaction::Ignore,
            Opcode::Lookup => self.look_up(&request),
            Opcode::GetAttributes => match self.attributes(request.node) {
                Some(attributes) => reply(id, &wire::attributes_reply(attributes, VALID)),
                None => fail(id, libc::ENOENT),
            },
            Opcode::Open if request.node == FILE => reply(id, &wire::open_reply(flag::OPEN)),
            Opcode::OpenFolder if request.node == ROOT => reply(id, &wire::open_reply(0)),
            Opcode::Release | Opcode::ReleaseFolder | Opcode::Flush | Opcode::Access => {
                reply(id, &[])
            }
            Opcode::StatFs => reply(id, &wire::statfs_reply(self.bytes, self.block)),
            Opcode::Read | Opcode::Write | Opcode::Fsync | Opcode::Fallocate
                if request.node == FILE =>
            {
                match self.command(&request) {
                    Ok(command) => Reaction::Submit(id, command),
                    Err(errno) => fail(id, errno),
                }
            }
            Opcode::ReadFolder => reply(id, &[]),
            // Never for FSYNC, which is above.
            _ => fail(id, libc::ENOSYS),
        }
    }

    fn initialise(&mut self, request: &Request<'_>) -> Reaction {
        let id = RequestId(request.unique);
        let Some(asked) = wire::InitRequest::parse(request.body) else {
            return fail(id, libc::EPROTO);
        };
        if asked.major != wire::MAJOR {
            // A newer kernel begins again with the version it is told; an older cannot be served.
            let answer = if asked.major > wire::MAJOR { Ok(()) } else { Err(libc::EPROTO) };
            return match answer {
                Ok(()) => reply(id, &wire::version_reply()),
                Err(errno) => fail(id, errno),
            };
        }
        let granted = asked.flags & flag::WANTED;
        self.can_resend = granted & flag::HAS_RESEND != 0;
        reply(id, &wire::init_reply(&asked, granted, MAX_BACKGROUND, MAX_TRANSFER))
    }

    fn look_up(&self, request: &Request<'_>) -> Reaction {
        let id = RequestId(request.unique);
        let name = request.body.split(|byte| *byte == 0).next().unwrap_or_default();
        let attributes = self.attributes(FILE);
        match attributes {
            Some(attributes) if request.node == ROOT && name == FILE_NAME.as_bytes() => {
                reply(id, &wire::entry_reply(attributes, VALID))
            }
            _ => fail(id, libc::ENOENT),
        }
    }

    fn attributes(&self, node: u64) -> Option<Attributes> {
        let (mode, bytes, links) = match node {
            ROOT => (libc::S_IFDIR | 0o500, 0, 2),
            FILE if self.read_only => (libc::S_IFREG | 0o400, self.bytes, 1),
            FILE => (libc::S_IFREG | 0o600, self.bytes, 1),
            _ => return None,
        };
        Some(Attributes { node, bytes, mode, links, block: self.block })
    }

    fn command(&self, request: &Request<'_>) -> Result<Command, i32> {
        let bad = libc::EINVAL;
        match request.opcode {
            Opcode::Read => {
                let (offset, length) = wire::transfer(request.body).ok_or(bad)?;
                if length > MAX_TRANSFER {
                    return Err(bad);
                }
                // A read at the end is short, one behind it empty, as of any file.
                let left = self.bytes.saturating_sub(offset);
                let length = u32::try_from(left).unwrap_or(u32::MAX).min(length);
                Ok(Command::Read { offset, length })
            }
            Opcode::Write => {
                let (offset, length) = wire::transfer(request.body).ok_or(bad)?;
                let payload = request.body.len().saturating_sub(wire::TRANSFER_LENGTH);
                if length > MAX_TRANSFER
                    || u64::from(length) != u64::try_from(payload).map_err(|_| bad)?
                {
                    return Err(bad);
                }
                self.check_change((offset, u64::from(length)), libc::EFBIG)?;
                Ok(Command::Write { offset, length })
            }
            Opcode::Fsync => Ok(Command::Flush),
            _ => {
                let (offset, length, mode) = wire::fallocate(request.body).ok_or(bad)?;
                self.check_change((offset, length), libc::ENOSPC)?;
                let keep = libc::FALLOC_FL_KEEP_SIZE;
                if mode == libc::FALLOC_FL_PUNCH_HOLE | keep {
                    Ok(Command::Discard { offset, length })
                } else if mode & !keep == libc::FALLOC_FL_ZERO_RANGE {
                    Ok(Command::WriteZeroes { offset, length })
                } else {
                    Err(libc::EOPNOTSUPP)
                }
            }
        }
    }

    fn check_change(&self, (offset, length): (u64, u64), beyond: i32) -> Result<(), i32> {
        if self.read_only {
            return Err(libc::EROFS);
        }
        let end = offset.checked_add(length).ok_or(libc::EINVAL)?;
        if end > self.bytes { Err(beyond) } else { Ok(()) }
    }

    /// What is written to the kernel before the bytes of a read, when a command has ended. The
    /// bytes themselves follow in the same write.
    pub fn complete(&self, id: RequestId, command: Command, outcome: Outcome<'_>) -> Vec<u8> {
        match (command, outcome) {
            (_, Err(errno)) => wire::error(id.0, errno),
            (Command::Read { .. }, Ok(data)) => wire::header(id.0, data.len()),
            (Command::Write { length, .. }, Ok(_)) => {
                wire::message(id.0, &wire::write_reply(length))
            }
            (Command::Flush | Command::Discard { .. } | Command::WriteZeroes { .. }, Ok(_)) => {
                wire::message(id.0, &[])
            }
        }
    }
}

/// What a successor writes first: the kernel sends all requests again that were not answered.
/// `None` if this kernel cannot: then they are lost, and the session must be aborted.
pub fn resend(state: SessionState) -> Option<Vec<u8>> {
    state.can_resend.then(wire::resend_notice)
}

/// Tells the kernel to look at the size of the file again.
pub fn size_changed() -> Vec<u8> {
    wire::invalidate_notice(FILE)
}

/// Mounts a session at an empty folder. Requests are read from the descriptor and answers written
/// to it; when its last copy is closed, the file system fails all that is asked of it.
pub fn mount(kernel: &dyn Kernel, point: &Path) -> Result<File, SystemError> {
    let device = kernel.tree().path("/dev/fuse");
    let descriptor = OpenOptions::new().read(true).write(true).open(&device).map_err(|source| {
        SystemError::new("open", &device, source).remedy_missing("load it: modprobe fuse")
    })?;
    let data = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,default_permissions,max_read={MAX_TRANSFER}",
        descriptor.as_raw_fd()
    );
    let call = MountCall {
        source: Path::new("holdfast"),
        point,
        filesystem: "fuse.holdfast",
        flags: MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC,
        data: &data,
    };
    kernel.mount(&call).map_err(|source| SystemError::new("mount at", point, source))?;
    Ok(descriptor)
}

fn reply(id: RequestId, body: &[u8]) -> Reaction {
    Reaction::Reply(wire::message(id.0, body))
}

fn fail(id: RequestId, errno: i32) -> Reaction {
    Reaction::Reply(wire::error(id.0, errno))
}

#[cfg(test)]
mod tests;
