//! An engine far away: the contract, over HTTP.

use model::{
    BlockDevice, Event, Label, Memo, Order, PoolName, PoolSpec, Rebuild, RebuildId, ReplicaId,
    ReplicaSpec, SnapshotId, TargetId, TargetSpec,
};

#[cfg(feature = "faults")]
use super::Faults;
use super::{
    Answered, Changed, CheckReport, CheckRequest, Fence, FenceReset, Found, FoundSnapshot, Health,
    InPool, Node, NodeInfo, Numbered, Pace, PoolRemoval, Range, RebuildWish, Removal, Scrub,
    SnapshotWish, Statistics, TargetSnapshot, routes,
};
use crate::{Ensured, Gone, NoBody, NoQuery, Page, Paging, Route, Text, Watch};

/// An engine that is called over HTTP. Cheap to clone.
pub type Remote = crate::remote::Remote<Contract>;

/// What is spoken with an engine.
#[derive(Clone, Copy, Debug)]
pub enum Contract {}

impl crate::remote::Contract for Contract {
    const EVENTS: Route<(), NoQuery, NoBody, Watch<Event>> = routes::EVENTS;
}

impl Node for Remote {
    fn health(&self) -> impl Future<Output = Answered<Health>> + Send {
        self.ask(&routes::HEALTH, (), (NoQuery {}, NoBody), None)
    }

    fn node(&self) -> impl Future<Output = Answered<NodeInfo>> + Send {
        self.ask(&routes::NODE, (), (NoQuery {}, NoBody), None)
    }

    fn pools(
        &self,
        paging: Paging,
    ) -> impl Future<Output = Answered<Page<Found<PoolSpec>>>> + Send {
        self.ask(&routes::POOLS, (), (paging, NoBody), None)
    }

    fn pool(&self, pool: PoolName) -> impl Future<Output = Answered<Found<PoolSpec>>> + Send {
        self.ask(&routes::POOL, (pool,), (NoQuery {}, NoBody), None)
    }

    fn put_pool(
        &self,
        pool: PoolName,
        order: Order<PoolSpec>,
    ) -> impl Future<Output = Answered<Ensured<Found<PoolSpec>>>> + Send {
        self.ask(&routes::PUT_POOL, (pool,), (NoQuery {}, order), None)
    }

    fn delete_pool(
        &self,
        pool: PoolName,
        order: PoolRemoval,
    ) -> impl Future<Output = Answered<Gone>> + Send {
        self.ask(&routes::DELETE_POOL, (pool,), (order, NoBody), None)
    }

    fn replicas(
        &self,
        paging: Paging,
    ) -> impl Future<Output = Answered<Page<Found<ReplicaSpec>>>> + Send {
        self.ask(&routes::REPLICAS, (), (paging, NoBody), None)
    }

    fn replica(
        &self,
        replica: ReplicaId,
    ) -> impl Future<Output = Answered<Found<ReplicaSpec>>> + Send {
        self.ask(&routes::REPLICA, (replica,), (NoQuery {}, NoBody), None)
    }

    fn put_replica(
        &self,
        replica: ReplicaId,
        order: Order<ReplicaSpec>,
    ) -> impl Future<Output = Answered<Ensured<Found<ReplicaSpec>>>> + Send {
        self.ask(&routes::PUT_REPLICA, (replica,), (NoQuery {}, order), None)
    }

    fn delete_replica(
        &self,
        replica: ReplicaId,
        order: Removal,
    ) -> impl Future<Output = Answered<Gone>> + Send {
        self.ask(&routes::DELETE_REPLICA, (replica,), (order, NoBody), None)
    }

    fn put_label(
        &self,
        replica: ReplicaId,
        label: Label,
    ) -> impl Future<Output = Answered<Ensured<Label>>> + Send {
        self.ask(&routes::PUT_LABEL, (replica,), (NoQuery {}, label), None)
    }

    fn put_memo(
        &self,
        replica: ReplicaId,
        memo: Memo,
    ) -> impl Future<Output = Answered<Ensured<Memo>>> + Send {
        self.ask(&routes::PUT_MEMO, (replica,), (NoQuery {}, memo), None)
    }

    fn written(
        &self,
        replica: ReplicaId,
        paging: Paging,
    ) -> impl Future<Output = Answered<Page<Range>>> + Send {
        self.ask(&routes::WRITTEN, (replica,), (paging, NoBody), None)
    }

    fn scrub(&self, replica: ReplicaId) -> impl Future<Output = Answered<Scrub>> + Send {
        self.ask(&routes::SCRUB, (replica,), (NoQuery {}, NoBody), None)
    }

    fn put_scrub(
        &self,
        replica: ReplicaId,
        order: Order<Pace>,
    ) -> impl Future<Output = Answered<Ensured<Scrub>>> + Send {
        self.ask(&routes::PUT_SCRUB, (replica,), (NoQuery {}, order), None)
    }

    fn fence(&self, replica: ReplicaId) -> impl Future<Output = Answered<Fence>> + Send {
        self.ask(&routes::FENCE, (replica,), (NoQuery {}, NoBody), None)
    }

