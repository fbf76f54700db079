//! Who owns a volume: the record that the engine itself keeps in the store.
//!
//! Invariants: the epoch and the generation of the set never go back, and only the owner of the
//! epoch in the record changes it. The compare-and-swap that makes this true between processes is
//! the store's; what may be written is decided here.

use alloc::format;

use serde::{Deserialize, Serialize};

use crate::envelope::Versioned;
use crate::{
    Epoch, GenerationConflict, NodeName, Problem, ProblemKind, ReplicaId, ReplicaLabel, ReplicaSet,
    SetChange, Stamp, TargetId, VolumeId,
};

/// Who owns a volume and which copies may be believed: one record a volume in the store, kept by
/// the engine of its target with compare-and-swap, and never dropped while the volume lives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TargetRecord {
    volume: VolumeId,
    target: TargetId,
    node: NodeName,
    epoch: Epoch,
    set: ReplicaSet,
    end: ShutdownState,
    /// A copy in sync was given up that the next owner will not fence.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    unfenced: bool,
}

/// Whether a target ended as it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum ShutdownState {
    /// It is open, or it ended without saying so: regions with a write intent may differ between
    /// copies.
    Unclean,
    /// It wrote everything and said so: copies in sync are equal.
    Clean,
}

impl TargetRecord {
    /// The first ownership of a volume.
    pub fn new(volume: VolumeId, target: TargetId, node: NodeName, set: ReplicaSet) -> Self {
        let (epoch, end, unfenced) = (Epoch::FIRST, ShutdownState::Unclean, false);
        TargetRecord { volume, target, node, epoch, set, end, unfenced }
    }

    /// The next ownership after the store was lost, from the newest label found on the disks.
    pub fn recovered(label: &ReplicaLabel, target: TargetId, node: NodeName) -> TargetRecord {
        let first = TargetRecord::new(label.volume, target, node, label.set.clone());
        TargetRecord { epoch: label.epoch.next(), unfenced: true, ..first }
    }

    /// The ownership of a target that serves although the store was lost, with the copies of the
    /// newest label.
    pub fn adopted(
        label: &ReplicaLabel,
        (target, epoch): (TargetId, Epoch),
        node: NodeName,
    ) -> TargetRecord {
        let first = TargetRecord::new(label.volume, target, node, label.set.clone());
        TargetRecord { epoch, unfenced: true, ..first }
    }

    /// The next ownership: a new target, a higher epoch, the same copies.
    #[must_use]
    pub fn take(&self, target: TargetId, node: NodeName) -> TargetRecord {
        let epoch = self.epoch.next();
        let unfenced = self.unfenced && self.end == ShutdownState::Unclean;
        TargetRecord { target, node, epoch, unfenced, end: ShutdownState::Unclean, ..self.clone() }
    }

    /// The record with one more copy, which is stale.
    pub fn add(&self, replica: ReplicaId) -> Result<TargetRecord, Problem> {
        Ok(TargetRecord { set: self.set.on(SetChange::Added(replica))?, ..self.clone() })
    }

    /// The record without a copy that is given up by somebody who does not own the volume. An owner
    /// that ended without saying so may still read such a copy, if it was in sync.
    pub fn give_up(&self, replica: ReplicaId) -> Result<TargetRecord, Problem> {
        let was_in_sync = self.set.in_sync().contains(&replica);
        let set = self.set.on(SetChange::Removed(replica))?;
        let unfenced = self.unfenced || (was_in_sync && self.end == ShutdownState::Unclean);
        Ok(TargetRecord { set, unfenced, ..self.clone() })
    }

    /// What the owner of `epoch` writes when its set of copies has changed: it serves, so whatever
    /// had to be waited for is over.
    pub fn record(&self, epoch: Epoch, set: ReplicaSet) -> Result<TargetRecord, Problem> {
        self.owned(epoch)?;
        if set.generation() < self.set.generation() {
            let detail = format!(
                "replica set {} of volume {} is late: {} is recorded",
                set.generation(),
                self.volume,
                self.set.generation()
            );
            return Err(Problem::new(ProblemKind::StaleGeneration, detail));
        }
        if set.generation() == self.set.generation() && set != self.set {
            let refused = GenerationConflict::SameNumberOtherContent(set.generation());
            return Err(refused.into());
        }
        Ok(TargetRecord { set, end: ShutdownState::Unclean, unfenced: false, ..self.clone() })
    }

    /// What the owner of `epoch` writes when it has stopped and all is written.
    pub fn close(&self, epoch: Epoch) -> Result<TargetRecord, Problem> {
        self.owned(epoch)?;
        Ok(TargetRecord { end: ShutdownState::Clean, unfenced: false, ..self.clone() })
    }

    /// The volume.
    pub fn volume(&self) -> VolumeId {
        self.volume
    }

    /// Its owner.
    pub fn target(&self) -> TargetId {
        self.target
    }

    /// Where its owner is.
    pub fn node(&self) -> &NodeName {
        &self.node
    }

    /// Number of the ownership.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The copies of the volume.
    pub fn set(&self) -> &ReplicaSet {
        &self.set
    }

    /// Whether the owner ended as it should.
    pub fn end(&self) -> ShutdownState {
        self.end
    }

    /// Whether a former owner may read a copy in sync that this set no longer names. Fencing every
    /// copy does not stop it: whoever opens the volume waits until its lease is over.
    pub fn has_unfenced(&self) -> bool {
        self.unfenced
    }

    /// How new it is.
    pub fn stamp(&self) -> Stamp {
        Stamp { epoch: self.epoch, generation: self.set.generation() }
    }

    fn owned(&self, epoch: Epoch) -> Result<(), Problem> {
        if epoch == self.epoch {
            return Ok(());
        }
        let detail = format!(
            "epoch {epoch} does not own volume {}: target {} on node {} does, with epoch {}",
            self.volume, self.target, self.node, self.epoch
        );
        Err(Problem::new(ProblemKind::Fenced, detail))
    }
}

impl Versioned for TargetRecord {
    const KIND: &'static str = "targetRecord";
    const VERSION: u32 = 1;
}
