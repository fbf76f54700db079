//! A volume as it was at one moment.

use alloc::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::envelope::Versioned;
use crate::{
    GivenName, Labels, PoolName, ReplicaId, Resource, Size, SnapshotGroupId, SnapshotId, Spec,
    Timestamp, Usage, ValidationError, VolumeId, labels,
};

/// A snapshot. Its status is stored with it: when it was taken and where its copies are cannot be
/// found out again while a pool is away.
pub type Snapshot = Resource<SnapshotSpec>;

/// What is wanted of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SnapshotSpec {
    /// What people call it instead of its id; fixed when it is taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<GivenName>,
    /// The volume it is taken of.
    pub volume: VolumeId,
    /// The group it is taken with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<SnapshotGroupId>,
    /// What to find it by.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
}

/// What can be done to a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "camelCase", deny_unknown_fields)]
pub enum SnapshotChange {
    /// Give it these labels instead of those it has.
    Label {
        /// All of them.
        labels: Labels,
    },
    /// Start a volume from it.
    Restore {
        /// Which.
        volume: VolumeId,
    },
}

/// What was seen of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SnapshotStatus {
    /// Whether a volume can be started from it.
    pub state: SnapshotState,
    /// When it was taken.
    pub taken_at: Timestamp,
    /// Size of the volume then.
    pub size: Size,
    /// What its content is good for.
    pub consistency: Consistency,
    /// Where it lies: the replica it was taken of, by pool.
    pub copies: BTreeMap<PoolName, SnapshotCopy>,
}

/// Whether a volume can be started from a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum SnapshotState {
    /// It can.
    Ready,
    /// It can, but not every copy is seen.
    Degraded,
    /// No copy is seen.
    Unavailable,
}

/// What the content of a snapshot is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Consistency {
    /// As after a power cut: everything that was flushed is there.
    Crash,
    /// The file system was frozen.
    FileSystem,
}

/// One copy of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SnapshotCopy {
    /// The replica it was taken of.
    pub replica: ReplicaId,
    /// Whether it is seen now.
    pub online: bool,
    /// The space it takes.
    pub usage: Usage,
}

/// What is written on disk with a snapshot, so that it can be read back from there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SnapshotLabel {
    /// Which snapshot.
    pub snapshot: SnapshotId,
    /// Of which volume.
    pub volume: VolumeId,
    /// Of which replica.
    pub replica: ReplicaId,
    /// With which group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<SnapshotGroupId>,
    /// When.
    pub taken_at: Timestamp,
    /// Size of the volume then.
    pub size: Size,
    /// What its content is good for.
    pub consistency: Consistency,
}

impl Versioned for SnapshotLabel {
    const KIND: &'static str = "snapshotLabel";
    const VERSION: u32 = 1;
}

impl SnapshotSpec {
    /// A snapshot of this volume, and nothing else asked for.
    pub fn new(volume: VolumeId) -> SnapshotSpec {
        SnapshotSpec { name: None, volume, group: None, labels: Labels::new() }
    }
}

impl Spec for SnapshotSpec {
    const KIND: &'static str = "snapshot";
    type Id = SnapshotId;
    type Status = SnapshotStatus;
    type Change = SnapshotChange;

    fn name(&self) -> Option<&GivenName> {
        self.name.as_ref()
    }

    fn validate(&self) -> Result<(), ValidationError> {
        labels::check(&self.labels)
    }

    fn check(&self, _: &SnapshotChange) -> Result<(), ValidationError> {
        Ok(())
    }

    fn apply(&mut self, change: &SnapshotChange) {
        match change {
            SnapshotChange::Label { labels } => self.labels.clone_from(labels),
            SnapshotChange::Restore { .. } => {}
        }
    }
}