    fn reset_fence(
        &self,
        replica: ReplicaId,
        reset: FenceReset,
    ) -> impl Future<Output = Answered<Ensured<Fence>>> + Send {
        self.ask(&routes::RESET_FENCE, (replica,), (NoQuery {}, reset), None)
    }

    fn snapshots(
        &self,
        paging: Paging,
    ) -> impl Future<Output = Answered<Page<FoundSnapshot>>> + Send {
        self.ask(&routes::SNAPSHOTS, (), (paging, NoBody), None)
    }

    fn put_snapshot(
        &self,
        replica: ReplicaId,
        snapshot: SnapshotId,
        wish: SnapshotWish,
    ) -> impl Future<Output = Answered<Ensured<FoundSnapshot>>> + Send {
        self.ask(&routes::PUT_SNAPSHOT, (replica, snapshot), (NoQuery {}, wish), None)
    }

    fn delete_snapshot(
        &self,
        replica: ReplicaId,
        snapshot: SnapshotId,
        place: InPool,
    ) -> impl Future<Output = Answered<Gone>> + Send {
        self.ask(&routes::DELETE_SNAPSHOT, (replica, snapshot), (place, NoBody), None)
    }

    fn changed(
        &self,
        replica: ReplicaId,
        snapshot: SnapshotId,
        changed: Changed,
    ) -> impl Future<Output = Answered<Page<Range>>> + Send {
        self.ask(&routes::CHANGED, (replica, snapshot), (changed, NoBody), None)
    }

    fn targets(
        &self,
        paging: Paging,
    ) -> impl Future<Output = Answered<Page<Found<TargetSpec>>>> + Send {
        self.ask(&routes::TARGETS, (), (paging, NoBody), None)
    }

    fn target(&self, target: TargetId) -> impl Future<Output = Answered<Found<TargetSpec>>> + Send {
        self.ask(&routes::TARGET, (target,), (NoQuery {}, NoBody), None)
    }

    fn put_target(
        &self,
        target: TargetId,
        order: Order<TargetSpec>,
    ) -> impl Future<Output = Answered<Ensured<Found<TargetSpec>>>> + Send {
        self.ask(&routes::PUT_TARGET, (target,), (NoQuery {}, order), None)
    }

    fn delete_target(
        &self,
        target: TargetId,
        order: Numbered,
    ) -> impl Future<Output = Answered<Gone>> + Send {
        self.ask(&routes::DELETE_TARGET, (target,), (order, NoBody), None)
    }

    fn put_target_snapshot(
        &self,
        target: TargetId,
        snapshot: SnapshotId,
        wish: SnapshotWish,
    ) -> impl Future<Output = Answered<Ensured<TargetSnapshot>>> + Send {
        self.ask(&routes::PUT_TARGET_SNAPSHOT, (target, snapshot), (NoQuery {}, wish), None)
    }

    fn check_target(
        &self,
        target: TargetId,
        request: CheckRequest,
    ) -> impl Future<Output = Answered<CheckReport>> + Send {
        self.ask(&routes::CHECK_TARGET, (target,), (NoQuery {}, request), None)
    }

    fn rebuilds(&self, paging: Paging) -> impl Future<Output = Answered<Page<Rebuild>>> + Send {
        self.ask(&routes::REBUILDS, (), (paging, NoBody), None)
    }

    fn rebuild(&self, rebuild: RebuildId) -> impl Future<Output = Answered<Rebuild>> + Send {
        self.ask(&routes::REBUILD, (rebuild,), (NoQuery {}, NoBody), None)
    }

    fn put_rebuild(
        &self,
        rebuild: RebuildId,
        order: Order<RebuildWish>,
    ) -> impl Future<Output = Answered<Ensured<Rebuild>>> + Send {
        self.ask(&routes::PUT_REBUILD, (rebuild,), (NoQuery {}, order), None)
    }

    fn statistics(
        &self,
        paging: Paging,
    ) -> impl Future<Output = Answered<Page<Statistics>>> + Send {
        self.ask(&routes::STATISTICS, (), (paging, NoBody), None)
    }

    fn devices(&self, paging: Paging) -> impl Future<Output = Answered<Page<BlockDevice>>> + Send {
        self.ask(&routes::DEVICES, (), (paging, NoBody), None)
    }

    fn metrics(&self) -> impl Future<Output = Answered<Text>> + Send {
        self.ask(&routes::METRICS, (), (NoQuery {}, NoBody), None)
    }

    #[cfg(feature = "faults")]
    fn faults(&self) -> impl Future<Output = Answered<Faults>> + Send {
        self.ask(&routes::FAULTS, (), (NoQuery {}, NoBody), None)
    }

    #[cfg(feature = "faults")]
    fn put_faults(&self, faults: Faults) -> impl Future<Output = Answered<Ensured<Faults>>> + Send {
        self.ask(&routes::PUT_FAULTS, (), (NoQuery {}, faults), None)
    }
}
