//! Snapshots of several volumes, taken at one moment.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;

use serde::{Deserialize, Serialize};

use crate::{
    Consistency, GivenName, Labels, Resource, SnapshotGroupId, SnapshotId, SnapshotState, Spec,
    Timestamp, ValidationError, VolumeId, labels,
};

/// A group of snapshots: all of them are taken, or none.
pub type SnapshotGroup = Resource<SnapshotGroupSpec>;

/// What is wanted of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SnapshotGroupSpec {
    /// What people call it instead of its id; fixed when it is taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<GivenName>,
    /// The snapshot to take of each volume.
    pub snapshots: BTreeMap<VolumeId, SnapshotId>,
    /// What to find it by.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
}

/// What can be done to a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "camelCase", deny_unknown_fields)]
pub enum SnapshotGroupChange {
    /// Give it these labels instead of those it has.
    Label {
        /// All of them.
        labels: Labels,
    },
}

/// What was seen of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SnapshotGroupStatus {
    /// That of its worst snapshot.
    pub state: SnapshotState,
    /// When it was taken.
    pub taken_at: Timestamp,
    /// What the content is good for.
    pub consistency: Consistency,
}

impl SnapshotGroupSpec {
    /// The most volumes in one group: all of them wait for the slowest.
    pub const MOST_VOLUMES: usize = 64;

    /// These snapshots of these volumes, and nothing else asked for.
    pub fn new(snapshots: BTreeMap<VolumeId, SnapshotId>) -> SnapshotGroupSpec {
        SnapshotGroupSpec { name: None, snapshots, labels: Labels::new() }
    }
}

impl Spec for SnapshotGroupSpec {
    const KIND: &'static str = "snapshotGroup";
    type Id = SnapshotGroupId;
    type Status = SnapshotGroupStatus;
    type Change = SnapshotGroupChange;

    fn name(&self) -> Option<&GivenName> {
        self.name.as_ref()
    }

    fn validate(&self) -> Result<(), ValidationError> {
        let count = self.snapshots.len();
        if !(1..=SnapshotGroupSpec::MOST_VOLUMES).contains(&count) {
            let remedy = format!("give 1 to {} volumes", SnapshotGroupSpec::MOST_VOLUMES);
            return Err(ValidationError::new("snapshots", format!("({count} of them)"), remedy));
        }
        let mut seen = BTreeSet::new();
        if let Some(twice) = self.snapshots.values().find(|id| !seen.insert(**id)) {
            return Err(ValidationError::new(
                "snapshots",
                twice,
                "give each volume its own snapshot id",
            ));
        }
        labels::check(&self.labels)
    }

    fn check(&self, _: &SnapshotGroupChange) -> Result<(), ValidationError> {
        Ok(())
    }

    fn apply(&mut self, change: &SnapshotGroupChange) {
        let SnapshotGroupChange::Label { labels } = change;
        self.labels.clone_from(labels);
    }
}
