//! The refusal shared by all state machines.

use crate::{Kind, Problem};

/// An event that has no edge from the state it came in. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{event} is not possible while {from}")]
pub struct Illegal {
    /// The state.
    pub from: &'static str,
    /// The event.
    pub event: &'static str,
}

impl From<Illegal> for Problem {
    /// Wishes of users are checked before they become events, so what is left is ours.
    fn from(illegal: Illegal) -> Problem {
        Problem::new(Kind::Internal, illegal)
    }
}
