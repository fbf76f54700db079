//! Whether a snapshot can be taken now.
//!
//! It is taken of every copy in sync at one moment, all or none. A copy that is behind gets none; a
//! volume can be restored from any one copy, so a degraded volume can still be backed up. A cordon
//! does not hinder it: what lies on a cordoned node stays in use.

use alloc::format;
use alloc::vec::Vec;

use model::{Problem, ProblemKind, ReplicaId, SnapshotId, VolumeId};

use crate::member::{Condition, VolumeHealth};
use crate::place::{Need, Refusal, Unplaceable, fits};
use crate::view::{exists, is_going};
use crate::{Budget, View};

/// A snapshot that somebody wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotProposal {
    /// Of which volume.
    pub volume: VolumeId,
    /// Its id.
    pub snapshot: SnapshotId,
}

/// The copies that a snapshot is taken of.
pub fn check_snapshot(view: &View<'_>, ask: SnapshotProposal) -> Result<Vec<ReplicaId>, Problem> {
    check(view, &mut Budget::new(), ask)
}

/// The copies that the snapshots of a group are taken of, each in the order of the request: all of
/// them can be taken together, or none is.
pub fn check_snapshot_group(
    view: &View<'_>,
    asks: &[SnapshotProposal],
) -> Result<Vec<Vec<ReplicaId>>, Problem> {
    let mut budget = Budget::new();
    asks.iter().map(|ask| check(view, &mut budget, *ask)).collect()
}

fn check(
    view: &View<'_>,
    budget: &mut Budget,
    ask: SnapshotProposal,
) -> Result<Vec<ReplicaId>, Problem> {
    let id = ask.volume;
    let Some(volume) = view.facts.volumes.get(&id).filter(|volume| !is_going(*volume)) else {
        return Err(Problem::new(ProblemKind::NotFound, format!("there is no volume {id}")));
    };
    if !exists(volume) {
        let detail = format!("volume {id} is being created; try again when that has ended");
        return Err(Problem::new(ProblemKind::Busy, detail));
    }
    let others = view.snapshots(id).iter().filter(|have| *have.id() != ask.snapshot).count();
    let most = volume.spec().max_snapshots.and_then(|most| usize::try_from(most).ok());
    if most.is_some_and(|most| others >= most) {
        let detail = format!(
            "volume {id} has {others} snapshots, all it may have; \
             delete one or raise its maxSnapshots"
        );
        return Err(Problem::new(ProblemKind::SnapshotLimit, detail));
    }
    let health = VolumeHealth::new(view, volume);
    let need = Need::of_snapshot(view, volume.spec().size);
    let (mut copies, mut refused) = (Vec::new(), Vec::new());
    for member in health.members.iter().filter(|member| member.believed) {
        let name = &member.replica.spec().pool;
        let fit = match view.pool(name) {
            Some(pool) if member.condition == Condition::Good => fits(view, budget, pool, need),
            _ => Err(Refusal::CopyAway),
        };
        match fit {
            Ok(()) => {
                budget.take_space(name, need.slack, need.committed);
                copies.push(member.id());
            }
            Err(refusal) => refused.push((name, refusal)),
        }
    }
    if !refused.is_empty() {
        let space = refused.iter().any(|(_, refusal)| refusal.is_space());
        let kind = if space { ProblemKind::NoSpace } else { ProblemKind::NodeUnavailable };
        let none = Unplaceable::of_pools(refused);
        return Err(Problem::new(kind, format!("no snapshot of volume {id}: {none}")));
    }
    if copies.is_empty() {
        let detail = format!("no copy in sync of volume {id} is known");
        return Err(Problem::new(ProblemKind::NoHealthyReplica, detail));
    }
    Ok(copies)
}
