//! Events of engines: those that people should read are stored with those of the control plane.
//!
//! An engine publishes everything that happens on its node. Stored are warnings and errors, and
//! what ends them, but for what the control plane reports itself. A storm on one node is cut off:
//! so many of each severity are stored in a minute, and one event says how many were not.

use std::time::Duration;

use model::{Event, EventName, EventOrigin, NodeName, Severity, Subject, Timestamp};

use super::{Controller, Effect, EventDraft};

/// The most events of one engine and one severity that are stored in a minute.
const MOST: u32 = 100;
/// The most of the text of one event that is stored, in bytes.
const LONGEST: usize = 1024;
const MINUTE: Duration = Duration::from_mins(1);

/// How many events of an engine were stored lately, and how many were not.
#[derive(Clone, Debug, Default)]
pub(crate) struct EventBudget {
    since: Option<Timestamp>,
    stored: [u32; 3],
    dropped: u64,
}

impl EventBudget {
    /// Whether one more is stored; and how many were not in the minute that has ended.
    fn take(&mut self, severity: Severity, now: Timestamp) -> (bool, u64) {
        let mut dropped = 0;
        if self.since.is_none_or(|since| now.since(since) >= MINUTE) {
            dropped = self.dropped;
            *self = EventBudget { since: Some(now), ..EventBudget::default() };
        }
        let stored = match severity {
            Severity::Info => &mut self.stored[0],
            Severity::Warning => &mut self.stored[1],
            Severity::Error => &mut self.stored[2],
        };
        let fits = *stored < MOST;
        *stored += u32::from(fits);
        self.dropped += u64::from(!fits);
        (fits, dropped)
    }
}

/// Whether an event of an engine is one for people, and is told by nobody else.
pub(crate) fn is_stored(event: &Event) -> bool {
    use EventName as E;
    match event.name {
        // The control plane sees them in the inventory, and counts each once.
        E::RebuildStarted | E::RebuildEnded | E::ScrubEnded => false,
        E::Corrupted | E::Accepted | E::Fenced | E::LabelConflict => true,
        // A pool that is well again ends an alert.
        E::StateChanged if event.subject.kind() == model::SubjectKind::Pool => true,
        _ => event.severity > Severity::Info,
    }
}

impl Controller {
    /// An engine published an event that is stored.
    pub(crate) fn on_reported(&mut self, node: &NodeName, place: String, event: Event) {
        let now = self.now;
        let budget = self.event_budgets.entry(node.clone()).or_default();
        let (fits, dropped) = budget.take(event.severity, now);
        if dropped > 0 {
            let message = format!(
                "{dropped} more events of its engine were not stored, there were too many; the \
                 log of the engine has them"
            );
            let subject = Subject::Node(node.clone());
            self.tell(subject, EventName::StateChanged, Severity::Warning, message);
        }
        if fits {
            let Event { subject, name, severity, mut message, .. } = event;
            message.truncate(message.floor_char_boundary(LONGEST));
            let origin = Some(EventOrigin { node: node.clone(), place });
            let draft = EventDraft { subject, name, severity, message, origin };
            self.out.push(Effect::Tell(draft));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::{Intervals, State};

    #[test]
    fn the_text_of_an_event_is_cut_to_what_can_be_stored() {
        let (now, settings) = (Timestamp::from_millis(1000), planner::Settings::default());
        let pace = Intervals::default();
        let mut controller = Controller::new(State::default(), settings, pace, 1, now);
        let node: NodeName = "n1".parse().unwrap();
        let event = Event {
            number: 1,
            at: now,
            subject: Subject::Node(node.clone()),
            name: EventName::Corrupted,
            severity: Severity::Error,
            message: "\u{e9}".repeat(1 << 20).replacen('\u{e9}', "e", 1),
            origin: None,
        };
        controller.on_reported(&node, "1".to_owned(), event);
        let Some(Effect::Tell(draft)) = controller.out.last() else { panic!("it is not told") };
        assert_eq!(draft.message.len(), LONGEST - 1);
    }

    #[test]
    fn a_storm_is_cut_off_and_counted() {
        let mut budget = EventBudget::default();
        let at = Timestamp::from_millis;
        let mut stored = 0;
        for _ in 0..250 {
            stored += u32::from(budget.take(Severity::Warning, at(1000)).0);
        }
        assert_eq!(stored, MOST);
        // What is worse has room of its own.
        assert_eq!(budget.take(Severity::Error, at(2000)), (true, 0));
        assert_eq!(budget.take(Severity::Warning, at(61_000)), (true, 150));
        assert_eq!(budget.take(Severity::Warning, at(62_000)), (true, 0));
    }
}
