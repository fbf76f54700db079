//! Copies that are set aside: recorded, made a snapshot of, destroyed in the end, forgotten.
//!
//! What is to be done with one is in its record ([`Quarantine`]), so the next control plane goes on
//! from there. The copy itself is not touched: it has no spec, so no order about it is ever sent
//! but those here.

use std::collections::BTreeSet;

use api::node::{DeleteReplica, ObservedSnapshot, SnapshotRequest};
use model::{
    Consistency, EventName, NodeName, PoolName, PoolState, Problem, ProblemKind, Quarantine,
    QuarantineCause, Replica, ReplicaId, ReplicaLabel, Severity, SnapshotId, Subject, Timestamp,
    Usage, keys,
};
use planner::{Standing, standing};

use super::batch::{Batch, WaitFor};
use super::recover::recover_snapshot;
use super::{Call, CallId, Controller, PendingRequest, RequestOutcome};

/// So many are forgotten in one write.
const AT_ONCE: usize = 50;

impl Controller {
    /// Copies that are set aside, by id.
    pub fn quarantined(&self) -> impl Iterator<Item = &Quarantine> {
        self.state.facts.quarantined.values()
    }

    /// When a copy that is set aside may be destroyed without being asked for; absent: never.
    pub(crate) fn kept_until(&self, quarantine: &Quarantine) -> Option<Timestamp> {
        let until = quarantine.since.after(self.settings.quarantine);
        (quarantine.cause == QuarantineCause::Degraded).then_some(until)
    }

    /// The room that a copy takes that has no record, if its node says so now.
    pub(crate) fn usage_of_unknown(&self, node: &NodeName, id: ReplicaId) -> Option<Usage> {
        let listing = self.unknown.get(node).filter(|_| self.state.is_online(node))?;
        let found = listing.replicas.iter().find(|found| found.id == id)?;
        Some(found.status.usage)
    }

    /// Whether nothing is lost with a copy on its way out.
    pub(crate) fn is_superseded(&self, replica: &Replica) -> bool {
        let label = replica.status.as_ref().and_then(|status| status.label.as_ref());
        // One without a label was never served.
        label.is_none_or(|label| {
            standing(&self.state.facts, *replica.id(), label) == Standing::Superseded
        })
    }

    /// A copy is not destroyed but kept as it is: one without a record, or one on its way out.
    pub(crate) fn set_aside(&self, id: ReplicaId) -> Result<Batch, Problem> {
        let facts = &self.state.facts;
        let known = facts.replicas.get(&id);
        let (pool, label): (&PoolName, Option<&ReplicaLabel>) =
            match (known, facts.orphan_replicas.get(&id)) {
                (Some(replica), _) if !super::replica::is_going(replica) => return Err(passed()),
                (Some(replica), _) => {
                    let status = replica.status.as_ref();
                    (&replica.spec().pool, status.and_then(|status| status.label.as_ref()))
                }
                (None, Some(orphan)) => (&orphan.pool, orphan.label.as_ref()),
                (None, None) => return Err(passed()),
            };
        let label = label.ok_or_else(passed)?;
        let Standing::Unproven(cause) = standing(facts, id, label) else { return Err(passed()) };
        let quarantine = Quarantine::new(label, pool.clone(), cause, self.now);
        let subject = Subject::Replica(id);
        let message = words(&quarantine);
        let mut batch = Batch::new().put(quarantine);
        if let Some(replica) = known {
            batch = self.forget_replica(batch, replica.clone()).gone(subject.clone());
        }
        Ok(batch.tell(subject, EventName::Quarantined, Severity::Warning, message))
    }

    pub(crate) fn reconcile_quarantine(&mut self, id: ReplicaId) {
        let Some(quarantine) = self.state.facts.quarantined.get(&id).cloned() else { return };
        let subject = Subject::Replica(id);
        if self.is_locked(&keys::of::<Quarantine>(id)) || !self.is_due(&subject) {
            return;
        }
        let engine_object = self.engine_object(&subject).clone();
        if engine_object.gone && quarantine.discard {
            let message = format!("destroyed in pool {}", quarantine.pool);
            let batch = Batch::new().drop(quarantine).gone(subject.clone());
            return self.try_commit(batch.tell(
                subject,
                EventName::Deleted,
                Severity::Info,
                message,
            ));
        }
        let Some(node) = self.usable_on(&quarantine.pool) else {
            let why =
                self.permanent_failure(&quarantine.pool).filter(|_| quarantine.rescue.is_some());
            return why.into_iter().for_each(|why| self.call_off_rescue(quarantine.clone(), why));
        };
        if let Some(snapshot) = quarantine.rescue {
            if let Some(problem) = engine_object.permanent_problem().cloned() {
                return self.call_off_rescue(quarantine, problem);
            }
            let (taken_at, consistency) = (quarantine.since, Consistency::Crash);
            let request = SnapshotRequest { group: None, taken_at, consistency };
            self.call(subject, node, Call::PutSnapshot(id, snapshot, request));
        } else if quarantine.discard {
            let order =
                DeleteReplica { generation: super::apply_plan::last(), pool: quarantine.pool };
            self.call(subject, node, Call::DeleteReplica(id, order));
        }
    }

