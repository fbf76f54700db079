//! When a copy was last read and checked to the end.

use model::envelope::Versioned;
use model::{ReplicaId, Timestamp};
use serde::{Deserialize, Serialize};

/// What is remembered of the last scrub of a replica, so that the next is due at its time also
/// after a restart of the control plane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ScrubRecord {
    /// Which replica.
    pub replica: ReplicaId,
    /// When it ended.
    pub at: Timestamp,
    /// How many blocks did not have the content that was written.
    pub bad_blocks: u64,
}

impl Versioned for ScrubRecord {
    const KIND: &'static str = "scrubbed";
    const VERSION: u32 = 1;
}
