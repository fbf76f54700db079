//! Orders to misbehave, for tests of everything above. Only with the feature `faults`.

use model::{DevicePath, ReplicaId, TargetId, ValidationError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Range;
use crate::Json;
use crate::body::JsonBody;

/// All faults of an engine: a `PUT` replaces them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Faults {
    /// In the order in which they are tried; the first that fits is in effect.
    pub faults: Vec<Fault>,
}

/// One fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Fault {
    /// Where.
    pub place: FaultPlace,
    /// What.
    pub kind: FaultKind,
    /// Only commands that touch this; left out: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range: Option<Range>,
    /// Let so many commands pass first.
    #[serde(default)]
    pub skip: u64,
    /// Then hit so many; left out: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// How many were hit; ignored in an order.
    #[serde(default)]
    pub hits: u64,
}

/// Where a fault is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "camelCase", deny_unknown_fields)]
pub enum FaultPlace {
    /// Between a pool and its disk.
    Disk {
        /// Which.
        disk: DevicePath,
    },
    /// Between a target and its child.
    Child {
        /// Of which target.
        target: TargetId,
        /// Which replica.
        replica: ReplicaId,
    },
}

/// What a fault does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "camelCase", deny_unknown_fields)]
pub enum FaultKind {
    /// Reads fail.
    ReadError {},
    /// Writes fail.
    WriteError {},
    /// Flushes fail.
    FlushError {},
    /// Everything takes longer.
    Delay {
        /// By so much.
        millis: u64,
    },
    /// Nothing is ever answered.
    Stall {},
    /// Reads return other bytes than were written.
    Corrupt {},
}

impl Faults {
    const MOST: usize = 64;
}

impl Json for Faults {}

impl JsonBody for Faults {
    fn validate(&self) -> Result<(), ValidationError> {
        let count = self.faults.len();
        if count <= Faults::MOST {
            return Ok(());
        }
        let remedy = format!("give at most {}", Faults::MOST);
        Err(ValidationError::new("faults", format!("({count} of them)"), remedy))
    }
}
