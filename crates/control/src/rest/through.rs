//! What only an engine knows: asked there.

use std::sync::PoisonError;

use api::node::{
    Changed, CheckReport, CheckRequest, Fence, FenceReset, Node as _, Pace, Range, RebuildWish,
    Remote, Scrub, Statistics,
};
use api::rest::{Answered, RangesAsked};
use api::{Ensured, Page, Paging};
use model::{
    BlockDevice, Generation, Kind, NodeName, Order, PoolName, Problem, Rebuild, RebuildId,
    ReplicaId, SnapshotId, VolumeId,
};

use super::{Rest, missing};
use crate::core::Input;

impl Rest {
    fn remote(&self, name: &NodeName) -> Answered<Remote> {
        let address =
            self.0.read(|core| core.address_of(name).ok_or_else(|| missing("node", name)))?;
        let mut callers = self.0.callers.lock().unwrap_or_else(PoisonError::into_inner);
        callers.get(name, address).map(|caller| caller.remote().clone())
    }

    fn remote_of_pool(&self, pool: &PoolName) -> Answered<Remote> {
        let node = self.0.read(|core| {
            let node = core.state().node_of(pool).map(|node| node.id().clone());
            node.ok_or_else(|| missing("node of pool", pool))
        })?;
        self.remote(&node)
    }

    fn remote_of(&self, replica: ReplicaId) -> Answered<(NodeName, Remote)> {
        let node = self.0.read(|core| {
            let found = core.replica_seen(replica).ok_or_else(|| missing("replica", &replica))?;
            let node = core.state().node_of(&found.spec().pool).map(|node| node.id().clone());
            node.ok_or_else(|| missing("node of replica", &replica))
        })?;
        self.remote(&node).map(|remote| (node, remote))
    }

    pub(super) async fn devices_of(
        &self,
        name: &NodeName,
        paging: Paging,
    ) -> Answered<Page<BlockDevice>> {
        self.remote(name)?.devices(paging).await
    }

    pub(super) async fn statistics_of(
        &self,
        name: &NodeName,
        paging: Paging,
    ) -> Answered<Page<Statistics>> {
        self.remote(name)?.statistics(paging).await
    }

    /// Any copy of a snapshot that is online knows.
    pub(super) async fn ranges_of(
        &self,
        id: SnapshotId,
        asked: RangesAsked,
    ) -> Answered<Page<Range>> {
        let (pool, replica) = self.0.read(|core| {
            let snapshot = core.snapshot_seen(id).ok_or_else(|| missing("snapshot", &id))?;
            let copies = snapshot.status.map(|status| status.copies).unwrap_or_default();
            let online = copies.into_iter().find(|(_, copy)| copy.online);
            let none = || {
                let detail = format!("no copy of snapshot {id} answers");
                Problem::new(Kind::NoHealthyReplica, detail)
            };
            online.map(|(pool, copy)| (pool, copy.replica)).ok_or_else(none)
        })?;
        let changed = Changed { since: asked.since, limit: asked.limit, after: asked.after };
        self.remote_of_pool(&pool)?.changed(replica, id, changed).await
    }

    /// The target of a volume checks it.
    pub(super) async fn check_part(
        &self,
        id: VolumeId,
        request: CheckRequest,
    ) -> Answered<CheckReport> {
        let (target, node) = self.0.read(|core| {
            let volume = core.volume_seen(id).ok_or_else(|| missing("volume", &id))?;
            let target = volume.status.and_then(|status| status.target);
            target.map(|target| (target.id, target.node)).ok_or_else(|| {
                let detail = format!(
                    "volume {id} is not served; `holdfast volume publish {id}` serves it, then \
                     check again"
                );
                Problem::new(Kind::Unavailable, detail)
            })
        })?;
        self.remote(&node)?.check_target(target, request).await
    }

    pub(super) async fn scrub_of(&self, id: ReplicaId) -> Answered<Scrub> {
        self.remote_of(id)?.1.scrub(id).await
    }

    pub(super) async fn pace_scrub(&self, id: ReplicaId, pace: Pace) -> Answered<Ensured<Scrub>> {
        let (_, remote) = self.remote_of(id)?;
        let generation = Generation::new(self.0.now().millis()).unwrap_or(Generation::FIRST);
        remote.put_scrub(id, Order { generation, spec: pace }).await
    }

    pub(super) async fn fence_of(&self, id: ReplicaId) -> Answered<Fence> {
        self.remote_of(id)?.1.fence(id).await
    }

    pub(super) async fn lower_fence(
        &self,
        id: ReplicaId,
        reset: FenceReset,
    ) -> Answered<Ensured<Fence>> {
        self.remote_of(id)?.1.reset_fence(id, reset).await
    }

    pub(super) async fn pace_rebuild(
        &self,
        id: RebuildId,
        pace: Pace,
    ) -> Answered<Ensured<Rebuild>> {
        let (node, rebuild) = self.0.read(|core| {
            let rebuild = core.rebuild_seen(id).ok_or_else(|| missing("rebuild", &id))?;
            let target = core.state().facts.targets.get(&rebuild.target);
            let node = target.map(|target| target.spec().node.clone());
            let node = node.ok_or_else(|| missing("target of rebuild", &id))?;
            Ok((node, rebuild.clone()))
        })?;
        let generation = Generation::new(self.0.now().millis()).unwrap_or(Generation::FIRST);
        let spec = RebuildWish {
            target: rebuild.target,
            replica: rebuild.replica,
            bytes_per_second: pace.bytes_per_second,
            run: pace.run,
        };
        let answer = self.remote(&node)?.put_rebuild(id, Order { generation, spec }).await;
        self.0.feed(Input::NodeStirred(node));
        answer
    }
}
