//! Numbered places for things that come and go, with a limit.

/// Name of a thing in a [`Slab`]. A key of a thing that was removed does not name its successors,
/// the next sixteen million of them at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    index: u32,
    generation: u32,
}

impl Key {
    /// The key as one number below 2^56, for use in tokens.
    pub fn to_bits(self) -> u64 {
        (u64::from(self.generation) << 32) | u64::from(self.index)
    }

    /// The key that [`Key::to_bits`] made this number from.
    pub fn from_bits(bits: u64) -> Key {
        let low = u32::try_from(bits & u64::from(u32::MAX)).unwrap_or(u32::MAX);
        let high = u32::try_from(bits >> 32).unwrap_or(u32::MAX);
        Key { index: low, generation: high }
    }

    /// The place, without the generation: stable while the thing lives.
    pub fn index(self) -> u32 {
        self.index
    }
}

/// Places for at most `limit` things, found by [`Key`] in constant time.
///
/// Room is allocated as it is first used and then kept, so a steady load allocates nothing.
#[derive(Debug)]
pub struct Slab<T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
    limit: u32,
}

#[derive(Debug)]
struct Place<T> {
    /// Below 2^24, which leaves the top byte of a number made of a key to its user.
    generation: u32,
    thing: Option<T>,
}

const GENERATIONS: u32 = 1 << 24;

impl<T> Slab<T> {
    /// An empty slab for at most `limit` things.
    pub fn new(limit: u32) -> Slab<T> {
        Slab { places: Vec::new(), free: Vec::new(), limit }
    }

    /// Puts a thing in; hands it back if the limit is reached.
    pub fn insert(&mut self, thing: T) -> Result<Key, T> {
        if let Some(index) = self.free.pop()
            && let Some(place) = self.place(index)
        {
            place.thing = Some(thing);
            return Ok(Key { index, generation: place.generation });
        }
        match u32::try_from(self.places.len()) {
            Ok(index) if index < self.limit => {
                self.places.push(Place { generation: 0, thing: Some(thing) });
                Ok(Key { index, generation: 0 })
            }
            _ => Err(thing),
        }
    }

    /// The thing of this name, if it is still there.
    pub fn get(&self, key: Key) -> Option<&T> {
        let place = self.places.get(usize::try_from(key.index).ok()?)?;
        place.thing.as_ref().filter(|_| place.generation == key.generation)
    }

    /// The thing of this name, if it is still there.
    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let place = self.place(key.index)?;
        let generation = place.generation;
        place.thing.as_mut().filter(|_| generation == key.generation)
    }

    /// Takes the thing of this name out.
    pub fn remove(&mut self, key: Key) -> Option<T> {
        let place = self.place(key.index).filter(|place| place.generation == key.generation)?;
        let thing = place.thing.take()?;
        place.generation = (place.generation + 1) % GENERATIONS;
        self.free.push(key.index);
        Some(thing)
    }

    /// How many things are in.
    pub fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Whether nothing is in.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Everything that is in, by place.
    pub fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        (0u32..).zip(&self.places).filter_map(|(index, place)| {
            let key = Key { index, generation: place.generation };
            place.thing.as_ref().map(|thing| (key, thing))
        })
    }

    /// The names of everything that is in, by place.
    pub fn keys(&self) -> impl Iterator<Item = Key> {
        self.iter().map(|(key, _)| key)
    }

    fn place(&mut self, index: u32) -> Option<&mut Place<T>> {
        self.places.get_mut(usize::try_from(index).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_name_never_finds_its_successor() {
        let mut slab = Slab::new(1);
        let first = slab.insert("a").unwrap();
        assert_eq!(slab.remove(first), Some("a"));
        let second = slab.insert("b").unwrap();
        assert_eq!(first.index(), second.index());
        assert_eq!(slab.get(first), None);
        assert_eq!(slab.remove(first), None);
        assert_eq!(slab.get(second), Some(&"b"));
    }

    #[test]
    fn a_full_slab_hands_the_thing_back() {
        let mut slab = Slab::new(2);
        let key = slab.insert(1).unwrap();
        slab.insert(2).unwrap();
        assert_eq!(slab.insert(3), Err(3));
        slab.remove(key);
        assert!(slab.insert(3).is_ok());
        assert_eq!(slab.iter().map(|(_, n)| *n).collect::<Vec<_>>(), [3, 2]);
    }

    #[test]
    fn keys_survive_the_way_through_a_number() {
        let key = Key { index: 7, generation: GENERATIONS - 1 };
        assert_eq!(Key::from_bits(key.to_bits()), key);
    }
}
