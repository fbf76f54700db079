//! The changed sums of one page: a short sorted list, or, once there are many, an array.
//!
//! Random writes over a large pool change a few sums in each of many pages, for which lists are
//! small; writes that return to a page change most of it, for which an array is quick.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::bits;
use crate::checksum_page::{Page, SUMS};

/// How many a list holds at most.
pub(crate) const LIST: usize = 48;

/// Sums by slot.
#[derive(Debug)]
pub(crate) enum ChangedSums {
    List(Vec<(u16, u32)>),
    Array(Box<Array>),
}

/// Invariant: `len` bits are set.
#[derive(Debug)]
pub(crate) struct Array {
    sums: [u32; SUMS],
    is_set: [u64; SUMS.div_ceil(64)],
    len: usize,
}

impl Default for ChangedSums {
    fn default() -> ChangedSums {
        ChangedSums::List(Vec::new())
    }
}

impl ChangedSums {
    pub(crate) fn get(&self, slot: u16) -> Option<u32> {
        match self {
            ChangedSums::List(list) => {
                let found = list.binary_search_by_key(&slot, |(slot, _)| *slot).ok()?;
                Some(list[found].1)
            }
            ChangedSums::Array(array) => {
                bits::contains(&array.is_set, slot).then(|| array.sums[usize::from(slot)])
            }
        }
    }

    pub(crate) fn set(&mut self, slot: u16, sum: u32) {
        match self {
            ChangedSums::List(list) => {
                // Streams add at the end.
                let behind = list.last().is_none_or(|(last, _)| *last < slot);
                let place = if behind {
                    Err(list.len())
                } else {
                    list.binary_search_by_key(&slot, |(slot, _)| *slot)
                };
                match place {
                    Ok(found) => list[found].1 = sum,
                    Err(place) if list.len() < LIST => list.insert(place, (slot, sum)),
                    Err(_) => {
                        let mut array = Array::of(list);
                        array.set(slot, sum);
                        *self = ChangedSums::Array(array);
                    }
                }
            }
            ChangedSums::Array(array) => array.set(slot, sum),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            ChangedSums::List(list) => list.len(),
            ChangedSums::Array(array) => array.len,
        }
    }

    /// Memory, in 64 bytes.
    pub(crate) fn weight(&self) -> usize {
        match self {
            ChangedSums::List(list) => 2 + list.len() / 8,
            ChangedSums::Array(_) => size_of::<Array>() / 64,
        }
    }

    /// Puts them over older ones.
    pub(crate) fn apply_to(&self, page: &mut Page) {
        match self {
            ChangedSums::List(list) => {
                for (slot, sum) in list {
                    page[usize::from(*slot)] = *sum;
                }
            }
            ChangedSums::Array(array) => {
                let slots = page.iter_mut().zip(&array.sums).zip(0_u16..);
                for ((place, sum), slot) in slots {
                    if bits::contains(&array.is_set, slot) {
                        *place = *sum;
                    }
                }
            }
        }
    }
}

impl Array {
    fn of(list: &[(u16, u32)]) -> Box<Array> {
        let mut array = Box::new(Array { sums: [0; SUMS], is_set: [0; SUMS.div_ceil(64)], len: 0 });
        for (slot, sum) in list {
            array.set(*slot, *sum);
        }
        array
    }

    fn set(&mut self, slot: u16, sum: u32) {
        let word = &mut self.is_set[usize::from(slot / 64)];
        let bit = 1 << (slot % 64);
        self.len += usize::from(*word & bit == 0);
        *word |= bit;
        self.sums[usize::from(slot)] = sum;
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;

    use block::testing::Random;

    use super::*;

    /// Whatever is changed in whatever order, it is what a map would have.
    #[test]
    fn a_page_of_changes_is_a_map() {
        for (seed, slots) in [(1, 5), (2, 40), (3, 200), (4, SUMS)] {
            let mut random = Random(seed);
            let mut changed = ChangedSums::default();
            let mut model = BTreeMap::<u16, u32>::new();
            for sum in 1..3000 {
                let slot = u16::try_from(random.below(u64::try_from(slots).unwrap())).unwrap();
                changed.set(slot, sum);
                model.insert(slot, sum);
                assert_eq!(changed.len(), model.len());
            }
            let mut page: Page = Box::new([7; SUMS]);
            changed.apply_to(&mut page);
            for (slot, sum) in (0_u16..).zip(page.iter()) {
                assert_eq!(changed.get(slot), model.get(&slot).copied(), "slot {slot}");
                assert_eq!(*sum, model.get(&slot).copied().unwrap_or(7), "slot {slot}");
            }
            assert_eq!(matches!(changed, ChangedSums::Array(_)), slots > LIST);
        }
    }
}
