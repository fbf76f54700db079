//! Snapshots, and what begins with them: restored volumes and clones.
//!
//! A snapshot is taken by the target of its volume, on all copies in sync at one moment:
//!
//! ```text
//!   served ──────────────────────────────────────────────────────► its target takes it
//!   not served, last owner ended cleanly or there was none ──► each copy in sync, one by one
//!   not served otherwise ──► a target is opened, without hosts ──► takes it, and is closed
//! ```
//!
//! A volume whose last owner ended cleanly has equal copies in sync, and whoever owned it before
//! that is shut out of all of them: it does not change, so its copies need not be asked at once.
//! Otherwise copies may differ, or somebody that nobody reaches may still write to them. The target
//! that is opened shuts out everybody else and makes copies equal before it takes anything.

use std::collections::{BTreeMap, BTreeSet};

use api::node::{PoolFilter, SnapshotRequest};
use model::{
    Consistency, EventName, Lifecycle, Problem, ProblemKind, Replica, ReplicaId, Severity,
    ShutdownState, Snapshot, SnapshotCopy, SnapshotId, SnapshotSpec, SnapshotState, SnapshotStatus,
    Source, Subject, Target, TargetId, Usage, Volume, VolumeChange, VolumeId, keys,
};
use planner::{SnapshotProposal, check_snapshot, place_target, place_volume};

use super::admission::{AdmissionContext, expect_free_name};
use super::batch::{Batch, WaitFor};
use super::ids::Ids;
use super::publish::{LOOK_AGAIN, OpenState, PATIENCE, made};
use super::replica::is_going;
use super::{Call, Controller, PendingRequest, RequestOutcome};

impl Controller {
    pub(crate) fn decide_snapshot(
        &self,
        context: &mut AdmissionContext<'_, '_>,
        asked: &PendingRequest,
        id: SnapshotId,
        spec: &SnapshotSpec,
    ) -> Result<Batch, Problem> {
        let subject = Subject::Snapshot(id);
        if let Some(snapshot) = self.state.facts.snapshots.get(&id) {
            snapshot.again(spec)?;
            return Ok(match snapshot.lifecycle() {
                Lifecycle::Creating {} => Batch::new().wait(subject, WaitFor::End),
                _ => Batch::new().reply(asked.ticket, RequestOutcome::Unchanged),
            });
        }
        let volume = self.known_volume(spec.volume, asked)?;
        expect_free_name(&id, spec, self.state.facts.snapshots.values())?;
        check_snapshot(context.view, SnapshotProposal { volume: spec.volume, snapshot: id })?;
        let batch = self.begin_snapshot(volume, id, spec.clone())?;
        Ok(batch.wait(subject, WaitFor::End))
    }

    /// A snapshot that there is not yet: what is left of an attempt that failed must go first, or
    /// it would pass for the new one.
    pub(crate) fn begin_snapshot(
        &self,
        volume: &Volume,
        id: SnapshotId,
        spec: SnapshotSpec,
    ) -> Result<Batch, Problem> {
        if let Some(earlier) = self.state.facts.snapshots.get(&id) {
            earlier.again(&spec)?;
            let detail = format!("there is a snapshot {id} already; use another id");
            return Err(Problem::new(ProblemKind::AlreadyExists, detail));
        }
        let mut volume = volume.clone();
        volume.begin(VolumeChange::CreateSnapshot { snapshot: id }, self.now)?;
        let snapshot = Snapshot::new(id, spec, self.now)?;
        Ok(Batch::new().put(volume).put(snapshot))
    }

    /// The operation of the volume ends with the making of its snapshot.
    pub(crate) fn continue_snapshot(&mut self, volume: Volume, id: SnapshotId) {
        let snapshot = self.state.facts.snapshots.get(&id);
        match snapshot.map(Snapshot::lifecycle) {
            Some(Lifecycle::Creating {}) => {}
            Some(Lifecycle::Created { .. }) => self.end(volume, Ok(()), Batch::new()),
            Some(_) | None => {
                let subject = Subject::Snapshot(id);
                let problem = self.failures.get(&subject).cloned();
                let problem = problem.unwrap_or_else(|| super::going(&subject));
                self.end(volume, Err(problem), Batch::new());
            }
        }
    }

