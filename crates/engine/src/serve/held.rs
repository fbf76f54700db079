//! The buffers of a connection's commands.
//!
//! Invariants:
//! - Each slot has at most one buffer here; it leaves with the transmit or the job that needs it.
//! - The sums are those of what is in the slots.

use nvme::target::Slot;
use reactor::{Buffer, Frozen};

use crate::stream::Stream;

/// The buffer of a slot.
pub(super) enum Held {
    Nothing,
    /// The host's data goes here.
    Filling(Buffer),
    /// The host's data, still where it was received.
    Arrived(Frozen),
    /// To be sent.
    Ready(Frozen),
    /// With a device that reads into it; so many bytes.
    Reading(usize),
    /// With a device otherwise, or being received into; so many bytes.
    Away(usize),
}

impl Held {
    fn bytes(&self) -> usize {
        match self {
            Held::Nothing => 0,
            Held::Filling(buffer) => buffer.len(),
            Held::Arrived(frozen) | Held::Ready(frozen) => frozen.len(),
            Held::Reading(bytes) | Held::Away(bytes) => *bytes,
        }
    }

    /// Bytes of it that are read ahead of what is sent.
    fn ahead(&self) -> usize {
        if matches!(self, Held::Ready(_) | Held::Reading(_)) { self.bytes() } else { 0 }
    }

    /// Whether a large payload is to come into it.
    fn is_large(&self) -> bool {
        matches!(self, Held::Filling(buffer) if buffer.len() >= Stream::LARGE)
    }
}

/// What all slots hold.
#[derive(Default)]
pub(super) struct Holdings {
    slots: Vec<Held>,
    bytes: usize,
    ahead: usize,
    large: usize,
}

impl Holdings {
    /// Bytes of all buffers, those that are away included.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes that were read, or are being read, and are not with the kernel yet.
    pub(super) fn ahead(&self) -> usize {
        self.ahead
    }

    /// Whether a large payload is expected.
    pub(super) fn expects_large(&self) -> bool {
        self.large > 0
    }

    pub(super) fn get_mut(&mut self, slot: Slot) -> Option<&mut Held> {
        self.slots.get_mut(slot.index())
    }

    /// Whether there is a buffer for the host's data.
    pub(super) fn is_filling(&self, slot: Slot) -> bool {
        matches!(self.slots.get(slot.index()), Some(Held::Filling(_)))
    }

    /// The first bytes of what is to be sent.
    pub(super) fn ready(&self, slot: Slot, len: usize) -> Option<Frozen> {
        match self.slots.get(slot.index()) {
            Some(Held::Ready(frozen)) => frozen.part(0, len),
            _ => None,
        }
    }

    /// Puts something into a slot; what was there is gone.
    pub(super) fn put(&mut self, slot: Slot, held: Held) {
        let index = slot.index();
        if self.slots.len() <= index {
            self.slots.resize_with(index + 1, || Held::Nothing);
        }
        self.swap(slot, held);
    }

    /// Takes what a slot has.
    pub(super) fn take(&mut self, slot: Slot) -> Held {
        self.swap(slot, Held::Nothing)
    }

    fn swap(&mut self, slot: Slot, held: Held) -> Held {
        let Some(place) = self.slots.get_mut(slot.index()) else { return Held::Nothing };
        self.bytes += held.bytes();
        self.ahead += held.ahead();
        self.large += usize::from(held.is_large());
        let before = core::mem::replace(place, held);
        self.bytes -= before.bytes();
        self.ahead -= before.ahead();
        self.large -= usize::from(before.is_large());
        before
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use reactor::{Arena, Class};

    #[test]
    fn the_sums_are_those_of_the_slots() {
        let arena = Arena::new(&[Class { bytes: 2 * Stream::LARGE, count: 2 }]).unwrap();
        let mut held = Holdings::default();
        let sums = |held: &Holdings| (held.bytes(), held.ahead(), held.expects_large());
        held.put(Slot(0), Held::Filling(arena.take(Stream::LARGE).unwrap()));
        assert_eq!(sums(&held), (Stream::LARGE, 0, true));
        held.put(Slot(0), Held::Away(10));
        held.put(Slot(1), Held::Reading(200));
        assert_eq!(sums(&held), (210, 200, false));
        held.put(Slot(1), Held::Ready(arena.take(3000).unwrap().freeze()));
        assert_eq!(sums(&held), (3010, 3000, false));
        held.take(Slot(0));
        held.take(Slot(1));
        assert_eq!(sums(&held), (0, 0, false));
    }
}
