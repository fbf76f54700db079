//! What a watch asks for and what it tells.

use super::{KeyValue, Keys, Revision};

/// Which changes to report.
#[derive(Clone, Debug)]
pub struct WatchFrom {
    /// Changes of these keys.
    pub keys: Keys,
    /// The first revision to report. After reading at revision r, watch from `r.next()`.
    pub revision: Revision,
    /// Report each key also as it was before.
    pub previous: bool,
    /// Tell now and then how far the watch is, although nothing changed.
    pub progress: bool,
}

impl WatchFrom {
    /// Changes of `keys` from `revision` on.
    pub fn new(keys: Keys, revision: Revision) -> WatchFrom {
        WatchFrom { keys, revision, previous: false, progress: false }
    }

    /// Report each key also as it was before.
    #[must_use]
    pub fn with_previous(self) -> WatchFrom {
        WatchFrom { previous: true, ..self }
    }

    /// Tell now and then how far the watch is, although nothing changed.
    #[must_use]
    pub fn with_progress(self) -> WatchFrom {
        WatchFrom { progress: true, ..self }
    }
}

/// Some changes, oldest first. All changes of one revision come in one of these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    /// Every change up to and including this revision has now been reported.
    pub upto: Revision,
    /// What changed; empty in a report of progress.
    pub changes: Vec<Change>,
}

/// One key changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It was written.
    Put {
        /// As it is now.
        now: KeyValue,
        /// As it was, if asked for and if it existed.
        before: Option<KeyValue>,
    },
    /// It was deleted.
    Deleted {
        /// The key.
        key: bytes::Bytes,
        /// When.
        at: Revision,
        /// As it was, if asked for.
        before: Option<KeyValue>,
    },
}

impl Change {
    /// When it changed.
    pub fn at(&self) -> Revision {
        match self {
            Change::Put { now, .. } => now.changed,
            Change::Deleted { at, .. } => *at,
        }
    }

    /// The key.
    pub fn key(&self) -> &bytes::Bytes {
        match self {
            Change::Put { now, .. } => &now.key,
            Change::Deleted { key, .. } => key,
        }
    }
}
