//! The Kubernetes operator: disk pools as custom resources.
//!
//! ```text
//!   kubectl ──► DiskPool ──watch──► controller ──► reconcile ──► REST ──► control plane
//!                  ▲                                  │
//!                  └──── status, events ◄─────────────┘
//! ```
//!
//! Invariants:
//! - Decisions are pure ([`reconcile`]): the resource and the pool go in, one action and the status
//!   to show come out. Whatever was interrupted is decided again from what is there.
//! - A pool is destroyed only for a resource that is being deleted and that owns the pool by its
//!   UUID. A pool that was deleted by somebody else is not created again.
//! - One operator acts at a time ([`lease`]); the control plane makes each request idempotent, so
//!   two that overlap do no harm.
//!
//! Deliberately not here: volumes and snapshots, which are the CSI driver's (crate `csi`).

#![forbid(unsafe_code)]

mod controller;
#[expect(unreachable_pub, reason = "a derive repeats the spec inside a function")]
pub mod disk_pool;
mod engine_account;
mod lease;
pub mod nodes;
pub mod reconcile;

pub use controller::{Config, OperatorError, run};
pub use disk_pool::{DiskPool, DiskPoolSpec, DiskPoolStatus};
pub use engine_account::{AUDIENCE, EngineAccount, EngineTokens, InvalidAccount};

/// Every custom resource definition, for `kubectl apply`.
pub fn custom_resource_definitions() -> Result<Vec<serde_json::Value>, serde_json::Error> {
    use kube::CustomResourceExt as _;
    Ok(vec![serde_json::to_value(DiskPool::crd())?])
}
