//! A block command inside a pool, with its bytes.

use std::ops::Range;
use std::rc::Rc;

use block::Completion;
use pool::Id;
use reactor::{Buffer, Key, PAGE, SharedBuffer};

use super::Ticket;
use super::cipher::Cipher;
use crate::counters::OpTimer;
use crate::device::Data;

/// A command under way in a pool.
#[derive(Debug)]
pub(super) struct PoolCommand {
    pub(super) owner: Submitter,
    /// For which replica or snapshot, and what counts.
    pub(super) counted: (Id, OpTimer),
    pub(super) bytes: Bytes,
    /// How its blocks are encrypted.
    sealed: Option<BlockCipher>,
    /// What the owner gave to be written, if something else is.
    plain: Option<SharedBuffer>,
}

/// Who is told how a command went.
#[derive(Clone, Copy, Debug)]
pub(super) enum Submitter {
    /// Whoever has this number at a device.
    Device(Key),
    /// Whoever ordered it.
    Order(Ticket),
}

/// How the blocks of a command are encrypted.
#[derive(Clone, Debug)]
pub(super) struct BlockCipher {
    pub(super) cipher: Rc<Cipher>,
    /// Number of its first block.
    pub(super) first: u64,
}

impl PoolCommand {
    /// Encrypts what is to be written, into a buffer from `take`; hands the data back if there is
    /// none, or the pool has no such command.
    pub(super) fn new(
        (owner, counted): (Submitter, (Id, OpTimer)),
        sealed: Option<BlockCipher>,
        data: Data,
        take: impl FnOnce(usize) -> Option<Buffer>,
    ) -> Result<PoolCommand, Data> {
        let (bytes, plain) = match (Bytes::of(data)?, &sealed) {
            (Bytes::Given(plain), Some(BlockCipher { cipher, first })) => {
                let Some(mut buffer) = take(plain.len()) else { return Err(Data::Bytes(plain)) };
                buffer.copy_from_slice(&plain);
                cipher.encrypt(*first, &mut buffer);
                (Bytes::Given(buffer.freeze()), Some(plain))
            }
            (bytes, _) => (bytes, None),
        };
        Ok(PoolCommand { owner, counted, bytes, sealed, plain })
    }

    /// Part of what was read came from a disk; `start` is where it belongs, in bytes.
    pub(super) fn arrived(&mut self, start: usize, mut buffer: Buffer) {
        let Bytes::Fill(fragments) = &mut self.bytes else { return };
        if let Some(BlockCipher { cipher, first }) = &self.sealed {
            let blocks = u64::try_from(start / PAGE).unwrap_or(0);
            cipher.decrypt(first.saturating_add(blocks), &mut buffer);
        }
        fragments.put(start, buffer);
    }

    /// The data that went in; of a read, filled.
    pub(super) fn into_data(self) -> Data {
        match self.plain {
            Some(plain) => Data::Bytes(plain),
            None => self.bytes.into_data(),
        }
    }
}

/// A command that came out of a pool.
#[derive(Debug)]
pub(crate) struct CompletedCommand {
    /// Who put it in.
    pub(crate) owner: Key,
    /// How it went.
    pub(crate) completion: Completion,
    /// The data that went in; of a read, filled.
    pub(crate) data: Data,
}

/// The bytes of a command.
#[derive(Debug)]
pub(super) enum Bytes {
    None,
    Fill(Fragments),
    Given(SharedBuffer),
}

impl Bytes {
    pub(super) fn of(data: Data) -> Result<Bytes, Data> {
        Ok(match data {
            Data::None => Bytes::None,
            Data::Fill(buffer) => Bytes::Fill(Fragments::new(buffer)),
            Data::Bytes(bytes) => Bytes::Given(bytes),
            other @ (Data::Both(_) | Data::Found(_)) => return Err(other),
        })
    }

    fn into_data(self) -> Data {
        match self {
            Bytes::None => Data::None,
            Bytes::Fill(fragments) => fragments.into_whole().map_or(Data::None, Data::Fill),
            Bytes::Given(bytes) => Data::Bytes(bytes),
        }
    }

