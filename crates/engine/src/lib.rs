//! Data-plane daemon: NVMe/TCP, pools and mirrors on the reactor.
//!
//! - [`serve`]: the target: listeners, connections, subsystems, one reactor per core.
//! - [`client`]: the host's side: connections to controllers.
//! - [`volumes`]: mirrored volumes, and the ways to their replicas.
//! - [`replication`]: what engines prove to each other, and how their bytes are protected.
//! - [`daemon`]: the node API over all of these: what `holdfast engine run` runs.
//! - [`counters`]: what was done and how long it took.
//! - [`device`]: what namespaces are made of: memory, files and block devices.
//!
//! Invariants:
//! - All state belongs to one reactor's handler; reactors exchange messages.
//! - Nothing on the way of a read or write takes a lock, allocates in a steady state, or waits.
//!
//! Deliberately not here: the protocol (`nvme`), system calls (`reactor`).

pub mod client;
mod clock;
pub mod counters;
pub mod daemon;
pub mod device;
mod entropy;
#[cfg(feature = "faults")]
mod faults;
pub mod pools;
pub mod replication;
pub mod serve;
mod startup_retry;
mod stream;
pub mod volumes;
