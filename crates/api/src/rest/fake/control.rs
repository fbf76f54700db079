//! The contract, kept in memory.

use std::collections::BTreeMap;

use model::{
    BlockDevice, Consistency, Event, Failover, Generation, Heartbeat, Host, HostAddress,
    HostChange, HostName, HostSpec, HostStatus, Kind, Labels, Liveness, Node, NodeAddress,
    NodeChange, NodeName, Pool, PoolChange, PoolName, PoolSpec, PoolState, PoolStatus, Problem,
    Rebuild, RebuildId, Replica, ReplicaId, Size, Snapshot, SnapshotChange, SnapshotGroup,
    SnapshotGroupChange, SnapshotGroupId, SnapshotGroupSpec, SnapshotGroupStatus, SnapshotId,
    SnapshotSpec, SnapshotState, Target, TargetId, Volume, VolumeId, VolumeSpec, VolumeState,
    VolumeStatus, Watch, WatchChange, WatchName, WatchSpec, WatchStatus,
};

use super::Fake;
use super::seen::{
    FENCE, HEARD, VERSION, asks_for, count, covered, is, labelled, lowered, taken_at_once, well,
};
use crate::heartbeat::{Farewell, Heard};
use crate::node::{CheckReport, CheckRequest, Fence, FenceReset, Pace, Range, Scrub, Statistics};
use crate::rest::{
    Alive, Answered, Backup, Consent, Control, EventsAsked, FailoversAsked, GroupsAsked, Health,
    HostsAsked, NodesAsked, Placement, PoolsAsked, Purge, Quarantined, RangesAsked, RebuildsAsked,
    RecoverWish, Recovery, ReplicasAsked, RescueRequest, SnapshotsAsked, Status, StoredSpec,
    TargetsAsked, VolumeWish, VolumesAsked,
};
use crate::{Ensured, Gone, Page, Paging, Text};

fn no(kind: Kind, detail: impl std::fmt::Display) -> Problem {
    Problem::new(kind, detail)
}

impl Control for Fake {
    async fn live(&self) -> Answered<Alive> {
        Ok(Alive { version: VERSION.to_owned() })
    }

    async fn ready(&self) -> Answered<Health> {
        Ok(well())
    }

    async fn health(&self) -> Answered<Health> {
        Ok(well())
    }

    async fn status(&self) -> Answered<Status> {
        Ok(self.held().summary())
    }

    async fn metrics(&self) -> Answered<Text> {
        Ok(Text("# TYPE up gauge\nup 1\n".to_owned()))
    }

    async fn backup(&self) -> Answered<Backup> {
        Ok(Backup(b"{}\n".to_vec()))
    }

    async fn recovery(&self) -> Answered<Recovery> {
        Ok(Recovery::default())
    }

    async fn recover(&self, _body: RecoverWish) -> Answered<Recovery> {
        Ok(Recovery::default())
    }

    async fn specs(&self, query: Paging) -> Answered<Page<StoredSpec>> {
        self.held().specs(&query)
    }

    async fn kept_events(&self, query: EventsAsked) -> Answered<Page<Event>> {
        self.held().kept(&query)
    }

    async fn nodes(&self, query: NodesAsked) -> Answered<Page<Node>> {
        let asked = |node: &Node| labelled(query.label.as_ref(), &node.spec().labels);
        self.held().nodes.page(&query.paging(), asked)
    }

    async fn node(&self, at: NodeName) -> Answered<Node> {
        self.held().nodes.get(&at)
    }

    async fn change_node(
        &self,
        at: NodeName,
        body: NodeChange,
        seen: Option<Generation>,
    ) -> Answered<Ensured<Node>> {
        self.held().nodes.change(&at, body, seen, self.now)
    }

    async fn node_purge(&self, at: NodeName) -> Answered<Purge> {
        self.held().nodes.get(&at)?;
        Ok(self.purge_of(at.as_str()))
    }

    async fn purge_node(&self, at: NodeName, body: Consent) -> Answered<Gone> {
        covered(&self.purge_of(at.as_str()), &body)?;
        self.held().nodes.delete(&at, None)
    }

    async fn devices(&self, at: NodeName, query: Paging) -> Answered<Page<BlockDevice>> {
        let held = self.held();
        held.nodes.get(&at)?;
        let devices = held.devices.get(&at).cloned().unwrap_or_default();
        query.cut(devices, |device| device.path.to_string())
    }

    async fn statistics(&self, at: NodeName, query: Paging) -> Answered<Page<Statistics>> {
        self.held().nodes.get(&at)?;
        query.cut([], |one: &Statistics| format!("{:?}", one.of))
    }

