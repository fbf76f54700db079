//! REST, answered: requests go to the core, questions are answered from what it knows, and what
//! only an engine knows is asked there.

mod dry_run;
mod engine_proxy;
pub(crate) mod lists;
mod lookup;
mod purge_confirmation;
mod status;
mod webhooks;

use std::collections::BTreeSet;
use std::sync::Arc;

use api::heartbeat::{Deregister, HeartbeatAck};
use api::node::{
    CheckReport, CheckRequest, Fence, FenceReset, JobControl, Range, Scrub, Statistics,
};
use api::rest::{
    ApiResult, Backup, Control, DryRun, DryRunRequest, EventQuery, ExplainQuery, Explanation,
    FailoverQuery, GroupQuery, Health, HostQuery, MaintenanceRequest, MaintenanceStatus, NodeQuery,
    Placement, PoolQuery, Purge, PurgeConfirmation, Quarantined, RangeQuery, RebuildQuery,
    RecoverRequest, Recovery, ReplicaQuery, RescueRequest, SnapshotQuery, Status, StoredSpec,
    TargetQuery, VersionInfo, VolumeAction, VolumeQuery,
};
use api::{Applied, Deleted, Effect, Page, Paging, Text};
use model::{
    BlockDevice, Event, Failover, Generation, Heartbeat, Host, HostAddress, HostChange, HostName,
    Node, NodeAddress, NodeChange, NodeName, Pool, PoolChange, PoolName, PoolSpec, Problem,
    Rebuild, RebuildId, Replica, ReplicaId, Snapshot, SnapshotChange, SnapshotGroup,
    SnapshotGroupChange, SnapshotGroupId, SnapshotGroupSpec, SnapshotId, SnapshotSpec, Target,
    TargetId, Volume, VolumeId, VolumeSpec, Webhook, WebhookChange, WebhookName, WebhookSpec,
};

pub(crate) use lookup::request_of_dry_run;
use lookup::{group, host, missing, node, pool, request_of, snapshot, volume};
use purge_confirmation::covered;

use crate::controller::{Controller, Input, Request, RequestOutcome};
use crate::process_state::ProcessState;

/// The control plane of this process, as REST sees it.
#[derive(Clone)]
pub(crate) struct Rest(pub(crate) Arc<ProcessState>);

fn ensured<T>(done: RequestOutcome, now: T) -> Applied<T> {
    let effect = match done {
        RequestOutcome::Created => Effect::Created,
        RequestOutcome::Changed | RequestOutcome::Gone => Effect::Changed,
        RequestOutcome::Unchanged => Effect::Unchanged,
    };
    Applied { effect, now }
}

impl Rest {
    /// A request, then what it was about as it is now.
    async fn request<T>(
        &self,
        request: Request,
        if_match: Option<Generation>,
        look: impl FnOnce(&Controller) -> Result<T, Problem>,
    ) -> ApiResult<Applied<T>> {
        let done = self.0.ask(request, if_match).await?;
        self.0.read(|controller| look(controller)).map(|now| ensured(done, now))
    }

    async fn gone(&self, request: Request, if_match: Option<Generation>) -> ApiResult<Deleted> {
        let done = self.0.ask(request, if_match).await?;
        Ok(Deleted { existed: done != RequestOutcome::Unchanged })
    }

    /// Asks all nodes what they have. One that does not answer keeps nobody waiting: that it is not
    /// known is seen.
    async fn list_all(&self) -> ApiResult<()> {
        let nodes: Vec<NodeName> =
            self.one(|controller| Ok(controller.state().facts.nodes.keys().cloned().collect()))?;
        let asked = nodes.into_iter().map(|node| self.0.ask(Request::List(node), None));
        futures::future::join_all(asked).await;
        Ok(())
    }

    fn one<T>(&self, look: impl FnOnce(&Controller) -> Result<T, Problem>) -> ApiResult<T> {
        self.0.read(|controller| look(controller))
    }
}

