//! What happened, for people and their tools. Nothing is controlled by events.

use alloc::string::String;
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
