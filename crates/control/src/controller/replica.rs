//! Copies: made, shared with the nodes of their targets, resized, deleted.

use std::collections::BTreeSet;

use api::node::DeleteReplica;
use model::{
    EventName, Generation, Lifecycle, NodeName, Nqn, PoolName, Replica, ReplicaChange, ReplicaId,
    ReplicaSpec, SetChange, SetRefused, Severity, SpecBackup, Subject, TargetChange, VolumeId,
    keys,
};

use super::batch::Batch;
use super::{Call, Controller};

/// Whether somebody wants it gone.
pub(crate) fn is_going<S: model::Spec>(object: &model::Resource<S>) -> bool {
    matches!(object.lifecycle(), Lifecycle::Deleting {} | Lifecycle::Deleted {})
}

impl Controller {
    pub(crate) fn reconcile_replica(&mut self, id: ReplicaId) {
        let Some(replica) = self.state.facts.replicas.get(&id).cloned() else {
            return self.reconcile_quarantine(id);
        };
        let subject = Subject::Replica(id);
        if self.is_locked(&keys::of::<Replica>(id)) || !self.is_due(&subject) {
            return;
        }
        if self.is_disputed(replica.spec().volume) {
            return;
        }
        match replica.lifecycle() {
            Lifecycle::Creating {} => self.make_replica(replica),
            Lifecycle::Created { .. } => self.keep_replica(replica),
            Lifecycle::Deleting {} | Lifecycle::Deleted {} => self.drop_replica(replica),
        }
    }

    fn make_replica(&mut self, mut replica: Replica) {
        let id = *replica.id();
        let subject = Subject::Replica(id);
        let engine_object = self.engine_object(&subject).clone();
        let volume = self.state.volume(replica.spec().volume);
        // The copies of a new volume are made or undone together with it.
        let with_volume = volume.is_some_and(|it| matches!(it.lifecycle(), Lifecycle::Creating {}));
        if engine_object.applied == Some(replica.generation()) {
            if !with_volume && replica.made().is_ok() {
                let message = format!("made in pool {}", replica.spec().pool);
                let batch = Batch::new().put(replica);
                self.try_commit(batch.tell(subject, EventName::Created, Severity::Info, message));
            }
            return;
        }
        let pool = replica.spec().pool.clone();
        let permanent_problem =
            engine_object.permanent_problem().cloned().or_else(|| self.permanent_failure(&pool));
        if let Some(problem) = permanent_problem {
            if !with_volume && replica.delete().is_ok() {
                let volume = Subject::Volume(replica.spec().volume);
                self.engine_object(&subject).refresh();
                self.back_off_volume(volume.clone());
                let batch = Batch::new().put(replica);
                let batch = self.call_off(id, batch);
                let message = format!("no copy in pool {pool}: {problem}");
                let name = EventName::OperationFailed;
                self.try_commit(batch.tell(volume, name, Severity::Warning, message));
            }
            return;
        }
        self.put_replica_spec(&replica);
    }

    /// Why nothing can be made in a pool, as far as is certain.
    pub(crate) fn permanent_failure(&self, pool: &PoolName) -> Option<model::Problem> {
        let node = self.state.node_of(pool);
        if node.is_some_and(|node| !self.is_absent(node.id())) {
            return None;
        }
        let detail = format!("pool {pool} is not there, or its node does not answer");
        Some(model::Problem::new(model::ProblemKind::NodeUnavailable, detail))
    }

    /// Whether it is certain enough that a node does not answer, or nobody knows it.
    pub(crate) fn is_absent(&self, node: &NodeName) -> bool {
        self.state.node(node).is_none_or(|node| {
            let liveness = node.status.as_ref().map(|status| status.liveness);
            matches!(liveness, Some(model::Liveness::Offline { .. }))
        })
    }

    /// Whether a node answered, and it is not certain any more that it does.
    pub(crate) fn is_doubtful(&self, node: &NodeName) -> bool {
        use model::{Liveness, UnknownReason};
        let status = self.state.node(node).and_then(|node| node.status.as_ref());
        status.is_some_and(|status| match status.liveness {
            Liveness::Unknown { reason } => reason != UnknownReason::NotSeen,
            Liveness::Online | Liveness::Offline { .. } => false,
        })
    }

