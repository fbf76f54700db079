//! The node API: who answers which request.

#[cfg(feature = "faults")]
use api::node::Faults;
use api::node::{
    Answered, Changed, CheckReport, CheckRequest, Fence, FenceReset, Found, FoundSnapshot, Health,
    InPool, Node, NodeInfo, Numbered, Pace, PoolRemoval, Range, RebuildWish, Removal, Scrub,
    SnapshotWish, Statistics, TargetSnapshot,
};
use api::{Ensured, Gone, Page, Paging, Text};
use model::{
    BlockDevice, Kind, Label, Memo, Order, PoolName, PoolSpec, Rebuild, RebuildId, ReplicaId,
    ReplicaSpec, SnapshotId, TargetId, TargetSpec,
};

use super::engine::Engine;
use super::kept;
#[cfg(feature = "faults")]
use crate::faults;

impl Node for Engine {
    async fn health(&self) -> Answered<Health> {
        self.is_alive().await?;
        let info = &self.0.info;
        Ok(Health { version: info.version.clone(), instance: info.instance })
    }

    async fn node(&self) -> Answered<NodeInfo> {
        Ok(self.0.info.clone())
    }

    async fn pools(&self, paging: Paging) -> Answered<Page<Found<PoolSpec>>> {
        let names: Vec<PoolName> = self.state().pools.keys().cloned().collect();
        let page = paging.cut(names, ToString::to_string)?;
        let mut items = Vec::with_capacity(page.items.len());
        for name in page.items {
            match self.find_pool(&name).await {
                Ok(found) => items.push(found),
                // It went away meanwhile.
                Err(problem) if problem.kind == Kind::NotFound => {}
                Err(problem) => return Err(problem),
            }
        }
        Ok(Page { items, after: page.after })
    }

    async fn pool(&self, pool: PoolName) -> Answered<Found<PoolSpec>> {
        self.find_pool(&pool).await
    }

    async fn put_pool(
        &self,
        pool: PoolName,
        order: Order<PoolSpec>,
    ) -> Answered<Ensured<Found<PoolSpec>>> {
        let engine = self.clone();
        self.to_its_end(async move { engine.order_pool(pool, order).await }).await
    }

    async fn delete_pool(&self, pool: PoolName, order: PoolRemoval) -> Answered<Gone> {
        let engine = self.clone();
        self.to_its_end(async move { engine.order_no_pool(pool, order).await }).await
    }

    async fn replicas(&self, paging: Paging) -> Answered<Page<Found<ReplicaSpec>>> {
        self.page_of_replicas(paging).await
    }

    async fn replica(&self, replica: ReplicaId) -> Answered<Found<ReplicaSpec>> {
        self.find_replica(replica).await
    }

    async fn put_replica(
        &self,
        replica: ReplicaId,
        order: Order<ReplicaSpec>,
    ) -> Answered<Ensured<Found<ReplicaSpec>>> {
        let engine = self.clone();
        self.to_its_end(async move { engine.order_replica(replica, order).await }).await
    }

    async fn delete_replica(&self, replica: ReplicaId, order: Removal) -> Answered<Gone> {
        let engine = self.clone();
        self.to_its_end(async move { engine.order_no_replica(replica, order).await }).await
    }

    async fn put_label(&self, replica: ReplicaId, label: Label) -> Answered<Ensured<Label>> {
        let engine = self.clone();
        self.to_its_end(async move { engine.order_label(replica, label).await }).await
    }

    async fn put_memo(&self, replica: ReplicaId, memo: Memo) -> Answered<Ensured<Memo>> {
        let engine = self.clone();
        self.to_its_end(async move { engine.order_memo(replica, memo).await }).await
    }

    async fn written(&self, replica: ReplicaId, paging: Paging) -> Answered<Page<Range>> {
        let (_, pool, _) = self.place_of(replica).await?;
        self.page_of_written((pool, kept::id_of(replica.uuid())), &paging).await
    }

    async fn scrub(&self, replica: ReplicaId) -> Answered<Scrub> {
        self.find_scrub(replica).await
    }

    async fn put_scrub(&self, replica: ReplicaId, order: Order<Pace>) -> Answered<Ensured<Scrub>> {
        let engine = self.clone();
        self.to_its_end(async move { engine.order_scrub(replica, order).await }).await
    }

