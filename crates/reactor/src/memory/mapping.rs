//! A private anonymous mapping.
#![expect(unsafe_code, reason = "memory that the kernel reads and writes cannot be borrowed")]

use core::ptr::NonNull;
use std::io;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Page-aligned memory, zero at first, unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is only an address and a length. Who may touch which bytes when is decided by
// the pieces made from it (see `buffer`), which are exclusive or read-only.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` gives out only the address.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes, and touches them so that no page fault is left for later.
    pub(crate) fn new(len: usize) -> io::Result<Mapping> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a null hint and no MAP_FIXED: the kernel picks a range nobody uses.
        let base =
            unsafe { mmap_anonymous(core::ptr::null_mut(), len, access, MapFlags::PRIVATE)? };
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let mapping = Mapping { base, len };
        // Large pages if the machine has them; without, everything works as well.
        // SAFETY: the range is ours, and this advice does not change its contents.
        let _ = unsafe { madvise(base.as_ptr().cast(), len, Advice::LinuxHugepage) };
        // SAFETY: as above. An older kernel without it faults the pages in when first used.
        let _ = unsafe { madvise(base.as_ptr().cast(), len, Advice::LinuxPopulateWrite) };
        Ok(mapping)
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length, and dropped only when the last piece is gone:
        // pieces hold the arena that holds this.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}
