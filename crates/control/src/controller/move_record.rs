//! Copies on the move: another in the place that was asked for, then this one goes.
//!
//! A move takes as long as a rebuild. It is remembered beside its volume and not as an operation of
//! it, so that the volume can be published, resized and snapshotted meanwhile.

use model::envelope::Versioned;
use model::{
    EventName, PoolName, Problem, ProblemKind, ReplicaId, Severity, Subject, VolumeChange, VolumeId,
};
use planner::ReplicaMove;
use serde::{Deserialize, Serialize};

use super::admission::AdmissionContext;
use super::batch::Batch;
use super::{Controller, PendingRequest, RequestOutcome, State};

/// What is remembered of a move until its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MoveRecord {
    /// Of which volume.
    pub volume: VolumeId,
    /// The copy to leave.
    pub from: ReplicaId,
    /// The copy to make.
    pub replica: ReplicaId,
    /// There.
    pub pool: PoolName,
}

impl Versioned for MoveRecord {
    const KIND: &'static str = "move";
    const VERSION: u32 = 1;
}

impl State {
    /// The move of a copy of a volume, as it is stored.
    pub(crate) fn moving(&self, volume: VolumeId) -> Option<MoveRecord> {
        let ReplicaMove { from, replica, pool } = self.facts.moves.get(&volume)?.clone();
        Some(MoveRecord { volume, from, replica, pool })
    }
}

impl Controller {
    pub(crate) fn decide_move(
        &self,
        context: &mut AdmissionContext<'_, '_>,
        asked: &PendingRequest,
        id: VolumeId,
        (from, pool): (ReplicaId, Option<&PoolName>),
    ) -> Result<Batch, Problem> {
        let volume = self.known_volume(id, asked)?;
        if let Some(moving) = self.state.moving(id) {
            if moving.from == from && pool.is_none_or(|pool| moving.pool == *pool) {
                return Ok(Batch::new().reply(asked.ticket, RequestOutcome::Unchanged));
            }
            let detail = format!(
                "copy {} of volume {id} is on its way to pool {}; wait until it is there",
                moving.from, moving.pool
            );
            return Err(Problem::new(ProblemKind::Busy, detail));
        }
        let pool = planner::check_move(context.view, volume, from, pool)?;
        let moving = MoveRecord { volume: id, from, replica: context.ids.replica()?, pool };
        // It takes as long as a rebuild: nobody waits for that.
        Ok(self.begin_move(moving)?.reply(asked.ticket, RequestOutcome::Changed))
    }

    pub(crate) fn begin_move(&self, moving: MoveRecord) -> Result<Batch, Problem> {
        let mut volume = self.known::<model::VolumeSpec>(&moving.volume)?.clone();
        let MoveRecord { from, replica, pool, .. } = moving.clone();
        let message = format!("copy {from} moves to pool {pool}");
        volume.change(VolumeChange::MoveReplica { from, replica, pool }, self.now)?;
        let subject = Subject::Volume(moving.volume);
        let batch = Batch::new().put(volume).put(moving);
        Ok(batch.tell(subject, EventName::Changed, Severity::Info, message))
    }

    /// The move of a volume, whose end has come, is remembered no longer.
    pub(crate) fn end_move(&mut self, volume: VolumeId) {
        let Some(moving) = self.state.moving(volume) else { return };
        self.state.facts.moved_at = Some(self.now);
        let left = self.state.facts.replicas.contains_key(&moving.from);
        let (severity, message) = if left && self.state.pool(&moving.pool).is_none() {
            (Severity::Warning, format!("no copy moves: pool {} is gone", moving.pool))
        } else {
            (Severity::Info, format!("copy {} has moved", moving.from))
        };
        let batch = Batch::new().drop(moving);
        self.try_commit(batch.tell(Subject::Volume(volume), EventName::Changed, severity, message));
    }

    /// A copy cannot be made: a move that wanted it is called off, and what is there stays.
    pub(crate) fn call_off(&self, replica: ReplicaId, batch: Batch) -> Batch {
        let found = self.state.facts.replicas.get(&replica);
        let moving = found.and_then(|found| self.state.moving(found.spec().volume));
        match moving.filter(|moving| moving.replica == replica) {
            Some(moving) => batch.drop(moving),
            None => batch,
        }
    }

    /// With a volume what is remembered of its move goes.
    pub(crate) fn drop_move(&self, volume: VolumeId, batch: Batch) -> Batch {
        self.state.moving(volume).into_iter().fold(batch, Batch::drop)
    }
}
