//! What is told about things: their specs with what was seen, put together.

use std::collections::BTreeMap;

use model::{
    Host, HostName, Lifecycle, Node, NodeName, Nqn, PathState, PathStatus, Pool, PoolName,
    PoolState, Rebuild, RebuildId, Replica, ReplicaId, ReplicaState, Snapshot, SnapshotId,
    SnapshotState, Subject, Target, Usage, Volume, VolumeId, VolumeReplica, VolumeState,
    VolumeStatus, VolumeTarget,
};

use planner::Refusal;

use super::{Controller, State};

impl Controller {
    /// Everything that is known.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Where the engine of a node is called.
    pub(crate) fn address_of(&self, node: &NodeName) -> Option<std::net::SocketAddr> {
        self.state.node(node).map(|node| node.spec().address.api)
    }

    /// A node with what is seen of it.
    pub fn node_seen(&self, name: &NodeName) -> Option<Node> {
        self.state.node(name).cloned()
    }

    /// A volume with what is seen of it.
    pub fn volume_seen(&self, id: VolumeId) -> Option<Volume> {
        let mut volume = self.state.volume(id)?.clone();
        volume.status = Some(self.volume_status(&volume));
        Some(volume)
    }

    /// A pool with what is seen of it.
    pub fn pool_seen(&self, name: &PoolName) -> Option<Pool> {
        let mut pool = self.state.pool(name)?.clone();
        let away = !self.state.is_online(&pool.spec().node);
        if let Some(status) = pool.status.as_mut().filter(|_| away) {
            status.state = PoolState::Unknown;
        }
        Some(pool)
    }

    /// A copy with what is seen of it.
    pub fn replica_seen(&self, id: ReplicaId) -> Option<Replica> {
        let mut replica = self.state.facts.replicas.get(&id)?.clone();
        let answers = self.answers(&replica);
        if let Some(status) = &mut replica.status
            && !answers
            && status.state == ReplicaState::Online
        {
            status.state = ReplicaState::Unknown;
        }
        Some(replica)
    }

    /// A snapshot with what is seen of it.
    pub fn snapshot_seen(&self, id: SnapshotId) -> Option<Snapshot> {
        let mut snapshot = self.state.facts.snapshots.get(&id)?.clone();
        if let Some(status) = &mut snapshot.status {
            for (pool, copy) in &mut status.copies {
                let node = self.state.pool(pool).map(|pool| &pool.spec().node);
                copy.online &= node.is_some_and(|node| self.state.is_online(node));
            }
            let online = status.copies.values().filter(|copy| copy.online).count();
            status.state = match online {
                0 => SnapshotState::Unavailable,
                online if online < status.copies.len() => SnapshotState::Degraded,
                _ => SnapshotState::Ready,
            };
        }
        Some(snapshot)
    }

    /// A host with the volumes it is connected to.
    pub fn host_seen(&self, name: &HostName) -> Option<Host> {
        self.hosts_seen([name]).pop()
    }

