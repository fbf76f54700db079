//! Records that this release cannot read: damaged, or with something of a newer release in them.
//!
//! One of them does not stop the control plane. Nothing is written in its place, and nothing is
//! done about any volume that it may concern: the volume itself, and every volume with a part whose
//! record it is, or that lies in a pool or on a node whose record it is. What serves goes on to
//! serve. The status names each of them.

use std::collections::{BTreeMap, BTreeSet};

use model::envelope::Versioned as _;
use model::{
    NodeName, PoolName, Problem, ProblemKind, Quarantine, ReplicaId, Spec as _, Subject,
    TargetRecord, VolumeId, keys,
};
use planner::Blocked;
use serde_json::Value;

use super::batch::Batch;
use super::state::State;
use super::{Controller, MoveRecord};

/// The records that could not be read.
#[derive(Debug, Default)]
pub(crate) struct UnreadableRecords {
    /// Why, by key.
    why: BTreeMap<String, String>,
    /// What they are about, as far as the keys say.
    subjects: BTreeMap<Subject, String>,
    /// The volumes they concern, each with the key of one of them.
    volumes: BTreeMap<VolumeId, String>,
}

impl UnreadableRecords {
    /// Whether the record of this key is one of them.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.why.contains_key(key)
    }

    /// Whether one of them concerns this volume.
    pub(crate) fn concerns(&self, volume: VolumeId) -> bool {
        self.volumes.contains_key(&volume)
    }

    /// One more.
    pub(crate) fn note(&mut self, key: String, bytes: &[u8], why: String) {
        tracing::error!(key, why, "a record cannot be read; what it concerns is left alone");
        if let Some(volume) = volume_in(&key, bytes) {
            self.volumes.insert(volume, key.clone());
        }
        if let Some(subject) = subject_of(&key) {
            self.subjects.insert(subject, key.clone());
        }
        self.why.insert(key, why);
    }

    fn problem(&self, key: &str) -> Problem {
        let why = self.why.get(key).map_or("", String::as_str);
        let detail = format!("the record {key} of the store cannot be read: {why}");
        Problem::new(ProblemKind::Internal, detail)
    }
}

/// The volume that a record is about, if its key or what can be parsed of it says so.
fn volume_in(key: &str, bytes: &[u8]) -> Option<VolumeId> {
    let (kind, id) = keys::parse(key)?;
    if [model::VolumeSpec::KIND, TargetRecord::KIND, MoveRecord::KIND].contains(&kind) {
        return id.parse().ok();
    }
    let value: Value = serde_json::from_slice(bytes).ok()?;
    let record = value.get("record")?;
    let volume = record.get("volume").or_else(|| record.get("spec")?.get("volume"))?;
    volume.as_str()?.parse().ok()
}

fn subject_of(key: &str) -> Option<Subject> {
    let (kind, id) = keys::parse(key)?;
    Some(match kind {
        model::NodeSpec::KIND => Subject::Node(id.parse().ok()?),
        model::HostSpec::KIND => Subject::Host(id.parse().ok()?),
        model::PoolSpec::KIND => Subject::Pool(id.parse().ok()?),
        model::VolumeSpec::KIND => Subject::Volume(id.parse().ok()?),
        model::ReplicaSpec::KIND | Quarantine::KIND => Subject::Replica(id.parse().ok()?),
        model::TargetSpec::KIND => Subject::Target(id.parse().ok()?),
        model::SnapshotSpec::KIND => Subject::Snapshot(id.parse().ok()?),
        model::SnapshotGroupSpec::KIND => Subject::SnapshotGroup(id.parse().ok()?),
        model::WebhookSpec::KIND => Subject::Webhook(id.parse().ok()?),
        TargetRecord::KIND | MoveRecord::KIND => Subject::Volume(id.parse().ok()?),
        _ => return None,
    })
}

