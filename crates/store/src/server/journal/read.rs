//! Reading a journal back, and telling a torn end from damage.

use std::io;

use super::{
    super::storage::{Birth, StorageFile},
    ALIGN, FORMAT, FRAME_HEADER_LEN, FRAME_MAGIC, HEADER_LEN, HEADER_SPACE, Identity, Journal,
    MAGIC, Mark, UNBORN, frame_header, space,
};

/// What is wrong with a journal.
#[derive(Debug, thiserror::Error)]
pub enum Damage {
    /// The file is no journal, or its first bytes are damaged.
    #[error("it does not begin like a store's journal")]
    NoJournal,
    /// A newer program wrote it.
    #[error("it has format {0}, and this program knows formats up to {FORMAT}")]
    Newer(u32),
    /// Bytes in the middle are not what was written.
    #[error("it is damaged at byte {0}")]
    At(u64),
    /// Bytes in the middle are as if they had never been written.
    #[error(
        "a frame is missing at byte {0} and a later one is there: the disk lost what it had \
         called durable"
    )]
    Lost(u64),
    /// It cannot be read.
    #[error("it cannot be read")]
    Read(#[source] io::Error),
}

/// The frames of a journal, in order.
pub(crate) struct Frames {
    file: Box<dyn StorageFile>,
    length: u64,
    identity: Identity,
    salt: u64,
    sequence: u64,
    at: u64,
    /// Whether servers alone wrote this file.
    is_own: bool,
    /// Payload of the frame before `at`, and where that frame begins.
    last: Vec<u8>,
    last_at: u64,
}

/// What stands at a place of the file.
enum Found {
    Frame(Vec<u8>),
    NoFrame,
}

impl Frames {
    /// Begins to read.
    pub(crate) fn open(file: Box<dyn StorageFile>) -> Result<Self, Damage> {
        let length = file.len().map_err(Damage::Read)?;
        if length < HEADER_SPACE {
            return Err(Damage::NoJournal);
        }
        let mut header = [0; HEADER_LEN];
        file.read_at(0, &mut header).map_err(Damage::Read)?;
        if header[..8] != MAGIC {
            return Err(Damage::NoJournal);
        }
        // A newer format may have its checksum elsewhere, so the version comes first.
        let format = u32::from_le_bytes(part(&header, 8));
        if format > FORMAT {
            return Err(Damage::Newer(format));
        }
        if crc32c::crc32c(&header[..60]) != u32::from_le_bytes(part(&header, 60)) {
            return Err(Damage::NoJournal);
        }
        let identity = Identity {
            cluster: u64::from_le_bytes(part(&header, 16)),
            member: u64::from_le_bytes(part(&header, 24)),
        };
        let salt = u64::from_le_bytes(part(&header, 32));
        let written_for = Birth {
            inode: u64::from_le_bytes(part(&header, 40)),
            nanos: u64::from_le_bytes(part(&header, 48)),
        };
        let birth = file.birth().map_err(Damage::Read)?;
        let is_own = format == FORMAT && written_for != UNBORN && birth == Some(written_for);
        let (sequence, at) = (1, HEADER_SPACE);
        let (last, last_at) = (Vec::new(), at);
        Ok(Self { file, length, identity, salt, sequence, at, is_own, last, last_at })
    }

    /// Whether servers alone wrote this file: then a frame with another behind it is on the disk.
    pub(crate) fn is_own(&self) -> bool {
        self.is_own
    }

    /// Who the store is.
    pub(crate) fn identity(&self) -> Identity {
        self.identity
    }

    /// Reads on from a mark of a journal whose end is known, through a second handle of its file.
    pub(super) fn resume(journal: &Journal, file: Box<dyn StorageFile>, from: Mark) -> Self {
        let (length, identity, salt) = (journal.end, journal.identity, journal.salt);
        let Mark { at, sequence } = from;
        let (is_own, last, last_at) = (true, Vec::new(), at);
        Self { file, length, identity, salt, sequence, at, is_own, last, last_at }
    }

    /// Where the next frame begins.
    pub(crate) fn position(&self) -> u64 {
        self.at
    }