    pub(crate) fn reconcile_snapshot(&mut self, id: SnapshotId) {
        let Some(snapshot) = self.state.facts.snapshots.get(&id).cloned() else { return };
        let subject = Subject::Snapshot(id);
        if self.is_locked(&keys::of::<Snapshot>(id)) || !self.is_due(&subject) {
            return;
        }
        match snapshot.lifecycle() {
            Lifecycle::Creating {} => self.take_snapshot(snapshot),
            Lifecycle::Created { .. } => {}
            Lifecycle::Deleting {} | Lifecycle::Deleted {} => self.drop_snapshot(snapshot),
        }
    }

    /// The copies that hold every acknowledged write of a volume.
    fn in_sync(&self, volume: VolumeId) -> BTreeSet<ReplicaId> {
        if let Some(record) = self.state.facts.records.get(&volume) {
            return record.set().in_sync().clone();
        }
        let exists = |it: &&Replica| matches!(it.lifecycle(), Lifecycle::Created { .. });
        let with_source = self.state.volume(volume).is_some_and(|it| it.spec().source.is_some());
        let right = |it: &&Replica| !with_source || it.spec().source.is_some();
        self.state.replicas_of(volume).filter(exists).filter(right).map(|it| *it.id()).collect()
    }

    fn take_snapshot(&mut self, snapshot: Snapshot) {
        let id = *snapshot.id();
        let subject = Subject::Snapshot(id);
        let volume = snapshot.spec().volume;
        if let Some(problem) = self.engine_object(&subject).permanent_problem().cloned() {
            return self.undo_snapshot(snapshot, problem);
        }
        if self.state.volume(volume).is_none_or(is_going) {
            let detail = format!("volume {volume} is gone");
            return self.undo_snapshot(snapshot, Problem::new(ProblemKind::NotFound, detail));
        }
        let group = snapshot.spec().group;
        let (taken_at, consistency) = (snapshot.created_at(), Consistency::Crash);
        let request = SnapshotRequest { group, taken_at, consistency };
        let taken = self.taken.get(&id).cloned().unwrap_or_default();
        if let Some(problem) = self.why_disputed(volume) {
            if self.dispute(volume).is_none() && self.why_isolated(volume).is_none() {
                // A listing may have been quicker than the news of a record: the store is asked.
                return self.wake(self.now.after(LOOK_AGAIN), subject);
            }
            return self.undo_snapshot(snapshot, problem);
        }
        if let Some(target) = self.target_of(volume) {
            if !taken.is_empty() {
                return self.finish_snapshot(snapshot, &taken);
            }
            let (target, node) = (*target.id(), target.spec().node.clone());
            if self.is_being_opened(target) {
                return self.await_target(snapshot, target);
            }
            if self.state.is_online(&node) {
                self.call(subject, node, Call::PutTargetSnapshot(target, id, request));
            } else {
                self.fail_softly(&subject, format!("node {node} of the target does not answer"));
            }
            return;
        }
        let Some(replica) = self.in_sync(volume).difference(&taken).next().copied() else {
            return self.finish_snapshot(snapshot, &taken);
        };
        if !self.is_surveyed() {
            return;
        }
        if !self.is_at_rest(volume) {
            return self.open_to_take(snapshot);
        }
        let pool = self.state.facts.replicas.get(&replica).map(|it| it.spec().pool.clone());
        let node = pool.and_then(|pool| self.state.pool(&pool).map(|it| it.spec().node.clone()));
        match node.filter(|node| self.state.is_online(node)) {
            Some(node) => self.call(subject, node, Call::PutSnapshot(replica, id, request)),
            None => self.fail_softly(&subject, format!("copy {replica} does not answer")),
        }
    }

    /// Whether the copies in sync of a volume are equal and nobody can write to them: it was never
    /// served, or its last owner ended cleanly, which had shut out all before it.
    fn is_at_rest(&self, volume: VolumeId) -> bool {
        let record = self.state.facts.records.get(&volume);
        record.is_none_or(|record| record.end() == ShutdownState::Clean)
            && self.state.targets_of(volume).next().is_none()
    }

