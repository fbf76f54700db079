//! Small sets of children, by the number of their slot.

/// Most children: one more than a volume may have copies, and room for some that come and go.
pub(crate) const MOST: u8 = 16;

/// Number of a child in the mirror's table; used again only after the child is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ChildSlot(pub(crate) u8);

/// A set of children.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChildSet(u16);

impl ChildSet {
    pub(crate) const NONE: ChildSet = ChildSet(0);

    pub(crate) fn one(slot: ChildSlot) -> ChildSet {
        ChildSet(1 << slot.0)
    }

    pub(crate) fn insert(&mut self, slot: ChildSlot) {
        self.0 |= 1 << slot.0;
    }

    pub(crate) fn remove(&mut self, slot: ChildSlot) {
        self.0 &= !(1 << slot.0);
    }

    pub(crate) fn contains(self, slot: ChildSlot) -> bool {
        self.0 >> slot.0 & 1 == 1
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// Those that both have.
    pub(crate) fn both(self, other: ChildSet) -> ChildSet {
        ChildSet(self.0 & other.0)
    }

    /// Those that one of them has.
    pub(crate) fn either(self, other: ChildSet) -> ChildSet {
        ChildSet(self.0 | other.0)
    }

    /// Those of this that `other` lacks.
    pub(crate) fn without(self, other: ChildSet) -> ChildSet {
        ChildSet(self.0 & !other.0)
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = ChildSlot> {
        let mut left = self;
        core::iter::from_fn(move || {
            let slot = u8::try_from(left.0.trailing_zeros()).map(ChildSlot).ok()?;
            (!left.is_empty()).then(|| left.remove(slot)).map(|()| slot)
        })
    }
}

impl FromIterator<ChildSlot> for ChildSet {
    fn from_iter<I: IntoIterator<Item = ChildSlot>>(slots: I) -> ChildSet {
        let mut set = ChildSet::NONE;
        slots.into_iter().for_each(|slot| set.insert(slot));
        set
    }
}
