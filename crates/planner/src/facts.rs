//! What is known: specs with their statuses, and what the control plane remembers beside them.
//!
//! Plain maps, owned by whoever keeps them. The planner only reads them, through a
//! [`View`](crate::View).

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use model::{
    Epoch, Failover, FailoverId, HostName, Lifecycle, Node, NodeName, Pool, PoolName, Quarantine,
    Replica, ReplicaId, ReplicaLabel, Size, Snapshot, SnapshotId, SnapshotLabel, Source, Subject,
    Target, TargetId, TargetRecord, Timestamp, Volume, VolumeId,
};

/// Everything that decisions are made from, but the time.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Machines that run an engine.
    pub nodes: BTreeMap<NodeName, Node>,
    /// Disks.
    pub pools: BTreeMap<PoolName, Pool>,
    /// What users asked for.
    pub volumes: BTreeMap<VolumeId, Volume>,
    /// Copies of volumes.
    pub replicas: BTreeMap<ReplicaId, Replica>,
    /// Places that serve volumes.
    pub targets: BTreeMap<TargetId, Target>,
    /// Who owns each volume and which copies may be believed. A volume without one was never
    /// written.
    pub records: BTreeMap<VolumeId, TargetRecord>,
    /// Volumes as they were.
    pub snapshots: BTreeMap<SnapshotId, Snapshot>,
    /// Copies on the move. Other work on their volumes goes on meanwhile: a move may take hours.
    pub moves: BTreeMap<VolumeId, ReplicaMove>,
    /// Targets on the move, and the last that were.
    pub failovers: BTreeMap<FailoverId, Failover>,
    /// Pools that engines have and of which there is no spec.
    pub stray_pools: BTreeSet<(NodeName, PoolName)>,
    /// Copies that engines report and of which there is no spec.
    pub orphan_replicas: BTreeMap<ReplicaId, Orphan<ReplicaLabel>>,
    /// Copies that are set aside; they are among those without a spec.
    pub quarantined: BTreeMap<ReplicaId, Quarantine>,
    /// Targets that engines report and of which there is no spec.
    pub orphan_targets: BTreeMap<TargetId, OrphanTarget>,
    /// Copies of snapshots that engines report and that no snapshot counts as its own.
    pub orphan_snapshots: BTreeMap<(PoolName, SnapshotId), Orphan<SnapshotLabel>>,
    /// Since when a copy that should be there cannot be used.
    pub missing: BTreeMap<ReplicaId, Timestamp>,
    /// When too few nodes answered for the last time; see [`Plan::brake`](crate::Plan).
    pub braked_at: Option<Timestamp>,
    /// When a copy was last moved for order's sake, or a move ended: pools show what that freed and
    /// took only when they are looked at again.
    pub moved_at: Option<Timestamp>,
    /// Until when automatic failover and healing are paused.
    pub paused_until: Option<Timestamp>,
    /// Since when something is seen to be unwanted; see [`Plan::suspects`](crate::Plan).
    pub suspects: BTreeMap<Subject, Timestamp>,
    /// How often the rebuild of a copy failed since it last succeeded.
    pub failed_rebuilds: BTreeMap<ReplicaId, u32>,
    /// Paths that hosts have lost, by volume.
    pub lost_paths: BTreeMap<VolumeId, BTreeMap<HostName, core::net::SocketAddr>>,
    /// When a copy was last read and checked to the end.
    pub scrubbed: BTreeMap<ReplicaId, Timestamp>,
    /// Copies that are being checked.
    pub scrubbing: BTreeSet<ReplicaId>,
    /// When the copies of a volume were last compared with each other to the end.
    pub compared: BTreeMap<VolumeId, Timestamp>,
    /// Volumes whose copies are being compared.
    pub comparing: BTreeSet<VolumeId>,
    /// Until when volumes want a target although nobody uses them: their copies are compared, or
    /// damage that a scrub found is repaired.
    pub attended: BTreeMap<VolumeId, Timestamp>,
    /// What somebody is working on at this moment: left alone.
    pub busy: BTreeSet<Subject>,
    /// Space that running operations will take for copies that have no spec yet.
    pub reservations: Vec<Reservation>,
}

/// A copy in another place instead of the one it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaMove {
    /// The one to leave.
    pub from: ReplicaId,
    /// The one to make.
    pub replica: ReplicaId,
    /// There.
    pub pool: PoolName,
}

impl Facts {
    /// Whether a copy is recorded to hold every acknowledged write. In a volume that was never
    /// served a copy is right if it began with what the volume began with.
    pub fn is_in_sync(&self, replica: &Replica) -> bool {
        let volume = replica.spec().volume;
        if let Some(record) = self.records.get(&volume) {
            return record.set().in_sync().contains(replica.id());
        }
        let source = self.volumes.get(&volume).and_then(|volume| volume.spec().source);
        let born_right = match source {
            None => true,
            Some(Source::Snapshot { snapshot }) => replica.spec().source == Some(snapshot),
            Some(Source::Volume { .. }) => replica.spec().source.is_some(),
        };
        born_right && matches!(replica.lifecycle(), Lifecycle::Created { .. })
    }
}

/// Space in a pool that is spoken for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// Where.
    pub pool: PoolName,
    /// What will be written.
    pub bytes: Size,
    /// What is promised beyond that: the whole size.
    pub committed: Size,
}

/// Something in a pool that nobody asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orphan<L> {
    /// Where it was found.
    pub pool: PoolName,
    /// What is written on disk with it; absent: it cannot be read, or is not ours.
    pub label: Option<L>,
}

/// A target on an engine that nobody asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrphanTarget {
    /// Where it was found.
    pub node: NodeName,
    /// What it serves.
    pub volume: VolumeId,
    /// Number of its ownership.
    pub epoch: Epoch,
}