    fn is_being_opened(&self, target: TargetId) -> bool {
        let target = self.state.facts.targets.get(&target);
        target.is_some_and(|target| matches!(target.lifecycle(), Lifecycle::Creating {}))
    }

    /// A target is opened to take the snapshot: it shuts out whoever may still write, and makes
    /// copies equal that a target that died has left different. It has no hosts, so it is closed
    /// when nothing is left to do.
    fn open_to_take(&mut self, snapshot: Snapshot) {
        let volume = snapshot.spec().volume;
        let is_near = |target: &Target| self.state.is_online(&target.spec().node);
        let engine_objects = self.state.targets_of(volume).any(is_near);
        if engine_objects && self.now.since(snapshot.created_at()) < PATIENCE {
            // Its node has room for another when it is gone, which takes a moment.
            let again = self.now.after(LOOK_AGAIN);
            return self.wake(again, Subject::Snapshot(*snapshot.id()));
        }
        let mut ids = self.ids;
        let opened = self.target_to_take(&mut ids, volume);
        self.ids = ids;
        match opened {
            Ok(batch) => self.try_commit(batch),
            Err(problem) => self.undo_snapshot(snapshot, problem),
        }
    }

    fn target_to_take(&self, ids: &mut Ids, volume: VolumeId) -> Result<Batch, Problem> {
        let view = self.view();
        let volume = self.known::<model::VolumeSpec>(&volume)?;
        let node = place_target(&view, volume, None)?;
        self.open_target(volume, ids.target()?, (node, BTreeMap::new()))
    }

    /// The target that is to take a snapshot is being opened.
    fn await_target(&mut self, snapshot: Snapshot, target: TargetId) {
        let subject = Subject::Snapshot(*snapshot.id());
        match self.opening(target, snapshot.created_at()) {
            OpenState::Locked => {}
            OpenState::Waits => self.wake(self.now.after(LOOK_AGAIN), subject),
            OpenState::Serves(target) => self.try_commit(made(target)),
            OpenState::Failed(target, problem) => {
                let batch = self.undo_target(target, None);
                self.undo_snapshot_with(snapshot, problem, batch);
            }
        }
    }

    /// As if a call had failed because nobody answers.
    fn fail_softly(&mut self, subject: &Subject, detail: String) {
        let now = self.now;
        self.engine_object(subject).fail(Problem::new(ProblemKind::NodeUnavailable, detail), now);
        self.enqueue(&subject.clone());
    }

    pub(crate) fn on_snapshot_taken(&mut self, id: SnapshotId, replicas: &BTreeSet<ReplicaId>) {
        self.taken.entry(id).or_default().extend(replicas);
    }

    pub(crate) fn is_making_snapshot(&self, id: SnapshotId) -> bool {
        let snapshot = self.state.facts.snapshots.get(&id);
        snapshot.is_some_and(|it| !matches!(it.lifecycle(), Lifecycle::Created { .. }))
    }

    fn finish_snapshot(&mut self, mut snapshot: Snapshot, taken: &BTreeSet<ReplicaId>) {
        let id = *snapshot.id();
        let subject = Subject::Snapshot(id);
        let volume = self.state.volume(snapshot.spec().volume);
        let size = volume.map_or(model::Size::ZERO, |volume| volume.spec().size);
        let mut copies = BTreeMap::new();
        for replica in taken.iter().filter_map(|id| self.state.facts.replicas.get(id)) {
            let usage = Usage { capacity: size, ..Usage::default() };
            let copy = SnapshotCopy { replica: *replica.id(), online: true, usage };
            copies.insert(replica.spec().pool.clone(), copy);
        }
        let (state, taken_at) = (SnapshotState::Ready, snapshot.created_at());
        let consistency = Consistency::Crash;
        snapshot.status = Some(SnapshotStatus { state, taken_at, size, consistency, copies });
        if snapshot.made().is_ok() {
            self.taken.remove(&id);
            let message = format!("taken of volume {}", snapshot.spec().volume);
            let batch =
                Batch::new().put(snapshot).end(subject.clone(), Ok(RequestOutcome::Created));
            self.try_commit(batch.tell(subject, EventName::Created, Severity::Info, message));
        }
    }

