//! What the kernel tells about devices as it happens: uevents over netlink.
//!
//! Messages may be lost when they come faster than they are read. That is told as
//! [`Uevent::Overrun`], after which whoever watches looks at everything again: an event is a hint
//! to look, never the only source.
#![expect(unsafe_code, reason = "no library binds a netlink socket to the kernel's group")]

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::net::RecvFlags;

/// The kernel's own group; the second one is udev's.
const KERNEL_GROUP: u32 = 1;
/// Longer than any message the kernel sends.
const LONGEST: usize = 8192;

/// Something the kernel tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Uevent {
    /// A device came, went or changed.
    Device {
        /// `add`, `remove`, `change`, …
        action: String,
        /// Its folder below `/sys`.
        path: String,
        /// What the kernel says about it: `SUBSYSTEM`, `DEVNAME`, `NVME_EVENT`, …
        properties: BTreeMap<String, String>,
    },
    /// Messages were lost.
    Overrun,
}

impl Uevent {
    /// Reads a message. None if it is not the kernel's, as udev's are.
    pub fn parse(message: &[u8]) -> Option<Uevent> {
        let mut fields = message.split(|byte| *byte == 0).map(String::from_utf8_lossy);
        let head = fields.next()?;
        let (action, path) = head.split_once('@')?;
        let properties = fields.filter_map(|field| {
            let (key, value) = field.split_once('=')?;
            Some((key.to_owned(), value.to_owned()))
        });
        Some(Uevent::Device {
            action: action.to_owned(),
            path: path.to_owned(),
            properties: properties.collect(),
        })
    }

    /// Whether it is about devices of this subsystem; an overrun is about all.
    pub fn is_about(&self, subsystem: &str) -> bool {
        match self {
            Uevent::Device { properties, .. } => {
                properties.get("SUBSYSTEM").is_some_and(|found| found == subsystem)
            }
            Uevent::Overrun => true,
        }
    }
}

/// A socket that gets the kernel's messages. It does not block: wait for it to be readable.
#[derive(Debug)]
pub struct UeventSocket {
    socket: OwnedFd,
}

impl AsFd for UeventSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl UeventSocket {
    /// Opens it. In a network namespace other than the first, only some events come.
    pub fn open() -> io::Result<UeventSocket> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: no memory is passed; the result is checked before it is used.
        let raw = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_KOBJECT_UEVENT) };
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just returned this descriptor, and nobody else has it.
        let socket = unsafe { OwnedFd::from_raw_fd(raw) };
        // SAFETY: a zeroed `sockaddr_nl` is valid: all its fields are numbers.
        let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        address.nl_family = u16::try_from(libc::AF_NETLINK).map_err(io::Error::other)?;
        address.nl_groups = KERNEL_GROUP;
        let length = u32::try_from(size_of_val(&address)).map_err(io::Error::other)?;
        // SAFETY: `address` is a `sockaddr_nl` of `length` bytes that outlives the call.
        let bound = unsafe { libc::bind(raw, (&raw const address).cast(), length) };
        if bound < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(UeventSocket { socket })
    }

    /// The next message, if one is there.
    pub fn receive(&self) -> io::Result<Option<Uevent>> {
        let mut message = [0; LONGEST];
        loop {
            match rustix::net::recv(&self.socket, &mut message[..], RecvFlags::empty()) {
                Ok((_, length)) => {
                    let message = message.get(..length).unwrap_or_default();
                    if let Some(event) = Uevent::parse(message) {
                        return Ok(Some(event));
                    }
                }
                Err(rustix::io::Errno::AGAIN) => return Ok(None),
                Err(rustix::io::Errno::NOBUFS) => return Ok(Some(Uevent::Overrun)),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_of_the_kernel_is_read() {
        let message = b"change@/devices/virtual/nvme-fabrics/ctl/nvme0\0ACTION=change\0\
                        SUBSYSTEM=nvme\0NVME_EVENT=connected\0SEQNUM=7\0";
        let event = Uevent::parse(message).unwrap();
        assert!(event.is_about("nvme") && !event.is_about("block"));
        let Uevent::Device { action, path, properties } = event else { panic!("an overrun") };
        assert_eq!(action, "change");
        assert_eq!(path, "/devices/virtual/nvme-fabrics/ctl/nvme0");
        assert_eq!(properties["NVME_EVENT"], "connected");
    }

    #[test]
    fn what_is_not_the_kernels_is_left_out() {
        for message in [&b""[..], b"libudev\0\xfe\xed", b"\0\0", b"\xff\xff\xff"] {
            assert_eq!(Uevent::parse(message), None, "{message:?}");
        }
        assert!(Uevent::Overrun.is_about("anything"));
    }

    #[test]
    fn a_socket_that_hears_nothing_does_not_block() {
        let socket = UeventSocket::open().unwrap();
        // Other devices of this machine may tell something; it ends all the same.
        while socket.receive().unwrap().is_some() {}
    }
}
