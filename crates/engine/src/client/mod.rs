//! The host's side: connections to controllers on a reactor.
//!
//! - [`Controller`] is one way to one subsystem: an admin connection and its I/O connections.
//!
//! Like devices, it is part of some reactor's handler: its owner passes on the events whose tokens
//! are of its kinds ([`Controller::on`]), calls [`Controller::settle`] when a batch of events is over,
//! and polls what came of it.
//!
//! Deliberately not here: the protocol (`nvme::initiator`), and what is read and written.

mod controller;
mod queue;

pub use controller::{Controller, Happened, Request};

/// Tokens of these kinds belong to controllers.
pub const TOKEN_KINDS: core::ops::RangeInclusive<u8> = CONNECT..=SEND;

const CONNECT: u8 = 0x21;
const RECEIVE: u8 = 0x22;
const SEND: u8 = 0x23;
