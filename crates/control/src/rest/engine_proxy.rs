//! What only an engine knows: asked there.

use std::sync::PoisonError;
use std::time::Duration;

use api::node::{
    CheckReport, CheckRequest, DiffQuery, Fence, FenceReset, JobControl, Node as _, Range,
    RebuildRequest, Remote, Scrub, Statistics,
};
use api::rest::{ApiResult, RangeQuery};
use api::{Applied, Deleted, Page, Paging};
use model::{
    BlockDevice, Generation, NodeName, PoolName, Problem, ProblemKind, Rebuild, RebuildId,
    ReplicaId, SnapshotId, VersionedSpec, VolumeId,
};

use super::{Rest, missing};
use crate::controller::{Input, Request};

/// How long a check waits for a target of a volume that nobody uses.
const PATIENCE: Duration = Duration::from_secs(45);
/// How often it looks for one.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

impl Rest {
    fn remote(&self, name: &NodeName) -> ApiResult<Remote> {
        let address = self
            .0
            .read(|controller| controller.address_of(name).ok_or_else(|| missing("node", name)))?;
        let mut callers = self.0.callers.lock().unwrap_or_else(PoisonError::into_inner);
        callers.get(name, address).map(|caller| caller.remote().clone())
    }

    fn remote_of_pool(&self, pool: &PoolName) -> ApiResult<Remote> {
        let node = self.0.read(|controller| {
            let node = controller.state().node_of(pool).map(|node| node.id().clone());
            node.ok_or_else(|| missing("node of pool", pool))
        })?;
        self.remote(&node)
    }

    pub(super) async fn forget_errors(&self, pool: &PoolName) -> ApiResult<Deleted> {
        let cleared = self.remote_of_pool(pool)?.clear_pool_errors(pool.clone()).await;
        let node = self.0.read(|controller| {
            Ok(controller.state().node_of(pool).map(|node| node.id().clone()))
        })?;
        if let Some(node) = node {
            self.0.feed(Input::NodeChanged(node));
        }
        cleared
    }

    fn remote_of(&self, replica: ReplicaId) -> ApiResult<(NodeName, Remote)> {
        let node = self.0.read(|controller| {
            let found =
                controller.replica_seen(replica).ok_or_else(|| missing("replica", &replica))?;
            let node = controller.state().node_of(&found.spec().pool).map(|node| node.id().clone());
            node.ok_or_else(|| missing("node of replica", &replica))
        })?;
        self.remote(&node).map(|remote| (node, remote))
    }

    pub(super) async fn devices_of(
        &self,
        name: &NodeName,
        paging: Paging,
    ) -> ApiResult<Page<BlockDevice>> {
        self.remote(name)?.devices(paging).await
    }

    pub(super) async fn statistics_of(
        &self,
        name: &NodeName,
        paging: Paging,
    ) -> ApiResult<Page<Statistics>> {
        self.remote(name)?.statistics(paging).await
    }

    /// Any copy of a snapshot that is online knows.
    pub(super) async fn ranges_of(
        &self,
        id: SnapshotId,
        asked: RangeQuery,
    ) -> ApiResult<Page<Range>> {
        let (pool, replica) = self.0.read(|controller| {
            let snapshot = controller.snapshot_seen(id).ok_or_else(|| missing("snapshot", &id))?;
            let copies = snapshot.status.map(|status| status.copies).unwrap_or_default();
            let online = copies.into_iter().find(|(_, copy)| copy.online);
            let none = || {
                let detail = format!("no copy of snapshot {id} answers");
                Problem::new(ProblemKind::NoHealthyReplica, detail)
            };
            online.map(|(pool, copy)| (pool, copy.replica)).ok_or_else(none)
        })?;
        let changed = DiffQuery { since: asked.since, limit: asked.limit, after: asked.after };
        self.remote_of_pool(&pool)?.changed(replica, id, changed).await
    }

    /// The target of a volume checks it; one that nobody uses gets a target for that.
    pub(super) async fn check_part(
        &self,
        id: VolumeId,
        request: CheckRequest,
    ) -> ApiResult<CheckReport> {
        let give_up = self.0.now().after(PATIENCE);
        loop {
            self.0.ask(Request::Attend(id), None).await?;
            let serving = self.0.read(|controller| Ok(controller.serving_target(id)))?;
            if let Some((target, node)) = serving {
                return self.remote(&node)?.check_target(target, request).await;
            }
            if self.0.now() >= give_up {
                return Err(self.0.read(|controller| Ok(controller.why_not_served(id)))?);
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    pub(super) async fn scrub_of(&self, id: ReplicaId) -> ApiResult<Scrub> {
        self.remote_of(id)?.1.scrub(id).await
    }

    pub(super) async fn pace_scrub(
        &self,
        id: ReplicaId,
        pace: JobControl,
    ) -> ApiResult<Applied<Scrub>> {
        let (_, remote) = self.remote_of(id)?;
        let generation = Generation::new(self.0.now().millis()).unwrap_or(Generation::FIRST);
        remote.put_scrub(id, VersionedSpec { generation, spec: pace }).await
    }

    pub(super) async fn fence_of(&self, id: ReplicaId) -> ApiResult<Fence> {
        self.remote_of(id)?.1.fence(id).await
    }

    pub(super) async fn lower_fence(
        &self,
        id: ReplicaId,
        reset: FenceReset,
    ) -> ApiResult<Applied<Fence>> {
        self.remote_of(id)?.1.reset_fence(id, reset).await
    }

    pub(super) async fn pace_rebuild(
        &self,
        id: RebuildId,
        pace: JobControl,
    ) -> ApiResult<Applied<Rebuild>> {
        let (node, rebuild) = self.0.read(|controller| {
            let rebuild = controller.rebuild_seen(id).ok_or_else(|| missing("rebuild", &id))?;
            let target = controller.state().facts.targets.get(&rebuild.target);
            let node = target.map(|target| target.spec().node.clone());
            let node = node.ok_or_else(|| missing("target of rebuild", &id))?;
            Ok((node, rebuild.clone()))
        })?;
        let generation = Generation::new(self.0.now().millis()).unwrap_or(Generation::FIRST);
        let spec = RebuildRequest {
            target: rebuild.target,
            replica: rebuild.replica,
            bytes_per_second: pace.bytes_per_second,
            run: pace.run,
        };
        let answer = self.remote(&node)?.put_rebuild(id, VersionedSpec { generation, spec }).await;
        self.0.feed(Input::NodeChanged(node));
        answer
    }
}
