//! Making the ring, and saying clearly what an older kernel lacks.
#![expect(unsafe_code, reason = "registering memory with the kernel")]

use core::time::Duration;
use std::io;

use io_uring::{IoUring, Probe, opcode};
use rustix::io::Errno;

use crate::memory::{Arena, ArenaError, Class, PAGE};
use crate::monotonic_time::MonotonicTime;

/// Sizes and limits of a reactor.
#[derive(Clone, Debug)]
pub struct Config {
    /// Buffers that [`crate::Io::take`] gives out.
    pub buffers: Vec<Class>,
    /// Buffers for [`crate::Op::Receive`], each of `receive_bytes`. Up to half of them lie ready
    /// for the kernel, the others may be in the handler's hands. A power of two.
    pub receive_buffers: u16,
    /// Size of a receive buffer.
    pub receive_bytes: usize,
    /// Operations under way at once, timers included.
    pub operations: u32,
    /// Sockets open at once.
    pub sockets: u32,
    /// Whether connections that we opened are reset when they are closed, also by the end of the
    /// process: what the peer has not received by then it never does.
    pub reset_on_close: bool,
    /// Files open at once.
    pub files: u32,
    /// Messages waiting in the mailbox.
    pub messages: usize,
    /// How long to spin before sleeping, when spinning pays.
    pub spin: Duration,
}

impl Default for Config {
    /// For an engine on one core: 68 MiB of buffers.
    fn default() -> Config {
        Config {
            buffers: vec![
                Class { bytes: 2 * PAGE, count: 1024 },
                Class { bytes: 32 * PAGE, count: 192 },
                Class { bytes: 256 * PAGE, count: 32 },
            ],
            receive_buffers: 32,
            receive_bytes: 32 * PAGE,
            operations: 16 * 1024,
            sockets: 4 * 1024,
            reset_on_close: false,
            files: 256,
            messages: 1024,
            spin: Duration::from_micros(80),
        }
    }
}

impl Config {
    /// With room for so many more buffers of that size, if an arena can be so large.
    #[must_use]
    pub fn with_room(mut self, bytes: usize, count: u32) -> Config {
        let mut whole = self.buffers.clone();
        if let Some(class) = whole.iter_mut().find(|class| class.bytes >= bytes) {
            class.count = class.count.saturating_add(count);
        }
        if Arena::can_be(&whole) {
            self.buffers = whole;
        }
        self
    }
}

/// Why a reactor could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The kernel is too old.
    #[error("this kernel has no {feature}; Linux 6.1 or newer is needed")]
    Unsupported {
        /// What is missing.
        feature: &'static str,
    },
    /// The kernel or the container's sandbox forbids io_uring.
    #[error(
        "io_uring is forbidden here; allow it with `sysctl kernel.io_uring_disabled=0` \
         and a seccomp profile that lets io_uring_setup, io_uring_enter and io_uring_register pass"
    )]
    Forbidden,
    /// The limits make no sense.
    #[error("{what}")]
    Limits {
        /// Which and why.
        what: &'static str,
    },
    /// The buffers could not be made.
    #[error("cannot make the buffers")]
    Buffers(#[from] ArenaError),
    /// Something else.
    #[error("cannot {doing}")]
    Other {
        /// What was being done.
        doing: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

/// Keeps the calling thread on one core.
pub fn pin_to_core(core: usize) -> io::Result<()> {
    use rustix::thread::{CpuSet, sched_setaffinity};
    if core >= CpuSet::MAX_CPU {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut only = CpuSet::new();
    only.set(core);
    Ok(sched_setaffinity(None, &only)?)
}

/// The same clock for all reactors of a machine, so that what moves from one to another may carry
/// moments along. It goes on while the machine is suspended: what was true before is then as old as
/// it is.
pub(super) fn monotonic_time() -> MonotonicTime {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let whole = u64::try_from(now.tv_sec).unwrap_or(0).saturating_mul(1_000_000_000);
    MonotonicTime::from_nanos(whole.saturating_add(u64::try_from(now.tv_nsec).unwrap_or(0)))
}

const SUBMISSIONS: u32 = 512;
const COMPLETIONS: u32 = 4096;

pub(super) fn ring() -> Result<IoUring, SetupError> {
    let ring = IoUring::builder()
        .setup_cqsize(COMPLETIONS)
        .setup_submit_all()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .dontfork()
        .build(SUBMISSIONS)
        .map_err(why_no_ring)?;
    let mut probe = Probe::new();
    ring.submitter()
        .register_probe(&mut probe)
        .map_err(|_| SetupError::Unsupported { feature: "io_uring probe" })?;
    let needed = [
        (opcode::Accept::CODE, "io_uring accept"),
        (opcode::Connect::CODE, "io_uring connect"),
        (opcode::Recv::CODE, "io_uring recv"),
        (opcode::SendMsg::CODE, "io_uring sendmsg"),
        (opcode::ReadFixed::CODE, "io_uring read with registered buffers"),
        (opcode::WriteFixed::CODE, "io_uring write with registered buffers"),
        (opcode::Fsync::CODE, "io_uring fsync"),
        (opcode::Fallocate::CODE, "io_uring fallocate"),
        (opcode::PollAdd::CODE, "io_uring poll"),
        (opcode::AsyncCancel::CODE, "io_uring cancel"),
    ];
    match needed.iter().find(|(code, _)| !probe.is_supported(*code)) {
        Some((_, feature)) => Err(SetupError::Unsupported { feature }),
        None => Ok(ring),
    }
}

fn why_no_ring(error: io::Error) -> SetupError {
    match Errno::from_io_error(&error) {
        Some(Errno::NOSYS) => SetupError::Unsupported { feature: "io_uring" },
        Some(Errno::INVAL) => SetupError::Unsupported { feature: "io_uring DEFER_TASKRUN" },
        Some(Errno::PERM | Errno::ACCESS) => SetupError::Forbidden,
        _ => SetupError::Other { doing: "set up io_uring", source: error },
    }
}

/// Registers all of the arena as the ring's buffer 0. Without the right to lock that much memory
/// (RLIMIT_MEMLOCK) the reactor works the same, only the kernel maps buffers for each operation.
pub(super) fn register_arena(ring: &IoUring, arena: &Arena) -> bool {
    let (base, len) = arena.extent();
    let all = [libc::iovec { iov_base: base.cast(), iov_len: len }];
    // SAFETY: the mapping is valid for `len` bytes, and the reactor that owns the ring also holds
    // the arena, whose fields are dropped after the ring's.
    unsafe { ring.submitter().register_buffers(&all) }.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_made_for_many_buffers_but_not_for_more_than_can_be() {
        let bytes = |config: &Config| Arena::new(&config.buffers).unwrap().bytes();
        let usual = Config::default();
        let roomy = usual.clone().with_room(PAGE, 5000);
        assert_eq!(bytes(&roomy), bytes(&usual) + 5000 * 2 * PAGE);
        assert_eq!(bytes(&usual.clone().with_room(PAGE, u32::MAX)), bytes(&usual));
        assert_eq!(bytes(&usual.clone().with_room(usize::MAX, 1)), bytes(&usual));
    }
}
