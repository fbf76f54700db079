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
    /// With a device, or being received into; so many bytes.
    Away(usize),
}

impl Held {
    fn bytes(&self) -> usize {
        match self {
            Held::Nothing => 0,
            Held::Filling(buffer) => buffer.len(),
            Held::Arrived(frozen) | Held::Ready(frozen) => frozen.len(),
            Held::Away(bytes) => *bytes,
        }
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
    large: usize,
}

impl Holdings {
    /// Bytes of all buffers, those that are away included.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
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
        self.large += usize::from(held.is_large());
        let before = core::mem::replace(place, held);
        self.bytes -= before.bytes();
        self.large -= usize::from(before.is_large());
        before
    }
}
