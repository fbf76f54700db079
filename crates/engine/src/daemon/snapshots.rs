//! Snapshots of replicas, and which blocks are written or have changed.
//!
//! A snapshot may outlive its replica, and targets take snapshots too, so they are always looked
//! for in the pools themselves.

use api::node::{ApiResult, DiffQuery, ObservedSnapshot, Range, SnapshotRequest};
use api::{Applied, Deleted, Page, Paging};
use block::Blocks;
use model::{
    EventName, PoolName, Problem, ProblemKind, ReplicaId, SnapshotId, SnapshotLabel, Subject,
};
use pool::{Change, Id};

use super::engine::Engine;
use super::problems::{self, in_field};
use super::{pool_mapping, ranges};
use crate::pools::{EntityStatus, PoolError, PoolRequest, Runs};

fn missing_snapshot(replica: ReplicaId, snapshot: SnapshotId) -> Problem {
    let detail = format!("there is no snapshot {snapshot} of replica {replica} on this node");
    Problem::new(ProblemKind::NotFound, detail)
}

fn is_of(found: &EntityStatus, replica: ReplicaId) -> bool {
    found.entity.kind == pool::EntityKind::Snapshot
        && found.entity.origin == pool_mapping::id_of(replica.uuid())
}

impl Engine {
    /// The pool that holds a snapshot of a replica, if one does.
    async fn snapshot_place(
        &self,
        replica: ReplicaId,
        snapshot: SnapshotId,
    ) -> ApiResult<Option<(PoolName, Id, EntityStatus)>> {
        for (name, pool) in self.open_pools() {
            let found = match self.entity(pool, pool_mapping::id_of(snapshot.uuid())).await {
                Ok(found) => found,
                // It was exported meanwhile.
                Err(problem) if problem.kind == ProblemKind::NotFound => None,
                Err(problem) => return Err(problem),
            };
            if let Some(found) = found.filter(|found| is_of(found, replica)) {
                return Ok(Some((name, pool, found)));
            }
        }
        Ok(None)
    }

    fn found_snapshot(&self, pool: &PoolName, one: &EntityStatus) -> Option<ObservedSnapshot> {
        let label = pool_mapping::snapshot_label(&one.entity)?;
        let state = self.state();
        let clones = state.replicas.iter();
        let clones =
            clones.filter(|(_, replica_entry)| replica_entry.source == Some(label.snapshot));
        let clones = clones.map(|(replica, _)| *replica).collect();
        let usage = pool_mapping::usage_of(one.usage, one.entity.kind);
        Some(ObservedSnapshot { label, pool: pool.clone(), usage, clones })
    }

    /// A page of snapshots, by replica and id.
    pub(super) async fn page_of_snapshots(
        &self,
        paging: Paging,
    ) -> ApiResult<Page<ObservedSnapshot>> {
        let mut all = Vec::new();
        for (name, pool) in self.open_pools() {
            let status = match self.status(pool).await {
                Ok(status) => status,
                Err(problem) if problem.kind == ProblemKind::NotFound => continue,
                Err(problem) => return Err(problem),
            };
            let snapshots =
                status.entities.iter().filter(|one| one.entity.kind == pool::EntityKind::Snapshot);
            all.extend(snapshots.filter_map(|one| self.found_snapshot(&name, one)));
        }
        let key =
            |found: &ObservedSnapshot| format!("{} {}", found.label.replica, found.label.snapshot);
        all.sort_by_key(key);
        paging.cut(all, key)
    }

