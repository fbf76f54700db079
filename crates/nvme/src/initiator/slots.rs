//! The commands at work on one queue, by slot and by age.
//!
//! A slot is a number that the caller chose and that names its buffer. On the wire a command is
//! called by its slot and a generation in the upper four bits, so that an answer to a command that
//! is long over is not taken for one to its successor.
//!
//! The list by age is threaded through the slots: putting in, taking out and asking for the oldest
//! cost the same however many commands are at work.

use alloc::vec::Vec;

/// Most slots of one queue.
pub(super) const MAX_SLOTS: u16 = 1 << SLOT_BITS;
const SLOT_BITS: u32 = 12;

#[derive(Debug)]
pub(super) struct Slots<T> {
    entries: Vec<Entry<T>>,
    oldest: Option<u16>,
    youngest: Option<u16>,
    used: u16,
}

#[derive(Debug)]
struct Entry<T> {
    generation: u16,
    content: Option<T>,
    age: Option<Age>,
}

/// Neighbours in the list by age.
#[derive(Clone, Copy, Debug)]
struct Age {
    older: Option<u16>,
    younger: Option<u16>,
}

impl<T> Slots<T> {
    /// So many slots, at most [`MAX_SLOTS`].
    pub(super) fn new(count: u16) -> Slots<T> {
        let entry = || Entry { generation: 0, content: None, age: None };
        let entries = (0..count.min(MAX_SLOTS)).map(|_| entry()).collect();
        Slots { entries, oldest: None, youngest: None, used: 0 }
    }

    pub(super) fn count(&self) -> u16 {
        // At most MAX_SLOTS.
        u16::try_from(self.entries.len()).unwrap_or(u16::MAX)
    }

    pub(super) fn used(&self) -> u16 {
        self.used
    }

    /// Puts a command in and says what to call it; hands it back if the slot is taken or unknown.
    /// Only commands that can grow too old are in the list by age.
    pub(super) fn insert(&mut self, slot: u16, content: T, aging: bool) -> Result<u16, T> {
        let Some(entry) = self.entries.get_mut(usize::from(slot)) else { return Err(content) };
        if entry.content.is_some() {
            return Err(content);
        }
        entry.generation = entry.generation.wrapping_add(1) & (u16::MAX >> SLOT_BITS);
        entry.content = Some(content);
        let cid = entry.generation << SLOT_BITS | slot;
        self.used += 1;
        if aging {
            self.link(slot);
        }
        Ok(cid)
    }

    /// Takes a command out.
    pub(super) fn remove(&mut self, slot: u16) -> Option<T> {
        let content = self.entries.get_mut(usize::from(slot))?.content.take()?;
        self.used -= 1;
        self.unlink(slot);
        Some(content)
    }

    /// The command that this is the name of.
    pub(super) fn by_cid(&mut self, cid: u16) -> Option<(u16, &mut T)> {
        let slot = cid & (MAX_SLOTS - 1);
        let entry = self.entries.get_mut(usize::from(slot))?;
        if entry.generation != cid >> SLOT_BITS {
            return None;
        }
        entry.content.as_mut().map(|content| (slot, content))
    }

    /// The command that has waited longest.
    pub(super) fn oldest(&self) -> Option<(u16, &T)> {
        let slot = self.oldest?;
        self.entries.get(usize::from(slot))?.content.as_ref().map(|content| (slot, content))
    }

    /// Takes every command out, by slot.
    pub(super) fn drain(&mut self) -> Vec<(u16, T)> {
        (0..self.count()).filter_map(|slot| Some((slot, self.remove(slot)?))).collect()
    }

    fn link(&mut self, slot: u16) {
        let older = self.youngest.replace(slot);
        self.set_age(slot, Some(Age { older, younger: None }));
        match older {
            Some(older) => self.change_age(older, |age| age.younger = Some(slot)),
            None => self.oldest = Some(slot),
        }
    }

    fn unlink(&mut self, slot: u16) {
        let entry = self.entries.get_mut(usize::from(slot));
        let Some(age) = entry.and_then(|entry| entry.age.take()) else { return };
        match age.older {
            Some(older) => self.change_age(older, |other| other.younger = age.younger),
            None => self.oldest = age.younger,
        }
        match age.younger {
            Some(younger) => self.change_age(younger, |other| other.older = age.older),
            None => self.youngest = age.older,
        }
    }

    fn set_age(&mut self, slot: u16, age: Option<Age>) {
        if let Some(entry) = self.entries.get_mut(usize::from(slot)) {
            entry.age = age;
        }
    }

    fn change_age(&mut self, slot: u16, change: impl FnOnce(&mut Age)) {
        let entry = self.entries.get_mut(usize::from(slot));
        if let Some(age) = entry.and_then(|entry| entry.age.as_mut()) {
            change(age);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::VecDeque;
    use proptest::prelude::*;

    #[test]
    fn a_name_is_good_for_one_command() {
        let mut slots = Slots::new(4);
        let first = slots.insert(3, 'a', true).unwrap();
        assert_eq!(slots.by_cid(first), Some((3, &mut 'a')));
        assert_eq!(slots.insert(3, 'b', true), Err('b'));
        assert_eq!(slots.insert(4, 'b', true), Err('b'));
        assert_eq!(slots.remove(3), Some('a'));
        let second = slots.insert(3, 'b', true).unwrap();
        assert_ne!(first, second);
        assert_eq!(slots.by_cid(first), None);
        assert_eq!(slots.by_cid(0xFFFF), None);
        assert_eq!(slots.drain(), [(3, 'b')]);
        assert_eq!((slots.used(), slots.oldest()), (0, None));
    }

    proptest! {
        #[test]
        fn the_oldest_is_the_one_put_in_first(
            steps in proptest::collection::vec((0u16..8, any::<bool>(), any::<bool>()), 0..100)
        ) {
            let mut slots = Slots::new(8);
            let mut model: VecDeque<(u16, bool)> = VecDeque::new();
            for (slot, put, aging) in steps {
                if put && !model.iter().any(|entry| entry.0 == slot) {
                    prop_assert!(slots.insert(slot, aging, aging).is_ok());
                    model.push_back((slot, aging));
                } else if !put {
                    let known = model.iter().any(|entry| entry.0 == slot);
                    prop_assert_eq!(slots.remove(slot).is_some(), known);
                    model.retain(|entry| entry.0 != slot);
                }
                let oldest = model.iter().find(|entry| entry.1).map(|entry| entry.0);
                prop_assert_eq!(slots.oldest().map(|(slot, _)| slot), oldest);
                prop_assert_eq!(usize::from(slots.used()), model.len());
            }
        }
    }
}