    fn put_replica_spec(&mut self, replica: &Replica) {
        let node = self.state.pool(&replica.spec().pool).map(|pool| pool.spec().node.clone());
        let Some(node) = node.filter(|node| self.state.is_online(node)) else { return };
        let call = Call::PutReplica(*replica.id(), replica.order());
        self.call(Subject::Replica(*replica.id()), node, call);
    }

    fn keep_replica(&mut self, mut replica: Replica) {
        let wanted = self.wanted_hosts(replica.spec().volume, *replica.id());
        if replica.spec().hosts != wanted {
            let change = ReplicaChange::Share { hosts: wanted };
            if replica.change(change, self.now).is_ok() {
                self.try_commit(Batch::new().put(replica));
            }
            return;
        }
        let engine_object = self.engine_object(&Subject::Replica(*replica.id()));
        // What the engine does not have is lost, and must not come back empty.
        let (is_there, noted) = (engine_object.present, engine_object.backed_up);
        if is_there && engine_object.applied != Some(replica.generation()) {
            self.put_replica_spec(&replica);
        } else if is_there {
            self.note_volume(&replica, noted);
        }
    }

    /// The disk is told what is wanted of the volume, when that has changed and come to rest.
    fn note_volume(&mut self, replica: &Replica, noted: Option<Generation>) {
        let volume = self.state.volume(replica.spec().volume);
        let Some(volume) = volume.filter(|volume| volume.lifecycle().is_idle()) else { return };
        let node = self.state.pool(&replica.spec().pool).map(|pool| pool.spec().node.clone());
        let node = node.filter(|node| self.state.is_online(node));
        if let Some(node) = node.filter(|_| noted != Some(volume.generation())) {
            let call = Call::PutSpecBackup(*replica.id(), SpecBackup::of(volume));
            self.call(Subject::Replica(*replica.id()), node, call);
        }
    }

    /// The nodes that may connect to a copy: those of the targets that use it. One that was
    /// replaced may not.
    pub(crate) fn wanted_hosts(&self, volume: VolumeId, id: ReplicaId) -> BTreeSet<Nqn> {
        let users = self.users(volume).filter(|target| target.spec().child(id).is_some());
        let nodes = users.filter_map(|target| self.state.node(&target.spec().node));
        nodes.map(|node| node.spec().address.nqn.clone()).collect()
    }

    /// The targets of a volume that may use its copies: all but those that were replaced.
    fn users(&self, volume: VolumeId) -> impl Iterator<Item = &model::Target> {
        let targets = self.state.targets_of(volume);
        let newest = targets.filter(|it| !is_going(*it)).map(|it| it.spec().epoch).max();
        self.state
            .targets_of(volume)
            .filter(move |target| newest.is_none_or(|newest| target.spec().epoch >= newest))
    }

    fn drop_replica(&mut self, replica: Replica) {
        let id = *replica.id();
        let subject = Subject::Replica(id);
        if self.engine_object(&subject).gone || self.state.pool(&replica.spec().pool).is_none() {
            let batch = self.forget_replica(Batch::new(), replica);
            self.try_commit(batch.gone(subject));
            return;
        }
        if self.is_purged(&replica.spec().pool) {
            if self.is_free(&replica) {
                let batch = self.forget_replica(Batch::new(), replica);
                self.try_commit(batch.gone(subject));
            }
            return;
        }
        let pool = replica.spec().pool.clone();
        let Some(node) = self.usable_on(&pool) else {
            self.awaiting.entry(pool).or_default().insert(subject);
            return;
        };
        if !self.is_surveyed() {
            return;
        }
        if self.is_last(&replica) {
            self.cancel_removal(replica);
        } else if !self.may_have_parts(&replica)
            && self.is_free(&replica)
            && (!self.is_living(replica.spec().volume) || self.is_superseded(&replica))
        {
            // While something may be lost with it the planner takes another look, and in the end
            // has it set aside.
            let order = DeleteReplica { generation: replica.generation(), pool };
            self.call(subject, node, Call::DeleteReplica(id, order));
        }
    }

    /// The node of a pool, if it answers and the pool is not exported, nor about to be or to come
    /// back.
    pub(crate) fn usable_on(&self, name: &PoolName) -> Option<NodeName> {
        let pool = self.state.pool(name)?;
        let is_in_place = !pool.spec().exported && pool.lifecycle().operation().is_none();
        let node = &pool.spec().node;
        (is_in_place && self.state.is_online(node)).then(|| node.clone())
    }