    async fn fence(&self, replica: ReplicaId) -> Answered<Fence> {
        self.find_fence(replica).await
    }

    async fn reset_fence(&self, replica: ReplicaId, reset: FenceReset) -> Answered<Ensured<Fence>> {
        let engine = self.clone();
        self.to_its_end(async move { engine.order_fence(replica, reset).await }).await
    }

    async fn snapshots(&self, paging: Paging) -> Answered<Page<FoundSnapshot>> {
        self.page_of_snapshots(paging).await
    }

    async fn put_snapshot(
        &self,
        replica: ReplicaId,
        snapshot: SnapshotId,
        wish: SnapshotWish,
    ) -> Answered<Ensured<FoundSnapshot>> {
        let engine = self.clone();
        self.to_its_end(async move { engine.order_snapshot(replica, snapshot, wish).await }).await
    }

    async fn delete_snapshot(
        &self,
        replica: ReplicaId,
        snapshot: SnapshotId,
        place: InPool,
    ) -> Answered<Gone> {
        let (engine, pool) = (self.clone(), place.pool);
        self.to_its_end(async move { engine.order_no_snapshot((replica, snapshot), pool).await })
            .await
    }

    async fn changed(
        &self,
        replica: ReplicaId,
        snapshot: SnapshotId,
        changed: Changed,
    ) -> Answered<Page<Range>> {
        self.page_of_changes(replica, snapshot, changed).await
    }

    async fn targets(&self, paging: Paging) -> Answered<Page<Found<TargetSpec>>> {
        self.page_of_targets(paging).await
    }

    async fn target(&self, target: TargetId) -> Answered<Found<TargetSpec>> {
        self.find_target(target).await
    }

    async fn put_target(
        &self,
        target: TargetId,
        order: Order<TargetSpec>,
    ) -> Answered<Ensured<Found<TargetSpec>>> {
        let engine = self.clone();
        self.to_its_end(async move { engine.order_target(target, order).await }).await
    }

    async fn delete_target(&self, target: TargetId, order: Numbered) -> Answered<Gone> {
        let engine = self.clone();
        self.to_its_end(async move { engine.order_no_target(target, order).await }).await
    }

    async fn put_target_snapshot(
        &self,
        target: TargetId,
        snapshot: SnapshotId,
        wish: SnapshotWish,
    ) -> Answered<Ensured<TargetSnapshot>> {
        let engine = self.clone();
        let order = async move { engine.order_target_snapshot(target, snapshot, wish).await };
        self.to_its_end(order).await
    }

    async fn check_target(&self, target: TargetId, request: CheckRequest) -> Answered<CheckReport> {
        let engine = self.clone();
        self.to_its_end(async move { engine.check_blocks(target, request).await }).await
    }

    async fn rebuilds(&self, paging: Paging) -> Answered<Page<Rebuild>> {
        self.page_of_rebuilds(paging).await
    }

    async fn rebuild(&self, rebuild: RebuildId) -> Answered<Rebuild> {
        self.find_rebuild(rebuild).await
    }

    async fn put_rebuild(
        &self,
        rebuild: RebuildId,
        order: Order<RebuildWish>,
    ) -> Answered<Ensured<Rebuild>> {
        let engine = self.clone();
        self.to_its_end(async move { engine.order_rebuild(rebuild, order).await }).await
    }

    async fn statistics(&self, paging: Paging) -> Answered<Page<Statistics>> {
        self.page_of_statistics(paging).await
    }

    async fn devices(&self, paging: Paging) -> Answered<Page<BlockDevice>> {
        self.page_of_devices(paging).await
    }

    async fn metrics(&self) -> Answered<Text> {
        self.metrics_text().await.map(Text)
    }

    #[cfg(feature = "faults")]
    async fn faults(&self) -> Answered<Faults> {
        Ok(faults::get())
    }

    #[cfg(feature = "faults")]
    async fn put_faults(&self, faults: Faults) -> Answered<Ensured<Faults>> {
        faults::set(faults);
        Ok(Ensured { effect: api::Effect::Changed, now: faults::get() })
    }
}
