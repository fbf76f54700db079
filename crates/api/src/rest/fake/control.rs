//! The contract, kept in memory.

use std::collections::BTreeMap;

use model::{
    BlockDevice, Consistency, Event, Failover, Generation, Heartbeat, Host, HostAddress,
    HostChange, HostName, Maintenance, Node, NodeAddress, NodeChange, NodeName, Pool, PoolChange,
    PoolName, PoolSpec, PoolState, PoolStatus, Problem, ProblemKind, Rebuild, RebuildId, Replica,
    ReplicaId, Size, Snapshot, SnapshotChange, SnapshotGroup, SnapshotGroupChange, SnapshotGroupId,
    SnapshotGroupSpec, SnapshotGroupStatus, SnapshotId, SnapshotSpec, SnapshotState, Target,
    TargetId, Volume, VolumeId, VolumeSpec, VolumeState, VolumeStatus, Webhook, WebhookChange,
    WebhookName, WebhookSpec, WebhookStatus,
};

use super::Fake;
use super::statuses::{
    FENCE, HEARD, VERSION, asks_for, asks_for_snapshot, count, covered, is, labelled, lowered,
    taken_at_once, well,
};
use crate::heartbeat::{Deregister, HeartbeatAck};
use crate::node::{
    CheckReport, CheckRequest, Fence, FenceReset, JobControl, Range, Scrub, Statistics,
};
use crate::rest::{
    ApiResult, Backup, Control, DryRun, DryRunRequest, EventQuery, ExplainQuery, Explanation,
    FailoverQuery, GroupQuery, Health, HostQuery, MaintenanceRequest, MaintenanceStatus, NodeQuery,
    Placement, PoolQuery, Purge, PurgeConfirmation, Quarantined, RangeQuery, RebuildQuery,
    RecoverRequest, Recovery, ReplicaQuery, RescueRequest, SnapshotQuery, Status, StoredSpec,
    TargetQuery, VersionInfo, VolumeAction, VolumeQuery,
};
use crate::{Applied, Deleted, Page, Paging, Text};

impl Control for Fake {
    async fn live(&self) -> ApiResult<VersionInfo> {
        Ok(VersionInfo { version: VERSION.to_owned() })
    }

    async fn ready(&self) -> ApiResult<Health> {
        Ok(well())
    }

    async fn health(&self) -> ApiResult<Health> {
        Ok(well())
    }

    async fn status(&self) -> ApiResult<Status> {
        Ok(self.held().summary())
    }

    async fn metrics(&self) -> ApiResult<Text> {
        Ok(Text("# TYPE up gauge\nup 1\n".to_owned()))
    }

    async fn backup(&self) -> ApiResult<Backup> {
        Ok(Backup(b"{}\n".to_vec()))
    }

    async fn recovery(&self) -> ApiResult<Recovery> {
        Ok(Recovery::default())
    }

    async fn recover(&self, _body: RecoverRequest) -> ApiResult<Recovery> {
        Ok(Recovery::default())
    }

    async fn specs(&self, query: Paging) -> ApiResult<Page<StoredSpec>> {
        self.held().specs(&query)
    }

    async fn event_history(&self, query: EventQuery) -> ApiResult<Page<Event>> {
        self.held().kept(&query)
    }

    async fn explain(&self, query: ExplainQuery) -> ApiResult<Explanation> {
        self.held().explain(&query.thing)
    }

    async fn dry_run(&self, body: DryRunRequest) -> ApiResult<DryRun> {
        let _ = body;
        Ok(DryRun { changes: vec!["it changes".to_owned()], steps: Vec::new() })
    }

    async fn maintenance(&self) -> ApiResult<MaintenanceStatus> {
        Ok(MaintenanceStatus { maintenance: self.held().maintenance.clone() })
    }

    async fn put_maintenance(&self, body: MaintenanceRequest) -> ApiResult<MaintenanceStatus> {
        let until = self.now.after(std::time::Duration::from_secs(body.seconds));
        let maintenance = Maintenance { since: self.now, until, reason: body.reason };
        self.held().maintenance = Some(maintenance);
        self.maintenance().await
    }

    async fn end_maintenance(&self) -> ApiResult<Deleted> {
        Ok(Deleted { existed: self.held().maintenance.take().is_some() })
    }

