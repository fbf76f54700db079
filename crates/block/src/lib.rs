//! Units, block commands and completions: the contract every layer speaks.
//!
//! A namespace, a mirrored volume, a replica in a pool and a disk are all the same thing seen from
//! above: a row of blocks of one size. It takes [`Command`]s and answers each with a
//! [`Completion`].
//!
//! Invariants:
//! - A number has a unit. [`Lba`], [`Blocks`] and [`Bytes`] do not mix, and arithmetic that could
//!   wrap returns an `Option`.
//! - A failed completion says who must act ([`IoError::class`]); no layer guesses from text.
//! - A [`Span`] is never empty and never wraps past the last address.
//! - Commands that share a block run in the order they came ([`RangeQueue`]).
//!
//! Deliberately not here: buffers (they belong to whoever moves bytes), clocks (a moment is an
//! argument), retries.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod command;
mod error;
mod geometry;
mod instant;
mod range_queue;
mod sequence_map;
#[cfg(feature = "testing")]
pub mod testing;
mod unit;

pub use command::{Command, CommandKind};
pub use error::{Completion, ErrorClass, IoError};
pub use geometry::{BadGeometry, BlockSize, Geometry};
pub use instant::Instant;
pub use range_queue::{RangeAccess, RangeQueue};
pub use sequence_map::SequenceMap;
pub use unit::{Blocks, Bytes, Lba, Span};
