//! Pools: made, opened, changed, deleted.

use api::node::DeletePool;
use model::{
    EventName, Lifecycle, NodeName, Pool, PoolName, PoolSpec, PoolUuid, Problem, ProblemKind,
    Severity, Subject, keys,
};

use super::admission::AdmissionContext;
use super::batch::{Batch, WaitFor};
use super::{Call, Controller, PendingRequest, RequestOutcome};

impl Controller {
    pub(crate) fn reconcile_pool(&mut self, name: &PoolName) {
        let Some(pool) = self.state.pool(name).cloned() else { return };
        let subject = Subject::Pool(name.clone());
        if self.usable_on(name).is_some() {
            self.dirty.extend(self.awaiting.remove(name).unwrap_or_default());
        }
        if self.is_locked(&keys::of::<Pool>(name)) || !self.is_due(&subject) {
            return;
        }
        // A pool that is being imported is opened where its disks are now.
        let node = pool.order().spec.node;
        let online = self.state.is_online(&node);
        let engine_object = self.engine_object(&subject).clone();
        let is_held = engine_object.applied == Some(pool.generation());
        match pool.lifecycle() {
            Lifecycle::Creating {} if is_held => self.finish_pool(pool),
            Lifecycle::Creating {} => match engine_object.permanent_problem() {
                Some(problem) => self.undo_pool(pool, problem.clone()),
                None if online => {
                    self.call(subject, node, Call::PutPool(name.clone(), pool.order()));
                }
                None if self.is_absent(&node) => self.undo_pool(pool, absent(&node)),
                None => {}
            },
            Lifecycle::Created { operation: Some(operation) } if operation.outcome.is_none() => {
                if is_held {
                    self.end_pool_change(pool, Ok(()));
                } else if let Some(problem) = engine_object.permanent_problem() {
                    self.end_pool_change(pool, Err(problem.clone()));
                } else if online {
                    self.call(subject, node, Call::PutPool(name.clone(), pool.order()));
                } else if self.is_absent(&node) {
                    self.end_pool_change(pool, Err(absent(&node)));
                }
            }
            Lifecycle::Created { .. } => {
                if !is_held && online && (engine_object.present || !pool.spec().exported) {
                    self.call(subject, node, Call::PutPool(name.clone(), pool.order()));
                }
            }
            Lifecycle::Deleting {} if self.give_up_copies(name) => {}
            Lifecycle::Deleting {}
                if engine_object.gone
                    || engine_object
                        .permanent_problem()
                        .is_some_and(|problem| problem.kind != ProblemKind::InUse)
                    || (online && uuid_of(&pool).is_none())
                    || self.state.node(&node).is_none_or(super::replica::is_going)
                    || self.is_absent(&node) =>
            {
                let batch = Batch::new().drop(pool).gone(subject.clone());
                let message = if engine_object.gone {
                    "its disks are free"
                } else {
                    "it is forgotten; its disks are as they were"
                };
                self.try_commit(batch.tell(subject, EventName::Deleted, Severity::Info, message));
            }
            Lifecycle::Deleting {} if online => {
                if let Some(uuid) = uuid_of(&pool) {
                    let order = DeletePool { generation: pool.generation(), uuid };
                    self.call(subject, node, Call::DeletePool(name.clone(), order));
                }
            }
            Lifecycle::Deleting {} | Lifecycle::Deleted {} => {}
        }
    }

    fn finish_pool(&mut self, mut pool: Pool) {
        let subject = Subject::Pool(pool.id().clone());
        if pool.made().is_ok() {
            let message = format!("made on node {}", pool.spec().node);
            let batch = Batch::new().put(pool).end(subject.clone(), Ok(RequestOutcome::Created));
            self.try_commit(batch.tell(subject, EventName::Created, Severity::Info, message));
        }
    }

    /// One that was to be imported is only forgotten: it was there before.
    fn undo_pool(&mut self, mut pool: Pool, problem: Problem) {
        let subject = Subject::Pool(pool.id().clone());
        let batch = if pool.spec().import {
            Batch::new().drop(pool).gone(subject.clone())
        } else if pool.delete().is_ok() {
            self.engine_object(&subject).refresh();
            Batch::new().put(pool)
        } else {
            return;
        };
        let message = format!("it could not be made: {problem}");
        self.failures.insert(subject.clone(), problem);
        self.try_commit(batch.tell(subject, EventName::OperationFailed, Severity::Error, message));
    }

