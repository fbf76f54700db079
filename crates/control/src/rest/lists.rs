//! Many things, a page at a time, and what purges would cost.

use std::collections::BTreeSet;

use api::rest::{
    EventQuery, FailoverQuery, GroupQuery, HostQuery, NodeQuery, Placement, PoolQuery, Purge,
    Quarantined, RebuildQuery, ReplicaQuery, SnapshotQuery, StoredSpec, TargetQuery, VolumeQuery,
};
use api::{Page, Paging};
use model::{
    Event, Failover, Host, Node, NodeName, Pool, PoolName, Problem, Quarantine, Rebuild, Replica,
    Snapshot, SnapshotGroup, Subject, Target, Volume, VolumeId,
};

use super::missing;
use crate::controller::Controller;

/// A page of things that are shown only when they are on it.
fn page<K: Copy + ToString, T>(
    paging: &Paging,
    keys: impl IntoIterator<Item = K>,
    show: impl Fn(K) -> Option<T>,
) -> Result<Page<T>, Problem> {
    let Page { items, after } = paging.cut(keys, ToString::to_string)?;
    Ok(Page { items: items.into_iter().filter_map(show).collect(), after })
}

pub(super) fn nodes(controller: &Controller, asked: &NodeQuery) -> Result<Page<Node>, Problem> {
    let all = controller.state().facts.nodes.values().cloned();
    let fits = |it: &Node| asked.label.as_ref().is_none_or(|it2| it2.admits(&it.spec().labels));
    asked.paging().cut(all.filter(fits), |node| node.id().to_string())
}

pub(super) fn hosts(controller: &Controller, asked: &HostQuery) -> Result<Page<Host>, Problem> {
    let label = asked.label.as_ref();
    let fits = |it: &&Host| label.is_none_or(|label| label.admits(&it.spec().labels));
    let names = controller.state().hosts.values().filter(fits).map(Host::id);
    let Page { items, after } = asked.paging().cut(names, ToString::to_string)?;
    Ok(Page { items: controller.hosts_seen(items), after })
}

pub(super) fn pools(controller: &Controller, asked: &PoolQuery) -> Result<Page<Pool>, Problem> {
    let all = controller.state().facts.pools.keys().filter_map(|name| controller.pool_seen(name));
    let fits = |pool: &Pool| {
        asked.node.as_ref().is_none_or(|node| pool.spec().node == *node)
            && asked.label.as_ref().is_none_or(|label| label.admits(&pool.spec().labels))
    };
    asked.paging().cut(all.filter(fits), |pool| pool.id().to_string())
}

pub(crate) fn volumes(
    controller: &Controller,
    asked: &VolumeQuery,
) -> Result<Page<Volume>, Problem> {
    let all = || controller.state().facts.volumes.values();
    let is_called = asked.called.as_ref().map(|called| called.among(all()));
    let fits = |volume: &&Volume| {
        let spec = volume.spec();
        let id = *volume.id();
        let in_pool = |pool: &PoolName| {
            controller.state().replicas_of(id).any(|replica| replica.spec().pool == *pool)
        };
        let on_node = |node: &NodeName| {
            let copies = controller.state().replicas_of(id);
            let mut homes = copies.filter_map(|it| controller.state().node_of(&it.spec().pool));
            homes.any(|home| home.id() == node)
                || controller.target_of(id).is_some_and(|target| target.spec().node == *node)
        };
        let group = asked.affinity_group.as_ref();
        is_called.as_ref().is_none_or(|is_called| is_called(volume))
            && asked.label.as_ref().is_none_or(|label| label.admits(&spec.labels))
            && group.is_none_or(|group| spec.affinity_group.as_ref() == Some(group))
            && asked.pool.as_ref().is_none_or(in_pool)
            && asked.node.as_ref().is_none_or(on_node)
            && asked.host.as_ref().is_none_or(|host| {
                controller
                    .target_of(id)
                    .is_some_and(|target| target.spec().hosts.contains_key(host))
            })
            && asked.state.is_none_or(|state| {
                let status = controller.volume_seen(id).and_then(|volume| volume.status);
                status.is_some_and(|status| status.state == state)
            })
    };
    let ids = all().filter(fits).map(|volume| *volume.id());
    page(&asked.paging(), ids, |id| controller.volume_seen(id))
}

