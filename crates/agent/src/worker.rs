//! The process that serves one volume to the kernel.
//!
//! ```text
//!   /dev/fuse ──► Session ──► Requests ──► Remote ══ NVMe/TCP ══► target
//!                                            ▲ addresses
//!   control plane ◄── asked while no path works ── Follower (a thread of its own)
//! ```
//!
//! Invariants:
//! - All memory on the way of a request is taken at the start and locked. When there is none free,
//!   no further request is read until one was answered.
//! - A request that the kernel sent is answered by the end of the target's command, or after the
//!   hold limit with an error; if this process ends before, the kernel sends it to the next one.
//!
//! Not here: which requests become which commands ([`crate::requests`]), what to do when this
//! process ends ([`crate::supervisor`]).

mod handler;

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

use block::{BlockSize, Bytes, Geometry};
use linux::fuse::{self, Channel, Session, SessionState};
use linux::{Kernel, LiveKernel, loop_device};
use model::{NqnKind, VolumeId};
use nvme::auth::Accepted;
use nvme::initiator::{Association, Host, Options, Policy};
use reactor::{Class, Mailbox, PAGE, Reactor};
use rustix::fs::OFlags;
use tokio::sync::watch;

use crate::follow::{Follow, Follower, Seen};
use crate::record::{Attachment, Records};
use handler::{Order, Worker};

/// A sign of life, once a second.
pub(crate) const BEAT: u8 = b'.';
/// The volume is served, and a successor of this process could go on.
pub(crate) const READY: u8 = b'R';
/// The volume is served, by this process or none: the kernel cannot send requests again.
pub(crate) const READY_FOR_GOOD: u8 = b'r';
/// The exit code of a worker whose file system was unmounted.
pub const UNMOUNTED: i32 = 10;

/// Requests at work at once: what the kernel sends by itself, and some for those who wait.
const REQUESTS: u32 = 384;
/// Before a successor asks for the requests that its predecessor had, where the target does not see
/// to it: what that one still had on the wire arrives before it is sent a second time, and cannot
/// overwrite what comes after.
const TAKEOVER_PAUSE: Duration = Duration::from_secs(1);
/// The only namespace of a volume.
pub(crate) const NSID: u32 = 1;

/// Why a worker ended.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// There is no record.
    #[error("there is no record of volume {0}; attach it: holdfast attach {0}")]
    Unknown(VolumeId),
    /// A file or descriptor failed.
    #[error("cannot {doing}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// There is no reactor.
    #[error(transparent)]
    Setup(#[from] reactor::SetupError),
    /// The record makes no sense.
    #[error("the record of the volume is damaged: {0}")]
    Damaged(String),
}

fn failed(doing: &'static str) -> impl FnOnce(io::Error) -> WorkerError {
    move |source| WorkerError::Io { doing, source }
}

/// Serves a volume on the descriptor that is standard input, until it is unmounted. `resume`: goes
/// on with the session of a worker that died.
pub fn run(records: &Records, volume: VolumeId, resume: bool) -> Result<(), WorkerError> {
    let record = records.read(volume).map_err(failed("read the record"))?;
    let attachment = record.ok_or(WorkerError::Unknown(volume))?;
    let status = records.status(volume).filter(|_| resume).unwrap_or_default();
    let input = io::stdin().as_fd().try_clone_to_owned().map_err(failed("use standard input"))?;
    let channel = Channel::new(input).map_err(failed("use the descriptor of /dev/fuse"))?;
    let mut reactor = Reactor::new(&reactor_config())?;
    let ready = channel.descriptor().map_err(failed("copy the descriptor"))?;
    let ready = reactor.adopt(ready).ok_or_else(|| WorkerError::Damaged("no room".into()))?;
    let bytes = if status.bytes > 0 { status.bytes } else { attachment.bytes };
    let volume_shape = Geometry::of_bytes(BlockSize::B4096, Bytes(bytes))
        .map_err(|error| WorkerError::Damaged(error.to_string()))?;
    let block = volume_shape.block_size().bytes();
    let session = if resume {
        Session::resume(bytes, block, attachment.read_only, SessionState { can_resend: true })
    } else {
        Session::new(bytes, block, attachment.read_only)
    };
    let (seen, watched) = watch::channel(Seen { bytes, ..Seen::default() });
    let mut worker = Worker::new(
        (channel, ready),
        (session, volume_shape),
        association(&attachment)?,
        policy(&attachment),
        seen,
    );
    let known = status.addresses;
    let addresses = if known.is_empty() { attachment.addresses.clone() } else { known };
    worker.follow(&addresses, &mut reactor);
    if resume {
        // The target ends the association of the predecessor before it begins ours.
        let is_single = matches!(attachment.host_nqn.named(), Some(NqnKind::Publication(_)));
        let pause = if is_single { Duration::ZERO } else { TAKEOVER_PAUSE };
        worker.resume_after(pause, &mut reactor);
    }
    lock_memory();
    // A supervisor that stands still must not hold up requests.
    let flags =
        rustix::fs::fcntl_getfl(io::stdout()).map_err(|error| failed("say so")(error.into()))?;
    rustix::fs::fcntl_setfl(io::stdout(), flags | OFlags::NONBLOCK)
        .map_err(|error| failed("say so")(error.into()))?;
    let link = Link {
        mailbox: reactor.mailbox(),
        file: records.fuse_point(volume).join(fuse::FILE_NAME),
        records: records.clone(),
        volume,
    };
    let following = Following { attachment, addresses, bytes, records: records.clone() };
    std::thread::Builder::new()
        .name("follower".to_owned())
        .spawn(move || following.run(watched, &link))
        .map_err(failed("start a thread"))?;
    reactor.run(&mut worker).map_err(failed("run the reactor"))
}