    fn undo_snapshot(&mut self, snapshot: Snapshot, problem: Problem) {
        self.undo_snapshot_with(snapshot, problem, Batch::new());
    }

    fn undo_snapshot_with(&mut self, mut snapshot: Snapshot, problem: Problem, batch: Batch) {
        let subject = Subject::Snapshot(*snapshot.id());
        if snapshot.delete().is_ok() {
            self.engine_object(&subject).refresh();
            let message = format!("it could not be taken: {problem}");
            self.failures.insert(subject.clone(), problem);
            let name = EventName::OperationFailed;
            let batch = batch.put(snapshot);
            self.try_commit(batch.tell(subject, name, Severity::Error, message));
        }
    }

    pub(crate) fn decide_delete_snapshot(
        &self,
        asked: &PendingRequest,
        id: SnapshotId,
    ) -> Result<Batch, Problem> {
        let Some(snapshot) = self.state.facts.snapshots.get(&id) else {
            return Ok(Batch::new().reply(asked.ticket, RequestOutcome::Unchanged));
        };
        super::admission::expect(snapshot, asked)?;
        let group = snapshot.spec().group.and_then(|group| self.state.groups.get(&group));
        if let Some(group) = group.filter(|group| !is_going(*group)) {
            let detail = format!("it is part of group {}; delete the group", group.id());
            return Err(Problem::new(ProblemKind::InUse, detail));
        }
        let mut snapshot = snapshot.clone();
        snapshot.delete()?;
        Ok(Batch::new().put(snapshot).wait(Subject::Snapshot(id), WaitFor::Gone))
    }

    /// Each copy is dropped. Those on nodes that do not answer, and in pools that are exported, go
    /// when they are back, and nobody waits.
    fn drop_snapshot(&mut self, snapshot: Snapshot) {
        let id = *snapshot.id();
        let subject = Subject::Snapshot(id);
        let mut waits = false;
        for (replica, name) in self.copies_left(&snapshot) {
            if let Some(node) = self.usable_on(&name) {
                let call = Call::DeleteSnapshot(replica, id, PoolFilter { pool: name });
                return self.call(subject, node, call);
            }
            self.awaiting.entry(name).or_default().insert(subject.clone());
            waits = true;
        }
        if waits {
            let failure = self.failures.get(&subject).cloned();
            let failure = failure.unwrap_or_else(|| super::going(&subject));
            self.answer(&subject, WaitFor::End, &Err(failure));
            self.dirty.extend(snapshot.spec().group.map(Subject::SnapshotGroup));
            return self.answer(&subject, WaitFor::Gone, &Ok(RequestOutcome::Gone));
        }
        self.dropped.remove(&id);
        self.taken.remove(&id);
        let batch = Batch::new().drop(snapshot).gone(subject.clone());
        self.try_commit(batch.tell(subject, EventName::Deleted, Severity::Info, "it is gone"));
    }

    /// What is still to be dropped of a snapshot that goes.
    fn copies_left(&self, snapshot: &Snapshot) -> BTreeMap<ReplicaId, model::PoolName> {
        let mut copies: BTreeMap<_, _> = if let Some(status) = &snapshot.status {
            status.copies.iter().map(|(pool, copy)| (copy.replica, pool.clone())).collect()
        } else {
            let replicas = self.state.replicas_of(snapshot.spec().volume);
            replicas.map(|it| (*it.id(), it.spec().pool.clone())).collect()
        };
        let dropped = self.dropped.get(snapshot.id());
        copies.retain(|id, pool| {
            let is_dropped = dropped.is_some_and(|dropped| dropped.contains(id));
            !is_dropped && self.state.pool(pool).is_some()
        });
        copies
    }

