//! Forgetting nodes and pools that will not come back.
//!
//! A purge is a deletion that asks no engine: the record of the node or pool is marked first, then
//! all that was there is given up as if it were deleted, one after the other, and the record goes
//! last. A volume whose last copy in sync goes that way is lost: only if the caller named it.

use std::collections::BTreeSet;

use model::{
    EventName, NodeName, PoolName, PoolState, Problem, ProblemKind, Resource, Severity, Spec,
    Subject, VolumeId, keys,
};

use super::batch::{Batch, WaitFor};
use super::replica::is_going;
use super::{Controller, Entry, PendingRequest, RequestOutcome};

/// So many records are changed in one write.
const AT_ONCE: usize = 100;

impl Controller {
    /// Whether what is in a pool is given up without asking an engine.
    pub(crate) fn is_purged(&self, pool: &PoolName) -> bool {
        let pool = self.state.pool(pool);
        pool.is_some_and(is_going)
            || pool.and_then(|pool| self.state.node(&pool.spec().node)).is_some_and(is_going)
    }

    /// The volumes that would lose their last copy in sync if these pools went.
    pub fn lost_with(&self, pools: &BTreeSet<PoolName>) -> BTreeSet<VolumeId> {
        let mut lost = BTreeSet::new();
        for replica in self.replicas_on(pools) {
            let Some(replica) = self.state.facts.replicas.get(&replica) else { continue };
            let volume = replica.spec().volume;
            let lives = self.state.volume(volume).is_some_and(|volume| !is_going(volume));
            let stays = self.state.replicas_of(volume).any(|other| {
                self.is_in_sync(other) && !pools.contains(&other.spec().pool) && !is_going(other)
            });
            if lives && !stays {
                lost.insert(volume);
            }
        }
        lost
    }

    /// The volumes that would be lost are deleted, if the caller knows of all of them.
    fn give_up_lost(
        &self,
        pools: &BTreeSet<PoolName>,
        known: &BTreeSet<VolumeId>,
    ) -> Result<Batch, Problem> {
        let lost = self.lost_with(pools);
        let mut batch = Batch::new();
        if let Some(first) = lost.difference(known).next() {
            let detail = format!(
                "{} volumes would lose their last copy in sync, the first is {first}; bring the \
                 disks back, or say that you know",
                lost.len()
            );
            return Err(Problem::new(ProblemKind::LastReplica, detail));
        }
        if lost.len() > AT_ONCE {
            let detail = format!("{} volumes would be lost; delete some first", lost.len());
            return Err(Problem::new(ProblemKind::NotSupported, detail));
        }
        for volume in lost.iter().filter_map(|id| self.state.volume(*id)) {
            let mut volume = volume.clone();
            volume.delete()?;
            batch = batch.put(volume);
        }
        Ok(batch)
    }

    /// Why a node cannot be purged now.
    pub(crate) fn why_not_purged(&self, name: &NodeName) -> Option<String> {
        if self.state.is_online(name) {
            return Some(format!("node {name} answers; drain it and stop its engine first"));
        }
        self.disputed_in(&self.pools_on(name))
    }

    /// Why a pool cannot be purged now: what works is emptied and deleted, and its disks are free
    /// then.
    pub(crate) fn why_pool_not_purged(&self, name: &PoolName) -> Option<String> {
        let pool = self.state.pool(name)?;
        let node = &pool.spec().node;
        let state = pool.status.as_ref().map(|status| &status.state);
        let works = matches!(state, Some(PoolState::Online | PoolState::Suspect { .. }));
        if works && self.state.is_online(node) {
            let why = "move its copies away and delete it instead";
            return Some(format!("pool {name} works on node {node}; {why}"));
        }
        self.disputed_in(&[name.clone()].into())
    }

    pub(crate) fn decide_purge_node(
        &self,
        asked: &PendingRequest,
        name: &NodeName,
        known: &BTreeSet<VolumeId>,
    ) -> Result<Batch, Problem> {
        let Some(node) = self.state.node(name) else {
            return Ok(Batch::new().reply(asked.ticket, RequestOutcome::Unchanged));
        };
        super::admission::expect(node, asked)?;
        if let Some(why) = self.why_not_purged(name) {
            return Err(Problem::new(ProblemKind::InUse, why));
        }
        let batch = self.give_up_lost(&self.pools_on(name), known)?;
        let mut node = node.clone();
        node.delete()?;
        let subject = Subject::Node(name.clone());
        let message = self.given_up(&self.pools_on(name));
        let batch = batch.put(node).wait(subject.clone(), WaitFor::Gone);
        Ok(batch.tell(subject, EventName::Changed, Severity::Warning, message))
    }