    /// Whether parts of a snapshot that is being taken or undone may still be beside a copy: only
    /// while the copy is known are they found.
    fn may_have_parts(&self, replica: &Replica) -> bool {
        let mut unsettled =
            self.state.snapshots_of(replica.spec().volume).filter(|it| it.status.is_none());
        unsettled.any(|snapshot| {
            let dropped = self.dropped.get(snapshot.id()).filter(|_| is_going(snapshot));
            dropped.is_none_or(|dropped| !dropped.contains(replica.id()))
        })
    }

    /// Whether a volume exists and nobody wants it gone.
    fn is_living(&self, volume: VolumeId) -> bool {
        self.state.volume(volume).is_some_and(|volume| !is_going(volume))
    }

    /// Whether all others went out of sync since it was decided that this copy goes.
    fn is_last(&self, replica: &Replica) -> bool {
        let volume = replica.spec().volume;
        let lives = self.is_living(volume);
        let record = self.state.facts.records.get(&volume);
        let removed = record.map(|record| record.set().on(SetChange::Removed(*replica.id())));
        lives && matches!(removed, Some(Err(SetRefused::LastInSync(_))))
    }

    /// The removal of a copy is called off, and the target uses it again.
    fn cancel_removal(&mut self, mut replica: Replica) {
        let volume = replica.spec().volume;
        let mut batch = Batch::new();
        if let Some(mut target) = self.target_of(volume).cloned()
            && target.spec().child(*replica.id()).is_none()
        {
            let child = self.child_of(&replica, &target.spec().node);
            let child = child.map(|child| TargetChange::PutChild { child });
            if child.is_none_or(|change| target.change(change, self.now).is_err()) {
                return;
            }
            self.engine_object(&Subject::Target(*target.id())).refresh();
            batch = batch.put(target);
        }
        if replica.keep().is_ok() {
            let message = format!("copy {} stays: no other is in sync any more", replica.id());
            let (subject, name) = (Subject::Volume(volume), EventName::OperationFailed);
            self.try_commit(batch.put(replica).tell(subject, name, Severity::Warning, message));
        }
    }

    /// The record of a copy goes, with what is remembered of it.
    pub(crate) fn forget_replica(&self, batch: Batch, replica: Replica) -> Batch {
        let scrubbed = self.state.scrubs.get(replica.id()).cloned();
        let batch = batch.drop(replica);
        scrubbed.into_iter().fold(batch, Batch::drop)
    }

    /// Whether no target uses a copy and its volume does not count it. If only the record stands in
    /// the way, and nobody but us can change it, it is changed.
    fn is_free(&mut self, replica: &Replica) -> bool {
        let id = *replica.id();
        let volume = replica.spec().volume;
        if !self.is_living(volume) {
            return true;
        }
        let mut is_served = false;
        let users: BTreeSet<_> = self.users(volume).map(|target| *target.id()).collect();
        for target in self.state.targets_of(volume).filter(|it| users.contains(it.id())) {
            let subject = Subject::Target(*target.id());
            let online = self.state.is_online(&target.spec().node);
            if is_going(target) && !online {
                continue;
            }
            let held =
                self.engine_objects.get(&subject).and_then(|engine_object| engine_object.applied);
            let knows = held == Some(target.generation());
            if target.spec().child(id).is_some() || (online && !knows && !is_going(target)) {
                return false;
            }
            is_served |= !is_going(target);
        }
        let Some(record) = self.state.facts.records.get(&volume) else { return true };
        if !record.set().replicas().contains(&id) {
            return true;
        }
        if is_served || self.is_locked(&keys::target_record(volume)) {
            // The engine of the target changes the record.
            return false;
        }
        match record.give_up(id) {
            Ok(record) => self.try_commit(Batch::new().put(record)),
            Err(problem) => {
                tracing::warn!(replica = %id, %problem, "removing a copy was refused; it stays");
            }
        }
        false
    }
}

/// The spec of a copy of a volume.
pub(crate) fn replica_spec(volume: &model::Volume, pool: PoolName) -> ReplicaSpec {
    ReplicaSpec {
        volume: *volume.id(),
        pool,
        size: volume.spec().size,
        thin: volume.spec().thin,
        source: None,
        encryption: volume.spec().encryption.clone(),
        hosts: BTreeSet::new(),
    }
}