    fn end_pool_change(&mut self, mut pool: Pool, result: Result<(), Problem>) {
        let subject = Subject::Pool(pool.id().clone());
        let (outcome, name, severity, message) = super::volume::outcome(&result);
        // What is in a pool that was opened is seen at once.
        self.look_at(&pool.order().spec.node);
        if pool.end(outcome).and_then(|()| pool.commit()).is_ok() {
            let batch = Batch::new().put(pool).tell(subject.clone(), name, severity, message);
            self.try_commit(batch.end(subject, result.map(|()| RequestOutcome::Changed)));
        }
    }

    pub(crate) fn decide_create_pool(
        &self,
        context: &mut AdmissionContext<'_, '_>,
        asked: &PendingRequest,
        name: &PoolName,
        spec: &PoolSpec,
    ) -> Result<Batch, Problem> {
        let subject = Subject::Pool(name.clone());
        if let Some(pool) = self.state.pool(name) {
            pool.again(spec)?;
            return Ok(match pool.lifecycle() {
                Lifecycle::Creating {} => Batch::new().wait(subject, WaitFor::End),
                _ => Batch::new().reply(asked.ticket, RequestOutcome::Unchanged),
            });
        }
        if self.state.node(&spec.node).is_none() {
            let detail = format!("there is no node {}; start its engine first", spec.node);
            return Err(Problem::new(ProblemKind::NotFound, detail));
        }
        if !self.state.is_online(&spec.node) {
            return Err(absent(&spec.node));
        }
        let mut spec = spec.clone();
        if spec.uuid.is_none() && !spec.import {
            spec.uuid = Some(PoolUuid::new(context.ids.uuid())?);
        }
        let pool = Pool::new(name.clone(), spec, self.now)?;
        Ok(Batch::new().put(pool).wait(subject, WaitFor::End))
    }

    pub(crate) fn decide_delete_pool(
        &self,
        asked: &PendingRequest,
        name: &PoolName,
    ) -> Result<Batch, Problem> {
        let subject = Subject::Pool(name.clone());
        let Some(pool) = self.state.pool(name) else {
            return Ok(Batch::new().reply(asked.ticket, RequestOutcome::Unchanged));
        };
        super::admission::expect(pool, asked)?;
        if !self.state.is_online(&pool.spec().node) {
            let detail = format!(
                "node {} of pool {name} does not answer; wait for it, or purge the pool",
                pool.spec().node
            );
            return Err(Problem::new(ProblemKind::NodeUnavailable, detail));
        }
        let copies = self.replicas_on(&[name.clone()].into()).len();
        let snapshots = self.state.facts.snapshots.values();
        let has_copy = |it: &&model::Snapshot| {
            it.status.as_ref().is_some_and(|status| status.copies.contains_key(name))
        };
        let snapshots = snapshots.filter(has_copy).count();
        if copies + snapshots > 0 {
            let detail = format!(
                "pool {name} holds {copies} replicas and copies of {snapshots} snapshots; move or \
                 delete them first"
            );
            return Err(Problem::new(ProblemKind::InUse, detail));
        }
        let aside = self.quarantined_in(&[name.clone()].into());
        if let Some(first) = aside.first() {
            let detail = format!(
                "pool {name} holds {} copies in quarantine, {first} for one; restore or delete \
                 them first: `holdfast quarantine list`",
                aside.len()
            );
            return Err(Problem::new(ProblemKind::InUse, detail));
        }
        let mut pool = pool.clone();
        pool.delete()?;
        Ok(Batch::new().put(pool).wait(subject, WaitFor::Gone))
    }
}

/// Which pool it is; nobody knows it of one that was to be imported and was never seen.
fn uuid_of(pool: &Pool) -> Option<PoolUuid> {
    pool.spec().uuid.or(pool.status.as_ref().map(|status| status.uuid))
}

pub(crate) fn absent(node: &NodeName) -> Problem {
    let detail = format!("node {node} does not answer; wait for it");
    Problem::new(ProblemKind::NodeUnavailable, detail)
}
