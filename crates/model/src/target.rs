//! The place that serves a volume over NVMe/TCP and mirrors it to its replicas.
//!
//! ```text
//!           Opened(whole)            Lost               Held
//!    Init ───────────────► Open ◄──────────► Degraded ─────────► Held{waiting}
//!     │ └─────────────────────────────────────► ▲    Resumed       │   │ HoldExpired
//!     │       Opened(partial)     Recovered     └──────────────────┤   ▼
//!     │                                                         Held{failing}
//!     │ Stop                  Stop from each of these
//!     └──────────────────────────► ShuttingDown ──Stopped──► Shutdown
//! ```

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::vec::Vec;
use core::fmt;
use core::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::{
    Child, ChildStatus, Epoch, HostName, InvalidTransition, LabelConflict, NodeName, Nqn,
    ProblemKind, QosLimits, ReplicaId, Resource, Size, Spec, TargetId, ValidationError, VolumeId,
    VolumeSpec,
};

/// A target. A volume that moves gets a new one; the old one stays, shut down, until the hosts left
/// it.
pub type Target = Resource<TargetSpec>;

/// What is wanted of a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TargetSpec {
    /// The volume it serves.
    pub volume: VolumeId,
    /// Where it is.
    pub node: NodeName,
    /// Number of its ownership; taken in the volume's [`crate::TargetRecord`] before it is made.
    pub epoch: Epoch,
    /// Size of the volume.
    pub size: Size,
    /// Its replicas, each once.
    pub children: Vec<Child>,
    /// The hosts that may connect; none: it only heals.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub hosts: BTreeMap<HostName, Nqn>,
    /// What hosts may ask of it at most.
    #[serde(default, skip_serializing_if = "QosLimits::is_none")]
    pub limits: QosLimits,
    /// What hosts are told about this path.
    #[serde(default)]
    pub ana: Ana,
    /// It is to stay down: it was replaced.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub shutdown: bool,
}

/// What hosts are told about a path (NVMe asymmetric namespace access).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Ana {
    /// Use it.
    #[default]
    Optimized,
    /// Use it if there is none better.
    NonOptimized,
    /// Do not use it.
    Inaccessible,
}

/// What can be done to a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "camelCase", deny_unknown_fields)]
pub enum TargetChange {
    /// One more replica, or another way to one it has.
    PutChild {
        /// Which.
        child: Child,
    },
    /// One replica fewer.
    RemoveChild {
        /// Which.
        replica: ReplicaId,
    },
    /// Admit exactly these hosts.
    Share {
        /// All of them.
        hosts: BTreeMap<HostName, Nqn>,
    },
    /// Another size.
    Resize {
        /// The new one.
        size: Size,
    },
    /// Other limits.
    Limit {
        /// The new ones.
        limits: QosLimits,
    },
    /// Tell hosts something else about this path.
    SetAna {
        /// What.
        ana: Ana,
    },
    /// Stop serving, for good.
    Shutdown {},
}

/// What was seen of a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct TargetStatus {
    /// How it serves.
    pub state: TargetState,
    /// Its replicas.
    pub children: Vec<ChildStatus>,
    /// Where it listens.
    pub addresses: Vec<SocketAddr>,
    /// The hosts that are connected.
    pub connected: BTreeSet<Nqn>,
    /// Copies that contradict the store's record of the volume, and how. While it opens, one is
    /// enough to stop it ([`StopCause::LabelConflict`]); later such a copy is left alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conflicts: Vec<LabelConflict>,
}

/// How a target serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "name", rename_all = "camelCase")]
pub enum TargetState {
    /// It is being built; nothing is served.
    Init,
    /// Every child is in sync.
    Open,
    /// It serves, but not every child is in sync.
    Degraded,
    /// It cannot serve: no child in sync answers, or the store does not take the new in-sync set.
    Suspended {
        /// Why.
        cause: SuspendReason,
        /// What becomes of I/O meanwhile.
        io: SuspendedIo,
    },
    /// It is stopping.
    ShuttingDown {
        /// Why.
        cause: StopCause,
    },
    /// It serves nothing and never will again.
    Shutdown {
        /// Why.
        cause: StopCause,
    },
}

/// Why a target cannot serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum SuspendReason {
    /// No child in sync answers.
    NoChild,
    /// The new in-sync set could not be stored.
    NotRecorded,
}

/// What becomes of I/O that cannot be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum SuspendedIo {
    /// It waits; hosts notice nothing but time.
    Waiting,
    /// It has waited long enough: it fails.
    Failing,
}

/// Why a target stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum StopCause {
    /// It was told to.
    Ordered,
    /// Somebody with a newer epoch owns the volume.
    Fenced,
    /// What is kept with its copies contradicts the record in the store, which is older: nothing
    /// is served before somebody said which of both is right (`holdfast recover`).
    LabelConflict,
}

/// What can happen to a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetEvent {
    /// It is built, and every child is in sync.
    OpenedWhole,
    /// It is built, and some child is not in sync.
    OpenedPartial,
    /// A child is no longer in sync, and that is recorded.
    Lost,
    /// Every child is in sync again.
    Recovered,
    /// It cannot serve.
    Suspended(SuspendReason),
    /// It has been held as long as hosts may wait.
    SuspendExpired,
    /// It can serve again; whether every child is in sync is yet to be seen.
    Resumed,
    /// It is to stop.
    Stop(StopCause),
    /// All I/O has ended and connections are closed.
    Stopped,
}

