//! The refusal shared by all state machines.

use crate::{Problem, ProblemKind};

/// An event that has no edge from the state it came in. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{event} is not possible while {from}")]
pub struct InvalidTransition {
    /// The state.
    pub from: &'static str,
    /// The event.
    pub event: &'static str,
}

impl From<InvalidTransition> for Problem {
    /// Wishes of users are checked before they become events, so what is left is ours.
    fn from(illegal: InvalidTransition) -> Problem {
        Problem::new(ProblemKind::Internal, illegal)
    }
}