/// Memory for all requests, bounded: 2 MiB of small ones, 10 of medium and 24 of large.
fn reactor_config() -> reactor::Config {
    reactor::Config {
        buffers: vec![
            Class { bytes: 2 * PAGE, count: 256 },
            Class { bytes: 32 * PAGE, count: 80 },
            Class { bytes: 256 * PAGE, count: 24 },
        ],
        operations: 1024,
        sockets: 64,
        // A write that is on its way when a path or this process ends is sent again by another: the
        // old one must not arrive after that.
        reset_on_close: true,
        files: 8,
        messages: 16,
        spin: Duration::ZERO,
        ..reactor::Config::default()
    }
}

fn lock_memory() {
    if let Err(error) = linux::process::lock_memory() {
        tracing::warn!(%error, "memory is not locked; this needs CAP_IPC_LOCK");
    }
    if let Err(error) = linux::process::set_io_flusher() {
        tracing::debug!(%error, "not an I/O flusher; this needs CAP_SYS_RESOURCE");
    }
}

fn association(attachment: &Attachment) -> Result<Association, WorkerError> {
    let name = |nqn: &model::Nqn| {
        nvme::wire::Nqn::new(nqn.as_str())
            .map_err(|_| WorkerError::Damaged(format!("{nqn} is no NQN")))
    };
    let nqn = name(&attachment.host_nqn)?;
    let id = engine::serve::identity_of(&nqn, 0).uuid;
    Ok(Association {
        host: Host { nqn, id },
        subsystem: name(&attachment.subsystem)?,
        keys: None,
        accepted: Accepted::default(),
        options: Options::default(),
    })
}

/// Paths are never given up: whoever knows where the target is says so.
fn policy(attachment: &Attachment) -> Policy {
    Policy {
        requests: REQUESTS,
        hold_for: Duration::from_secs(attachment.hold_seconds),
        reconnect_most: Duration::from_millis(500),
        abandon_after: None,
        seed: u64::from(std::process::id()),
        ..Policy::default()
    }
}

/// The thread that follows the target.
struct Following {
    attachment: Attachment,
    addresses: Vec<SocketAddr>,
    bytes: u64,
    records: Records,
}

impl Following {
    fn run(mut self, seen: watch::Receiver<Seen>, link: &Link) {
        self.attachment.addresses = self.addresses;
        self.attachment.bytes = self.bytes;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        match runtime {
            Ok(runtime) => {
                let (attachment, records) = (&self.attachment, &self.records);
                runtime.block_on(Follower { attachment, records, seen }.run(link));
            }
            Err(error) => tracing::error!(%error, "the target cannot be followed"),
        }
    }
}

/// What the follower can do.
struct Link {
    mailbox: Mailbox<Order>,
    file: PathBuf,
    records: Records,
    volume: VolumeId,
}

impl Follow for Link {
    fn addresses(&self, addresses: Vec<SocketAddr>) {
        if self.mailbox.post(Order::Addresses(addresses)).is_err() {
            tracing::warn!("the worker takes no addresses; will ask again");
        }
    }

    fn dismissed(&self) {
        if self.mailbox.post(Order::Dismissed).is_err() {
            tracing::warn!("the worker was not told that its publication is over");
        }
    }

    /// The kernel asks the data thread for the size of the file, and then the loop device the
    /// kernel for it.
    fn resized(&self, bytes: u64) {
        let kernel = LiveKernel::default();
        let device = self.records.read(self.volume).ok().flatten().and_then(|it| it.device);
        let looked = std::fs::metadata(&self.file);
        let grown = device.map(|device| {
            loop_device::refresh(&kernel, &device).map(|()| kernel.device_size(&device).ok())
        });
        match (looked, grown) {
            (Ok(_), None | Some(Ok(_))) => tracing::info!(bytes, "volume has another size"),
            (looked, grown) => {
                tracing::error!(bytes, ?looked, ?grown, "device has not the size of its volume");
            }
        }
    }
}