    /// What a write writes.
    pub(super) fn given(&self) -> &[u8] {
        match self {
            Bytes::Given(bytes) => bytes,
            _ => &[],
        }
    }
}

/// The buffer of a read. Parts of it are with the disks; nearly always it is one part.
#[derive(Debug)]
pub(super) struct Fragments {
    first: Fragment,
    /// Those behind the first, in order.
    more: Vec<Fragment>,
}

#[derive(Debug)]
struct Fragment {
    start: usize,
    len: usize,
    /// None while a disk has it.
    buffer: Option<Buffer>,
}

impl Fragments {
    fn new(buffer: Buffer) -> Fragments {
        let first = Fragment { start: 0, len: buffer.len(), buffer: Some(buffer) };
        Fragments { first, more: Vec::new() }
    }

    /// Takes out a part.
    pub(super) fn take(&mut self, part: Range<usize>) -> Option<Buffer> {
        let (start, len) = (part.start, part.len());
        if (start, len) == (self.first.start, self.first.len) {
            return self.first.buffer.take();
        }
        self.cut(start);
        self.cut(part.end);
        self.all().find(|fragment| fragment.start == start)?.buffer.take()
    }

    /// Puts back what was taken.
    pub(super) fn put(&mut self, start: usize, buffer: Buffer) {
        if let Some(home) = self.all().find(|fragment| fragment.start == start) {
            home.buffer = Some(buffer);
        }
    }

    /// Fills a range with zeros.
    pub(super) fn zero(&mut self, part: Range<usize>) {
        let start = part.start;
        if let Some(mut buffer) = self.take(part) {
            buffer.fill(0);
            self.put(start, buffer);
        }
    }

    /// The whole buffer, if all of it is back.
    fn into_whole(self) -> Option<Buffer> {
        let mut whole = self.first.buffer?;
        for fragment in self.more {
            whole = whole.join(fragment.buffer?).ok()?;
        }
        Some(whole)
    }

    fn all(&mut self) -> impl Iterator<Item = &mut Fragment> {
        core::iter::once(&mut self.first).chain(&mut self.more)
    }

    /// Makes a fragment begin at `at`.
    fn cut(&mut self, at: usize) {
        let inside =
            |fragment: &&mut Fragment| fragment.start < at && at < fragment.start + fragment.len;
        let Some(fragment) = self.all().find(inside) else { return };
        let Some(buffer) = &mut fragment.buffer else { return };
        let keep = at - fragment.start;
        let Some(tail) = buffer.split_off(keep) else { return };
        let len = fragment.len - keep;
        fragment.len = keep;
        let place = self.more.partition_point(|fragment| fragment.start < at);
        self.more.insert(place, Fragment { start: at, len, buffer: Some(tail) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use reactor::{Arena, Class};

    #[test]
    fn parts_come_back_as_the_whole_whatever_the_order() {
        let arena = Arena::new(&[Class { bytes: 2 * PAGE, count: 1 }]).unwrap();
        let mut buffer = arena.take(8).unwrap();
        buffer.copy_from_slice(b"abcdefgh");
        let mut fragments = Fragments::new(buffer);
        fragments.zero(2..4);
        let mut tail = fragments.take(6..8).unwrap();
        let head = fragments.take(0..2).unwrap();
        assert!(fragments.take(0..2).is_none(), "a disk has it");
        tail.copy_from_slice(b"YZ");
        fragments.put(6, tail);
        fragments.put(0, head);
        assert_eq!(&*fragments.into_whole().unwrap(), b"ab\0\0efYZ");
    }

    #[test]
    fn what_is_not_all_there_is_not_handed_out() {
        let arena = Arena::new(&[Class { bytes: 2 * PAGE, count: 1 }]).unwrap();
        let mut fragments = Fragments::new(arena.take(8).unwrap());
        let part = fragments.take(4..8).unwrap();
        assert!(fragments.into_whole().is_none());
        drop(part);
    }
}
