//! Tests and benchmarks on real parts: processes, etcd, virtual machines with a stock kernel.
//!
//! The lanes are test binaries under `tests/`; the benchmarks are functions under [`bench`], run by
//! the `bench` binary. Both drive Holdfast the way its users do, through its command line, its
//! sockets and its files.
//!
//! Deliberately not here: anything that ships. No other crate depends on this one.

pub mod bench;
pub mod cluster;
pub mod committer;
pub mod csi_sanity;
pub mod etcd;
pub mod figure;
pub mod fleet;
pub mod loop_device;
pub mod netns;
pub mod process;
pub mod python;
pub mod store;
pub mod vm;
