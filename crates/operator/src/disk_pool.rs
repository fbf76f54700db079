//! `DiskPool`: the disks of a node that Holdfast may use, as a resource of Kubernetes.
//!
//! The resource carries plain text where [`model::PoolSpec`] has types, because the API server must
//! accept it first; [`DiskPoolSpec::pool_spec`] is the one place where it becomes a pool.

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use model::{Labels, PoolSpec, Spec as _, ValidationError};
use serde::{Deserialize, Serialize};

/// Keeps a resource until the operator has destroyed its pool.
pub const FINALIZER: &str = "holdfast.io/disk-pool";

/// The condition that says whether a pool takes and serves data.
pub const READY: &str = "Ready";

/// The disks of a node that Holdfast may use. Creating one formats the disks.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[kube(
    group = "holdfast.io",
    version = "v1",
    kind = "DiskPool",
    plural = "diskpools",
    singular = "diskpool",
    shortname = "dsp",
    category = "holdfast",
    status = "DiskPoolStatus",
    derive = "PartialEq",
    printcolumn = r#"{"name": "Node", "type": "string", "jsonPath": ".spec.node"}"#,
    printcolumn = r#"{"name": "State", "type": "string", "jsonPath": ".status.state"}"#,
    printcolumn = r#"{"name": "Capacity", "type": "string", "jsonPath": ".status.capacity"}"#,
    printcolumn = r#"{"name": "Used", "type": "string", "jsonPath": ".status.used"}"#,
    printcolumn = r#"{"name": "Committed", "type": "string", "jsonPath": ".status.committed"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.node == oldSelf.node").message(
        "the node of a pool cannot be changed: export the pool, import it on the other node, and \
         create a DiskPool for it there"
    ),
    validation = Rule::new("oldSelf.disks.all(disk, disk in self.disks)").message(
        "a disk cannot be taken out of a pool: drain the pool and create it again without the disk"
    ),
    validation = Rule::new(
        "has(self.clusterSize) == has(oldSelf.clusterSize) && \
         (!has(self.clusterSize) || self.clusterSize == oldSelf.clusterSize)"
    ).message("the cluster size is fixed when a pool is formatted")
)]
pub struct DiskPoolSpec {
    /// The node whose engine owns the disks.
    #[schemars(length(min = 1, max = 253))]
    pub node: String,
    /// Block devices (prefer `/dev/disk/by-id/…`) or files. Disks can be added later.
    #[schemars(length(min = 1, max = 64), inner(length(min = 1, max = 4096)))]
    pub disks: Vec<String>,
    /// Labels to place volumes by. Left out: the labels of the pool are not managed here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
    /// Unit of allocation, such as `1MiB`, the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub cluster_size: Option<String>,
    /// Never format: the disks already hold the pool.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub import: bool,
}

/// What the operator has seen of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DiskPoolStatus {
    /// Creating, Online, Suspect, Faulted, Offline, Unknown, NotFound, Conflict, Invalid or
    /// Terminating.
    #[serde(default)]
    pub state: String,
    /// The pool that this resource owns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// What can be allocated in all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<String>,
    /// What is allocated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<String>,
    /// What has been promised to volumes and snapshots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub committed: Option<String>,
    /// The disks, as the engine sees them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<Disk>,
    /// What holds for the pool, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// The generation of the resource that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// One disk of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Disk {
    /// Its path.
    pub path: String,
    /// Its size.
    pub size: String,
    /// What is wrong with it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<String>,
}

/// A condition, as Kubernetes has them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Which one.
    #[serde(rename = "type")]
    pub kind: String,
    /// True, False or Unknown.
    pub status: String,
    /// Why, for programs.
    pub reason: String,
    /// Why, for people.
    pub message: String,
    /// Since when.
    pub last_transition_time: String,
}

impl DiskPoolSpec {
    /// The pool that is asked for.
    pub fn pool_spec(&self) -> Result<PoolSpec, ValidationError> {
        let disks = self.disks.iter().map(|disk| disk.parse()).collect::<Result<_, _>>()?;
        let spec = PoolSpec {
            node: self.node.parse()?,
            disks,
            uuid: None,
            import: self.import,
            exported: false,
            cluster_size: self.cluster_size.as_deref().map(str::parse).transpose()?,
            labels: self.labels()?.unwrap_or_default(),
            cordons: std::collections::BTreeSet::new(),
        };
        spec.validate()?;
        Ok(spec)
    }

    /// The labels that the pool must have; absent: they are not managed here.
    pub fn labels(&self) -> Result<Option<Labels>, ValidationError> {
        let Some(labels) = &self.labels else { return Ok(None) };
        let pair = |(key, value): (&String, &String)| Ok((key.parse()?, value.parse()?));
        labels.iter().map(pair).collect::<Result<_, ValidationError>>().map(Some)
    }

    /// A resource for a pool that exists.
    pub fn of(pool: &PoolSpec) -> DiskPoolSpec {
        let labels: BTreeMap<_, _> =
            pool.labels.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        DiskPoolSpec {
            node: pool.node.to_string(),
            disks: pool.disks.iter().map(ToString::to_string).collect(),
            labels: (!labels.is_empty()).then_some(labels),
            cluster_size: pool.cluster_size.map(|size| size.to_string()),
            // Whatever happens to the disks, this resource did not ask to format them.
            import: true,
        }
    }
}

impl DiskPoolStatus {
    /// A condition by its type.
    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.kind == kind)
    }
}
