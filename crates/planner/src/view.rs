//! What is known, indexed: who lies where, and how much room there is.
//!
//! Made anew for each plan, in one walk over everything known.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use model::{
    AffinityGroup, ChildState, FaultReason, Lifecycle, Liveness, Node, NodeName, Pool, PoolName,
    PoolState, Replica, ReplicaId, ReplicaState, Resource, Size, Snapshot, Spec, Subject, Target,
    TargetId, Timestamp, VolumeId,
};

use crate::{Facts, Settings};

/// An index over [`Facts`] at one moment.
#[derive(Debug)]
pub struct View<'a> {
    pub(crate) facts: &'a Facts,
    pub(crate) settings: &'a Settings,
    pub(crate) now: Timestamp,
    pub(crate) nodes: BTreeMap<&'a NodeName, NodeView<'a>>,
    pub(crate) pools: BTreeMap<&'a PoolName, PoolView<'a>>,
    replicas: BTreeMap<VolumeId, Vec<&'a Replica>>,
    targets: BTreeMap<VolumeId, Vec<&'a Target>>,
    snapshots: BTreeMap<VolumeId, Vec<&'a Snapshot>>,
    groups: BTreeMap<&'a AffinityGroup, GroupView<'a>>,
    /// How many rebuilds run.
    pub(crate) rebuilds: u32,
}

/// A node and what is on it.
#[derive(Debug)]
pub(crate) struct NodeView<'a> {
    pub(crate) node: &'a Node,
    pub(crate) liveness: Liveness,
    /// Targets that serve.
    pub(crate) targets: u32,
    /// Rebuilds that run from or to it.
    pub(crate) rebuilds: u32,
}

/// A pool and what is in it.
#[derive(Debug)]
pub(crate) struct PoolView<'a> {
    pub(crate) pool: &'a Pool,
    pub(crate) capacity: Size,
    /// What is used, what running operations will write, and what copies behind their peers will.
    pub(crate) used: Size,
    /// What is promised, running operations included.
    pub(crate) committed: Size,
    pub(crate) replicas: u32,
    /// Of the copies that failed for want of space, the one that takes the most.
    pub(crate) largest_full: Option<(Size, ReplicaId)>,
}

/// Where the volumes of a group are.
#[derive(Debug, Default)]
pub(crate) struct GroupView<'a> {
    pub(crate) replicas: BTreeMap<&'a NodeName, u32>,
    pub(crate) targets: BTreeMap<&'a NodeName, u32>,
}

impl NodeView<'_> {
    pub(crate) fn is_online(&self) -> bool {
        self.liveness.is_online()
    }

    /// Whether it is certain enough that it does not answer.
    pub(crate) fn is_absent(&self) -> bool {
        matches!(self.liveness, Liveness::Offline { .. })
    }
}

impl PoolView<'_> {
    /// How well it is, as far as it was seen.
    pub(crate) fn state(&self) -> &PoolState {
        self.pool.status.as_ref().map_or(&PoolState::Unknown, |status| &status.state)
    }

    /// What nothing has been promised of and nothing will be written to.
    pub(crate) fn free(&self) -> Size {
        self.capacity.minus(self.used)
    }

    /// Whether what is in it can be read and written.
    pub(crate) fn works(&self) -> bool {
        matches!(self.state(), PoolState::Online | PoolState::Suspect { .. })
            && !self.pool.spec().exported
    }
}

/// Whether it exists and nobody wants it gone.
pub(crate) fn exists<S: Spec>(object: &Resource<S>) -> bool {
    matches!(object.lifecycle(), Lifecycle::Created { .. })
}

/// Whether somebody wants it gone.
pub(crate) fn is_going<S: Spec>(object: &Resource<S>) -> bool {
    matches!(object.lifecycle(), Lifecycle::Deleting {} | Lifecycle::Deleted {})
}

