//! Maintenance: automatic failover and healing paused until a time that is set beforehand.
//!
//! It is stored, so that the next control plane holds to it, and ends by itself: nobody has to
//! remember to end it.

use std::time::Duration;

use model::{EventName, Maintenance, NodeName, Severity, Subject};

use super::batch::Batch;
use super::{Controller, PendingRequest, RequestOutcome};

impl Controller {
    /// The pause, while it lasts.
    pub(crate) fn maintenance(&self) -> Option<&Maintenance> {
        self.state.maintenance.as_ref().filter(|it| it.until > self.now)
    }

    pub(crate) fn decide_maintenance(
        &self,
        asked: &PendingRequest,
        lasts: Duration,
        reason: &str,
    ) -> Batch {
        let (since, until) = (self.now, self.now.after(lasts));
        let maintenance = Maintenance { since, until, reason: reason.to_owned() };
        let message = format!("paused until {until} for maintenance: {reason}");
        let batch = Batch::new().put(maintenance).reply(asked.ticket, RequestOutcome::Changed);
        self.tell_of_pause(batch, EventName::HealingPaused, &message)
    }

    pub(crate) fn decide_end_maintenance(&self, asked: &PendingRequest) -> Batch {
        match &self.state.maintenance {
            None => Batch::new().reply(asked.ticket, RequestOutcome::Unchanged),
            Some(maintenance) => {
                let batch = Batch::new().drop(maintenance.clone());
                let batch = batch.reply(asked.ticket, RequestOutcome::Gone);
                let message = "maintenance was ended: failover and healing go on";
                self.tell_of_pause(batch, EventName::HealingResumed, message)
            }
        }
    }

    /// A pause whose time is over is forgotten.
    pub(crate) fn end_maintenance(&mut self) {
        let over = self.state.maintenance.as_ref().filter(|it| it.until <= self.now);
        if let Some(maintenance) = over.cloned() {
            let batch = Batch::new().drop(maintenance);
            let message = "maintenance has ended as planned: failover and healing go on";
            let batch = self.tell_of_pause(batch, EventName::HealingResumed, message);
            self.replan = true;
            self.try_commit(batch);
        }
    }

    /// Events are about something; this one is about each node, told of the first.
    fn tell_of_pause(&self, batch: Batch, name: EventName, message: &str) -> Batch {
        let node: Option<&NodeName> = self.state.facts.nodes.keys().next();
        match node {
            Some(node) => {
                let severity = match name {
                    EventName::HealingPaused => Severity::Warning,
                    _ => Severity::Info,
                };
                batch.tell(Subject::Node(node.clone()), name, severity, message)
            }
            None => batch,
        }
    }
}
