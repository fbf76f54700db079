//! Volumes of which the disks know more than the store: nothing is done by its records.
//!
//! ```text
//!   a listing or a record shows a conflict ──► Suspected ──► Asked ──► Certain: told, blocked
//!                                                 ▲            │ the record is another: look again
//!                                                 └────────────┘
//!   the conflict is gone, at any stage ──► forgotten
//! ```
//!
//! An engine writes a record, then the labels; a listing may come here before the news of the
//! record does. So the store is asked once whether its record is still the one that is known here,
//! after the labels were seen: then it is certain that the labels say more. Nothing is ordered for
//! the volume meanwhile either.
//!
//! After the start nothing that could destroy or serve anything is ordered before every node was
//! heard or is known to be away ([`Controller::is_surveyed`]): any of them may hold the newest
//! label.

use std::collections::BTreeSet;

use model::{
    EventName, Lifecycle, Liveness, PoolName, Problem, ProblemKind, Severity, Subject, Volume,
    VolumeId,
};
use planner::{Blocked, Conflict};

use super::batch::Batch;
use super::{Controller, Request};

/// A conflict, and how sure it is.
#[derive(Clone, Debug)]
pub(crate) struct Suspicion {
    pub(crate) conflict: Conflict,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Suspected,
    Asked,
    Certain,
}

impl Controller {
    /// Compares what disks say of a volume with its record.
    pub(crate) fn weigh(&mut self, id: VolumeId) {
        if self.state.unreadable.concerns(id) {
            // Nothing is done about it, and its record may be what cannot be read.
            return;
        }
        let volume = self.state.volume(id);
        let found = volume.and_then(|volume| self.conflict_of(volume));
        let before = self.conflicts.remove(&id);
        if self.state.volume(id).is_none() {
            self.newer_spec_backups.remove(&id);
        }
        let Some(conflict) = found else {
            if before.is_some() {
                self.enqueue(&Subject::Volume(id));
            }
            if before.is_some_and(|before| before.stage == Stage::Certain) {
                let (subject, name) = (Subject::Volume(id), EventName::StateChanged);
                let message = "the store knows again what the disks know";
                self.tell(subject, name, Severity::Info, message);
            }
            return;
        };
        let stage = match before {
            Some(before) if before.conflict == conflict => before.stage,
            Some(Suspicion { conflict: before, stage: Stage::Certain })
                if names_all(&before, &conflict) =>
            {
                Stage::Certain
            }
            // What was asked about other labels says nothing about these.
            _ => Stage::Suspected,
        };
        self.conflicts.insert(id, Suspicion { conflict, stage });
        if stage == Stage::Suspected && self.commit(Batch::new().confirm(id)).is_ok() {
            self.set_stage(id, Stage::Asked);
        }
    }

    fn conflict_of(&self, volume: &Volume) -> Option<Conflict> {
        let replicas = self.state.replicas_of(*volume.id());
        let unseen = self.unseen(volume);
        planner::conflict(&self.state.facts, volume, replicas, unseen)
    }

    fn set_stage(&mut self, id: VolumeId, stage: Stage) {
        if let Some(suspicion) = self.conflicts.get_mut(&id) {
            suspicion.stage = stage;
        }
    }

    /// The record of a volume is still the one that is known here; or it is not.
    pub(crate) fn confirmed(&mut self, id: VolumeId, is_as_known: bool) {
        let asked = self.conflicts.get(&id).is_some_and(|it| it.stage == Stage::Asked);
        if asked && is_as_known {
            self.set_stage(id, Stage::Certain);
            let message = self.conflicts.get(&id).map(|it| it.conflict.to_string());
            let (subject, name) = (Subject::Volume(id), EventName::StateChanged);
            self.tell(subject.clone(), name, Severity::Error, message.unwrap_or_default());
            self.enqueue(&subject);
        } else if asked {
            self.set_stage(id, Stage::Suspected);
            self.weigh(id);
        }
    }

    /// Whether nothing may be ordered for a volume, because the disks know more of it.
    pub(crate) fn is_disputed(&self, volume: VolumeId) -> bool {
        self.conflicts.contains_key(&volume) || self.state.unreadable.concerns(volume)
    }

    /// What is known for certain to be newer on disk than in the store.
    pub(crate) fn dispute(&self, volume: VolumeId) -> Option<&Conflict> {
        let suspicion = self.conflicts.get(&volume);
        suspicion.filter(|it| it.stage == Stage::Certain).map(|it| &it.conflict)
    }

    /// All of it, for those who plan and those who read.
    pub(crate) fn disputes(&self) -> impl Iterator<Item = Blocked> {
        let certain = self.conflicts.iter().filter(|(_, it)| it.stage == Stage::Certain);
        certain.map(|(id, it)| {
            let (subject, reason) = (Subject::Volume(*id), it.conflict.to_string());
            Blocked { subject, reason }
        })
    }

