//! Which copies a volume has, and which of them may be believed.
//!
//! Invariants:
//! - One copy at least is in sync, always: the last one is never recorded stale, since then nobody
//!   could say any more which copy to trust.
//! - Each change takes the next generation; none goes back.

use alloc::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::{Generation, Kind, Problem, ReplicaId};

/// The copies of a volume at one generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, try_from = "Read")]
pub struct ReplicaSet {
    generation: Generation,
    replicas: BTreeSet<ReplicaId>,
    in_sync: BTreeSet<ReplicaId>,
}

/// What can happen to a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetChange {
    /// One more copy, stale until it is rebuilt.
    Added(ReplicaId),
    /// A copy missed a write, or may have.
    Stale(ReplicaId),
    /// A copy has everything again.
    Synced(ReplicaId),
    /// A copy is given up.
    Removed(ReplicaId),
}

/// Why a set did not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetRefused {
    /// It is the only one that can be believed.
    #[error("replica {0} is the last copy in sync; bring another in sync first")]
    LastInSync(ReplicaId),
    /// It does not belong to the volume.
    #[error("replica {0} is not a copy of this volume")]
    NotAMember(ReplicaId),
    /// A set without a copy in sync, or with one that is not a member, is none.
    #[error("a replica set needs a copy in sync, and only its own copies can be")]
    NotASet,
}

impl ReplicaSet {
    /// The set of a new volume: all copies are empty and therefore the same.
    pub fn new(replicas: BTreeSet<ReplicaId>) -> Result<ReplicaSet, SetRefused> {
        let in_sync = replicas.clone();
        Read { generation: Generation::FIRST, replicas, in_sync }.try_into()
    }

    /// Number of this state of the set.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// All copies.
    pub fn replicas(&self) -> &BTreeSet<ReplicaId> {
        &self.replicas
    }

    /// The copies that hold every acknowledged write. Never empty.
    pub fn in_sync(&self) -> &BTreeSet<ReplicaId> {
        &self.in_sync
    }

    /// The same copies with a number above that one: what other disks call newer is over.
    #[must_use]
    pub fn after(&self, generation: Generation) -> ReplicaSet {
        let generation = self.generation.max(generation).next();
        ReplicaSet { generation, ..self.clone() }
    }

    /// Whether every copy is in sync.
    pub fn is_whole(&self) -> bool {
        self.replicas == self.in_sync
    }

    /// The set after a change, with the next generation; the same set if it was so already.
    pub fn on(&self, change: SetChange) -> Result<ReplicaSet, SetRefused> {
        let mut next = self.clone();
        match change {
            SetChange::Added(id) => {
                next.replicas.insert(id);
            }
            SetChange::Synced(id) | SetChange::Stale(id) if !self.replicas.contains(&id) => {
                return Err(SetRefused::NotAMember(id));
            }
            SetChange::Synced(id) => {
                next.in_sync.insert(id);
            }
            SetChange::Stale(id) => {
                next.in_sync.remove(&id);
            }
            SetChange::Removed(id) => {
                next.replicas.remove(&id);
                next.in_sync.remove(&id);
            }
        }
        if next.in_sync.is_empty() {
            let (SetChange::Added(id)
            | SetChange::Stale(id)
            | SetChange::Synced(id)
            | SetChange::Removed(id)) = change;
            return Err(SetRefused::LastInSync(id));
        }
        if next != *self {
            next.generation = self.generation.next();
        }
        Ok(next)
    }
}

impl From<SetRefused> for Problem {
    fn from(refused: SetRefused) -> Problem {
        let kind = match refused {
            SetRefused::LastInSync(_) => Kind::LastReplica,
            SetRefused::NotAMember(_) => Kind::NotFound,
            SetRefused::NotASet => Kind::InvalidArgument,
        };
        Problem::new(kind, refused)
    }
}

/// What is read, before it is known to be a set.
#[derive(Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Read {
    generation: Generation,
    replicas: BTreeSet<ReplicaId>,
    in_sync: BTreeSet<ReplicaId>,
}

impl TryFrom<Read> for ReplicaSet {
    type Error = SetRefused;

    fn try_from(read: Read) -> Result<ReplicaSet, SetRefused> {
        let Read { generation, replicas, in_sync } = read;
        if in_sync.is_empty() || !in_sync.is_subset(&replicas) {
            return Err(SetRefused::NotASet);
        }
        Ok(ReplicaSet { generation, replicas, in_sync })
    }
}
