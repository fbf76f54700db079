//! Volumes: created, deleted, and the operations on them that take steps.

use model::{
    EventName, Lifecycle, Operation, Outcome, Problem, ProblemKind, Replica, Severity, SnapshotId,
    Source, Subject, Timestamp, Volume, VolumeChange, VolumeId, VolumeSpec, keys,
};
use planner::{VolumePlaces, place_volume};

use super::admission::{AdmissionContext, expect_free_name};
use super::batch::{Batch, WaitFor};
use super::publish::PATIENCE;
use super::replica::{is_going, replica_spec};
use super::{Controller, PendingRequest, RequestOutcome};

/// How an operation ended, for the record and for people.
pub(crate) fn outcome(result: &Result<(), Problem>) -> (Outcome, EventName, Severity, String) {
    match result {
        Ok(()) => (Outcome::Done {}, EventName::Changed, Severity::Info, "changed".to_owned()),
        Err(problem) => {
            let message = format!("a change failed and was undone: {problem}");
            let outcome = Outcome::Failed { problem: problem.clone() };
            (outcome, EventName::OperationFailed, Severity::Warning, message)
        }
    }
}

/// Whether all that is done to a volume is to end something.
fn is_leaving(volume: &Volume) -> bool {
    match volume.lifecycle() {
        Lifecycle::Created { operation } => {
            operation.as_ref().is_some_and(|it| matches!(it.change, VolumeChange::Unpublish { .. }))
        }
        Lifecycle::Creating {} | Lifecycle::Deleting {} | Lifecycle::Deleted {} => true,
    }
}

/// Why an operation that somebody called off was undone.
pub(crate) fn cancelled(id: VolumeId) -> Problem {
    let detail = format!("what was being done to volume {id} was cancelled");
    Problem::new(ProblemKind::Unavailable, detail)
}

impl Controller {
    /// What is being done to a volume is undone, as far as it can be.
    pub(crate) fn decide_cancel(
        &self,
        asked: &PendingRequest,
        id: VolumeId,
    ) -> Result<Batch, Problem> {
        let volume = self.known_volume(id, asked)?;
        let refused = |detail: String| Err(Problem::new(ProblemKind::NotSupported, detail));
        let Some(operation) = volume.lifecycle().operation() else {
            let done = match self.state.moving(id) {
                Some(moving) => {
                    let message = format!("the move of copy {} was cancelled", moving.from);
                    let batch = Batch::new().drop(moving);
                    let (name, severity) = (EventName::Changed, Severity::Info);
                    batch
                        .tell(Subject::Volume(id), name, severity, message)
                        .reply(asked.ticket, RequestOutcome::Changed)
                }
                None => Batch::new().reply(asked.ticket, RequestOutcome::Unchanged),
            };
            return Ok(done);
        };
        match &operation.change {
            VolumeChange::Unpublish { .. } => refused(format!(
                "volume {id} is being unpublished, which cannot be undone; `holdfast volume \
                 unpublish {id} --force` does not wait for the engine"
            )),
            VolumeChange::CreateSnapshot { .. } => refused(format!(
                "a snapshot of volume {id} is being taken; it ends by itself within a minute"
            )),
            VolumeChange::SetReplicas { .. } => refused(format!(
                "volume {id} gets another number of copies, which is not called off; set the \
                 number that it had: holdfast volume replicas {id} COUNT"
            )),
            _ => Ok(Batch::new().cancel(id).reply(asked.ticket, RequestOutcome::Changed)),
        }
    }

    pub(crate) fn reconcile_volume(&mut self, id: VolumeId) {
        let Some(volume) = self.state.volume(id).cloned() else { return };
        self.weigh(id);
        if self.is_locked(&keys::of::<Volume>(id)) {
            return;
        }
        let is_left_alone = self.is_disputed(id) && !is_leaving(&volume);
        if is_left_alone || self.state.unreadable.concerns(id) {
            return;
        }
        match volume.lifecycle().clone() {
            Lifecycle::Creating {} => self.continue_create(volume),
            Lifecycle::Created { operation } => {
                self.continue_failover(id);
                if let Some(operation) = operation {
                    self.continue_operation(volume, operation);
                }
            }
            Lifecycle::Deleting {} | Lifecycle::Deleted {} => self.continue_delete(volume),
        }
    }

