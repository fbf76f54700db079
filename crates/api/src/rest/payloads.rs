//! What travels to and from the control plane and is not a resource of the model by itself.

use std::collections::{BTreeMap, BTreeSet};

use axum::response::Response;
use http::{HeaderValue, header};
use model::{
    Event, HostChange, Maintenance, NodeChange, NodeName, PoolChange, PoolName, PoolSpec,
    Quarantine, ReplicaId, Severity, Size, SnapshotChange, SnapshotGroupChange, SnapshotGroupSpec,
    SnapshotId, SnapshotSpec, Spec, Subject, TargetId, Timestamp, ValidationError, VolumeId,
    VolumeSpec, WebhookChange, WebhookName, WebhookSpec,
};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};

use crate::body::JsonBody;
use crate::{FromResponse, Json, Reply};

/// The answer when a control plane can do its work; when it cannot, a problem says why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Health {
    /// `ok`; anything else is answered as a problem.
    pub status: String,
    /// Version of this program.
    pub version: String,
    /// Revision of the store that was read to answer.
    pub store_revision: i64,
    /// Who decides.
    pub leader: Leader,
}

/// The answer of a process that runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VersionInfo {
    /// Version of this program.
    pub version: String,
}

/// The whole cluster on one page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Version of the control plane that answers.
    pub version: String,
    /// Who decides.
    pub leader: Leader,
    /// Nodes that answer, of all.
    pub nodes: Counts,
    /// Hosts whose agents answer, of all.
    pub hosts: Counts,
    /// Pools that work, of all.
    pub pools: Counts,
    /// Volumes, by how well they are.
    pub volumes: VolumeCounts,
    /// Room in all pools.
    pub capacity: Capacity,
    /// How many snapshots there are.
    pub snapshots: u64,
    /// How many rebuilds run.
    pub rebuilds: u64,
    /// Copies that are set aside.
    #[serde(default)]
    pub quarantine: QuarantineCounts,
    /// Why lost copies are not replaced now; absent: they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub brake: Option<Brake>,
    /// Automatic failover and healing are paused; absent: they are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maintenance: Option<Maintenance>,
    /// How many failovers run.
    pub failovers: u64,
    /// What is wrong, the worst first; at most [`Status::MOST_TROUBLES`].
    pub issues: Vec<Issue>,
    /// How many more there are.
    pub more_troubles: u64,
}

/// Copies that are set aside instead of destroyed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QuarantineCounts {
    /// How many.
    pub replicas: u64,
    /// Of these, how many may hold writes that no other copy has: somebody has to decide.
    pub newer: u64,
    /// What they take, as far as their nodes answer.
    pub used: Size,
}

/// A copy that is set aside, with what is seen of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Quarantined {
    /// What is recorded.
    pub record: Quarantine,
    /// Until when it is kept at least; absent: until somebody decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// The node of its pool; absent: nobody knows the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeName>,
    /// What it takes; absent: its node does not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<Size>,
}

/// A snapshot to be made of a copy that is set aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RescueRequest {
    /// Its id.
    pub snapshot: SnapshotId,
}

/// Too many nodes are away at once to copy what was on them elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Brake {
    /// How many volumes lack a copy and do not get one.
    pub held: u64,
    /// Which nodes are away, and what lifts the brake.
    pub reason: String,
}

/// Who decides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Leader {
    /// Whether it is the one that answers.
    pub here: bool,
    /// Its name in the store; absent: nobody is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// So many of so many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    /// That are well.
    pub well: u64,
    /// Of all.
    pub all: u64,
}

/// Volumes, by how well they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeCounts {
    /// With all copies in sync.
    pub online: u64,
    /// That work with fewer copies in sync than wanted.
    pub degraded: u64,
    /// Without a copy in sync that can be reached.
    pub faulted: u64,
    /// Of which not enough has been seen.
    pub unknown: u64,
    /// That are served to hosts.
    pub published: u64,
}

/// Room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Capacity {
    /// What can be allocated in all.
    pub capacity: Size,
    /// What is allocated.
    pub used: Size,
    /// What has been promised.
    pub committed: Size,
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Issue {
    /// With what.
    pub subject: Subject,
    /// How much it matters.
    pub severity: Severity,
    /// What it is, why, and what to do if somebody must.
    pub message: String,
}

/// Whether one more copy of a volume could go into a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Placement {
    /// The pool.
    pub pool: PoolName,
    /// Its node.
    pub node: NodeName,
    /// What the pool has of the volume already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica: Option<ReplicaId>,
    /// Its place among those that could take one, best first, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// Why it could not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// What a purge would forget, and what that would cost.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Purge {
    /// Pools that are forgotten; their disks are not touched.
    pub pools: BTreeSet<PoolName>,
    /// Replicas that are given up.
    pub replicas: BTreeSet<ReplicaId>,
    /// Copies in quarantine that are forgotten.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub quarantined: BTreeSet<ReplicaId>,
    /// Targets that are given up; hosts lose their device unless the volume is served elsewhere.
    pub targets: BTreeSet<TargetId>,
    /// Volumes that have fewer copies afterwards and are healed.
    pub degraded: BTreeSet<VolumeId>,
    /// Volumes whose last copy in sync this is: their data is lost.
    pub lost_volumes: BTreeSet<VolumeId>,
    /// Snapshots whose last copy this is: they are lost.
    pub lost_snapshots: BTreeSet<SnapshotId>,
    /// Why it cannot be purged now; empty: it can.
    pub blocked: Vec<String>,
}