    /// Takes a snapshot of a replica.
    pub(super) async fn apply_snapshot(
        &self,
        replica: ReplicaId,
        snapshot: SnapshotId,
        request: SnapshotRequest,
    ) -> ApiResult<Applied<ObservedSnapshot>> {
        let _alone = self.0.replica_locks.of(&replica).write_owned().await;
        let unreadable = || {
            let detail = format!("the label of snapshot {snapshot} cannot be written");
            Problem::new(ProblemKind::Internal, detail)
        };
        if let Some((name, _, found)) = self.snapshot_place(replica, snapshot).await? {
            let found = self.found_snapshot(&name, &found).ok_or_else(unreadable)?;
            let SnapshotLabel { group, taken_at, consistency, .. } = found.label;
            if (SnapshotRequest { group, taken_at, consistency }) == request {
                return Ok(Applied::unchanged(found));
            }
            let detail = format!(
                "snapshot {snapshot} of replica {replica} is there with other attributes; \
                 choose another id"
            );
            return Err(Problem::new(ProblemKind::AlreadyExists, detail));
        }
        let (_, pool, of) = self.place_of(replica).await?;
        let SnapshotRequest { group, taken_at, consistency } = request;
        let volume = pool_mapping::volume(&of.entity).ok_or_else(unreadable)?;
        let size = pool_mapping::size_of(of.entity.size);
        let label = SnapshotLabel { snapshot, volume, replica, group, taken_at, size, consistency };
        let new = pool_mapping::new_snapshot(&of.entity, &label).ok_or_else(unreadable)?;
        let change = Change::Snapshot { of: of.entity.id, snapshot: new };
        self.carry_out(pool, PoolRequest::Change { pool, change }).await?;
        let message = format!("taken of replica {replica}");
        self.tell(Subject::Snapshot(snapshot), EventName::Created, message);
        let found = self.snapshot_place(replica, snapshot).await?;
        let found = found.and_then(|(name, _, found)| self.found_snapshot(&name, &found));
        found.map(Applied::created).ok_or_else(|| missing_snapshot(replica, snapshot))
    }

    /// Deletes a snapshot.
    pub(super) async fn remove_snapshot(
        &self,
        (replica, snapshot): (ReplicaId, SnapshotId),
        pool: PoolName,
    ) -> ApiResult<Deleted> {
        let _pool = self.0.pool_locks.of(&pool).read_owned().await;
        let _alone = self.0.replica_locks.of(&replica).write_owned().await;
        let pool = self.open_pool(&pool)?;
        let found = self.entity(pool, pool_mapping::id_of(snapshot.uuid())).await?;
        let Some(found) = found.filter(|found| is_of(found, replica)) else {
            return Ok(Deleted { existed: false });
        };
        let change = Change::Delete(found.entity.id);
        match self.ask(pool, PoolRequest::Change { pool, change }).await? {
            Ok(_) => {}
            Err(PoolError::Refused(pool::Refused::NotFound)) => {
                return Ok(Deleted { existed: false });
            }
            Err(error) => return Err(problems::of_pool(&error)),
        }
        let message = format!("deleted from replica {replica}");
        self.tell(Subject::Snapshot(snapshot), EventName::Deleted, message);
        Ok(Deleted { existed: true })
    }

    /// A page of what a snapshot has that an older one has not.
    pub(super) async fn page_of_changes(
        &self,
        replica: ReplicaId,
        snapshot: SnapshotId,
        changed: DiffQuery,
    ) -> ApiResult<Page<Range>> {
        let paging = Paging { limit: changed.limit, after: changed.after };
        let Some((_, pool, found)) = self.snapshot_place(replica, snapshot).await? else {
            self.all_are_open()?;
            return Err(missing_snapshot(replica, snapshot));
        };
        let id = found.entity.id;
        let Some(since) = changed.since else {
            return self.page_of_written((pool, id), &paging).await;
        };
        let older = self.entity(pool, pool_mapping::id_of(since.uuid())).await?;
        let Some(older) = older.filter(|older| is_of(older, replica)) else {
            let detail = format!("there is no snapshot {since} of replica {replica} to compare to");
            return Err(in_field("since", ProblemKind::NotFound, detail));
        };
        let older = older.entity.id;
        let asked = |from: Blocks, most| PoolRequest::ChangedSince {
            older,
            runs: Runs { pool, id, from, most },
        };
        self.page_of_runs(pool, &paging, asked).await
    }

    /// A page of what is written of a replica or snapshot.
    pub(super) async fn page_of_written(
        &self,
        (pool, id): (Id, Id),
        paging: &Paging,
    ) -> ApiResult<Page<Range>> {
        let asked = |from, most| PoolRequest::Written(Runs { pool, id, from, most });
        self.page_of_runs(pool, paging, asked).await
    }

    async fn page_of_runs(
        &self,
        pool: Id,
        paging: &Paging,
        asked: impl FnOnce(Blocks, usize) -> PoolRequest,
    ) -> ApiResult<Page<Range>> {
        let (from, limit) = (ranges::start(paging)?, paging.limit()?);
        // One more says whether there is a next page.
        let order = asked(from, limit.saturating_add(1));
        match self.carry_out(pool, order).await? {
            crate::pools::PoolResponse::Runs(runs) => Ok(ranges::page(&runs, limit)),
            _ => Err(problems::stopping()),
        }
    }
}
