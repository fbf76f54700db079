//! What is kept with the copies of a volume and contradicts its record in the store.
//!
//! A target writes a label only after the store took the record that the label repeats. So no label
//! is ever newer than the record, unless the store went back: a backup was restored, or a store
//! forgot what it had acknowledged. And a copy in sync never has an older note than others know it
//! to have acknowledged, unless it was rolled back itself.

use core::fmt;

use serde::{Deserialize, Serialize};

use crate::{Epoch, Generation, ReplicaId, ReplicaLabel, TargetId, TargetRecord};

/// A copy whose label or note contradicts the record of its volume. What it holds is left as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct LabelConflict {
    /// Which copy.
    pub replica: ReplicaId,
    /// What it says.
    pub reason: ConflictReason,
}

/// How a copy contradicts the record of its volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum ConflictReason {
    /// It refuses the epoch that the record gives: it has seen a higher one.
    RefusesEpoch {
        /// The epoch in the record.
        record: Epoch,
    },
    /// It was used by a later owner than the record names.
    NewerEpoch {
        /// On its label.
        label: Epoch,
        /// In the record.
        record: Epoch,
    },
    /// Its label names another owner of the same epoch.
    OtherOwner {
        /// The epoch.
        epoch: Epoch,
        /// The owner on its label.
        owner: TargetId,
    },
    /// Its label has a later set of replicas than the record.
    NewerSet {
        /// On its label.
        label: Generation,
        /// In the record.
        record: Generation,
    },
    /// Its label has another set of replicas with the same generation.
    OtherSet {
        /// The generation.
        generation: Generation,
    },
    /// It holds an older state than another copy knows it to have acknowledged.
    RolledBack {
        /// The copy that knows; none: the target that used it does.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        known_by: Option<ReplicaId>,
    },
}

impl ConflictReason {
    /// How a label contradicts the record that its target has just read; nothing if it does not.
    /// An older label does not: its target may have died between the record and the label.
    pub fn of(label: &ReplicaLabel, record: &TargetRecord) -> Option<ConflictReason> {
        let (ours, theirs) = (record.stamp(), label.stamp());
        if theirs.epoch > ours.epoch {
            return Some(ConflictReason::NewerEpoch { label: theirs.epoch, record: ours.epoch });
        }
        if theirs.generation > ours.generation {
            let (label, record) = (theirs.generation, ours.generation);
            return Some(ConflictReason::NewerSet { label, record });
        }
        let is_other = theirs.generation == ours.generation && label.set != *record.set();
        is_other.then_some(ConflictReason::OtherSet { generation: ours.generation })
    }
}

impl fmt::Display for ConflictReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConflictReason::RefusesEpoch { record } => {
                write!(f, "it has seen a newer owner than epoch {record} of the store")
            }
            ConflictReason::NewerEpoch { label, record } => {
                write!(f, "its label has epoch {label}, the store has {record}")
            }
            ConflictReason::OtherOwner { epoch, owner } => {
                write!(f, "its label gives epoch {epoch} to target {owner}, the store does not")
            }
            ConflictReason::NewerSet { label, record } => {
                write!(f, "its label has replica set {label}, the store has {record}")
            }
            ConflictReason::OtherSet { generation } => {
                write!(f, "its label has another replica set {generation} than the store")
            }
            ConflictReason::RolledBack { known_by: Some(other) } => {
                write!(f, "it is older than what copy {other} knows it to have had")
            }
            ConflictReason::RolledBack { known_by: None } => {
                f.write_str("it is older than what its target knows it to have had")
            }
        }
    }
}

impl fmt::Display for LabelConflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "copy {}: {}", self.replica, self.reason)
    }
}
