//! The descriptor of a session: messages of the kernel come out, answers go in.
//!
//! Reads never wait: whoever serves a volume waits for other things as well, and learns elsewhere
//! that there is something to read. Writes do not wait either: the kernel copies an answer to whom
//! it is for.

use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::OwnedFd;

use rustix::fs::OFlags;

/// What there was to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// A message of this length.
    Message(usize),
    /// Nothing, at the moment.
    Nothing,
    /// The file system was unmounted, or its connection was aborted: no request follows.
    Unmounted,
}

/// A descriptor of `/dev/fuse` that is mounted.
#[derive(Debug)]
pub struct Channel(File);

impl Channel {
    /// From now on reads of this descriptor, and of all its copies, do not wait.
    pub fn new(descriptor: OwnedFd) -> io::Result<Channel> {
        let flags = rustix::fs::fcntl_getfl(&descriptor)?;
        rustix::fs::fcntl_setfl(&descriptor, flags | OFlags::NONBLOCK)?;
        Ok(Channel(File::from(descriptor)))
    }

    /// A copy of the descriptor, to wait on.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        self.0.try_clone().map(OwnedFd::from)
    }

    /// Reads the next message. The kernel refuses a buffer in which the largest has no room.
    pub fn read(&self, message: &mut [u8]) -> io::Result<Received> {
        loop {
            let error = match (&self.0).read(message) {
                Ok(length) => return Ok(Received::Message(length)),
                Err(error) => error,
            };
            match error.raw_os_error() {
                Some(libc::EAGAIN) => return Ok(Received::Nothing),
                Some(libc::ENODEV | libc::ECONNABORTED) => return Ok(Received::Unmounted),
                // The request was withdrawn while it was read: the next one.
                Some(libc::ENOENT | libc::EINTR) => {}
                _ => return Err(error),
            }
        }
    }

    /// Writes one answer or notice, which may lie in two parts. An answer that nobody waits for
    /// any more is no error.
    pub fn write(&self, head: &[u8], data: &[u8]) -> io::Result<()> {
        let parts = [IoSlice::new(head), IoSlice::new(data)];
        match (&self.0).write_vectored(&parts) {
            Ok(length) if length == head.len() + data.len() => Ok(()),
            Ok(_) => Err(io::ErrorKind::WriteZero.into()),
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV)) => {
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}
