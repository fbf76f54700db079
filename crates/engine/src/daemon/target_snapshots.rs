//! Snapshots of a whole volume, taken by its target.

use std::collections::{BTreeMap, VecDeque};

use api::Applied;
use api::node::{ApiResult, SnapshotRequest, TargetSnapshot};
use model::{EventName, Problem, ProblemKind, SnapshotId, Subject, TargetId};

use super::engine::Engine;
use super::problems;
use super::targets::TargetAvailability;
use crate::volumes::{SnapshotCommand, VolumeRequest, VolumeResponse};

/// Snapshots that a target remembers to have taken, so that asking twice is harmless.
const REMEMBERED: usize = 1024;

/// The last snapshots that a target took.
#[derive(Default)]
pub(super) struct TargetSnapshots {
    by_id: BTreeMap<SnapshotId, TargetSnapshot>,
    oldest: VecDeque<SnapshotId>,
}

impl TargetSnapshots {
    fn get(&self, snapshot: SnapshotId) -> Option<&TargetSnapshot> {
        self.by_id.get(&snapshot)
    }

    fn add(&mut self, taken: TargetSnapshot) {
        if self.oldest.len() >= REMEMBERED
            && let Some(oldest) = self.oldest.pop_front()
        {
            self.by_id.remove(&oldest);
        }
        self.oldest.push_back(taken.snapshot);
        self.by_id.insert(taken.snapshot, taken);
    }
}

impl Engine {
    /// Takes a snapshot on all children in sync, or on none.
    pub(super) async fn apply_target_snapshot(
        &self,
        target: TargetId,
        snapshot: SnapshotId,
        request: SnapshotRequest,
    ) -> ApiResult<Applied<TargetSnapshot>> {
        let _alone = self.0.target_locks.of(&target).write_owned().await;
        let (volume, before) = {
            let state = self.state();
            let here = state
                .targets
                .get(&target)
                .filter(|here| here.availability == TargetAvailability::Open);
            let here = here.ok_or_else(|| {
                let detail = format!("there is no open target {target} on this node");
                Problem::new(ProblemKind::NotFound, detail)
            })?;
            (here.volume, here.taken.get(snapshot).cloned())
        };
        if let Some(before) = before {
            if before.request == request {
                return Ok(Applied::unchanged(before));
            }
            let detail = format!(
                "snapshot {snapshot} was taken by target {target} with other attributes; \
                 choose another id"
            );
            return Err(Problem::new(ProblemKind::AlreadyExists, detail));
        }
        let SnapshotRequest { group, taken_at, consistency } = request.clone();
        let order =
            VolumeRequest::Snapshot(SnapshotCommand { snapshot, group, taken_at, consistency });
        let VolumeResponse::Taken(replicas) = self.ask_volume(volume, order).await? else {
            return Err(problems::stopping());
        };
        let taken = TargetSnapshot { snapshot, request, replicas };
        if let Some(here) = self.state().targets.get_mut(&target) {
            here.taken.add(taken.clone());
        }
        let message = format!("taken of volume {volume} on {} copies", taken.replicas.len());
        self.tell(Subject::Snapshot(snapshot), EventName::Created, message);
        Ok(Applied::created(taken))
    }
}
