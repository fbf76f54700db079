//! What may be asked of a volume that is there.

use model::{HostName, NodeName, PoolName, ReplicaId, Size, ValidationError, VolumeSpec};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::body::JsonBody;

/// One change of a volume as users ask for it. What has to be decided for it (ids, places) is
/// decided by the control plane and stored as a [`model::VolumeChange`] before the first step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "camelCase", deny_unknown_fields)]
pub enum VolumeAction {
    /// Serve it. A volume that is not shared serves one host at a time.
    Publish {
        /// For this host; left out: for none, to heal.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        host: Option<HostName>,
        /// There; left out: where it suits best. A volume that is served stays where it is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        node: Option<NodeName>,
    },
    /// Stop serving it.
    Unpublish {
        /// For this host; left out: for all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        host: Option<HostName>,
        /// Even if its node does not answer: fencing takes care of that.
        #[serde(default, skip_serializing_if = "core::ops::Not::not")]
        force: bool,
    },
    /// Serve it elsewhere, for the same hosts, which keep their device.
    Republish {
        /// There; left out: where it suits best, but not where it is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        node: Option<NodeName>,
    },
    /// Another size: a volume only grows.
    Resize {
        /// The new one.
        size: Size,
    },
    /// Another number of copies.
    SetReplicas {
        /// The new one.
        replicas: u8,
    },
    /// Other properties: everything but size, copies and what is fixed when it is made.
    Modify {
        /// All of the spec.
        spec: Box<VolumeSpec>,
    },
    /// A copy in another place instead of this one.
    MoveReplica {
        /// The one to leave.
        replica: ReplicaId,
        /// There; left out: where it suits best.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pool: Option<PoolName>,
    },
    /// Give up a copy that is not needed to have as many as are wanted, or that is lost for good.
    RemoveReplica {
        /// Which.
        replica: ReplicaId,
    },
    /// Leave a copy alone, or use it again: it misses what is written meanwhile, and is brought in
    /// sync when it is used again.
    SetReplicaOffline {
        /// Which.
        replica: ReplicaId,
        /// Whether to leave it alone.
        offline: bool,
    },
    /// Forget targets that were replaced and are shut down, even if their nodes do not answer.
    RemoveShutdownTargets {},
    /// Undo what is being done to it: a move of a copy, another size, publishing. What hosts may
    /// have seen already is completed instead.
    Cancel {},
}

impl JsonBody for VolumeAction {
    fn validate(&self) -> Result<(), ValidationError> {
        match self {
            VolumeAction::Resize { size } => {
                size.check("size", VolumeSpec::LEAST_SIZE, VolumeSpec::MOST_SIZE)
            }
            VolumeAction::SetReplicas { replicas }
                if !(1..=VolumeSpec::MOST_REPLICAS).contains(replicas) =>
            {
                let remedy = format!("give 1 to {}", VolumeSpec::MOST_REPLICAS);
                Err(ValidationError::new("replicas", replicas, remedy))
            }
            VolumeAction::Modify { spec } => {
                model::Spec::validate(&**spec).map_err(|invalid| invalid.within("spec"))
            }
            _ => Ok(()),
        }
    }
}