    async fn node_heartbeat(&self, at: NodeName, body: Heartbeat<NodeAddress>) -> Answered<Heard> {
        self.held().register(&at, body, self.now)?;
        Ok(HEARD)
    }

    async fn node_farewell(&self, at: NodeName, _: Farewell) -> Answered<Gone> {
        Ok(Gone { was_there: self.held().nodes.get(&at).is_ok() })
    }

    async fn hosts(&self, query: HostsAsked) -> Answered<Page<Host>> {
        let asked = |host: &Host| labelled(query.label.as_ref(), &host.spec().labels);
        self.held().hosts.page(&query.paging(), asked)
    }

    async fn host(&self, at: HostName) -> Answered<Host> {
        self.held().hosts.get(&at)
    }

    async fn change_host(
        &self,
        at: HostName,
        body: HostChange,
        seen: Option<Generation>,
    ) -> Answered<Ensured<Host>> {
        self.held().hosts.change(&at, body, seen, self.now)
    }

    async fn delete_host(&self, at: HostName, seen: Option<Generation>) -> Answered<Gone> {
        self.held().hosts.delete(&at, seen)
    }

    async fn host_heartbeat(&self, at: HostName, body: Heartbeat<HostAddress>) -> Answered<Heard> {
        let Heartbeat { instance, address, .. } = body;
        let spec = HostSpec { address, labels: Labels::new() };
        let status = HostStatus {
            liveness: Liveness::Online,
            instance: Some(instance),
            seen_at: Some(self.now),
            attached: BTreeMap::new(),
        };
        let mut held = self.held();
        if held.hosts.get(&at).is_err() {
            held.hosts.put(&at, spec, self.now, |_| Ok(status))?;
        }
        Ok(HEARD)
    }

    async fn host_farewell(&self, at: HostName, _: Farewell) -> Answered<Gone> {
        Ok(Gone { was_there: self.held().hosts.get(&at).is_ok() })
    }

    async fn host_paths(&self, _: HostName, _: model::PathReport) -> Answered<Heard> {
        Ok(HEARD)
    }

    async fn pools(&self, query: PoolsAsked) -> Answered<Page<Pool>> {
        self.held().pools.page(&query.paging(), |pool| {
            is(query.node.as_ref(), &pool.spec().node)
                && labelled(query.label.as_ref(), &pool.spec().labels)
        })
    }

    async fn pool(&self, at: PoolName) -> Answered<Pool> {
        self.held().pools.get(&at)
    }

