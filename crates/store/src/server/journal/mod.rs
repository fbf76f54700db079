//! The journal: one file of checksummed frames, each one group of entries that stand or fall
//! together. The bytes are described in `docs/format/store.md`.
//!
//! Invariants:
//! - A frame is synced before the next one is written, by the process that writes the next. So a
//!   frame with another behind it is on the disk; only of the last one nothing is known, and it is
//!   written and synced again before anybody sees it. At most the last frame is torn, and nobody
//!   was told that it succeeded.
//! - That holds for a file that servers wrote. A file that somebody put in place, known by its
//!   birth, is written anew.
//! - Damage before the last good frame is refused, never skipped.
//! - Behind the last frame there are only zeros, or bytes that can never be taken for a frame.
//!
//! Deliberately not here: what entries mean, when to sync, when to write the journal anew.

mod read;

use std::io;

pub use read::Damage;
pub(crate) use read::Frames;

use super::{
    entry::Entry,
    storage::{Birth, StorageFile},
};

/// Name of the journal in its folder.
pub(crate) const NAME: &str = "store.journal";
/// Version of the format; a greater one is refused.
pub(crate) const FORMAT: u32 = 3;

const MAGIC: [u8; 8] = *b"HFSTORE\n";
const HEADER_LEN: usize = 64;
const HEADER_SPACE: u64 = 64;
const FRAME_MAGIC: [u8; 4] = *b"FRM1";
const FRAME_HEADER_LEN: usize = 24;
/// Frames begin at multiples of this.
const ALIGN: usize = 8;
/// Zeros are written ahead in pieces of this size: to sync bytes that only overwrite others is much
/// quicker than to sync bytes that make the file longer. Tests cross the border often.
const AHEAD: usize = if cfg!(test) { 4 << 10 } else { 1 << 20 };

/// Of a file of which nothing is known.
const UNBORN: Birth = Birth { inode: 0, nanos: 0 };

/// Who this store is, in every answer's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Number of the cluster.
    pub(crate) cluster: u64,
    /// Number of the only member.
    pub(crate) member: u64,
}

/// A place between two frames.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    at: u64,
    sequence: u64,
}

/// The end of a journal, where frames are added.
pub(crate) struct Journal {
    file: Box<dyn StorageFile>,
    identity: Identity,
    salt: u64,
    sequence: u64,
    end: u64,
    /// Up to here the file has bytes, zeros behind `end`.
    allocated: u64,
    buffer: Vec<u8>,
}

impl Journal {
    /// Begins a journal in an empty file that is going to be a store's. Nothing is synced yet.
    /// `salt` must differ from that of any journal whose bytes the file system might hand back to
    /// us.
    pub(crate) fn create(
        file: Box<dyn StorageFile>,
        identity: Identity,
        salt: u64,
    ) -> io::Result<Self> {
        let birth = file.birth()?;
        Self::begin(file, identity, salt, birth)
    }

    /// Begins a journal in a file that is sent elsewhere: wherever it gets to, its frames prove
    /// nothing about the disk there.
    pub(crate) fn create_copy(
        file: Box<dyn StorageFile>,
        identity: Identity,
        salt: u64,
    ) -> io::Result<Self> {
        Self::begin(file, identity, salt, None)
    }