    fn continue_operation(&mut self, volume: Volume, operation: Operation<VolumeChange>) {
        if let Some(outcome) = operation.outcome {
            // Written before the spec took it in; the batches here do both at once.
            let result = match outcome {
                Outcome::Done {} => Ok(()),
                Outcome::Failed { problem } => Err(problem),
            };
            return self.end(volume, result, Batch::new());
        }
        match operation.change {
            VolumeChange::Publish { target, host, .. } => {
                self.continue_publish(volume, target, host.as_ref(), operation.started_at);
            }
            VolumeChange::Republish { target, from, .. } => {
                self.continue_republish(volume, target, from, operation.started_at);
            }
            VolumeChange::Unpublish { host, force } => {
                self.continue_unpublish(volume, (host.as_ref(), force), operation.started_at);
            }
            VolumeChange::Resize { size } => {
                self.continue_resize(volume, size, operation.started_at);
            }
            VolumeChange::CreateSnapshot { snapshot } => self.continue_snapshot(volume, snapshot),
            // The planner says when this is done.
            VolumeChange::SetReplicas { .. } => {}
            // These are written as done.
            VolumeChange::MoveReplica { .. }
            | VolumeChange::AddReplica { .. }
            | VolumeChange::RemoveReplica { .. }
            | VolumeChange::DeleteSnapshot { .. }
            | VolumeChange::Modify { .. } => self.end(volume, Ok(()), Batch::new()),
        }
    }

    /// The operation under way has ended; `batch` is stored with that.
    pub(crate) fn end(&mut self, mut volume: Volume, result: Result<(), Problem>, batch: Batch) {
        let subject = Subject::Volume(*volume.id());
        self.cancelled.remove(volume.id());
        let (outcome, name, severity, message) = outcome(&result);
        let is_noted =
            volume.lifecycle().operation().is_some_and(|operation| operation.outcome.is_some());
        let ended = if is_noted { Ok(()) } else { volume.end(outcome) };
        if ended.and_then(|()| volume.commit()).is_ok() {
            let mut batch = batch.put(volume);
            // Whoever says more has said that.
            if result.is_err() || !batch.tells_something() {
                batch = batch.tell(subject.clone(), name, severity, message);
            }
            self.try_commit(batch.end(subject, result.map(|()| RequestOutcome::Changed)));
        }
    }

    pub(crate) fn decide_create_volume(
        &self,
        context: &mut AdmissionContext<'_, '_>,
        asked: &PendingRequest,
        id: VolumeId,
        spec: &VolumeSpec,
    ) -> Result<Batch, Problem> {
        let subject = Subject::Volume(id);
        if let Some(volume) = self.state.volume(id) {
            volume.again(spec)?;
            return Ok(match volume.lifecycle() {
                Lifecycle::Creating {} => Batch::new().wait(subject, WaitFor::End),
                _ => Batch::new().reply(asked.ticket, RequestOutcome::Unchanged),
            });
        }
        let volume = Volume::new(id, spec.clone(), self.now)?;
        expect_free_name(&id, spec, self.state.facts.volumes.values())?;
        if let Some(Source::Volume { volume: source }) = spec.source {
            return self.decide_clone(context, volume, source);
        }
        let places = place_volume(context.view, &mut context.budget, id, spec)?;
        let source = match spec.source {
            Some(Source::Snapshot { snapshot }) => Some(snapshot),
            _ => None,
        };
        let mut batch = Batch::new();
        for replica in self.new_replicas(context, &volume, places, source)? {
            batch = batch.put(replica);
        }
        Ok(batch.put(volume).wait(subject, WaitFor::End))
    }