    /// The payload of the next frame; `None` at the end, torn or not.
    pub(crate) fn next_payload(&mut self) -> Result<Option<&[u8]>, Damage> {
        match self.frame_at(self.at)? {
            (sequence, Found::Frame(payload)) if sequence == self.sequence => {
                self.last_at = self.at;
                self.at += space((FRAME_HEADER_LEN + payload.len()).next_multiple_of(ALIGN));
                self.sequence += 1;
                self.last = payload;
                Ok(Some(&self.last))
            }
            _ if !self.later_frame_exists()? => Ok(None),
            _ if self.is_unwritten()? => Err(Damage::Lost(self.at)),
            _ => Err(Damage::At(self.at)),
        }
    }

    /// Ends reading and goes on to write behind the last good frame. What was torn is cut off, and
    /// all that was read is on the disk when this returns.
    ///
    /// The last frame is written again, from what was read: its writer may have died before it was
    /// synced, or its sync may have failed, after which the kernel shows pages that are not on the
    /// disk and calls them clean. To sync alone would write nothing then. The bytes are the same,
    /// so a crash on the way changes nothing.
    pub(crate) fn into_journal(self) -> io::Result<Journal> {
        self.file.truncate(self.at)?;
        let has_frame = self.last_at < self.at;
        let mut journal = Journal {
            file: self.file,
            identity: self.identity,
            salt: self.salt,
            sequence: self.sequence - u64::from(has_frame),
            end: self.last_at,
            allocated: self.at,
            buffer: Vec::new(),
        };
        if has_frame {
            journal.append_payload(&self.last)?;
        }
        journal.sync()?;
        Ok(journal)
    }

    /// Whether nothing was ever written where the next frame should begin.
    fn is_unwritten(&self) -> Result<bool, Damage> {
        let mut header = [0; FRAME_HEADER_LEN];
        let left = usize::try_from(self.length.saturating_sub(self.at)).unwrap_or(usize::MAX);
        let header = &mut header[..left.min(FRAME_HEADER_LEN)];
        self.file.read_at(self.at, header).map_err(Damage::Read)?;
        Ok(header.iter().all(|byte| *byte == 0))
    }

    fn frame_at(&self, at: u64) -> Result<(u64, Found), Damage> {
        let nothing = (0, Found::NoFrame);
        let payload_at = at + space(FRAME_HEADER_LEN);
        if payload_at > self.length {
            return Ok(nothing);
        }
        let mut header = [0; FRAME_HEADER_LEN];
        self.file.read_at(at, &mut header).map_err(Damage::Read)?;
        let length = u32::from_le_bytes(part(&header, 4));
        if header[..4] != FRAME_MAGIC || payload_at + u64::from(length) > self.length {
            return Ok(nothing);
        }
        let sequence = u64::from_le_bytes(part(&header, 8));
        if sequence < self.sequence {
            return Ok(nothing);
        }
        let Ok(size) = usize::try_from(length) else { return Ok(nothing) };
        let mut payload = vec![0; size];
        self.file.read_at(payload_at, &mut payload).map_err(Damage::Read)?;
        if frame_header(length, sequence, self.salt, &payload) != header {
            return Ok(nothing);
        }
        Ok((sequence, Found::Frame(payload)))
    }

    /// Whether a good frame stands behind a bad one: then the bad one was good once.
    fn later_frame_exists(&self) -> Result<bool, Damage> {
        const WINDOW: usize = 1 << 20;
        let mut window = vec![0; WINDOW];
        let mut at = self.at;
        while at < self.length {
            let size = usize::try_from(self.length - at).unwrap_or(WINDOW).min(WINDOW);
            let piece = &mut window[..size];
            self.file.read_at(at, piece).map_err(Damage::Read)?;
            for (place, chunk) in piece.chunks(ALIGN).enumerate() {
                if chunk.starts_with(&FRAME_MAGIC) {
                    let candidate = at + space(place * ALIGN);
                    if let (_, Found::Frame(_)) = self.frame_at(candidate)? {
                        return Ok(true);
                    }
                }
            }
            at += space(size);
        }
        Ok(false)
    }
}

fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut part = [0; N];
    part.copy_from_slice(&bytes[at..at + N]);
    part
}
