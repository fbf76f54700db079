//! REST, answered: wishes go to the core, questions are answered from what it knows, and what only
//! an engine knows is asked there.

mod consent;
pub(crate) mod lists;
mod overview;
mod through;
mod watches;

use std::collections::BTreeSet;
use std::sync::Arc;

use api::heartbeat::{Farewell, Heard};
use api::node::{CheckReport, CheckRequest, Fence, FenceReset, Pace, Range, Scrub, Statistics};
use api::rest::{
    Alive, Answered, Backup, Consent, Control, EventsAsked, FailoversAsked, GroupsAsked, Health,
    HostsAsked, NodesAsked, Placement, PoolsAsked, Purge, Quarantined, RangesAsked, RebuildsAsked,
    RecoverWish, Recovery, ReplicasAsked, RescueRequest, SnapshotsAsked, Status, StoredSpec,
    TargetsAsked, VolumeWish, VolumesAsked,
};
use api::{Effect, Ensured, Gone, Page, Paging, Text};
use model::{
    BlockDevice, Event, Failover, Generation, Heartbeat, Host, HostAddress, HostChange, HostName,
    Kind, Node, NodeAddress, NodeChange, NodeName, Pool, PoolChange, PoolName, PoolSpec, Problem,
    Rebuild, RebuildId, Replica, ReplicaId, Snapshot, SnapshotChange, SnapshotGroup,
    SnapshotGroupChange, SnapshotGroupId, SnapshotGroupSpec, SnapshotId, SnapshotSpec, Target,
    TargetId, Volume, VolumeId, VolumeSpec, Watch, WatchChange, WatchName, WatchSpec,
};

use consent::covered;

use crate::core::{Core, Done, Input, Wish};
use crate::shared::Shared;

/// The control plane of this process, as REST sees it.
#[derive(Clone)]
pub(crate) struct Rest(pub(crate) Arc<Shared>);

fn ensured<T>(done: Done, now: T) -> Ensured<T> {
    let effect = match done {
        Done::Created => Effect::Created,
        Done::Changed | Done::Gone => Effect::Changed,
        Done::Unchanged => Effect::Unchanged,
    };
    Ensured { effect, now }
}

fn missing(kind: &str, id: &dyn std::fmt::Display) -> Problem {
    Problem::new(Kind::NotFound, format!("there is no {kind} {id}"))
}

impl Rest {
    /// A wish, then what it was about as it is now.
    async fn wish<T>(
        &self,
        wish: Wish,
        seen: Option<Generation>,
        look: impl FnOnce(&Core) -> Result<T, Problem>,
    ) -> Answered<Ensured<T>> {
        let done = self.0.ask(wish, seen).await?;
        self.0.read(|core| look(core)).map(|now| ensured(done, now))
    }

    async fn gone(&self, wish: Wish, seen: Option<Generation>) -> Answered<Gone> {
        let done = self.0.ask(wish, seen).await?;
        Ok(Gone { was_there: done != Done::Unchanged })
    }

    /// Asks all nodes what they have. One that does not answer keeps nobody waiting: that it is not
    /// known is seen.
    async fn list_all(&self) -> Answered<()> {
        let nodes: Vec<NodeName> =
            self.one(|core| Ok(core.state().facts.nodes.keys().cloned().collect()))?;
        let asked = nodes.into_iter().map(|node| self.0.ask(Wish::List(node), None));
        futures::future::join_all(asked).await;
        Ok(())
    }

    fn one<T>(&self, look: impl FnOnce(&Core) -> Result<T, Problem>) -> Answered<T> {
        self.0.read(|core| look(core))
    }
}

fn volume(core: &Core, id: VolumeId) -> Result<Volume, Problem> {
    core.volume_seen(id).ok_or_else(|| missing("volume", &id))
}

fn pool(core: &Core, name: &PoolName) -> Result<Pool, Problem> {
    core.pool_seen(name).ok_or_else(|| missing("pool", name))
}

