//! REST: what people, their tools, CSI and the operator ask of the control plane.
//!
//! [`Control`] is the contract as a trait. The control plane implements it; [`Remote`] implements
//! it too, by calling a control plane over HTTP; so does a fake in a test. [`routes`] is the table
//! that all of them, and the document, are made from.
//!
//! - A thing is made by `PUT` to an id that the caller chose. The same request again is answered
//!   with what is there (`unchanged`), another one under the same id is refused as `alreadyExists`.
//! - It is changed by `POST` to its `changes`: one change a request, as a value, and each of them
//!   is harmless twice. `If-Match` with the generation of an answer (its `ETag`) refuses a change
//!   of something that has changed meanwhile.
//! - It is removed by `DELETE`. What is not there is gone: that is no error.
//! - A change that takes longer than the request goes on. Asked again, it is answered when it is
//!   done, or refused as `busy`.
//! - A snapshot is restored, and a volume cloned, by a new volume that names it as its source.
//!
//! Deliberately not here: deciding and doing (control), what the resources are (model).

mod explain;
#[cfg(any(test, feature = "testing"))]
pub mod fake;
mod payloads;
mod queries;
mod remote;
pub mod routes;
mod serve;
mod volume_action;

pub use explain::{
    DryRun, DryRunRequest, ExplainQuery, Explanation, MaintenanceRequest, MaintenanceStatus,
    NextAttempt, OperationStatus, Refusal,
};
pub use payloads::{
    Backup, Brake, Capacity, Counts, DiscoveredVolume, Health, Issue, Leader, Placement, Purge,
    PurgeConfirmation, QuarantineCounts, Quarantined, RecoverRequest, Recovery, RescueRequest,
    Status, StoredSpec, VersionInfo, VolumeCounts, WebhookCall,
};
pub use queries::{
    EventQuery, FailoverQuery, GroupQuery, HostQuery, IdOrName, LabelMatch, NodeQuery, PoolQuery,
    RangeQuery, RebuildQuery, ReplicaQuery, SnapshotQuery, TargetQuery, VolumeQuery,
};
pub use remote::{Contract, Remote};
pub use routes::{ApiResult, Control};
pub use serve::{ControlService, api, router};
pub use volume_action::VolumeAction;