impl Control for Rest {
    async fn live(&self) -> ApiResult<VersionInfo> {
        Ok(VersionInfo { version: env!("CARGO_PKG_VERSION").to_owned() })
    }

    async fn ready(&self) -> ApiResult<Health> {
        self.one(|_| Ok(()))?;
        self.health().await
    }

    async fn health(&self) -> ApiResult<Health> {
        crate::health::health(&*self.0.store, self.0.who_leads()).await
    }

    async fn status(&self) -> ApiResult<Status> {
        self.status_of_all()
    }

    async fn metrics(&self) -> ApiResult<Text> {
        self.metrics_text()
    }

    async fn backup(&self) -> ApiResult<Backup> {
        self.export().await
    }

    async fn recovery(&self) -> ApiResult<Recovery> {
        self.list_all().await?;
        self.one(|controller| Ok(controller.recovery(&BTreeSet::new())))
    }

    async fn recover(&self, request: RecoverRequest) -> ApiResult<Recovery> {
        self.list_all().await?;
        let found = self.one(|controller| Ok(controller.recovery(&request.incomplete)))?;
        // A write holds only so much.
        while self.0.ask(Request::Recover(request.incomplete.clone()), None).await?
            == RequestOutcome::Changed
        {}
        // What was unknown is not any more.
        self.list_all().await?;
        Ok(found)
    }

    async fn specs(&self, paging: Paging) -> ApiResult<Page<StoredSpec>> {
        self.one(|controller| lists::specs(controller, &paging))
    }

    async fn event_history(&self, asked: EventQuery) -> ApiResult<Page<Event>> {
        self.one(|controller| lists::events(controller, &asked))
    }

    async fn explain(&self, asked: ExplainQuery) -> ApiResult<Explanation> {
        self.one(|controller| controller.explain(&asked.thing))
    }

    async fn dry_run(&self, request: DryRunRequest) -> ApiResult<DryRun> {
        self.try_out(request).await
    }

    async fn maintenance(&self) -> ApiResult<MaintenanceStatus> {
        let maintenance = |controller: &Controller| controller.maintenance().cloned();
        self.one(|controller| Ok(MaintenanceStatus { maintenance: maintenance(controller) }))
    }

    async fn put_maintenance(&self, asked: MaintenanceRequest) -> ApiResult<MaintenanceStatus> {
        let lasts = std::time::Duration::from_secs(asked.seconds);
        self.0.ask(Request::BeginMaintenance(lasts, asked.reason), None).await?;
        self.maintenance().await
    }

    async fn end_maintenance(&self) -> ApiResult<Deleted> {
        self.gone(Request::EndMaintenance, None).await
    }

    async fn nodes(&self, asked: NodeQuery) -> ApiResult<Page<Node>> {
        self.one(|controller| lists::nodes(controller, &asked))
    }

    async fn node(&self, name: NodeName) -> ApiResult<Node> {
        self.one(|controller| node(controller, &name))
    }

    async fn change_node(
        &self,
        name: NodeName,
        change: NodeChange,
        if_match: Option<Generation>,
    ) -> ApiResult<Applied<Node>> {
        let request = Request::ChangeNode(name.clone(), change);
        self.request(request, if_match, |controller| node(controller, &name)).await
    }

    async fn node_purge(&self, name: NodeName) -> ApiResult<Purge> {
        self.one(|controller| lists::node_purge(controller, &name))
    }

    async fn purge_node(&self, name: NodeName, consent: PurgeConfirmation) -> ApiResult<Deleted> {
        let preview = self.one(|controller| lists::node_purge(controller, &name));
        covered(preview, &consent)?;
        self.gone(Request::PurgeNode(name, consent.lost_volumes), None).await
    }

    async fn devices(&self, name: NodeName, paging: Paging) -> ApiResult<Page<BlockDevice>> {
        self.devices_of(&name, paging).await
    }

