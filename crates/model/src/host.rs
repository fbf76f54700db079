//! A machine that uses volumes.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::{
    HostName, InstanceId, Labels, Liveness, MachineId, Nqn, Resource, Spec, Timestamp,
    ValidationError, VolumeId, labels,
};

/// A host. It comes into being with the first heartbeat of its agent.
pub type Host = Resource<HostSpec>;

/// What is wanted of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HostSpec {
    /// How it is reached; as it last said itself.
    pub address: HostAddress,
    /// What to choose it by.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
}

/// How a host is known and reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HostAddress {
    /// The name with which it connects to targets.
    pub nqn: Nqn,
    /// Where its agent listens; a host without one cannot be moved to another target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<SocketAddr>,
    /// The machine that the name belongs to. Each publication of a volume to it has an NQN of its
    /// own; a host without it connects with its own NQN, by hand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineId>,
}

impl HostAddress {
    /// Whether it is certain that two addresses are of two machines.
    pub fn is_other_machine(&self, other: &HostAddress) -> bool {
        matches!((self.machine, other.machine), (Some(one), Some(another)) if one != another)
    }

    /// What is known of a host after it said `told`: a machine that is known stays known.
    #[must_use]
    pub fn updated(&self, told: HostAddress) -> HostAddress {
        HostAddress { machine: told.machine.or(self.machine), ..told }
    }
}

/// What can be done to a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "camelCase", deny_unknown_fields)]
pub enum HostChange {
    /// It said how it is reached now.
    Register {
        /// How.
        address: HostAddress,
    },
    /// Give it these labels instead of those it has.
    Label {
        /// All of them.
        labels: Labels,
    },
}

/// What was seen of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct HostStatus {
    /// Whether its agent answers.
    pub liveness: Liveness,
    /// Which run of its agent was last heard.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<InstanceId>,
    /// When it was last heard.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seen_at: Option<Timestamp>,
    /// The volumes it is connected to, and by which paths.
    pub attached: BTreeMap<VolumeId, Vec<PathStatus>>,
}

/// One connection of a host to a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PathStatus {
    /// Where it leads.
    pub address: SocketAddr,
    /// Whether it works.
    pub state: PathState,
}

/// Whether a path works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum PathState {
    /// It works.
    Live,
    /// It is being connected, again or for the first time.
    Connecting,
    /// It is lost and was reported.
    Lost,
    /// It is being dropped.
    Deleting,
}

/// The paths of a host, as its agent sees them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PathReport {
    /// For each volume that no path has led to for a while, where the last one led.
    pub lost: BTreeMap<VolumeId, SocketAddr>,
    /// The paths of each volume that is attached.
    #[serde(default)]
    pub attached: BTreeMap<VolumeId, Vec<PathStatus>>,
}

impl Spec for HostSpec {
    const KIND: &'static str = "host";
    type Id = HostName;
    type Status = HostStatus;
    type Change = HostChange;

    fn validate(&self) -> Result<(), ValidationError> {
        labels::check(&self.labels)
    }

    fn check(&self, _: &HostChange) -> Result<(), ValidationError> {
        Ok(())
    }

    fn apply(&mut self, change: &HostChange) {
        match change.clone() {
            HostChange::Register { address } => self.address = address,
            HostChange::Label { labels } => self.labels = labels,
        }
    }
}
