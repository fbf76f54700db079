//! Scrubs by the node API.
//!
//! A pool is scrubbed as a whole: blocks are shared by replicas and snapshots, so a scrub of a
//! replica is one of its pool, with the pool's progress; the bad blocks are those of the replica
//! and of its snapshots. A scrub of another replica of the same pool joins the one that runs.
//!
//! What is bad in the replica its target rewrites from other copies (`volumes/damage.rs`): a scrub
//! waits for that a while, and looks again.

use std::collections::BTreeMap;

use api::Applied;
use api::node::{ApiResult, JobControl, Run, Scrub, ScrubState};
use block::Bytes;
use model::{EventName, Problem, ProblemKind, ReplicaId, Severity, Subject, VersionedSpec};
use pool::{EntityKind, Id};

use super::engine::{Engine, now};
use super::pool_mapping;
use super::problems::in_field;
use crate::pools::{EntityStatus, PoolRequest, Rate, ScrubStatus};

/// How fast a scrub reads unless told otherwise.
const GENTLE: Bytes = Bytes(100 << 20);
/// Places of damage that are named when a scrub has ended; all are counted.
const NAMED: usize = 16;

impl Engine {
    /// The scrub of a replica that is under way, or the last.
    pub(super) async fn find_scrub(&self, replica: ReplicaId) -> ApiResult<Scrub> {
        let (_, pool, _) = self.place_of(replica).await?;
        let held = self.state().scrubs.get(&replica).cloned();
        let Some(scrub) = held else {
            let detail = format!("replica {replica} was not scrubbed since the engine started");
            return Err(Problem::new(ProblemKind::NotFound, detail));
        };
        self.look_at_scrub(replica, pool, scrub).await
    }

    async fn look_at_scrub(
        &self,
        replica: ReplicaId,
        pool: Id,
        mut scrub: Scrub,
    ) -> ApiResult<Scrub> {
        if scrub.state != (ScrubState::Running {}) {
            return Ok(scrub);
        }
        let status = self.status(pool).await?;
        let id = pool_mapping::id_of(replica.uuid());
        let is_snapshot =
            |one: &EntityStatus| one.entity.kind == EntityKind::Snapshot && one.entity.origin == id;
        let snapshots = status.entities.iter().filter(|one| is_snapshot(one));
        let snapshots: Vec<Id> = snapshots.map(|one| one.entity.id).collect();
        let seen = status.scrub.unwrap_or_default();
        follow(&mut scrub, &seen, id, &snapshots);
        self.state().scrubs.insert(replica, scrub.clone());
        if scrub.ended_at.is_some() {
            let left = scrub.bad_blocks.saturating_sub(scrub.repaired_blocks);
            let severity = match (scrub.bad_blocks, left + scrub.bad_in_snapshots) {
                (_, 1..) => Severity::Error,
                (1.., 0) => Severity::Warning,
                (0, 0) => Severity::Info,
            };
            let message =
                format!("scrub ended: {}{}", scrub.summary(), left_over(&seen, &snapshots));
            self.tell_as(severity, Subject::Replica(replica), EventName::ScrubEnded, message);
        }
        Ok(scrub)
    }

    /// Starts or cancels a scrub.
    pub(super) async fn apply_scrub(
        &self,
        replica: ReplicaId,
        order: VersionedSpec<JobControl>,
    ) -> ApiResult<Applied<Scrub>> {
        let _alone = self.0.replica_locks.of(&replica).write_owned().await;
        let (_, pool, _) = self.place_of(replica).await?;
        let held = self.state().scrubs.get(&replica).cloned();
        let before = match held {
            Some(scrub) => Some(self.look_at_scrub(replica, pool, scrub).await?),
            None => None,
        };
        if let Some(before) = &before {
            let (sent, have) = (order.generation, before.generation);
            if sent < have {
                return Err(model::GenerationConflict::Stale { sent, have }.into());
            }
            if sent == have {
                return Ok(Applied::unchanged(before.clone()));
            }
        }
        let is_running = self.status(pool).await?.scrub.is_some_and(|scrub| scrub.is_running);
        let mut scrub = Scrub::begun(order.generation, now());
        match order.spec.run {
            Run::Pause => {
                let detail = "a scrub cannot wait; cancel it, and start another later";
                return Err(in_field("spec.run", ProblemKind::NotSupported, detail));
            }
            Run::Cancel => {
                if is_running {
                    self.carry_out(pool, PoolRequest::StopScrub(pool)).await?;
                }
                (scrub.state, scrub.ended_at) = (ScrubState::Cancelled {}, Some(now()));
            }
            Run::Run if is_running => {}
            Run::Run => {
                let most = order.spec.bytes_per_second.map_or(GENTLE, Bytes::from);
                self.carry_out(pool, PoolRequest::Scrub { pool, rate: Rate(most) }).await?;
            }
        }
        self.state().scrubs.insert(replica, scrub.clone());
        let scrub = self.look_at_scrub(replica, pool, scrub).await?;
        Ok(if before.is_some() { Applied::changed(scrub) } else { Applied::created(scrub) })
    }
}

/// Where snapshots are still bad: no copy has rewritten that.
fn left_over(seen: &ScrubStatus, snapshots: &[Id]) -> String {
    let left = seen.places.iter().filter(|(id, _)| snapshots.contains(id));
    let name = |(id, span): &(Id, block::Span)| {
        format!("; snapshot {}: {span}", uuid::Uuid::from_u128(id.0))
    };
    left.take(NAMED).map(name).collect::<Vec<_>>().concat()
}

/// Takes over what the scrub of the pool has come to.
fn follow(scrub: &mut Scrub, seen: &ScrubStatus, replica: Id, snapshots: &[Id]) {
    scrub.progress.total = seen.total.into();
    scrub.progress.done = seen.checked.min(seen.total).into();
    let count = |all: &BTreeMap<Id, u64>, id: &Id| all.get(id).copied().unwrap_or(0);
    let of_snapshots = |all| snapshots.iter().map(|id| count(all, id)).sum::<u64>();
    let repaired = of_snapshots(&seen.repaired_of);
    scrub.bad_blocks = count(&seen.bad_of, &replica) + repaired;
    scrub.repaired_blocks = count(&seen.repaired_of, &replica) + repaired;
    scrub.bad_in_snapshots = of_snapshots(&seen.bad_of).saturating_sub(repaired);
    scrub.progress.copied = Bytes(scrub.repaired_blocks.saturating_mul(4096)).into();
    if !seen.is_running {
        let is_whole = seen.checked >= seen.total;
        scrub.state = if is_whole { ScrubState::Completed {} } else { ScrubState::Cancelled {} };
        scrub.ended_at = Some(now());
    }
}
