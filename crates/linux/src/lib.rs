//! The kernel's storage: what `/sys`, `/proc` and `/dev` show, and what is asked of it.
//!
//! - [`block_devices`]: the disks of this machine and what keeps a pool from being made on each.
//! - [`mounts`], [`filesystem`], [`freeze`]: file systems on devices.
//! - [`nvme`], [`uevent`]: connections to volumes, and what happens to them.
//! - [`gpt`], [`nvmet`], [`device_mapper`], [`md`]: partitions, what is shown to other machines,
//!   and arrays of both.
//! - [`loop_device`], [`fuse`]: files as block devices, and a volume as a file.
//! - [`machine`]: what this machine can do with volumes.
//! - [`process`], [`cgroup`]: what a server of a volume asks for itself.
//! - [`disk_traits`]: how a disk writes, or the disk under the file system of a file.
//!
//! What is read is read below a [`Tree`], and what is changed is changed through a [`Kernel`], so
//! that a folder of files can stand in for a machine (`testing`).
//!
//! Invariants:
//! - What the kernel says is not trusted to be well-formed: what cannot be read is left out, and
//!   never a panic.
//! - Whatever makes something so looks first, and changes nothing that is so already.
//! - An error names the object, what it means, and what helps.
//!
//! Deliberately not here: volumes, and what lies on a disk that a pool is to be made on (whoever
//! asks brings a function that looks).

pub mod cgroup;
pub mod device_mapper;
mod devices;
mod error;
pub mod filesystem;
pub mod freeze;
pub mod fuse;
pub mod gpt;
mod ioctl;
mod kernel;
pub mod loop_device;
pub mod machine;
pub mod md;
pub mod mounts;
pub mod nvme;
pub mod nvmet;
pub mod process;
#[cfg(any(test, feature = "testing"))]
#[expect(clippy::unwrap_used, reason = "a test aid: what fails here fails the test")]
pub mod testing;
mod traits;
mod tree;
pub mod uevent;

pub use devices::block_devices;
pub use error::SystemError;
pub use kernel::{Kernel, LiveKernel, MountCall, PartitionChange, ToolOutput, Usage};
pub use traits::disk_traits;
pub use tree::Tree;
