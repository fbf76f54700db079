//! The file: a header, blocks of records, an end. See `docs/format/store-export.md`.

use std::io::{self, Read, Write};

use bytes::Bytes;

const MAGIC: &[u8; 8] = b"HFEXPORT";
const VERSION: u32 = 1;
/// A block is closed once it holds this many bytes.
const BLOCK: usize = 64 << 10;
/// No key and no value is longer than this: ten times what servers take.
const LONGEST: usize = 16 << 20;
/// A block may exceed its size by one record.
const LARGEST_BLOCK: usize = BLOCK + 2 * LONGEST + 8;

/// Why a file cannot be imported.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// It is something else.
    #[error("this is not a store export")]
    NotAnExport,
    /// It was made by a later program.
    #[error("the store export has format version {found}; this program knows {VERSION}: update it")]
    Newer {
        /// Its version.
        found: u32,
    },
    /// Its end is missing.
    #[error("the store export ends after {offset} bytes, in the middle: it was cut off")]
    Truncated {
        /// How long it is.
        offset: u64,
    },
    /// Its bytes are not those that were written.
    #[error("the store export is damaged at byte {offset}")]
    Damaged {
        /// Where the damaged part begins.
        offset: u64,
    },
    /// It could not be read.
    #[error("cannot read the store export")]
    Io(#[from] io::Error),
}

/// One key with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) key: Bytes,
    pub(super) value: Bytes,
}

/// Reads a whole export and tells how many keys it holds, if it is sound.
pub fn verify(source: impl Read) -> Result<u64, FormatError> {
    let mut reader = Reader::new(source)?;
    while reader.next()?.is_some() {}
    Ok(reader.keys)
}

/// Writes an export.
pub(super) struct Writer<W> {
    out: W,
    block: Vec<u8>,
    keys: u64,
    crc: u32,
}

impl<W: Write> Writer<W> {
    pub(super) fn new(mut out: W) -> io::Result<Writer<W>> {
        let mut header = Vec::with_capacity(16);
        header.extend_from_slice(MAGIC);
        header.extend_from_slice(&VERSION.to_le_bytes());
        let crc = crc32c::crc32c(&header);
        header.extend_from_slice(&crc.to_le_bytes());
        out.write_all(&header)?;
        Ok(Writer { out, block: Vec::new(), keys: 0, crc })
    }

    pub(super) fn push(&mut self, record: &Record) -> io::Result<()> {
        let length = |bytes: &Bytes| match u32::try_from(bytes.len()) {
            Ok(length) if bytes.len() <= LONGEST => Ok(length),
            _ => Err(io::Error::other("a key or a value is longer than the format allows")),
        };
        let (key, value) = (length(&record.key)?, length(&record.value)?);
        self.block.extend_from_slice(&key.to_le_bytes());
        self.block.extend_from_slice(&value.to_le_bytes());
        self.block.extend_from_slice(&record.key);
        self.block.extend_from_slice(&record.value);
        self.keys += 1;
        if self.block.len() >= BLOCK { self.close_block() } else { Ok(()) }
    }

    pub(super) fn finish(mut self) -> io::Result<u64> {
        if !self.block.is_empty() {
            self.close_block()?;
        }
        self.block.extend_from_slice(&self.keys.to_le_bytes());
        self.write_block(0)?;
        self.out.flush()?;
        Ok(self.keys)
    }

    fn close_block(&mut self) -> io::Result<()> {
        let length = u32::try_from(self.block.len()).map_err(io::Error::other)?;
        self.write_block(length)
    }

    /// The checksum runs on from block to block: a block that is missing or in another place shows.
    fn write_block(&mut self, length: u32) -> io::Result<()> {
        let length = length.to_le_bytes();
        self.crc = crc32c::crc32c_append(self.crc, &length);
        self.crc = crc32c::crc32c_append(self.crc, &self.block);
        self.out.write_all(&length)?;
        self.out.write_all(&self.block)?;
        self.out.write_all(&self.crc.to_le_bytes())?;
        self.block.clear();
        Ok(())
    }
}