    /// The copies of a new volume, in their places; those that have the content begin with it.
    pub(crate) fn new_replicas(
        &self,
        context: &mut AdmissionContext<'_, '_>,
        volume: &Volume,
        places: VolumePlaces,
        source: Option<SnapshotId>,
    ) -> Result<Vec<Replica>, Problem> {
        let VolumePlaces { pools, with_content } = places;
        let mut replicas = Vec::new();
        for pool in pools {
            let source = source.filter(|_| with_content.contains(&pool));
            let spec = model::ReplicaSpec { source, ..replica_spec(volume, pool) };
            replicas.push(Replica::new(context.ids.replica()?, spec, self.now)?);
        }
        Ok(replicas)
    }

    fn continue_create(&mut self, mut volume: Volume) {
        let id = *volume.id();
        let replicas: Vec<Replica> = self.state.replicas_of(id).cloned().collect();
        if replicas.is_empty() {
            return self.continue_clone(volume);
        }
        if replicas.iter().any(|it| self.is_locked(&keys::of::<Replica>(*it.id()))) {
            return;
        }
        let mut made = 0;
        for replica in &replicas {
            let subject = Subject::Replica(*replica.id());
            let is_created = matches!(replica.lifecycle(), Lifecycle::Created { .. });
            let engine_object = self.engine_object(&subject);
            if is_created || engine_object.applied == Some(replica.generation()) {
                made += 1;
                continue;
            }
            let permanent_problem = engine_object.permanent_problem().cloned();
            if let Some(problem) =
                permanent_problem.or_else(|| self.permanent_failure(&replica.spec().pool))
            {
                return self.undo_volume(volume, replicas, problem);
            }
        }
        if made < replicas.len() || volume.made().is_err() {
            return;
        }
        let subject = Subject::Volume(id);
        let spec = volume.spec();
        let message = format!("made with {} and {} copies", spec.size, spec.replicas);
        let source = spec.source;
        let mut batch = Batch::new().put(volume).end(subject.clone(), Ok(RequestOutcome::Created));
        for mut replica in replicas {
            if replica.made().is_ok() {
                batch = batch.put(replica);
            }
        }
        if let Some(Source::Volume { .. }) = source {
            batch = self.drop_clone_source(id, batch);
        }
        self.try_commit(batch.tell(subject, EventName::Created, Severity::Info, message));
    }

    pub(crate) fn undo_volume(
        &mut self,
        mut volume: Volume,
        replicas: Vec<Replica>,
        problem: Problem,
    ) {
        let subject = Subject::Volume(*volume.id());
        if volume.delete().is_err() {
            return;
        }
        let mut batch = Batch::new().put(volume);
        for mut replica in replicas.into_iter().filter(|replica| !is_going(replica)) {
            if replica.delete().is_ok() {
                self.engine_object(&Subject::Replica(*replica.id())).refresh();
                batch = batch.put(replica);
            }
        }
        let message = format!("it could not be made: {problem}");
        self.failures.insert(subject.clone(), problem);
        let name = EventName::OperationFailed;
        self.try_commit(batch.tell(subject, name, Severity::Error, message));
    }

    pub(crate) fn decide_delete_volume(
        &self,
        asked: &PendingRequest,
        id: VolumeId,
    ) -> Result<Batch, Problem> {
        let subject = Subject::Volume(id);
        let Some(volume) = self.state.volume(id) else {
            return Ok(Batch::new().reply(asked.ticket, RequestOutcome::Unchanged));
        };
        super::admission::expect(volume, asked)?;
        let used = self.target_of(id).and_then(|target| target.spec().hosts.keys().next());
        if let Some(host) = used {
            let detail = format!("volume {id} is used by host {host}; unpublish it first");
            return Err(Problem::new(ProblemKind::InUse, detail));
        }
        let mut volume = volume.clone();
        volume.delete()?;
        Ok(Batch::new().put(volume).wait(subject, WaitFor::Gone))
    }

