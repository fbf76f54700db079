//! The life of every resource, and the one operation that may be under way on it.
//!
//! ```text
//!              Made                 Begin(change)
//!   Creating ────────► Created ───────────────────► Created{running}
//!      │                │   ▲                            │ End(outcome)
//!      │ Delete         │   │         Commit             ▼
//!      │                │   └─────────────────────── Created{ended}
//!      │                │ Delete
//!      └──────► Deleting ◄──┘      Deleting ──Gone──► Deleted
//!                                  Deleting ──Keep──► Created
//! ```
//!
//! The operation is the write-ahead intent: it is stored before anything is done, so that after a
//! crash whoever finds it `running` finishes or undoes it. `ended` is what was learned but perhaps
//! not stored yet; nothing else may begin until it is.

use core::fmt;

use serde::{Deserialize, Serialize};

use crate::{InvalidTransition, Problem, Timestamp};

/// Where a resource is in its life. `C` is what can be changed about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "state", rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", schemars(rename = "LifecycleOf{C}"))]
pub enum Lifecycle<C> {
    /// Wanted; parts of it may exist. Found after a crash, it is made again or undone.
    Creating {},
    /// It exists.
    Created {
        /// What is being done to it.
        #[serde(skip_serializing_if = "Option::is_none")]
        operation: Option<Operation<C>>,
    },
    /// To be removed; parts of it may still exist.
    Deleting {},
    /// Nothing of it exists; its record may be dropped.
    Deleted {},
}

/// A change under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", schemars(rename = "OperationOf{C}"))]
pub struct Operation<C> {
    /// What is wanted, with everything that was decided before the first step.
    pub change: C,
    /// When it was asked for; shows what is stuck.
    pub started_at: Timestamp,
    /// How it ended; absent while it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
}

/// How an operation ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "result", rename_all = "camelCase", deny_unknown_fields)]
pub enum Outcome {
    /// The change is in effect.
    Done {},
    /// The change was undone, for this reason.
    Failed {
        /// Why.
        problem: Problem,
    },
}

/// What can happen to a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LifecycleEvent<C> {
    /// All of it exists.
    Made,
    /// Somebody wants to change it.
    Begin(Operation<C>),
    /// The change is done or undone.
    End(Outcome),
    /// The outcome is stored with the spec.
    Commit,
    /// Somebody wants it gone, or its creation is undone.
    Delete,
    /// Nothing of it is left.
    Gone,
    /// It must stay after all, and all of it is still there.
    Keep,
}

impl<C> Lifecycle<C> {
    /// The only way from one state to another.
    pub fn on(self, event: LifecycleEvent<C>) -> Result<Lifecycle<C>, InvalidTransition> {
        use Lifecycle::{Created, Creating, Deleted, Deleting};
        match (self, event) {
            (Creating {}, LifecycleEvent::Made)
            | (Deleting {}, LifecycleEvent::Keep)
            | (
                Created { operation: Some(Operation { outcome: Some(_), .. }) },
                LifecycleEvent::Commit,
            ) => Ok(Created { operation: None }),
            (Created { operation: None }, LifecycleEvent::Begin(operation))
                if operation.outcome.is_none() =>
            {
                Ok(Created { operation: Some(operation) })
            }
            (Created { operation: Some(mut operation) }, LifecycleEvent::End(outcome))
                if operation.outcome.is_none() =>
            {
                operation.outcome = Some(outcome);
                Ok(Created { operation: Some(operation) })
            }
            // Deleting again is the same request again.
            (Creating {} | Created { operation: None } | Deleting {}, LifecycleEvent::Delete) => {
                Ok(Deleting {})
            }
            (Deleting {}, LifecycleEvent::Gone) => Ok(Deleted {}),
            (from, event) => Err(InvalidTransition { from: from.name(), event: event.name() }),
        }
    }

    /// The operation under way.
    pub fn operation(&self) -> Option<&Operation<C>> {
        match self {
            Lifecycle::Created { operation } => operation.as_ref(),
            _ => None,
        }
    }

    /// Whether it exists and nothing is being done to it.
    pub fn is_idle(&self) -> bool {
        matches!(self, Lifecycle::Created { operation: None })
    }

    /// The state in a word.
    pub fn name(&self) -> &'static str {
        match self {
            Lifecycle::Creating {} => "creating",
            Lifecycle::Created { operation: None } => "created",
            Lifecycle::Created { operation: Some(Operation { outcome: None, .. }) } => "running",
            Lifecycle::Created { operation: Some(_) } => "ended",
            Lifecycle::Deleting {} => "deleting",
            Lifecycle::Deleted {} => "deleted",
        }
    }
}

impl<C> LifecycleEvent<C> {
    fn name(&self) -> &'static str {
        match self {
            LifecycleEvent::Made => "made",
            LifecycleEvent::Begin(_) => "begin",
            LifecycleEvent::End(_) => "end",
            LifecycleEvent::Commit => "commit",
            LifecycleEvent::Delete => "delete",
            LifecycleEvent::Gone => "gone",
            LifecycleEvent::Keep => "keep",
        }
    }
}

impl<C> fmt::Display for Lifecycle<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
