//! Repair: what the planner says is to be done, done.

use std::collections::BTreeSet;

use api::node::{DeleteReplica, JobControl, PoolFilter, RebuildRequest, Scrub, ScrubState};
use model::{
    Child, EventName, Generation, NodeName, PoolName, Problem, ProblemKind, Rebuild, RebuildPlan,
    RebuildState, Replica, ReplicaChange, ReplicaId, Severity, Subject, Target, TargetChange,
    TargetId, VersionedSpec, Volume, VolumeChange, VolumeId,
};
use planner::{Plan, Step, drain_status};

use super::batch::Batch;
use super::replica::{is_going, replica_spec};
use super::{Call, Controller, MoveRecord, PendingRequest, RequestOutcome, ScrubRecord, ids::Ids};

/// How many rebuilds that have ended are remembered.
const MOST_REBUILDS: usize = 1000;
/// How many of them are stored at once.
const REBUILDS_AT_ONCE: usize = 50;

/// A plan, and how far the drains are.
#[derive(Clone, Debug, PartialEq)]
pub struct MadePlan {
    plan: Plan,
    drains: Vec<(NodeName, model::DrainStatus)>,
}

impl Controller {
    /// Plans at once, whenever the last plan was made; what follows, [`Controller::run`] does.
    pub fn plan_now(&mut self, now: model::Timestamp) {
        self.now = self.now.max(now);
        self.prepare_plan();
        let made = self.make_plan();
        self.on_planned(made);
    }

    /// What is known besides the records is brought up to date before a plan.
    pub(crate) fn prepare_plan(&mut self) {
        let now = Some(self.now);
        (self.planned_at, self.planning_since, self.replan) = (now, now, false);
        if self.went_back() {
            self.weigh_all();
            self.end_caution();
        }
        self.refresh_missing();
        self.refresh_busy();
        self.refresh_reservations();
        self.forget_attended();
    }

    /// Looks at everything, and says what is to be done. It only reads, so that others may read
    /// meanwhile.
    pub fn make_plan(&self) -> MadePlan {
        let began = std::time::Instant::now();
        let view = self.view();
        let nodes = self.state.facts.nodes.values();
        let draining = nodes.filter(|node| node.spec().is_draining());
        let drains: Vec<_> =
            draining.map(|node| (node.id().clone(), drain_status(&view, node.id()))).collect();
        let plan = planner::plan(&view);
        self.work.count_plan(began.elapsed());
        MadePlan { plan, drains }
    }

    /// Begins what is to be done.
    pub(crate) fn on_planned(&mut self, MadePlan { plan, drains }: MadePlan) {
        self.planning_since = None;
        let suspended: BTreeSet<Subject> = self.disputed_subjects().into_iter().collect();
        let now = self.now;
        let suspects: BTreeSet<Subject> = plan.suspects.into_iter().collect();
        self.state.facts.suspects.retain(|subject, _| suspects.contains(subject));
        for subject in suspects {
            self.state.facts.suspects.entry(subject).or_insert(now);
        }
        let mut blocked = plan.blocked;
        blocked.retain(|blocked| !suspended.contains(&blocked.subject));
        blocked.extend(self.disputes().chain(self.isolated()).collect::<Vec<_>>());
        self.set_blocked(blocked);
        self.note_brake(plan.brake);
        self.forget_quarantined();
        self.note_drains(drains);
        for step in plan.steps {
            self.take(step);
        }
        self.ask_for_scrubs();
        self.advance_comparisons();
    }

    fn note_drains(&mut self, mut drains: Vec<(NodeName, model::DrainStatus)>) {
        let mut ended = Vec::new();
        for (name, node) in &mut self.state.facts.nodes {
            let at = drains.iter().position(|(drained, _)| drained == name);
            let drain = at.map(|at| drains.swap_remove(at).1);
            let Some(status) = &mut node.status else { continue };
            let was_full = status.drain.as_ref().is_some_and(|drain| !drain.is_drained());
            if was_full && drain.as_ref().is_some_and(model::DrainStatus::is_drained) {
                let stays = drain.as_ref().map(|drain| drain.blocked.join("; "));
                ended.push((name.clone(), stays.unwrap_or_default()));
            }
            status.drain = drain;
        }
        for (name, stays) in ended {
            let (severity, message) = match &*stays {
                "" => (Severity::Info, "it is empty".to_owned()),
                stays => (Severity::Warning, format!("no copy and no target is left; {stays}")),
            };
            self.tell(Subject::Node(name), EventName::DrainEnded, severity, message);
        }
    }

