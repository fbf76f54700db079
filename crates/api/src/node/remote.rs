//! An engine far away: the contract, over HTTP.

use model::{
    BlockDevice, Event, PoolName, PoolSpec, Rebuild, RebuildId, ReplicaId, ReplicaLabel,
    ReplicaSpec, SnapshotId, SpecBackup, TargetId, TargetSpec, VersionedSpec,
};

#[cfg(feature = "faults")]
use super::Faults;
use super::{
    ApiResult, CheckReport, CheckRequest, DeletePool, DeleteReplica, DiffQuery, Fence, FenceReset,
    GenerationQuery, Health, JobControl, Node, NodeInfo, Observed, ObservedSnapshot, PoolFilter,
    Range, RebuildRequest, Scrub, SnapshotRequest, Statistics, TargetSnapshot, routes,
};
use crate::{Applied, Deleted, EventStream, NoBody, NoQuery, Page, Paging, Route, Text};

/// An engine that is called over HTTP. Cheap to clone.
pub type Remote = crate::remote::Remote<Contract>;

/// What is spoken with an engine.
#[derive(Clone, Copy, Debug)]
pub enum Contract {}

impl crate::remote::Contract for Contract {
    const EVENTS: Route<(), NoQuery, NoBody, EventStream<Event>> = routes::EVENTS;
}

impl Node for Remote {
    fn health(&self) -> impl Future<Output = ApiResult<Health>> + Send {
        self.ask(&routes::HEALTH, (), (NoQuery {}, NoBody), None)
    }

    fn node(&self) -> impl Future<Output = ApiResult<NodeInfo>> + Send {
        self.ask(&routes::NODE, (), (NoQuery {}, NoBody), None)
    }

    fn pools(
        &self,
        paging: Paging,
    ) -> impl Future<Output = ApiResult<Page<Observed<PoolSpec>>>> + Send {
        self.ask(&routes::POOLS, (), (paging, NoBody), None)
    }

    fn pool(&self, pool: PoolName) -> impl Future<Output = ApiResult<Observed<PoolSpec>>> + Send {
        self.ask(&routes::POOL, (pool,), (NoQuery {}, NoBody), None)
    }

    fn put_pool(
        &self,
        pool: PoolName,
        order: VersionedSpec<PoolSpec>,
    ) -> impl Future<Output = ApiResult<Applied<Observed<PoolSpec>>>> + Send {
        self.ask(&routes::PUT_POOL, (pool,), (NoQuery {}, order), None)
    }

    fn delete_pool(
        &self,
        pool: PoolName,
        order: DeletePool,
    ) -> impl Future<Output = ApiResult<Deleted>> + Send {
        self.ask(&routes::DELETE_POOL, (pool,), (order, NoBody), None)
    }

    fn clear_pool_errors(&self, pool: PoolName) -> impl Future<Output = ApiResult<Deleted>> + Send {
        self.ask(&routes::CLEAR_POOL_ERRORS, (pool,), (NoQuery {}, NoBody), None)
    }

    fn replicas(
        &self,
        paging: Paging,
    ) -> impl Future<Output = ApiResult<Page<Observed<ReplicaSpec>>>> + Send {
        self.ask(&routes::REPLICAS, (), (paging, NoBody), None)
    }

    fn replica(
        &self,
        replica: ReplicaId,
    ) -> impl Future<Output = ApiResult<Observed<ReplicaSpec>>> + Send {
        self.ask(&routes::REPLICA, (replica,), (NoQuery {}, NoBody), None)
    }

    fn put_replica(
        &self,
        replica: ReplicaId,
        order: VersionedSpec<ReplicaSpec>,
    ) -> impl Future<Output = ApiResult<Applied<Observed<ReplicaSpec>>>> + Send {
        self.ask(&routes::PUT_REPLICA, (replica,), (NoQuery {}, order), None)
    }

    fn delete_replica(
        &self,
        replica: ReplicaId,
        order: DeleteReplica,
    ) -> impl Future<Output = ApiResult<Deleted>> + Send {
        self.ask(&routes::DELETE_REPLICA, (replica,), (order, NoBody), None)
    }

    fn put_label(
        &self,
        replica: ReplicaId,
        label: ReplicaLabel,
    ) -> impl Future<Output = ApiResult<Applied<ReplicaLabel>>> + Send {
        self.ask(&routes::PUT_LABEL, (replica,), (NoQuery {}, label), None)
    }

    fn put_spec_backup(
        &self,
        replica: ReplicaId,
        spec_backup: SpecBackup,
    ) -> impl Future<Output = ApiResult<Applied<SpecBackup>>> + Send {
        self.ask(&routes::PUT_SPEC_BACKUP, (replica,), (NoQuery {}, spec_backup), None)
    }

    fn written(
        &self,
        replica: ReplicaId,
        paging: Paging,
    ) -> impl Future<Output = ApiResult<Page<Range>>> + Send {
        self.ask(&routes::WRITTEN, (replica,), (paging, NoBody), None)
    }

    fn scrub(&self, replica: ReplicaId) -> impl Future<Output = ApiResult<Scrub>> + Send {
        self.ask(&routes::SCRUB, (replica,), (NoQuery {}, NoBody), None)
    }

    fn put_scrub(
        &self,
        replica: ReplicaId,
        order: VersionedSpec<JobControl>,
    ) -> impl Future<Output = ApiResult<Applied<Scrub>>> + Send {
        self.ask(&routes::PUT_SCRUB, (replica,), (NoQuery {}, order), None)
    }