/// What is stored, as it is in memory: statuses are not.
pub(super) fn specs(controller: &Controller, paging: &Paging) -> Result<Page<StoredSpec>, Problem> {
    let keys = controller.state().keys().map(str::to_owned);
    let Page { items, after } = paging.cut(keys, String::clone)?;
    let items = items.into_iter().filter_map(|key| {
        let entry = controller.state().entry(&key)?;
        let record = entry.encode().ok().and_then(|text| serde_json::from_str(&text).ok())?;
        let revision = controller.state().revision(&key).0;
        Some(StoredSpec { key, revision, record })
    });
    Ok(Page { items: items.collect(), after })
}

/// For each pool, whether a copy of the volume could go there.
pub(super) fn placement(
    controller: &Controller,
    id: VolumeId,
    paging: &Paging,
) -> Result<Page<Placement>, Problem> {
    let volume = controller.state().volume(id).ok_or_else(|| missing("volume", &id))?;
    let ranks = controller.ranks(volume);
    let pools = controller.state().facts.pools.iter().map(|(name, pool)| {
        let mut copies = controller.state().replicas_of(id);
        Placement {
            pool: name.clone(),
            node: pool.spec().node.clone(),
            replica: copies.find(|it| it.spec().pool == *name).map(|it| *it.id()),
            rank: ranks.get(name).and_then(|rank| rank.as_ref().ok()).copied(),
            refused: ranks.get(name).and_then(|rank| rank.as_ref().err()).map(ToString::to_string),
        }
    });
    paging.cut(pools, |placement| placement.pool.to_string())
}

pub(super) fn snapshots(
    controller: &Controller,
    asked: &SnapshotQuery,
) -> Result<Page<Snapshot>, Problem> {
    let all = || controller.state().facts.snapshots.values();
    let is_called = asked.called.as_ref().map(|called| called.among(all()));
    let all = all().filter(|snapshot| {
        let spec = snapshot.spec();
        is_called.as_ref().is_none_or(|is_called| is_called(snapshot))
            && asked.volume.is_none_or(|volume| spec.volume == volume)
            && asked.group.is_none_or(|group| spec.group == Some(group))
            && asked.label.as_ref().is_none_or(|label| label.admits(&spec.labels))
    });
    page(&asked.paging(), all.map(|it| *it.id()), |id| controller.snapshot_seen(id))
}

pub(super) fn groups(
    controller: &Controller,
    asked: &GroupQuery,
) -> Result<Page<SnapshotGroup>, Problem> {
    let all = || controller.state().groups.values();
    let is_called = asked.called.as_ref().map(|called| called.among(all()));
    let all = all().filter(|group| {
        is_called.as_ref().is_none_or(|is_called| is_called(group))
            && asked.label.as_ref().is_none_or(|label| label.admits(&group.spec().labels))
    });
    asked.paging().cut(all.cloned(), |group| group.id().to_string())
}

pub(super) fn replicas(
    controller: &Controller,
    asked: &ReplicaQuery,
) -> Result<Page<Replica>, Problem> {
    let all = controller.state().facts.replicas.values().filter(|replica| {
        let spec = replica.spec();
        let home = || controller.state().node_of(&spec.pool).map(model::Resource::id);
        asked.volume.is_none_or(|volume| spec.volume == volume)
            && asked.pool.as_ref().is_none_or(|pool| spec.pool == *pool)
            && asked.node.as_ref().is_none_or(|node| home() == Some(node))
    });
    page(&asked.paging(), all.map(|it| *it.id()), |id| controller.replica_seen(id))
}

pub(super) fn targets(
    controller: &Controller,
    asked: &TargetQuery,
) -> Result<Page<Target>, Problem> {
    let all = controller.state().facts.targets.values().filter(|target| {
        asked.volume.is_none_or(|volume| target.spec().volume == volume)
            && asked.node.as_ref().is_none_or(|node| target.spec().node == *node)
    });
    asked.paging().cut(all.cloned(), |target| target.id().to_string())
}

