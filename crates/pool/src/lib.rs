//! The thin pool: format, allocator, journal, snapshots, clones, checksums, recovery.
//!
//! A pool is the disk or disks that an engine owns. It holds replicas and their snapshots. The
//! format and the argument why a crash loses nothing are in `docs/format/pool.md`.
//!
//! | to | use |
//! |---|---|
//! | make a pool | [`create`]: a list of writes and flushes |
//! | find its disks | [`Probe`], [`assemble`] |
//! | open it | [`Recovery`]: asks for reads, ends with a [`Pool`] |
//! | use it | [`Pool::submit`], [`Pool::change`] |
//! | do what it asks | [`Pool::poll`], then [`Pool::complete`] |
//! | leave | [`Pool::export`] |
//!
//! Invariants:
//! - what is acknowledged as durable is found after any crash;
//! - a read returns what was written last, zeros where nothing was, or a fault;
//! - a cluster belongs to one layer, and is used again only when giving it up is durable.
//!
//! Deliberately not here: disk I/O, threads, time, randomness, encryption (the edge does it with
//! the logical block as tweak), locks against a second engine, and the choice when to scrub.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod bits;
mod casts;
mod changed_sums;
mod checkpoint;
mod checkpoint_reader;
mod checksum_page;
mod checksums;
mod codec;
mod create;
mod entity;
mod journal;
mod layout;
mod map;
mod mutation;
mod pool;
mod record;
mod recovery;
mod signature;
mod space;
mod state;
mod superblock;

#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
#[expect(
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    reason = "tests count in small numbers"
)]
mod tests;

pub use checkpoint::BadCheckpoint;
pub use create::{BadPool, NewPool, Probe, Step, assemble, create, wipe};
pub use entity::{BadEntity, Entity, EntityKind, Id, Label, LayerId};
pub use layout::{BLOCK, Cluster, ClusterSize, Disk, Place};
pub use pool::{
    BlockQuery, Buffer, Change, CommandId, DiskFailed, Effect, Health, IoId, KEY_CHECK, Limits,
    NewReplica, NewSnapshot, Pool, QueryKind, Runs, TornWrites, Usage,
};
pub use recovery::{ImportError, Recovery};
pub use signature::{OCCUPANT_BYTES, Signature, find_signature};
pub use state::Refused;
pub use superblock::{FORMAT_VERSION, Member, NotSuper, Superblock, super_offset};
