//! The contract as a trait.

use model::{
    BlockDevice, PoolName, PoolSpec, Problem, Rebuild, RebuildId, ReplicaId, ReplicaLabel,
    ReplicaSpec, SnapshotId, SpecBackup, TargetId, TargetSpec, VersionedSpec,
};

#[cfg(feature = "faults")]
use super::Faults;
use super::{
    CheckReport, CheckRequest, DeletePool, DeleteReplica, DiffQuery, Fence, FenceReset,
    GenerationQuery, Health, JobControl, NodeInfo, Observed, ObservedSnapshot, PoolFilter, Range,
    RebuildRequest, Scrub, SnapshotRequest, Statistics, TargetSnapshot,
};
use crate::{Applied, Deleted, Page, Paging, Text};

/// An answer, or why there is none.
pub type ApiResult<T> = Result<T, Problem>;

/// An engine, here or far away. Every function may be called again without harm.
pub trait Node: Send + Sync + 'static {
    /// Whether this engine can do its work.
    fn health(&self) -> impl Future<Output = ApiResult<Health>> + Send;

    /// Which engine this is.
    fn node(&self) -> impl Future<Output = ApiResult<NodeInfo>> + Send;

    /// The pools of this engine, by name.
    fn pools(
        &self,
        paging: Paging,
    ) -> impl Future<Output = ApiResult<Page<Observed<PoolSpec>>>> + Send;

    /// One pool.
    fn pool(&self, pool: PoolName) -> impl Future<Output = ApiResult<Observed<PoolSpec>>> + Send;

    /// Make, import, export or grow a pool, or give it a disk more.
    fn put_pool(
        &self,
        pool: PoolName,
        order: VersionedSpec<PoolSpec>,
    ) -> impl Future<Output = ApiResult<Applied<Observed<PoolSpec>>>> + Send;

    /// Destroy a pool that has no replicas and no snapshots.
    fn delete_pool(
        &self,
        pool: PoolName,
        order: DeletePool,
    ) -> impl Future<Output = ApiResult<Deleted>> + Send;

    /// Errors of the disks of a pool until now count no more.
    fn clear_pool_errors(&self, pool: PoolName) -> impl Future<Output = ApiResult<Deleted>> + Send;

    /// The replicas of this engine, by id.
    fn replicas(
        &self,
        paging: Paging,
    ) -> impl Future<Output = ApiResult<Page<Observed<ReplicaSpec>>>> + Send;

    /// One replica.
    fn replica(
        &self,
        replica: ReplicaId,
    ) -> impl Future<Output = ApiResult<Observed<ReplicaSpec>>> + Send;

    /// Make a replica, empty or from a snapshot; share it, unshare it, resize it.
    fn put_replica(
        &self,
        replica: ReplicaId,
        order: VersionedSpec<ReplicaSpec>,
    ) -> impl Future<Output = ApiResult<Applied<Observed<ReplicaSpec>>>> + Send;

    /// Destroy a replica; its snapshots stay.
    fn delete_replica(
        &self,
        replica: ReplicaId,
        order: DeleteReplica,
    ) -> impl Future<Output = ApiResult<Deleted>> + Send;

    /// Write the label of a replica; an older stamp than it has is refused.
    fn put_label(
        &self,
        replica: ReplicaId,
        label: ReplicaLabel,
    ) -> impl Future<Output = ApiResult<Applied<ReplicaLabel>>> + Send;

    /// Write with a replica what is wanted of its volume; an older generation is refused.
    fn put_spec_backup(
        &self,
        replica: ReplicaId,
        spec_backup: SpecBackup,
    ) -> impl Future<Output = ApiResult<Applied<SpecBackup>>> + Send;

    /// What of a replica is written, in order.
    fn written(
        &self,
        replica: ReplicaId,
        paging: Paging,
    ) -> impl Future<Output = ApiResult<Page<Range>>> + Send;

    /// The scrub of a replica that is under way, or the last.
    fn scrub(&self, replica: ReplicaId) -> impl Future<Output = ApiResult<Scrub>> + Send;

    /// Start, pause, resume or cancel a scrub of a replica.
    fn put_scrub(
        &self,
        replica: ReplicaId,
        order: VersionedSpec<JobControl>,
    ) -> impl Future<Output = ApiResult<Applied<Scrub>>> + Send;

    /// The fence of a replica.
    fn fence(&self, replica: ReplicaId) -> impl Future<Output = ApiResult<Fence>> + Send;

    /// Lower the fence of a replica that an absurd epoch locked.
    fn reset_fence(
        &self,
        replica: ReplicaId,
        reset: FenceReset,
    ) -> impl Future<Output = ApiResult<Applied<Fence>>> + Send;

    /// The snapshots of this engine, by replica and id.
    fn snapshots(
        &self,
        paging: Paging,
    ) -> impl Future<Output = ApiResult<Page<ObservedSnapshot>>> + Send;

    /// Take a snapshot of one replica.
    fn put_snapshot(
        &self,
        replica: ReplicaId,
        snapshot: SnapshotId,
        request: SnapshotRequest,
    ) -> impl Future<Output = ApiResult<Applied<ObservedSnapshot>>> + Send;

    /// Delete a snapshot of one replica; clones keep what they need.
    fn delete_snapshot(
        &self,
        replica: ReplicaId,
        snapshot: SnapshotId,
        place: PoolFilter,
    ) -> impl Future<Output = ApiResult<Deleted>> + Send;

    /// What a snapshot has that an older one has not, in order.
    fn changed(
        &self,
        replica: ReplicaId,
        snapshot: SnapshotId,
        changed: DiffQuery,
    ) -> impl Future<Output = ApiResult<Page<Range>>> + Send;

    /// The targets of this engine, by id.
    fn targets(
        &self,
        paging: Paging,
    ) -> impl Future<Output = ApiResult<Page<Observed<TargetSpec>>>> + Send;

    /// One target, with its children.
    fn target(
        &self,
        target: TargetId,
    ) -> impl Future<Output = ApiResult<Observed<TargetSpec>>> + Send;

    /// Make a target or change it: its children, hosts, size, limits, path state; shut it down.
    fn put_target(
        &self,
        target: TargetId,
        order: VersionedSpec<TargetSpec>,
    ) -> impl Future<Output = ApiResult<Applied<Observed<TargetSpec>>>> + Send;

    /// Stop a target and forget it; its replicas stay.
    fn delete_target(
        &self,
        target: TargetId,
        order: GenerationQuery,
    ) -> impl Future<Output = ApiResult<Deleted>> + Send;

    /// Take a snapshot of a volume at one point, on all children in sync or on none.
    fn put_target_snapshot(
        &self,
        target: TargetId,
        snapshot: SnapshotId,
        request: SnapshotRequest,
    ) -> impl Future<Output = ApiResult<Applied<TargetSnapshot>>> + Send;

    /// Read a part of a volume on all copies in sync, compare, and rewrite what is damaged.
    fn check_target(
        &self,
        target: TargetId,
        request: CheckRequest,
    ) -> impl Future<Output = ApiResult<CheckReport>> + Send;

    /// Rebuilds under way and the last that ended, by id.
    fn rebuilds(&self, paging: Paging) -> impl Future<Output = ApiResult<Page<Rebuild>>> + Send;

    /// One rebuild.
    fn rebuild(&self, rebuild: RebuildId) -> impl Future<Output = ApiResult<Rebuild>> + Send;

    /// Start, pause, resume or cancel a rebuild.
    fn put_rebuild(
        &self,
        rebuild: RebuildId,
        order: VersionedSpec<RebuildRequest>,
    ) -> impl Future<Output = ApiResult<Applied<Rebuild>>> + Send;

    /// What was done and how long it took, for targets, children, replicas and disks.
    fn statistics(
        &self,
        paging: Paging,
    ) -> impl Future<Output = ApiResult<Page<Statistics>>> + Send;

    /// The block devices of the node, and what keeps a pool from being made on each.
    fn devices(&self, paging: Paging) -> impl Future<Output = ApiResult<Page<BlockDevice>>> + Send;

    /// Metrics for Prometheus.
    fn metrics(&self) -> impl Future<Output = ApiResult<Text>> + Send;

    /// The faults that are injected, and how often each hit. An engine that can inject none has
    /// none.
    #[cfg(feature = "faults")]
    fn faults(&self) -> impl Future<Output = ApiResult<Faults>> + Send {
        std::future::ready(Ok(Faults::default()))
    }

    /// Inject exactly these faults.
    #[cfg(feature = "faults")]
    fn put_faults(&self, _: Faults) -> impl Future<Output = ApiResult<Applied<Faults>>> + Send {
        let detail = "this engine was built without faults; use a test build";
        std::future::ready(Err(Problem::new(model::ProblemKind::NotSupported, detail)))
    }
}
