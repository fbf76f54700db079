//! Taking over what a node says it has.
//!
//! A listing is a picture of some moment between its question and its answer. So what a call of
//! ours was about since the question was asked is left as that call said.

use std::collections::{BTreeMap, BTreeSet};

use api::node::ObservedSnapshot;
use model::{
    Generation, NodeName, PoolName, PoolSpec, PoolState, PoolStatus, ReplicaId, ReplicaStatus,
    SpecBackup, Subject, TargetId, TargetStatus, VersionedSpec,
};
use planner::{Orphan, OrphanTarget};

use super::{Call, CallId, Controller, Inventory};

impl Controller {
    pub(crate) fn on_listing(&mut self, node: &NodeName, call: CallId, listing: Inventory) {
        if !self.listed(node, call) {
            return;
        }
        self.note_unknown(node, &listing);
        let Inventory { pools, replicas, targets, snapshots, rebuilds } = listing;
        let pools = pools.into_iter().map(|it| (it.id, (it.generation, it.status))).collect();
        self.take_pools(node, call, pools);
        let mut orphans = BTreeMap::new();
        let mut seen = BTreeMap::new();
        for found in replicas {
            if self.state.facts.replicas.contains_key(&found.id) {
                seen.insert(found.id, (found.generation, found.status));
            } else {
                let (pool, label) = (found.spec.pool, found.status.label);
                orphans.insert(found.id, Orphan { pool, label });
            }
        }
        self.take_replicas(node, call, seen, orphans);
        let mut orphans = BTreeMap::new();
        let mut seen = BTreeMap::new();
        for found in targets {
            if self.state.facts.targets.contains_key(&found.id) {
                seen.insert(found.id, (found.generation, found.status));
            } else {
                let (volume, epoch) = (found.spec.volume, found.spec.epoch);
                orphans.insert(found.id, OrphanTarget { node: node.clone(), volume, epoch });
            }
        }
        self.take_targets(node, call, seen, orphans);
        self.weigh_orphans();
        self.take_snapshots(node, snapshots);
        self.take_rebuilds(node, rebuilds);
        self.listed_is_online(node, call);
    }

    /// Whether a call about it began or ended since the question was asked.
    pub(crate) fn is_newer(&self, subject: &Subject, call: CallId) -> bool {
        let engine_object = self.engine_objects.get(subject);
        engine_object.is_some_and(|engine_object| {
            engine_object.call.is_some() || engine_object.last_call > call.0
        })
    }

    fn note(&mut self, subject: &Subject, generation: Option<Generation>, listed: bool) {
        let engine_object = self.engine_object(subject);
        let changed = engine_object.applied != generation || engine_object.present != listed;
        (engine_object.applied, engine_object.present) = (generation, listed);
        if changed {
            self.enqueue(subject);
        }
    }

    fn take_pools(
        &mut self,
        node: &NodeName,
        call: CallId,
        mut found: BTreeMap<PoolName, (Option<Generation>, PoolStatus)>,
    ) {
        for name in self.pools_on(node) {
            let subject = Subject::Pool(name.clone());
            if self.is_newer(&subject, call) {
                continue;
            }
            // Another pool of that name is none that was ordered.
            let uuid = self.state.pool(&name).and_then(|pool| pool.spec().uuid);
            let is_it = |status: &PoolStatus| uuid.is_none_or(|uuid| uuid == status.uuid);
            let (generation, status) = found.remove(&name).filter(|(_, it)| is_it(it)).unzip();
            self.note(&subject, generation.flatten(), status.is_some());
            self.see_pool(&name, status);
        }
        for (name, (_, status)) in found {
            self.close_stranger(node, name, &status);
        }
    }

    /// A pool that is open on another node than it should be, because an import that was given up
    /// had got there, is closed again.
    fn close_stranger(&mut self, node: &NodeName, name: PoolName, status: &PoolStatus) {
        let Some(pool) = self.state.pool(&name).filter(|pool| pool.lifecycle().is_idle()) else {
            return;
        };
        if pool.spec().node == *node || status.state == PoolState::Offline {
            return;
        }
        let spec = PoolSpec { node: node.clone(), exported: true, ..pool.spec().clone() };
        let order = VersionedSpec { generation: pool.generation(), spec };
        let subject = Subject::Node(node.clone());
        if self.is_due(&subject) {
            self.call(subject, node.clone(), Call::PutPool(name, order));
        }
    }

