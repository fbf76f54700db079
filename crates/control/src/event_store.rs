//! What happened: kept in the store, and then told to those who listen.
//!
//! An event is told when it is kept, so no two events ever have one number, and what was told can
//! be read again. An event whose control plane died before it was kept was told to nobody: the
//! change it is about is in the store.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use model::{Event, Severity, envelope, keys};
use store::contract::{Keys, Op, Txn};
use store::leader::{Guard, GuardedError};
use tokio::sync::mpsc;

use crate::controller::EventDraft;
use crate::process_state::ProcessState;

/// How many events of each severity are kept.
pub(crate) const KEPT: usize = 1000;
/// How many are written at once: each may evict another, and a transaction has a limit.
const AT_ONCE: usize = 60;
/// How long events are gathered before they are written.
const GATHER: Duration = Duration::from_millis(100);
/// How soon after a failure they are written again.
const AGAIN: Duration = Duration::from_millis(50);

/// Which events are kept: the last of each severity, so that a storm does not evict its cause.
#[derive(Clone, Debug, Default)]
pub(crate) struct EventRetention([VecDeque<u64>; 3]);

impl EventRetention {
    /// One more is kept; which one goes for it.
    pub(crate) fn add(&mut self, event: &Event) -> Option<u64> {
        let [info, warning, error] = &mut self.0;
        let kept = match event.severity {
            Severity::Info => info,
            Severity::Warning => warning,
            Severity::Error => error,
        };
        kept.push_back(event.number);
        if kept.len() > KEPT { kept.pop_front() } else { None }
    }
}

/// Numbers events, keeps the last in the store and tells them, until nobody has any more or
/// somebody else leads.
pub(crate) async fn keep(
    shared: Arc<ProcessState>,
    guard: Guard,
    (mut last, mut retention): (u64, EventRetention),
    mut told: mpsc::Receiver<EventDraft>,
) {
    let mut drafts = Vec::new();
    while told.recv_many(&mut drafts, AT_ONCE).await > 0 {
        let is_all = drafts.len() < AT_ONCE;
        let mut txn = Txn::new();
        let mut events = Vec::new();
        for draft in drafts.drain(..) {
            last += 1;
            let EventDraft { subject, name, severity, message, origin } = draft;
            let (number, at) = (last, shared.now());
            let event = Event { number, at, subject, name, severity, message, origin };
            match envelope::encode(&event) {
                Ok(text) => txn = txn.then(Op::put(keys::event(last), text)),
                Err(error) => tracing::error!(%error, "an event cannot be written as JSON"),
            }
            if let Some(evicted) = retention.add(&event) {
                txn = txn.then(Op::delete(Keys::one(keys::event(evicted))));
            }
            events.push(event);
        }
        if !write(&guard, txn).await {
            return;
        }
        shared.publish(events);
        if is_all {
            tokio::time::sleep(GATHER).await;
        }
    }
}

/// Writes, as often as it takes: the same events under the same numbers do no harm. Whether they
/// are written; if not, somebody else leads.
async fn write(guard: &Guard, txn: Txn) -> bool {
    while !guard.lease().is_lost() {
        match guard.txn(txn.clone()).await {
            Ok(_) => return true,
            Err(error @ GuardedError::LostLeadership { .. }) => {
                tracing::debug!(%error, "events are not kept");
                return false;
            }
            Err(error) => {
                tracing::debug!(%error, "events are not kept yet");
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(number: u64, severity: Severity) -> Event {
        let subject = model::Subject::Node("n1".parse().unwrap());
        let (at, name) = (model::Timestamp::EPOCH, model::EventName::StateChanged);
        Event { number, at, subject, name, severity, message: String::new(), origin: None }
    }

    #[test]
    fn a_storm_of_one_severity_evicts_none_of_another() {
        let mut retention = EventRetention::default();
        assert_eq!(retention.add(&event(1, Severity::Error)), None);
        assert_eq!(retention.add(&event(2, Severity::Warning)), None);
        let kept = u64::try_from(KEPT).unwrap();
        for number in 3..3 + kept {
            assert_eq!(retention.add(&event(number, Severity::Info)), None);
        }
        assert_eq!(retention.add(&event(5000, Severity::Info)), Some(3));
        assert_eq!(retention.add(&event(5001, Severity::Info)), Some(4));
        assert_eq!(retention.add(&event(5002, Severity::Warning)), None);
    }
}
