//! The pools that an engine opens when it starts: a small file in its folder.
//!
//! ```text
//!   DIR/lock         locked by the engine that runs
//!   DIR/pools.json   {"kind": "enginePools", "version": 1, "record": {"node": …, "pools": {…}}}
//!   DIR/store.json   {"kind": "storeMark", "version": 1, "record": {"store": …, "number": …}}
//! ```
//!
//! `store.json` says how far the store had come when the control plane last told it: a store that
//! has not come so far was put back to an earlier state.
//!
//! A file is replaced as a whole, so it is the old or the new one after a crash.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use model::envelope::{self, DecodeError, Versioned};
use model::{NodeName, PoolName, PoolSpec, StoreMark};
use serde::{Deserialize, Serialize};

/// The file that says how far the store had come.
const MARK: &str = "store.json";

/// What the file holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct PoolManifest {
    /// Whose pools these are.
    pub(super) node: NodeName,
    /// By name; exported ones are not opened.
    pub(super) pools: BTreeMap<PoolName, PoolSpec>,
}

impl Versioned for PoolManifest {
    const KIND: &'static str = "enginePools";
    const VERSION: u32 = 1;
}

/// Why the folder of an engine cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DirError {
    /// The system refused.
    #[error("cannot use {}", .path.display())]
    Io {
        /// What.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Somebody else has it.
    #[error("another engine uses {}; give each its own folder with --dir", .path.display())]
    InUse {
        /// Which folder.
        path: PathBuf,
    },
    /// The file cannot be understood; it is not overwritten.
    #[error("cannot read {}", .path.display())]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: DecodeError,
    },
    /// The folder was made for another node.
    #[error("{} belongs to node {found}; run the engine with --node {found}", .path.display())]
    OtherNode {
        /// Which file.
        path: PathBuf,
        /// Whose it is.
        found: NodeName,
    },
}

/// The folder of an engine, locked while this lives.
#[derive(Debug)]
pub(super) struct Dir {
    path: PathBuf,
    /// Keeps the lock.
    _lock: File,
}

impl Dir {
    /// Makes the folder if there is none, and locks it.
    pub(super) fn open(path: &Path) -> Result<Dir, DirError> {
        let failed = |source| DirError::Io { path: path.to_owned(), source };
        fs::create_dir_all(path).map_err(failed)?;
        let lock = File::create(path.join("lock")).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => Ok(Dir { path: path.to_owned(), _lock: lock }),
            Err(fs::TryLockError::WouldBlock) => Err(DirError::InUse { path: path.to_owned() }),
            Err(fs::TryLockError::Error(source)) => Err(failed(source)),
        }
    }

    fn file(&self) -> PathBuf {
        self.path.join("pools.json")
    }

    /// The pools of this node.
    pub(super) fn read(&self, node: &NodeName) -> Result<PoolManifest, DirError> {
        let path = self.file();
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(PoolManifest { node: node.clone(), pools: BTreeMap::new() });
            }
            Err(source) => return Err(DirError::Io { path, source }),
        };
        let known: PoolManifest = match envelope::decode(&bytes) {
            Ok(known) => known,
            Err(source) => return Err(DirError::Unreadable { path, source }),
        };
        if known.node != *node {
            return Err(DirError::OtherNode { path, found: known.node });
        }
        Ok(known)
    }

    /// Replaces the file; it is durable when this returns.
    pub(super) fn write(&self, known: &PoolManifest) -> Result<(), DirError> {
        let failed = |source| DirError::Io { path: self.file(), source };
        let text = envelope::encode(known).map_err(|error| failed(io::Error::other(error)))?;
        self.replace("pools.json", &text).map_err(failed)
    }

    fn replace(&self, name: &str, text: &str) -> io::Result<()> {
        let next = self.path.join(format!("{name}.new"));
        let mut file = File::create(&next)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&next, self.path.join(name))?;
        File::open(&self.path)?.sync_all()
    }

    /// How far the store had come, as far as this engine was told. A file that cannot be read is as
    /// none: the next that is told takes its place.
    pub(super) fn mark(&self) -> Option<StoreMark> {
        let bytes = fs::read(self.path.join(MARK)).ok()?;
        match envelope::decode(&bytes) {
            Ok(mark) => Some(mark),
            Err(error) => {
                tracing::warn!(%error, file = MARK, "what the control plane told is unreadable");
                None
            }
        }
    }

    /// Keeps how far the store has come; it is durable when this returns.
    pub(super) fn keep_mark(&self, mark: StoreMark) -> Result<(), DirError> {
        let failed = |source| DirError::Io { path: self.path.join(MARK), source };
        let text = envelope::encode(&mark).map_err(|error| failed(io::Error::other(error)))?;
        self.replace(MARK, &text).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_told_of_the_store_is_kept() {
        let home = tempfile::tempdir().unwrap();
        let dir = Dir::open(home.path()).unwrap();
        assert_eq!(dir.mark(), None);
        let store = "5f0c54a1-9d6e-4b6a-8a53-0c1f4b7f8a10".parse().unwrap();
        for number in [1, 7] {
            let mark = StoreMark { store, number };
            dir.keep_mark(mark).unwrap();
            assert_eq!(dir.mark(), Some(mark));
        }
        fs::write(home.path().join(MARK), "{").unwrap();
        assert_eq!(dir.mark(), None);
    }

    #[test]
    fn what_was_written_is_read_by_its_node_only() {
        let home = tempfile::tempdir().unwrap();
        let dir = Dir::open(&home.path().join("engine")).unwrap();
        let node: NodeName = "node-1".parse().unwrap();
        assert_eq!(dir.read(&node).unwrap().pools.len(), 0);
        let spec: PoolSpec =
            serde_json::from_str(r#"{"node":"node-1","disks":["/dev/sda"]}"#).unwrap();
        let pools = BTreeMap::from([("tank".parse().unwrap(), spec)]);
        let known = PoolManifest { node: node.clone(), pools };
        dir.write(&known).unwrap();
        assert_eq!(dir.read(&node).unwrap(), known);
        let other = dir.read(&"node-2".parse().unwrap()).unwrap_err();
        assert!(other.to_string().contains("--node node-1"), "{other}");
        let second = Dir::open(&home.path().join("engine")).unwrap_err();
        assert!(second.to_string().contains("--dir"), "{second}");
        fs::write(dir.file(), "{").unwrap();
        assert!(matches!(dir.read(&node), Err(DirError::Unreadable { .. })));
    }
}
