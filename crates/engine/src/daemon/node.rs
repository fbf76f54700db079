//! The node API: who answers which request.

#[cfg(feature = "faults")]
use api::node::Faults;
use api::node::{
    ApiResult, CheckReport, CheckRequest, DeletePool, DeleteReplica, DiffQuery, Fence, FenceReset,
    GenerationQuery, Health, JobControl, Node, NodeInfo, Observed, ObservedSnapshot, PoolFilter,
    Range, RebuildRequest, Scrub, SnapshotRequest, Statistics, TargetSnapshot,
};
use api::{Applied, Deleted, Page, Paging, Text};
use model::{
    BlockDevice, PoolName, PoolSpec, ProblemKind, Rebuild, RebuildId, ReplicaId, ReplicaLabel,
    ReplicaSpec, SnapshotId, SpecBackup, TargetId, TargetSpec, VersionedSpec,
};

use super::engine::Engine;
use super::pool_mapping;
#[cfg(feature = "faults")]
use crate::faults;

impl Node for Engine {
    async fn health(&self) -> ApiResult<Health> {
        self.is_alive().await?;
        let info = &self.0.info;
        Ok(Health { version: info.version.clone(), instance: info.instance })
    }

    async fn node(&self) -> ApiResult<NodeInfo> {
        Ok(self.0.info.clone())
    }

    async fn pools(&self, paging: Paging) -> ApiResult<Page<Observed<PoolSpec>>> {
        let names: Vec<PoolName> = self.state().pools.keys().cloned().collect();
        let page = paging.cut(names, ToString::to_string)?;
        let mut items = Vec::with_capacity(page.items.len());
        for name in page.items {
            match self.find_pool(&name).await {
                Ok(found) => items.push(found),
                // It went away meanwhile.
                Err(problem) if problem.kind == ProblemKind::NotFound => {}
                Err(problem) => return Err(problem),
            }
        }
        Ok(Page { items, after: page.after })
    }

    async fn pool(&self, pool: PoolName) -> ApiResult<Observed<PoolSpec>> {
        self.find_pool(&pool).await
    }

    async fn put_pool(
        &self,
        pool: PoolName,
        order: VersionedSpec<PoolSpec>,
    ) -> ApiResult<Applied<Observed<PoolSpec>>> {
        let engine = self.clone();
        self.run_detached(async move { engine.apply_pool(pool, order).await }).await
    }

    async fn delete_pool(&self, pool: PoolName, order: DeletePool) -> ApiResult<Deleted> {
        let engine = self.clone();
        self.run_detached(async move { engine.remove_pool(pool, order).await }).await
    }

    async fn clear_pool_errors(&self, pool: PoolName) -> ApiResult<Deleted> {
        self.forget_errors(&pool).await
    }

    async fn replicas(&self, paging: Paging) -> ApiResult<Page<Observed<ReplicaSpec>>> {
        self.page_of_replicas(paging).await
    }

    async fn replica(&self, replica: ReplicaId) -> ApiResult<Observed<ReplicaSpec>> {
        self.find_replica(replica).await
    }

    async fn put_replica(
        &self,
        replica: ReplicaId,
        order: VersionedSpec<ReplicaSpec>,
    ) -> ApiResult<Applied<Observed<ReplicaSpec>>> {
        let engine = self.clone();
        self.run_detached(async move { engine.apply_replica(replica, order).await }).await
    }

    async fn delete_replica(&self, replica: ReplicaId, order: DeleteReplica) -> ApiResult<Deleted> {
        let engine = self.clone();
        self.run_detached(async move { engine.remove_replica(replica, order).await }).await
    }

    async fn put_label(
        &self,
        replica: ReplicaId,
        label: ReplicaLabel,
    ) -> ApiResult<Applied<ReplicaLabel>> {
        let engine = self.clone();
        self.run_detached(async move { engine.apply_label(replica, label).await }).await
    }

    async fn put_spec_backup(
        &self,
        replica: ReplicaId,
        spec_backup: SpecBackup,
    ) -> ApiResult<Applied<SpecBackup>> {
        let engine = self.clone();
        self.run_detached(async move { engine.apply_spec_backup(replica, spec_backup).await }).await
    }

    async fn written(&self, replica: ReplicaId, paging: Paging) -> ApiResult<Page<Range>> {
        let (_, pool, _) = self.place_of(replica).await?;
        self.page_of_written((pool, pool_mapping::id_of(replica.uuid())), &paging).await
    }

    async fn scrub(&self, replica: ReplicaId) -> ApiResult<Scrub> {
        self.find_scrub(replica).await
    }

