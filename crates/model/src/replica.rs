//! One copy of a volume, in one pool.

use alloc::collections::BTreeSet;
use alloc::string::String;
use core::net::SocketAddr;

use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

use crate::envelope::Versioned;
use crate::{
    Encryption, Epoch, Generation, Nqn, PoolName, ProblemKind, ReplicaId, ReplicaSet, Resource,
    Size, SnapshotId, Spec, SpecBackup, Usage, ValidationError, VolumeId, VolumeSpec,
};

/// A replica.
pub type Replica = Resource<ReplicaSpec>;

/// What is wanted of a replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReplicaSpec {
    /// The volume it is a copy of.
    pub volume: VolumeId,
    /// Where it lies.
    pub pool: PoolName,
    /// Its size.
    pub size: Size,
    /// Whether space is taken only when it is written.
    pub thin: bool,
    /// The snapshot in the same pool that it starts from; absent: it starts empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<SnapshotId>,
    /// How it is encrypted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encryption: Option<Encryption>,
    /// The nodes' names that may connect to it; none: it is not exported.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub hosts: BTreeSet<Nqn>,
}

/// What can be done to a replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "camelCase", deny_unknown_fields)]
pub enum ReplicaChange {
    /// Another size.
    Resize {
        /// The new one.
        size: Size,
    },
    /// Export it to exactly these; to none: do not export it.
    Share {
        /// All of them.
        hosts: BTreeSet<Nqn>,
    },
}

/// What was seen of a replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ReplicaStatus {
    /// How well it is.
    pub state: ReplicaState,
    /// The space it takes.
    pub usage: Usage,
    /// What is written on disk with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<ReplicaLabel>,
    /// The highest epoch that held it: targets of lower ones are refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<Epoch>,
    /// What is written there of its volume; engines tell the control plane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec_backup: Option<SpecBackup>,
    /// Where it is exported; empty: nowhere.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<SocketAddr>,
}

/// How well a replica is. Whether its content may be believed is the business of the set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "name", rename_all = "camelCase")]
pub enum ReplicaState {
    /// It can be read and written.
    Online,
    /// It is there but cannot be used.
    Faulted {
        /// Why, for people.
        detail: String,
    },
    /// Its node or pool is not seen.
    Unknown,
}

/// What is written on disk with a replica: enough to read the cluster back from its disks.
///
/// Of two labels of one volume the one with the higher stamp is right.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReplicaLabel {
    /// The volume it is a copy of.
    pub volume: VolumeId,
    /// Which copy.
    pub replica: ReplicaId,
    /// Size of the volume.
    pub size: Size,
    /// The highest epoch it has seen; it refuses lower ones.
    pub epoch: Epoch,
    /// The copies of the volume and which of them are in sync.
    pub set: ReplicaSet,
}

/// Which of two records of one volume is newer: epoch first, then generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp {
    /// Number of the ownership.
    pub epoch: Epoch,
    /// Number of the set of replicas.
    pub generation: Generation,
}

impl ReplicaLabel {
    /// How new it is.
    pub fn stamp(&self) -> Stamp {
        Stamp { epoch: self.epoch, generation: self.set.generation() }
    }
}

impl Versioned for ReplicaLabel {
    const KIND: &'static str = "replicaLabel";
    const VERSION: u32 = 1;
}

impl Spec for ReplicaSpec {
    const KIND: &'static str = "replica";
    type Id = ReplicaId;
    type Status = ReplicaStatus;
    type Change = ReplicaChange;

    fn validate(&self) -> Result<(), ValidationError> {
        self.size.check("size", VolumeSpec::LEAST_SIZE, VolumeSpec::MOST_SIZE)
    }

    /// A replica may shrink: back to the size of its volume after a growth that failed elsewhere.
    fn check(&self, change: &ReplicaChange) -> Result<(), ValidationError> {
        match change {
            ReplicaChange::Resize { size } if *size < self.size && !self.hosts.is_empty() => {
                let remedy = "it cannot shrink while it is exported";
                Err(ValidationError::new("size", size, remedy).of_kind(ProblemKind::InUse))
            }
            _ => Ok(()),
        }
    }

    fn apply(&mut self, change: &ReplicaChange) {
        match change.clone() {
            ReplicaChange::Resize { size } => self.size = size,
            ReplicaChange::Share { hosts } => self.hosts = hosts,
        }
    }
}