    fn call_off_rescue(&mut self, quarantine: Quarantine, problem: Problem) {
        let subject = Subject::Replica(quarantine.replica);
        self.engine_object(&subject).refresh();
        self.engine_object(&subject).problem = None;
        let message = format!("no snapshot was made of it: {problem}");
        let batch = Batch::new().put(Quarantine { rescue: None, ..quarantine });
        let batch = batch.end(subject.clone(), Err(problem));
        self.try_commit(batch.tell(subject, EventName::OperationFailed, Severity::Error, message));
    }

    /// Whether a snapshot was made of a copy that is set aside; then it is known from now on.
    pub(crate) fn on_rescued(&mut self, id: ReplicaId, found: &ObservedSnapshot) -> bool {
        let quarantine = self.state.facts.quarantined.get(&id);
        let rescued = quarantine.filter(|it| it.rescue == Some(found.label.snapshot)).cloned();
        let Some(quarantine) = rescued else { return false };
        let pool = quarantine.pool.clone();
        let batch = Batch::new().put(Quarantine { rescue: None, ..quarantine });
        match recover_snapshot(batch, found.label.snapshot, &[(&pool, found)]) {
            Ok(batch) => {
                self.try_commit(batch.end(Subject::Replica(id), Ok(RequestOutcome::Created)));
            }
            Err(problem) => tracing::warn!(replica = %id, %problem, "a snapshot is not recorded"),
        }
        true
    }

    /// A snapshot of a copy that is set aside: whatever it holds can be looked at and restored, and
    /// the volume goes on as it is.
    pub(crate) fn decide_rescue(
        &self,
        asked: &PendingRequest,
        id: ReplicaId,
        snapshot: SnapshotId,
    ) -> Result<Batch, Problem> {
        if let Some(have) = self.state.facts.snapshots.get(&snapshot) {
            let mut copies = have.status.iter().flat_map(|status| status.copies.values());
            if copies.any(|copy| copy.replica == id) {
                return Ok(Batch::new().reply(asked.ticket, RequestOutcome::Unchanged));
            }
            let detail = format!("snapshot {snapshot} is another one; choose another id");
            return Err(Problem::new(ProblemKind::AlreadyExists, detail));
        }
        let quarantine = self.set_aside_with(id)?;
        let node = self.state.pool(&quarantine.pool).map(|pool| pool.spec().node.clone());
        if self.usable_on(&quarantine.pool).is_none() {
            let pool = &quarantine.pool;
            let detail = match node {
                Some(node) => format!("pool {pool} is not in use on node {node}; start its engine"),
                None => format!("there is no pool {pool} any more"),
            };
            return Err(Problem::new(ProblemKind::NodeUnavailable, detail));
        }
        let subject = Subject::Replica(id);
        match quarantine.rescue {
            Some(other) if other != snapshot => {
                let detail = format!("snapshot {other} is being made of it; try again soon");
                Err(Problem::new(ProblemKind::Busy, detail))
            }
            Some(_) => Ok(Batch::new().wait(subject, WaitFor::End)),
            None if quarantine.discard => {
                let detail = format!("replica {id} is being destroyed");
                Err(Problem::new(ProblemKind::Deleting, detail))
            }
            None => {
                let quarantine = Quarantine { rescue: Some(snapshot), ..quarantine.clone() };
                Ok(Batch::new().put(quarantine).wait(subject, WaitFor::End))
            }
        }
    }

