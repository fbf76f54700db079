//! What happened lately, for readers that come and go.
//!
//! A [`Log`] is a ring: it keeps the last events and forgets older ones. A reader says after which
//! event it goes on; when that one is forgotten, or was told by an earlier run of the daemon, it is
//! told first that it missed some. Nobody waits for a slow reader.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};

use model::InstanceId;
use tokio::sync::watch;

/// The place of an event: which run of the daemon told it, and its number there.
///
/// On the wire `INSTANCE.NUMBER`; readers treat it as opaque.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventCursor {
    /// The run.
    pub instance: InstanceId,
    /// The number, from 1.
    pub number: u64,
}

impl std::fmt::Display for EventCursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.instance, self.number)
    }
}

impl EventCursor {
    /// Reads what was written; anything else is a place nobody knows.
    pub fn parse(text: &str) -> Option<EventCursor> {
        let (instance, number) = text.split_once('.')?;
        Some(EventCursor { instance: instance.parse().ok()?, number: number.parse().ok()? })
    }
}

/// What a reader gets next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Batch<E> {
    /// Events were forgotten before the reader came.
    pub(crate) missed: bool,
    /// In order.
    pub(crate) events: Vec<(EventCursor, Arc<E>)>,
}

struct Ring<E> {
    kept: VecDeque<Arc<E>>,
    /// Number of the last event that was told; 0 before the first.
    last: u64,
}

/// The last events of this run.
pub struct Log<E> {
    instance: InstanceId,
    capacity: NonZeroUsize,
    ring: Mutex<Ring<E>>,
    /// The number of the last event; `None` when the log is closed.
    told: watch::Sender<Option<u64>>,
}

impl<E> Log<E> {
    /// An empty log that keeps so many events.
    pub fn new(instance: InstanceId, capacity: NonZeroUsize) -> Log<E> {
        let ring = Mutex::new(Ring { kept: VecDeque::new(), last: 0 });
        Log { instance, capacity, ring, told: watch::Sender::new(Some(0)) }
    }

    /// Tells readers; `make` is given the number of the event.
    pub fn push(&self, make: impl FnOnce(u64) -> E) {
        let number = {
            let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
            ring.last = ring.last.saturating_add(1);
            let event = Arc::new(make(ring.last));
            if ring.kept.len() == self.capacity.get() {
                ring.kept.pop_front();
            }
            ring.kept.push_back(event);
            ring.last
        };
        self.told.send_if_modified(|told| {
            let newer = told.is_some_and(|told| told < number);
            if newer {
                *told = Some(number);
            }
            newer
        });
    }

    /// Ends every reader, so that a server can stop.
    pub fn close(&self) {
        self.told.send_replace(None);
    }

    /// Where a reader that wants only what comes now begins.
    pub(crate) fn now(&self) -> EventCursor {
        let ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        EventCursor { instance: self.instance, number: ring.last }
    }

    /// What a reader who has seen `place` gets next. `None`: it comes from somewhere else.
    pub(crate) fn after(&self, place: Option<EventCursor>) -> Batch<E> {
        let ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let count = u64::try_from(ring.kept.len()).unwrap_or(u64::MAX);
        // The event before the oldest that is kept.
        let floor = ring.last.saturating_sub(count);
        let seen =
            place.filter(|place| place.instance == self.instance && place.number <= ring.last);
        let from = seen.map_or(0, |place| place.number);
        let missed = seen.is_none() || from < floor;
        let skip = usize::try_from(from.saturating_sub(floor)).unwrap_or(usize::MAX);
        let number = |index: usize| {
            floor.saturating_add(1).saturating_add(u64::try_from(index).unwrap_or(u64::MAX))
        };
        let place = |number| EventCursor { instance: self.instance, number };
        let kept = ring.kept.iter().enumerate().skip(skip);
        let events = kept.map(|(index, event)| (place(number(index)), Arc::clone(event))).collect();
        Batch { missed, events }
    }

    /// Wakes when there is more, or `None` is told: closed.
    pub(crate) fn told(&self) -> watch::Receiver<Option<u64>> {
        self.told.subscribe()
    }
}
