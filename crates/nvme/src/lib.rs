//! NVMe, NVMe over Fabrics and NVMe/TCP without sockets or clock.
//!
//! - [`auth`]: DH-HMAC-CHAP, both sides.
//! - [`wire`]: the structures of the specifications, byte by byte.
//! - [`pdu`]: framing of NVMe/TCP: headers, digests, alignment.
//! - [`initiator`]: the host's side: queues, controllers, several paths to one namespace.
//! - [`target`]: the controller's side of a connection, and the subsystem its connections share.
//! - [`time`]: moments, given by the caller.
//!
//! Invariants:
//! - Nothing here does I/O, reads a clock or makes random numbers: bytes, time and randomness are
//!   arguments; bytes to send and work to do are polled.
//! - Every queue, table and buffer has a limit that does not depend on what a peer sends.
//! - No input makes this crate panic. A peer that breaks the protocol ends its own connection.
//! - Payload bytes are never copied and never owned here; only small control structures are.
//!
//! Deliberately not here: sockets and buffers (`reactor`), what a namespace is made of (`engine`),
//! TLS, RDMA, metadata and protection information.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod auth;
pub mod initiator;
pub mod pdu;
pub mod target;
pub mod time;
pub mod wire;
