//! Replicated volumes with nothing but Kubernetes and the kernel.
//!
//! ```text
//!   MeshVolume, MeshNodeDevice ──► observe ──► View ──► reconcile::decide ──► Plan ──► execute
//!             ▲                                                                          │
//!             └──────────────── writes with resourceVersion ◄────────────────────────────┤
//!                                       GPT, nvmet, NVMe/TCP, device mapper, MD ◄────────┘
//! ```
//!
//! Invariants (`docs/design/0007-mesh.md` argues them):
//! - A consumer goes on without a member only after it has removed it from `status.inSync`.
//! - A partition is exported to a new consumer only after it was withdrawn from the former one.
//! - Decisions are pure: what was seen goes in, actions and writes come out; nothing is remembered.
//! - A partition without our label is never changed.

#![forbid(unsafe_code)]

pub mod cleanup;
pub mod cluster;
pub mod daemon;
mod devices;
pub mod execute;
pub mod names;
#[expect(unreachable_pub, reason = "a derive repeats the spec inside a function")]
pub mod node_device;
pub mod observe;
pub mod parameters;
pub mod placement;
pub mod reconcile;
pub mod service;
pub mod state;
#[expect(unreachable_pub, reason = "a derive repeats the spec inside a function")]
pub mod volume;

pub use devices::MeshDevices;
pub use node_device::MeshNodeDevice;
pub use volume::MeshVolume;

/// Every custom resource definition, for `kubectl apply`.
pub fn custom_resource_definitions() -> Result<Vec<serde_json::Value>, serde_json::Error> {
    use kube::CustomResourceExt as _;
    let all = [MeshVolume::crd(), MeshNodeDevice::crd()];
    all.into_iter().map(serde_json::to_value).collect()
}
