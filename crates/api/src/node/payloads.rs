//! What travels between control plane and engine and is not a resource of the model by itself.

use std::collections::BTreeSet;

use model::{
    Consistency, Generation, InstanceId, NodeAddress, NodeName, PoolName, PoolUuid, Problem,
    Progress, ReplicaId, Size, SnapshotGroupId, SnapshotId, SnapshotLabel, Spec, TargetId,
    Timestamp, Usage, ValidationError, VersionedSpec,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Json;
use crate::body::JsonBody;

/// Which engine this is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeInfo {
    /// The name of its node.
    pub name: NodeName,
    /// Which run of the engine: a new one has forgotten its targets.
    pub instance: InstanceId,
    /// Its release.
    pub version: String,
    /// When this run began.
    pub started_at: Timestamp,
    /// How it is reached.
    pub address: NodeAddress,
}

/// The answer when an engine can do its work; when it cannot, a problem says why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Health {
    /// Its release.
    pub version: String,
    /// Which run of the engine.
    pub instance: InstanceId,
}

/// A thing as an engine has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", bound = "")]
#[schemars(
    rename = "ObservedOf{S}",
    bound = "S: JsonSchema, S::Id: JsonSchema, S::Status: JsonSchema"
)]
pub struct Observed<S: Spec> {
    /// Which one.
    pub id: S::Id,
    /// The last order for it; absent: none came since the engine started, it was on the disks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<Generation>,
    /// What the engine takes to be wanted.
    pub spec: S,
    /// What it sees.
    pub status: S::Status,
}

/// The generation of an order that has no body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GenerationQuery {
    /// Of the order.
    pub generation: Generation,
}

/// The order to destroy a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeletePool {
    /// Of the order.
    pub generation: Generation,
    /// Which pool of that name: another one that has it stays.
    pub uuid: PoolUuid,
}

/// The order to destroy a replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeleteReplica {
    /// Of the order.
    pub generation: Generation,
    /// Where the replica is; only while this pool is open can anybody say that it is gone.
    pub pool: PoolName,
}

/// The pool that something is in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PoolFilter {
    /// Its name; only while it is open can anybody say what is not in it.
    pub pool: PoolName,
}

/// A stretch of a volume, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Range {
    /// Where it begins.
    pub offset: Size,
    /// How long it is.
    pub length: Size,
}

/// Which changes of a snapshot are asked for, and which page of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DiffQuery {
    /// Since this older snapshot of the same replica; left out: all that is written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<SnapshotId>,
    /// At most so many: 1 to 1000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Go on after this, as the page before said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

/// What a snapshot is to be. It never changes, so it has no generation: another request under the
/// same id is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SnapshotRequest {
    /// The group it is taken with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<SnapshotGroupId>,
    /// When it is said to be taken: the same on every replica.
    pub taken_at: Timestamp,
    /// What its content is good for.
    pub consistency: Consistency,
}

/// A snapshot of one replica as an engine has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObservedSnapshot {
    /// What is written on disk with it.
    pub label: SnapshotLabel,
    /// The pool that holds it, also when the replica it was taken of is gone.
    pub pool: PoolName,
    /// The space it takes.
    pub usage: Usage,
    /// The replicas that were started from it; they keep its blocks.
    pub clones: BTreeSet<ReplicaId>,
}

/// A snapshot that a target took on all its children in sync, at one point.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TargetSnapshot {
    /// Which.
    pub snapshot: SnapshotId,
    /// What was asked for.
    pub request: SnapshotRequest,
    /// The replicas that have it.
    pub replicas: BTreeSet<ReplicaId>,
}

/// Whether work in the background is to go on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Run {
    /// It is to run.
    #[default]
    Run,
    /// It is to wait.
    Pause,
    /// It is to end.
    Cancel,
}

/// A rebuild that is wanted. The target knows which copies are in sync and what this one missed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RebuildRequest {
    /// By which target.
    pub target: TargetId,
    /// The copy to bring in sync.
    pub replica: ReplicaId,
    /// At most so many bytes a second; left out: as user I/O allows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<Size>,
    /// Whether it is to go on.
    #[serde(default)]
    pub run: Run,
}

/// How work in the background is to go on: a scrub, which reads every written block and looks at
/// its checksum, or a rebuild.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JobControl {
    /// At most so many bytes a second; left out: as user I/O allows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<Size>,
    /// Whether it is to go on.
    #[serde(default)]
    pub run: Run,
}

/// The fence of a replica: which targets may attach it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Fence {
    /// The highest epoch that ever held it; targets with a lower one are refused. 0: none did.
    pub epoch: u64,
}

/// What lowers the fence of a replica that an absurd epoch locked. Whoever has the new epoch or a
/// higher one can write to it again: no such target may be left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FenceReset {
    /// The epoch that it shall remember: that of the volume's record.
    pub epoch: u64,
    /// The epoch that it remembers now. If it is another, nothing changes.
    pub seen: u64,
}

