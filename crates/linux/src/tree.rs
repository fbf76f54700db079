//! Where the kernel's files are.

use std::fs;
use std::path::{Path, PathBuf};

/// The root under which `/sys`, `/proc` and `/dev` are looked for.
#[derive(Clone, Debug)]
pub struct Tree {
    root: PathBuf,
}

impl Default for Tree {
    /// This machine's.
    fn default() -> Tree {
        Tree { root: PathBuf::from("/") }
    }
}

impl Tree {
    /// Another one, made of plain files.
    pub fn at(root: impl Into<PathBuf>) -> Tree {
        Tree { root: root.into() }
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// How many entries a folder has; none if it cannot be read.
    pub fn count(&self, folder: &str) -> usize {
        self.names(folder).len()
    }

    /// Names in a folder, sorted; none if it cannot be read.
    pub(crate) fn names(&self, folder: &str) -> Vec<String> {
        names(&self.path(folder))
    }

    /// A file's text; empty if it cannot be read.
    pub fn text(&self, file: &str) -> String {
        fs::read_to_string(self.path(file)).unwrap_or_default()
    }
}

/// Names in a folder, sorted; none if it cannot be read.
pub(crate) fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// A file's text without the white space around it, if there is any.
pub(crate) fn word(file: &Path) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// A number in a file.
pub(crate) fn number(file: &Path) -> Option<u64> {
    word(file)?.parse().ok()
}