    async fn put_scrub(
        &self,
        replica: ReplicaId,
        order: VersionedSpec<JobControl>,
    ) -> ApiResult<Applied<Scrub>> {
        let engine = self.clone();
        self.run_detached(async move { engine.apply_scrub(replica, order).await }).await
    }

    async fn fence(&self, replica: ReplicaId) -> ApiResult<Fence> {
        self.find_fence(replica).await
    }

    async fn reset_fence(
        &self,
        replica: ReplicaId,
        reset: FenceReset,
    ) -> ApiResult<Applied<Fence>> {
        let engine = self.clone();
        self.run_detached(async move { engine.apply_fence(replica, reset).await }).await
    }

    async fn snapshots(&self, paging: Paging) -> ApiResult<Page<ObservedSnapshot>> {
        self.page_of_snapshots(paging).await
    }

    async fn put_snapshot(
        &self,
        replica: ReplicaId,
        snapshot: SnapshotId,
        request: SnapshotRequest,
    ) -> ApiResult<Applied<ObservedSnapshot>> {
        let engine = self.clone();
        self.run_detached(async move { engine.apply_snapshot(replica, snapshot, request).await })
            .await
    }

    async fn delete_snapshot(
        &self,
        replica: ReplicaId,
        snapshot: SnapshotId,
        place: PoolFilter,
    ) -> ApiResult<Deleted> {
        let (engine, pool) = (self.clone(), place.pool);
        self.run_detached(async move { engine.remove_snapshot((replica, snapshot), pool).await })
            .await
    }

    async fn changed(
        &self,
        replica: ReplicaId,
        snapshot: SnapshotId,
        changed: DiffQuery,
    ) -> ApiResult<Page<Range>> {
        self.page_of_changes(replica, snapshot, changed).await
    }

    async fn targets(&self, paging: Paging) -> ApiResult<Page<Observed<TargetSpec>>> {
        self.page_of_targets(paging).await
    }

    async fn target(&self, target: TargetId) -> ApiResult<Observed<TargetSpec>> {
        self.find_target(target).await
    }

    async fn put_target(
        &self,
        target: TargetId,
        order: VersionedSpec<TargetSpec>,
    ) -> ApiResult<Applied<Observed<TargetSpec>>> {
        let engine = self.clone();
        self.run_detached(async move { engine.apply_target(target, order).await }).await
    }

    async fn delete_target(&self, target: TargetId, order: GenerationQuery) -> ApiResult<Deleted> {
        let engine = self.clone();
        self.run_detached(async move { engine.remove_target(target, order).await }).await
    }

    async fn put_target_snapshot(
        &self,
        target: TargetId,
        snapshot: SnapshotId,
        request: SnapshotRequest,
    ) -> ApiResult<Applied<TargetSnapshot>> {
        let engine = self.clone();
        let order = async move { engine.apply_target_snapshot(target, snapshot, request).await };
        self.run_detached(order).await
    }

    async fn check_target(
        &self,
        target: TargetId,
        request: CheckRequest,
    ) -> ApiResult<CheckReport> {
        let engine = self.clone();
        self.run_detached(async move { engine.check_blocks(target, request).await }).await
    }

    async fn rebuilds(&self, paging: Paging) -> ApiResult<Page<Rebuild>> {
        self.page_of_rebuilds(paging).await
    }

    async fn rebuild(&self, rebuild: RebuildId) -> ApiResult<Rebuild> {
        self.find_rebuild(rebuild).await
    }

    async fn put_rebuild(
        &self,
        rebuild: RebuildId,
        order: VersionedSpec<RebuildRequest>,
    ) -> ApiResult<Applied<Rebuild>> {
        let engine = self.clone();
        self.run_detached(async move { engine.apply_rebuild(rebuild, order).await }).await
    }

    async fn statistics(&self, paging: Paging) -> ApiResult<Page<Statistics>> {
        self.page_of_statistics(paging).await
    }

    async fn devices(&self, paging: Paging) -> ApiResult<Page<BlockDevice>> {
        self.page_of_devices(paging).await
    }

    async fn metrics(&self) -> ApiResult<Text> {
        self.metrics_text().await.map(Text)
    }

    #[cfg(feature = "faults")]
    async fn faults(&self) -> ApiResult<Faults> {
        Ok(faults::get())
    }

    #[cfg(feature = "faults")]
    async fn put_faults(&self, faults: Faults) -> ApiResult<Applied<Faults>> {
        faults::set(faults);
        Ok(Applied { effect: api::Effect::Changed, now: faults::get() })
    }
}
