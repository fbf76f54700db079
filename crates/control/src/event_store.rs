//! What happened: kept in the store, and then told to those who listen.
//!
//! An event is told when it is kept, so no two events ever have one number, and what was told can
//! be read again. An event whose control plane died before it was kept was told to nobody: the
//! change it is about is in the store.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use model::{Event, Severity, envelope, keys};
use store::contract::{ErrorClass, Keys, Op, Txn, WriteError};
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
        let mut batch = Vec::new();
        for draft in drafts.drain(..) {
            last += 1;
            let EventDraft { subject, name, severity, message, origin } = draft;
            let (number, at) = (last, shared.now());
            let event = Event { number, at, subject, name, severity, message, origin };
            let mut ops = Vec::new();
            match envelope::encode(&event) {
                Ok(text) => ops.push(Op::put(keys::event(last), text)),
                Err(error) => tracing::error!(%error, "an event cannot be written as JSON"),
            }
            if let Some(evicted) = retention.add(&event) {
                ops.push(Op::delete(Keys::one(keys::event(evicted))));
            }
            batch.push((event, ops));
        }
        let Some(kept) = write_all(&guard, batch).await else { return };
        shared.publish(kept);
        if is_all {
            tokio::time::sleep(GATHER).await;
        }
    }
}

/// Writes events, each with what it takes to keep it; those that are kept. What the store refuses
/// is divided until it is one event, and that is dropped. None: somebody else leads.
async fn write_all(guard: &Guard, batch: Vec<(Event, Vec<Op>)>) -> Option<Vec<Event>> {
    let mut kept = Vec::new();
    let mut left = vec![batch];
    while let Some(mut batch) = left.pop() {
        let all = batch.iter().flat_map(|(_, ops)| ops.iter().cloned());
        let txn = all.fold(Txn::new(), Txn::then);
        match write(guard, txn).await {
            Written::Kept => kept.extend(batch.into_iter().map(|(event, _)| event)),
            Written::Refused(error) if batch.len() <= 1 => {
                for (event, _) in batch {
                    let Event { number, subject, message, .. } = event;
                    let about = message.get(..message.floor_char_boundary(100));
                    tracing::warn!(number, %subject, about, error, "the store refuses an event");
                }
            }
            Written::Refused(_) => {
                let rest = batch.split_off(batch.len() / 2);
                left.extend([rest, batch]);
            }
            Written::Lost => return None,
        }
    }
    Some(kept)
}

/// What became of a write.
enum Written {
    Kept,
    /// The store will not do it, and would not the next time.
    Refused(String),
    /// Somebody else leads.
    Lost,
}

/// Writes, as often as it takes: the same events under the same numbers do no harm.
async fn write(guard: &Guard, txn: Txn) -> Written {
    while !guard.lease().is_lost() {
        match guard.txn(txn.clone()).await {
            Ok(_) => return Written::Kept,
            Err(error @ GuardedError::LostLeadership { .. }) => {
                tracing::debug!(%error, "events are not kept");
                return Written::Lost;
            }
            Err(GuardedError::Write(error @ WriteError::Refused { .. }))
                if error.class() == ErrorClass::Caller =>
            {
                return Written::Refused(error.to_string());
            }
            Err(error) => {
                tracing::debug!(%error, "events are not kept yet");
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
    Written::Lost
}

#[cfg(test)]
mod tests {
    use store::contract::{Query, Store, SystemClock};
    use store::lease::RenewedLease;
    use store::testing::MemoryStore;

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

    /// One event that the store refuses keeps no other from being kept.
    #[tokio::test]
    async fn an_event_that_is_refused_is_dropped_and_those_beside_it_are_kept() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(Arc::new(SystemClock::new())));
        let (clock, ttl) = (Arc::new(SystemClock::new()), Duration::from_mins(1));
        let granted = RenewedLease::grant(Arc::clone(&store), clock, ttl).await;
        let (lease, keeper) = granted.unwrap();
        let keeper = tokio::spawn(keeper);
        let campaign = Guard::campaign(Arc::clone(&store), keys::LEADER, "test", lease);
        let guard = campaign.await.unwrap();
        let put = |number| Op::put(keys::event(number), "kept");
        let events = (1..=7).map(|number| {
            // No key may be written twice in one write.
            let ops = if number == 3 { vec![put(3), put(3)] } else { vec![put(number)] };
            (event(number, Severity::Info), ops)
        });
        let written = write_all(&guard, events.collect());
        let written = tokio::time::timeout(Duration::from_secs(20), written).await;
        let kept = written.expect("it is tried for ever").unwrap();
        let numbers: Vec<u64> = kept.iter().map(|event| event.number).collect();
        assert_eq!(numbers, [1, 2, 4, 5, 6, 7]);
        for number in 1..=7 {
            let stored = store.range(Query::key(keys::event(number))).await.unwrap();
            assert_eq!(stored.kvs.len(), usize::from(number != 3), "event {number}");
        }
        keeper.abort();
    }
}
