//! The controller's side of NVMe/TCP: connections, and the subsystem that they share.
//!
//! ```text
//!   socket bytes ──► Connection ──Event──► driver (engine) ──► device
//!                     │    ▲ │                 │
//!        &mut Subsystem    │ └──Transmit──►  socket
//!                     ▼    └──── complete(slot, result)
//!                 Subsystem ──Effect──► driver (wake, disconnect, persist)
//! ```
//!
//! A [`Connection`] is one TCP connection, which is one queue. It belongs to no subsystem until its
//! Connect command is there; the driver then takes it to the thread of that subsystem and calls
//! [`Connection::admit`]. A [`Subsystem`] is owned by one thread and lent to each call that needs
//! it: there are no locks and no shared pointers.
//!
//! The driver's loop for one connection:
//!
//! ```text
//! loop {                                        // bytes came in
//!     match conn.need() {
//!         Need::Bytes => consumed = conn.feed(bytes)
//!         Need::Payload { slot, offset, len, .. } =>   // driver places min(len, have) bytes
//!             conn.placed(&bytes_it_placed_in_the_buffer_of_slot)
//!         Need::Admission => look at conn.connect_request(), then conn.admit(…) or conn.refuse(…)
//!         Need::Nothing => close, after what poll_transmit still has
//!     }
//!     while let Some(event) = conn.poll(&mut subsystem, now) {
//!         Event::Io { slot, nsid, command } => start it; later conn.complete(slot, result)
//!         Event::CompareAndWrite { compare, write, … } => start it; later conn.complete(write, …)
//!         Event::Buffer { slot, len } => have a buffer, then conn.buffer_ready(slot)  // R2T
//!         Event::Message { slot, nsid, message } => later conn.answer(slot, bytes or fault)
//!         Event::Cancel { slot } => make haste: complete(slot, …) is waited for
//!         Event::Entropy => conn.authenticate(fresh_random_bytes)  // or begin_authentication(…)
//!     }
//!     while let Some(transmit) = conn.poll_transmit() {
//!         // seal() adds the data digest, if there is one; then writev head + payload + tail
//!     }
//!     while let Some(effect) = subsystem.poll_effect() { … }
//! }
//! timer: conn.poll_timeout() says when to call conn.handle_timeout(&mut subsystem, now)
//! end:   conn.detach(&mut subsystem), whoever closed the socket
//! ```
//!
//! Invariants:
//! - A slot is the number of a command at work; the driver keeps at most one buffer per slot. The
//!   slot may be used again as soon as the transmit with [`Transmit::frees`] was polled: the driver
//!   then moves the buffer to the send operation that still needs it.
//! - Each `Event::Io` is answered by exactly one `complete`. A Dataset Management command gives
//!   several events with one slot.
//! - Nothing of a reservation command is acknowledged before the driver said that it is persistent.
//! - A preempt-and-abort is acknowledged when no command that it aborts is at work any more.
//!
//! A host in the same process may leave the stream out: [`Connection::begin_local`],
//! [`Connection::end_local`].
//!
//! Deliberately not here: buffers, devices, random numbers, the way a connection reaches the thread
//! of its subsystem.

mod command;
mod connection;
mod event;
mod subsystem;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use connection::{AuthDone, AuthWork, Connection, ConnectionConfig, LocalCommand};
pub use event::{ConnId, Direction, Effect, Event, Message, Need, Payload, Slot, Transmit};
pub use subsystem::{
    Access, AcquireKeys, BadNamespace, Change, ConnectRequest, Controller, DiscoveryRecord, Holder,
    HostId, Hosts, Limits, MAX_GROUPS, MAX_KEY_STEP, MAX_NSID, MAX_REGISTRANTS, Namespace,
    NamespaceConfig, NamespaceIds, Notice, Readiness, Refusal, Registration, Reservation,
    ReservationHome, Reservations, Service, Subsystem, SubsystemConfig, Traffic,
};
