//! Things under way, by their numbers, which only grow.
//!
//! Most of them are there for a moment, so that those that are there have numbers close to each
//! other: each has its place by the last bits of its number. Whoever finds its place taken, by one
//! that has been there for long, is kept apart.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// There are this many times as many places as things, so that one that is a few turns late is
/// seldom in the way, but no more than that many.
const SPREAD: usize = 8;
const MOST_PLACES: usize = 4096;
const FEWEST_PLACES: usize = 16;

/// Things by number.
#[derive(Debug)]
pub struct SequenceMap<T> {
    /// A power of two of them, or none.
    places: Vec<Option<(u64, T)>>,
    /// How many are in places.
    placed: usize,
    /// Those whose place was taken.
    apart: BTreeMap<u64, T>,
}

impl<T> Default for SequenceMap<T> {
    fn default() -> SequenceMap<T> {
        SequenceMap { places: Vec::new(), placed: 0, apart: BTreeMap::new() }
    }
}

impl<T> SequenceMap<T> {
    /// Puts a thing in under a number that no other has.
    pub fn insert(&mut self, number: u64, thing: T) {
        if self.placed * SPREAD >= self.places.len() && self.places.len() < MOST_PLACES {
            self.make_room();
        }
        self.put(number, thing);
    }

    /// The thing of this number.
    pub fn get(&self, number: u64) -> Option<&T> {
        match self.places.get(self.place_of(number)) {
            Some(Some((found, thing))) if *found == number => Some(thing),
            _ if self.apart.is_empty() => None,
            _ => self.apart.get(&number),
        }
    }

    /// The thing of this number.
    pub fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        let place = self.place_of(number);
        match self.places.get_mut(place) {
            Some(Some((found, thing))) if *found == number => Some(thing),
            _ if self.apart.is_empty() => None,
            _ => self.apart.get_mut(&number),
        }
    }

    /// Takes the thing of this number out.
    pub fn remove(&mut self, number: u64) -> Option<T> {
        let place = self.place_of(number);
        let is_it = |placed: &mut (u64, T)| placed.0 == number;
        if let Some((_, thing)) = self.places.get_mut(place)?.take_if(is_it) {
            self.placed -= 1;
            return Some(thing);
        }
        self.apart.remove(&number)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.placed + self.apart.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All of them, in no order that means anything.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        let placed = self.places.iter().flatten().map(|(number, thing)| (*number, thing));
        placed.chain(self.apart.iter().map(|(number, thing)| (*number, thing)))
    }

    /// All of them, in no order that means anything.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        let placed = self.places.iter_mut().flatten().map(|(_, thing)| thing);
        placed.chain(self.apart.values_mut())
    }

    /// The numbers of those that are so, the lowest first.
    pub fn those(&self, are: impl Fn(&T) -> bool) -> Vec<u64> {
        let mut numbers: Vec<u64> =
            self.iter().filter_map(|(number, thing)| are(thing).then_some(number)).collect();
        numbers.sort_unstable();
        numbers
    }

    /// Takes all of them out, the lowest number first.
    pub fn take_all(&mut self) -> impl Iterator<Item = (u64, T)> + use<T> {
        self.placed = 0;
        let mut all: Vec<(u64, T)> = self.places.iter_mut().filter_map(Option::take).collect();
        all.extend(core::mem::take(&mut self.apart));
        all.sort_unstable_by_key(|(number, _)| *number);
        all.into_iter()
    }

    fn place_of(&self, number: u64) -> usize {
        let places = u64::try_from(self.places.len()).unwrap_or(1);
        usize::try_from(number & places.wrapping_sub(1)).unwrap_or(usize::MAX)
    }

    fn put(&mut self, number: u64, thing: T) {
        let place = self.place_of(number);
        match self.places.get_mut(place) {
            Some(free @ None) => {
                *free = Some((number, thing));
                self.placed += 1;
            }
            _ => {
                self.apart.insert(number, thing);
            }
        }
    }

    fn make_room(&mut self) {
        let more = (self.places.len() * 2).max(FEWEST_PLACES);
        let mut places = Vec::with_capacity(more);
        places.resize_with(more, || None);
        let placed = core::mem::replace(&mut self.places, places).into_iter().flatten();
        let apart = core::mem::take(&mut self.apart);
        self.placed = 0;
        for (number, thing) in placed.chain(apart) {
            self.put(number, thing);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_stays_long_is_found() {
        let (mut table, mut model) = (SequenceMap::default(), BTreeMap::new());
        for number in 0..50_000u64 {
            table.insert(number, number * 2);
            model.insert(number, number * 2);
            // Some stay for ever, some for long, most for a moment.
            let gone = match number % 1000 {
                0 => None,
                1..20 => number.checked_sub(7000),
                _ => number.checked_sub(20),
            };
            // Some of those that stay want one place.
            if let Some(gone) = gone.filter(|gone| gone % 4096 != 5) {
                assert_eq!(table.remove(gone), model.remove(&gone), "{gone}");
                assert_eq!(table.get(gone), None);
            }
            let old = number / 1000 * 1000;
            assert_eq!(table.get(old), model.get(&old));
            assert_eq!(table.len(), model.len());
        }
        assert!(!table.apart.is_empty() && table.placed > 0 && !table.is_empty());
        assert!(table.places.len() <= MOST_PLACES);
        table.values_mut().for_each(|thing| *thing += 1);
        for (number, thing) in &model {
            assert_eq!(table.get(*number), Some(&(thing + 1)));
            assert_eq!(table.get_mut(*number).copied(), Some(thing + 1));
        }
        let all: Vec<u64> = model.keys().copied().collect();
        assert_eq!(table.those(|_| true), all);
        let taken: Vec<u64> = table.take_all().map(|(number, _)| number).collect();
        assert!(taken == all && table.is_empty() && table.get(all[0]).is_none());
    }
}