impl State {
    /// After all that can be read was: volumes with something in a pool or on a node whose record
    /// cannot be read are concerned too.
    pub(crate) fn isolate(&mut self) {
        let mut concerned = Vec::new();
        for (subject, key) in &self.unreadable.subjects {
            let (pools, targets) = match subject {
                Subject::Pool(pool) => ([pool.clone()].into(), Vec::new()),
                Subject::Node(node) => (self.pools_on(node), self.targets_on(node)),
                _ => continue,
            };
            let replicas = self.replicas_in(&pools).into_iter();
            let replicas = replicas.filter_map(|id| self.facts.replicas.get(&id));
            let targets = targets.into_iter().filter_map(|id| self.facts.targets.get(&id));
            let volumes =
                replicas.map(|it| it.spec().volume).chain(targets.map(|it| it.spec().volume));
            concerned.extend(volumes.map(|volume| (volume, key.clone())));
        }
        self.unreadable.volumes.extend(concerned);
    }

    /// Whether nobody can say to which node what an engine shows belongs.
    fn is_unreadable_place(&self, pool: &PoolName) -> bool {
        let node: Option<&NodeName> = self.pool(pool).map(|pool| &pool.spec().node);
        let subjects = &self.unreadable.subjects;
        subjects.contains_key(&Subject::Pool(pool.clone()))
            || node.is_some_and(|node| subjects.contains_key(&Subject::Node(node.clone())))
    }
}

impl Controller {
    /// Why a batch cannot be written: a record would take the place of one that cannot be read.
    pub(crate) fn why_unreadable(&self, batch: &Batch) -> Option<Problem> {
        let unreadable = &self.state.unreadable;
        batch.keys().find(|key| unreadable.has(key)).map(|key| unreadable.problem(key))
    }

    /// Why nothing is done about a volume: one of its records cannot be read.
    pub(crate) fn why_isolated(&self, volume: VolumeId) -> Option<Problem> {
        let unreadable = &self.state.unreadable;
        unreadable.volumes.get(&volume).map(|key| unreadable.problem(key))
    }

    /// What nothing is planned for, because a record that may be about it cannot be read.
    pub(crate) fn isolated_subjects(&self) -> Vec<Subject> {
        let unreadable = &self.state.unreadable;
        let mut subjects: Vec<Subject> = unreadable.subjects.keys().cloned().collect();
        for volume in unreadable.volumes.keys() {
            let members = self.state.members(*volume);
            subjects.push(Subject::Volume(*volume));
            subjects.extend(members.replicas.into_iter().map(Subject::Replica));
            subjects.extend(members.targets.into_iter().map(Subject::Target));
            subjects.extend(members.snapshots.into_iter().map(Subject::Snapshot));
        }
        if !unreadable.why.is_empty() {
            subjects.extend(self.isolated_strays().into_iter().map(Subject::Replica));
        }
        subjects
    }

    /// Copies without a record that may belong to a volume that is left alone.
    fn isolated_strays(&self) -> BTreeSet<ReplicaId> {
        let orphans = self.state.facts.orphan_replicas.iter();
        let isolated = orphans.filter(|(_, orphan)| {
            let volume = orphan.label.as_ref().map(|label| label.volume);
            volume.is_none_or(|volume| self.state.unreadable.concerns(volume))
                || self.state.is_unreadable_place(&orphan.pool)
        });
        isolated.map(|(id, _)| *id).collect()
    }

    /// Each of them, for the status.
    pub(crate) fn isolated(&self) -> impl Iterator<Item = Blocked> {
        let unreadable = &self.state.unreadable;
        let volumes = unreadable.volumes.iter().map(|(id, key)| (Subject::Volume(*id), key));
        let subjects = unreadable.subjects.iter().map(|(subject, key)| (subject.clone(), key));
        let all: BTreeMap<Subject, &String> = subjects.chain(volumes).collect();
        all.into_iter().map(|(subject, key)| {
            let problem = unreadable.problem(key);
            let reason = format!("it is left alone: {}", problem.detail);
            Blocked { subject, reason }
        })
    }
}