    fn take(&mut self, step: Step) {
        let subject = step.subject();
        if matches!(step, Step::MoveReplica { .. }) {
            self.state.facts.moved_at = Some(self.now);
        }
        let mut ids = self.ids;
        let taken = self.decide_step(&mut ids, step);
        self.ids = ids;
        match taken {
            Ok(Some(batch)) => self.try_commit(batch),
            Ok(None) => {}
            Err(problem) => {
                tracing::debug!(%subject, %problem, "a step cannot be taken");
                self.back_off_volume(subject);
            }
        }
    }

    fn decide_step(&mut self, ids: &mut Ids, step: Step) -> Result<Option<Batch>, Problem> {
        match step {
            Step::OpenPool { pool, .. } => self.send_again(&Subject::Pool(pool)),
            Step::OrderTarget { target, .. } => self.send_again(&Subject::Target(target)),
            Step::GoOnDeleting(subject) => self.enqueue(&subject),
            Step::Rebuild(plan) => self.begin_rebuild(ids, &plan)?,
            Step::DestroyReplica { pool, replica } => {
                if let Some(quarantine) = self.state.facts.quarantined.get(&replica) {
                    return Ok(Some(super::quarantine::give_up_quarantined(quarantine)));
                }
                self.destroy_replica(&pool, replica);
            }
            Step::Quarantine { replica } => return self.set_aside(replica).map(Some),
            Step::StopTarget { node, target } => {
                let call = Call::DeleteTarget(target, last());
                self.call_once(Subject::Target(target), node, call);
            }
            Step::DestroySnapshot { pool, snapshot } => {
                let orphan = self.state.facts.orphan_snapshots.get(&(pool.clone(), snapshot));
                let label = orphan.and_then(|orphan| orphan.label.as_ref());
                let node = self.state.pool(&pool).map(|pool| pool.spec().node.clone());
                if let (Some(replica), Some(node)) = (label.map(|label| label.replica), node) {
                    let call = Call::DeleteSnapshot(replica, snapshot, PoolFilter { pool });
                    self.call_once(Subject::Snapshot(snapshot), node, call);
                }
            }
            Step::Scrub { replica } => self.begin_scrub(replica),
            Step::Compare { volume } => self.begin_comparison(volume),
            Step::Finish(Subject::Volume(id)) => {
                let volume = self.volume(id)?.clone();
                if volume.lifecycle().operation().is_some() {
                    self.end(volume, Ok(()), Batch::new());
                } else {
                    self.end_move(id);
                }
            }
            Step::Finish(_) => {}
            Step::Delete(subject) => return self.delete(&subject).map(Some),
            step => return self.decide_volume_step(ids, step).map(Some),
        }
        Ok(None)
    }

    fn decide_volume_step(&self, ids: &mut Ids, step: Step) -> Result<Batch, Problem> {
        match step {
            Step::BeginFailover { volume, from, node, cause, .. } => {
                let volume = self.volume(volume)?;
                let from = self.target(from)?;
                self.begin_failover(ids, volume, from, (node, cause))
            }
            Step::Republish { volume, node, failover } => {
                let failover = self.state.facts.failovers.get(&failover).ok_or_else(passed)?;
                self.republish(ids, self.volume(volume)?, failover, &node)
            }
            Step::Reroute { volume, .. } => self.reroute(volume),
            Step::OpenToHeal { volume, node, .. } => {
                let target = ids.target()?;
                let change = VolumeChange::Publish { target, node: node.clone(), host: None };
                self.open(self.volume(volume)?, change, target, (node, [].into()))
            }
            Step::Close { volume, force, .. } => self.close(self.volume(volume)?, None, force),
            Step::AddReplica { volume, pool, .. } => self.add_replica(ids, volume, pool),
            Step::Attach { target, replica, .. } => self.attach(target, replica),
            Step::RemoveReplica { volume, replica, .. } => self.remove_replica(volume, replica),
            Step::MoveReplica { volume, from, pool, .. } => {
                self.begin_move(MoveRecord { volume, from, replica: ids.replica()?, pool })
            }
            Step::ResizeReplica { replica, size, .. } => {
                let mut replica = self.replica(replica)?.clone();
                replica.change(ReplicaChange::Resize { size }, self.now)?;
                Ok(Batch::new().put(replica))
            }
            Step::ResizeTarget { target, size, .. } => {
                let mut target = self.target(target)?.clone();
                target.change(TargetChange::Resize { size }, self.now)?;
                Ok(Batch::new().put(target))
            }
            _ => Err(passed()),
        }
    }

