//! What a target keeps with each of its replicas, beside the blocks.
//!
//! Invariant, for every copy in sync, at every moment: whatever another copy may lack or hold
//! differently lies in `intents`, or in the map `missed` has for it. A stale copy for which there
//! is no map lacks everything. So any one copy in sync says what to compare and what to copy,
//! whoever crashed.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::envelope::Versioned;
use crate::{Epoch, HostReservations, RegionSet, ReplicaId, ReplicaLabel, TargetId};

/// What is kept with a replica: its label and the maps of its volume. Replaced as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SyncMetadata {
    /// The label.
    pub label: ReplicaLabel,
    /// The target that kept it.
    pub owner: TargetId,
    /// Which of two notes with one epoch is newer.
    pub sequence: u64,
    /// A note that every copy in sync had acknowledged, or a newer one, when this was made: a copy
    /// in sync that shows an older one was rolled back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settled: Option<SyncStamp>,
    /// What the replica said of itself when this was kept. If it says another number now, it may
    /// have lost writes that no flush covered.
    pub incarnation: u64,
    /// The number of the last loss of this replica, as the targets of the volume count them; zero
    /// if what it lost was made good. Where copies differ, the one with the lowest has the most.
    pub loss: u64,
    /// Regions that may be being written, or whose writes no flush covers: after a crash copies in
    /// sync may differ there, and nowhere else.
    pub intents: RegionSet,
    /// Regions that a stale copy missed.
    pub missed: BTreeMap<ReplicaId, RegionSet>,
    /// The newest note that each of them is known to have had: one that shows an older one was
    /// rolled back, and lacks more than its map says.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub left: BTreeMap<ReplicaId, SyncStamp>,
    /// Reservations of hosts on the volume. Of the notes of copies in sync the newest has all that
    /// was acknowledged.
    #[serde(default, skip_serializing_if = "HostReservations::is_unused")]
    pub reservations: Box<HostReservations>,
}

/// Which of two notes of one volume is newer: epoch first, then sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SyncStamp {
    /// Number of the ownership.
    pub epoch: Epoch,
    /// Number of the note.
    pub sequence: u64,
}

impl SyncMetadata {
    /// How new it is.
    pub fn stamp(&self) -> SyncStamp {
        SyncStamp { epoch: self.label.epoch, sequence: self.sequence }
    }
}

impl Versioned for SyncMetadata {
    const KIND: &'static str = "replicaNote";
    const VERSION: u32 = 2;
}
