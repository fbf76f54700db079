//! Reading a journal back, and telling a torn end from damage.

use std::io;

use super::{
    super::media::Media, ALIGN, FORMAT, FRAME_HEADER_LEN, FRAME_MAGIC, HEADER_LEN, HEADER_SPACE,
    Identity, Journal, MAGIC, Mark, frame_header, space,
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
    /// It cannot be read.
    #[error("it cannot be read")]
    Read(#[source] io::Error),
}

/// The frames of a journal, in order.
pub(crate) struct Frames {
    file: Box<dyn Media>,
    length: u64,
    identity: Identity,
    salt: u64,
    sequence: u64,
    at: u64,
}

/// What stands at a place of the file.
enum Found {
    Frame(Vec<u8>),
    NoFrame,
}

impl Frames {
    /// Begins to read.
    pub(crate) fn open(file: Box<dyn Media>) -> Result<Self, Damage> {
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
        Ok(Self { file, length, identity, salt, sequence: 1, at: HEADER_SPACE })
    }

    /// Reads on from a mark of a journal whose end is known, through a second handle of its file.
    pub(super) fn resume(journal: &Journal, file: Box<dyn Media>, from: Mark) -> Self {
        let (length, identity, salt) = (journal.end, journal.identity, journal.salt);
        Self { file, length, identity, salt, sequence: from.sequence, at: from.at }
    }

    /// Where the next frame begins.
    pub(crate) fn position(&self) -> u64 {
        self.at
    }

    /// The payload of the next frame; `None` at the end, torn or not.
    pub(crate) fn next_payload(&mut self) -> Result<Option<Vec<u8>>, Damage> {
        match self.frame_at(self.at)? {
            (sequence, Found::Frame(payload)) if sequence == self.sequence => {
                self.at += space((FRAME_HEADER_LEN + payload.len()).next_multiple_of(ALIGN));
                self.sequence += 1;
                Ok(Some(payload))
            }
            _ if self.later_frame_exists()? => Err(Damage::At(self.at)),
            _ => Ok(None),
        }
    }

    /// Ends reading and goes on to write behind the last good frame. What was torn is cut off.
    pub(crate) fn into_journal(self) -> io::Result<Journal> {
        self.file.truncate(self.at)?;
        Ok(Journal {
            file: self.file,
            identity: self.identity,
            salt: self.salt,
            sequence: self.sequence,
            end: self.at,
            allocated: self.at,
            buffer: Vec::new(),
        })
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
