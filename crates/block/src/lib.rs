//! Units, block commands and completions: the contract every layer speaks.
//!
//! A namespace, a mirrored volume, a replica in a pool and a disk are all the same thing seen from
//! above: a row of blocks of one size that takes [`Command`]s and answers each with a [`Completion`].
//!
//! Invariants:
//! - A number has a unit. [`Lba`], [`Blocks`] and [`Bytes`] do not mix, and arithmetic that could
//!   wrap returns an `Option`.
//! - A failed completion says who must act ([`Fault::blame`]); no layer guesses from text.
//! - A [`Span`] is never empty and never wraps past the last address.
//!
//! Deliberately not here: buffers (they belong to whoever moves bytes), queues, timers, retries.

#![no_std]
#![forbid(unsafe_code)]

mod command;
mod fault;
mod geometry;
mod unit;

pub use command::{Command, Kind};
pub use fault::{Blame, Completion, Fault};
pub use geometry::{BadGeometry, BlockSize, Geometry};
pub use unit::{Blocks, Bytes, Lba, Span};
