//! What went wrong between us and the kernel: object, operation, meaning, remedy.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// A call that the kernel, or a tool, did not carry out.
#[derive(Debug)]
pub struct SystemError {
    operation: &'static str,
    object: PathBuf,
    meaning: Option<String>,
    remedy: Option<String>,
    source: Option<io::Error>,
}

impl SystemError {
    /// `operation` reads on to `object`: "mount /mnt/data".
    pub(crate) fn new(operation: &'static str, object: &Path, source: io::Error) -> SystemError {
        let (meaning, remedy) = source.raw_os_error().map_or((None, None), explained);
        SystemError {
            operation,
            object: object.to_owned(),
            meaning: meaning.map(str::to_owned),
            remedy: remedy.map(str::to_owned),
            source: Some(source),
        }
    }

    /// Refused by us: no call was made, or its result is not what was asked for.
    pub(crate) fn refused(
        operation: &'static str,
        object: &Path,
        meaning: impl Into<String>,
    ) -> SystemError {
        SystemError {
            operation,
            object: object.to_owned(),
            meaning: Some(meaning.into()),
            remedy: None,
            source: None,
        }
    }

    /// What the reader should do about it.
    pub(crate) fn remedy(mut self, remedy: impl Into<String>) -> SystemError {
        self.remedy = Some(remedy.into());
        self
    }

    /// What to do if a device, module or tool is not there.
    pub(crate) fn remedy_missing(self, remedy: &str) -> SystemError {
        let is_missing = self.source.as_ref().is_some_and(|source| {
            source.kind() == io::ErrorKind::NotFound
                || matches!(source.raw_os_error(), Some(libc::ENODEV | libc::ENXIO))
        });
        if is_missing { self.remedy(remedy) } else { self }
    }

    /// The kernel's number, if it said one.
    pub fn errno(&self) -> Option<i32> {
        self.source.as_ref().and_then(io::Error::raw_os_error)
    }
}

impl fmt::Display for SystemError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {} {}", self.operation, self.object.display())?;
        if let Some(meaning) = &self.meaning {
            write!(f, ": {meaning}")?;
        }
        if let Some(remedy) = &self.remedy {
            write!(f, "; {remedy}")?;
        }
        Ok(())
    }
}

impl std::error::Error for SystemError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| {
            let source: &(dyn std::error::Error + 'static) = source;
            source
        })
    }
}

/// What an error number means for storage, and what helps, where that is the same everywhere.
fn explained(errno: i32) -> (Option<&'static str>, Option<&'static str>) {
    match errno {
        libc::EPERM | libc::EACCES => {
            (Some("it is not permitted"), Some("run this as root, or with CAP_SYS_ADMIN"))
        }
        libc::EBUSY => {
            (Some("it is in use"), Some("end the programs that use it (fuser -vm shows them)"))
        }
        libc::ENOSPC => (Some("no space is left"), None),
        libc::EIO => (Some("the device failed"), Some("the kernel's log says more: dmesg")),
        libc::EROFS => (Some("the medium is read-only"), None),
        libc::EUCLEAN => (Some("the file system is damaged"), Some("check it while unmounted")),
        _ => (None, None),
    }
}
