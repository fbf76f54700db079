//! The disk or disks that an engine owns.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::{
    CordonName, DevicePath, Labels, NodeName, PoolName, PoolUuid, ProblemKind, Resource, Size,
    Spec, ValidationError, labels,
};

/// A pool. Its identity is written on its disks; node and paths only say where it hangs.
pub type Pool = Resource<PoolSpec>;

/// What is wanted of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PoolSpec {
    /// The node whose engine owns it.
    pub node: NodeName,
    /// Its disks; files are disks too.
    pub disks: Vec<DevicePath>,
    /// Which pool it is. Left out of a request to make one: it is chosen then, before the disks are
    /// touched, so that a repeated attempt recognises what an earlier one has written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<PoolUuid>,
    /// Never format: the pool is on the disks already. So it is as soon as it was made, or a disk
    /// that was swapped for an empty one would be formatted.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub import: bool,
    /// It was handed over: no engine may open it until it is imported again.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub exported: bool,
    /// Unit of allocation, fixed when it is formatted; left out: 1 MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_size: Option<Size>,
    /// What to choose it by.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// Why it takes nothing new.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub cordons: BTreeSet<CordonName>,
}

/// What can be done to a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "camelCase", deny_unknown_fields)]
pub enum PoolChange {
    /// Give it these labels instead of those it has.
    Label {
        /// All of them.
        labels: Labels,
    },
    /// Put nothing new there.
    Cordon {
        /// Why.
        cordon: CordonName,
    },
    /// Lift one reason not to.
    Uncordon {
        /// Which.
        cordon: CordonName,
    },
    /// One more disk.
    AddDisk {
        /// Which.
        disk: DevicePath,
    },
    /// Use what its disks have gained.
    Grow {},
    /// Close it, so that it can be carried to another node.
    Export {},
    /// Open it where its disks are now.
    Import {
        /// There.
        node: NodeName,
        /// Under these names.
        disks: Vec<DevicePath>,
    },
}

/// What was seen of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PoolStatus {
    /// How well it is.
    pub state: PoolState,
    /// Which pool the disks hold.
    pub uuid: PoolUuid,
    /// What can be allocated in all.
    pub capacity: Size,
    /// What is allocated.
    pub used: Size,
    /// What has been promised: full sizes of replicas, and what snapshots hold.
    pub committed: Size,
    /// Unit of allocation.
    pub cluster_size: Size,
    /// Its disks.
    pub disks: Vec<DiskStatus>,
}

/// How well a pool is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "name", rename_all = "camelCase")]
pub enum PoolState {
    /// Well.
    Online,
    /// It works, but errors or stalls say that a disk is not well: nothing new goes there.
    Suspect {
        /// What was seen.
        symptoms: Vec<DiskFinding>,
    },
    /// It does not work.
    Faulted {
        /// What was seen.
        symptoms: Vec<DiskFinding>,
    },
    /// Closed, or its node is away.
    Offline,
    /// Not seen since the control plane started.
    Unknown,
}

/// Something wrong with one disk of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DiskFinding {
    /// The disk.
    pub disk: DevicePath,
    /// What is wrong.
    pub kind: DiskFindingKind,
    /// With numbers, for people.
    pub detail: String,
}

/// What can be wrong with a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum DiskFindingKind {
    /// It is not there.
    Missing,
    /// It answers with errors.
    IoErrors,
    /// It does not answer in time.
    Stalled,
    /// It returns what was not written.
    Checksum,
    /// It holds another pool, or none.
    Foreign,
    /// Its metadata cannot be read.
    Damaged,
}

/// What was seen of one disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DiskStatus {
    /// Its path.
    pub path: DevicePath,
    /// Its size.
    pub size: Size,
    /// Commands that ended in an error of the medium.
    pub io_errors: u64,
    /// Blocks whose checksum did not match.
    pub checksum_errors: u64,
    /// Times it did not answer in time.
    pub stalls: u64,
}

impl PoolSpec {
    /// The most disks one pool may have.
    pub const MOST_DISKS: usize = 64;
    /// The smallest unit of allocation.
    pub const LEAST_CLUSTER: Size = Size::kib(256);
    /// The unit of allocation unless another is asked for.
    pub const DEFAULT_CLUSTER: Size = Size::mib(1);
    /// The largest unit of allocation.
    pub const MOST_CLUSTER: Size = Size::mib(64);

    /// Whether nothing new may be put there.
    pub fn is_cordoned(&self) -> bool {
        !self.cordons.is_empty()
    }
}

impl Spec for PoolSpec {
    const KIND: &'static str = "pool";
    type Id = PoolName;
    type Status = PoolStatus;
    type Change = PoolChange;

    fn validate(&self) -> Result<(), ValidationError> {
        if self.disks.is_empty() || self.disks.len() > PoolSpec::MOST_DISKS {
            let count = format!("({} of them)", self.disks.len());
            let remedy = format!("give 1 to {} disks", PoolSpec::MOST_DISKS);
            return Err(ValidationError::new("disks", count, remedy));
        }
        let mut seen = BTreeSet::new();
        if let Some(twice) = self.disks.iter().find(|disk| !seen.insert(*disk)) {
            return Err(ValidationError::text("disks", twice.as_str(), "name each disk once"));
        }
        if let Some(size) = self.cluster_size {
            size.check("clusterSize", PoolSpec::LEAST_CLUSTER, PoolSpec::MOST_CLUSTER)?;
            if !size.bytes().0.is_power_of_two() {
                return Err(ValidationError::new(
                    "clusterSize",
                    size,
                    "give a power of two, such as 1MiB",
                ));
            }
        }
        labels::check(&self.labels)
    }

    fn check(&self, change: &PoolChange) -> Result<(), ValidationError> {
        let wrong = |field, text: &str, remedy, kind| {
            Err(ValidationError::text(field, text, remedy).of_kind(kind))
        };
        match change {
            PoolChange::Uncordon { cordon } if !self.cordons.contains(cordon) => {
                let remedy = "it is not cordoned for this reason; see its spec";
                wrong("cordon", cordon.as_str(), remedy, ProblemKind::NotFound)
            }
            PoolChange::Import { node, .. } if !self.exported => {
                wrong("node", node.as_str(), "export the pool first", ProblemKind::InUse)
            }
            PoolChange::AddDisk { disk } if self.exported => {
                let remedy = "the pool is exported; import it first";
                wrong("disk", disk.as_str(), remedy, ProblemKind::NotSupported)
            }
            _ => Ok(()),
        }
    }

    fn apply(&mut self, change: &PoolChange) {
        match change.clone() {
            PoolChange::Label { labels } => self.labels = labels,
            PoolChange::Cordon { cordon } => {
                self.cordons.insert(cordon);
            }
            PoolChange::Uncordon { cordon } => {
                self.cordons.remove(&cordon);
            }
            PoolChange::AddDisk { disk } if !self.disks.contains(&disk) => self.disks.push(disk),
            PoolChange::AddDisk { .. } | PoolChange::Grow {} => {}
            PoolChange::Export {} => self.exported = true,
            PoolChange::Import { node, disks } => {
                (self.node, self.disks, self.exported) = (node, disks, false);
            }
        }
    }

    fn settle(&mut self) -> bool {
        !core::mem::replace(&mut self.import, true)
    }

    /// A request that leaves the uuid open is satisfied by whatever was chosen, and one to make it
    /// by a pool that was made.
    fn satisfies(&self, request: &PoolSpec) -> bool {
        let (uuid, import) = (request.uuid.or(self.uuid), request.import || self.import);
        *self == PoolSpec { uuid, import, ..request.clone() }
    }
}
