//! What is to be done, as values.

use alloc::string::String;
use alloc::vec::Vec;

use model::{
    FailoverId, FailoverReason, Generation, NodeName, PoolName, RebuildPlan, ReplicaId, Size,
    Subject, TargetId, VolumeId,
};

use crate::Brake;

/// One thing to do. Doing it twice is harmless: it names what is wanted afterwards, and where a
/// second time could make a second thing it carries the generation it was decided at, which the
/// first time changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Open a pool where its spec says it is.
    OpenPool {
        /// Which.
        pool: PoolName,
        /// There.
        node: NodeName,
    },
    /// Send a target's order again: its engine has forgotten it, or has not seen the newest.
    OrderTarget {
        /// Which.
        target: TargetId,
        /// What is to be sent.
        generation: Generation,
    },
    /// Begin to move a published volume to a target elsewhere.
    BeginFailover {
        /// Which.
        volume: VolumeId,
        /// As it was when this was decided.
        seen: Generation,
        /// The target to leave.
        from: TargetId,
        /// Where the new one goes, as things are now.
        node: NodeName,
        /// Why.
        cause: FailoverReason,
    },
    /// Make the new target of a failover.
    Republish {
        /// Which failover.
        failover: FailoverId,
        /// Of which volume.
        volume: VolumeId,
        /// There.
        node: NodeName,
    },
    /// The new target of a failover is lost too: choose another.
    Reroute {
        /// Which failover.
        failover: FailoverId,
        /// Of which volume.
        volume: VolumeId,
    },
    /// Open a target without hosts, to heal a volume that nobody uses.
    OpenToHeal {
        /// Which.
        volume: VolumeId,
        /// As it was when this was decided.
        seen: Generation,
        /// There.
        node: NodeName,
    },
    /// Close a target that has no hosts and nothing left to heal.
    Close {
        /// Which volume.
        volume: VolumeId,
        /// As it was when this was decided.
        seen: Generation,
        /// Its target.
        target: TargetId,
        /// Its node does not answer: fencing takes care of it.
        force: bool,
    },
    /// One more copy.
    AddReplica {
        /// Of which volume.
        volume: VolumeId,
        /// As it was when this was decided.
        seen: Generation,
        /// There.
        pool: PoolName,
    },
    /// Let a target use a copy that it does not have among its children.
    Attach {
        /// Of which volume.
        volume: VolumeId,
        /// As it was when this was decided.
        seen: Generation,
        /// Its target.
        target: TargetId,
        /// Which copy.
        replica: ReplicaId,
    },
    /// Bring a copy in sync. An engine that has no map of what the copy missed does a full one
    /// where a delta is asked for.
    Rebuild(RebuildPlan),
    /// One copy fewer: out of the target, out of the set, then out of its pool.
    RemoveReplica {
        /// Of which volume.
        volume: VolumeId,
        /// As it was when this was decided.
        seen: Generation,
        /// Which.
        replica: ReplicaId,
    },
    /// A copy in another place instead of this one.
    MoveReplica {
        /// Of which volume.
        volume: VolumeId,
        /// As it was when this was decided.
        seen: Generation,
        /// The one to leave.
        from: ReplicaId,
        /// Where the new one goes.
        pool: PoolName,
    },
    /// Give a copy the size of its volume.
    ResizeReplica {
        /// Which.
        replica: ReplicaId,
        /// As it was when this was decided.
        seen: Generation,
        /// The new size.
        size: Size,
    },
    /// Give a target the size of its volume, once all its copies have it.
    ResizeTarget {
        /// Which.
        target: TargetId,
        /// As it was when this was decided.
        seen: Generation,
        /// The new size.
        size: Size,
    },
    /// All of it exists: say so in its spec.
    Finish(Subject),
    /// Undo something half made, or give up something that nobody wants.
    Delete(Subject),
    /// Go on deleting what is to go.
    GoOnDeleting(Subject),
    /// Keep a copy that nobody counts, and that may hold what no other has: one without a spec, or
    /// one on its way out.
    Quarantine {
        /// Which.
        replica: ReplicaId,
    },
    /// Destroy a copy that has no spec.
    DestroyReplica {
        /// There.
        pool: PoolName,
        /// Which.
        replica: ReplicaId,
    },
    /// Stop a target that has no spec.
    StopTarget {
        /// There.
        node: NodeName,
        /// Which.
        target: TargetId,
    },
    /// Destroy a copy of a snapshot that the snapshot does not count as its own.
    DestroySnapshot {
        /// There.
        pool: PoolName,
        /// Which.
        snapshot: model::SnapshotId,
    },
    /// Read and check every block of a copy.
    Scrub {
        /// Which.
        replica: ReplicaId,
    },
    /// Compare the copies of a volume with each other, block by block.
    Compare {
        /// Which.
        volume: VolumeId,
    },
}

impl Step {
    /// What the step is about. No two steps of a plan are about the same.
    pub fn subject(&self) -> Subject {
        match self {
            Step::OpenPool { pool, .. } => Subject::Pool(pool.clone()),
            Step::OrderTarget { target, .. }
            | Step::ResizeTarget { target, .. }
            | Step::StopTarget { target, .. } => Subject::Target(*target),
            Step::ResizeReplica { replica, .. }
            | Step::DestroyReplica { replica, .. }
            | Step::Quarantine { replica }
            | Step::Scrub { replica } => Subject::Replica(*replica),
            Step::BeginFailover { volume, .. }
            | Step::Republish { volume, .. }
            | Step::Reroute { volume, .. }
            | Step::OpenToHeal { volume, .. }
            | Step::Close { volume, .. }
            | Step::Compare { volume }
            | Step::AddReplica { volume, .. }
            | Step::Attach { volume, .. }
            | Step::Rebuild(RebuildPlan { volume, .. })
            | Step::RemoveReplica { volume, .. }
            | Step::MoveReplica { volume, .. } => Subject::Volume(*volume),
            Step::Finish(subject) | Step::Delete(subject) | Step::GoOnDeleting(subject) => {
                subject.clone()
            }
            Step::DestroySnapshot { snapshot, .. } => Subject::Snapshot(*snapshot),
        }
    }
}

/// What to do now, and what cannot be done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// What to do, the most urgent first. All of it may run side by side.
    pub steps: Vec<Step>,
    /// What should be done and cannot.
    pub blocked: Vec<Blocked>,
    /// What seems to be unwanted. To be remembered with the time it was first seen
    /// ([`Facts::suspects`](crate::Facts)) and forgotten once a plan does not name it: only what
    /// stays on the list long enough is removed.
    pub suspects: Vec<Subject>,
    /// Why copies that were lost are not replaced now; absent: they are.
    pub brake: Option<Brake>,
    /// How many places were looked at: what planning costs, without a clock.
    pub looked_at: u64,
}

/// Something that should be done and cannot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// For what.
    pub subject: Subject,
    /// What is wanted, and why it cannot be, for people.
    pub reason: String,
}
