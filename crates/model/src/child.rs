//! A replica seen from a target.
//!
//! ```text
//!                Began              Copied
//!     Stale ───────────► Rebuilding ──────► InSync
//!      ▲ ▲                 │  │               │
//!      │ └── Interrupted ──┘  │ Failed        │ Failed
//!      │                      ▼               │
//!      │ Reopened(stale)   Faulted ◄──────────┘
//!      ├─────────────────────┘ │
//!      │                       │ Reopened(in sync) ──► InSync
//!      │ Reopened(stale)       │ Detached
//!      └──────── Offline ◄─────┴── Detached from every other state
//!                   └── Reopened(in sync) ──► InSync
//! ```
//!
//! A child that comes back is what the target's record says it is: only one that is still recorded
//! in sync, because it was the last, may be believed without a rebuild.

use alloc::vec::Vec;
use core::fmt;
use core::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::{InvalidTransition, Progress, ReplicaId};

/// A replica that a target is to use, and the way there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Child {
    /// Which replica.
    pub replica: ReplicaId,
    /// The way there.
    pub path: ChildPath,
    /// Leave it alone until told otherwise.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub offline: bool,
}

/// The way from a target to a replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "camelCase", deny_unknown_fields)]
pub enum ChildPath {
    /// In a pool of the same engine.
    Local {},
    /// On another node, over NVMe/TCP at any of these.
    Remote {
        /// Where.
        addresses: Vec<SocketAddr>,
    },
}

/// What was seen of a child.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ChildStatus {
    /// Which replica.
    pub replica: ReplicaId,
    /// What it is worth.
    pub state: ChildState,
    /// How far its rebuild is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
}

/// What a child is worth to its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "name", rename_all = "camelCase")]
pub enum ChildState {
    /// It has every acknowledged write; reads may go there.
    InSync,
    /// It can be reached but has missed writes.
    Stale,
    /// It gets every new write while what it missed is copied to it.
    Rebuilding,
    /// It failed.
    Faulted {
        /// How.
        reason: FaultReason,
    },
    /// It was taken away on purpose.
    Offline,
}

/// How a child failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum FaultReason {
    /// It could not be opened or connected.
    CannotOpen,
    /// Its size, block size or label does not fit the volume.
    Mismatch,
    /// Its engine and that of the target did not prove to each other that they are of one cluster.
    Unauthenticated,
    /// The connection to it was lost.
    ConnectionLost,
    /// It did not answer in time.
    TimedOut,
    /// Its medium failed.
    IoError,
    /// Its pool is full.
    NoSpace,
    /// Its rebuild failed.
    RebuildFailed,
    /// It holds an older state than it is known to have had: it is copied anew.
    RolledBack,
    /// What is kept with it contradicts the store's record: it is left as it is.
    LabelConflict,
}

/// What can happen to a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildEvent {
    /// It failed.
    Failed(FaultReason),
    /// It is taken away on purpose.
    Detached,
    /// It can be reached again, and the target's record says this of it.
    Reopened(RecordedState),
    /// Its rebuild began.
    Began,
    /// Its rebuild was stopped before the end; nothing is wrong with it.
    Interrupted,
    /// It has everything, and that is recorded.
    Copied,
}

/// What the target's record says of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordedState {
    /// It has every acknowledged write.
    InSync,
    /// It may lack some.
    Stale,
}

impl ChildState {
    /// The only way from one state to another.
    pub fn on(self, event: ChildEvent) -> Result<ChildState, InvalidTransition> {
        use ChildState::{Faulted, InSync, Offline, Rebuilding, Stale};
        match (self, event) {
            (Stale, ChildEvent::Began) => Ok(Rebuilding),
            (Rebuilding, ChildEvent::Copied)
            | (Faulted { .. } | Offline, ChildEvent::Reopened(RecordedState::InSync)) => Ok(InSync),
            (Rebuilding, ChildEvent::Interrupted)
            | (Faulted { .. } | Offline, ChildEvent::Reopened(RecordedState::Stale)) => Ok(Stale),
            // The first reason is the cause, later ones are its consequences: they are refused.
            (InSync | Stale | Rebuilding, ChildEvent::Failed(reason)) => Ok(Faulted { reason }),
            (InSync | Stale | Rebuilding | Faulted { .. }, ChildEvent::Detached) => Ok(Offline),
            (from, event) => Err(InvalidTransition { from: from.name(), event: event.name() }),
        }
    }

    /// Whether new writes go there.
    pub fn takes_writes(self) -> bool {
        matches!(self, ChildState::InSync | ChildState::Rebuilding)
    }

    /// The state in a word.
    pub fn name(self) -> &'static str {
        match self {
            ChildState::InSync => "inSync",
            ChildState::Stale => "stale",
            ChildState::Rebuilding => "rebuilding",
            ChildState::Faulted { .. } => "faulted",
            ChildState::Offline => "offline",
        }
    }
}

impl ChildEvent {
    fn name(self) -> &'static str {
        match self {
            ChildEvent::Failed(_) => "failed",
            ChildEvent::Detached => "detached",
            ChildEvent::Reopened(_) => "reopened",
            ChildEvent::Began => "began",
            ChildEvent::Interrupted => "interrupted",
            ChildEvent::Copied => "copied",
        }
    }
}

impl FaultReason {
    /// Whether the same replica may be used again once it answers.
    pub fn may_return(self) -> bool {
        !matches!(self, FaultReason::Mismatch | FaultReason::LabelConflict)
    }
}

impl fmt::Display for ChildState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
