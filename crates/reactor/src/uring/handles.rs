//! Open sockets and files, kept open until nothing is under way on them.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;

use io_uring::IoUring;
use rustix::fs::{FileType, FlockOperation, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::io::Access;

/// A descriptor and what is under way on it.
#[derive(Debug)]
pub(super) struct Handle {
    pub(super) fd: OwnedFd,
    /// Its place in the ring's table of files, which saves the kernel a lookup.
    pub(super) fixed: Option<u32>,
    pub(super) under_way: u32,
    pub(super) closing: bool,
}

impl Handle {
    pub(super) fn new(fd: OwnedFd) -> Handle {
        Handle { fd, fixed: None, under_way: 0, closing: false }
    }

    pub(super) fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

pub(super) fn new_socket(to: SocketAddr) -> io::Result<OwnedFd> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    Ok(rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}

/// Small messages must not wait for large ones to fill a segment.
pub(super) fn tune(socket: &OwnedFd) {
    // A socket that is already dead fails here, and again where it matters.
    let _ = sockopt::set_tcp_nodelay(socket, true);
}

/// Whoever closes it, what was not sent yet never is.
pub(super) fn reset_on_close(socket: &OwnedFd) -> io::Result<()> {
    Ok(sockopt::set_socket_linger(socket, Some(core::time::Duration::ZERO))?)
}

pub(super) fn listen(on: SocketAddr) -> io::Result<(OwnedFd, SocketAddr)> {
    const BACKLOG: i32 = 1024;
    let socket = new_socket(on)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if on.is_ipv6() {
        // Who wants both families lists both addresses; one does not shadow the other.
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    rustix::net::bind(&socket, &on)?;
    rustix::net::listen(&socket, BACKLOG)?;
    let address = local_address(&socket)?;
    Ok((socket, address))
}

pub(super) fn local_address(socket: &OwnedFd) -> io::Result<SocketAddr> {
    Ok(SocketAddr::try_from(rustix::net::getsockname(socket)?)?)
}

pub(super) fn peer_address(socket: &OwnedFd) -> io::Result<SocketAddr> {
    let peer = rustix::net::getpeername(socket)?.ok_or(io::ErrorKind::NotConnected)?;
    Ok(SocketAddr::try_from(peer)?)
}

/// A file, around the page cache if its file system can, and what that means for it.
pub(super) struct OpenFile {
    pub(super) fd: OwnedFd,
    pub(super) bytes: u64,
    pub(super) direct: bool,
    pub(super) alignment: u32,
}

pub(super) fn open(path: &Path, access: Access) -> io::Result<OpenFile> {
    let flags = OFlags::CLOEXEC
        | match access {
            Access::ReadOnly => OFlags::RDONLY,
            Access::ReadWrite => OFlags::RDWR,
            Access::Exclusive => OFlags::RDWR | exclusive_flag(path)?,
        };
    let (fd, direct) = match rustix::fs::open(path, flags | OFlags::DIRECT, Mode::empty()) {
        // The file system does not do direct I/O.
        Err(Errno::INVAL) => (rustix::fs::open(path, flags, Mode::empty())?, false),
        other => (other.map_err(in_use)?, true),
    };
    if access == Access::Exclusive {
        rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive).map_err(in_use)?;
    }
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode);
    if !matches!(kind, FileType::RegularFile | FileType::BlockDevice) {
        let what = "not a regular file or block device";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    // The size of a block device is where its end is; its inode says 0.
    let bytes = rustix::fs::seek(&fd, SeekFrom::End(0))?;
    let alignment = if direct { alignment_of(&fd) } else { 1 };
    Ok(OpenFile { fd, bytes, direct, alignment })
}

/// Gives the lock of a file back before its last reference goes: the kernel drops references of
/// completed operations later, and a process that is being forked has one for a moment.
pub(super) fn unlock(fd: &OwnedFd) {
    // A file that was not locked stays so; there is nothing else to fail.
    let _ = rustix::fs::flock(fd, FlockOperation::Unlock);
}

/// On a block device this flag keeps out mounts and everybody else who gives it; on files it means
/// nothing that we could rely on.
fn exclusive_flag(path: &Path) -> io::Result<OFlags> {
    let kind = FileType::from_raw_mode(rustix::fs::stat(path)?.st_mode);
    Ok(if kind == FileType::BlockDevice { OFlags::EXCL } else { OFlags::empty() })
}

/// A lock that somebody has, and a device that somebody uses, are one error.
fn in_use(error: Errno) -> io::Error {
    match error {
        Errno::WOULDBLOCK | Errno::BUSY => io::ErrorKind::ResourceBusy.into(),
        other => other.into(),
    }
}

/// What direct I/O on this file must be aligned to: what the kernel says, or a page, which is
/// enough everywhere.
fn alignment_of(fd: &OwnedFd) -> u32 {
    use rustix::fs::{AtFlags, StatxFlags, statx};
    const PAGE: u32 = 4096;
    let dio = StatxFlags::from_bits_retain(libc::STATX_DIOALIGN);
    match statx(fd, "", AtFlags::EMPTY_PATH, dio) {
        Ok(found) if found.stx_mask & libc::STATX_DIOALIGN != 0 => {
            match found.stx_dio_offset_align.max(found.stx_dio_mem_align) {
                0 => PAGE,
                alignment => alignment,
            }
        }
        _ => PAGE,
    }
}

/// Puts a descriptor into the ring's table at `place`; `None` if the table has no room for it.
pub(super) fn fix(ring: &IoUring, place: u32, fd: RawFd) -> Option<u32> {
    ring.submitter().register_files_update(place, &[fd]).ok().map(|_| place)
}
