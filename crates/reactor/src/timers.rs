//! What is due when.

use core::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::monotonic_time::MonotonicTime;
use crate::slab::Key;

/// Due times of timers. A timer that was cancelled stays here until it is due or swept; whoever
/// pops it finds its key gone.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(MonotonicTime, u64, Key)>>,
    sequence: u64,
    live: usize,
}

impl Timers {
    pub(crate) fn add(&mut self, at: MonotonicTime, key: Key) {
        self.sequence += 1;
        self.live += 1;
        self.heap.push(Reverse((at, self.sequence, key)));
    }

    /// Notes that a timer was cancelled; `alive` says which keys still name a timer.
    pub(crate) fn forget_one(&mut self, alive: impl Fn(Key) -> bool) {
        self.live = self.live.saturating_sub(1);
        if self.heap.len() > 64 + 2 * self.live {
            self.heap.retain(|Reverse((_, _, key))| alive(*key));
        }
    }

    /// The next time something is due.
    pub(crate) fn next(&self) -> Option<MonotonicTime> {
        self.heap.peek().map(|Reverse((at, ..))| *at)
    }

    /// Takes one timer that is due; among those due, the earliest, then the first added.
    pub(crate) fn pop_due(&mut self, now: MonotonicTime) -> Option<Key> {
        if self.next()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse((_, _, key))| key)
    }

    /// Notes that a popped timer was still wanted.
    pub(crate) fn fired(&mut self) {
        self.live = self.live.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slab::Slab;

    #[test]
    fn earliest_first_then_first_come() {
        let mut slab = Slab::new(3);
        let keys: Vec<Key> = (0..3).map(|n| slab.insert(n).unwrap()).collect();
        let mut timers = Timers::default();
        for (at, key) in [20, 10, 10].into_iter().zip(&keys) {
            timers.add(MonotonicTime::from_nanos(at), *key);
        }
        assert_eq!(timers.pop_due(MonotonicTime::from_nanos(9)), None);
        assert_eq!(timers.pop_due(MonotonicTime::from_nanos(15)), Some(keys[1]));
        assert_eq!(timers.pop_due(MonotonicTime::from_nanos(15)), Some(keys[2]));
        assert_eq!(timers.pop_due(MonotonicTime::from_nanos(15)), None);
        assert_eq!(timers.next(), Some(MonotonicTime::from_nanos(20)));
    }

    #[test]
    fn cancelled_timers_do_not_pile_up() {
        let mut slab = Slab::new(10);
        let mut timers = Timers::default();
        for n in 0..10_000 {
            let key = slab.insert(n).unwrap();
            timers.add(MonotonicTime::from_nanos(u64::MAX), key);
            slab.remove(key);
            timers.forget_one(|key| slab.get(key).is_some());
        }
        assert!(timers.heap.len() < 100, "{}", timers.heap.len());
    }
}