    async fn statistics(&self, name: NodeName, paging: Paging) -> ApiResult<Page<Statistics>> {
        self.statistics_of(&name, paging).await
    }

    async fn node_heartbeat(
        &self,
        name: NodeName,
        beat: Heartbeat<NodeAddress>,
    ) -> ApiResult<HeartbeatAck> {
        let answer = self.0.heartbeats()?.answer(&name, beat.told);
        self.0.feed(Input::NodeHeard(name, beat));
        Ok(answer)
    }

    async fn deregister_node(&self, name: NodeName, farewell: Deregister) -> ApiResult<Deleted> {
        let existed = self.one(|controller| Ok(controller.state().node(&name).is_some()))?;
        self.0.feed(Input::NodeLeft(name, farewell.instance));
        Ok(Deleted { existed })
    }

    async fn hosts(&self, asked: HostQuery) -> ApiResult<Page<Host>> {
        self.one(|controller| lists::hosts(controller, &asked))
    }

    async fn host(&self, name: HostName) -> ApiResult<Host> {
        self.one(|controller| host(controller, &name))
    }

    async fn change_host(
        &self,
        name: HostName,
        change: HostChange,
        if_match: Option<Generation>,
    ) -> ApiResult<Applied<Host>> {
        let request = Request::ChangeHost(name.clone(), change);
        self.request(request, if_match, |controller| host(controller, &name)).await
    }

    async fn delete_host(
        &self,
        name: HostName,
        if_match: Option<Generation>,
    ) -> ApiResult<Deleted> {
        self.gone(Request::DeleteHost(name), if_match).await
    }

    async fn host_heartbeat(
        &self,
        name: HostName,
        beat: Heartbeat<HostAddress>,
    ) -> ApiResult<HeartbeatAck> {
        self.one(|controller| controller.check_machine(&name, &beat.address))?;
        self.0.feed(Input::HostHeard(name, beat));
        Ok(self.0.heartbeats()?.of_host())
    }

    async fn deregister_host(&self, name: HostName, farewell: Deregister) -> ApiResult<Deleted> {
        let existed = self.one(|controller| Ok(controller.state().hosts.contains_key(&name)))?;
        self.0.feed(Input::HostLeft(name, farewell.instance));
        Ok(Deleted { existed })
    }

    async fn host_paths(
        &self,
        name: HostName,
        report: model::PathReport,
    ) -> ApiResult<HeartbeatAck> {
        self.0.feed(Input::PathsReported(name, report));
        Ok(self.0.heartbeats()?.of_host())
    }

    async fn pools(&self, asked: PoolQuery) -> ApiResult<Page<Pool>> {
        self.one(|controller| lists::pools(controller, &asked))
    }

    async fn pool(&self, name: PoolName) -> ApiResult<Pool> {
        self.one(|controller| pool(controller, &name))
    }

    async fn put_pool(&self, name: PoolName, spec: PoolSpec) -> ApiResult<Applied<Pool>> {
        let request = Request::CreatePool(name.clone(), Box::new(spec));
        self.request(request, None, |controller| pool(controller, &name)).await
    }

    async fn change_pool(
        &self,
        name: PoolName,
        change: PoolChange,
        if_match: Option<Generation>,
    ) -> ApiResult<Applied<Pool>> {
        let request = Request::ChangePool(name.clone(), change);
        self.request(request, if_match, |controller| pool(controller, &name)).await
    }

    async fn delete_pool(
        &self,
        name: PoolName,
        if_match: Option<Generation>,
    ) -> ApiResult<Deleted> {
        self.gone(Request::DeletePool(name), if_match).await
    }

    async fn clear_pool_errors(&self, name: PoolName) -> ApiResult<Deleted> {
        self.forget_errors(&name).await
    }

    async fn pool_purge(&self, name: PoolName) -> ApiResult<Purge> {
        self.one(|controller| lists::pool_purge(controller, &name))
    }

