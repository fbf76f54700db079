//! The Container Storage Interface, version 1.13: how Kubernetes asks for volumes.
//!
//! ```text
//!   provisioner, snapshotter, resizer ──► Controller, GroupController ──► REST ──► control plane
//!   backup tools                      ──► SnapshotMetadata            ──► REST
//!   all of them, and kubelets         ──► Identity
//!   kubelets                          ──► Node, Registration          ──► kernel, agent
//!   the API server                    ◄── attacher, orphans           ──► Controller
//! ```
//!
//! Every service is generic over [`api::rest::Control`], so a control plane in memory serves the
//! tests. What callers name is translated here and nowhere else: names to ids ([`names`]), class
//! parameters to specs ([`parameters`]), problems to gRPC codes ([`status`]).
//!
//! Invariants:
//! - Every call may be repeated, in any order, and after a crash of either side: ids follow from
//!   names, and what is asked for a second time is compared with what is there.
//! - Of one volume or snapshot, one call is carried out at a time; a second one is aborted.
//! - Secrets are never logged and never part of an error.

mod authority;
pub mod capability;
mod controller;
mod group;
mod host;
mod identity;
mod in_flight;
pub mod kubernetes;
mod liveness;
mod metadata;
pub mod names;
pub mod node;
pub mod parameters;
#[expect(missing_docs, reason = "the interface documents itself, elsewhere")]
pub mod proto;
mod registration;
mod server;
mod status;
#[cfg(test)]
mod testing;
mod topology;

pub use controller::{Controller, ControllerConfig};
pub use group::GroupController;
pub use host::wait_for_host;
pub use identity::{DRIVER_NAME, Identity};
pub use liveness::{Serving, serve_liveness};
pub use metadata::SnapshotMetadata;
pub use node::{AgentDevices, Node, NodeConfig};
pub use server::{
    NodeSockets, ServeError, serve_controller, serve_controller_of, serve_node, serve_node_of,
};
