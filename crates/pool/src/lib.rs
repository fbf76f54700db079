//! The thin pool: format, allocator, journal, snapshots, clones, checksums, recovery.
//!
//! The format and its crash argument are in `docs/format/pool.md`. This crate asks for disk I/O and
//! is told how it went; it never does any.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod bits;
mod entity;
mod journal;
mod layout;
mod map;
mod record;
mod space;
mod state;
mod sums_page;
mod superblock;
mod widen;
mod wire;

#[cfg(test)]
mod codec_tests;

pub use entity::{BadEntity, Entity, Id, Kind, Label, Layer};
pub use layout::{BLOCK, Cluster, ClusterSize, Disk, Place};
pub use state::Refused;
pub use superblock::{FORMAT_VERSION, Member, NotSuper, Superblock, super_offset};
