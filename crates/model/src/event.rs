//! What happened, for people and their tools. Nothing is controlled by events.

use alloc::string::{String, ToString as _};
use core::fmt;

use serde::{Deserialize, Serialize};

use crate::envelope::Versioned;
use crate::{
    HostName, NodeName, PoolName, ReplicaId, SnapshotGroupId, SnapshotId, TargetId, Timestamp,
    VolumeId, WebhookName,
};

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// Its place among all events; a reader that lost its connection goes on after this one.
    pub number: u64,
    /// When.
    pub at: Timestamp,
    /// To what.
    pub subject: Subject,
    /// What.
    pub name: EventName,
    /// Whether somebody should look.
    pub severity: Severity,
    /// In words, with the reason.
    pub message: String,
    /// The engine that reported it; absent: the control plane did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<EventOrigin>,
}

/// Where an event of an engine came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct EventOrigin {
    /// The node of the engine.
    pub node: NodeName,
    /// Its place in the stream of that engine: a reader of the stream goes on after it.
    pub place: String,
}

/// The kind of thing that an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the names of the resources")]
pub enum SubjectKind {
    Node,
    Host,
    Pool,
    Volume,
    Replica,
    Target,
    Snapshot,
    SnapshotGroup,
    Webhook,
}

/// What an event is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", content = "id", rename_all = "camelCase")]
#[expect(missing_docs, reason = "the names of the resources")]
pub enum Subject {
    Node(NodeName),
    Host(HostName),
    Pool(PoolName),
    Volume(VolumeId),
    Replica(ReplicaId),
    Target(TargetId),
    Snapshot(SnapshotId),
    SnapshotGroup(SnapshotGroupId),
    #[serde(alias = "watch")]
    Webhook(WebhookName),
}

impl Subject {
    /// What kind of thing it is.
    pub fn kind(&self) -> SubjectKind {
        match self {
            Subject::Node(_) => SubjectKind::Node,
            Subject::Host(_) => SubjectKind::Host,
            Subject::Pool(_) => SubjectKind::Pool,
            Subject::Volume(_) => SubjectKind::Volume,
            Subject::Replica(_) => SubjectKind::Replica,
            Subject::Target(_) => SubjectKind::Target,
            Subject::Snapshot(_) => SubjectKind::Snapshot,
            Subject::SnapshotGroup(_) => SubjectKind::SnapshotGroup,
            Subject::Webhook(_) => SubjectKind::Webhook,
        }
    }

    /// Its name or id.
    pub fn id(&self) -> String {
        match self {
            Subject::Node(name) => name.to_string(),
            Subject::Host(name) => name.to_string(),
            Subject::Pool(name) => name.to_string(),
            Subject::Volume(id) => id.to_string(),
            Subject::Replica(id) => id.to_string(),
            Subject::Target(id) => id.to_string(),
            Subject::Snapshot(id) => id.to_string(),
            Subject::SnapshotGroup(id) => id.to_string(),
            Subject::Webhook(name) => name.to_string(),
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Node(name) => write!(f, "node {name}"),
            Subject::Host(name) => write!(f, "host {name}"),
            Subject::Pool(name) => write!(f, "pool {name}"),
            Subject::Volume(id) => write!(f, "volume {id}"),
            Subject::Replica(id) => write!(f, "replica {id}"),
            Subject::Target(id) => write!(f, "target {id}"),
            Subject::Snapshot(id) => write!(f, "snapshot {id}"),
            Subject::SnapshotGroup(id) => write!(f, "group {id}"),
            Subject::Webhook(name) => write!(f, "webhook {name}"),
        }
    }
}

/// Whether somebody should look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Severity {
    /// As it should be.
    Info,
    /// Healed by itself, or worth a look.
    Warning,
    /// Something does not work.
    Error,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum EventName {
    /// It was made.
    Created,
    /// It is gone.
    Deleted,
    /// Its spec changed.
    Changed,
    /// An operation on it failed and was undone.
    OperationFailed,
    /// Its state is another.
    StateChanged,
    /// It was put under a cordon, or the cordon was lifted.
    CordonChanged,
    /// It is being emptied.
    DrainStarted,
    /// It is empty.
    DrainEnded,
    /// Hosts can use it.
    Published,
    /// Hosts cannot use it any more.
    Unpublished,
    /// A copy is no longer in sync.
    ChildLost,
    /// A copy is being brought in sync.
    RebuildStarted,
    /// That has ended, well or not.
    RebuildEnded,
    /// Its target is being moved.
    FailoverStarted,
    /// That has ended, well or not.
    FailoverEnded,
    /// A newer owner took the volume.
    Fenced,
    /// What is kept with its copies contradicts the store: it is not served.
    LabelConflict,
    /// Blocks did not have the content that was written.
    Corrupted,
    /// Blocks that no copy could prove after a crash were believed.
    Accepted,
    /// A scrub has ended.
    ScrubEnded,
    /// Something nobody knows of was found and removed.
    OrphanRemoved,
    /// A copy that may hold what no other has was set aside instead of removed.
    Quarantined,
    /// Lost copies are not replaced for a while: too many nodes are away at once.
    HealingPaused,
    /// They are again.
    HealingResumed,
}

impl Versioned for Event {
    const KIND: &'static str = "event";
    const VERSION: u32 = 1;
}
