//! What an engine is known to hold of one thing, and the one call about it that may be under way.

use std::time::Duration;

use model::{ErrorClass, Generation, Problem, Timestamp};

use super::CallId;

/// How long after the first failure a call is made again; it doubles.
const FIRST_WAIT: Duration = Duration::from_millis(250);
/// The longest wait.
const LONGEST_WAIT: Duration = Duration::from_mins(1);
/// So many failures in a row, and what is being made is given up.
const HOPELESS_AFTER: u32 = 5;

/// A pool, replica, target or snapshot, seen as something that an engine is to hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct EngineObject {
    /// The last order that the engine has carried out, in this run of it.
    pub(crate) applied: Option<Generation>,
    /// Whether the engine has the thing.
    pub(crate) present: bool,
    /// Whether the engine said that it has it no more.
    pub(crate) gone: bool,
    /// The generation of its volume up to which the disk knows what is wanted of that.
    pub(crate) backed_up: Option<Generation>,
    /// The call under way.
    pub(crate) call: Option<CallId>,
    /// Number of the moment at which a call about it last began or ended.
    pub(crate) last_call: u64,
    /// Why the last call failed, and when.
    pub(crate) problem: Option<Problem>,
    pub(crate) failed_at: Option<Timestamp>,
    tries: u32,
    due: Option<Timestamp>,
}

impl EngineObject {
    /// Whether a call may be made now.
    pub(crate) fn is_due(&self, now: Timestamp) -> bool {
        self.call.is_none() && self.due.is_none_or(|due| due <= now)
    }

    /// When the next call may be made, if there is something to wait for.
    pub(crate) fn due(&self) -> Option<Timestamp> {
        self.due
    }

    /// A call has succeeded.
    pub(crate) fn succeed(&mut self) {
        (self.call, self.problem, self.tries, self.due) = (None, None, 0, None);
    }

    /// A call has failed.
    pub(crate) fn fail(&mut self, problem: Problem, now: Timestamp) {
        let wait = back_off(self.tries);
        self.tries = self.tries.saturating_add(1);
        (self.call, self.problem, self.due) = (None, Some(problem), Some(now.after(wait)));
        self.failed_at = Some(now);
    }

    /// The node is back: what failed while it was away is tried at once.
    pub(crate) fn refresh(&mut self) {
        (self.tries, self.due) = (0, None);
    }

    /// Why it makes no sense to go on, if it does not.
    pub(crate) fn permanent_problem(&self) -> Option<&Problem> {
        let permanent_problem = |problem: &&Problem| {
            problem.kind.class() != ErrorClass::Retry || self.tries >= HOPELESS_AFTER
        };
        self.problem.as_ref().filter(permanent_problem)
    }
}

/// How long to wait after so many failures in a row.
pub(crate) fn back_off(failures: u32) -> Duration {
    let factor = 2u32.saturating_pow(failures);
    FIRST_WAIT.saturating_mul(factor).min(LONGEST_WAIT)
}