    async fn put_pool(&self, at: PoolName, body: PoolSpec) -> Answered<Ensured<Pool>> {
        let mut held = self.held();
        if held.nodes.get(&body.node).is_err() {
            let detail = format!("there is no node {}; its engine must register first", body.node);
            let field = Some("node".to_owned());
            return Err(Problem { field, ..no(Kind::NodeUnavailable, detail) });
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
        seen: Option<Generation>,
    ) -> Answered<Ensured<Pool>> {
        self.held().pools.change(&at, body, seen, self.now)
    }

    async fn delete_pool(&self, at: PoolName, seen: Option<Generation>) -> Answered<Gone> {
        let mut held = self.held();
        let used = held.replicas.all().filter(|replica| replica.spec().pool == at).count();
        if used > 0 {
            let detail = format!("pool {at} has {used} replicas; drain its node or move them");
            return Err(no(Kind::InUse, detail));
        }
        held.pools.delete(&at, seen)
    }

    async fn pool_purge(&self, at: PoolName) -> Answered<Purge> {
        self.held().pools.get(&at)?;
        Ok(self.purge_of(at.as_str()))
    }

    async fn purge_pool(&self, at: PoolName, body: Consent) -> Answered<Gone> {
        covered(&self.purge_of(at.as_str()), &body)?;
        self.held().pools.delete(&at, None)
    }

    async fn volumes(&self, query: VolumesAsked) -> Answered<Page<Volume>> {
        self.held().volumes.page(&query.paging(), |volume| asks_for(&query, volume))
    }

    async fn volume(&self, at: VolumeId) -> Answered<Volume> {
        self.held().volumes.get(&at)
    }

    async fn put_volume(&self, at: VolumeId, body: VolumeSpec) -> Answered<Ensured<Volume>> {
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
        body: VolumeWish,
        seen: Option<Generation>,
    ) -> Answered<Ensured<Volume>> {
        let mut held = self.held();
        held.must_be_free(at)?;
        held.wish(at, body, seen, self.now)
    }

    async fn delete_volume(&self, at: VolumeId, seen: Option<Generation>) -> Answered<Gone> {
        let mut held = self.held();
        held.must_be_free(at)?;
        let published = held.volumes.get(&at).ok().and_then(|volume| volume.status?.target);
        if published.is_some_and(|target| !target.hosts.is_empty()) {
            let detail = format!("volume {at} is published; unpublish it first");
            return Err(no(Kind::InUse, detail));
        }
        held.volumes.delete(&at, seen)
    }

    async fn check_volume(&self, at: VolumeId, _: CheckRequest) -> Answered<CheckReport> {
        self.held().volumes.get(&at).map(|_| CheckReport::default())
    }

    async fn placement(&self, at: VolumeId, query: Paging) -> Answered<Page<Placement>> {
        let held = self.held();
        held.volumes.get(&at)?;
        let places: Vec<Placement> = held
            .pools
            .all()
            .zip(1..)
            .map(|(pool, rank)| Placement {
                pool: pool.id().clone(),
                node: pool.spec().node.clone(),
                replica: None,
                rank: (!pool.spec().is_cordoned()).then_some(rank),
                refused: pool.spec().is_cordoned().then(|| "the pool is cordoned".to_owned()),
            })
            .collect();
        query.cut(places, |place| place.pool.to_string())
    }

    async fn snapshots(&self, query: SnapshotsAsked) -> Answered<Page<Snapshot>> {
        self.held().snapshots.page(&query.paging(), |snapshot| {
            let spec = snapshot.spec();
            is(query.volume.as_ref(), &spec.volume)
                && query.group.is_none_or(|group| spec.group == Some(group))
                && labelled(query.label.as_ref(), &spec.labels)
        })
    }

    async fn snapshot(&self, at: SnapshotId) -> Answered<Snapshot> {
        self.held().snapshots.get(&at)
    }

    async fn put_snapshot(
        &self,
        at: SnapshotId,
        body: SnapshotSpec,
    ) -> Answered<Ensured<Snapshot>> {
        let mut held = self.held();
        let volume = held.volumes.get(&body.volume)?;
        let taken = held.snapshots.all().filter(|have| have.spec().volume == body.volume).count();
        held.snapshots.put(&at, body, self.now, |_| {
            let most = volume.spec().max_snapshots;
            if most.is_some_and(|most| count(taken) >= u64::from(most)) {
                let detail = format!("volume {} has all its {taken} snapshots", volume.id());
                return Err(no(Kind::SnapshotLimit, detail));
            }
            Ok(taken_at_once(self.now, volume.spec().size))
        })
    }

    async fn change_snapshot(
        &self,
        at: SnapshotId,
        body: SnapshotChange,
        seen: Option<Generation>,
    ) -> Answered<Ensured<Snapshot>> {
        self.held().snapshots.change(&at, body, seen, self.now)
    }

    async fn delete_snapshot(&self, at: SnapshotId, seen: Option<Generation>) -> Answered<Gone> {
        self.held().snapshots.delete(&at, seen)
    }

    async fn ranges(&self, at: SnapshotId, query: RangesAsked) -> Answered<Page<Range>> {
        self.held().snapshots.get(&at)?;
        let one = Range { offset: Size::mib(1), length: Size::kib(4) };
        query.paging().cut([one], |range| format!("{:020}", range.offset.bytes().0))
    }

    async fn groups(&self, query: GroupsAsked) -> Answered<Page<SnapshotGroup>> {
        let asked = |group: &SnapshotGroup| labelled(query.label.as_ref(), &group.spec().labels);
        self.held().groups.page(&query.paging(), asked)
    }

    async fn group(&self, at: SnapshotGroupId) -> Answered<SnapshotGroup> {
        self.held().groups.get(&at)
    }

    async fn put_group(
        &self,
        at: SnapshotGroupId,
        body: SnapshotGroupSpec,
    ) -> Answered<Ensured<SnapshotGroup>> {
        let mut held = self.held();
        for (volume, snapshot) in &body.snapshots {
            let size = held.volumes.get(volume)?.spec().size;
            let spec = SnapshotSpec { volume: *volume, group: Some(at), labels: Labels::new() };
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
        seen: Option<Generation>,
    ) -> Answered<Ensured<SnapshotGroup>> {
        self.held().groups.change(&at, body, seen, self.now)
    }

    async fn delete_group(&self, at: SnapshotGroupId, seen: Option<Generation>) -> Answered<Gone> {
        let mut held = self.held();
        let members = held.groups.get(&at).map(|group| group.spec().snapshots.clone());
        for snapshot in members.into_iter().flatten().map(|(_, snapshot)| snapshot) {
            held.snapshots.delete(&snapshot, None)?;
        }
        held.groups.delete(&at, seen)
    }

    async fn replicas(&self, query: ReplicasAsked) -> Answered<Page<Replica>> {
        let held = self.held();
        held.replicas.page(&query.paging(), |replica| {
            let spec = replica.spec();
            let node = || held.pools.get(&spec.pool).ok().map(|pool| pool.spec().node.clone());
            is(query.volume.as_ref(), &spec.volume)
                && is(query.pool.as_ref(), &spec.pool)
                && query.node.as_ref().is_none_or(|asked| node().as_ref() == Some(asked))
        })
    }

    async fn replica(&self, at: ReplicaId) -> Answered<Replica> {
        self.held().replicas.get(&at)
    }

    async fn scrub(&self, at: ReplicaId) -> Answered<Scrub> {
        let never = || no(Kind::NotFound, format!("replica {at} was never scrubbed"));
        self.held().scrubs.get(&at).cloned().ok_or_else(never)
    }

    async fn put_scrub(&self, at: ReplicaId, body: Pace) -> Answered<Ensured<Scrub>> {
        self.held().scrub(at, body.run, self.now)
    }

    async fn quarantine(&self, query: Paging) -> Answered<Page<Quarantined>> {
        query.cut(self.held().quarantine.values().cloned(), |it| it.record.replica.to_string())
    }

    async fn rescue(&self, at: ReplicaId, body: RescueRequest) -> Answered<Ensured<Snapshot>> {
        self.held().rescue(at, body, self.now)
    }

    async fn discard(&self, at: ReplicaId) -> Answered<Gone> {
        Ok(Gone { was_there: self.held().quarantine.remove(&at).is_some() })
    }

    async fn fence(&self, at: ReplicaId) -> Answered<Fence> {
        self.held().replicas.get(&at).map(|_| FENCE)
    }

    async fn reset_fence(&self, at: ReplicaId, body: FenceReset) -> Answered<Ensured<Fence>> {
        self.held().replicas.get(&at)?;
        lowered(body)
    }

    async fn targets(&self, query: TargetsAsked) -> Answered<Page<Target>> {
        self.held().targets.page(&query.paging(), |target| {
            is(query.volume.as_ref(), &target.spec().volume)
                && is(query.node.as_ref(), &target.spec().node)
        })
    }

    async fn target(&self, at: TargetId) -> Answered<Target> {
        self.held().targets.get(&at)
    }

    async fn rebuilds(&self, query: RebuildsAsked) -> Answered<Page<Rebuild>> {
        let held = self.held();
        let some = held.rebuilds.values().filter(|rebuild| {
            is(query.volume.as_ref(), &rebuild.volume)
                && !(query.running == Some(true) && rebuild.state().is_ended())
        });
        query.paging().cut(some.cloned(), |rebuild| rebuild.id.to_string())
    }

    async fn rebuild(&self, at: RebuildId) -> Answered<Rebuild> {
        let missing = || no(Kind::NotFound, format!("there is no rebuild {at}"));
        self.held().rebuilds.get(&at).cloned().ok_or_else(missing)
    }

    async fn put_rebuild(&self, at: RebuildId, body: Pace) -> Answered<Ensured<Rebuild>> {
        self.held().pace_rebuild(at, body.run, self.now)
    }

    async fn failovers(&self, query: FailoversAsked) -> Answered<Page<Failover>> {
        let held = self.held();
        let some = held.failovers.iter().filter(|one| is(query.volume.as_ref(), &one.volume()));
        query.paging().cut(some.cloned(), |one| one.id().to_string())
    }

    async fn watches(&self, query: Paging) -> Answered<Page<Watch>> {
        self.held().watches.page(&query, |_| true)
    }

    async fn watch(&self, at: WatchName) -> Answered<Watch> {
        self.held().watches.get(&at)
    }

    async fn put_watch(&self, at: WatchName, body: WatchSpec) -> Answered<Ensured<Watch>> {
        self.held().watches.put(&at, body, self.now, |_| Ok(WatchStatus::default()))
    }

    async fn change_watch(
        &self,
        at: WatchName,
        body: WatchChange,
        seen: Option<Generation>,
    ) -> Answered<Ensured<Watch>> {
        self.held().watches.change(&at, body, seen, self.now)
    }

    async fn delete_watch(&self, at: WatchName, seen: Option<Generation>) -> Answered<Gone> {
        self.held().watches.delete(&at, seen)
    }
}
