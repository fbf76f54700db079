//! The cache directory: unpacked kernels, images, and the run directories of machines.
//!
//! It lies outside the checkout, so that a clean build does not download a kernel again. Whoever
//! makes something in it holds the lock; readers need none, because things appear by rename.

use std::{
    env, fs,
    fs::File,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use anyhow::{Context, Result};

/// Images and kept logs nobody used for this long are removed.
const KEEP: Duration = Duration::from_hours(48);

/// An existing cache directory.
pub(super) struct Cache {
    root: PathBuf,
}

impl Cache {
    /// `$XDG_CACHE_HOME/holdfast/vm`, or `~/.cache/holdfast/vm`.
    pub(super) fn open() -> Result<Cache> {
        let base = match env::var_os("XDG_CACHE_HOME").filter(|value| !value.is_empty()) {
            Some(dir) => PathBuf::from(dir),
            None => PathBuf::from(
                env::var_os("HOME").context("neither XDG_CACHE_HOME nor HOME is set")?,
            )
            .join(".cache"),
        };
        let root = base.join("holdfast/vm");
        for part in ["kernels", "images", "runs", "apt/lists/partial", "apt/cache/archives/partial"]
        {
            let dir = root.join(part);
            fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
        }
        Ok(Cache { root })
    }

    /// Unpacked kernels, one directory each.
    pub(super) fn kernels(&self) -> PathBuf {
        self.root.join("kernels")
    }

    /// Lists of packages of suites this machine is not set up for.
    pub(super) fn apt(&self) -> PathBuf {
        self.root.join("apt")
    }

    /// Initramfs files.
    pub(super) fn images(&self) -> PathBuf {
        self.root.join("images")
    }

    /// One directory per machine that runs, or that ran in a test that failed.
    pub(super) fn runs(&self) -> PathBuf {
        self.root.join("runs")
    }

    /// Waits for the right to add to the cache; ends when the file is dropped.
    pub(super) fn lock(&self) -> Result<File> {
        let path = self.root.join("lock");
        let file = File::create(&path).with_context(|| format!("open {}", path.display()))?;
        file.lock().with_context(|| format!("lock {}", path.display()))?;
        Ok(file)
    }

    /// Removes images and run directories nobody used for two days.
    pub(super) fn sweep(&self) -> Result<()> {
        for dir in [self.images(), self.runs()] {
            for entry in fs::read_dir(&dir).with_context(|| format!("list {}", dir.display()))? {
                let path = entry?.path();
                if age(&path).is_some_and(|age| age > KEEP) {
                    // Another process may sweep at the same time: what is gone is fine.
                    let _gone = fs::remove_dir_all(&path).or_else(|_| fs::remove_file(&path));
                }
            }
        }
        Ok(())
    }
}

/// How long ago something was made or used; nothing if it is not there.
pub(super) fn age(path: &Path) -> Option<Duration> {
    let modified = fs::metadata(path).and_then(|found| found.modified()).ok()?;
    SystemTime::now().duration_since(modified).ok()
}