    fn volume(&self, id: VolumeId) -> Result<&Volume, Problem> {
        self.state.volume(id).ok_or_else(passed)
    }

    fn target(&self, id: TargetId) -> Result<&Target, Problem> {
        self.state.facts.targets.get(&id).ok_or_else(passed)
    }

    fn replica(&self, id: ReplicaId) -> Result<&Replica, Problem> {
        self.state.facts.replicas.get(&id).ok_or_else(passed)
    }

    /// The engine has forgotten an order, or did not do all of it.
    fn send_again(&mut self, subject: &Subject) {
        self.engine_object(subject).applied = None;
        self.enqueue(subject);
    }

    fn add_replica(
        &self,
        ids: &mut Ids,
        volume: VolumeId,
        pool: PoolName,
    ) -> Result<Batch, Problem> {
        let mut volume = self.volume(volume)?.clone();
        let moving = self.state.moving(*volume.id()).map(|moving| moving.replica);
        let id = match moving.filter(|id| !self.state.facts.replicas.contains_key(id)) {
            Some(asked) => asked,
            None => ids.replica()?,
        };
        let spec = replica_spec(&volume, pool.clone());
        let batch = Batch::new().put(Replica::new(id, spec, self.now)?);
        if !volume.lifecycle().is_idle() {
            return Ok(batch);
        }
        volume.change(VolumeChange::AddReplica { replica: id, pool }, self.now)?;
        Ok(batch.put(volume))
    }

    fn attach(&self, target: TargetId, replica: ReplicaId) -> Result<Batch, Problem> {
        let mut target = self.target(target)?.clone();
        let replica = self.replica(replica)?;
        let child: Child = self.child_of(replica, &target.spec().node).ok_or_else(passed)?;
        target.change(TargetChange::PutChild { child }, self.now)?;
        Ok(Batch::new().put(target))
    }

    /// Out of the target, out of the set, then out of its pool; see `reconcile_replica`.
    pub(crate) fn remove_replica(&self, volume: VolumeId, id: ReplicaId) -> Result<Batch, Problem> {
        let mut volume = self.volume(volume)?.clone();
        let record = self.state.facts.records.get(volume.id());
        if let Some(record) = record.filter(|record| record.set().replicas().contains(&id)) {
            // The last copy in sync is never given up, whoever asks.
            record.set().on(model::SetChange::Removed(id))?;
        }
        let mut replica = self.replica(id)?.clone();
        replica.delete()?;
        let mut batch = Batch::new().put(replica);
        for target in self.state.targets_of(*volume.id()) {
            let mut target = target.clone();
            let uses = target.spec().child(id).is_some();
            if uses && !is_going(&target) && !target.spec().shutdown {
                target.change(TargetChange::RemoveChild { replica: id }, self.now)?;
                batch = batch.put(target);
            }
        }
        if volume.lifecycle().is_idle() {
            volume.change(VolumeChange::RemoveReplica { replica: id }, self.now)?;
            batch = batch.put(volume);
        }
        Ok(batch)
    }

    fn delete(&self, subject: &Subject) -> Result<Batch, Problem> {
        let facts = &self.state.facts;
        Ok(match subject {
            Subject::Target(id) => {
                let mut target = self.target(*id)?.clone();
                target.delete()?;
                Batch::new().put(target)
            }
            Subject::Replica(id) => {
                let mut replica = self.replica(*id)?.clone();
                replica.delete()?;
                Batch::new().put(replica)
            }
            Subject::Snapshot(id) => {
                let mut snapshot = facts.snapshots.get(id).ok_or_else(passed)?.clone();
                snapshot.delete()?;
                Batch::new().put(snapshot)
            }
            Subject::Volume(id) => {
                let mut volume = self.volume(*id)?.clone();
                volume.delete()?;
                Batch::new().put(volume)
            }
            _ => return Err(passed()),
        })
    }

