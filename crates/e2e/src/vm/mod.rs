//! Virtual machines with a stock Debian kernel, for tests that need a real Linux.
//!
//! QEMU emulates the processor in software, so that no special machine is needed. A [`Vm`] boots
//! from memory in seconds: kernel and modules come out of Debian's package, the tools out of this
//! machine, and both go into one initramfs that is kept in a [`cache`].
//!
//! ```no_run
//! # use std::{path::Path, time::Duration};
//! # fn main() -> anyhow::Result<()> {
//! let vm = e2e::vm::Vm::builder("demo", Path::new("target/debug/guest-agent")).boot()?;
//! let list = vm.run("nvme list -o json", Duration::from_secs(10))?.ok()?;
//! # drop(list); Ok(())
//! # }
//! ```
//!
//! Invariants: a virtual machine never outlives its test process, however that process ends; every
//! wait has a deadline; the console log of a failed test is kept and its end is printed.
//!
//! Not here: what to test (`tests/kernel`), other processes on the host.

mod cache;
mod cpio;
mod disk;
mod guest;
mod image;
mod kernel;
mod machine;
mod modules;
mod qemu;
mod qmp;
mod userland;
pub mod wire;

pub use disk::{Disk, Loss};
pub use guest::{Job, Output};
pub use kernel::Kernel;
pub use machine::{HOST, Link, SECOND_HOST, Vm, VmBuilder};