    /// First its targets, then its copies, then itself. What lies on nodes that do not answer goes
    /// when they do, and nobody waits for that.
    fn continue_delete(&mut self, volume: Volume) {
        let id = *volume.id();
        let mut batch = Batch::new();
        let mut left = 0;
        let mut changes = 0;
        for target in self.state.targets_of(id) {
            let mut target = target.clone();
            left += usize::from(self.state.is_online(&target.spec().node));
            if !is_going(&target) && target.delete().is_ok() {
                changes += 1;
                batch = batch.put(target);
            }
        }
        if changes > 0 {
            return self.try_commit(batch);
        }
        if left > 0 {
            return;
        }
        for replica in self.state.replicas_of(id) {
            let mut replica = replica.clone();
            let pool = self.state.pool(&replica.spec().pool);
            left += usize::from(pool.is_some_and(|it| self.state.is_online(&it.spec().node)));
            if !is_going(&replica) && replica.delete().is_ok() {
                changes += 1;
                batch = batch.put(replica);
            }
        }
        if changes > 0 {
            return self.try_commit(batch);
        }
        if left > 0 {
            return;
        }
        let subject = Subject::Volume(id);
        let facts = &self.state.facts;
        if let Some(record) = facts.records.get(&id) {
            batch = batch.drop(record.clone());
        }
        let batch = self.drop_move(id, self.drop_failovers(id, batch));
        let batch = self.forget_comparison(id, batch);
        let batch = self.drop_clone_source(id, batch).drop(volume).gone(subject.clone());
        self.back_offs.remove(&subject);
        self.try_commit(batch.tell(subject, EventName::Deleted, Severity::Info, "it is gone"));
    }

    /// First the copies grow, then the target. Until the target was told, a failure or the loss of
    /// a node undoes it; from then on hosts may have seen the size, and it is completed: what was
    /// not reached is told when it is back.
    fn continue_resize(&mut self, volume: Volume, size: model::Size, since: Timestamp) {
        let id = *volume.id();
        let mut ready = true;
        let mut problem = self.why_not_resized(id, since);
        if self.cancelled.contains(&id) {
            problem = Some(cancelled(id));
        }
        for replica in self.state.replicas_of(id).filter(|replica| !is_going(*replica)) {
            let engine_object = self.engine_objects.get(&Subject::Replica(*replica.id()));
            ready &= replica.spec().size >= size
                && engine_object.is_some_and(|engine_object| {
                    engine_object.applied == Some(replica.generation())
                });
            problem = problem.or_else(|| {
                engine_object.and_then(|engine_object| engine_object.permanent_problem().cloned())
            });
        }
        let mut is_told = false;
        if let Some(target) = self.target_of(id) {
            let engine_object = self.engine_objects.get(&Subject::Target(*target.id()));
            is_told = target.spec().size >= size;
            ready &= is_told
                && engine_object.is_some_and(|engine_object| {
                    engine_object.applied == Some(target.generation())
                });
            problem = problem.or_else(|| {
                engine_object.and_then(|engine_object| engine_object.permanent_problem().cloned())
            });
        }
        match problem {
            _ if ready => self.end(volume, Ok(()), Batch::new()),
            Some(_) if is_told => self.end(volume, Ok(()), Batch::new()),
            Some(problem) => self.end(volume, Err(problem), Batch::new()),
            None => self.wake(self.give_up_at(since), Subject::Volume(id)),
        }
    }

    /// When an operation that began then is given up.
    pub(crate) fn give_up_at(&self, since: Timestamp) -> Timestamp {
        since.max(self.began).after(PATIENCE)
    }

    /// Why a volume will not have its new size soon: somebody who has to do something is away.
    fn why_not_resized(&self, id: VolumeId, since: Timestamp) -> Option<Problem> {
        let pools = self.state.replicas_of(id).filter(|replica| !is_going(*replica));
        let homes = pools.filter_map(|replica| self.state.pool(&replica.spec().pool));
        let target = self.target_of(id).map(|target| &target.spec().node);
        let mut nodes = homes.map(|pool| &pool.spec().node).chain(target);
        if let Some(node) = nodes.find(|node| self.is_absent(node)) {
            return Some(super::pool::absent(node));
        }
        (self.now >= self.give_up_at(since)).then(|| {
            let detail = format!("not all copies of volume {id} have the new size in time");
            Problem::new(ProblemKind::TimedOut, detail)
        })
    }
}
