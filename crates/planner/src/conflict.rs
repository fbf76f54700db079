//! Whether the disks know more of a volume than the store does.
//!
//! An epoch is stored before a copy remembers it, and a replica set before it is on a label. So of
//! every copy of a volume, at every moment, its record says at least as much:
//!
//! > the epoch on its label and the epoch it is fenced with are not higher than the record's;
//! > the set on its label is not newer than the record's, and one generation is one set;
//! > the copies are not smaller than their labels say.
//!
//! A copy that says otherwise was written under a store that knew more than this one: it was put
//! back to an earlier state. What it says of the volume (which copies may be believed, above all)
//! is not to be acted upon.
//!
//! A copy of another volume that had the same id says nothing of this one, and neither does one of
//! a branch that a recovery abandoned, nor one that is set aside (`quarantine.rs`).

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::fmt;

use model::{
    Epoch, Generation, Lifecycle, PoolName, Replica, ReplicaId, ReplicaLabel, Size, TargetId,
    TargetRecord, Volume, VolumeChange,
};

use crate::Facts;
use crate::quarantine::is_apart;
use crate::view::is_going;

/// What the disks know of a volume and the store does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// What the store has.
    pub stored: Claim,
    /// The copies that say more, and what they say.
    pub copies: BTreeMap<ReplicaId, (PoolName, Claim)>,
    /// Targets that nobody knows and that own the volume with a newer epoch.
    pub targets: BTreeMap<TargetId, Epoch>,
    /// Copies that may say more and were not seen, of a store that is known to have gone back.
    pub unseen: BTreeSet<ReplicaId>,
}

/// What a copy, or the store, says of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The highest epoch; absent: it was never owned.
    pub epoch: Option<Epoch>,
    /// Number of the set of copies; absent: it was never served.
    pub generation: Option<Generation>,
    /// Its size.
    pub size: Option<Size>,
}

/// What the disks know of a volume and the store does not, as far as both were seen.
pub fn conflict<'f>(
    facts: &'f Facts,
    volume: &Volume,
    replicas: impl IntoIterator<Item = &'f Replica>,
    unseen: BTreeSet<ReplicaId>,
) -> Option<Conflict> {
    let Lifecycle::Created { operation } = volume.lifecycle() else { return None };
    let id = *volume.id();
    let record = facts.records.get(&id);
    let replicas: Vec<&Replica> = replicas.into_iter().collect();
    let members: BTreeSet<ReplicaId> = replicas.iter().map(|replica| *replica.id()).collect();
    let wanted = match operation.as_ref().map(|operation| &operation.change) {
        Some(VolumeChange::Resize { size }) => (*size).max(volume.spec().size),
        _ => volume.spec().size,
    };
    // A growth that failed in the end has made the copies larger before.
    let size = replicas.iter().fold(wanted, |size, replica| size.max(replica.spec().size));
    let mut copies = BTreeMap::new();
    let mut weigh =
        |replica, pool: &PoolName, label: Option<&ReplicaLabel>, fence: Option<Epoch>| {
            let label = label.filter(|label| label.volume == id && label.replica == replica);
            let claim = Claim::of(label, fence);
            let contradicts = label.zip(record).is_some_and(|(label, record)| {
                label.set.generation() == record.set().generation() && label.set != *record.set()
            });
            let stored = Claim::stored(record, size);
            if contradicts || claim.says_more_than(&stored) {
                copies.insert(replica, (pool.clone(), claim));
            }
        };
    for replica in replicas {
        let Some(status) = &replica.status else { continue };
        let label = status.label.as_ref();
        // One that is on its way out may be of an earlier volume of this name.
        if !is_going(replica) || label.zip(record).is_some_and(|(it, record)| akin(it, record)) {
            weigh(*replica.id(), &replica.spec().pool, label, status.fence);
        }
    }
    for (replica, orphan) in &facts.orphan_replicas {
        let label = orphan.label.as_ref().filter(|label| label.volume == id);
        if label.is_some_and(|label| has_a_say(facts, label, &members)) {
            weigh(*replica, &orphan.pool, label, None);
        }
    }
    let owned = record.map(TargetRecord::epoch);
    let newer = facts.orphan_targets.iter().filter(|(_, it)| it.volume == id);
    let newer = newer.filter(|(_, it)| Some(it.epoch) > owned);
    let targets: BTreeMap<_, _> = newer.map(|(target, it)| (*target, it.epoch)).collect();
    let is_none = copies.is_empty() && targets.is_empty() && unseen.is_empty();
    (!is_none).then(|| Conflict { stored: Claim::stored(record, size), copies, targets, unseen })
}

/// Whether a copy that nobody knows is of the history of its volume, and not of another volume that
/// had the same id or of a branch that was abandoned; in doubt it is. What is set aside was judged
/// then.
pub fn has_a_say(facts: &Facts, label: &ReplicaLabel, members: &BTreeSet<ReplicaId>) -> bool {
    let is_of_it = match (facts.records.get(&label.volume), label.set.origin()) {
        (Some(record), _) => !is_apart(label, record),
        (None, Some(origin)) => {
            members.contains(&origin) || !label.set.replicas().is_disjoint(members)
        }
        (None, None) => true,
    };
    is_of_it && !facts.quarantined.contains_key(&label.replica)
}

/// Whether a label and a record name a copy in common.
fn akin(label: &ReplicaLabel, record: &TargetRecord) -> bool {
    label.set.replicas().intersection(record.set().replicas()).next().is_some()
}

impl Claim {
    fn of(label: Option<&ReplicaLabel>, fence: Option<Epoch>) -> Claim {
        Claim {
            epoch: label.map(|label| label.epoch).max(fence),
            generation: label.map(|label| label.set.generation()),
            size: label.map(|label| label.size),
        }
    }

    fn stored(record: Option<&TargetRecord>, size: Size) -> Claim {
        Claim {
            epoch: record.map(TargetRecord::epoch),
            generation: record.map(|record| record.set().generation()),
            size: Some(size),
        }
    }

    fn says_more_than(&self, stored: &Claim) -> bool {
        self.epoch > stored.epoch || self.generation > stored.generation || self.size > stored.size
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Claim { epoch, generation, size } = self;
        match epoch {
            Some(epoch) => write!(f, "epoch {epoch}")?,
            None => f.write_str("no epoch")?,
        }
        if let Some(generation) = generation {
            write!(f, ", replica set {generation}")?;
        }
        size.map_or(Ok(()), |size| write!(f, ", {size}"))
    }
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the store is older than the disks: it has {}", self.stored)?;
        for (replica, (pool, claim)) in &self.copies {
            write!(f, "; copy {replica} in pool {pool} has {claim}")?;
        }
        for (target, epoch) in &self.targets {
            write!(f, "; target {target} serves it with epoch {epoch}")?;
        }
        for replica in &self.unseen {
            write!(f, "; copy {replica} does not answer and may know more")?;
        }
        f.write_str(
            ". Nothing is ordered for this volume until that is settled: `holdfast recover` shows \
             what the disks hold, `holdfast recover --apply` adopts the newest label",
        )
    }
}