    fn begin(
        file: Box<dyn StorageFile>,
        identity: Identity,
        salt: u64,
        birth: Option<Birth>,
    ) -> io::Result<Self> {
        let birth = birth.unwrap_or(UNBORN);
        let mut header = [0; HEADER_LEN];
        header[..8].copy_from_slice(&MAGIC);
        header[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        header[16..24].copy_from_slice(&identity.cluster.to_le_bytes());
        header[24..32].copy_from_slice(&identity.member.to_le_bytes());
        header[32..40].copy_from_slice(&salt.to_le_bytes());
        header[40..48].copy_from_slice(&birth.inode.to_le_bytes());
        header[48..56].copy_from_slice(&birth.nanos.to_le_bytes());
        let crc = crc32c::crc32c(&header[..60]);
        header[60..].copy_from_slice(&crc.to_le_bytes());
        file.write_at(0, &header)?;
        let (end, allocated) = (HEADER_SPACE, HEADER_SPACE);
        Ok(Self { file, identity, salt, sequence: 1, end, allocated, buffer: Vec::new() })
    }

    /// Who this store is.
    pub(crate) fn identity(&self) -> Identity {
        self.identity
    }

    /// Bytes of the journal, without zeros written ahead.
    pub(crate) fn len(&self) -> u64 {
        self.end
    }

    /// Adds one frame. It is safe once [`Self::sync`] returns.
    pub(crate) fn append(&mut self, entries: &[Entry]) -> io::Result<()> {
        self.buffer.clear();
        self.buffer.resize(FRAME_HEADER_LEN, 0);
        for entry in entries {
            entry.encode(&mut self.buffer);
        }
        self.write_frame()
    }

    /// Adds a frame that was read from another journal.
    pub(crate) fn append_payload(&mut self, payload: &[u8]) -> io::Result<()> {
        self.buffer.clear();
        self.buffer.resize(FRAME_HEADER_LEN, 0);
        self.buffer.extend(payload);
        self.write_frame()
    }

    /// Makes all frames safe.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }

    /// Fills the file with zeros to a multiple of `unit` bytes, its new length.
    pub(crate) fn pad(&mut self, unit: u64) -> io::Result<u64> {
        let length = self.end.next_multiple_of(unit);
        self.file.truncate(self.end)?;
        let zeros = usize::try_from(length - self.end).map_err(io::Error::other)?;
        self.file.write_at(self.end, &vec![0; zeros])?;
        self.allocated = length;
        Ok(length)
    }

    /// Reads bytes of the file.
    pub(crate) fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read_at(offset, buffer)
    }

    /// The place behind the last frame, to read on from later.
    pub(crate) fn mark(&self) -> Mark {
        Mark { at: self.end, sequence: self.sequence }
    }

    /// Copies all frames of `old` behind a mark to the end of this journal. `file` is a second
    /// handle of the file of `old`.
    pub(crate) fn copy_tail(
        &mut self,
        old: &Self,
        file: Box<dyn StorageFile>,
        from: Mark,
    ) -> io::Result<()> {
        let mut frames = Frames::resume(old, file, from);
        while let Some(payload) = frames.next_payload().map_err(io::Error::other)? {
            self.append_payload(payload)?;
        }
        if frames.position() != old.end {
            return Err(io::Error::other("the old journal does not read back as it was written"));
        }
        Ok(())
    }

    fn write_frame(&mut self) -> io::Result<()> {
        let payload = self.buffer.len() - FRAME_HEADER_LEN;
        let length = u32::try_from(payload)
            .map_err(|_| io::Error::new(io::ErrorKind::FileTooLarge, "a frame over 4 GiB"))?;
        let header =
            frame_header(length, self.sequence, self.salt, &self.buffer[FRAME_HEADER_LEN..]);
        self.buffer[..FRAME_HEADER_LEN].copy_from_slice(&header);
        self.buffer.resize(self.buffer.len().next_multiple_of(ALIGN), 0);
        let end = self.end + space(self.buffer.len());
        if end > self.allocated {
            let zeros = vec![0; AHEAD];
            while self.allocated < end + space(AHEAD) {
                self.file.write_at(self.allocated, &zeros)?;
                self.allocated += space(AHEAD);
            }
        }
        self.file.write_at(self.end, &self.buffer)?;
        self.end = end;
        self.sequence += 1;
        Ok(())
    }
}

/// The bytes in front of a frame's payload.
fn frame_header(length: u32, sequence: u64, salt: u64, payload: &[u8]) -> [u8; FRAME_HEADER_LEN] {
    let mut header = [0; FRAME_HEADER_LEN];
    header[..4].copy_from_slice(&FRAME_MAGIC);
    header[4..8].copy_from_slice(&length.to_le_bytes());
    header[8..16].copy_from_slice(&sequence.to_le_bytes());
    let crc = crc32c::crc32c(&salt.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &header[..16]);
    let crc = crc32c::crc32c_append(crc, payload);
    header[16..20].copy_from_slice(&crc.to_le_bytes());
    header
}

/// A length in memory as a length in a file.
fn space(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}