    async fn nodes(&self, query: NodeQuery) -> ApiResult<Page<Node>> {
        let asked = |node: &Node| labelled(query.label.as_ref(), &node.spec().labels);
        self.held().nodes.page(&query.paging(), asked)
    }

    async fn node(&self, at: NodeName) -> ApiResult<Node> {
        self.held().nodes.get(&at)
    }

    async fn change_node(
        &self,
        at: NodeName,
        body: NodeChange,
        if_match: Option<Generation>,
    ) -> ApiResult<Applied<Node>> {
        self.held().nodes.change(&at, body, if_match, self.now)
    }

    async fn node_purge(&self, at: NodeName) -> ApiResult<Purge> {
        self.held().nodes.get(&at)?;
        Ok(self.purge_of(at.as_str()))
    }

    async fn purge_node(&self, at: NodeName, body: PurgeConfirmation) -> ApiResult<Deleted> {
        covered(&self.purge_of(at.as_str()), &body)?;
        self.held().nodes.delete(&at, None)
    }

    async fn devices(&self, at: NodeName, query: Paging) -> ApiResult<Page<BlockDevice>> {
        let held = self.held();
        held.nodes.get(&at)?;
        let devices = held.devices.get(&at).cloned().unwrap_or_default();
        query.cut(devices, |device| device.path.to_string())
    }

    async fn statistics(&self, at: NodeName, query: Paging) -> ApiResult<Page<Statistics>> {
        self.held().nodes.get(&at)?;
        query.cut([], |one: &Statistics| format!("{:?}", one.of))
    }

    async fn node_heartbeat(
        &self,
        at: NodeName,
        body: Heartbeat<NodeAddress>,
    ) -> ApiResult<HeartbeatAck> {
        self.held().register(&at, body, self.now)?;
        Ok(HEARD)
    }

    async fn deregister_node(&self, at: NodeName, _: Deregister) -> ApiResult<Deleted> {
        Ok(Deleted { existed: self.held().nodes.get(&at).is_ok() })
    }

    async fn hosts(&self, query: HostQuery) -> ApiResult<Page<Host>> {
        let asked = |host: &Host| labelled(query.label.as_ref(), &host.spec().labels);
        self.held().hosts.page(&query.paging(), asked)
    }

    async fn host(&self, at: HostName) -> ApiResult<Host> {
        self.held().hosts.get(&at)
    }

    async fn change_host(
        &self,
        at: HostName,
        body: HostChange,
        if_match: Option<Generation>,
    ) -> ApiResult<Applied<Host>> {
        self.held().hosts.change(&at, body, if_match, self.now)
    }

    async fn delete_host(&self, at: HostName, if_match: Option<Generation>) -> ApiResult<Deleted> {
        self.held().hosts.delete(&at, if_match)
    }

    async fn host_heartbeat(
        &self,
        at: HostName,
        body: Heartbeat<HostAddress>,
    ) -> ApiResult<HeartbeatAck> {
        self.held().register_host(&at, body, self.now)?;
        Ok(HEARD)
    }

    async fn deregister_host(&self, at: HostName, _: Deregister) -> ApiResult<Deleted> {
        Ok(Deleted { existed: self.held().hosts.get(&at).is_ok() })
    }

    async fn host_paths(&self, _: HostName, _: model::PathReport) -> ApiResult<HeartbeatAck> {
        Ok(HEARD)
    }

    async fn pools(&self, query: PoolQuery) -> ApiResult<Page<Pool>> {
        self.held().pools.page(&query.paging(), |pool| {
            is(query.node.as_ref(), &pool.spec().node)
                && labelled(query.label.as_ref(), &pool.spec().labels)
        })
    }

    async fn pool(&self, at: PoolName) -> ApiResult<Pool> {
        self.held().pools.get(&at)
    }

