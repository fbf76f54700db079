//! What users ask for: a block device with copies.
//!
//! The spec holds what users choose. Where replicas and targets are is decided for them and lies in
//! the specs of those: a volume is published when it has a target that admits hosts.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::{
    AffinityGroup, ChildState, Epoch, GivenName, HostName, KeyName, Labels, NodeName, Nqn,
    PoolName, ProblemKind, Progress, QosLimits, ReplicaId, ReplicaState, Resource, Size,
    SnapshotId, Spec, TargetId, TargetState, Topology, Usage, ValidationError, VolumeId, labels,
};

/// A volume.
pub type Volume = Resource<VolumeSpec>;

/// What is wanted of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VolumeSpec {
    /// What people call it instead of its id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<GivenName>,
    /// Its size.
    pub size: Size,
    /// How many copies.
    pub replicas: u8,
    /// Whether space is taken only when it is written.
    #[serde(default = "yes")]
    pub thin: bool,
    /// Whether several hosts may use it at once; what they run on it must know how.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub shared: bool,
    /// What it starts with; absent: zeros.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// How it is encrypted; absent: not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encryption: Option<Encryption>,
    /// Volumes to keep apart from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub affinity_group: Option<AffinityGroup>,
    /// What is done without being asked.
    #[serde(default)]
    pub policy: VolumePolicy,
    /// Where its copies may lie.
    #[serde(default)]
    pub topology: Topology,
    /// What hosts may ask of it at most.
    #[serde(default, skip_serializing_if = "QosLimits::is_none")]
    pub limits: QosLimits,
    /// How many snapshots it may have; absent: as many as there is room for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_snapshots: Option<u32>,
    /// What to find it by.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
}

/// What a volume starts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "camelCase", deny_unknown_fields)]
pub enum Source {
    /// The content of a snapshot.
    Snapshot {
        /// Which.
        snapshot: SnapshotId,
    },
    /// The content of a volume at the moment of the request.
    Volume {
        /// Which.
        volume: VolumeId,
    },
}

/// How content is encrypted at rest: AES-256-XTS with a data key of its own, wrapped by this key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Encryption {
    /// The key that the operator supplies.
    pub key: KeyName,
}

/// What is done without being asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct VolumePolicy {
    /// Replace lost copies.
    pub self_heal: bool,
    /// How long a lost copy may stay away before it is replaced; absent: as the cluster is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replace_after_seconds: Option<u32>,
}

impl Default for VolumePolicy {
    fn default() -> VolumePolicy {
        VolumePolicy { self_heal: true, replace_after_seconds: None }
    }
}

fn yes() -> bool {
    true
}

/// What can be done to a volume. Everything that was decided before the first step is in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "camelCase", deny_unknown_fields)]
pub enum VolumeChange {
    /// Serve it.
    Publish {
        /// By this target, new or the one it has.
        target: TargetId,
        /// There.
        node: NodeName,
        /// For this host; absent: for none, to heal.
        #[serde(skip_serializing_if = "Option::is_none")]
        host: Option<HostName>,
    },
    /// Stop serving it.
    Unpublish {
        /// For this host; absent: for all.
        #[serde(skip_serializing_if = "Option::is_none")]
        host: Option<HostName>,
        /// Even if its node does not answer: fencing takes care of that.
        #[serde(default, skip_serializing_if = "core::ops::Not::not")]
        force: bool,
    },
    /// Serve it elsewhere, for the same hosts.
    Republish {
        /// The target it has.
        from: TargetId,
        /// The one it gets.
        target: TargetId,
        /// There.
        node: NodeName,
    },
    /// Another size.
    Resize {
        /// The new one.
        size: Size,
    },
    /// Another number of copies.
    SetReplicas {
        /// The new one.
        replicas: u8,
    },
    /// One more copy, for one that is lost or wanted.
    AddReplica {
        /// Its id.
        replica: ReplicaId,
        /// There.
        pool: PoolName,
    },
    /// One copy fewer.
    RemoveReplica {
        /// Which.
        replica: ReplicaId,
    },
    /// A copy in another place instead of this one.
    MoveReplica {
        /// The one to leave.
        from: ReplicaId,
        /// The one to make.
        replica: ReplicaId,
        /// There.
        pool: PoolName,
    },
    /// Take a snapshot.
    CreateSnapshot {
        /// Its id.
        snapshot: SnapshotId,
    },
    /// Drop a snapshot.
    DeleteSnapshot {
        /// Which.
        snapshot: SnapshotId,
    },
    /// Other properties: everything but size, copies and what is fixed at creation.
    Modify {
        /// All of the spec.
        spec: Box<VolumeSpec>,
    },
}

/// What was seen of a volume, put together from its target and replicas.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct VolumeStatus {
    /// How well it is.
    pub state: VolumeState,
    /// Why it is not better, for people.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
    /// Where it is served.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<VolumeTarget>,
    /// Its copies.
    pub replicas: BTreeMap<ReplicaId, VolumeReplica>,
    /// The space of the copy that takes the most.
    pub usage: Usage,
    /// How many snapshots it has.
    pub snapshots: u32,
}