    async fn purge_pool(&self, name: PoolName, consent: PurgeConfirmation) -> ApiResult<Deleted> {
        let preview = self.one(|controller| lists::pool_purge(controller, &name));
        covered(preview, &consent)?;
        self.gone(Request::PurgePool(name, consent.lost_volumes), None).await
    }

    async fn volumes(&self, asked: VolumeQuery) -> ApiResult<Page<Volume>> {
        self.one(|controller| lists::volumes(controller, &asked))
    }

    async fn volume(&self, id: VolumeId) -> ApiResult<Volume> {
        self.one(|controller| volume(controller, id))
    }

    async fn put_volume(&self, id: VolumeId, spec: VolumeSpec) -> ApiResult<Applied<Volume>> {
        let request = Request::CreateVolume(id, Box::new(spec));
        self.request(request, None, |controller| volume(controller, id)).await
    }

    async fn change_volume(
        &self,
        id: VolumeId,
        request: VolumeAction,
        if_match: Option<Generation>,
    ) -> ApiResult<Applied<Volume>> {
        self.request(request_of(id, request), if_match, |controller| volume(controller, id)).await
    }

    async fn delete_volume(
        &self,
        id: VolumeId,
        if_match: Option<Generation>,
    ) -> ApiResult<Deleted> {
        self.gone(Request::DeleteVolume(id), if_match).await
    }

    async fn check_volume(&self, id: VolumeId, body: CheckRequest) -> ApiResult<CheckReport> {
        self.check_part(id, body).await
    }

    async fn placement(&self, id: VolumeId, paging: Paging) -> ApiResult<Page<Placement>> {
        self.one(|controller| lists::placement(controller, id, &paging))
    }

    async fn snapshots(&self, asked: SnapshotQuery) -> ApiResult<Page<Snapshot>> {
        self.one(|controller| lists::snapshots(controller, &asked))
    }

    async fn snapshot(&self, id: SnapshotId) -> ApiResult<Snapshot> {
        self.one(|controller| snapshot(controller, id))
    }

    async fn put_snapshot(
        &self,
        id: SnapshotId,
        spec: SnapshotSpec,
    ) -> ApiResult<Applied<Snapshot>> {
        let request = Request::CreateSnapshot(id, Box::new(spec));
        self.request(request, None, |controller| snapshot(controller, id)).await
    }

    async fn change_snapshot(
        &self,
        id: SnapshotId,
        change: SnapshotChange,
        if_match: Option<Generation>,
    ) -> ApiResult<Applied<Snapshot>> {
        let request = Request::ChangeSnapshot(id, change);
        self.request(request, if_match, |controller| snapshot(controller, id)).await
    }

    async fn delete_snapshot(
        &self,
        id: SnapshotId,
        if_match: Option<Generation>,
    ) -> ApiResult<Deleted> {
        self.gone(Request::DeleteSnapshot(id), if_match).await
    }

    async fn ranges(&self, id: SnapshotId, asked: RangeQuery) -> ApiResult<Page<Range>> {
        self.ranges_of(id, asked).await
    }

    async fn groups(&self, asked: GroupQuery) -> ApiResult<Page<SnapshotGroup>> {
        self.one(|controller| lists::groups(controller, &asked))
    }

    async fn group(&self, id: SnapshotGroupId) -> ApiResult<SnapshotGroup> {
        self.one(|controller| group(controller, id))
    }

    async fn put_group(
        &self,
        id: SnapshotGroupId,
        spec: SnapshotGroupSpec,
    ) -> ApiResult<Applied<SnapshotGroup>> {
        let request = Request::CreateGroup(id, Box::new(spec));
        self.request(request, None, |controller| group(controller, id)).await
    }

    async fn change_group(
        &self,
        id: SnapshotGroupId,
        change: SnapshotGroupChange,
        if_match: Option<Generation>,
    ) -> ApiResult<Applied<SnapshotGroup>> {
        let request = Request::ChangeGroup(id, change);
        self.request(request, if_match, |controller| group(controller, id)).await
    }

