//! Aids for tests of this crate and of everything above it (feature `testing`).
//!
//! - [`MemoryStore`]: a [`Store`](crate::contract::Store) without a server, on a clock of your own.
//! - [`ManualClock`]: time that moves when told to.
//! - [`conformance`]: what every server, and every `Store`, must do.
//! - [`linear`]: whether a concurrent history could have happened one step at a time.

pub mod conformance;
pub mod linear;

mod clock;
mod memory;

pub use clock::ManualClock;
pub use memory::MemoryStore;