fn node(core: &Core, name: &NodeName) -> Result<Node, Problem> {
    core.node_seen(name).ok_or_else(|| missing("node", name))
}

fn host(core: &Core, name: &HostName) -> Result<Host, Problem> {
    core.host_seen(name).ok_or_else(|| missing("host", name))
}

fn snapshot(core: &Core, id: SnapshotId) -> Result<Snapshot, Problem> {
    core.snapshot_seen(id).ok_or_else(|| missing("snapshot", &id))
}

fn group(core: &Core, id: SnapshotGroupId) -> Result<SnapshotGroup, Problem> {
    core.state().groups.get(&id).cloned().ok_or_else(|| missing("snapshot group", &id))
}

fn wish_of(volume: VolumeId, wish: VolumeWish) -> Wish {
    match wish {
        VolumeWish::Publish { host, node } => Wish::Publish { volume, host, node },
        VolumeWish::Unpublish { host, force } => Wish::Unpublish { volume, host, force },
        VolumeWish::Republish { node } => Wish::Republish { volume, node },
        VolumeWish::Resize { size } => Wish::Resize { volume, size },
        VolumeWish::SetReplicas { replicas } => Wish::SetReplicas { volume, replicas },
        VolumeWish::Modify { spec } => Wish::ModifyVolume(volume, spec),
        VolumeWish::MoveReplica { replica, pool } => Wish::MoveReplica { volume, replica, pool },
        VolumeWish::RemoveReplica { replica } => Wish::RemoveReplica { volume, replica },
        VolumeWish::SetReplicaOffline { replica, offline } => {
            Wish::SetReplicaOffline { volume, replica, offline }
        }
        VolumeWish::RemoveShutdownTargets {} => Wish::DropTargets(volume),
    }
}

impl Control for Rest {
    async fn live(&self) -> Answered<Alive> {
        Ok(Alive { version: env!("CARGO_PKG_VERSION").to_owned() })
    }

    async fn ready(&self) -> Answered<Health> {
        self.one(|_| Ok(()))?;
        self.health().await
    }

    async fn health(&self) -> Answered<Health> {
        crate::health::health(&*self.0.store, self.0.who_leads()).await
    }

    async fn status(&self) -> Answered<Status> {
        self.status_of_all()
    }

    async fn metrics(&self) -> Answered<Text> {
        self.metrics_text()
    }

    async fn backup(&self) -> Answered<Backup> {
        self.export().await
    }

    async fn recovery(&self) -> Answered<Recovery> {
        self.list_all().await?;
        self.one(|core| Ok(core.recovery(&BTreeSet::new())))
    }

    async fn recover(&self, wish: RecoverWish) -> Answered<Recovery> {
        self.list_all().await?;
        let found = self.one(|core| Ok(core.recovery(&wish.incomplete)))?;
        // A write holds only so much.
        while self.0.ask(Wish::Recover(wish.incomplete.clone()), None).await? == Done::Changed {}
        // What was unknown is not any more.
        self.list_all().await?;
        Ok(found)
    }

    async fn specs(&self, paging: Paging) -> Answered<Page<StoredSpec>> {
        self.one(|core| lists::specs(core, &paging))
    }

    async fn kept_events(&self, asked: EventsAsked) -> Answered<Page<Event>> {
        self.one(|core| lists::events(core, &asked))
    }

    async fn nodes(&self, asked: NodesAsked) -> Answered<Page<Node>> {
        self.one(|core| lists::nodes(core, &asked))
    }

    async fn node(&self, name: NodeName) -> Answered<Node> {
        self.one(|core| node(core, &name))
    }

    async fn change_node(
        &self,
        name: NodeName,
        change: NodeChange,
        seen: Option<Generation>,
    ) -> Answered<Ensured<Node>> {
        let wish = Wish::ChangeNode(name.clone(), change);
        self.wish(wish, seen, |core| node(core, &name)).await
    }