/// A scrub of one replica: the one under way, or the last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Scrub {
    /// The order it follows.
    pub generation: Generation,
    /// Where it is.
    pub state: ScrubState,
    /// How far it is; `copied` is what was repaired.
    pub progress: Progress,
    /// Blocks that did not have the content that was written.
    pub bad_blocks: u64,
    /// Those of them that were rewritten from another copy before it ended.
    #[serde(default)]
    pub repaired_blocks: u64,
    /// Bad blocks in what only snapshots of the copy hold.
    #[serde(default)]
    pub bad_in_snapshots: u64,
    /// When it began.
    pub started_at: Timestamp,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
}

impl Scrub {
    /// One that has just begun.
    pub fn begun(generation: Generation, started_at: Timestamp) -> Scrub {
        Scrub {
            generation,
            state: ScrubState::Running {},
            progress: Progress::default(),
            bad_blocks: 0,
            repaired_blocks: 0,
            bad_in_snapshots: 0,
            started_at,
            ended_at: None,
        }
    }

    /// What it found, in words.
    pub fn summary(&self) -> String {
        let blocks = |count: u64| if count == 1 { "block" } else { "blocks" };
        let bad = self.bad_blocks;
        let text = format!("{bad} bad {}, {} repaired", blocks(bad), self.repaired_blocks);
        match self.bad_in_snapshots {
            0 => text,
            bad => format!("{text}, {bad} bad {} in snapshots, not repaired", blocks(bad)),
        }
    }
}

/// A part of a volume to be checked on all copies in sync: at most 16 MiB.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CheckRequest {
    /// The first block of 4 KiB.
    pub first_block: u64,
    /// How many blocks: 1 to 4096.
    pub blocks: u64,
    /// Where intact copies differ, this one is right, and the others get its content; left out:
    /// differences are told and left alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub believe: Option<ReplicaId>,
    /// Blocks that no copy can give become zeroes on every copy: what they held is lost.
    #[serde(default)]
    pub accept_loss: bool,
    /// Blocks that no copy can give are kept as this copy holds them, although their checksum is
    /// wrong; the others get that. Instead of `acceptLoss`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep: Option<ReplicaId>,
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CheckReport {
    /// Blocks that did not have the content that was written, copy by copy.
    pub bad_blocks: u64,
    /// Those of them that were rewritten from another copy.
    pub repaired_blocks: u64,
    /// Blocks that no copy can give.
    pub unreadable: Vec<BlockRange>,
    /// Blocks that are intact on several copies and not equal.
    pub differing: Vec<DifferingBlocks>,
}

/// Blocks of 4 KiB that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BlockRange {
    /// The first.
    pub first_block: u64,
    /// How many.
    pub blocks: u64,
}

/// Blocks that are intact on several copies and not equal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DifferingBlocks {
    /// Which blocks.
    #[serde(flatten)]
    pub range: BlockRange,
    /// On which copies.
    pub replicas: Vec<ReplicaId>,
}

/// Where a scrub is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "name", rename_all = "camelCase")]
pub enum ScrubState {
    /// It reads.
    Running {},
    /// It waits to be told to go on.
    Paused {},
    /// Everything was read.
    Completed {},
    /// It was not wanted any more.
    Cancelled {},
    /// It could not go on.
    Failed {
        /// Why.
        problem: Problem,
    },
}

impl Json for NodeInfo {}
impl Json for Health {}
impl<S> Json for Observed<S>
where
    S: Spec<Id: JsonSchema + Send, Status: JsonSchema + Send> + JsonSchema + Send + 'static,
{
    fn generation(&self) -> Option<Generation> {
        self.generation
    }
}
impl Json for model::Rebuild {}
impl Json for Scrub {}
impl JsonBody for CheckRequest {}
impl Json for CheckReport {}
impl Json for Fence {}
impl JsonBody for FenceReset {}

impl Json for ObservedSnapshot {}
impl Json for TargetSnapshot {}
impl Json for model::ReplicaLabel {}
impl Json for model::SpecBackup {}

impl JsonBody for SnapshotRequest {}
impl JsonBody for JobControl {
    fn validate(&self) -> Result<(), ValidationError> {
        must_flow(self.bytes_per_second)
    }
}
impl JsonBody for VersionedSpec<RebuildRequest> {
    fn validate(&self) -> Result<(), ValidationError> {
        must_flow(self.spec.bytes_per_second).map_err(|invalid| invalid.within("spec"))
    }
}
impl JsonBody for VersionedSpec<JobControl> {
    fn validate(&self) -> Result<(), ValidationError> {
        self.spec.validate().map_err(|invalid| invalid.within("spec"))
    }
}

/// Work that may not move a byte would never end.
fn must_flow(limit: Option<Size>) -> Result<(), ValidationError> {
    match limit {
        Some(limit) if limit < model::QosLimits::LEAST_BANDWIDTH => {
            let remedy = "give at least 1MiB a second, leave it out, or pause it";
            Err(ValidationError::new("bytesPerSecond", limit, remedy))
        }
        _ => Ok(()),
    }
}