    /// Whether all that is left of a snapshot that goes lies where nobody answers.
    pub(crate) fn waits_for_absent(&self, snapshot: &Snapshot) -> bool {
        self.copies_left(snapshot).values().all(|pool| self.usable_on(pool).is_none())
    }

    pub(crate) fn on_snapshot_dropped(&mut self, id: SnapshotId, replica: ReplicaId) {
        // What was left of an earlier attempt may go while the next one is about to begin.
        if self.state.facts.snapshots.get(&id).is_some_and(is_going) {
            self.dropped.entry(id).or_default().insert(replica);
        }
        self.state.facts.orphan_snapshots.retain(|(_, orphan), found| {
            *orphan != id || found.label.as_ref().is_none_or(|label| label.replica != replica)
        });
    }

    /// A clone begins with a snapshot of its own, whose id follows from that of the clone.
    pub(crate) fn decide_clone(
        &self,
        context: &mut AdmissionContext<'_, '_>,
        volume: Volume,
        source: VolumeId,
    ) -> Result<Batch, Problem> {
        let id = *volume.id();
        let snapshot = SnapshotId::new(id.uuid())?;
        // Whether there is room is found out before anything is begun.
        place_volume(context.view, &mut context.budget, id, volume.spec())?;
        let Some(source) = self.state.volume(source) else {
            let detail = format!("there is no volume {source} to clone");
            return Err(Problem::new(ProblemKind::NotFound, detail));
        };
        let spec = SnapshotSpec::new(*source.id());
        let batch = self.begin_snapshot(source, snapshot, spec)?;
        Ok(batch.put(volume).wait(Subject::Volume(id), WaitFor::End))
    }

    /// The snapshot of a clone is taken: its copies can be placed.
    pub(crate) fn continue_clone(&mut self, volume: Volume) {
        let Ok(snapshot) = SnapshotId::new(volume.id().uuid()) else { return };
        let subject = Subject::Snapshot(snapshot);
        let taken = self.state.facts.snapshots.get(&snapshot);
        match taken.map(Snapshot::lifecycle) {
            Some(Lifecycle::Creating {}) => {
                self.wake(self.now.after(std::time::Duration::from_millis(100)), {
                    Subject::Volume(*volume.id())
                });
            }
            Some(Lifecycle::Created { .. }) => {
                let mut ids = self.ids;
                let placed = self.place_clone(&mut ids, &volume, snapshot);
                self.ids = ids;
                match placed {
                    Ok(batch) => self.try_commit(batch),
                    Err(problem) => self.undo_volume(volume, Vec::new(), problem),
                }
            }
            Some(_) | None => {
                let problem = self.failures.get(&subject).cloned();
                let problem = problem.unwrap_or_else(|| super::going(&subject));
                self.undo_volume(volume, Vec::new(), problem);
            }
        }
    }

    fn place_clone(
        &self,
        ids: &mut Ids,
        volume: &Volume,
        snapshot: SnapshotId,
    ) -> Result<Batch, Problem> {
        let view = self.view();
        let mut context = AdmissionContext::new(&view, ids);
        let mut spec = volume.spec().clone();
        spec.source = Some(Source::Snapshot { snapshot });
        let places = place_volume(&view, &mut context.budget, *volume.id(), &spec)?;
        let mut batch = Batch::new();
        for replica in self.new_replicas(&mut context, volume, places, Some(snapshot))? {
            batch = batch.put(replica);
        }
        Ok(batch)
    }

    /// The snapshot with which a clone began is not needed any more: copies keep what they need.
    pub(crate) fn drop_clone_source(&self, volume: VolumeId, batch: Batch) -> Batch {
        let snapshot = SnapshotId::new(volume.uuid()).ok();
        let snapshot = snapshot.and_then(|id| self.state.facts.snapshots.get(&id));
        let Some(snapshot) = snapshot.filter(|it| !is_going(*it)) else { return batch };
        let is_clones = self.state.volume(volume).is_some_and(|volume| {
            volume.spec().source == Some(Source::Volume { volume: snapshot.spec().volume })
        });
        let mut snapshot = snapshot.clone();
        if is_clones && snapshot.delete().is_ok() { batch.put(snapshot) } else { batch }
    }
}