    async fn node_purge(&self, name: NodeName) -> Answered<Purge> {
        self.one(|core| lists::node_purge(core, &name))
    }

    async fn purge_node(&self, name: NodeName, consent: Consent) -> Answered<Gone> {
        let preview = self.one(|core| lists::node_purge(core, &name));
        covered(preview, &consent)?;
        self.gone(Wish::PurgeNode(name, consent.lost_volumes), None).await
    }

    async fn devices(&self, name: NodeName, paging: Paging) -> Answered<Page<BlockDevice>> {
        self.devices_of(&name, paging).await
    }

    async fn statistics(&self, name: NodeName, paging: Paging) -> Answered<Page<Statistics>> {
        self.statistics_of(&name, paging).await
    }

    async fn node_heartbeat(
        &self,
        name: NodeName,
        beat: Heartbeat<NodeAddress>,
    ) -> Answered<Heard> {
        self.0.feed(Input::NodeHeard(name, beat));
        self.one(|core| Ok(core.heartbeat()))
    }

    async fn node_farewell(&self, name: NodeName, farewell: Farewell) -> Answered<Gone> {
        let was_there = self.one(|core| Ok(core.state().node(&name).is_some()))?;
        self.0.feed(Input::NodeLeft(name, farewell.instance));
        Ok(Gone { was_there })
    }

    async fn hosts(&self, asked: HostsAsked) -> Answered<Page<Host>> {
        self.one(|core| lists::hosts(core, &asked))
    }

    async fn host(&self, name: HostName) -> Answered<Host> {
        self.one(|core| host(core, &name))
    }

    async fn change_host(
        &self,
        name: HostName,
        change: HostChange,
        seen: Option<Generation>,
    ) -> Answered<Ensured<Host>> {
        let wish = Wish::ChangeHost(name.clone(), change);
        self.wish(wish, seen, |core| host(core, &name)).await
    }

    async fn delete_host(&self, name: HostName, seen: Option<Generation>) -> Answered<Gone> {
        self.gone(Wish::DeleteHost(name), seen).await
    }

    async fn host_heartbeat(
        &self,
        name: HostName,
        beat: Heartbeat<HostAddress>,
    ) -> Answered<Heard> {
        self.one(|core| core.check_machine(&name, &beat.address))?;
        self.0.feed(Input::HostHeard(name, beat));
        self.one(|core| Ok(core.heartbeat()))
    }

    async fn host_farewell(&self, name: HostName, farewell: Farewell) -> Answered<Gone> {
        let was_there = self.one(|core| Ok(core.state().hosts.contains_key(&name)))?;
        self.0.feed(Input::HostLeft(name, farewell.instance));
        Ok(Gone { was_there })
    }

    async fn host_paths(&self, name: HostName, report: model::PathReport) -> Answered<Heard> {
        self.0.feed(Input::PathsLost(name, report));
        self.one(|core| Ok(core.heartbeat()))
    }

    async fn pools(&self, asked: PoolsAsked) -> Answered<Page<Pool>> {
        self.one(|core| lists::pools(core, &asked))
    }

    async fn pool(&self, name: PoolName) -> Answered<Pool> {
        self.one(|core| pool(core, &name))
    }

    async fn put_pool(&self, name: PoolName, spec: PoolSpec) -> Answered<Ensured<Pool>> {
        let wish = Wish::CreatePool(name.clone(), Box::new(spec));
        self.wish(wish, None, |core| pool(core, &name)).await
    }

    async fn change_pool(
        &self,
        name: PoolName,
        change: PoolChange,
        seen: Option<Generation>,
    ) -> Answered<Ensured<Pool>> {
        let wish = Wish::ChangePool(name.clone(), change);
        self.wish(wish, seen, |core| pool(core, &name)).await
    }

