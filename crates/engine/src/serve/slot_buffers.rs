//! The buffers of a connection's commands.
//!
//! Invariants:
//! - Each slot has at most one buffer here; it leaves with the transmit or the job that needs it.
//! - The sums are those of what is in the slots.

use nvme::target::Slot;
use reactor::{Buffer, SharedBuffer};

use crate::stream::Stream;

/// The buffer of a slot.
pub(super) enum SlotBuffer {
    Nothing,
    /// The host's data goes here.
    Filling(Buffer),
    /// The host's data, still where it was received.
    Arrived(SharedBuffer),
    /// To be sent.
    Ready(SharedBuffer),
    /// With a device, or being received into; so many bytes.
    Away(usize),
}

impl SlotBuffer {
    fn bytes(&self) -> usize {
        match self {
            SlotBuffer::Nothing => 0,
            SlotBuffer::Filling(buffer) => buffer.len(),
            SlotBuffer::Arrived(frozen) | SlotBuffer::Ready(frozen) => frozen.len(),
            SlotBuffer::Away(bytes) => *bytes,
        }
    }

    /// Whether a large payload is to come into it.
    fn is_large(&self) -> bool {
        matches!(self, SlotBuffer::Filling(buffer) if buffer.len() >= Stream::LARGE)
    }
}

/// What all slots hold.
#[derive(Default)]
pub(super) struct SlotBuffers {
    slots: Vec<SlotBuffer>,
    bytes: usize,
    large: usize,
}

impl SlotBuffers {
    /// Bytes of all buffers, those that are away included.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether a large payload is expected.
    pub(super) fn expects_large(&self) -> bool {
        self.large > 0
    }

    pub(super) fn get_mut(&mut self, slot: Slot) -> Option<&mut SlotBuffer> {
        self.slots.get_mut(slot.index())
    }

    /// Whether there is a buffer for the host's data.
    pub(super) fn is_filling(&self, slot: Slot) -> bool {
        matches!(self.slots.get(slot.index()), Some(SlotBuffer::Filling(_)))
    }

    /// The first bytes of what is to be sent.
    pub(super) fn ready(&self, slot: Slot, len: usize) -> Option<SharedBuffer> {
        match self.slots.get(slot.index()) {
            Some(SlotBuffer::Ready(frozen)) => frozen.part(0, len),
            _ => None,
        }
    }

    /// Puts something into a slot; what was there is gone.
    pub(super) fn put(&mut self, slot: Slot, held: SlotBuffer) {
        let index = slot.index();
        if self.slots.len() <= index {
            self.slots.resize_with(index + 1, || SlotBuffer::Nothing);
        }
        self.swap(slot, held);
    }

    /// Takes what a slot has.
    pub(super) fn take(&mut self, slot: Slot) -> SlotBuffer {
        self.swap(slot, SlotBuffer::Nothing)
    }

    fn swap(&mut self, slot: Slot, held: SlotBuffer) -> SlotBuffer {
        let Some(place) = self.slots.get_mut(slot.index()) else { return SlotBuffer::Nothing };
        self.bytes += held.bytes();
        self.large += usize::from(held.is_large());
        let before = core::mem::replace(place, held);
        self.bytes -= before.bytes();
        self.large -= usize::from(before.is_large());
        before
    }
}