/// What the caller knows will be lost and wants to lose: all that the preview names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PurgeConfirmation {
    /// Volumes whose data is lost.
    pub lost_volumes: BTreeSet<VolumeId>,
    /// Snapshots that are lost.
    pub lost_snapshots: BTreeSet<SnapshotId>,
}

/// One record of the store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StoredSpec {
    /// Where it lies.
    pub key: String,
    /// When it was last written: a number that grows with every write to the store.
    pub revision: i64,
    /// What is written there.
    pub record: serde_json::Value,
}

/// What is found on the disks of nodes and the store does not know, or knows in an older state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Recovery {
    /// Pools that engines have open.
    pub pools: BTreeSet<PoolName>,
    /// Volumes, put together from the labels of their copies.
    pub volumes: BTreeMap<VolumeId, DiscoveredVolume>,
    /// Snapshots of these volumes, and of those that are known.
    pub snapshots: BTreeSet<SnapshotId>,
    /// What was found and is left as it is, and why.
    pub left: Vec<Issue>,
}

/// A volume that was found on disks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DiscoveredVolume {
    /// Its size.
    pub size: Size,
    /// Its copies that were found, and in which pools.
    pub copies: BTreeMap<ReplicaId, PoolName>,
    /// Its copies that were not.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub missing: BTreeSet<ReplicaId>,
    /// The node whose engine serves it; it goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub served_by: Option<NodeName>,
    /// The store knows it, but is older than its disks: what it says of the volume is replaced.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub newer_than_store: bool,
}

/// How to read a cluster back from its disks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RecoverRequest {
    /// Volumes to read back although copies of them were not found: those will not come back. If
    /// they do, they are set aside, whatever they hold.
    pub incomplete: BTreeSet<VolumeId>,
}

/// What is posted to the address of a webhook.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WebhookCall {
    /// Whose call it is.
    pub webhook: WebhookName,
    /// How many events of this watch were given up since the last one that was taken.
    pub missed: u64,
    /// What happened.
    pub event: Event,
}

impl Status {
    /// How many issues one answer names.
    pub const MOST_TROUBLES: usize = 100;
}

impl Purge {
    /// Whether the caller knows of everything that would be lost.
    pub fn is_covered(&self, consent: &PurgeConfirmation) -> bool {
        self.lost_volumes.is_subset(&consent.lost_volumes)
            && self.lost_snapshots.is_subset(&consent.lost_snapshots)
    }
}

/// The content of the store, as `holdfast store import` takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backup(pub Vec<u8>);

impl Reply for Backup {
    const STATUSES: &'static [u16] = &[200];
    const MEDIA: &'static str = "application/jsonl";

    fn reply(self) -> Response {
        let mut answer = Response::new(self.0.into());
        answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(Self::MEDIA));
        answer
    }

    fn schema(generator: &mut SchemaGenerator) -> Schema {
        generator.subschema_for::<String>()
    }
}

impl FromResponse for Backup {
    fn read(body: &[u8]) -> Result<Backup, String> {
        Ok(Backup(body.to_vec()))
    }
}

impl Json for VersionInfo {}
impl Json for Health {}
impl Json for Status {}
impl Json for Purge {}
impl Json for Recovery {}

impl JsonBody for PurgeConfirmation {}
impl JsonBody for RecoverRequest {}
impl JsonBody for RescueRequest {}

macro_rules! specs {
    ($($spec:ty),+) => {$(
        impl JsonBody for $spec {
            fn validate(&self) -> Result<(), ValidationError> {
                Spec::validate(self)
            }
        }
    )+};
}

specs!(PoolSpec, VolumeSpec, SnapshotSpec, SnapshotGroupSpec, WebhookSpec);

impl JsonBody for PoolChange {}
impl JsonBody for model::PathReport {}
impl JsonBody for WebhookChange {}
impl JsonBody for SnapshotGroupChange {}

/// Registration comes with a heartbeat.
const BY_HEARTBEAT: &str = "only its own heartbeat says so; it sends one by itself";

impl JsonBody for NodeChange {
    fn validate(&self) -> Result<(), ValidationError> {
        match self {
            NodeChange::Register { .. } => {
                Err(ValidationError::text("kind", "register", BY_HEARTBEAT))
            }
            _ => Ok(()),
        }
    }
}

impl JsonBody for HostChange {
    fn validate(&self) -> Result<(), ValidationError> {
        match self {
            HostChange::Register { .. } => {
                Err(ValidationError::text("kind", "register", BY_HEARTBEAT))
            }
            HostChange::Label { .. } => Ok(()),
        }
    }
}

impl JsonBody for SnapshotChange {
    fn validate(&self) -> Result<(), ValidationError> {
        match self {
            SnapshotChange::Restore { .. } => {
                let remedy = "make a volume that has the snapshot as its source: PUT it";
                Err(ValidationError::text("kind", "restore", remedy))
            }
            SnapshotChange::Label { .. } => Ok(()),
        }
    }
}