    /// An operator knows what it holds and wants it gone. If its node is away it goes when that
    /// is back.
    pub(crate) fn decide_discard(
        &self,
        asked: &PendingRequest,
        id: ReplicaId,
    ) -> Result<Batch, Problem> {
        let Some(quarantine) = self.state.facts.quarantined.get(&id) else {
            return Ok(Batch::new().reply(asked.ticket, RequestOutcome::Unchanged));
        };
        if quarantine.rescue.is_some() {
            let detail = format!("a snapshot of replica {id} is being made; try again soon");
            return Err(Problem::new(ProblemKind::Busy, detail));
        }
        if quarantine.discard {
            return Ok(Batch::new().reply(asked.ticket, RequestOutcome::Changed));
        }
        let message =
            format!("an operator gives it up; it is destroyed in pool {}", quarantine.pool);
        let batch = Batch::new().put(Quarantine { discard: true, ..quarantine.clone() });
        let batch = batch.reply(asked.ticket, RequestOutcome::Changed);
        Ok(batch.tell(Subject::Replica(id), EventName::Changed, Severity::Warning, message))
    }

    fn set_aside_with(&self, id: ReplicaId) -> Result<&Quarantine, Problem> {
        self.state.facts.quarantined.get(&id).ok_or_else(|| {
            let detail = format!(
                "replica {id} is not in quarantine; `holdfast quarantine list` shows those that are"
            );
            Problem::new(ProblemKind::NotFound, detail)
        })
    }

    /// Copies that are set aside in these pools.
    pub(crate) fn quarantined_in(&self, pools: &BTreeSet<PoolName>) -> BTreeSet<ReplicaId> {
        let here = self.quarantined().filter(|it| pools.contains(&it.pool));
        here.map(|it| it.replica).collect()
    }

    /// What a node says of copies that are set aside: one that is not in its pool any more is
    /// forgotten. Of a pool that is not open nothing is known.
    pub(crate) fn see_quarantined(
        &mut self,
        pools: &BTreeSet<PoolName>,
        call: CallId,
        found: &BTreeSet<ReplicaId>,
    ) {
        for id in self.quarantined_in(pools) {
            let subject = Subject::Replica(id);
            if self.is_newer(&subject, call) || self.is_locked(&keys::of::<Quarantine>(id)) {
                continue;
            }
            if found.contains(&id) {
                self.engine_object(&subject).gone = false;
                continue;
            }
            let Some(quarantine) = self.state.facts.quarantined.get(&id).cloned() else { continue };
            let status = self.state.pool(&quarantine.pool).and_then(|pool| pool.status.as_ref());
            if status.is_some_and(|status| status.state == PoolState::Online) {
                let message = format!("pool {} does not have it any more", quarantine.pool);
                let batch = Batch::new().drop(quarantine).gone(subject.clone());
                let severity = Severity::Warning;
                self.try_commit(batch.tell(subject, EventName::Deleted, severity, message));
            }
        }
    }

    /// What was set aside in pools that nobody knows any more. If such a pool comes back, what is
    /// in it is looked at anew.
    pub(crate) fn forget_quarantined(&mut self) {
        let homeless = |it: &&Quarantine| self.state.pool(&it.pool).is_none();
        let lost: Vec<Quarantine> = self.quarantined().filter(homeless).cloned().collect();
        let mut batch = Batch::new();
        for quarantine in lost.into_iter().take(AT_ONCE) {
            let subject = Subject::Replica(quarantine.replica);
            let message = format!("its pool {} was given up, and it with it", quarantine.pool);
            batch = batch.drop(quarantine).gone(subject.clone());
            batch = batch.tell(subject, EventName::Deleted, Severity::Warning, message);
        }
        if !batch.is_empty() {
            self.try_commit(batch);
        }
    }
}

/// A copy that is set aside and whose time is over goes.
pub(super) fn give_up_quarantined(quarantine: &Quarantine) -> Batch {
    let subject = Subject::Replica(quarantine.replica);
    let message = format!(
        "it was set aside in pool {} long enough, and volume {} has all its copies; it is \
         destroyed",
        quarantine.pool, quarantine.volume
    );
    let batch = Batch::new().put(Quarantine { discard: true, ..quarantine.clone() });
    batch.tell(subject, EventName::OrphanRemoved, Severity::Info, message)
}

/// What was set aside, why, and what can be done with it.
fn words(quarantine: &Quarantine) -> String {
    let Quarantine { replica, volume, pool, .. } = quarantine;
    let why = match quarantine.cause {
        QuarantineCause::Newer => {
            "it may hold writes that no other copy has, and is kept until you decide"
        }
        QuarantineCause::Degraded => "the volume does not have all its copies in sync",
    };
    format!(
        "a copy of volume {volume} in pool {pool} is set aside: {why}; `holdfast quarantine \
         restore {replica}` makes a snapshot of it, `holdfast quarantine delete {replica}` \
         destroys it"
    )
}

fn passed() -> Problem {
    Problem::new(ProblemKind::Busy, "what was planned for has passed")
}
