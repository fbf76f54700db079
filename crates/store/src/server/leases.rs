//! Leases: who holds which keys, and until when.
//!
//! Invariants: a key hangs on at most one lease; `queue` holds each lease once, by its deadline.
//! Time is an argument: milliseconds of a clock that never goes back.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

/// Milliseconds since the server was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Millis(pub u64);

impl Millis {
    fn after(self, seconds: i64) -> Self {
        let millis = u64::try_from(seconds).unwrap_or(0).saturating_mul(1000);
        Self(self.0.saturating_add(millis))
    }
}

/// One lease.
#[derive(Debug)]
pub(crate) struct Lease {
    /// Seconds it was granted.
    pub(crate) ttl: i64,
    deadline: Millis,
    /// The keys that hang on it.
    pub(crate) keys: BTreeSet<Bytes>,
}

impl Lease {
    /// Whole seconds left, rounded up.
    pub(crate) fn left(&self, now: Millis) -> i64 {
        let millis = self.deadline.0.saturating_sub(now.0);
        i64::try_from(millis.div_ceil(1000)).unwrap_or(i64::MAX)
    }
}

/// All leases.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    leases: BTreeMap<i64, Lease>,
    queue: BTreeSet<(Millis, i64)>,
}

impl Leases {
    /// Adds a lease, unless there is one with this number.
    pub(crate) fn grant(&mut self, id: i64, ttl: i64, now: Millis) -> bool {
        if self.leases.contains_key(&id) {
            return false;
        }
        let deadline = now.after(ttl);
        self.leases.insert(id, Lease { ttl, deadline, keys: BTreeSet::new() });
        self.queue.insert((deadline, id));
        true
    }

    /// Takes a lease out.
    pub(crate) fn remove(&mut self, id: i64) -> Option<Lease> {
        let lease = self.leases.remove(&id)?;
        self.queue.remove(&(lease.deadline, id));
        Some(lease)
    }

    /// Gives a lease its full time again; its seconds to live.
    pub(crate) fn renew(&mut self, id: i64, now: Millis) -> Option<i64> {
        let lease = self.leases.get_mut(&id)?;
        self.queue.remove(&(lease.deadline, id));
        lease.deadline = now.after(lease.ttl);
        self.queue.insert((lease.deadline, id));
        Some(lease.ttl)
    }

    /// Renews a lease as of a moment before now, if it was not over by then.
    pub(crate) fn renew_in_time(&mut self, id: i64, at: Millis) {
        if self.leases.get(&id).is_some_and(|lease| lease.deadline > at) {
            self.renew(id, at);
        }
    }

    /// One lease.
    pub(crate) fn get(&self, id: i64) -> Option<&Lease> {
        self.leases.get(&id)
    }

    /// All leases, those that end first in front.
    pub(crate) fn by_deadline(&self) -> impl Iterator<Item = i64> {
        self.queue.iter().map(|(_, id)| *id)
    }

    /// All leases with the seconds they were granted.
    pub(crate) fn granted(&self) -> impl Iterator<Item = (i64, i64)> {
        self.leases.iter().map(|(id, lease)| (*id, lease.ttl))
    }

    /// The first lease whose time is over.
    pub(crate) fn expired(&self, now: Millis) -> Option<i64> {
        self.queue.first().filter(|(deadline, _)| *deadline <= now).map(|(_, id)| *id)
    }

    /// When the next lease ends.
    pub(crate) fn next_deadline(&self) -> Option<Millis> {
        self.queue.first().map(|(deadline, _)| *deadline)
    }

    /// Moves a key from one lease to another; 0 is none.
    pub(crate) fn attach(&mut self, key: &Bytes, from: i64, to: i64) {
        if from == to {
            return;
        }
        if let Some(lease) = self.leases.get_mut(&from) {
            lease.keys.remove(key);
        }
        if let Some(lease) = self.leases.get_mut(&to) {
            lease.keys.insert(key.clone());
        }
    }
}
