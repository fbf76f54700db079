//! Where the journal lives: a folder of files. Real, or simulated by tests that lose what was not
//! synced.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::PathBuf,
};

/// A folder. A rename is durable when it returns, and so is everything in the renamed file that
/// was synced.
pub(crate) trait Folder: Send + Sync {
    /// Opens a file to read and write, if it exists.
    fn open(&self, name: &str) -> io::Result<Option<Box<dyn Media>>>;
    /// Makes an empty file, in place of what may be there.
    fn create(&self, name: &str) -> io::Result<Box<dyn Media>>;
    /// Gives a file another name, in place of what may be there.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;
}

/// A file. Bytes are safe once `sync` returns, and not before.
pub(crate) trait Media: Send + Sync {
    /// Number of bytes.
    fn len(&self) -> io::Result<u64>;
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
pub(crate) struct RealFolder(PathBuf);

impl RealFolder {
    /// The folder with this path, which must exist.
    pub(crate) fn new(path: PathBuf) -> Self {
        Self(path)
    }
}

impl Folder for RealFolder {
    fn open(&self, name: &str) -> io::Result<Option<Box<dyn Media>>> {
        match OpenOptions::new().read(true).write(true).open(self.0.join(name)) {
            Ok(file) => Ok(Some(Box::new(file))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn Media>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true);
        Ok(Box::new(options.open(self.0.join(name))?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.0.join(from), self.0.join(to))?;
        File::open(&self.0)?.sync_all()
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.0.join(name))
    }
}

impl Media for File {
    fn len(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
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