    fn call_once(&mut self, subject: Subject, node: NodeName, call: Call) {
        if self.is_due(&subject) && self.state.is_online(&node) {
            self.call(subject, node, call);
        }
    }

    fn destroy_replica(&mut self, pool: &PoolName, replica: ReplicaId) {
        let node = self.state.pool(pool).map(|pool| pool.spec().node.clone());
        if let Some(node) = node {
            let message = format!("a copy in pool {pool} that nobody needs is removed");
            let subject = Subject::Replica(replica);
            self.tell(subject.clone(), EventName::OrphanRemoved, Severity::Info, message);
            let order = DeleteReplica { generation: last(), pool: pool.clone() };
            self.call_once(subject, node, Call::DeleteReplica(replica, order));
        }
    }

    fn begin_rebuild(&mut self, ids: &mut Ids, plan: &RebuildPlan) -> Result<(), Problem> {
        let node = self.target(plan.target)?.spec().node.clone();
        // The target reads from all copies in sync, and knows what this one missed.
        let RebuildPlan { volume, target, replica, .. } = *plan;
        let (bytes_per_second, run) = (None, api::node::Run::Run);
        let spec = RebuildRequest { target, replica, bytes_per_second, run };
        let order = VersionedSpec { generation: Generation::FIRST, spec };
        let call = Call::PutRebuild(ids.rebuild()?, order);
        self.call_once(Subject::Volume(volume), node, call);
        Ok(())
    }

    /// How often the rebuilds of a copy failed since one succeeded.
    pub fn failed_rebuilds(&self, replica: ReplicaId) -> u32 {
        self.state.facts.failed_rebuilds.get(&replica).copied().unwrap_or(0)
    }

    /// How often the rebuilds of each copy failed since one succeeded, from what is remembered.
    pub(crate) fn count_failed_rebuilds(&mut self) {
        let mut ended: Vec<&Rebuild> = self.state.rebuilds.values().collect();
        ended.sort_by_key(|rebuild| (rebuild.ended_at(), rebuild.id));
        for rebuild in ended {
            count_ended(&mut self.state.facts, rebuild);
        }
        self.state
            .facts
            .failed_rebuilds
            .retain(|replica, _| self.state.facts.replicas.contains_key(replica));
    }

    /// Rebuilds that have ended are remembered, the latest of them. Engines tell of them for a long
    /// time: one that is older than all that are remembered was, and is no news.
    pub(crate) fn take_rebuilds(&mut self, node: &NodeName, rebuilds: Vec<Rebuild>) {
        let targets = &self.state.facts.targets;
        self.running.retain(|_, rebuild| {
            targets.get(&rebuild.target).is_some_and(|target| target.spec().node != *node)
        });
        let kept = self.state.rebuilds.values();
        let oldest = kept.map(age).min().filter(|_| self.state.rebuilds.len() >= MOST_REBUILDS);
        let is_old = |it: &Rebuild| it.state().is_ended() && oldest.is_some_and(|at| age(it) < at);
        let mut ended = Vec::new();
        for rebuild in rebuilds {
            if self.state.rebuilds.contains_key(&rebuild.id) || is_old(&rebuild) {
                continue;
            }
            // One that has ended is shown while it is being stored.
            self.running.insert(rebuild.id, rebuild.clone());
            if rebuild.state().is_ended() {
                ended.push(rebuild);
            }
        }
        ended.sort_by_key(age);
        if ended.len() > REBUILDS_AT_ONCE {
            ended.truncate(REBUILDS_AT_ONCE);
            self.look_at(node);
        }
        if !ended.is_empty() {
            self.remember_rebuilds(ended);
        }
    }

