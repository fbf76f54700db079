//! etcd v3: keys, revisions, compare-and-swap, leases and watches.
//!
//! Two halves that meet only on the wire: a client, and an embedded single-node [`server`] that
//! speaks the same protocol as etcd, so that the programs above cannot tell the difference.
//!
//! Deliberately not here: volumes or any other meaning of a key; more than one server member.

#![forbid(unsafe_code)]

pub mod client;
pub mod contract;
pub mod export;
pub mod leader;
pub mod lease;
pub mod proto;
pub mod server;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