    async fn delete_pool(&self, name: PoolName, seen: Option<Generation>) -> Answered<Gone> {
        self.gone(Wish::DeletePool(name), seen).await
    }

    async fn pool_purge(&self, name: PoolName) -> Answered<Purge> {
        self.one(|core| lists::pool_purge(core, &name))
    }

    async fn purge_pool(&self, name: PoolName, consent: Consent) -> Answered<Gone> {
        let preview = self.one(|core| lists::pool_purge(core, &name));
        covered(preview, &consent)?;
        self.gone(Wish::PurgePool(name, consent.lost_volumes), None).await
    }

    async fn volumes(&self, asked: VolumesAsked) -> Answered<Page<Volume>> {
        self.one(|core| lists::volumes(core, &asked))
    }

    async fn volume(&self, id: VolumeId) -> Answered<Volume> {
        self.one(|core| volume(core, id))
    }

    async fn put_volume(&self, id: VolumeId, spec: VolumeSpec) -> Answered<Ensured<Volume>> {
        let wish = Wish::CreateVolume(id, Box::new(spec));
        self.wish(wish, None, |core| volume(core, id)).await
    }

    async fn change_volume(
        &self,
        id: VolumeId,
        wish: VolumeWish,
        seen: Option<Generation>,
    ) -> Answered<Ensured<Volume>> {
        self.wish(wish_of(id, wish), seen, |core| volume(core, id)).await
    }

    async fn delete_volume(&self, id: VolumeId, seen: Option<Generation>) -> Answered<Gone> {
        self.gone(Wish::DeleteVolume(id), seen).await
    }

    async fn check_volume(&self, id: VolumeId, body: CheckRequest) -> Answered<CheckReport> {
        self.check_part(id, body).await
    }

    async fn placement(&self, id: VolumeId, paging: Paging) -> Answered<Page<Placement>> {
        self.one(|core| lists::placement(core, id, &paging))
    }

    async fn snapshots(&self, asked: SnapshotsAsked) -> Answered<Page<Snapshot>> {
        self.one(|core| lists::snapshots(core, &asked))
    }

    async fn snapshot(&self, id: SnapshotId) -> Answered<Snapshot> {
        self.one(|core| snapshot(core, id))
    }

    async fn put_snapshot(
        &self,
        id: SnapshotId,
        spec: SnapshotSpec,
    ) -> Answered<Ensured<Snapshot>> {
        let wish = Wish::CreateSnapshot(id, Box::new(spec));
        self.wish(wish, None, |core| snapshot(core, id)).await
    }

    async fn change_snapshot(
        &self,
        id: SnapshotId,
        change: SnapshotChange,
        seen: Option<Generation>,
    ) -> Answered<Ensured<Snapshot>> {
        let wish = Wish::ChangeSnapshot(id, change);
        self.wish(wish, seen, |core| snapshot(core, id)).await
    }

    async fn delete_snapshot(&self, id: SnapshotId, seen: Option<Generation>) -> Answered<Gone> {
        self.gone(Wish::DeleteSnapshot(id), seen).await
    }

    async fn ranges(&self, id: SnapshotId, asked: RangesAsked) -> Answered<Page<Range>> {
        self.ranges_of(id, asked).await
    }

    async fn groups(&self, asked: GroupsAsked) -> Answered<Page<SnapshotGroup>> {
        self.one(|core| lists::groups(core, &asked))
    }

    async fn group(&self, id: SnapshotGroupId) -> Answered<SnapshotGroup> {
        self.one(|core| group(core, id))
    }

    async fn put_group(
        &self,
        id: SnapshotGroupId,
        spec: SnapshotGroupSpec,
    ) -> Answered<Ensured<SnapshotGroup>> {
        let wish = Wish::CreateGroup(id, Box::new(spec));
        self.wish(wish, None, |core| group(core, id)).await
    }