    /// Everything that nothing is planned for because of that.
    pub(crate) fn disputed_subjects(&self) -> Vec<Subject> {
        let mut subjects = self.isolated_subjects();
        for (id, suspicion) in &self.conflicts {
            let members = self.state.members(*id);
            subjects.push(Subject::Volume(*id));
            subjects.extend(members.replicas.into_iter().map(Subject::Replica));
            subjects.extend(members.targets.into_iter().map(Subject::Target));
            subjects.extend(suspicion.conflict.copies.keys().copied().map(Subject::Replica));
            subjects.extend(suspicion.conflict.targets.keys().copied().map(Subject::Target));
        }
        subjects
    }

    /// Refuses what would act upon records that the disks contradict.
    pub(crate) fn expect_agreement(&self, request: &Request) -> Result<(), Problem> {
        let volumes: Vec<VolumeId> = match request {
            Request::Publish { volume, .. }
            | Request::Republish { volume, .. }
            | Request::Resize { volume, .. }
            | Request::SetReplicas { volume, .. }
            | Request::MoveReplica { volume, .. }
            | Request::RemoveReplica { volume, .. }
            | Request::SetReplicaOffline { volume, .. }
            | Request::Attend(volume)
            | Request::ModifyVolume(volume, _) => vec![*volume],
            Request::CreateSnapshot(_, spec) => vec![spec.volume],
            Request::CreateGroup(_, spec) => spec.snapshots.keys().copied().collect(),
            Request::CreateVolume(_, spec) => match spec.source {
                Some(model::Source::Volume { volume }) => vec![volume],
                _ => Vec::new(),
            },
            Request::DeleteVolume(volume) => {
                return self.why_isolated(*volume).map_or(Ok(()), Err);
            }
            _ => Vec::new(),
        };
        if let Some(problem) = volumes.iter().find_map(|id| self.why_isolated(*id)) {
            return Err(problem);
        }
        match volumes.iter().find_map(|id| Some((id, self.conflicts.get(id)?))) {
            None => Ok(()),
            Some((id, suspicion)) => Err(disputed(*id, suspicion)),
        }
    }

    /// Why what lies in these pools is not to be given up: nobody knows which copies to believe.
    pub(crate) fn disputed_in(&self, pools: &BTreeSet<PoolName>) -> Option<String> {
        let replicas = self.replicas_on(pools).into_iter();
        let replicas = replicas.filter_map(|id| self.state.facts.replicas.get(&id));
        let mut volumes = replicas.map(|replica| replica.spec().volume);
        let volume = volumes.find(|volume| self.is_disputed(*volume))?;
        Some(format!(
            "volume {volume} has a copy there, and the store is older than its disks; settle that \
             with `holdfast recover` first"
        ))
    }

    /// Why nothing is done about a volume, if it is disputed.
    pub(crate) fn why_disputed(&self, id: VolumeId) -> Option<Problem> {
        let disputed = self.conflicts.get(&id).map(|suspicion| disputed(id, suspicion));
        self.why_isolated(id).or(disputed)
    }

    /// Whether every node was heard in this term, or is known to be away.
    pub(crate) fn is_surveyed(&self) -> bool {
        self.surveyed
    }

    /// A node was heard, or is known to be away: if it was the last, everything is looked at again.
    pub(crate) fn survey(&mut self) {
        if self.surveyed {
            return;
        }
        let unseen = |node: &model::Node| {
            let exists = matches!(node.lifecycle(), Lifecycle::Created { .. });
            let liveness = node.status.as_ref().map_or(Liveness::NOT_SEEN, |it| it.liveness);
            exists && liveness == Liveness::NOT_SEEN
        };
        self.surveyed = !self.state.facts.nodes.values().any(unseen);
        if self.surveyed {
            self.enqueue_everything();
        }
    }
}

/// Whether all copies and targets of a conflict were named by an earlier one.
fn names_all(before: &Conflict, now: &Conflict) -> bool {
    let copies = now.copies.keys().all(|copy| before.copies.contains_key(copy));
    let targets = now.targets.keys().all(|target| before.targets.contains_key(target));
    copies && targets && now.unseen.is_subset(&before.unseen)
}

fn disputed(id: VolumeId, suspicion: &Suspicion) -> Problem {
    match suspicion.stage {
        Stage::Certain => {
            let detail = format!("volume {id}: {}", suspicion.conflict);
            Problem::new(ProblemKind::StoreBehind, detail)
        }
        Stage::Suspected | Stage::Asked => {
            let detail = format!("volume {id} is compared with its disks; try again soon");
            Problem::new(ProblemKind::Busy, detail)
        }
    }
}
