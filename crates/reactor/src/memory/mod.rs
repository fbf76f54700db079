//! Buffers: pinned memory in slots of a few sizes, handed out as owned pieces.
//!
//! Invariants:
//! - Two [`Buffer`]s never overlap, and no [`SharedBuffer`] overlaps a `Buffer`: a piece is either
//!   exclusive and writable or shared and read-only.
//! - A slot returns to its class when the last piece of it is dropped, on whatever thread.
//! - Every slot starts on a page, so that direct I/O takes it.
//! - All memory is mapped and touched at the start; taking and returning allocates nothing.
//!
//! An empty class is not an error: [`Arena::take`] says `None`, and the caller waits until pieces
//! come back.

mod buffer;
mod free_list;
mod mapping;
mod nontemporal;
mod prefetch;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

pub use buffer::{Buffer, SharedBuffer};
use free_list::FreeList;
pub(crate) use mapping::Mapping;
pub use nontemporal::copy_nontemporal;
pub(crate) use prefetch::prefetch;

/// Alignment of every slot, and the unit of slot sizes.
pub const PAGE: usize = 4096;

/// The largest arena: what one registered buffer of io_uring can hold.
const LARGEST: usize = 1 << 30;

/// So many slots of that size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class {
    /// Size of a slot, a multiple of [`PAGE`].
    pub bytes: usize,
    /// How many of them.
    pub count: u32,
}

/// Why an arena could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ArenaError {
    /// The sizes make no arena.
    #[error(
        "buffer classes {classes:?} are not supported; \
         use ascending multiples of 4096 bytes, together at most 1 GiB"
    )]
    Classes {
        /// What was asked for.
        classes: Vec<Class>,
    },
    /// The kernel gave no memory.
    #[error("cannot map {bytes} bytes for buffers; lower the buffer memory")]
    Map {
        /// How much was asked for.
        bytes: usize,
        /// What the kernel said.
        source: std::io::Error,
    },
}

/// The memory that buffers are taken from. Clones are the same arena.
#[derive(Clone, Debug)]
pub struct Arena {
    memory: Arc<Memory>,
}

#[derive(Debug)]
struct Memory {
    mapping: Mapping,
    ranges: Box<[Range]>,
    /// Pieces alive per slot.
    pieces: Box<[AtomicU32]>,
}

/// The slots of one class.
#[derive(Debug)]
struct Range {
    slot_bytes: usize,
    first_slot: u32,
    count: u32,
    start: usize,
    free: FreeList,
}

impl Arena {
    /// Whether all of it is within what can be registered.
    pub(crate) fn can_be(classes: &[Class]) -> bool {
        let bytes = |class: &Class| class.bytes.checked_mul(usize::try_from(class.count).ok()?);
        let all = classes.iter().map(bytes).try_fold(0usize, |sum, of| sum.checked_add(of?));
        all.is_some_and(|all| all <= LARGEST)
    }

    /// Maps and touches all the memory.
    pub fn new(classes: &[Class]) -> Result<Arena, ArenaError> {
        let bad = || ArenaError::Classes { classes: classes.to_vec() };
        let (mut start, mut first_slot, mut previous) = (0usize, 0u32, 0usize);
        let mut ranges = Vec::new();
        for class in classes {
            let count = usize::try_from(class.count).map_err(|_| bad())?;
            if class.bytes <= previous || class.bytes % PAGE != 0 || count == 0 {
                return Err(bad());
            }
            let bytes = class.bytes.checked_mul(count).ok_or_else(bad)?;
            let end = start.checked_add(bytes).filter(|end| *end <= LARGEST).ok_or_else(bad)?;
            ranges.push(Range {
                slot_bytes: class.bytes,
                first_slot,
                count: class.count,
                start,
                free: FreeList::full(class.count),
            });
            previous = class.bytes;
            first_slot = first_slot.checked_add(class.count).ok_or_else(bad)?;
            start = end;
        }
        if start == 0 {
            return Err(bad());
        }
        let mapping =
            Mapping::new(start).map_err(|source| ArenaError::Map { bytes: start, source })?;
        let pieces = (0..first_slot).map(|_| AtomicU32::new(0)).collect();
        Ok(Arena { memory: Arc::new(Memory { mapping, ranges: ranges.into(), pieces }) })
    }

    /// A buffer of `bytes` bytes from the smallest class that holds them, or the next larger one;
    /// `None` while both are used up, and always if no class is large enough.
    ///
    /// It holds whatever its last user left there.
    pub fn take(&self, bytes: usize) -> Option<Buffer> {
        let fitting = self.memory.ranges.iter().filter(|range| range.slot_bytes >= bytes);
        fitting.take(2).find_map(|range| self.take_from(range, bytes))
    }

    /// The largest buffer it can ever give.
    pub fn largest(&self) -> usize {
        self.memory.ranges.last().map_or(0, |range| range.slot_bytes)
    }

    /// Bytes in slots that are free right now. Exact only while nobody takes or returns.
    pub fn free_bytes(&self) -> usize {
        self.memory.ranges.iter().map(|range| range.free.count() * range.slot_bytes).sum()
    }

    /// All its bytes.
    pub fn bytes(&self) -> usize {
        self.memory.mapping.len()
    }

    /// Where it lies, to register it with the kernel.
    pub(crate) fn extent(&self) -> (*mut u8, usize) {
        (self.memory.mapping.base(), self.memory.mapping.len())
    }

    /// Whether `piece` is memory of this arena.
    pub(crate) fn holds(&self, piece: *const u8) -> bool {
        let (base, len) = self.extent();
        piece.addr().wrapping_sub(base.addr()) < len
    }

    fn take_from(&self, range: &Range, bytes: usize) -> Option<Buffer> {
        let local = range.free.pop()?;
        let slot = range.first_slot + local;
        self.memory.count(slot).store(1, Ordering::Relaxed);
        let start = range.start + range.slot_bytes * usize::try_from(local).ok()?;
        Some(Buffer::of_slot(Arc::clone(&self.memory), slot, start, bytes))
    }
}

impl Memory {
    fn count(&self, slot: u32) -> &AtomicU32 {
        // Slot numbers come from `take_from` only, which keeps them in range.
        let index = usize::try_from(slot).unwrap_or(usize::MAX);
        self.pieces.get(index).unwrap_or_else(|| unreachable!("slot {slot} is not in this arena"))
    }

    fn share(&self, slot: u32) {
        self.count(slot).fetch_add(1, Ordering::Relaxed);
    }

    fn is_last_piece(&self, slot: u32) -> bool {
        self.count(slot).load(Ordering::Acquire) == 1
    }

    /// Ends one piece; the slot goes back with the last one.
    fn release(&self, slot: u32) {
        if self.count(slot).fetch_sub(1, Ordering::AcqRel) == 1 {
            let home =
                self.ranges.iter().find(|range| slot.wrapping_sub(range.first_slot) < range.count);
            if let Some(range) = home {
                range.free.push(slot - range.first_slot);
            }
        }
    }
}

#[cfg(test)]
mod tests;
