//! Copies that are set aside instead of destroyed.
//!
//! ```text
//!   nobody counts it ──superseded──► destroyed
//!        │                                ▲
//!        └─ not proved ─► Quarantine ─────┤  its time is over, and it is superseded by then
//!                            │            │
//!                            └─ discard ──┘  an operator said so
//! ```

use serde::{Deserialize, Serialize};

use crate::envelope::Versioned;
use crate::{
    Epoch, Generation, PoolName, ReplicaId, ReplicaLabel, Size, SnapshotId, Timestamp, VolumeId,
};

/// A copy of a volume that its volume does not count, and that nobody may destroy without proof
/// that it holds nothing that is needed: kept as it is, exported to nobody.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Quarantine {
    /// Which copy.
    pub replica: ReplicaId,
    /// Of which volume.
    pub volume: VolumeId,
    /// Where it lies.
    pub pool: PoolName,
    /// Its size.
    pub size: Size,
    /// The last ownership of the volume that it saw.
    pub epoch: Epoch,
    /// Number of the last state of the replica set that it saw.
    pub generation: Generation,
    /// Why it was set aside.
    pub cause: QuarantineCause,
    /// Since when.
    pub since: Timestamp,
    /// The snapshot that is to be made of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rescue: Option<SnapshotId>,
    /// Whether an operator wants it destroyed.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub discard: bool,
}

/// Why a copy was set aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum QuarantineCause {
    /// It may hold writes that no other copy has: its label is newer than the record of its volume,
    /// or the volume was read back without it. It is never destroyed without an operator's word.
    Newer,
    /// It is older, but its volume had not all its copies in sync when it was found. After a time,
    /// and once its volume has, it is destroyed.
    Degraded,
}

impl Quarantine {
    /// A copy with this label is set aside.
    pub fn new(
        label: &ReplicaLabel,
        pool: PoolName,
        cause: QuarantineCause,
        since: Timestamp,
    ) -> Self {
        let ReplicaLabel { volume, replica, size, epoch, .. } = *label;
        let generation = label.set.generation();
        let (rescue, discard) = (None, false);
        Quarantine { replica, volume, pool, size, epoch, generation, cause, since, rescue, discard }
    }
}

impl Versioned for Quarantine {
    const KIND: &'static str = "quarantine";
    const VERSION: u32 = 1;
}
