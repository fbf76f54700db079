//! Moving the target of a volume to another node while hosts keep their device.
//!
//! ```text
//!         Begin                 Republished             PathsReplaced
//!   Init ───────► RepublishVolume ──────► ReplacePath ───────────► DeleteTarget
//!    │               │       ▲               │   │                      │
//!    │ Fail          │ Fail  └─ Unreachable ─┘   │ Fail                 │ TargetDeleted
//!    └──────► Errored ◄──────────────────────────┘                      ▼
//!                                                                  Successful
//! ```
//!
//! The record is stored before each stage is begun. Once the paths are replaced it has worked: what
//! is left to clean up is tried until it is done.

use alloc::collections::BTreeMap;
use core::fmt;
use core::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::envelope::Versioned;
use crate::{
    FailoverId, HostName, InvalidTransition, NodeName, Nqn, Problem, TargetId, Timestamp, VolumeId,
};

/// One failover of one volume. A volume has one at a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Failover {
    id: FailoverId,
    volume: VolumeId,
    cause: FailoverReason,
    from: TargetId,
    hosts: BTreeMap<HostName, Nqn>,
    started_at: Timestamp,
    updated_at: Timestamp,
    retries: u32,
    stage: FailoverStage,
}

/// Why a target is moved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "camelCase", deny_unknown_fields)]
pub enum FailoverReason {
    /// A host lost its path.
    PathLost {
        /// Which host.
        host: HostName,
        /// The path.
        address: SocketAddr,
    },
    /// The node of the target does not answer.
    NodeLapsed {
        /// Which.
        node: NodeName,
    },
    /// The node of the target is being emptied.
    Drain {
        /// Which.
        node: NodeName,
    },
    /// Somebody asked for it.
    Asked {},
}

/// How far a failover is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "name", rename_all = "camelCase", deny_unknown_fields)]
pub enum FailoverStage {
    /// It is asked for.
    Init {},
    /// The volume gets a target elsewhere; the old one is fenced.
    RepublishVolume {},
    /// Hosts connect to the new target and drop the old path.
    ReplacePath {
        /// The new target.
        to: TargetId,
    },
    /// The old target is removed.
    DeleteTarget {
        /// The new target.
        to: TargetId,
    },
    /// It is done.
    Successful {
        /// The new target.
        to: TargetId,
    },
    /// It cannot be done.
    Errored {
        /// Why.
        problem: Problem,
    },
}

/// What can happen to a failover.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FailoverEvent {
    /// It is taken up.
    Begin,
    /// The volume has a new target.
    Republished {
        /// Which.
        to: TargetId,
    },
    /// Hosts cannot reach the new target: another is needed.
    Unreachable,
    /// All hosts use the new target.
    PathsReplaced,
    /// The old target is gone.
    TargetDeleted,
    /// It cannot be done: for example the volume is not published any more.
    Fail(Problem),
}

impl FailoverStage {
    /// The only way from one stage to another.
    pub fn on(self, event: FailoverEvent) -> Result<FailoverStage, InvalidTransition> {
        use FailoverStage::{
            DeleteTarget, Errored, Init, ReplacePath, RepublishVolume, Successful,
        };
        match (self, event) {
            (Init {}, FailoverEvent::Begin) | (ReplacePath { .. }, FailoverEvent::Unreachable) => {
                Ok(RepublishVolume {})
            }
            (RepublishVolume {}, FailoverEvent::Republished { to }) => Ok(ReplacePath { to }),
            (ReplacePath { to }, FailoverEvent::PathsReplaced) => Ok(DeleteTarget { to }),
            (DeleteTarget { to }, FailoverEvent::TargetDeleted) => Ok(Successful { to }),
            (Init {} | RepublishVolume {} | ReplacePath { .. }, FailoverEvent::Fail(problem)) => {
                Ok(Errored { problem })
            }
            (from, event) => Err(InvalidTransition { from: from.name(), event: event.name() }),
        }
    }

    /// Whether nothing more will happen.
    pub fn is_ended(&self) -> bool {
        matches!(self, FailoverStage::Successful { .. } | FailoverStage::Errored { .. })
    }

    /// The stage in a word.
    pub fn name(&self) -> &'static str {
        match self {
            FailoverStage::Init {} => "init",
            FailoverStage::RepublishVolume {} => "republishVolume",
            FailoverStage::ReplacePath { .. } => "replacePath",
            FailoverStage::DeleteTarget { .. } => "deleteTarget",
            FailoverStage::Successful { .. } => "successful",
            FailoverStage::Errored { .. } => "errored",
        }
    }
}

impl FailoverEvent {
    fn name(&self) -> &'static str {
        match self {
            FailoverEvent::Begin => "begin",
            FailoverEvent::Republished { .. } => "republished",
            FailoverEvent::Unreachable => "unreachable",
            FailoverEvent::PathsReplaced => "pathsReplaced",
            FailoverEvent::TargetDeleted => "targetDeleted",
            FailoverEvent::Fail(_) => "fail",
        }
    }
}

impl fmt::Display for FailoverStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What a failover is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailoverPlan {
    /// Of which volume.
    pub volume: VolumeId,
    /// Why.
    pub cause: FailoverReason,
    /// The target to leave.
    pub from: TargetId,
    /// The hosts whose paths must be replaced, each with its NQN: the new target lets them in, also
    /// when the old one is forgotten meanwhile.
    pub hosts: BTreeMap<HostName, Nqn>,
}

impl Failover {
    /// A failover that is about to begin.
    pub fn new(id: FailoverId, plan: FailoverPlan, now: Timestamp) -> Failover {
        let FailoverPlan { volume, cause, from, hosts } = plan;
        let (started_at, updated_at) = (now, now);
        let stage = FailoverStage::Init {};
        Failover { id, volume, cause, from, hosts, started_at, updated_at, retries: 0, stage }
    }

    /// Takes an event, or refuses it and stays as it is.
    pub fn on(&mut self, event: FailoverEvent, now: Timestamp) -> Result<(), InvalidTransition> {
        self.stage = self.stage.clone().on(event)?;
        (self.retries, self.updated_at) = (0, now);
        Ok(())
    }

    /// The stage did not succeed and will be tried again.
    pub fn retry(&mut self, now: Timestamp) {
        self.retries = self.retries.saturating_add(1);
        self.updated_at = now;
    }

    /// Which failover.
    pub fn id(&self) -> FailoverId {
        self.id
    }

    /// Of which volume.
    pub fn volume(&self) -> VolumeId {
        self.volume
    }

    /// Why.
    pub fn cause(&self) -> &FailoverReason {
        &self.cause
    }

    /// The target to leave.
    pub fn from(&self) -> TargetId {
        self.from
    }

    /// The hosts whose paths must be replaced.
    pub fn hosts(&self) -> &BTreeMap<HostName, Nqn> {
        &self.hosts
    }

    /// How far it is.
    pub fn stage(&self) -> &FailoverStage {
        &self.stage
    }

    /// How often this stage has been tried in vain; the wait before the next try grows with it.
    pub fn retries(&self) -> u32 {
        self.retries
    }

    /// When it was asked for.
    pub fn started_at(&self) -> Timestamp {
        self.started_at
    }

    /// When it last moved or was last tried.
    pub fn updated_at(&self) -> Timestamp {
        self.updated_at
    }
}

impl Versioned for Failover {
    const KIND: &'static str = "failover";
    const VERSION: u32 = 1;
}