    fn take_replicas(
        &mut self,
        node: &NodeName,
        call: CallId,
        mut found: BTreeMap<ReplicaId, (Option<Generation>, ReplicaStatus)>,
        orphans: BTreeMap<ReplicaId, Orphan<model::ReplicaLabel>>,
    ) {
        let pools: BTreeSet<PoolName> = self.pools_on(node);
        self.state.facts.orphan_replicas.retain(|_, orphan| !pools.contains(&orphan.pool));
        let unknown = orphans.keys().copied().collect();
        self.state.facts.orphan_replicas.extend(orphans);
        self.see_quarantined(&pools, call, &unknown);
        for id in self.replicas_on(&pools) {
            let subject = Subject::Replica(id);
            if self.is_newer(&subject, call) {
                continue;
            }
            let (generation, status) = found.remove(&id).unzip();
            self.note(&subject, generation.flatten(), status.is_some());
            self.see_replica(id, status);
        }
    }

    fn take_targets(
        &mut self,
        node: &NodeName,
        call: CallId,
        mut found: BTreeMap<TargetId, (Option<Generation>, TargetStatus)>,
        orphans: BTreeMap<TargetId, OrphanTarget>,
    ) {
        self.state.facts.orphan_targets.retain(|_, orphan| orphan.node != *node);
        self.state.facts.orphan_targets.extend(orphans);
        for id in self.targets_on(node) {
            let subject = Subject::Target(id);
            if self.is_newer(&subject, call) {
                continue;
            }
            let (generation, status) = found.remove(&id).unzip();
            self.note(&subject, generation.flatten(), status.is_some());
            self.see_target(id, status);
        }
    }

    fn take_snapshots(&mut self, node: &NodeName, found: Vec<ObservedSnapshot>) {
        let pools = self.pools_on(node);
        self.state.facts.orphan_snapshots.retain(|(pool, _), _| !pools.contains(pool));
        let mut seen = BTreeSet::new();
        for one in found {
            let label = one.label;
            let Some(pool) = self.pool_of_copy(label.replica, label.snapshot, &pools) else {
                continue;
            };
            let snapshot = self.state.facts.snapshots.get_mut(&label.snapshot);
            let copy = snapshot
                .and_then(|snapshot| snapshot.status.as_mut())
                .and_then(|status| status.copies.get_mut(&pool))
                .filter(|copy| copy.replica == label.replica);
            if let Some(copy) = copy {
                (copy.online, copy.usage) = (true, one.usage);
                seen.insert((label.snapshot, pool));
            } else if !self.is_making_snapshot(label.snapshot) {
                let orphan = Orphan { pool: pool.clone(), label: Some(label.clone()) };
                self.state.facts.orphan_snapshots.insert((pool, label.snapshot), orphan);
            }
        }
        for id in self.state.snapshots_in(&pools) {
            let snapshot = self.state.facts.snapshots.get_mut(&id);
            let Some(status) = snapshot.and_then(|it| it.status.as_mut()) else { continue };
            for (pool, copy) in &mut status.copies {
                if pools.contains(pool) && !seen.contains(&(id, pool.clone())) {
                    copy.online = false;
                }
            }
        }
    }

    /// In which pool a copy of a snapshot lies: where its replica lies or lay.
    fn pool_of_copy(
        &self,
        replica: ReplicaId,
        snapshot: model::SnapshotId,
        pools: &BTreeSet<PoolName>,
    ) -> Option<PoolName> {
        if let Some(replica) = self.state.facts.replicas.get(&replica) {
            return Some(replica.spec().pool.clone());
        }
        let status = self.state.facts.snapshots.get(&snapshot)?.status.as_ref()?;
        let copies = status.copies.iter();
        let mut here =
            copies.filter(|(pool, copy)| copy.replica == replica && pools.contains(*pool));
        here.next().map(|(pool, _)| pool.clone())
    }

    pub(crate) fn see_pool(&mut self, name: &PoolName, status: Option<PoolStatus>) {
        let Some(pool) = self.state.facts.pools.get_mut(name) else { return };
        let closed = |mut had: PoolStatus| {
            had.state = PoolState::Offline;
            had
        };
        let status = status.or_else(|| pool.status.take().map(closed));
        if pool.status != status {
            pool.status = status;
            self.replan = true;
        }
    }