impl<'a> View<'a> {
    /// The facts, indexed, at this moment.
    pub fn new(facts: &'a Facts, settings: &'a Settings, now: Timestamp) -> View<'a> {
        let mut view = View {
            facts,
            settings,
            now,
            nodes: facts.nodes.iter().map(|(name, node)| (name, node_view(node))).collect(),
            pools: facts.pools.iter().map(|(name, pool)| (name, pool_view(pool))).collect(),
            replicas: BTreeMap::new(),
            targets: BTreeMap::new(),
            snapshots: BTreeMap::new(),
            groups: BTreeMap::new(),
            rebuilds: 0,
        };
        for snapshot in facts.snapshots.values() {
            view.snapshots.entry(snapshot.spec().volume).or_default().push(snapshot);
        }
        for replica in facts.replicas.values() {
            view.index_replica(replica);
        }
        for target in facts.targets.values() {
            view.index_target(target);
        }
        view.count_debts();
        for reservation in &facts.reservations {
            if let Some(pool) = view.pools.get_mut(&reservation.pool) {
                pool.used = pool.used.plus(reservation.bytes);
                pool.committed = pool.committed.plus(reservation.committed);
            }
        }
        view
    }

    /// Copies of a volume, in the order of their ids.
    pub(crate) fn replicas(&self, volume: VolumeId) -> &[&'a Replica] {
        self.replicas.get(&volume).map_or(&[], Vec::as_slice)
    }

    /// Targets of a volume, also those that are shut down.
    pub(crate) fn targets(&self, volume: VolumeId) -> &[&'a Target] {
        self.targets.get(&volume).map_or(&[], Vec::as_slice)
    }

    /// Snapshots of a volume.
    pub(crate) fn snapshots(&self, volume: VolumeId) -> &[&'a Snapshot] {
        self.snapshots.get(&volume).map_or(&[], Vec::as_slice)
    }

    /// The target that a volume has now: not replaced, not going.
    pub(crate) fn target(&self, volume: VolumeId) -> Option<&'a Target> {
        let live = |target: &&&Target| !target.spec().shutdown && !is_going(target);
        self.targets(volume).iter().filter(live).max_by_key(|target| target.spec().epoch).copied()
    }

    pub(crate) fn group(&self, group: &AffinityGroup) -> Option<&GroupView<'a>> {
        self.groups.get(group)
    }

    pub(crate) fn pool(&self, name: &PoolName) -> Option<&PoolView<'a>> {
        self.pools.get(name)
    }

    pub(crate) fn node(&self, name: &NodeName) -> Option<&NodeView<'a>> {
        self.nodes.get(name)
    }

    pub(crate) fn node_of(&self, pool: &PoolName) -> Option<&NodeView<'a>> {
        self.pool(pool).and_then(|pool| self.node(&pool.pool.spec().node))
    }

    /// Whether nothing is failed over or replaced by itself now.
    pub(crate) fn is_paused(&self) -> bool {
        self.facts.paused_until.is_some_and(|until| until > self.now)
    }

    /// Whether somebody is working on it at this moment.
    pub(crate) fn is_busy(&self, subject: &Subject) -> bool {
        self.facts.busy.contains(subject)
    }

    /// Whether a copy can be read and written now, as far as its node says.
    pub(crate) fn answers(&self, replica: &Replica) -> bool {
        let pool = self.pool(&replica.spec().pool);
        pool.is_some_and(PoolView::works)
            && self.node_of(&replica.spec().pool).is_some_and(NodeView::is_online)
            && replica.status.as_ref().is_some_and(|seen| seen.state == ReplicaState::Online)
    }

    fn index_replica(&mut self, replica: &'a Replica) {
        let spec = replica.spec();
        self.replicas.entry(spec.volume).or_default().push(replica);
        let Some(pool) = self.pools.get_mut(&spec.pool) else { return };
        pool.replicas += 1;
        if replica.status.is_none() && !is_going(replica) {
            // Promised, but its pool has not said so yet.
            pool.committed = pool.committed.plus(spec.size);
            if !spec.thin {
                pool.used = pool.used.plus(spec.size);
            }
        }
        let node = &pool.pool.spec().node;
        let volume = self.facts.volumes.get(&spec.volume);
        if let Some(group) = volume.and_then(|volume| volume.spec().affinity_group.as_ref()) {
            let group = self.groups.entry(group).or_default();
            *group.replicas.entry(node).or_default() += 1;
        }
    }

    fn index_target(&mut self, target: &'a Target) {
        let spec = target.spec();
        self.targets.entry(spec.volume).or_default().push(target);
        if spec.shutdown || is_going(target) {
            return;
        }
        if let Some(node) = self.nodes.get_mut(&spec.node) {
            node.targets += 1;
        }
        let volume = self.facts.volumes.get(&spec.volume);
        if let Some(group) = volume.and_then(|volume| volume.spec().affinity_group.as_ref()) {
            let group = self.groups.entry(group).or_default();
            *group.targets.entry(&spec.node).or_default() += 1;
        }
        for child in target.status.iter().flat_map(|status| &status.children) {
            let Some(replica) = self.facts.replicas.get(&child.replica) else { continue };
            match child.state {
                ChildState::Rebuilding => self.count_rebuild(&spec.node, replica),
                ChildState::Faulted { reason: FaultReason::NoSpace } => self.count_full(replica),
                _ => {}
            }
        }
    }

    fn count_rebuild(&mut self, from: &NodeName, replica: &Replica) {
        self.rebuilds += 1;
        let to = self.pool(&replica.spec().pool).map(|pool| &pool.pool.spec().node);
        for name in BTreeSet::from_iter([Some(from), to]).into_iter().flatten() {
            if let Some(node) = self.nodes.get_mut(name) {
                node.rebuilds += 1;
            }
        }
    }

    fn count_full(&mut self, replica: &Replica) {
        let taken = (allocated(replica), *replica.id());
        if let Some(pool) = self.pools.get_mut(&replica.spec().pool) {
            pool.largest_full = pool.largest_full.max(Some(taken));
        }
    }

    /// A copy that holds less than its peers will hold as much once it is rebuilt.
    fn count_debts(&mut self) {
        for replicas in self.replicas.values() {
            let most = replicas.iter().map(|replica| allocated(replica)).max();
            let Some(most) = most.filter(|most| *most > Size::ZERO) else { continue };
            for replica in replicas.iter().filter(|replica| !is_going(**replica)) {
                if let Some(pool) = self.pools.get_mut(&replica.spec().pool) {
                    pool.used = pool.used.plus(most.minus(allocated(replica)));
                }
            }
        }
    }

    /// The most that a copy of the volume takes in its pool.
    pub(crate) fn written(&self, volume: VolumeId) -> Size {
        let taken = self.replicas(volume).iter().map(|replica| allocated(replica));
        taken.max().unwrap_or(Size::ZERO)
    }

    /// The target with this id.
    pub(crate) fn target_by_id(&self, id: TargetId) -> Option<&'a Target> {
        self.facts.targets.get(&id)
    }
}

/// What a copy takes in its pool.
pub(crate) fn allocated(replica: &Replica) -> Size {
    replica.status.as_ref().map_or(Size::ZERO, |status| status.usage.allocated)
}

fn node_view(node: &Node) -> NodeView<'_> {
    let liveness = node.status.as_ref().map_or(Liveness::NOT_SEEN, |status| status.liveness);
    NodeView { node, liveness, targets: 0, rebuilds: 0 }
}

fn pool_view(pool: &Pool) -> PoolView<'_> {
    let status = pool.status.as_ref();
    let seen = |size: fn(&model::PoolStatus) -> Size| status.map_or(Size::ZERO, size);
    PoolView {
        pool,
        capacity: seen(|status| status.capacity),
        used: seen(|status| status.used),
        committed: seen(|status| status.committed),
        replicas: 0,
        largest_full: None,
    }
}
