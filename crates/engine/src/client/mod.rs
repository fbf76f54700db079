//! The host's side: connections to controllers on a reactor.
//!
//! - [`Controller`] is one way to one subsystem: an admin connection and its I/O connections.
//!
//! - [`Remote`] is one namespace by several of them, [`StandaloneHandler`] one with a reactor of
//!   its own.
//! - [`Session`] is a controller on a reactor of its own, for tools.
//! - [`perf`] puts a load on a session and measures it.
//!
//! Like devices, a controller is part of some reactor's handler: its owner passes on the events
//! whose tokens are of its kinds ([`Controller::on`]), calls [`Controller::settle`] when a batch of
//! events is over, and polls what came of it.
//!
//! Deliberately not here: the protocol (`nvme::initiator`), and what is read and written.

mod controller;
pub mod perf;
mod queue;
mod remote;
mod request;
mod session;
mod standalone;

pub use controller::Controller;
pub use reactor::pin_to_core;
pub use remote::Remote;
pub use request::{ControllerEvent, Rejected, Request};
pub use session::{Session, SessionError};
pub use standalone::StandaloneHandler;

/// Tokens of these kinds belong to controllers.
pub const TOKEN_KINDS: core::ops::RangeInclusive<u8> = CONNECT..=SEND;

const CONNECT: u8 = 0x21;
const RECEIVE: u8 = 0x22;
const SEND: u8 = 0x23;