    async fn change_group(
        &self,
        id: SnapshotGroupId,
        change: SnapshotGroupChange,
        seen: Option<Generation>,
    ) -> Answered<Ensured<SnapshotGroup>> {
        let wish = Wish::ChangeGroup(id, change);
        self.wish(wish, seen, |core| group(core, id)).await
    }

    async fn delete_group(&self, id: SnapshotGroupId, seen: Option<Generation>) -> Answered<Gone> {
        self.gone(Wish::DeleteGroup(id), seen).await
    }

    async fn replicas(&self, asked: ReplicasAsked) -> Answered<Page<Replica>> {
        self.one(|core| lists::replicas(core, &asked))
    }

    async fn replica(&self, id: ReplicaId) -> Answered<Replica> {
        self.one(|core| core.replica_seen(id).ok_or_else(|| missing("replica", &id)))
    }

    async fn scrub(&self, id: ReplicaId) -> Answered<Scrub> {
        self.scrub_of(id).await
    }

    async fn put_scrub(&self, id: ReplicaId, pace: Pace) -> Answered<Ensured<Scrub>> {
        self.pace_scrub(id, pace).await
    }

    async fn quarantine(&self, paging: Paging) -> Answered<Page<Quarantined>> {
        self.one(|core| lists::quarantine(core, &paging))
    }

    async fn rescue(&self, id: ReplicaId, wish: RescueRequest) -> Answered<Ensured<Snapshot>> {
        let snapshot_id = wish.snapshot;
        let wish = Wish::Rescue { replica: id, snapshot: snapshot_id };
        self.wish(wish, None, |core| snapshot(core, snapshot_id)).await
    }

    async fn discard(&self, id: ReplicaId) -> Answered<Gone> {
        self.gone(Wish::Discard(id), None).await
    }

    async fn fence(&self, id: ReplicaId) -> Answered<Fence> {
        self.fence_of(id).await
    }

    async fn reset_fence(&self, id: ReplicaId, reset: FenceReset) -> Answered<Ensured<Fence>> {
        self.lower_fence(id, reset).await
    }

    async fn targets(&self, asked: TargetsAsked) -> Answered<Page<Target>> {
        self.one(|core| lists::targets(core, &asked))
    }

    async fn target(&self, id: TargetId) -> Answered<Target> {
        let find = |core: &Core| core.state().facts.targets.get(&id).cloned();
        self.one(|core| find(core).ok_or_else(|| missing("target", &id)))
    }

    async fn rebuilds(&self, asked: RebuildsAsked) -> Answered<Page<Rebuild>> {
        self.one(|core| lists::rebuilds(core, &asked))
    }

    async fn rebuild(&self, id: RebuildId) -> Answered<Rebuild> {
        let find = |core: &Core| core.rebuild_seen(id).cloned();
        self.one(|core| find(core).ok_or_else(|| missing("rebuild", &id)))
    }

    async fn put_rebuild(&self, id: RebuildId, pace: Pace) -> Answered<Ensured<Rebuild>> {
        self.pace_rebuild(id, pace).await
    }

    async fn failovers(&self, asked: FailoversAsked) -> Answered<Page<Failover>> {
        self.one(|core| lists::failovers(core, &asked))
    }

    async fn watches(&self, paging: Paging) -> Answered<Page<Watch>> {
        self.watches_page(&paging)
    }

    async fn watch(&self, name: WatchName) -> Answered<Watch> {
        self.watch_seen(&name)
    }

    async fn put_watch(&self, name: WatchName, spec: WatchSpec) -> Answered<Ensured<Watch>> {
        self.make_watch(name, spec).await
    }

    async fn change_watch(
        &self,
        name: WatchName,
        change: WatchChange,
        seen: Option<Generation>,
    ) -> Answered<Ensured<Watch>> {
        self.alter_watch(name, change, seen).await
    }

    async fn delete_watch(&self, name: WatchName, seen: Option<Generation>) -> Answered<Gone> {
        self.drop_watch(name, seen).await
    }
}
