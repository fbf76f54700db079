//! Copies on the move: another in the place that was asked for, then this one goes.
//!
//! A move takes as long as a rebuild. It is remembered beside its volume and not as an operation of
//! it, so that the volume can be published, resized and snapshotted meanwhile.

use model::stored::Record;
use model::{
    EventName, Kind, PoolName, Problem, ReplicaId, Severity, Subject, VolumeChange, VolumeId,
};
use planner::Move;
use serde::{Deserialize, Serialize};

use super::batch::Batch;
use super::wishes::Desk;
use super::{Asked, Core, Done, State};

/// What is remembered of a move until its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Moving {
    /// Of which volume.
    pub volume: VolumeId,
    /// The copy to leave.
    pub from: ReplicaId,
    /// The copy to make.
    pub replica: ReplicaId,
    /// There.
    pub pool: PoolName,
}

impl Record for Moving {
    const KIND: &'static str = "move";
    const VERSION: u32 = 1;
}

impl State {
    /// The move of a copy of a volume, as it is stored.
    pub(crate) fn moving(&self, volume: VolumeId) -> Option<Moving> {
        let Move { from, replica, pool } = self.facts.moves.get(&volume)?.clone();
        Some(Moving { volume, from, replica, pool })
    }
}

impl Core {
    pub(crate) fn decide_move(
        &self,
        desk: &mut Desk<'_, '_>,
        asked: &Asked,
        id: VolumeId,
        (from, pool): (ReplicaId, Option<&PoolName>),
    ) -> Result<Batch, Problem> {
        let volume = self.known_volume(id, asked)?;
        if let Some(moving) = self.state.moving(id) {
            if moving.from == from && pool.is_none_or(|pool| moving.pool == *pool) {
                return Ok(Batch::new().reply(asked.ticket, Done::Unchanged));
            }
            let detail = format!(
                "copy {} of volume {id} is on its way to pool {}; wait until it is there",
                moving.from, moving.pool
            );
            return Err(Problem::new(Kind::Busy, detail));
        }
        let pool = planner::check_move(desk.view, volume, from, pool)?;
        let moving = Moving { volume: id, from, replica: desk.ids.replica()?, pool };
        // It takes as long as a rebuild: nobody waits for that.
        Ok(self.begin_move(moving)?.reply(asked.ticket, Done::Changed))
    }

    pub(crate) fn begin_move(&self, moving: Moving) -> Result<Batch, Problem> {
        let mut volume = self.known::<model::VolumeSpec>(&moving.volume)?.clone();
        let Moving { from, replica, pool, .. } = moving.clone();
        let message = format!("copy {from} moves to pool {pool}");
        volume.change(VolumeChange::MoveReplica { from, replica, pool }, self.now)?;
        let subject = Subject::Volume(moving.volume);
        let batch = Batch::new().put(volume).put(moving);
        Ok(batch.tell(subject, EventName::Changed, Severity::Info, message))
    }

    /// The move of a volume, whose end has come, is remembered no longer.
    pub(crate) fn end_move(&mut self, volume: VolumeId) {
        let Some(moving) = self.state.moving(volume) else { return };
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
