//! An engine far away: the contract, over HTTP.

use http::uri::Authority;
use model::{
    BlockDevice, Event, Label, Order, PoolName, PoolSpec, Problem, Rebuild, RebuildId, ReplicaId,
    ReplicaSpec, SnapshotId, TargetId, TargetSpec,
};

#[cfg(feature = "faults")]
use super::Faults;
use super::{
    Answered, Changed, Found, FoundSnapshot, Health, Node, NodeInfo, Numbered, Pace, Range,
    RebuildWish, Scrub, SnapshotWish, Statistics, TargetSnapshot, routes,
};
use crate::{
    CallError, Client, ClientConfig, Ensured, Gone, NoBody, NoQuery, Page, Paging, Subscription,
    Text,
};

/// An engine that is called over HTTP. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Remote(Client);

impl Remote {
    /// The engine behind this client.
    pub fn new(client: Client) -> Remote {
        Remote(client)
    }

    /// The engine at this address, without TLS and token.
    pub fn plain(server: Authority) -> Result<Remote, CallError> {
        Client::new(ClientConfig::plain(server)).map(Remote)
    }

    /// What happens there, going on after `last` if there is one.
    pub async fn events(&self, last: Option<String>) -> Result<Subscription<Event>, CallError> {
        self.0.watch(&routes::EVENTS, last).await
    }
}

impl Node for Remote {
    async fn health(&self) -> Answered<Health> {
        let answer = self.0.call(&routes::HEALTH, (), NoQuery {}, NoBody);
        answer.await.map_err(Problem::from)
    }

    async fn node(&self) -> Answered<NodeInfo> {
        let answer = self.0.call(&routes::NODE, (), NoQuery {}, NoBody);
        answer.await.map_err(Problem::from)
    }

    async fn pools(&self, paging: Paging) -> Answered<Page<Found<PoolSpec>>> {
        let answer = self.0.call(&routes::POOLS, (), paging, NoBody);
        answer.await.map_err(Problem::from)
    }

    async fn pool(&self, pool: PoolName) -> Answered<Found<PoolSpec>> {
        let answer = self.0.call(&routes::POOL, (pool,), NoQuery {}, NoBody);
        answer.await.map_err(Problem::from)
    }

    async fn put_pool(
        &self,
        pool: PoolName,
        order: Order<PoolSpec>,
    ) -> Answered<Ensured<Found<PoolSpec>>> {
        let answer = self.0.call(&routes::PUT_POOL, (pool,), NoQuery {}, order);
        answer.await.map_err(Problem::from)
    }

    async fn delete_pool(&self, pool: PoolName, order: Numbered) -> Answered<Gone> {
        let answer = self.0.call(&routes::DELETE_POOL, (pool,), order, NoBody);
        answer.await.map_err(Problem::from)
    }

    async fn replicas(&self, paging: Paging) -> Answered<Page<Found<ReplicaSpec>>> {
        let answer = self.0.call(&routes::REPLICAS, (), paging, NoBody);
        answer.await.map_err(Problem::from)
    }

    async fn replica(&self, replica: ReplicaId) -> Answered<Found<ReplicaSpec>> {
        let answer = self.0.call(&routes::REPLICA, (replica,), NoQuery {}, NoBody);
        answer.await.map_err(Problem::from)
    }

    async fn put_replica(
        &self,
        replica: ReplicaId,
        order: Order<ReplicaSpec>,
    ) -> Answered<Ensured<Found<ReplicaSpec>>> {
        let answer = self.0.call(&routes::PUT_REPLICA, (replica,), NoQuery {}, order);
        answer.await.map_err(Problem::from)
    }

    async fn delete_replica(&self, replica: ReplicaId, order: Numbered) -> Answered<Gone> {
        let answer = self.0.call(&routes::DELETE_REPLICA, (replica,), order, NoBody);
        answer.await.map_err(Problem::from)
    }

    async fn put_label(&self, replica: ReplicaId, label: Label) -> Answered<Ensured<Label>> {
        let answer = self.0.call(&routes::PUT_LABEL, (replica,), NoQuery {}, label);
        answer.await.map_err(Problem::from)
    }

    async fn written(&self, replica: ReplicaId, paging: Paging) -> Answered<Page<Range>> {
        let answer = self.0.call(&routes::WRITTEN, (replica,), paging, NoBody);
        answer.await.map_err(Problem::from)
    }

    async fn scrub(&self, replica: ReplicaId) -> Answered<Scrub> {
        let answer = self.0.call(&routes::SCRUB, (replica,), NoQuery {}, NoBody);
        answer.await.map_err(Problem::from)
    }

    async fn put_scrub(&self, replica: ReplicaId, order: Order<Pace>) -> Answered<Ensured<Scrub>> {
        let answer = self.0.call(&routes::PUT_SCRUB, (replica,), NoQuery {}, order);
        answer.await.map_err(Problem::from)
    }