    /// Those that have ended are stored, as many of the oldest go, and people are told. If the
    /// store does not take it, the next listing shows them again.
    fn remember_rebuilds(&mut self, ended: Vec<Rebuild>) {
        let mut batch = Batch::new();
        let kept = self.state.rebuilds.len() + ended.len();
        if let Some(excess @ 1..) = kept.checked_sub(MOST_REBUILDS) {
            let mut oldest: Vec<&Rebuild> = self.state.rebuilds.values().collect();
            oldest.sort_by_key(|rebuild| age(rebuild));
            batch = oldest.into_iter().take(excess).cloned().fold(batch, Batch::drop);
        }
        for rebuild in ended {
            let (severity, message) = match rebuild.state() {
                RebuildState::Failed { problem } => {
                    (Severity::Warning, format!("copy {}: {problem}", rebuild.replica))
                }
                RebuildState::Completed {} => {
                    (Severity::Info, format!("copy {} is in sync", rebuild.replica))
                }
                _ => (Severity::Info, format!("copy {}: it was stopped", rebuild.replica)),
            };
            let subject = Subject::Volume(rebuild.volume);
            batch = batch.put(rebuild).tell(subject, EventName::RebuildEnded, severity, message);
        }
        self.replan |= self.commit(batch).is_ok();
    }

    pub(crate) fn decide_scrub(
        &self,
        asked: &PendingRequest,
        replica: ReplicaId,
    ) -> Result<Batch, Problem> {
        self.known::<model::ReplicaSpec>(&replica)?;
        Ok(Batch::new().reply(asked.ticket, RequestOutcome::Changed).scrub(replica))
    }

    pub(crate) fn begin_scrub(&mut self, replica: ReplicaId) {
        let Ok(found) = self.replica(replica) else { return };
        let node = self.state.pool(&found.spec().pool).map(|pool| pool.spec().node.clone());
        let generation = Generation::new(self.now.millis()).unwrap_or(Generation::FIRST);
        let order = VersionedSpec { generation, spec: JobControl::default() };
        if let Some(node) = node {
            self.call_once(Subject::Replica(replica), node, Call::PutScrub(replica, order));
        }
    }

    fn ask_for_scrubs(&mut self) {
        for replica in self.state.facts.scrubbing.clone() {
            let Ok(found) = self.replica(replica) else { continue };
            let node = self.state.pool(&found.spec().pool).map(|pool| pool.spec().node.clone());
            if let Some(node) = node {
                self.call_once(Subject::Replica(replica), node, Call::Scrub(replica));
            }
        }
    }

    pub(crate) fn on_scrub(&mut self, replica: ReplicaId, scrub: &Scrub) {
        match &scrub.state {
            ScrubState::Running {} | ScrubState::Paused {} => {
                self.state.facts.scrubbing.insert(replica);
                // The scrub waits a while for a target to repair what it found.
                if scrub.bad_blocks > scrub.repaired_blocks || scrub.bad_in_snapshots > 0 {
                    self.attend_damage(replica);
                }
                return;
            }
            ScrubState::Completed {} => {
                let at = scrub.ended_at.unwrap_or(self.now);
                let bad_blocks = scrub.bad_blocks;
                if self.state.scrubs.get(&replica).is_none_or(|last| last.at < at) {
                    self.try_commit(Batch::new().put(ScrubRecord { replica, at, bad_blocks }));
                }
            }
            ScrubState::Cancelled {} | ScrubState::Failed { .. } => {}
        }
        if self.state.facts.scrubbing.remove(&replica) {
            let left = scrub.bad_blocks.saturating_sub(scrub.repaired_blocks);
            let severity = match (scrub.bad_blocks, left.saturating_add(scrub.bad_in_snapshots)) {
                (_, 1..) => Severity::Error,
                (1.., 0) => Severity::Warning,
                (0, 0) => Severity::Info,
            };
            let message = scrub.summary();
            self.tell(Subject::Replica(replica), EventName::ScrubEnded, severity, message);
        }
    }
}

/// By which of two rebuilds that have ended the later one is found.
fn age(rebuild: &Rebuild) -> (Option<model::Timestamp>, model::RebuildId) {
    (rebuild.ended_at(), rebuild.id)
}

/// Counts a rebuild that has ended: how often those of a copy failed since one succeeded.
pub(super) fn count_ended(facts: &mut planner::Facts, rebuild: &Rebuild) {
    let failed = &mut facts.failed_rebuilds;
    match rebuild.state() {
        RebuildState::Failed { .. } => *failed.entry(rebuild.replica).or_default() += 1,
        RebuildState::Completed {} => drop(failed.remove(&rebuild.replica)),
        _ => {}
    }
}

/// Later than any order that could be under way.
pub(super) fn last() -> Generation {
    Generation::new(u64::MAX).unwrap_or(Generation::FIRST)
}

fn passed() -> Problem {
    Problem::new(ProblemKind::Busy, "what was planned for has passed")
}
