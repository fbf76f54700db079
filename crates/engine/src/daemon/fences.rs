//! The fence of a replica by the node API: looked at, and lowered when an absurd epoch locked it.
//!
//! A fence only grows by itself. It is lowered by an administrator alone, who names what is
//! remembered now; never below the epoch that the data were written with; and while nobody is
//! connected, so that nothing that was sent before takes effect after.

use api::Applied;
use api::node::{ApiResult, Fence, FenceReset};
use model::{EventName, Nqn, Problem, ProblemKind, ReplicaId, Severity, Subject};
use pool::{Change, Entity};

use super::engine::Engine;
use super::pool_mapping;
use super::problems::{self, in_field};
use super::replicas::wire_name;
use crate::pools::PoolRequest;
use crate::serve::{fence_of, kept_fence};

impl Engine {
    /// The highest epoch that ever held a replica.
    pub(super) async fn find_fence(&self, replica: ReplicaId) -> ApiResult<Fence> {
        let (_, _, found) = self.place_of(replica).await?;
        fence_in(replica, &found.entity)
    }

    /// Lowers it.
    pub(super) async fn apply_fence(
        &self,
        replica: ReplicaId,
        reset: FenceReset,
    ) -> ApiResult<Applied<Fence>> {
        let _alone = self.0.replica_locks.of(&replica).write_owned().await;
        let (_, pool, found) = self.place_of(replica).await?;
        let before = fence_in(replica, &found.entity)?;
        let wanted = Fence { epoch: reset.epoch };
        if before == wanted {
            return Ok(Applied::unchanged(before));
        }
        check(replica, reset, before, &found.entity)?;
        let removed = self.0.orders.remove(wire_name(&Nqn::replica(replica))?).await;
        removed.map_err(|error| problems::of_order(&error))?;
        if let Some(replica_entry) = self.state().replicas.get_mut(&replica) {
            replica_entry.served.clear();
        }
        let change = Change::Share { id: found.entity.id, share: kept_fence(reset.epoch) };
        let lowered = self.carry_out(pool, PoolRequest::Change { pool, change }).await;
        // It is served again, also with the fence that it had.
        self.share(replica, pool).await?;
        lowered?;
        let message = format!(
            "its fence was lowered from epoch {} to {} by an administrator",
            before.epoch, reset.epoch
        );
        self.tell_as(Severity::Warning, Subject::Replica(replica), EventName::Changed, message);
        Ok(Applied::changed(wanted))
    }
}

fn fence_in(replica: ReplicaId, entity: &Entity) -> ApiResult<Fence> {
    let epoch = fence_of(&entity.share).ok_or_else(|| {
        Problem::new(
            ProblemKind::Internal,
            format!("what replica {replica} remembers cannot be read"),
        )
    })?;
    Ok(Fence { epoch })
}

/// Refuses what nobody can mean.
fn check(replica: ReplicaId, reset: FenceReset, now: Fence, entity: &Entity) -> ApiResult<()> {
    if reset.seen != now.epoch {
        let detail = format!("replica {replica} remembers epoch {}; name that", now.epoch);
        return Err(in_field("seen", ProblemKind::StaleGeneration, detail));
    }
    if reset.epoch > now.epoch {
        let detail = "a fence is only lowered; it grows when a target attaches the replica";
        return Err(in_field("epoch", ProblemKind::InvalidArgument, detail));
    }
    let label = pool_mapping::label(entity).map_err(|error| problems::of_record(&error))?;
    let written = label.map_or(0, |label| label.epoch.number());
    if reset.epoch < written {
        let detail = format!("its data were written with epoch {written}; give that or a higher");
        return Err(in_field("epoch", ProblemKind::InvalidArgument, detail));
    }
    Ok(())
}
