//! Targets: opened, changed, closed.

use model::{
    Child, ChildPath, EventName, Lifecycle, NodeName, Problem, ProblemKind, Replica, ReplicaId,
    Severity, Subject, Target, TargetChange, TargetId, VolumeId, keys,
};

use super::batch::Batch;
use super::replica::is_going;
use super::{Call, Controller, PendingRequest, RequestOutcome};

impl Controller {
    pub(crate) fn reconcile_target(&mut self, id: TargetId) {
        let Some(target) = self.state.facts.targets.get(&id).cloned() else { return };
        let subject = Subject::Target(id);
        if self.is_locked(&keys::of::<Target>(id)) || !self.is_due(&subject) {
            return;
        }
        let volume = target.spec().volume;
        let is_left_alone = self.is_disputed(volume) && !is_going(&target);
        if is_left_alone || self.state.unreadable.concerns(volume) {
            return;
        }
        if let Some(moved) = self.with_new_ways(&target) {
            return self.try_commit(Batch::new().put(moved));
        }
        let node = target.spec().node.clone();
        let online = self.state.is_online(&node);
        let engine_object = self.engine_object(&subject).clone();
        match target.lifecycle() {
            // Whether it is made or undone its volume decides.
            Lifecycle::Creating {} | Lifecycle::Created { .. } => {
                let permanent_problem = matches!(target.lifecycle(), Lifecycle::Creating {})
                    && engine_object.permanent_problem().is_some();
                let is_held = engine_object.applied == Some(target.generation());
                let is_free = !self.is_taken(&target) && self.is_surveyed();
                if !is_held
                    && online
                    && !permanent_problem
                    && is_free
                    && self.are_children_ready(&target)
                {
                    self.call(subject, node, Call::PutTarget(id, target.order()));
                }
            }
            Lifecycle::Deleting {}
                if engine_object.gone || self.state.node(&node).is_none_or(is_going) =>
            {
                self.try_commit(Batch::new().drop(target).gone(subject));
            }
            Lifecycle::Deleting {} if online => {
                self.call(subject, node, Call::DeleteTarget(id, target.generation()));
            }
            Lifecycle::Deleting {} | Lifecycle::Deleted {} => {}
        }
    }

    /// The target as it should be when a copy is reached by another way than it was told: its pool
    /// was carried to another node, or its node has another address.
    fn with_new_ways(&self, target: &Target) -> Option<Target> {
        if is_going(target) || target.spec().shutdown || !target.lifecycle().is_idle() {
            return None;
        }
        let moved = target.spec().children.iter().find_map(|child| {
            let replica = self.state.facts.replicas.get(&child.replica)?;
            let now = self.child_of(replica, &target.spec().node)?;
            (now.path != child.path).then_some(Child { offline: child.offline, ..now })
        })?;
        let mut target = target.clone();
        target.change(TargetChange::PutChild { child: moved }, self.now).ok()?;
        Some(target)
    }

    /// Whether another target of the volume is still on the node: an engine serves a volume once.
    fn is_taken(&self, target: &Target) -> bool {
        let others = self.state.targets_of(target.spec().volume);
        let mut older = others.filter(|it| it.spec().epoch < target.spec().epoch);
        older.any(|it| it.spec().node == target.spec().node)
    }

    /// Whether each copy that can be reached lets the node of the target in, and no other.
    fn are_children_ready(&self, target: &Target) -> bool {
        let volume = target.spec().volume;
        target.spec().children.iter().all(|child| {
            let Some(replica) = self.state.facts.replicas.get(&child.replica) else { return true };
            let engine_object = self.engine_objects.get(&Subject::Replica(child.replica));
            let node = self.state.pool(&replica.spec().pool).map(|pool| &pool.spec().node);
            let reachable = node.is_some_and(|node| self.state.is_online(node))
                && engine_object.is_some_and(|engine_object| {
                    engine_object.present && engine_object.problem.is_none()
                });
            let is_held = engine_object
                .is_some_and(|engine_object| engine_object.applied == Some(replica.generation()));
            let is_shared = replica.spec().hosts == self.wanted_hosts(volume, child.replica);
            !reachable || (is_held && is_shared)
        })
    }

    /// Leaves a copy alone, or uses it again; never the last that is in sync.
    pub(crate) fn decide_offline(
        &self,
        asked: &PendingRequest,
        id: VolumeId,
        (replica, offline): (ReplicaId, bool),
    ) -> Result<Batch, Problem> {
        self.known_volume(id, asked)?;
        let Some(target) = self.target_of(id) else {
            let detail = format!("volume {id} is not published: none of its copies is in use");
            return Err(Problem::new(ProblemKind::NotPublished, detail));
        };
        let Some(child) = target.spec().child(replica) else {
            let detail = format!("replica {replica} is no copy that volume {id} uses");
            return Err(Problem::new(ProblemKind::NotFound, detail));
        };
        if child.offline == offline {
            return Ok(Batch::new().reply(asked.ticket, RequestOutcome::Unchanged));
        }
        let in_sync = self.state.facts.records.get(&id).map(|record| record.set().in_sync());
        let used = |other: &&Child| !other.offline && other.replica != replica;
        let good = |other: &Child| in_sync.is_some_and(|good| good.contains(&other.replica));
        if offline && !target.spec().children.iter().filter(used).any(good) {
            let detail = format!("replica {replica} is the last copy of volume {id} in sync");
            return Err(Problem::new(ProblemKind::LastReplica, detail));
        }
        let child = Child { offline, ..child.clone() };
        let mut target = target.clone();
        target.change(TargetChange::PutChild { child }, self.now)?;
        let what = if offline { "is left alone" } else { "is used again" };
        let message = format!("copy {replica} {what}, as asked");
        let batch = Batch::new().put(target).reply(asked.ticket, RequestOutcome::Changed);
        Ok(batch.tell(Subject::Volume(id), EventName::Changed, Severity::Info, message))
    }

    /// The target that a volume has now: not replaced, not going.
    pub(crate) fn target_of(&self, volume: VolumeId) -> Option<&Target> {
        let live = |target: &&Target| !target.spec().shutdown && !is_going(*target);
        self.state.targets_of(volume).filter(live).max_by_key(|target| target.spec().epoch)
    }

    /// A copy, seen from a target on a node.
    pub(crate) fn child_of(&self, replica: &Replica, node: &NodeName) -> Option<Child> {
        let home = self.state.node_of(&replica.spec().pool)?;
        let path = if home.id() == node {
            ChildPath::Local {}
        } else {
            ChildPath::Remote { addresses: home.spec().address.data.clone() }
        };
        Some(Child { replica: *replica.id(), path, offline: false })
    }
}
