//! Owned pieces of slots.
#![expect(unsafe_code, reason = "pieces turn addresses of the mapping into slices")]

use core::fmt;
use core::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::Memory;

/// An exclusive piece of a slot: may be written, split, given to the kernel to fill.
pub struct Buffer {
    piece: Piece,
}

/// A shared, read-only piece of a slot. Clones share the bytes.
pub struct SharedBuffer {
    piece: Piece,
}

/// `len` bytes from `start` of the mapping, inside `slot`, which it keeps.
struct Piece {
    memory: Arc<Memory>,
    slot: u32,
    start: usize,
    len: usize,
}

impl Buffer {
    pub(super) fn of_slot(memory: Arc<Memory>, slot: u32, start: usize, len: usize) -> Buffer {
        Buffer { piece: Piece { memory, slot, start, len } }
    }

    /// Cuts off everything from `at` on and returns it; `None` if it is shorter than that.
    pub fn split_off(&mut self, at: usize) -> Option<Buffer> {
        let rest = self.piece.len.checked_sub(at)?;
        let tail = self.piece.part(at, rest);
        self.piece.len = at;
        Some(Buffer { piece: tail })
    }

    /// Puts back what [`Buffer::split_off`] cut off; hands both back if they are no neighbours.
    pub fn join(mut self, tail: Buffer) -> Result<Buffer, (Buffer, Buffer)> {
        let (this, next) = (&self.piece, &tail.piece);
        let neighbours = Arc::ptr_eq(&this.memory, &next.memory)
            && this.slot == next.slot
            && this.start + this.len == next.start;
        if !neighbours {
            return Err((self, tail));
        }
        self.piece.len += tail.piece.len;
        Ok(self)
    }

    /// Drops everything after the first `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        self.piece.len = self.piece.len.min(len);
    }

    /// Gives up writing: from now on it can be shared.
    pub fn freeze(self) -> SharedBuffer {
        SharedBuffer { piece: self.piece }
    }

    /// Where the kernel shall write.
    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.piece.address()
    }
}

impl SharedBuffer {
    /// A part of it that shares the same bytes; `None` if it is not that long.
    pub fn part(&self, start: usize, len: usize) -> Option<SharedBuffer> {
        let fits = start.checked_add(len).is_some_and(|end| end <= self.piece.len);
        fits.then(|| SharedBuffer { piece: self.piece.part(start, len) })
    }

    /// Writable again, if nobody else holds any part of its slot.
    pub fn thaw(self) -> Result<Buffer, SharedBuffer> {
        if self.piece.memory.is_last_piece(self.piece.slot) {
            Ok(Buffer { piece: self.piece })
        } else {
            Err(self)
        }
    }
}

impl Piece {
    fn address(&self) -> *mut u8 {
        self.memory.mapping.base().wrapping_add(self.start)
    }

    fn part(&self, offset: usize, len: usize) -> Piece {
        self.memory.share(self.slot);
        let memory = Arc::clone(&self.memory);
        Piece { memory, slot: self.slot, start: self.start + offset, len }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: `start..start + len` lies in the mapping (`take_from` made it so, parts only
        // shrink), the mapping lives as long as `memory`, is always initialised, and nobody writes
        // to it: an exclusive piece overlaps no other, a frozen one only frozen ones, and a piece
        // that the kernel fills is inside its operation, out of reach of this call.
        unsafe { core::slice::from_raw_parts(self.address(), self.len) }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.memory.release(self.slot);
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.piece.bytes()
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `Piece::bytes`; and a `Buffer` overlaps no other piece, so this borrow of
        // it is the only way to these bytes.
        unsafe { core::slice::from_raw_parts_mut(self.piece.address(), self.piece.len) }
    }
}

impl Deref for SharedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.piece.bytes()
    }
}

impl Clone for SharedBuffer {
    fn clone(&self) -> SharedBuffer {
        SharedBuffer { piece: self.piece.part(0, self.piece.len) }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes of slot {})", self.piece.len, self.piece.slot)
    }
}

impl fmt::Debug for SharedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedBuffer({} bytes of slot {})", self.piece.len, self.piece.slot)
    }
}
