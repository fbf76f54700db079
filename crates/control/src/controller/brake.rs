//! What the planner holds back while many nodes are away, kept and told.

use model::{EventName, Severity, Subject};
use planner::Brake;

use super::Controller;

/// The brake as of the last plan.
#[derive(Debug, Default)]
pub(crate) struct BrakeState {
    brake: Option<Brake>,
    /// Whether people know that it is on.
    is_told: bool,
}

impl Controller {
    /// Why lost copies are not replaced now, if any volume wants one.
    pub fn brake(&self) -> Option<&Brake> {
        self.brake.brake.as_ref().filter(|brake| brake.held > 0)
    }

    /// It is told once when it first holds something back, and once when it is lifted. That nothing
    /// waits for a moment, because volumes are busy, is no reason to tell.
    pub(crate) fn note_brake(&mut self, brake: Option<Brake>) {
        if brake.as_ref().is_some_and(|brake| brake.engaged) {
            self.state.facts.braked_at = Some(self.now);
        }
        let before = std::mem::replace(&mut self.brake.brake, brake);
        let node = |brake: &Brake| brake.nodes.first().cloned().map(Subject::Node);
        if let Some(now) = self.brake.brake.as_ref().filter(|now| now.held > 0) {
            let message = format!("{} volumes lack a copy: {}", now.held, now.reason);
            if let Some(subject) = node(now).filter(|_| !self.brake.is_told) {
                self.brake.is_told = true;
                self.tell(subject, EventName::HealingPaused, Severity::Warning, message);
            }
        }
        if self.brake.brake.is_none() && std::mem::take(&mut self.brake.is_told) {
            let message = "enough nodes answer: lost copies are replaced again";
            if let Some(subject) = before.as_ref().and_then(node) {
                self.tell(subject, EventName::HealingResumed, Severity::Info, message);
            }
        }
    }
}
