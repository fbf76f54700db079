//! The kernel's storage, as `/sys`, `/proc` and `/dev` show it.
//!
//! - [`block_devices`]: the disks of this machine and what keeps a pool from being made on each.
//!
//! Everything is read below a [`Tree`], so that a folder of files can stand in for a machine.
//!
//! Invariants:
//! - What the kernel says is not trusted to be well-formed: what cannot be read is left out, and
//!   never a panic.
//! - Reading changes nothing, and opens no device.
//!
//! Deliberately not here: volumes, and what lies on a disk (whoever asks brings a function that
//! looks).

mod devices;
mod mounts;
mod tree;

pub use devices::block_devices;
pub use tree::Tree;