    async fn put_pool(&self, at: PoolName, body: PoolSpec) -> ApiResult<Applied<Pool>> {
        let mut held = self.held();
        if held.nodes.get(&body.node).is_err() {
            let detail = format!("there is no node {}; its engine must register first", body.node);
            let field = Some("node".to_owned());
            return Err(Problem { field, ..Problem::new(ProblemKind::NodeUnavailable, detail) });
        }
        let uuid = body.uuid.map_or_else(|| "00000000-0000-4000-8000-000000000001".parse(), Ok)?;
        held.pools.put(&at, body, self.now, |_| {
            Ok(PoolStatus {
                state: PoolState::Online,
                uuid,
                capacity: Size::gib(100),
                used: Size::ZERO,
                committed: Size::ZERO,
                cluster_size: PoolSpec::DEFAULT_CLUSTER,
                disks: Vec::new(),
            })
        })
    }

    async fn change_pool(
        &self,
        at: PoolName,
        body: PoolChange,
        if_match: Option<Generation>,
    ) -> ApiResult<Applied<Pool>> {
        self.held().pools.change(&at, body, if_match, self.now)
    }

    async fn delete_pool(&self, at: PoolName, if_match: Option<Generation>) -> ApiResult<Deleted> {
        let mut held = self.held();
        let used = held.replicas.all().filter(|replica| replica.spec().pool == at).count();
        if used > 0 {
            let detail = format!("pool {at} has {used} replicas; drain its node or move them");
            return Err(Problem::new(ProblemKind::InUse, detail));
        }
        held.pools.delete(&at, if_match)
    }

    async fn clear_pool_errors(&self, at: PoolName) -> ApiResult<Deleted> {
        self.held().pools.get(&at)?;
        Ok(Deleted { existed: false })
    }

    async fn pool_purge(&self, at: PoolName) -> ApiResult<Purge> {
        self.held().pools.get(&at)?;
        Ok(self.purge_of(at.as_str()))
    }

    async fn purge_pool(&self, at: PoolName, body: PurgeConfirmation) -> ApiResult<Deleted> {
        covered(&self.purge_of(at.as_str()), &body)?;
        self.held().pools.delete(&at, None)
    }

    async fn volumes(&self, query: VolumeQuery) -> ApiResult<Page<Volume>> {
        let asked = |it: &Volume| asks_for(&query, it);
        self.held().volumes.page_of(query.called.as_ref(), &query.paging(), asked)
    }

    async fn volume(&self, at: VolumeId) -> ApiResult<Volume> {
        self.held().volumes.get(&at)
    }

    async fn put_volume(&self, at: VolumeId, body: VolumeSpec) -> ApiResult<Applied<Volume>> {
        let mut held = self.held();
        let room = held.room(&body);
        held.volumes.put(&at, body, self.now, |spec| {
            room?;
            Ok(VolumeStatus {
                state: VolumeState::Online,
                reasons: Vec::new(),
                target: None,
                replicas: BTreeMap::new(),
                usage: model::Usage { capacity: spec.size, ..model::Usage::default() },
                snapshots: 0,
            })
        })
    }

    async fn change_volume(
        &self,
        at: VolumeId,
        body: VolumeAction,
        if_match: Option<Generation>,
    ) -> ApiResult<Applied<Volume>> {
        let mut held = self.held();
        held.must_be_free(at)?;
        held.request(at, body, if_match, self.now)
    }

    async fn delete_volume(
        &self,
        at: VolumeId,
        if_match: Option<Generation>,
    ) -> ApiResult<Deleted> {
        let mut held = self.held();
        held.must_be_free(at)?;
        let published = held.volumes.get(&at).ok().and_then(|volume| volume.status?.target);
        if published.is_some_and(|target| !target.hosts.is_empty()) {
            let detail = format!("volume {at} is published; unpublish it first");
            return Err(Problem::new(ProblemKind::InUse, detail));
        }
        held.volumes.delete(&at, if_match)
    }

    async fn check_volume(&self, at: VolumeId, _: CheckRequest) -> ApiResult<CheckReport> {
        self.held().volumes.get(&at).map(|_| CheckReport::default())
    }

    async fn placement(&self, at: VolumeId, query: Paging) -> ApiResult<Page<Placement>> {
        self.held().volumes.get(&at)?;
        query.cut(self.held().places(), |place| place.pool.to_string())
    }

    async fn snapshots(&self, query: SnapshotQuery) -> ApiResult<Page<Snapshot>> {
        let asked = |it: &Snapshot| asks_for_snapshot(&query, it);
        self.held().snapshots.page_of(query.called.as_ref(), &query.paging(), asked)
    }