    async fn delete_group(
        &self,
        id: SnapshotGroupId,
        if_match: Option<Generation>,
    ) -> ApiResult<Deleted> {
        self.gone(Request::DeleteGroup(id), if_match).await
    }

    async fn replicas(&self, asked: ReplicaQuery) -> ApiResult<Page<Replica>> {
        self.one(|controller| lists::replicas(controller, &asked))
    }

    async fn replica(&self, id: ReplicaId) -> ApiResult<Replica> {
        self.one(|controller| controller.replica_seen(id).ok_or_else(|| missing("replica", &id)))
    }

    async fn scrub(&self, id: ReplicaId) -> ApiResult<Scrub> {
        self.scrub_of(id).await
    }

    async fn put_scrub(&self, id: ReplicaId, pace: JobControl) -> ApiResult<Applied<Scrub>> {
        self.pace_scrub(id, pace).await
    }

    async fn quarantine(&self, paging: Paging) -> ApiResult<Page<Quarantined>> {
        self.one(|controller| lists::quarantine(controller, &paging))
    }

    async fn rescue(&self, id: ReplicaId, request: RescueRequest) -> ApiResult<Applied<Snapshot>> {
        let snapshot_id = request.snapshot;
        let request = Request::Rescue { replica: id, snapshot: snapshot_id };
        self.request(request, None, |controller| snapshot(controller, snapshot_id)).await
    }

    async fn discard(&self, id: ReplicaId) -> ApiResult<Deleted> {
        self.gone(Request::Discard(id), None).await
    }

    async fn fence(&self, id: ReplicaId) -> ApiResult<Fence> {
        self.fence_of(id).await
    }

    async fn reset_fence(&self, id: ReplicaId, reset: FenceReset) -> ApiResult<Applied<Fence>> {
        self.lower_fence(id, reset).await
    }

    async fn targets(&self, asked: TargetQuery) -> ApiResult<Page<Target>> {
        self.one(|controller| lists::targets(controller, &asked))
    }

    async fn target(&self, id: TargetId) -> ApiResult<Target> {
        let find = |controller: &Controller| controller.state().facts.targets.get(&id).cloned();
        self.one(|controller| find(controller).ok_or_else(|| missing("target", &id)))
    }

    async fn rebuilds(&self, asked: RebuildQuery) -> ApiResult<Page<Rebuild>> {
        self.one(|controller| lists::rebuilds(controller, &asked))
    }

    async fn rebuild(&self, id: RebuildId) -> ApiResult<Rebuild> {
        let find = |controller: &Controller| controller.rebuild_seen(id).cloned();
        self.one(|controller| find(controller).ok_or_else(|| missing("rebuild", &id)))
    }

    async fn put_rebuild(&self, id: RebuildId, pace: JobControl) -> ApiResult<Applied<Rebuild>> {
        self.pace_rebuild(id, pace).await
    }

    async fn failovers(&self, asked: FailoverQuery) -> ApiResult<Page<Failover>> {
        self.one(|controller| lists::failovers(controller, &asked))
    }

    async fn webhooks(&self, paging: Paging) -> ApiResult<Page<Webhook>> {
        self.webhooks_page(&paging)
    }

    async fn webhook(&self, name: WebhookName) -> ApiResult<Webhook> {
        self.webhook_seen(&name)
    }

    async fn put_webhook(
        &self,
        name: WebhookName,
        spec: WebhookSpec,
    ) -> ApiResult<Applied<Webhook>> {
        self.make_webhook(name, spec).await
    }

    async fn change_webhook(
        &self,
        name: WebhookName,
        change: WebhookChange,
        if_match: Option<Generation>,
    ) -> ApiResult<Applied<Webhook>> {
        self.alter_webhook(name, change, if_match).await
    }

    async fn delete_webhook(
        &self,
        name: WebhookName,
        if_match: Option<Generation>,
    ) -> ApiResult<Deleted> {
        self.drop_webhook(name, if_match).await
    }
}