pub(super) fn rebuilds(
    controller: &Controller,
    asked: &RebuildQuery,
) -> Result<Page<Rebuild>, Problem> {
    let all = controller.rebuilds_seen().filter(|rebuild| {
        asked.volume.is_none_or(|volume| rebuild.volume == volume)
            && asked.running.is_none_or(|running| running != rebuild.state().is_ended())
    });
    asked.paging().cut(all.cloned(), |rebuild| rebuild.id.to_string())
}

pub(super) fn failovers(
    controller: &Controller,
    asked: &FailoverQuery,
) -> Result<Page<Failover>, Problem> {
    let all = controller
        .state()
        .facts
        .failovers
        .values()
        .filter(|failover| asked.volume.is_none_or(|volume| failover.volume() == volume));
    asked.paging().cut(all.cloned(), |failover| failover.id().to_string())
}

pub(super) fn events(controller: &Controller, asked: &EventQuery) -> Result<Page<Event>, Problem> {
    let parts = asked.volume.map(|volume| controller.state().members(volume));
    let of_volume = |subject: &Subject| match (asked.volume, &parts) {
        (Some(volume), Some(parts)) => match subject {
            Subject::Volume(id) => *id == volume,
            Subject::Replica(id) => parts.replicas.contains(id),
            Subject::Target(id) => parts.targets.contains(id),
            Subject::Snapshot(id) => parts.snapshots.contains(id),
            _ => false,
        },
        _ => true,
    };
    let all = controller.state().events.values();
    let all = all.filter(|event| of_volume(&event.subject) && asked.admits(event));
    asked.paging().cut(all.cloned(), |event| format!("{:020}", event.number))
}

pub(super) fn node_purge(controller: &Controller, name: &NodeName) -> Result<Purge, Problem> {
    controller.state().node(name).ok_or_else(|| missing("node", name))?;
    let mut purge = pools_purge(controller, controller.pools_on(name));
    purge.targets = controller.targets_on(name).into_iter().collect();
    purge.blocked.extend(controller.why_not_purged(name));
    Ok(purge)
}

pub(super) fn pool_purge(controller: &Controller, name: &PoolName) -> Result<Purge, Problem> {
    controller.state().pool(name).ok_or_else(|| missing("pool", name))?;
    let mut purge = pools_purge(controller, [name.clone()].into());
    purge.blocked.extend(controller.why_pool_not_purged(name));
    Ok(purge)
}

fn pools_purge(controller: &Controller, pools: BTreeSet<PoolName>) -> Purge {
    let replicas: BTreeSet<_> = controller.replicas_on(&pools).into_iter().collect();
    let facts = &controller.state().facts;
    let volumes =
        replicas.iter().filter_map(|id| facts.replicas.get(id)).map(|it| it.spec().volume);
    let lost_volumes = controller.lost_with(&pools);
    let degraded = volumes.filter(|volume| !lost_volumes.contains(volume)).collect();
    let is_lost = |snapshot: &&Snapshot| {
        let copies = snapshot.status.as_ref().map(|status| &status.copies);
        copies.is_some_and(|copies| {
            !copies.is_empty() && copies.keys().all(|pool| pools.contains(pool))
        })
    };
    let lost_snapshots = facts.snapshots.values().filter(is_lost).map(|it| *it.id()).collect();
    let (targets, blocked) = (BTreeSet::new(), Vec::new());
    let quarantined = controller.quarantined_in(&pools);
    Purge { pools, replicas, quarantined, targets, degraded, lost_volumes, lost_snapshots, blocked }
}

pub(super) fn quarantine(
    controller: &Controller,
    paging: &Paging,
) -> Result<Page<Quarantined>, Problem> {
    let Page { items, after } =
        paging.cut(controller.quarantined(), |it| it.replica.to_string())?;
    let show = |record: &Quarantine| {
        let node = controller.state().pool(&record.pool).map(|pool| pool.spec().node.clone());
        let usage =
            node.as_ref().and_then(|node| controller.usage_of_unknown(node, record.replica));
        Quarantined {
            record: record.clone(),
            until: controller.kept_until(record),
            node,
            used: usage.map(|usage| usage.allocated),
        }
    };
    Ok(Page { items: items.into_iter().map(show).collect(), after })
}