/// How well a volume is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum VolumeState {
    /// All copies that are wanted are in sync.
    Online,
    /// It works, with fewer copies in sync than wanted.
    Degraded,
    /// No copy in sync can be reached.
    Faulted,
    /// Not enough of it has been seen.
    Unknown,
}

/// Where a volume is served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct VolumeTarget {
    /// By this target.
    pub id: TargetId,
    /// There.
    pub node: NodeName,
    /// Number of the ownership.
    pub epoch: Epoch,
    /// How it serves; absent while it is not seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<TargetState>,
    /// The subsystem to connect to.
    pub nqn: Nqn,
    /// Where to connect to.
    pub addresses: Vec<SocketAddr>,
    /// The hosts that may connect.
    pub hosts: BTreeSet<HostName>,
    /// The NQN with which each of them connects: of this publication of the volume to it, and of no
    /// other.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub host_nqns: BTreeMap<HostName, Nqn>,
}

/// One copy of a volume, with all that people ask about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct VolumeReplica {
    /// The node of its pool.
    pub node: NodeName,
    /// Its pool.
    pub pool: PoolName,
    /// How well it is.
    pub state: ReplicaState,
    /// What it is worth to the target; absent while there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub child: Option<ChildState>,
    /// The space it takes.
    pub usage: Usage,
    /// How far its rebuild is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
}

impl VolumeSpec {
    /// The smallest volume.
    pub const LEAST_SIZE: Size = Size::mib(1);
    /// The largest volume: 1 PiB.
    pub const MOST_SIZE: Size = Size::gib(1 << 20);
    /// The most copies.
    pub const MOST_REPLICAS: u8 = 8;

    /// A volume of this size with so many copies and nothing else asked for.
    pub fn new(size: Size, replicas: u8) -> VolumeSpec {
        VolumeSpec {
            name: None,
            size,
            replicas,
            thin: true,
            shared: false,
            source: None,
            encryption: None,
            affinity_group: None,
            policy: VolumePolicy::default(),
            topology: Topology::default(),
            limits: QosLimits::default(),
            max_snapshots: None,
            labels: Labels::new(),
        }
    }

    /// The first of the fields that only a new volume can have otherwise.
    fn fixed_field(&self, other: &VolumeSpec) -> Option<&'static str> {
        let fixed = [
            ("size", self.size == other.size),
            ("replicas", self.replicas == other.replicas),
            ("thin", self.thin == other.thin),
            ("source", self.source == other.source),
            ("encryption", self.encryption == other.encryption),
        ];
        fixed.iter().find(|(_, same)| !same).map(|(field, _)| *field)
    }
}

impl Spec for VolumeSpec {
    const KIND: &'static str = "volume";
    type Id = VolumeId;
    type Status = VolumeStatus;
    type Change = VolumeChange;

    fn name(&self) -> Option<&GivenName> {
        self.name.as_ref()
    }

    fn validate(&self) -> Result<(), ValidationError> {
        self.size.check("size", VolumeSpec::LEAST_SIZE, VolumeSpec::MOST_SIZE)?;
        if !(1..=VolumeSpec::MOST_REPLICAS).contains(&self.replicas) {
            let remedy = format!("give 1 to {}", VolumeSpec::MOST_REPLICAS);
            return Err(ValidationError::new("replicas", self.replicas, remedy));
        }
        self.topology.validate(self.replicas).map_err(|invalid| invalid.within("topology"))?;
        self.limits.validate().map_err(|invalid| invalid.within("limits"))?;
        labels::check(&self.labels)
    }

    fn check(&self, change: &VolumeChange) -> Result<(), ValidationError> {
        match change {
            VolumeChange::Resize { size } if *size < self.size => {
                let remedy = format!("a volume cannot shrink; it has {}", self.size);
                Err(ValidationError::new("size", size, remedy).of_kind(ProblemKind::OutOfRange))
            }
            VolumeChange::CreateSnapshot { snapshot } if self.max_snapshots == Some(0) => {
                let remedy = "the volume may have no snapshots; raise its maxSnapshots";
                Err(ValidationError::new("snapshot", snapshot, remedy)
                    .of_kind(ProblemKind::SnapshotLimit))
            }
            VolumeChange::Modify { spec } => match self.fixed_field(spec) {
                Some(field @ ("size" | "replicas")) => {
                    let remedy = "it has a request of its own; send its present value here";
                    Err(ValidationError::new(field, "(changed)", remedy))
                }
                Some(field) => {
                    let remedy =
                        "it is fixed when the volume is made; clone the volume to change it";
                    Err(ValidationError::new(field, "(changed)", remedy))
                }
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    fn apply(&mut self, change: &VolumeChange) {
        match change {
            VolumeChange::Resize { size } => self.size = *size,
            VolumeChange::SetReplicas { replicas } => self.replicas = *replicas,
            VolumeChange::Modify { spec } => self.clone_from(spec),
            // These are done to targets, replicas and snapshots, and lie in their specs.
            VolumeChange::Publish { .. }
            | VolumeChange::Unpublish { .. }
            | VolumeChange::Republish { .. }
            | VolumeChange::AddReplica { .. }
            | VolumeChange::RemoveReplica { .. }
            | VolumeChange::MoveReplica { .. }
            | VolumeChange::CreateSnapshot { .. }
            | VolumeChange::DeleteSnapshot { .. } => {}
        }
    }
}
