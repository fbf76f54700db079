//! The node API: who answers which request.

use api::node::{
    Answered, Changed, Found, FoundSnapshot, Health, Node, NodeInfo, Numbered, Range, RebuildWish,
    Scrub, Pace, SnapshotWish, Statistics, TargetSnapshot,
};
use api::{Ensured, Gone, Page, Paging, Text};
use model::{
    BlockDevice, Kind, Label, Order, PoolName, PoolSpec, Rebuild, RebuildId, ReplicaId,
    ReplicaSpec, SnapshotId, TargetId, TargetSpec,
};

use super::engine::Engine;
use super::{kept, targets};

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

    async fn delete_pool(&self, pool: PoolName, order: Numbered) -> Answered<Gone> {
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

    async fn delete_replica(&self, replica: ReplicaId, order: Numbered) -> Answered<Gone> {
        let engine = self.clone();
        self.to_its_end(async move { engine.order_no_replica(replica, order).await }).await
    }

    async fn put_label(&self, replica: ReplicaId, label: Label) -> Answered<Ensured<Label>> {
        let engine = self.clone();
        self.to_its_end(async move { engine.order_label(replica, label).await }).await
    }

    async fn written(&self, replica: ReplicaId, paging: Paging) -> Answered<Page<Range>> {
        let (_, pool, _) = self.place_of(replica).await?;
        self.page_of_written((pool, kept::id_of(replica.uuid())), &paging).await
    }

    async fn scrub(&self, replica: ReplicaId) -> Answered<Scrub> {
        self.find_scrub(replica).await
    }

    async fn put_scrub(
        &self,
        replica: ReplicaId,
        order: Order<Pace>,
    ) -> Answered<Ensured<Scrub>> {
        let engine = self.clone();
        self.to_its_end(async move { engine.order_scrub(replica, order).await }).await
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

    async fn delete_snapshot(&self, replica: ReplicaId, snapshot: SnapshotId) -> Answered<Gone> {
        let engine = self.clone();
        self.to_its_end(async move { engine.order_no_snapshot(replica, snapshot).await }).await
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
        targets::none(&paging)
    }

    async fn target(&self, target: TargetId) -> Answered<Found<TargetSpec>> {
        targets::no_such("target", target)
    }

    async fn put_target(
        &self,
        _: TargetId,
        _: Order<TargetSpec>,
    ) -> Answered<Ensured<Found<TargetSpec>>> {
        targets::not_served()
    }

    async fn delete_target(&self, _: TargetId, _: Numbered) -> Answered<Gone> {
        Ok(Gone { was_there: false })
    }

    async fn put_target_snapshot(
        &self,
        _: TargetId,
        _: SnapshotId,
        _: SnapshotWish,
    ) -> Answered<Ensured<TargetSnapshot>> {
        targets::not_served()
    }

    async fn rebuilds(&self, paging: Paging) -> Answered<Page<Rebuild>> {
        targets::none(&paging)
    }

    async fn rebuild(&self, rebuild: RebuildId) -> Answered<Rebuild> {
        targets::no_such("rebuild", rebuild)
    }

    async fn put_rebuild(&self, _: RebuildId, _: Order<RebuildWish>) -> Answered<Ensured<Rebuild>> {
        targets::not_served()
    }

    async fn statistics(&self, paging: Paging) -> Answered<Page<Statistics>> {
        // Nothing is counted by target, child, replica or disk.
        targets::none(&paging)
    }

    async fn devices(&self, paging: Paging) -> Answered<Page<BlockDevice>> {
        self.page_of_devices(paging).await
    }

    async fn metrics(&self) -> Answered<Text> {
        self.metrics_text().await.map(Text)
    }
}
