//! Snapshots of several volumes, of one moment: all or none.
//!
//! ```text
//!   hold every target ──► all hold ──► take each snapshot ──► all taken ──► release, made
//!            │                                  │
//!            └───── too late, refused, away ────┴──────────► release, undone
//! ```
//!
//! A target that is held tells its hosts that this path is inaccessible: they wait, and nothing new
//! is written. When all hold, whatever was acknowledged is in every snapshot, and what depends on
//! it and came later in none. Writes that were under way when a target was told may or may not be:
//! their hosts have no answer yet.
//!
//! That a target is held is written in its record, as everything is: after a crash the next control
//! plane goes on, or releases. While the volume takes its snapshot nothing else begins about it, so
//! no other target serves it meanwhile.

use std::collections::BTreeSet;
use std::time::Duration;

use model::{
    Ana, Consistency, EventName, Lifecycle, Problem, ProblemKind, Severity, Snapshot,
    SnapshotGroup, SnapshotGroupId, SnapshotGroupSpec, SnapshotGroupStatus, SnapshotId,
    SnapshotSpec, SnapshotState, Subject, Target, TargetChange, VolumeId, keys,
};
use planner::{SnapshotProposal, check_snapshot_group};

use super::admission::{AdmissionContext, expect_free_name};
use super::batch::{Batch, WaitFor};
use super::replica::is_going;
use super::{Controller, PendingRequest, RequestOutcome};

/// How long hosts may be kept waiting.
const PATIENCE: Duration = Duration::from_secs(10);
/// Of so many volumes at once snapshots are begun: a transaction has a limit.
const AT_ONCE: usize = 32;
/// How soon the targets are looked at again.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Whether its hosts are kept waiting.
fn is_held(target: &Target) -> bool {
    target.spec().ana == Ana::Inaccessible
}

impl Controller {
    pub(crate) fn decide_create_group(
        &self,
        context: &mut AdmissionContext<'_, '_>,
        asked: &PendingRequest,
        id: SnapshotGroupId,
        spec: &SnapshotGroupSpec,
    ) -> Result<Batch, Problem> {
        let subject = Subject::SnapshotGroup(id);
        if let Some(group) = self.state.groups.get(&id) {
            group.again(spec)?;
            return Ok(match group.lifecycle() {
                Lifecycle::Creating {} => Batch::new().wait(subject, WaitFor::End),
                _ => Batch::new().reply(asked.ticket, RequestOutcome::Unchanged),
            });
        }
        expect_free_name(&id, spec, self.state.groups.values())?;
        let asks: Vec<SnapshotProposal> = spec
            .snapshots
            .iter()
            .map(|(volume, snapshot)| SnapshotProposal { volume: *volume, snapshot: *snapshot })
            .collect();
        check_snapshot_group(context.view, &asks)?;
        for ask in &asks {
            if self.state.facts.snapshots.contains_key(&ask.snapshot) {
                let detail = format!("snapshot {} exists; use another id", ask.snapshot);
                return Err(Problem::new(ProblemKind::AlreadyExists, detail));
            }
        }
        if let Some(volume) = spec.snapshots.keys().find(|volume| self.is_grouped(**volume, id)) {
            let detail = format!("volume {volume} is part of another group that is being taken");
            return Err(Problem::new(ProblemKind::Busy, detail));
        }
        let group = SnapshotGroup::new(id, spec.clone(), self.now)?;
        Ok(Batch::new().put(group).wait(subject, WaitFor::End))
    }

    /// Whether another group takes a snapshot of the volume now.
    fn is_grouped(&self, volume: VolumeId, but: SnapshotGroupId) -> bool {
        let taken = self.state.groups.values().filter(|group| {
            *group.id() != but && matches!(group.lifecycle(), Lifecycle::Creating {})
        });
        taken.flat_map(|group| group.spec().snapshots.keys()).any(|other| *other == volume)
    }

    /// The targets of the volumes of a group.
    fn targets_of_group(&self, group: &SnapshotGroup) -> Vec<Target> {
        let volumes = group.spec().snapshots.keys();
        volumes.filter_map(|volume| self.target_of(*volume)).cloned().collect()
    }

    /// Holds every target; whether all are held.
    fn hold_all(&mut self, group: &SnapshotGroup) -> bool {
        let targets = self.targets_of_group(group);
        let mut batch = Batch::new();
        for target in targets.iter().filter(|target| !is_held(target)) {
            let mut target = target.clone();
            if target.change(TargetChange::SetAna { ana: Ana::Inaccessible }, self.now).is_ok() {
                batch = batch.put(target);
            }
        }
        if !batch.is_empty() {
            self.try_commit(batch);
            return false;
        }
        targets.iter().all(|target| {
            let engine_object = self.engine_objects.get(&Subject::Target(*target.id()));
            let knows = engine_object
                .is_some_and(|engine_object| engine_object.applied == Some(target.generation()));
            is_held(target) && knows && self.state.is_online(&target.spec().node)
        })
    }

    /// Lets hosts go on, in every target that is held for this group and no other.
    fn release(&self, group: &SnapshotGroup, mut batch: Batch) -> Batch {
        for mut target in self.targets_of_group(group).into_iter().filter(is_held) {
            let volume = target.spec().volume;
            let change = TargetChange::SetAna { ana: Ana::Optimized };
            if !self.is_grouped(volume, *group.id()) && target.change(change, self.now).is_ok() {
                batch = batch.put(target);
            }
        }
        batch
    }

