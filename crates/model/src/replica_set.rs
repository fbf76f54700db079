//! Which copies a volume has, and which of them may be believed.
//!
//! Invariants:
//! - One copy at least is in sync, always: the last one is never recorded stale, since then nobody
//!   could say any more which copy to trust.
//! - Each change takes the next generation; none goes back.
//! - A set remembers, here and on the labels, which volume it is of although ids of volumes may be
//!   used again, and when the volume was last recovered without some of its copies: what those hold
//!   may be newer than all that is recorded.

use alloc::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::{Epoch, Generation, Problem, ProblemKind, ReplicaId};

/// The copies of a volume at one generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, try_from = "Read")]
pub struct ReplicaSet {
    generation: Generation,
    replicas: BTreeSet<ReplicaId>,
    in_sync: BTreeSet<ReplicaId>,
    /// A copy that the volume began with; unknown of sets that are older than this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    origin: Option<ReplicaId>,
    /// The epoch of the last recovery that did without some copies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    forked_at: Option<Epoch>,
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
        let origin = replicas.first().copied();
        Read { generation: Generation::FIRST, replicas, in_sync, origin, forked_at: None }
            .try_into()
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

    /// A copy that the volume began with. Of two sets of one volume it is the same, however many
    /// copies were replaced since; of another volume that had the same id it is another.
    pub fn origin(&self) -> Option<ReplicaId> {
        self.origin
    }

    /// Whether the other set is of another volume that had the same id.
    pub fn is_foreign_to(&self, other: &ReplicaSet) -> bool {
        self.origin.zip(other.origin).is_some_and(|(one, other)| one != other)
    }

    /// The epoch of the last recovery that did without some copies. Whatever carries a lower one
    /// and is not counted may be of the branch that was abandoned then.
    pub fn forked_at(&self) -> Option<Epoch> {
        self.forked_at
    }

    /// The set without copies that could not be looked at and, an operator says, will not come
    /// back, from this epoch on. If they do, they may be newer than those that are left.
    pub fn abandon(
        &self,
        lost: &BTreeSet<ReplicaId>,
        epoch: Epoch,
    ) -> Result<ReplicaSet, SetRefused> {
        let mut next = self.clone();
        for id in lost {
            next = next.on(SetChange::Removed(*id))?;
        }
        if !lost.is_empty() {
            next.forked_at = Some(epoch);
            next.generation = next.generation.max(self.generation.next());
        }
        Ok(next)
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
            SetRefused::LastInSync(_) => ProblemKind::LastReplica,
            SetRefused::NotAMember(_) => ProblemKind::NotFound,
            SetRefused::NotASet => ProblemKind::InvalidArgument,
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
    #[serde(default)]
    origin: Option<ReplicaId>,
    #[serde(default)]
    forked_at: Option<Epoch>,
}

impl TryFrom<Read> for ReplicaSet {
    type Error = SetRefused;

    fn try_from(read: Read) -> Result<ReplicaSet, SetRefused> {
        let Read { generation, replicas, in_sync, origin, forked_at } = read;
        if in_sync.is_empty() || !in_sync.is_subset(&replicas) {
            return Err(SetRefused::NotASet);
        }
        Ok(ReplicaSet { generation, replicas, in_sync, origin, forked_at })
    }
}