    async fn snapshots(&self, paging: Paging) -> Answered<Page<FoundSnapshot>> {
        let answer = self.0.call(&routes::SNAPSHOTS, (), paging, NoBody);
        answer.await.map_err(Problem::from)
    }

    async fn put_snapshot(
        &self,
        replica: ReplicaId,
        snapshot: SnapshotId,
        wish: SnapshotWish,
    ) -> Answered<Ensured<FoundSnapshot>> {
        let answer = self.0.call(&routes::PUT_SNAPSHOT, (replica, snapshot), NoQuery {}, wish);
        answer.await.map_err(Problem::from)
    }

    async fn delete_snapshot(&self, replica: ReplicaId, snapshot: SnapshotId) -> Answered<Gone> {
        let answer = self.0.call(&routes::DELETE_SNAPSHOT, (replica, snapshot), NoQuery {}, NoBody);
        answer.await.map_err(Problem::from)
    }

    async fn changed(
        &self,
        replica: ReplicaId,
        snapshot: SnapshotId,
        changed: Changed,
    ) -> Answered<Page<Range>> {
        let answer = self.0.call(&routes::CHANGED, (replica, snapshot), changed, NoBody);
        answer.await.map_err(Problem::from)
    }

    async fn targets(&self, paging: Paging) -> Answered<Page<Found<TargetSpec>>> {
        let answer = self.0.call(&routes::TARGETS, (), paging, NoBody);
        answer.await.map_err(Problem::from)
    }

    async fn target(&self, target: TargetId) -> Answered<Found<TargetSpec>> {
        let answer = self.0.call(&routes::TARGET, (target,), NoQuery {}, NoBody);
        answer.await.map_err(Problem::from)
    }

    async fn put_target(
        &self,
        target: TargetId,
        order: Order<TargetSpec>,
    ) -> Answered<Ensured<Found<TargetSpec>>> {
        let answer = self.0.call(&routes::PUT_TARGET, (target,), NoQuery {}, order);
        answer.await.map_err(Problem::from)
    }

    async fn delete_target(&self, target: TargetId, order: Numbered) -> Answered<Gone> {
        let answer = self.0.call(&routes::DELETE_TARGET, (target,), order, NoBody);
        answer.await.map_err(Problem::from)
    }

    async fn put_target_snapshot(
        &self,
        target: TargetId,
        snapshot: SnapshotId,
        wish: SnapshotWish,
    ) -> Answered<Ensured<TargetSnapshot>> {
        let answer =
            self.0.call(&routes::PUT_TARGET_SNAPSHOT, (target, snapshot), NoQuery {}, wish);
        answer.await.map_err(Problem::from)
    }

    async fn rebuilds(&self, paging: Paging) -> Answered<Page<Rebuild>> {
        let answer = self.0.call(&routes::REBUILDS, (), paging, NoBody);
        answer.await.map_err(Problem::from)
    }

    async fn rebuild(&self, rebuild: RebuildId) -> Answered<Rebuild> {
        let answer = self.0.call(&routes::REBUILD, (rebuild,), NoQuery {}, NoBody);
        answer.await.map_err(Problem::from)
    }

    async fn put_rebuild(
        &self,
        rebuild: RebuildId,
        order: Order<RebuildWish>,
    ) -> Answered<Ensured<Rebuild>> {
        let answer = self.0.call(&routes::PUT_REBUILD, (rebuild,), NoQuery {}, order);
        answer.await.map_err(Problem::from)
    }

    async fn statistics(&self, paging: Paging) -> Answered<Page<Statistics>> {
        let answer = self.0.call(&routes::STATISTICS, (), paging, NoBody);
        answer.await.map_err(Problem::from)
    }

    async fn devices(&self, paging: Paging) -> Answered<Page<BlockDevice>> {
        let answer = self.0.call(&routes::DEVICES, (), paging, NoBody);
        answer.await.map_err(Problem::from)
    }

    async fn metrics(&self) -> Answered<Text> {
        let answer = self.0.call(&routes::METRICS, (), NoQuery {}, NoBody);
        answer.await.map_err(Problem::from)
    }

    #[cfg(feature = "faults")]
    async fn faults(&self) -> Answered<Faults> {
        let answer = self.0.call(&routes::FAULTS, (), NoQuery {}, NoBody);
        answer.await.map_err(Problem::from)
    }

    #[cfg(feature = "faults")]
    async fn put_faults(&self, faults: Faults) -> Answered<Ensured<Faults>> {
        let answer = self.0.call(&routes::PUT_FAULTS, (), NoQuery {}, faults);
        answer.await.map_err(Problem::from)
    }
}