/// Reads an export.
pub(super) struct Reader<R> {
    source: R,
    offset: u64,
    crc: u32,
    block: Bytes,
    keys: u64,
    ended: bool,
}

impl<R: Read> Reader<R> {
    pub(super) fn new(source: R) -> Result<Reader<R>, FormatError> {
        let mut reader =
            Reader { source, offset: 0, crc: 0, block: Bytes::new(), keys: 0, ended: false };
        let magic: [u8; 8] = match reader.array() {
            Err(FormatError::Truncated { .. }) => return Err(FormatError::NotAnExport),
            other => other?,
        };
        if &magic != MAGIC {
            return Err(FormatError::NotAnExport);
        }
        let version: [u8; 4] = reader.array()?;
        reader.crc = crc32c::crc32c_append(crc32c::crc32c(&magic), &version);
        reader.check(0)?;
        match u32::from_le_bytes(version) {
            VERSION => Ok(reader),
            0 => Err(FormatError::Damaged { offset: 0 }),
            found => Err(FormatError::Newer { found }),
        }
    }

    /// The next record, or the sound end.
    pub(super) fn next(&mut self) -> Result<Option<Record>, FormatError> {
        if self.block.is_empty() && !self.ended {
            self.next_block()?;
        }
        if self.ended {
            return Ok(None);
        }
        // The checksum of the block was right: what does not fit now was written wrong.
        let damaged = FormatError::Damaged { offset: self.offset };
        let Some((key, value)) = self.lengths() else { return Err(damaged) };
        if self.block.len() < 8 + key + value {
            return Err(damaged);
        }
        let _lengths = self.block.split_to(8);
        let record = Record { key: self.block.split_to(key), value: self.block.split_to(value) };
        self.keys += 1;
        Ok(Some(record))
    }

    fn lengths(&self) -> Option<(usize, usize)> {
        let length = |from: usize| {
            let bytes = self.block.get(from..from + 4)?.try_into().ok()?;
            let length = usize::try_from(u32::from_le_bytes(bytes)).ok()?;
            (length <= LONGEST).then_some(length)
        };
        Some((length(0)?, length(4)?))
    }

    fn next_block(&mut self) -> Result<(), FormatError> {
        let start = self.offset;
        let length: [u8; 4] = self.array()?;
        self.crc = crc32c::crc32c_append(self.crc, &length);
        if length == [0; 4] {
            return self.end(start);
        }
        let length = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
        if length > LARGEST_BLOCK {
            return Err(FormatError::Damaged { offset: start });
        }
        let mut block = vec![0; length];
        self.fill(&mut block)?;
        self.crc = crc32c::crc32c_append(self.crc, &block);
        self.check(start)?;
        self.block = Bytes::from(block);
        Ok(())
    }

    fn end(&mut self, start: u64) -> Result<(), FormatError> {
        let keys: [u8; 8] = self.array()?;
        self.crc = crc32c::crc32c_append(self.crc, &keys);
        self.check(start)?;
        let mut beyond = [0];
        let more = self.source.read(&mut beyond)? > 0;
        if more || u64::from_le_bytes(keys) != self.keys {
            return Err(FormatError::Damaged { offset: start });
        }
        self.ended = true;
        Ok(())
    }

    fn check(&mut self, start: u64) -> Result<(), FormatError> {
        let want = self.crc;
        if u32::from_le_bytes(self.array()?) != want {
            return Err(FormatError::Damaged { offset: start });
        }
        Ok(())
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn fill(&mut self, mut bytes: &mut [u8]) -> Result<(), FormatError> {
        while !bytes.is_empty() {
            match self.source.read(bytes) {
                Ok(0) => return Err(FormatError::Truncated { offset: self.offset }),
                Ok(read) => {
                    self.offset += u64::try_from(read).unwrap_or(u64::MAX);
                    bytes = bytes.get_mut(read..).unwrap_or_default();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
