//! File systems held still for a snapshot.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::{Kernel, SystemError};

/// A file system that is frozen, until this is dropped.
#[derive(Debug)]
pub struct Frozen {
    kernel: Arc<dyn Kernel>,
    point: Option<PathBuf>,
}

/// Freezes the file system at `point`. One that is frozen already was frozen by somebody else, who
/// would not expect our thaw: that is refused.
pub fn freeze(kernel: Arc<dyn Kernel>, point: &Path) -> Result<Frozen, SystemError> {
    kernel.set_frozen(point, true).map_err(|source| {
        let error = SystemError::new("freeze", point, source);
        match error.errno() {
            Some(libc::EBUSY) => error.remedy("it is frozen already: wait, or fsfreeze --unfreeze"),
            Some(libc::EOPNOTSUPP) => error.remedy("its file system cannot be frozen"),
            _ => error,
        }
    })?;
    Ok(Frozen { kernel, point: Some(point.to_owned()) })
}

impl Frozen {
    /// Lets changes go on. False if it was no longer frozen: then it was not still all the time.
    pub fn thaw(mut self) -> Result<bool, SystemError> {
        let Some(point) = self.point.take() else { return Ok(false) };
        match self.kernel.set_frozen(&point, false) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(false),
            Err(source) => {
                let error = SystemError::new("thaw", &point, source);
                self.point = Some(point);
                Err(error)
            }
            Ok(()) => Ok(true),
        }
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        if let Some(point) = self.point.take() {
            // Whoever dropped it without asking does not want to know more than we can do.
            let _ = self.kernel.set_frozen(&point, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::FakeKernel;

    fn shared(kernel: &Arc<FakeKernel>) -> Arc<dyn Kernel> {
        Arc::<FakeKernel>::clone(kernel)
    }

    #[test]
    fn what_is_frozen_is_thawed_whatever_happens() {
        let kernel = Arc::new(FakeKernel::new());
        let point = Path::new("/data");
        let frozen = freeze(shared(&kernel), point).unwrap();
        assert!(kernel.is_frozen(point));
        assert!(frozen.thaw().unwrap());
        assert!(!kernel.is_frozen(point));

        drop(freeze(shared(&kernel), point).unwrap());
        assert!(!kernel.is_frozen(point));

        // A thaw that fails is tried once more when it is dropped.
        let frozen = freeze(shared(&kernel), point).unwrap();
        kernel.fail_next("set_frozen", libc::EIO);
        assert!(frozen.thaw().is_err());
        assert!(!kernel.is_frozen(point));
    }

    #[test]
    fn somebody_elses_freeze_is_left_alone() {
        let kernel = Arc::new(FakeKernel::new());
        let point = Path::new("/data");
        let theirs = freeze(shared(&kernel), point).unwrap();
        let refused = freeze(shared(&kernel), point).unwrap_err().to_string();
        assert!(refused.contains("it is frozen already"), "{refused}");
        assert!(kernel.is_frozen(point));
        kernel.set_frozen(point, false).unwrap();
        assert!(!theirs.thaw().unwrap(), "it was not frozen all the time");
    }
}