    pub(crate) fn see_replica(&mut self, id: ReplicaId, mut status: Option<ReplicaStatus>) {
        let spec_backup = status.as_mut().and_then(|status| status.spec_backup.take());
        self.see_spec_backup(id, spec_backup);
        let Some(replica) = self.state.facts.replicas.get_mut(&id) else { return };
        if replica.status != status {
            replica.status = status;
            self.replan = true;
            let volume = replica.spec().volume;
            self.weigh(volume);
        }
    }

    /// What engines have and nobody knows may say more of a volume than the store does.
    fn weigh_orphans(&mut self) {
        let facts = &self.state.facts;
        let labels = facts.orphan_replicas.values().filter_map(|orphan| orphan.label.as_ref());
        let targets = facts.orphan_targets.values().map(|orphan| orphan.volume);
        let volumes: BTreeSet<_> = labels.map(|label| label.volume).chain(targets).collect();
        let disputed = self.conflicts.keys().copied();
        for volume in volumes.into_iter().chain(disputed).collect::<BTreeSet<_>>() {
            self.weigh(volume);
        }
    }

    /// Whether the disk knows what is wanted of the volume of a copy.
    fn see_spec_backup(&mut self, replica_id: ReplicaId, spec_backup: Option<SpecBackup>) {
        let replica = self.state.facts.replicas.get(&replica_id);
        let Some(volume) = replica.and_then(|it| self.state.volume(it.spec().volume)) else {
            return;
        };
        let id = *volume.id();
        let newest =
            self.newer_spec_backups.get(&id).map_or(volume.generation(), |it| it.generation);
        if let Some(spec_backup) =
            spec_backup.as_ref().filter(|it| it.volume == id && it.generation > newest)
        {
            self.newer_spec_backups.insert(id, spec_backup.clone());
        }
        let Some(volume) = self.state.volume(id) else { return };
        let is_right = spec_backup.is_some_and(|spec_backup| {
            *spec_backup.spec == *volume.spec() || spec_backup.spec == SpecBackup::of(volume).spec
        });
        let noted = is_right.then_some(volume.generation());
        let subject = Subject::Replica(replica_id);
        let engine_object = self.engine_object(&subject);
        if engine_object.backed_up != noted {
            engine_object.backed_up = noted;
            self.dirty.insert(subject);
        }
    }

    pub(crate) fn see_target(&mut self, id: TargetId, status: Option<TargetStatus>) {
        let Some(target) = self.state.facts.targets.get_mut(&id) else { return };
        if target.status != status {
            target.status = status;
            self.enqueue(&Subject::Target(id));
        }
    }

    /// The engine was started anew and knows of no order.
    pub(crate) fn forget_orders(&mut self, node: &NodeName) {
        for subject in self.subjects_on(node) {
            let engine_object = self.engine_object(&subject);
            (engine_object.applied, engine_object.present) = (None, false);
        }
    }

    /// The node answers again: what failed while it was away is tried at once.
    pub(crate) fn refresh_engine_objects(&mut self, node: &NodeName) {
        for subject in self.subjects_on(node) {
            self.engine_object(&subject).refresh();
            self.enqueue(&subject);
        }
    }

    pub(crate) fn enqueue_all_of(&mut self, node: &NodeName) {
        for subject in self.subjects_on(node) {
            self.enqueue(&subject);
        }
    }

    fn subjects_on(&self, node: &NodeName) -> Vec<Subject> {
        let pools = self.pools_on(node);
        let replicas = self.replicas_on(&pools).into_iter().map(Subject::Replica);
        let targets = self.targets_on(node).into_iter().map(Subject::Target);
        let mut all: Vec<Subject> = replicas.chain(targets).collect();
        all.extend(self.quarantined_in(&pools).into_iter().map(Subject::Replica));
        all.extend(pools.into_iter().map(Subject::Pool));
        // One that is being imported there is still elsewhere by its record.
        let coming = self
            .state
            .facts
            .pools
            .values()
            .filter(|pool| !pool.lifecycle().is_idle() && pool.order().spec.node == *node);
        all.extend(coming.map(|pool| Subject::Pool(pool.id().clone())));
        all
    }

    pub(crate) fn pools_on(&self, node: &NodeName) -> BTreeSet<PoolName> {
        self.state.pools_on(node)
    }

    pub(crate) fn replicas_on(&self, pools: &BTreeSet<PoolName>) -> Vec<ReplicaId> {
        self.state.replicas_in(pools)
    }

    pub(crate) fn targets_on(&self, node: &NodeName) -> Vec<TargetId> {
        self.state.targets_on(node)
    }
}
