//! The node API: what the control plane asks of an engine.
//!
//! [`Node`] is the contract as a trait. The engine implements it; [`Remote`] implements it too, by
//! calling an engine over HTTP; so does a fake in a test. [`routes`] says how each of its functions
//! looks on the wire.
//!
//! Requests are whole specs under a generation ([`model::VersionedSpec`]), sent by `PUT` to an id
//! that the control plane chose:
//! - a generation lower than the one held is refused as stale, the same with other content as
//!   reused, the same with the same content is answered `unchanged`;
//! - adding, removing and taking off-line a child, publishing, limits, the state of the path and
//!   shutdown are all in the spec of a target; disks, import and export in that of a pool; sharing
//!   and size in that of a replica. A new generation with the same spec asks the engine to look
//!   again: that is how a pool takes the space its disks have gained;
//! - a removal names a generation as well. The engine remembers it until it restarts, so that an
//!   older order which arrives late does not bring the thing back;
//! - an order that took too long goes on. Asked again it is answered when it is done.
//!
//! Deliberately not here: deciding anything (engine, planner), and the registration with the
//! control plane ([`crate::heartbeat`]).

#[cfg(feature = "faults")]
mod fault;
mod node_trait;
mod payloads;
mod remote;
pub mod routes;
mod serve;
mod statistics;

#[cfg(feature = "faults")]
pub use fault::{Fault, FaultKind, FaultPlace, Faults};
pub use node_trait::{ApiResult, Node};
pub use payloads::{
    BlockRange, CheckReport, CheckRequest, DeletePool, DeleteReplica, DiffQuery, DifferingBlocks,
    Fence, FenceReset, GenerationQuery, Health, JobControl, NodeInfo, Observed, ObservedSnapshot,
    PoolFilter, Range, RebuildRequest, Run, Scrub, ScrubState, SnapshotRequest, TargetSnapshot,
};
pub use remote::{Contract, Remote};
pub use serve::{NodeService, api, router};
pub use statistics::{Histogram, Statistics, StatisticsOf, Traffic};
