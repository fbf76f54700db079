//! Thread-per-core event loop on io_uring: sockets, files, timers, mailboxes, buffers.
//!
//! An application is one [`Handler`] that owns all its state and is called with one [`Event`] at a
//! time. It asks for work with [`Io::submit`], giving a [`Token`] of its own choosing, and each
//! accepted operation comes back as events with that token. There are no futures, no callbacks
//! and no locks; [`Io`] is the whole surface, so a simulation can stand in for the kernel.
//!
//! Invariants:
//! - A [`Buffer`] moves into its operation and out of the last event: the kernel never touches
//!   memory that the application can reach, and memory outlives the operation by construction.
//! - Every accepted operation ends with exactly one final event, also when it is cancelled, its
//!   socket is closed or the reactor stops. The only silent end is that of a cancelled timer.
//! - Nothing here grows without a limit: operations, sockets, files, buffers and messages are
//!   counted, and asking for more is answered with "not now" instead of an allocation.
//! - An idle reactor sleeps in the kernel and costs nothing.
//!
//! Needs Linux 6.1 or newer; [`SetupError`] names what an older kernel lacks.
//!
//! Deliberately not here: protocols, retries, TLS, and any knowledge of volumes.

mod chain;
mod io;
mod mailbox;
mod memory;
mod monotonic_time;
mod slab;
mod spin_policy;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod timers;
mod uring;

pub use chain::Chain;
pub use io::{
    Access, Detached, Event, FileId, Handler, Io, Op, OpId, Opened, Outcome, Refused, Socket,
    Space, Token,
};
pub use mailbox::{Mailbox, Undelivered};
pub use memory::{Arena, ArenaError, Buffer, Class, PAGE, SharedBuffer, copy_nontemporal};
pub use monotonic_time::MonotonicTime;
pub use slab::{Key, Slab};
pub use uring::{Config, Reactor, SetupError, pin_to_core};
