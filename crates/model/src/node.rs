//! A machine that runs an engine.

use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::{
    CordonName, InstanceId, LabelKey, LabelValue, Labels, Liveness, NodeName, Nqn, ProblemKind,
    ReplicaId, Resource, Spec, StoreMark, TargetId, Timestamp, ValidationError, labels,
};

/// A node. It comes into being with its first heartbeat.
pub type Node = Resource<NodeSpec>;

/// What is wanted of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeSpec {
    /// How it is reached; as it last said itself.
    pub address: NodeAddress,
    /// What to choose it by.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// Why it takes nothing new. What it has stays.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub cordons: BTreeSet<CordonName>,
    /// Why it is to be emptied. A draining node is cordoned too.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub drains: BTreeSet<CordonName>,
}

/// How an engine is reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeAddress {
    /// Where its node API listens.
    pub api: SocketAddr,
    /// Where it serves NVMe/TCP: one or more paths.
    pub data: Vec<SocketAddr>,
    /// The name with which it connects to replicas of other nodes.
    pub nqn: Nqn,
}

/// What a daemon sends to show that it is there; the first one registers it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", schemars(rename = "HeartbeatOf{A}"))]
pub struct Heartbeat<A> {
    /// Which run of the daemon this is: a new one means it forgot its targets.
    pub instance: InstanceId,
    /// Its release.
    pub version: String,
    /// How it is reached.
    pub address: A,
    /// How far the store had come, as the control plane last told it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told: Option<StoreMark>,
}

/// What can be done to a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "camelCase", deny_unknown_fields)]
pub enum NodeChange {
    /// It said how it is reached now.
    Register {
        /// How.
        address: NodeAddress,
    },
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
    /// Empty it.
    Drain {
        /// Why.
        cordon: CordonName,
    },
    /// Lift one reason to cordon or drain it.
    Uncordon {
        /// Which.
        cordon: CordonName,
    },
}

/// What was seen of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct NodeStatus {
    /// Whether it answers.
    pub liveness: Liveness,
    /// Which run of its engine was last heard.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<InstanceId>,
    /// Release of its engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// When it was last heard.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seen_at: Option<Timestamp>,
    /// How far its drain is; absent when it is not being drained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<DrainStatus>,
}

/// What is still on a node that is being emptied. Drained is when nothing is left.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DrainStatus {
    /// Targets still there.
    pub targets: BTreeSet<TargetId>,
    /// Replicas still there.
    pub replicas: BTreeSet<ReplicaId>,
    /// What cannot be moved, and why, for people.
    pub blocked: Vec<String>,
}

impl NodeSpec {
    /// Whether nothing new may be put there.
    pub fn is_cordoned(&self) -> bool {
        !self.cordons.is_empty() || self.is_draining()
    }

    /// Whether what is there is to be moved away.
    pub fn is_draining(&self) -> bool {
        !self.drains.is_empty()
    }

    /// In which zone it is, if its labels say so.
    pub fn zone(&self) -> Option<&LabelValue> {
        self.labels.get(LabelKey::ZONE)
    }
}

impl DrainStatus {
    /// Whether nothing is left to move.
    pub fn is_drained(&self) -> bool {
        self.targets.is_empty() && self.replicas.is_empty()
    }
}

impl Spec for NodeSpec {
    const KIND: &'static str = "node";
    type Id = NodeName;
    type Status = NodeStatus;
    type Change = NodeChange;

    fn validate(&self) -> Result<(), ValidationError> {
        if self.address.data.is_empty() {
            let remedy = "give at least one address and port for NVMe/TCP";
            return Err(ValidationError::new("address.data", "[]", remedy));
        }
        labels::check(&self.labels)
    }

    fn check(&self, change: &NodeChange) -> Result<(), ValidationError> {
        match change {
            NodeChange::Uncordon { cordon }
                if !self.cordons.contains(cordon) && !self.drains.contains(cordon) =>
            {
                let remedy = "it is not cordoned or draining for this reason; see its spec";
                Err(ValidationError::text("cordon", cordon.as_str(), remedy)
                    .of_kind(ProblemKind::NotFound))
            }
            _ => Ok(()),
        }
    }

    fn apply(&mut self, change: &NodeChange) {
        match change.clone() {
            NodeChange::Register { address } => self.address = address,
            NodeChange::Label { labels } => self.labels = labels,
            NodeChange::Cordon { cordon } => {
                self.cordons.insert(cordon);
            }
            NodeChange::Drain { cordon } => {
                self.drains.insert(cordon);
            }
            NodeChange::Uncordon { cordon } => {
                self.cordons.remove(&cordon);
                self.drains.remove(&cordon);
            }
        }
    }
}
