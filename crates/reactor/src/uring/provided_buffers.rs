//! Buffers that lie ready for the kernel to receive into: it picks one when data is there, so an
//! idle connection costs no memory.
#![expect(unsafe_code, reason = "a ring of descriptors shared with the kernel")]

use std::io;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::IoUring;
use io_uring::types::BufRingEntry;

use crate::memory::{Arena, Buffer, Mapping};

/// The one group of buffers of a ring.
pub(super) const GROUP: u16 = 0;

#[derive(Debug)]
pub(super) struct ProvidedBuffers {
    descriptors: Mapping,
    entries: u16,
    tail: u16,
    /// By buffer id: the buffer the kernel may fill.
    lent: Box<[Option<Buffer>]>,
    idle_ids: Vec<u16>,
    /// How many are to lie ready. The kernel uses them in turn, so few stay in the cache; it
    /// becomes more whenever they were too few.
    ready: usize,
    bytes: usize,
}

/// How many lie ready at first.
const READY: usize = 2;

impl ProvidedBuffers {
    /// Registers a ring of `entries` buffers (a power of two) of `bytes` each, all idle as yet.
    pub(super) fn new(ring: &IoUring, entries: u16, bytes: usize) -> io::Result<ProvidedBuffers> {
        let descriptors = Mapping::new(usize::from(entries) * size_of::<BufRingEntry>())?;
        let address = u64::try_from(descriptors.base().expose_provenance())
            .map_err(|_| io::ErrorKind::Unsupported)?;
        // SAFETY: page-aligned, of the size that `entries` needs, and unmapped only with this
        // value, which the reactor drops after its ring.
        unsafe { ring.submitter().register_buf_ring_with_flags(address, entries, GROUP, 0)? };
        Ok(ProvidedBuffers {
            descriptors,
            entries,
            tail: 0,
            lent: (0..entries).map(|_| None).collect(),
            idle_ids: (0..entries).collect(),
            ready: READY.min(usize::from(entries)),
            bytes,
        })
    }

    /// A receive found no buffer: more are to lie ready from now on.
    pub(super) fn want_more(&mut self) {
        self.ready = (2 * self.ready).min(usize::from(self.entries));
    }

    fn lent(&self) -> usize {
        usize::from(self.entries).saturating_sub(self.idle_ids.len())
    }

    /// Lends buffers until enough lie ready, if the arena has them. Returns whether any does.
    pub(super) fn refill(&mut self, arena: &Arena) -> bool {
        let before = self.tail;
        while self.lent() < self.ready
            && let Some(id) = self.idle_ids.last().copied()
            && let Some(mut buffer) = arena.take(self.bytes)
        {
            self.idle_ids.pop();
            self.describe(&mut buffer, id);
            if let Some(place) = self.lent.get_mut(usize::from(id)) {
                *place = Some(buffer);
            }
        }
        if self.tail != before {
            self.publish();
        }
        self.lent() > 0
    }

    /// Takes back buffer `id`, which now holds `len` received bytes.
    pub(super) fn claim(&mut self, id: u16, len: usize) -> Option<Buffer> {
        let mut buffer = self.lent.get_mut(usize::from(id))?.take()?;
        self.idle_ids.push(id);
        buffer.truncate(len);
        Some(buffer)
    }

    fn describe(&mut self, buffer: &mut Buffer, id: u16) {
        let place = usize::from(self.tail & (self.entries - 1));
        let entry = self.first().wrapping_add(place);
        let address = u64::try_from(buffer.as_mut_ptr().expose_provenance()).unwrap_or(0);
        // SAFETY: `place` is below `entries`, so inside the mapping, which is aligned for it. The
        // kernel reads entries only up to the published tail, which this one lies beyond. The
        // tail itself shares entry 0 with fields that are not written here.
        let entry = unsafe { &mut *entry };
        entry.set_addr(address);
        entry.set_len(u32::try_from(buffer.len()).unwrap_or(u32::MAX));
        entry.set_bid(id);
        self.tail = self.tail.wrapping_add(1);
    }

    fn first(&self) -> *mut BufRingEntry {
        self.descriptors.base().cast()
    }

    fn publish(&self) {
        // SAFETY: this is the start of the registered ring.
        let tail = unsafe { BufRingEntry::tail(self.first()) };
        // SAFETY: the kernel reads this 16-bit number, aligned, only as an atomic; nobody here
        // holds a reference to it.
        let tail = unsafe { AtomicU16::from_ptr(tail.cast_mut()) };
        tail.store(self.tail, Ordering::Release);
    }
}
