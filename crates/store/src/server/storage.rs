//! Where the journal lives: a folder of files. Real, or simulated by tests that lose what was not
//! synced.
//!
//! A reader sees the kernel's page cache, which holds more than the disk: what was written and not
//! synced, and what a failed sync left behind. That somebody reads bytes proves nothing about the
//! disk.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
    path::PathBuf,
    time::UNIX_EPOCH,
};

/// Who may use the files of a store: it holds secrets and hashes of passwords.
pub(crate) const MODE: u32 = 0o600;

/// A folder. A change of names is seen at once, and is safe once `sync` returns.
pub(crate) trait Directory: Send + Sync {
    /// Opens a file to read and write, if it exists.
    fn open(&self, name: &str) -> io::Result<Option<Box<dyn StorageFile>>>;
    /// Makes an empty file, in place of what may be there.
    fn create(&self, name: &str) -> io::Result<Box<dyn StorageFile>>;
    /// Gives a file another name, in place of what may be there.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes all names durable.
    fn sync(&self) -> io::Result<()>;
}

/// Which file this is, among all that ever had its name: a copy of a file is born anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Birth {
    /// Its number in its file system.
    pub(crate) inode: u64,
    /// When it was made, in nanoseconds since 1970.
    pub(crate) nanos: u64,
}

/// A file. Bytes are safe once `sync` returns, and not before.
pub(crate) trait StorageFile: Send + Sync {
    /// Number of bytes.
    fn len(&self) -> io::Result<u64>;
    /// Which file it is; nothing if the file system does not say.
    fn birth(&self) -> io::Result<Option<Birth>>;
    /// Fills the buffer from the bytes at an offset, which must exist.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;
    /// Writes bytes at an offset.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Cuts the file off.
    fn truncate(&self, length: u64) -> io::Result<()>;
    /// Makes all bytes durable.
    fn sync(&self) -> io::Result<()>;
}

/// A folder of the file system.
#[derive(Debug)]
pub(crate) struct RealDirectory(PathBuf);

impl RealDirectory {
    /// The folder with this path, which must exist.
    pub(crate) fn new(path: PathBuf) -> Self {
        Self(path)
    }
}

impl Directory for RealDirectory {
    fn open(&self, name: &str) -> io::Result<Option<Box<dyn StorageFile>>> {
        match OpenOptions::new().read(true).write(true).open(self.0.join(name)) {
            Ok(file) => Ok(Some(Box::new(file))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn StorageFile>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true).mode(MODE);
        Ok(Box::new(options.open(self.0.join(name))?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.0.join(from), self.0.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.0.join(name))
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.0)?.sync_all()
    }
}

impl StorageFile for File {
    fn len(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn birth(&self) -> io::Result<Option<Birth>> {
        let metadata = self.metadata()?;
        let made = metadata.created().ok().and_then(|made| made.duration_since(UNIX_EPOCH).ok());
        let nanos = made.and_then(|made| u64::try_from(made.as_nanos()).ok());
        let nanos = nanos.filter(|nanos| *nanos > 0);
        Ok(nanos.map(|nanos| Birth { inode: metadata.ino(), nanos }))
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.read_exact_at(buffer, offset)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}