    async fn snapshot(&self, at: SnapshotId) -> ApiResult<Snapshot> {
        self.held().snapshots.get(&at)
    }

    async fn put_snapshot(
        &self,
        at: SnapshotId,
        body: SnapshotSpec,
    ) -> ApiResult<Applied<Snapshot>> {
        let mut held = self.held();
        let volume = held.volumes.get(&body.volume)?;
        let taken = held.snapshots.all().filter(|have| have.spec().volume == body.volume).count();
        held.snapshots.put(&at, body, self.now, |_| {
            let most = volume.spec().max_snapshots;
            if most.is_some_and(|most| count(taken) >= u64::from(most)) {
                let detail = format!("volume {} has all its {taken} snapshots", volume.id());
                return Err(Problem::new(ProblemKind::SnapshotLimit, detail));
            }
            Ok(taken_at_once(self.now, volume.spec().size))
        })
    }

    async fn change_snapshot(
        &self,
        at: SnapshotId,
        body: SnapshotChange,
        if_match: Option<Generation>,
    ) -> ApiResult<Applied<Snapshot>> {
        self.held().snapshots.change(&at, body, if_match, self.now)
    }

    async fn delete_snapshot(
        &self,
        at: SnapshotId,
        if_match: Option<Generation>,
    ) -> ApiResult<Deleted> {
        self.held().snapshots.delete(&at, if_match)
    }

    async fn ranges(&self, at: SnapshotId, query: RangeQuery) -> ApiResult<Page<Range>> {
        self.held().snapshots.get(&at)?;
        let one = Range { offset: Size::mib(1), length: Size::kib(4) };
        query.paging().cut([one], |range| format!("{:020}", range.offset.bytes().0))
    }

    async fn groups(&self, query: GroupQuery) -> ApiResult<Page<SnapshotGroup>> {
        let asked = |group: &SnapshotGroup| labelled(query.label.as_ref(), &group.spec().labels);
        self.held().groups.page_of(query.called.as_ref(), &query.paging(), asked)
    }

    async fn group(&self, at: SnapshotGroupId) -> ApiResult<SnapshotGroup> {
        self.held().groups.get(&at)
    }

    async fn put_group(
        &self,
        at: SnapshotGroupId,
        body: SnapshotGroupSpec,
    ) -> ApiResult<Applied<SnapshotGroup>> {
        let mut held = self.held();
        for (volume, snapshot) in &body.snapshots {
            let size = held.volumes.get(volume)?.spec().size;
            let spec = SnapshotSpec { group: Some(at), ..SnapshotSpec::new(*volume) };
            held.snapshots.put(snapshot, spec, self.now, |_| Ok(taken_at_once(self.now, size)))?;
        }
        held.groups.put(&at, body, self.now, |_| {
            Ok(SnapshotGroupStatus {
                state: SnapshotState::Ready,
                taken_at: self.now,
                consistency: Consistency::Crash,
            })
        })
    }

    async fn change_group(
        &self,
        at: SnapshotGroupId,
        body: SnapshotGroupChange,
        if_match: Option<Generation>,
    ) -> ApiResult<Applied<SnapshotGroup>> {
        self.held().groups.change(&at, body, if_match, self.now)
    }

    async fn delete_group(
        &self,
        at: SnapshotGroupId,
        if_match: Option<Generation>,
    ) -> ApiResult<Deleted> {
        let mut held = self.held();
        let members = held.groups.get(&at).map(|group| group.spec().snapshots.clone());
        for snapshot in members.into_iter().flatten().map(|(_, snapshot)| snapshot) {
            held.snapshots.delete(&snapshot, None)?;
        }
        held.groups.delete(&at, if_match)
    }

    async fn replicas(&self, query: ReplicaQuery) -> ApiResult<Page<Replica>> {
        let held = self.held();
        held.replicas.page(&query.paging(), |replica| {
            let spec = replica.spec();
            let node = || held.pools.get(&spec.pool).ok().map(|pool| pool.spec().node.clone());
            is(query.volume.as_ref(), &spec.volume)
                && is(query.pool.as_ref(), &spec.pool)
                && query.node.as_ref().is_none_or(|asked| node().as_ref() == Some(asked))
        })
    }