    pub(crate) fn decide_delete_group(
        &self,
        asked: &PendingRequest,
        id: SnapshotGroupId,
    ) -> Result<Batch, Problem> {
        let Some(group) = self.state.groups.get(&id) else {
            return Ok(Batch::new().reply(asked.ticket, RequestOutcome::Unchanged));
        };
        super::admission::expect(group, asked)?;
        let mut group = group.clone();
        group.delete()?;
        Ok(Batch::new().put(group).wait(Subject::SnapshotGroup(id), WaitFor::Gone))
    }

    pub(crate) fn reconcile_group(&mut self, id: SnapshotGroupId) {
        let Some(group) = self.state.groups.get(&id).cloned() else { return };
        if self.is_locked(&keys::of::<SnapshotGroup>(id)) {
            return;
        }
        match group.lifecycle() {
            Lifecycle::Creating {} => self.take_group(group),
            Lifecycle::Created { .. } => {}
            Lifecycle::Deleting {} | Lifecycle::Deleted {} => self.drop_group(group),
        }
    }

    /// First all targets are held, then its snapshots are written down, some at a time, and each is
    /// taken. The targets are held until all are, so that it is one moment.
    fn take_group(&mut self, mut group: SnapshotGroup) {
        let id = *group.id();
        // Nobody says when a target has done what it was told.
        self.wake(self.now.after(LOOK_AGAIN), Subject::SnapshotGroup(id));
        if self.now.since(group.created_at()) >= PATIENCE {
            let detail = format!("not all of it was taken within {PATIENCE:?}; try again");
            return self.undo_group(group, Problem::new(ProblemKind::TimedOut, detail));
        }
        let wanted = group.spec().snapshots.clone();
        let known: Vec<&Snapshot> = self.parts(&group).collect();
        let missing = wanted.len() - known.len();
        let is_failed = self.failures.contains_key(&Subject::SnapshotGroup(id))
            || known.iter().any(|it| is_going(*it));
        if missing > 0 && !is_failed {
            let begun: BTreeSet<SnapshotId> = known.iter().map(|it| *it.id()).collect();
            if !self.hold_all(&group) {
                return;
            }
            let mut batch = Batch::new();
            let to_begin = wanted.into_iter().filter(|(_, snapshot)| !begun.contains(snapshot));
            for (volume, snapshot) in to_begin.take(AT_ONCE) {
                let spec = SnapshotSpec { group: Some(id), ..SnapshotSpec::new(volume) };
                let begun = match self.state.volume(volume) {
                    Some(volume) => self.begin_snapshot(volume, snapshot, spec),
                    None => Err(Problem::new(ProblemKind::NotFound, format!("no volume {volume}"))),
                };
                match begun {
                    Ok(begun) => batch = batch.and(begun),
                    Err(problem) => return self.undo_group(group, problem),
                }
            }
            return self.try_commit(batch);
        }
        if is_failed {
            let problem = known.iter().find_map(|snapshot| {
                self.failures.get(&Subject::Snapshot(*snapshot.id())).cloned()
            });
            let other =
                || Problem::new(ProblemKind::NodeUnavailable, "not every snapshot was taken");
            return self.undo_group(group, problem.unwrap_or_else(other));
        }
        if known.iter().all(|it| matches!(it.lifecycle(), Lifecycle::Created { .. }))
            && group.made().is_ok()
        {
            let (state, taken_at) = (SnapshotState::Ready, group.created_at());
            let consistency = Consistency::Crash;
            group.status = Some(SnapshotGroupStatus { state, taken_at, consistency });
            let subject = Subject::SnapshotGroup(id);
            let message = format!("taken of {} volumes", group.spec().snapshots.len());
            let batch = self.release(&group, Batch::new()).put(group);
            let batch = batch.end(subject.clone(), Ok(RequestOutcome::Created));
            self.try_commit(batch.tell(subject, EventName::Created, Severity::Info, message));
        }
    }

    /// Its snapshots: one that somebody else took with an id that it wanted is none of them.
    fn parts<'a>(&'a self, group: &'a SnapshotGroup) -> impl Iterator<Item = &'a Snapshot> {
        let ids = group.spec().snapshots.values();
        let known = ids.filter_map(|id| self.state.facts.snapshots.get(id));
        known.filter(|snapshot| snapshot.spec().group == Some(*group.id()))
    }

    fn undo_group(&mut self, mut group: SnapshotGroup, problem: Problem) {
        let subject = Subject::SnapshotGroup(*group.id());
        if group.delete().is_ok() {
            self.failures.insert(subject, problem);
            let batch = self.release(&group, Batch::new());
            self.try_commit(batch.put(group));
        }
    }

    fn drop_group(&mut self, group: SnapshotGroup) {
        let released = self.release(&group, Batch::new());
        if !released.is_empty() {
            self.wake(self.now.after(LOOK_AGAIN), Subject::SnapshotGroup(*group.id()));
            return self.try_commit(released);
        }
        let known: Vec<Snapshot> = self.parts(&group).cloned().collect();
        if known.is_empty() {
            let subject = Subject::SnapshotGroup(*group.id());
            return self.try_commit(Batch::new().drop(group).gone(subject));
        }
        let mut batch = Batch::new();
        for mut snapshot in known.into_iter().filter(|snapshot| !is_going(snapshot)) {
            if snapshot.delete().is_ok() {
                batch = batch.put(snapshot);
            }
        }
        if !batch.is_empty() {
            return self.try_commit(batch);
        }
        // What lies on nodes that do not answer goes when they do, and nobody waits for that.
        let subject = Subject::SnapshotGroup(*group.id());
        let failure = self.failures.get(&subject).cloned();
        let failure = failure.unwrap_or_else(|| super::going(&subject));
        self.answer(&subject, WaitFor::End, &Err(failure));
        if self.parts(&group).all(|snapshot| self.waits_for_absent(snapshot)) {
            self.answer(&subject, WaitFor::Gone, &Ok(RequestOutcome::Gone));
        }
    }
}
