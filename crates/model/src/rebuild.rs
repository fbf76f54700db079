//! Bringing one child of a target in sync, and what is remembered of it.
//!
//! ```text
//!            Start            Finish
//!   Pending ───────► Running ────────► Completed
//!      │             │ ▲  │ Fail
//!      │       Pause │ │  └──────────► Failed ◄── Fail ── Paused
//!      │             ▼ │ Resume
//!      │            Paused
//!      └── Cancel ──┴──── Cancel ────► Cancelled ◄── Cancel ── Running
//! ```

use alloc::collections::BTreeSet;
use core::fmt;

use serde::{Deserialize, Serialize};

use crate::envelope::Versioned;
use crate::{
    InvalidTransition, Problem, RebuildId, ReplicaId, Size, TargetId, Timestamp, VolumeId,
};

/// One rebuild, running or ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rebuild {
    /// Which rebuild.
    pub id: RebuildId,
    /// Of which volume.
    pub volume: VolumeId,
    /// By which target.
    pub target: TargetId,
    /// The copy that is brought in sync.
    pub replica: ReplicaId,
    /// The copies it is read from.
    pub sources: BTreeSet<ReplicaId>,
    /// How much has to be looked at.
    pub extent: RebuildKind,
    /// How far it is.
    pub progress: Progress,
    /// When it was asked for.
    pub started_at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_at: Option<Timestamp>,
    state: RebuildState,
}

/// How much of a volume a rebuild has to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum RebuildKind {
    /// Everything that is written.
    Full,
    /// What the copy missed while it was away.
    #[serde(alias = "delta")]
    Partial,
}

/// How far a rebuild is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// What has to be looked at.
    pub total: Size,
    /// What has been.
    pub done: Size,
    /// What of that had to be copied; the rest was the same or empty.
    pub copied: Size,
}

impl Progress {
    /// In percent; 100 only when all is done.
    pub fn percent(self) -> u8 {
        let (done, total) = (u128::from(self.done.bytes().0), u128::from(self.total.bytes().0));
        match (done * 100).checked_div(total) {
            Some(percent) => u8::try_from(percent.min(100)).unwrap_or(100),
            None => 100,
        }
    }
}

/// Where a rebuild is in its life.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "name", rename_all = "camelCase", deny_unknown_fields)]
pub enum RebuildState {
    /// It waits for its turn.
    Pending {},
    /// It copies.
    Running {},
    /// It waits to be resumed; the child gets new writes meanwhile.
    Paused {},
    /// The child is in sync.
    Completed {},
    /// It could not go on.
    Failed {
        /// Why.
        problem: Problem,
    },
    /// It was not wanted any more.
    Cancelled {},
}

/// What can happen to a rebuild.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RebuildEvent {
    /// Its turn has come.
    Start,
    /// Somebody wants it to wait.
    Pause,
    /// Somebody wants it to go on.
    Resume,
    /// All is copied, and the child is recorded in sync.
    Finish,
    /// It cannot go on.
    Fail(Problem),
    /// Somebody wants it to end, or the target stops.
    Cancel,
}

impl RebuildState {
    /// The only way from one state to another.
    pub fn on(self, event: RebuildEvent) -> Result<RebuildState, InvalidTransition> {
        use RebuildEvent as E;
        use RebuildState::{Cancelled, Completed, Failed, Paused, Pending, Running};
        match (self, event) {
            (Pending {}, E::Start) | (Paused {}, E::Resume) => Ok(Running {}),
            (Running {}, E::Pause) => Ok(Paused {}),
            (Running {}, E::Finish) => Ok(Completed {}),
            (Running {} | Paused {}, E::Fail(problem)) => Ok(Failed { problem }),
            (Pending {} | Running {} | Paused {}, E::Cancel) => Ok(Cancelled {}),
            (from, event) => Err(InvalidTransition { from: from.name(), event: event.name() }),
        }
    }

    /// Whether nothing more will happen.
    pub fn is_ended(&self) -> bool {
        use RebuildState::{Cancelled, Completed, Failed};
        matches!(self, Completed {} | Failed { .. } | Cancelled {})
    }

    /// The state in a word.
    pub fn name(&self) -> &'static str {
        match self {
            RebuildState::Pending {} => "pending",
            RebuildState::Running {} => "running",
            RebuildState::Paused {} => "paused",
            RebuildState::Completed {} => "completed",
            RebuildState::Failed { .. } => "failed",
            RebuildState::Cancelled {} => "cancelled",
        }
    }
}

impl RebuildEvent {
    fn name(&self) -> &'static str {
        match self {
            RebuildEvent::Start => "start",
            RebuildEvent::Pause => "pause",
            RebuildEvent::Resume => "resume",
            RebuildEvent::Finish => "finish",
            RebuildEvent::Fail(_) => "fail",
            RebuildEvent::Cancel => "cancel",
        }
    }
}

impl fmt::Display for RebuildState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What a rebuild is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RebuildPlan {
    /// Of which volume.
    pub volume: VolumeId,
    /// By which target.
    pub target: TargetId,
    /// The copy to bring in sync.
    pub replica: ReplicaId,
    /// The copies to read from.
    pub sources: BTreeSet<ReplicaId>,
    /// How much has to be looked at.
    pub extent: RebuildKind,
}

impl Rebuild {
    /// A rebuild that waits for its turn.
    pub fn new(id: RebuildId, plan: RebuildPlan, now: Timestamp) -> Rebuild {
        let RebuildPlan { volume, target, replica, sources, extent } = plan;
        Rebuild {
            id,
            volume,
            target,
            replica,
            sources,
            extent,
            progress: Progress::default(),
            started_at: now,
            ended_at: None,
            state: RebuildState::Pending {},
        }
    }

    /// Where it is in its life.
    pub fn state(&self) -> &RebuildState {
        &self.state
    }

    /// When it ended.
    pub fn ended_at(&self) -> Option<Timestamp> {
        self.ended_at
    }

    /// Takes an event, or refuses it and stays as it is.
    pub fn on(&mut self, event: RebuildEvent, now: Timestamp) -> Result<(), InvalidTransition> {
        self.state = self.state.clone().on(event)?;
        self.ended_at = self.state.is_ended().then_some(now);
        Ok(())
    }
}

impl Versioned for Rebuild {
    const KIND: &'static str = "rebuild";
    const VERSION: u32 = 1;
}