    /// Hosts with the volumes they are connected to, as their agents and the engines that serve
    /// these see it.
    pub(crate) fn hosts_seen<'a>(
        &self,
        names: impl IntoIterator<Item = &'a HostName>,
    ) -> Vec<Host> {
        let known = names.into_iter().filter_map(|name| self.state.hosts.get(name).cloned());
        let mut hosts: Vec<Host> = known.collect();
        let mut attached: BTreeMap<HostName, BTreeMap<VolumeId, Vec<PathStatus>>> = BTreeMap::new();
        attached.extend(hosts.iter().map(|host| (host.id().clone(), BTreeMap::new())));
        for target in self.state.facts.targets.values() {
            let online = self.state.is_online(&target.spec().node);
            let Some(status) = target.status.as_ref().filter(|_| online) else { continue };
            let state = PathState::Live;
            let admitted = target.spec().hosts.iter();
            for (host, _) in admitted.filter(|(_, nqn)| status.connected.contains(*nqn)) {
                let Some(volumes) = attached.get_mut(host) else { continue };
                let paths = volumes.entry(target.spec().volume).or_default();
                paths.extend(status.addresses.iter().map(|it| PathStatus { address: *it, state }));
            }
        }
        for host in &mut hosts {
            let volumes = attached.remove(host.id());
            let reported = self.host_paths.get(host.id());
            if let (Some(status), Some(mut volumes)) = (&mut host.status, volumes) {
                // Its agent knows more of its paths than engines do, as long as it is there.
                let reported = reported.filter(|_| status.liveness.is_online());
                volumes.extend(reported.into_iter().flatten().map(|(id, it)| (*id, it.clone())));
                status.attached = volumes;
            }
        }
        hosts
    }

    /// A rebuild, running or ended.
    pub(crate) fn rebuild_seen(&self, id: RebuildId) -> Option<&Rebuild> {
        self.running.get(&id).or_else(|| self.state.rebuilds.get(&id))
    }

    /// All rebuilds that are known, by id.
    pub(crate) fn rebuilds_seen(&self) -> impl Iterator<Item = &Rebuild> {
        let ended = self.state.rebuilds.iter();
        let mut all: BTreeMap<RebuildId, &Rebuild> = ended.map(|(id, it)| (*id, it)).collect();
        all.extend(self.running.iter().map(|(id, it)| (*id, it)));
        all.into_values()
    }

    /// For each pool, how good it is for one more copy of a volume, or why it cannot take one.
    pub(crate) fn ranks(&self, volume: &Volume) -> BTreeMap<PoolName, Result<u32, Refusal>> {
        let view = self.view();
        planner::rank(&view, volume)
    }

    fn volume_status(&self, volume: &Volume) -> VolumeStatus {
        let id = *volume.id();
        let target = self.target_of(id);
        let mut replicas = BTreeMap::new();
        let (mut good, mut seen) = (0usize, 0usize);
        let mut usage = Usage { capacity: volume.spec().size, ..Usage::default() };
        for replica in self.state.replicas_of(id) {
            let in_sync = self.is_in_sync(replica);
            let answers = self.answers(replica);
            good += usize::from(in_sync && answers);
            seen += usize::from(replica.status.is_some());
            let Some(one) = self.volume_replica(replica, target) else { continue };
            usage.allocated = usage.allocated.max(one.usage.allocated);
            usage.snapshots = usage.snapshots.max(one.usage.snapshots);
            replicas.insert(*replica.id(), one);
        }
        let wanted = usize::from(volume.spec().replicas);
        let state = match (good, seen) {
            _ if self.dispute(id).is_some() => VolumeState::Faulted,
            (0, 0) => VolumeState::Unknown,
            (0, _) if matches!(volume.lifecycle(), Lifecycle::Creating {}) => VolumeState::Unknown,
            (0, _) => VolumeState::Faulted,
            (good, _) if good < wanted => VolumeState::Degraded,
            _ => VolumeState::Online,
        };
        let subject = Subject::Volume(id);
        let dispute = self.dispute(id).map(ToString::to_string);
        let blocked = self.blocked_reasons(&subject).filter(|_| dispute.is_none()).cloned();
        let mut reasons: Vec<String> = dispute.iter().cloned().chain(blocked).collect();
        if let Some(moving) = self.state.moving(id) {
            reasons.push(format!("copy {} moves to pool {}", moving.from, moving.pool));
        }
        if state != VolumeState::Online && dispute.is_none() {
            reasons.insert(0, format!("{good} of {wanted} copies are in sync and answer"));
        }
        VolumeStatus {
            state,
            reasons,
            target: target.map(|target| self.volume_target(id, target)),
            replicas,
            usage,
            snapshots: u32::try_from(self.state.snapshots_of(id).count()).unwrap_or(u32::MAX),
        }
    }

    fn volume_target(&self, volume: VolumeId, target: &Target) -> VolumeTarget {
        let spec = target.spec();
        let status = target.status.as_ref().filter(|_| self.state.is_online(&spec.node));
        let addresses = status.map(|status| status.addresses.clone()).unwrap_or_default();
        let node = self.state.node(&spec.node);
        let data = || node.map(|node| node.spec().address.data.clone()).unwrap_or_default();
        VolumeTarget {
            id: *target.id(),
            node: spec.node.clone(),
            epoch: spec.epoch,
            state: status.map(|status| status.state),
            nqn: Nqn::volume(volume),
            addresses: if addresses.is_empty() { data() } else { addresses },
            hosts: spec.hosts.keys().cloned().collect(),
            host_nqns: spec.hosts.clone(),
        }
    }

    fn volume_replica(&self, replica: &Replica, target: Option<&Target>) -> Option<VolumeReplica> {
        let spec = replica.spec();
        let status = replica.status.as_ref();
        let child = target
            .and_then(|target| target.status.as_ref())
            .and_then(|it| it.children.iter().find(|child| child.replica == *replica.id()));
        let node = self.state.pool(&spec.pool)?.spec().node.clone();
        let state = match status {
            Some(status) if self.answers(replica) || status.state != ReplicaState::Online => {
                status.state.clone()
            }
            _ => ReplicaState::Unknown,
        };
        Some(VolumeReplica {
            node,
            pool: spec.pool.clone(),
            state,
            child: child.map(|child| child.state),
            usage: status.map(|status| status.usage).unwrap_or_default(),
            progress: child.and_then(|child| child.progress),
        })
    }
}
