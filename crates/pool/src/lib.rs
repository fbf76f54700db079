//! The thin pool: format, allocator, journal, snapshots, clones, checksums, recovery.
//!
//! The format and its crash argument are in `docs/format/pool.md`. This crate asks for disk I/O and
//! is told how it went; it never does any.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod bits;
mod checkpoint;
mod entity;
mod journal;
mod layout;
mod life;
mod map;
mod pool;
mod record;
mod recovery;
mod space;
mod state;
mod sums;
mod sums_page;
mod superblock;
mod widen;
mod wire;

#[cfg(test)]
#[expect(
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    reason = "tests count in small numbers"
)]
mod tests;

pub use checkpoint::BadCheckpoint;
pub use entity::{BadEntity, Entity, Id, Kind, Label, Layer};
pub use layout::{BLOCK, Cluster, ClusterSize, Disk, Place};
pub use life::{BadPool, NewPool, Probe, Step, assemble, create};
pub use pool::{
    Buffer, Change, DiskFailed, Effect, Health, Io, KEY_CHECK, Limits, NewReplica, NewSnapshot,
    Pool, Token, Usage,
};
pub use recovery::{ImportError, Recovery};
pub use state::Refused;
pub use superblock::{FORMAT_VERSION, Member, NotSuper, Superblock, super_offset};