    async fn replica(&self, at: ReplicaId) -> ApiResult<Replica> {
        self.held().replicas.get(&at)
    }

    async fn scrub(&self, at: ReplicaId) -> ApiResult<Scrub> {
        let never =
            || Problem::new(ProblemKind::NotFound, format!("replica {at} was never scrubbed"));
        self.held().scrubs.get(&at).cloned().ok_or_else(never)
    }

    async fn put_scrub(&self, at: ReplicaId, body: JobControl) -> ApiResult<Applied<Scrub>> {
        self.held().scrub(at, body.run, self.now)
    }

    async fn quarantine(&self, query: Paging) -> ApiResult<Page<Quarantined>> {
        query.cut(self.held().quarantine.values().cloned(), |it| it.record.replica.to_string())
    }

    async fn rescue(&self, at: ReplicaId, body: RescueRequest) -> ApiResult<Applied<Snapshot>> {
        self.held().rescue(at, body, self.now)
    }

    async fn discard(&self, at: ReplicaId) -> ApiResult<Deleted> {
        Ok(Deleted { existed: self.held().quarantine.remove(&at).is_some() })
    }

    async fn fence(&self, at: ReplicaId) -> ApiResult<Fence> {
        self.held().replicas.get(&at).map(|_| FENCE)
    }

    async fn reset_fence(&self, at: ReplicaId, body: FenceReset) -> ApiResult<Applied<Fence>> {
        self.held().replicas.get(&at)?;
        lowered(body)
    }

    async fn targets(&self, query: TargetQuery) -> ApiResult<Page<Target>> {
        self.held().targets.page(&query.paging(), |target| {
            is(query.volume.as_ref(), &target.spec().volume)
                && is(query.node.as_ref(), &target.spec().node)
        })
    }

    async fn target(&self, at: TargetId) -> ApiResult<Target> {
        self.held().targets.get(&at)
    }

    async fn rebuilds(&self, query: RebuildQuery) -> ApiResult<Page<Rebuild>> {
        let held = self.held();
        let some = held.rebuilds.values().filter(|rebuild| {
            is(query.volume.as_ref(), &rebuild.volume)
                && !(query.running == Some(true) && rebuild.state().is_ended())
        });
        query.paging().cut(some.cloned(), |rebuild| rebuild.id.to_string())
    }

    async fn rebuild(&self, at: RebuildId) -> ApiResult<Rebuild> {
        let missing = || Problem::new(ProblemKind::NotFound, format!("there is no rebuild {at}"));
        self.held().rebuilds.get(&at).cloned().ok_or_else(missing)
    }

    async fn put_rebuild(&self, at: RebuildId, body: JobControl) -> ApiResult<Applied<Rebuild>> {
        self.held().pace_rebuild(at, body.run, self.now)
    }

    async fn failovers(&self, query: FailoverQuery) -> ApiResult<Page<Failover>> {
        let held = self.held();
        let some = held.failovers.iter().filter(|one| is(query.volume.as_ref(), &one.volume()));
        query.paging().cut(some.cloned(), |one| one.id().to_string())
    }

    async fn webhooks(&self, query: Paging) -> ApiResult<Page<Webhook>> {
        self.held().webhooks.page(&query, |_| true)
    }

    async fn webhook(&self, at: WebhookName) -> ApiResult<Webhook> {
        self.held().webhooks.get(&at)
    }

    async fn put_webhook(&self, at: WebhookName, body: WebhookSpec) -> ApiResult<Applied<Webhook>> {
        self.held().webhooks.put(&at, body, self.now, |_| Ok(WebhookStatus::default()))
    }

    async fn change_webhook(
        &self,
        at: WebhookName,
        body: WebhookChange,
        if_match: Option<Generation>,
    ) -> ApiResult<Applied<Webhook>> {
        self.held().webhooks.change(&at, body, if_match, self.now)
    }

    async fn delete_webhook(
        &self,
        at: WebhookName,
        if_match: Option<Generation>,
    ) -> ApiResult<Deleted> {
        self.held().webhooks.delete(&at, if_match)
    }
}