    fn fence(&self, replica: ReplicaId) -> impl Future<Output = ApiResult<Fence>> + Send {
        self.ask(&routes::FENCE, (replica,), (NoQuery {}, NoBody), None)
    }

    fn reset_fence(
        &self,
        replica: ReplicaId,
        reset: FenceReset,
    ) -> impl Future<Output = ApiResult<Applied<Fence>>> + Send {
        self.ask(&routes::RESET_FENCE, (replica,), (NoQuery {}, reset), None)
    }

    fn snapshots(
        &self,
        paging: Paging,
    ) -> impl Future<Output = ApiResult<Page<ObservedSnapshot>>> + Send {
        self.ask(&routes::SNAPSHOTS, (), (paging, NoBody), None)
    }

    fn put_snapshot(
        &self,
        replica: ReplicaId,
        snapshot: SnapshotId,
        request: SnapshotRequest,
    ) -> impl Future<Output = ApiResult<Applied<ObservedSnapshot>>> + Send {
        self.ask(&routes::PUT_SNAPSHOT, (replica, snapshot), (NoQuery {}, request), None)
    }

    fn delete_snapshot(
        &self,
        replica: ReplicaId,
        snapshot: SnapshotId,
        place: PoolFilter,
    ) -> impl Future<Output = ApiResult<Deleted>> + Send {
        self.ask(&routes::DELETE_SNAPSHOT, (replica, snapshot), (place, NoBody), None)
    }

    fn changed(
        &self,
        replica: ReplicaId,
        snapshot: SnapshotId,
        changed: DiffQuery,
    ) -> impl Future<Output = ApiResult<Page<Range>>> + Send {
        self.ask(&routes::CHANGED, (replica, snapshot), (changed, NoBody), None)
    }

    fn targets(
        &self,
        paging: Paging,
    ) -> impl Future<Output = ApiResult<Page<Observed<TargetSpec>>>> + Send {
        self.ask(&routes::TARGETS, (), (paging, NoBody), None)
    }

    fn target(
        &self,
        target: TargetId,
    ) -> impl Future<Output = ApiResult<Observed<TargetSpec>>> + Send {
        self.ask(&routes::TARGET, (target,), (NoQuery {}, NoBody), None)
    }

    fn put_target(
        &self,
        target: TargetId,
        order: VersionedSpec<TargetSpec>,
    ) -> impl Future<Output = ApiResult<Applied<Observed<TargetSpec>>>> + Send {
        self.ask(&routes::PUT_TARGET, (target,), (NoQuery {}, order), None)
    }

    fn delete_target(
        &self,
        target: TargetId,
        order: GenerationQuery,
    ) -> impl Future<Output = ApiResult<Deleted>> + Send {
        self.ask(&routes::DELETE_TARGET, (target,), (order, NoBody), None)
    }

    fn put_target_snapshot(
        &self,
        target: TargetId,
        snapshot: SnapshotId,
        request: SnapshotRequest,
    ) -> impl Future<Output = ApiResult<Applied<TargetSnapshot>>> + Send {
        self.ask(&routes::PUT_TARGET_SNAPSHOT, (target, snapshot), (NoQuery {}, request), None)
    }

    fn check_target(
        &self,
        target: TargetId,
        request: CheckRequest,
    ) -> impl Future<Output = ApiResult<CheckReport>> + Send {
        self.ask(&routes::CHECK_TARGET, (target,), (NoQuery {}, request), None)
    }

    fn rebuilds(&self, paging: Paging) -> impl Future<Output = ApiResult<Page<Rebuild>>> + Send {
        self.ask(&routes::REBUILDS, (), (paging, NoBody), None)
    }

    fn rebuild(&self, rebuild: RebuildId) -> impl Future<Output = ApiResult<Rebuild>> + Send {
        self.ask(&routes::REBUILD, (rebuild,), (NoQuery {}, NoBody), None)
    }

    fn put_rebuild(
        &self,
        rebuild: RebuildId,
        order: VersionedSpec<RebuildRequest>,
    ) -> impl Future<Output = ApiResult<Applied<Rebuild>>> + Send {
        self.ask(&routes::PUT_REBUILD, (rebuild,), (NoQuery {}, order), None)
    }

    fn statistics(
        &self,
        paging: Paging,
    ) -> impl Future<Output = ApiResult<Page<Statistics>>> + Send {
        self.ask(&routes::STATISTICS, (), (paging, NoBody), None)
    }

    fn devices(&self, paging: Paging) -> impl Future<Output = ApiResult<Page<BlockDevice>>> + Send {
        self.ask(&routes::DEVICES, (), (paging, NoBody), None)
    }

    fn metrics(&self) -> impl Future<Output = ApiResult<Text>> + Send {
        self.ask(&routes::METRICS, (), (NoQuery {}, NoBody), None)
    }

    #[cfg(feature = "faults")]
    fn faults(&self) -> impl Future<Output = ApiResult<Faults>> + Send {
        self.ask(&routes::FAULTS, (), (NoQuery {}, NoBody), None)
    }

    #[cfg(feature = "faults")]
    fn put_faults(
        &self,
        faults: Faults,
    ) -> impl Future<Output = ApiResult<Applied<Faults>>> + Send {
        self.ask(&routes::PUT_FAULTS, (), (NoQuery {}, faults), None)
    }
}
