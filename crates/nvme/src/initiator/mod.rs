//! The host's side of NVMe/TCP: queues, controllers, and several paths to one namespace.
//!
//! ```text
//!              ┌───────────────────── driver (engine, worker, command line) ────────────────────┐
//! submit ──►  Multipath ──Effect──► Io (one per queue) ──Transmit──► socket ──► controller
//!              ▲  ▲                   ▲
//!              │  └── path events     └── slots, buffers: the caller's
//!              └── Admin (one per controller): bring-up, keep-alive, events, ANA
//! ```
//!
//! - [`Admin`] is the admin queue of one controller: it connects, authenticates, enables and
//!   describes the controller, keeps it alive, and says when something changed.
//! - [`IoQueue`] is one I/O queue of it: block commands and reservations in, completions out.
//! - [`Multipath`] decides by which path a command goes, what is sent again after a path is lost,
//!   when to reconnect, and when to give up. It touches neither of the other two.
//!
//! The driver's loop for one connection, the same for both kinds of queue:
//!
//! ```text
//! conn.start(now)                                // the socket is connected
//! loop {                                         // bytes came in
//!     match conn.need() {
//!         Need::Bytes => consumed = conn.feed(bytes)
//!         Need::Payload { slot, offset, len } => // put them there, then:
//!             conn.placed(&the_bytes_it_put_there)
//!         Need::Nothing => close, after what poll_transmit still has
//!     }
//!     while let Some(event) = conn.poll(now) { … }
//!     while let Some(transmit) = conn.poll_transmit() { writev head + payload + transmit.tail(…) }
//! }
//! timer: conn.poll_timeout() says when to call conn.handle_timeout(now)
//! end:   conn.close() when the socket is gone; every slot then ends with `Fault::Unreachable`
//! ```
//!
//! `now` never goes back.
//!
//! Invariants:
//! - Each command that was accepted ends exactly once, also when the connection is lost.
//! - The bytes of reads and writes are never owned here; small structures of the protocol are.
//! - Whatever a controller sends, nothing here panics or grows without bound: it ends that
//!   connection.
//!
//! Deliberately not here: sockets, name resolution, TLS, buffers, and splitting of commands that
//! are too large for a controller (see [`Limits::split`]).

use core::time::Duration;

use crate::auth::{Accepted, Keys};
use crate::pdu::Digests;
use crate::wire::Nqn;

mod admin;
mod ana;
mod command;
mod connect;
mod discovery;
mod fault;
mod info;
mod io;
mod message;
#[cfg(test)]
mod mock_controller;
mod multipath;
mod queue;
mod reservation;
mod slots;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod transfer;
mod transmit;

pub use admin::{Admin, AdminEvent, AdminRequest, Answer, Ticket};
pub use ana::{AnaGroup, AnaLog};
pub use command::Limits;
pub use connect::ConnectRefused;
pub use discovery::{DiscoveryReader, Entry, ReadStep};
pub use fault::{completion, lost};
pub use info::{ControllerInfo, Namespace, NamespaceIds};
pub use io::{IoEvent, IoQueue};
pub use message::{Content, Message};
pub use multipath::{
    Effect, Ended, Multipath, PathEvent, PathId, PathState, Policy, Refusal, RequestId,
};
pub use reservation::{Holder, Key, Report, Reservation};
pub use transmit::{Lost, Need, Payload, Transmit};

/// Who we are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Name.
    pub nqn: Nqn,
    /// Identifier, the same on every connection of this host: reservations go by it.
    pub id: [u8; 16],
}

/// What every queue of one controller shares.
#[derive(Clone, Debug)]
pub struct Association {
    /// Who we are.
    pub host: Host,
    /// What we connect to.
    pub subsystem: Nqn,
    /// Secrets, if the subsystem wants to see them.
    pub keys: Option<Keys>,
    /// What may be used with them.
    pub accepted: Accepted,
    /// How we behave.
    pub options: Options,
}

/// How a host behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Digests; the controller must agree to exactly these.
    pub digests: Digests,
    /// I/O queues wanted; the controller may grant fewer.
    pub io_queues: u16,
    /// Entries of an I/O queue; the controller may allow fewer.
    pub queue_entries: u16,
    /// Transfers that a controller may ask for at once per command.
    pub r2ts: u8,
    /// Let the controller leave out responses to reads that succeeded.
    pub quiet_reads: bool,
    /// How long an I/O command may take before the connection counts as lost.
    pub io_patience: Duration,
    /// How long an admin command or a step of the set-up may take.
    pub admin_patience: Duration,
    /// After how long without a sign of life each side gives the other up; zero for never.
    pub keep_alive: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            digests: Digests::default(),
            io_queues: 1,
            queue_entries: 128,
            r2ts: 1,
            quiet_reads: true,
            io_patience: Duration::from_secs(30),
            admin_patience: Duration::from_secs(10),
            keep_alive: Duration::from_secs(5),
        }
    }
}
