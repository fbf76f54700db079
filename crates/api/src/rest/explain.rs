//! Why a thing is as it is: what `holdfast explain` shows; and what a change would do.

use model::{
    Event, Maintenance, NodeChange, NodeName, PoolChange, PoolName, Problem, ReplicaId, SnapshotId,
    Subject, Timestamp, ValidationError, VolumeId, VolumeSpec,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::VolumeAction;
use crate::Json;
use crate::body::JsonBody;

/// What is to be explained.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExplainQuery {
    /// Its name or id, or the beginning of an id that no other has.
    pub thing: String,
}

/// Why a thing is as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// What it is.
    pub subject: Subject,
    /// What is wanted of it.
    pub wanted: Vec<String>,
    /// What was seen of it.
    pub seen: Vec<String>,
    /// What is being done to it; absent: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<OperationStatus>,
    /// For what that waits, and what keeps it from going on.
    pub waits_for: Vec<String>,
    /// The last time that an engine refused something about it, since it was last done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<Refusal>,
    /// What is tried next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<NextAttempt>,
    /// What a person can do.
    pub remedies: Vec<String>,
    /// What happened to it lately, the oldest first.
    pub events: Vec<Event>,
}

/// What is being done to a thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OperationStatus {
    /// What, in words.
    pub what: String,
    /// Since when; absent: nobody knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// For how long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_seconds: Option<u64>,
}

/// Something that an engine refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Refusal {
    /// About what.
    pub subject: Subject,
    /// When.
    pub at: Timestamp,
    /// Why.
    pub problem: Problem,
}

/// What is tried next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NextAttempt {
    /// What.
    pub what: String,
    /// When.
    pub at: Timestamp,
}

/// A pause of automatic failover and healing that is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MaintenanceRequest {
    /// How long, from now: at most a day. Asked again, it begins anew.
    pub seconds: u64,
    /// Why, for people.
    #[serde(default)]
    pub reason: String,
}

impl MaintenanceRequest {
    /// The longest.
    pub const LONGEST_SECONDS: u64 = 24 * 3600;
}

/// Whether automatic failover and healing are paused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MaintenanceStatus {
    /// Until when and why; absent: they are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maintenance: Option<Maintenance>,
}

/// A change that is only tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "camelCase", deny_unknown_fields)]
#[expect(missing_docs, reason = "the requests of REST, see there")]
pub enum DryRunRequest {
    CreateVolume { volume: VolumeId, spec: Box<VolumeSpec> },
    ChangeVolume { volume: VolumeId, change: VolumeAction },
    DeleteVolume { volume: VolumeId },
    DeleteSnapshot { snapshot: SnapshotId },
    ChangePool { pool: PoolName, change: PoolChange },
    DeletePool { pool: PoolName },
    ChangeNode { node: NodeName, change: NodeChange },
    DiscardReplica { replica: ReplicaId },
}

/// What a change would do. One that would be refused is answered with the refusal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DryRun {
    /// What would be written at once; empty: nothing would change.
    pub changes: Vec<String>,
    /// What would be begun then, as far as it can be seen now. More may follow from that.
    pub steps: Vec<String>,
}

impl Json for Explanation {}
impl Json for MaintenanceStatus {}
impl Json for DryRun {}
impl JsonBody for DryRunRequest {}

impl JsonBody for MaintenanceRequest {
    fn validate(&self) -> Result<(), ValidationError> {
        if self.seconds == 0 || self.seconds > Self::LONGEST_SECONDS {
            let remedy = "give 1 to 86400; ask again before it ends if it takes longer";
            return Err(ValidationError::text("seconds", &self.seconds.to_string(), remedy));
        }
        if self.reason.len() > 200 {
            let remedy = "at most 200 characters";
            return Err(ValidationError::text("reason", "…", remedy));
        }
        Ok(())
    }
}