    pub(crate) fn decide_purge_pool(
        &self,
        asked: &PendingRequest,
        name: &PoolName,
        known: &BTreeSet<VolumeId>,
    ) -> Result<Batch, Problem> {
        let Some(pool) = self.state.pool(name) else {
            return Ok(Batch::new().reply(asked.ticket, RequestOutcome::Unchanged));
        };
        super::admission::expect(pool, asked)?;
        if let Some(why) = self.why_pool_not_purged(name) {
            return Err(Problem::new(ProblemKind::InUse, why));
        }
        let batch = self.give_up_lost(&[name.clone()].into(), known)?;
        let mut pool = pool.clone();
        pool.delete()?;
        let subject = Subject::Pool(name.clone());
        let message = self.given_up(&[name.clone()].into());
        let batch = batch.put(pool).wait(subject.clone(), WaitFor::Gone);
        Ok(batch.tell(subject, EventName::Changed, Severity::Warning, message))
    }

    /// What goes with these pools that nothing else tells of.
    fn given_up(&self, pools: &BTreeSet<PoolName>) -> String {
        let aside = self.quarantined_in(pools);
        if aside.is_empty() {
            return "it is given up".to_owned();
        }
        let names: Vec<String> = aside.iter().map(ToString::to_string).collect();
        format!("it is given up, with copies in quarantine: {}", names.join(", "))
    }

    fn give_up_replica(&self, batch: Batch, id: model::ReplicaId) -> Result<Batch, Problem> {
        let Some(replica) = self.state.facts.replicas.get(&id) else { return Ok(batch) };
        if is_going(replica) {
            return Ok(batch);
        }
        let mut replica = replica.clone();
        let mut batch = batch;
        for target in self.state.targets_of(replica.spec().volume) {
            let target = batch.target(*target.id()).unwrap_or(target);
            let uses = target.spec().child(id).is_some();
            if uses && !is_going(target) && !target.spec().shutdown {
                let mut target = target.clone();
                let change = model::TargetChange::RemoveChild { replica: id };
                target.change(change, self.now)?;
                batch = batch.put(target);
            }
        }
        replica.delete()?;
        Ok(batch.put(replica))
    }

    /// One that cannot be given up yet, because a target that uses it is being made, holds up no
    /// other.
    fn give_up_if_possible(&self, batch: Batch, id: model::ReplicaId) -> Batch {
        match self.give_up_replica(batch.clone(), id) {
            Ok(more) => more,
            Err(problem) => {
                tracing::debug!(replica = %id, %problem, "a copy cannot be given up yet");
                batch
            }
        }
    }

    /// Copies in a pool that is given up; whether there are any left.
    pub(crate) fn give_up_copies(&mut self, pool: &PoolName) -> bool {
        let replicas = self.replicas_on(&[pool.clone()].into());
        if !replicas.is_empty() {
            self.look_again_soon(Subject::Pool(pool.clone()));
        }
        let mut batch = Batch::new();
        for id in replicas.iter().take(AT_ONCE / 4) {
            batch = self.give_up_if_possible(batch, *id);
        }
        if !batch.is_empty() {
            self.try_commit(batch);
        }
        !replicas.is_empty()
    }

    /// What has to go first does not tell what waits for it.
    fn look_again_soon(&mut self, subject: Subject) {
        self.wake(self.now.after(std::time::Duration::from_millis(200)), subject);
    }

    /// A node that is given up: its targets, copies and pools go, then its record.
    pub(crate) fn reconcile_node(&mut self, name: &NodeName) {
        let Some(node) = self.state.node(name).filter(|node| is_going(*node)).cloned() else {
            return;
        };
        if self.is_locked(&keys::of::<model::Node>(name)) {
            return;
        }
        let subject = Subject::Node(name.clone());
        self.look_again_soon(subject.clone());
        let targets = self.targets_on(name);
        let pools = self.pools_on(name);
        let replicas = self.replicas_on(&pools);
        let mut batch = Batch::new();
        for id in targets.iter().take(AT_ONCE / 2) {
            batch = mark(batch, self.state.facts.targets.get(id));
        }
        for id in replicas.iter().take(AT_ONCE / 4) {
            batch = self.give_up_if_possible(batch, *id);
        }
        if batch.is_empty() && replicas.is_empty() {
            for pool in &pools {
                batch = mark(batch, self.state.pool(pool));
            }
        }
        if batch.is_empty() && targets.is_empty() && pools.is_empty() {
            self.node_health.remove(name);
            let batch = Batch::new().drop(node).gone(subject.clone());
            let message = "it is forgotten";
            return self.try_commit(batch.tell(
                subject,
                EventName::Deleted,
                Severity::Info,
                message,
            ));
        }
        if !batch.is_empty() {
            self.try_commit(batch);
        }
    }
}

fn mark<S: Spec>(batch: Batch, object: Option<&Resource<S>>) -> Batch
where
    Entry: From<Resource<S>>,
{
    let Some(object) = object.filter(|object| !is_going(*object)) else { return batch };
    let mut object = object.clone();
    match object.delete() {
        Ok(()) => batch.put(object),
        Err(_) => batch,
    }
}