impl TargetState {
    /// The only way from one state to another.
    pub fn on(self, event: TargetEvent) -> Result<TargetState, InvalidTransition> {
        use TargetEvent as E;
        use TargetState::{Degraded, Init, Open, Shutdown, ShuttingDown, Suspended};
        match (self, event) {
            (Init, E::OpenedWhole) | (Degraded, E::Recovered) => Ok(Open),
            (Init, E::OpenedPartial)
            | (Open | Degraded, E::Lost)
            | (Suspended { .. }, E::Resumed) => Ok(Degraded),
            (Open | Degraded, E::Suspended(cause)) => {
                Ok(Suspended { cause, io: SuspendedIo::Waiting })
            }
            // Another cause while it is held does not give hosts a new time to wait.
            (Suspended { io, .. }, E::Suspended(cause)) => Ok(Suspended { cause, io }),
            (Suspended { cause, .. }, E::SuspendExpired) => {
                Ok(Suspended { cause, io: SuspendedIo::Failing })
            }
            // A target that is fenced while it stops must not record a clean end.
            (Init | Open | Degraded | Suspended { .. }, E::Stop(cause))
            | (ShuttingDown { .. }, E::Stop(cause @ StopCause::Fenced))
            | (ShuttingDown { cause }, E::Stop(StopCause::Ordered)) => Ok(ShuttingDown { cause }),
            (ShuttingDown { cause }, E::Stopped) => Ok(Shutdown { cause }),
            (from, event) => Err(InvalidTransition { from: from.name(), event: event.name() }),
        }
    }

    /// Whether hosts get answers.
    pub fn serves(self) -> bool {
        matches!(self, TargetState::Open | TargetState::Degraded)
    }

    /// The state in a word.
    pub fn name(self) -> &'static str {
        match self {
            TargetState::Init => "init",
            TargetState::Open => "open",
            TargetState::Degraded => "degraded",
            TargetState::Suspended { .. } => "suspended",
            TargetState::ShuttingDown { .. } => "shuttingDown",
            TargetState::Shutdown { .. } => "shutdown",
        }
    }
}

impl TargetEvent {
    fn name(self) -> &'static str {
        match self {
            TargetEvent::OpenedWhole => "openedWhole",
            TargetEvent::OpenedPartial => "openedPartial",
            TargetEvent::Lost => "lost",
            TargetEvent::Recovered => "recovered",
            TargetEvent::Suspended(_) => "suspended",
            TargetEvent::SuspendExpired => "suspendExpired",
            TargetEvent::Resumed => "resumed",
            TargetEvent::Stop(_) => "stop",
            TargetEvent::Stopped => "stopped",
        }
    }
}

impl fmt::Display for TargetState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl TargetSpec {
    /// The child with this replica.
    pub fn child(&self, replica: ReplicaId) -> Option<&Child> {
        self.children.iter().find(|child| child.replica == replica)
    }
}

impl Spec for TargetSpec {
    const KIND: &'static str = "target";
    type Id = TargetId;
    type Status = TargetStatus;
    type Change = TargetChange;

    fn validate(&self) -> Result<(), ValidationError> {
        self.size.check("size", VolumeSpec::LEAST_SIZE, VolumeSpec::MOST_SIZE)?;
        // One more than a volume may have: a replica that replaces another joins before that
        // leaves.
        let most = usize::from(VolumeSpec::MOST_REPLICAS) + 1;
        let count = self.children.len();
        if !(1..=most).contains(&count) {
            let remedy = format!("give 1 to {most} replicas");
            return Err(ValidationError::new("children", format!("({count} of them)"), remedy));
        }
        let mut seen = BTreeSet::new();
        if let Some(twice) = self.children.iter().find(|child| !seen.insert(child.replica)) {
            return Err(ValidationError::new("children", twice.replica, "name each replica once"));
        }
        self.limits.validate().map_err(|invalid| invalid.within("limits"))
    }

    fn check(&self, change: &TargetChange) -> Result<(), ValidationError> {
        match change {
            TargetChange::Shutdown {} => Ok(()),
            _ if self.shutdown => {
                let remedy = "the target is shut down; the volume has another, or needs one";
                Err(ValidationError::new("shutdown", true, remedy).of_kind(ProblemKind::Fenced))
            }
            TargetChange::Resize { size } if *size < self.size => {
                let remedy = format!("a volume cannot shrink; it has {}", self.size);
                Err(ValidationError::new("size", size, remedy).of_kind(ProblemKind::OutOfRange))
            }
            TargetChange::RemoveChild { replica } if self.child(*replica).is_none() => {
                let remedy = "the target has no such child";
                Err(ValidationError::new("replica", replica, remedy).of_kind(ProblemKind::NotFound))
            }
            _ => Ok(()),
        }
    }

    fn apply(&mut self, change: &TargetChange) {
        match change.clone() {
            TargetChange::PutChild { child } => {
                match self.children.iter_mut().find(|have| have.replica == child.replica) {
                    Some(have) => *have = child,
                    None => self.children.push(child),
                }
            }
            TargetChange::RemoveChild { replica } => {
                self.children.retain(|child| child.replica != replica);
            }
            TargetChange::Share { hosts } => self.hosts = hosts,
            TargetChange::Resize { size } => self.size = size,
            TargetChange::Limit { limits } => self.limits = limits,
            TargetChange::SetAna { ana } => self.ana = ana,
            TargetChange::Shutdown {} => self.shutdown = true,
        }
    }
}
