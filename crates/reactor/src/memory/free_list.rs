//! Free slots of one class: a stack without locks, so that a slot can come back from any thread.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Marks the end of the list.
const END: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct FreeList {
    /// Top slot in the low half; in the high half a count of changes, which tells a stack that
    /// changed and changed back from one that did not change.
    top: AtomicU64,
    /// The slot below each slot.
    below: Box<[AtomicU32]>,
}

impl FreeList {
    /// All of `count` slots are free; the first pops first.
    pub(super) fn full(count: u32) -> FreeList {
        let below = (1..=count).map(|next| AtomicU32::new(if next == count { END } else { next }));
        let top = if count == 0 { END } else { 0 };
        FreeList { top: AtomicU64::new(u64::from(top)), below: below.collect() }
    }

    pub(super) fn pop(&self) -> Option<u32> {
        let mut seen = self.top.load(Ordering::Acquire);
        loop {
            let slot = low(seen);
            // `END` has no place below it.
            let next = self.below_of(slot)?.load(Ordering::Relaxed);
            match self.swap(seen, next) {
                Ok(()) => return Some(slot),
                Err(now) => seen = now,
            }
        }
    }

    pub(super) fn push(&self, slot: u32) {
        let mut seen = self.top.load(Ordering::Relaxed);
        while let Some(below) = self.below_of(slot) {
            below.store(low(seen), Ordering::Relaxed);
            match self.swap(seen, slot) {
                Ok(()) => return,
                Err(now) => seen = now,
            }
        }
    }

    /// How many are free, while nobody pops or pushes.
    pub(super) fn count(&self) -> usize {
        let mut count = 0;
        let mut slot = low(self.top.load(Ordering::Acquire));
        while let Some(below) = self.below_of(slot)
            && count < self.below.len()
        {
            count += 1;
            slot = below.load(Ordering::Relaxed);
        }
        count
    }

    fn below_of(&self, slot: u32) -> Option<&AtomicU32> {
        self.below.get(usize::try_from(slot).ok()?)
    }

    fn swap(&self, seen: u64, top: u32) -> Result<(), u64> {
        let changes = (seen >> 32).wrapping_add(1) << 32;
        let new = changes | u64::from(top);
        self.top.compare_exchange_weak(seen, new, Ordering::AcqRel, Ordering::Acquire).map(|_| ())
    }
}

fn low(bits: u64) -> u32 {
    u32::try_from(bits & u64::from(u32::MAX)).unwrap_or(END)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn last_in_first_out() {
        let list = FreeList::full(3);
        assert_eq!((list.pop(), list.pop()), (Some(0), Some(1)));
        list.push(0);
        assert_eq!(list.count(), 2);
        assert_eq!((list.pop(), list.pop(), list.pop()), (Some(0), Some(2), None));
        assert_eq!(FreeList::full(0).pop(), None);
    }

    #[test]
    fn threads_never_hold_the_same_slot() {
        const SLOTS: u32 = 4;
        let list = FreeList::full(SLOTS);
        let held: Vec<AtomicBool> = (0..SLOTS).map(|_| AtomicBool::new(false)).collect();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..50_000 {
                        let Some(slot) = list.pop() else { continue };
                        let mark = &held[usize::try_from(slot).unwrap()];
                        assert!(!mark.swap(true, Ordering::AcqRel), "slot {slot} twice");
                        mark.store(false, Ordering::Release);
                        list.push(slot);
                    }
                });
            }
        });
        assert_eq!(list.count(), 4);
    }
}
