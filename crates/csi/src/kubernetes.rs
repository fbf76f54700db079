//! What the driver does with the API server itself, so that a cluster needs fewer sidecars.
//!
//! ```text
//!   VolumeAttachments ──► attachment (decision) ──► attacher (calls, patches)
//!   PersistentVolumes ──► orphans (decision)    ──► orphan_collector (labels, deletes)
//! ```
//!
//! Decisions are functions of what was observed; the loops observe, decide and act, and nothing is
//! remembered that matters: after a restart they look again.

mod attacher;
mod attachment;
mod cluster;
mod orphan_collector;
mod orphans;
#[cfg(test)]
mod testing;

pub use attacher::run_attacher;
pub use cluster::{Cluster, ConnectError};
pub use orphan_collector::{OrphanConfig, collect_orphans};
pub(crate) use orphans::{CLUSTER, USED};
