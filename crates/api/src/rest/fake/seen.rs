//! What is seen of all together, and which of many are asked for.

use model::{
    Heartbeat, Labels, Liveness, Node, NodeAddress, NodeChange, NodeName, NodeSpec, NodeStatus,
    Pool, PoolState, Timestamp, Volume, VolumeState,
};

use super::Held;
use super::things::Things;
use crate::rest::{
    Answered, Capacity, LabelMatch, Leader, Status, Tally, VolumeTally, VolumesAsked,
};

/// The release it says it is.
pub(super) const VERSION: &str = "0.0.0";

pub(super) fn count(some: usize) -> u64 {
    u64::try_from(some).unwrap_or(u64::MAX)
}

/// Whether a filter that may be absent lets this through.
pub(super) fn is<T: PartialEq>(asked: Option<&T>, have: &T) -> bool {
    asked.is_none_or(|asked| asked == have)
}

pub(super) fn labelled(asked: Option<&LabelMatch>, labels: &Labels) -> bool {
    asked.is_none_or(|asked| asked.admits(labels))
}

pub(super) fn asks_for(query: &VolumesAsked, volume: &Volume) -> bool {
    let status = volume.status.as_ref();
    let state = status.map_or(VolumeState::Unknown, |status| status.state);
    let copies = || status.into_iter().flat_map(|status| status.replicas.values());
    let target = status.and_then(|status| status.target.as_ref());
    let on = |node: &NodeName| {
        copies().any(|copy| copy.node == *node) || target.is_some_and(|t| t.node == *node)
    };
    is(query.state.as_ref(), &state)
        && query.node.as_ref().is_none_or(on)
        && query.pool.as_ref().is_none_or(|pool| copies().any(|copy| copy.pool == *pool))
        && query.host.as_ref().is_none_or(|host| target.is_some_and(|t| t.hosts.contains(host)))
        && query
            .affinity_group
            .as_ref()
            .is_none_or(|group| volume.spec().affinity_group.as_ref() == Some(group))
        && labelled(query.label.as_ref(), &volume.spec().labels)
}

impl Held {
    pub(super) fn summary(&self) -> Status {
        let well =
            |node: &&Node| node.status.as_ref().is_some_and(|status| status.liveness.is_online());
        let works = |pool: &&Pool| {
            pool.status.as_ref().is_some_and(|status| status.state == PoolState::Online)
        };
        let mut volumes = VolumeTally::default();
        for volume in self.volumes.all() {
            let state = volume.status.as_ref().map_or(VolumeState::Unknown, |status| status.state);
            *match state {
                VolumeState::Online => &mut volumes.online,
                VolumeState::Degraded => &mut volumes.degraded,
                VolumeState::Faulted => &mut volumes.faulted,
                VolumeState::Unknown => &mut volumes.unknown,
            } += 1;
            let target = volume.status.as_ref().and_then(|status| status.target.as_ref());
            volumes.published += u64::from(target.is_some_and(|target| !target.hosts.is_empty()));
        }
        let nodes = Tally {
            well: count(self.nodes.all().filter(well).count()),
            all: count(self.nodes.all().count()),
        };
        let pools = Tally {
            well: count(self.pools.all().filter(works).count()),
            all: count(self.pools.all().count()),
        };
        let hosts = count(self.hosts.all().count());
        Status {
            version: VERSION.to_owned(),
            leader: Leader { here: true, name: Some("fake".to_owned()) },
            nodes,
            hosts: Tally { well: hosts, all: hosts },
            pools,
            volumes,
            capacity: capacity(&self.pools),
            snapshots: count(self.snapshots.all().count()),
            rebuilds: count(self.rebuilds.values().filter(|r| !r.state().is_ended()).count()),
            failovers: count(self.failovers.iter().filter(|f| !f.stage().is_ended()).count()),
            troubles: self.troubles.clone(),
            more_troubles: 0,
        }
    }

    pub(super) fn register(
        &mut self,
        at: &NodeName,
        body: Heartbeat<NodeAddress>,
        now: Timestamp,
    ) -> Answered<()> {
        let Heartbeat { instance, version, address } = body;
        let spec = NodeSpec {
            address: address.clone(),
            labels: Labels::new(),
            cordons: [].into(),
            drains: [].into(),
        };
        let status = NodeStatus {
            liveness: Liveness::Online,
            instance: Some(instance),
            version: Some(version),
            seen_at: Some(now),
            drain: None,
        };
        if self.nodes.get(at).is_ok() {
            self.nodes.change(at, NodeChange::Register { address }, None, now)?;
            self.nodes.get_mut(at)?.status = Some(status);
        } else {
            self.nodes.put(at, spec, now, |_| Ok(status))?;
        }
        Ok(())
    }
}

/// What all pools have together.
fn capacity(pools: &Things<model::PoolSpec>) -> Capacity {
    let seen = pools.all().filter_map(|pool| pool.status.as_ref());
    seen.fold(Capacity::default(), |sum, pool| Capacity {
        capacity: sum.capacity.plus(pool.capacity),
        used: sum.used.plus(pool.used),
        committed: sum.committed.plus(pool.committed),
    })
}
