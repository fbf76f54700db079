//! Adopting what the disks say of a volume that the store knows, when it is older than they are.
//!
//! Of all labels and the record the one with the highest stamp says which copies there are and
//! which may be believed. What the store says of copies, targets and size is replaced by that; the
//! next epoch is far above every one that a disk remembers, and so is the number of the set, so
//! that nothing on the disks contradicts the store afterwards, and nothing that comes back later
//! does. Copies that the newest label does not count are forgotten, not deleted: they are seen as
//! copies that nobody knows. So are those that were not found and that an operator does without.
//! Copies of another history, and those that are set aside, have no say (`quarantine.rs`).
//!
//! A target that serves the volume with the newest epoch goes on; it is taken over as it is.

use std::collections::{BTreeMap, BTreeSet};

use api::rest::{DiscoveredVolume, Issue, Recovery};
use model::{
    Epoch, EventName, Generation, NodeName, PoolName, Problem, Replica, ReplicaId, ReplicaLabel,
    ReplicaSet, ReplicaSpec, Severity, Size, Subject, Target, TargetId, TargetRecord, TargetSpec,
    TargetState, Volume, VolumeId, VolumeSpec,
};
use planner::has_a_say;

use super::Controller;
use super::admission::AdmissionContext;
use super::batch::Batch;
use super::recover::{RecoveredNumbers, too_high};
use super::replica::is_going;

/// A volume as it is to be from now on.
struct Adoption {
    /// As it is on the newest label.
    set: ReplicaSet,
    /// The highest that anybody remembers.
    epoch: Epoch,
    generation: Generation,
    size: Size,
    /// What was found of its copies.
    found: BTreeMap<ReplicaId, Member>,
    /// What serves it, with the generation that its engine has.
    target: Option<(TargetId, TargetSpec, Option<Generation>)>,
}

/// A copy that answers.
struct Member {
    spec: ReplicaSpec,
    /// What its engine, or the store, has.
    generation: Option<Generation>,
    label: Option<ReplicaLabel>,
    fence: Option<Epoch>,
}

impl Adoption {
    fn missing(&self) -> BTreeSet<ReplicaId> {
        let members = self.set.replicas().iter();
        members.filter(|id| !self.found.contains_key(id)).copied().collect()
    }

    fn copies(&self) -> BTreeMap<ReplicaId, PoolName> {
        let members = self.found.iter().filter(|(id, _)| self.set.replicas().contains(id));
        members.map(|(id, member)| (*id, member.spec.pool.clone())).collect()
    }

    /// Why it cannot be adopted, if it cannot.
    fn objection(&self, may_lack: bool) -> Option<String> {
        if !self.set.in_sync().iter().any(|id| self.found.contains_key(id)) {
            let message = "the disks know more of it than the store, but none of the copies that \
                           the newest label calls in sync was found; start the engines that have \
                           them";
            return Some(message.to_owned());
        }
        if self.target.is_none() && RecoveredNumbers::of(self.epoch, self.generation).is_none() {
            return Some(too_high(self.epoch, self.generation));
        }
        let missing = self.missing();
        let first = missing.first().filter(|_| !may_lack)?;
        Some(format!(
            "the disks know more of it than the store, but {} of its copies were not found, \
             {first} for one, and may know still more; start the engines that have them, or name \
             the volume as incomplete if they will not come back",
            missing.len()
        ))
    }
}

impl Controller {
    /// What answers of a volume: copies that are known, and copies that carry its label.
    fn found_copies(&self, id: VolumeId) -> BTreeMap<ReplicaId, Member> {
        let mut found = BTreeMap::new();
        for replica in self.state.replicas_of(id).filter(|replica| self.answers(replica)) {
            let status = replica.status.as_ref();
            let engine_object = self.engine_objects.get(&Subject::Replica(*replica.id()));
            let generation = engine_object
                .and_then(|engine_object| engine_object.applied)
                .max(Some(replica.generation()));
            let label = status.and_then(|status| status.label.clone());
            let label = label.filter(|it| it.volume == id && it.replica == *replica.id());
            let fence = status.and_then(|status| status.fence);
            let spec = replica.spec().clone();
            found.insert(*replica.id(), Member { spec, generation, label, fence });
        }
        let facts = &self.state.facts;
        let members = self.state.replicas_of(id).map(|replica| *replica.id()).collect();
        let nodes = self.unknown.iter().filter(|(node, _)| self.state.is_online(node));
        for orphan in nodes.flat_map(|(_, listing)| &listing.replicas) {
            let label = orphan.status.label.as_ref();
            let label = label.filter(|it| it.volume == id && it.replica == orphan.id);
            let Some(label) = label.filter(|it| has_a_say(facts, it, &members)).cloned() else {
                continue;
            };
            let (spec, generation) = (orphan.spec.clone(), orphan.generation);
            let fence = orphan.status.fence;
            let member = Member { spec, generation, label: Some(label), fence };
            found.entry(orphan.id).or_insert(member);
        }
        found
    }

    /// What serves a volume with this epoch or a newer one.
    fn found_target(
        &self,
        id: VolumeId,
        newest: Option<Epoch>,
    ) -> Option<(TargetId, TargetSpec, Option<Generation>)> {
        let serves = |state: TargetState| !matches!(state, TargetState::Shutdown { .. });
        let known = self.state.targets_of(id).filter(|target| {
            let status = target.status.as_ref();
            let online = self.state.is_online(&target.spec().node);
            !is_going(*target) && online && status.is_some_and(|status| serves(status.state))
        });
        let known = known.map(|target| {
            let engine_object = self.engine_objects.get(&Subject::Target(*target.id()));
            let generation = engine_object
                .and_then(|engine_object| engine_object.applied)
                .max(Some(target.generation()));
            (*target.id(), target.spec().clone(), generation)
        });
        let nodes = self.unknown.iter().filter(|(node, _)| self.state.is_online(node));
        let orphans = nodes.flat_map(|(_, listing)| &listing.targets);
        let orphans = orphans.filter(|it| it.spec.volume == id && serves(it.status.state));
        let orphans = orphans.map(|it| (it.id, it.spec.clone(), it.generation));
        let all = known.chain(orphans);
        let current = all.filter(|(_, spec, _)| !spec.shutdown && Some(spec.epoch) >= newest);
        current.max_by_key(|(_, spec, _)| spec.epoch)
    }

    fn adoption(&self, volume: &Volume) -> Option<Adoption> {
        let id = *volume.id();
        self.dispute(id)?;
        let record = self.state.facts.records.get(&id);
        let found = self.found_copies(id);
        let labels = || found.values().filter_map(|member| member.label.as_ref());
        let newest = labels().max_by_key(|label| label.stamp());
        let base = match (newest, record) {
            (Some(label), Some(record)) if record.stamp() >= label.stamp() => record.set().clone(),
            (Some(label), _) => label.set.clone(),
            (None, Some(record)) => record.set().clone(),
            (None, None) => {
                let right = self.state.replicas_of(id).filter(|it| self.is_in_sync(it));
                ReplicaSet::new(right.map(|replica| *replica.id()).collect()).ok()?
            }
        };
        let owned = newest.map(|label| label.epoch).max(record.map(TargetRecord::epoch));
        let target = self.found_target(id, owned);
        let fenced = found.values().filter_map(|member| member.fence);
        let epochs = labels().map(|label| label.epoch).chain(fenced).chain(owned);
        let epoch = epochs.max().unwrap_or(Epoch::FIRST);
        let generations = labels().map(|label| label.set.generation());
        let generation = generations.fold(base.generation(), Generation::max);
        let sizes = labels().map(|label| label.size);
        let size = sizes.fold(volume.spec().size, Size::max);
        Some(Adoption { set: base, epoch, generation, size, found, target })
    }

    /// What would be adopted, and what not.
    pub(crate) fn add_adoptions(&self, recovery: &mut Recovery, incomplete: &BTreeSet<VolumeId>) {
        for volume in self.state.facts.volumes.values() {
            let Some(adoption) = self.adoption(volume) else { continue };
            let id = *volume.id();
            if let Some(message) = adoption.objection(incomplete.contains(&id)) {
                let (subject, severity) = (Subject::Volume(id), Severity::Error);
                recovery.left.push(Issue { subject, severity, message });
                continue;
            }
            let found = DiscoveredVolume {
                size: adoption.size,
                copies: adoption.copies(),
                missing: adoption.missing(),
                served_by: adoption.target.as_ref().map(|(_, spec, _)| spec.node.clone()),
                newer_than_store: true,
            };
            recovery.volumes.insert(id, found);
        }
    }

    /// Adopts the volumes that can be, as many as fit.
    pub(crate) fn adopt_all(
        &self,
        context: &mut AdmissionContext<'_, '_>,
        mut batch: Batch,
        (incomplete, most): (&BTreeSet<VolumeId>, usize),
    ) -> Result<Batch, Problem> {
        for (id, volume) in &self.state.facts.volumes {
            if batch.puts().count() >= most {
                break;
            }
            let adoption = self.adoption(volume);
            let adoption = adoption.filter(|it| it.objection(incomplete.contains(id)).is_none());
            // Pools that nobody knows are read back first.
            let homeless = |member: &Member| self.state.pool(&member.spec.pool).is_none();
            if let Some(adoption) = adoption.filter(|it| !it.found.values().any(homeless)) {
                batch = self.adopt(context, batch, volume, adoption)?;
            }
        }
        Ok(batch)
    }

    fn adopt(
        &self,
        context: &mut AdmissionContext<'_, '_>,
        mut batch: Batch,
        volume: &Volume,
        adoption: Adoption,
    ) -> Result<Batch, Problem> {
        let id = *volume.id();
        let spec_backup = self.newer_spec_backups.get(&id);
        let spec_backup =
            spec_backup.filter(|spec_backup| spec_backup.generation > volume.generation());
        let spec =
            spec_backup.map_or_else(|| volume.spec().clone(), |it| VolumeSpec::clone(&it.spec));
        let spec = VolumeSpec { size: adoption.size, ..spec };
        let missing = adoption.missing();
        let Adoption { mut set, mut epoch, generation, size, found, target } = adoption;
        // One that serves goes on with its own numbers.
        if target.is_none()
            && let Some(ahead) = RecoveredNumbers::of(epoch, generation)
        {
            (epoch, set) = (ahead.epoch, ahead.set(&set, &missing)?);
        }
        for replica in self.state.replicas_of(id).filter(|it| !is_going(*it)) {
            if !set.replicas().contains(replica.id()) {
                batch = self.forget_replica(batch, replica.clone());
            }
        }
        let mut home: Option<NodeName> = None;
        let first = set.in_sync().iter().find(|id| found.contains_key(id)).copied();
        for (replica, member) in found.into_iter().filter(|(id, _)| set.replicas().contains(id)) {
            let pool = self.state.pool(&member.spec.pool);
            home = home.or_else(|| pool.map(|pool| pool.spec().node.clone()));
            let encryption = member.spec.encryption.clone().or(spec.encryption.clone());
            let wanted = ReplicaSpec { volume: id, size, encryption, ..member.spec };
            batch = batch.put(Replica::found(replica, wanted, member.generation, self.now)?);
        }
        for other in self.state.targets_of(id) {
            if target.as_ref().is_none_or(|(target, ..)| target != other.id()) {
                batch = batch.drop(other.clone());
            }
        }
        if let (Some(replica), Some(home)) = (first, home) {
            let label = ReplicaLabel { volume: id, replica, size, epoch, set };
            batch = match target {
                Some((target, spec, generation)) => {
                    let (epoch, node) = (spec.epoch, spec.node.clone());
                    let record = TargetRecord::adopted(&label, (target, epoch), node);
                    batch.put(record).put(Target::found(target, spec, generation, self.now)?)
                }
                None => batch.put(TargetRecord::recovered(&label, context.ids.target()?, home)),
            };
        }
        let batch = self.drop_move(id, self.drop_failovers(id, batch));
        let generation =
            spec_backup.map(|spec_backup| spec_backup.generation).max(Some(volume.generation()));
        let batch = batch.put(Volume::found(id, spec, generation, self.now)?);
        let (subject, name) = (Subject::Volume(id), EventName::Changed);
        let message = "adopted from the newest label on its disks, which the store did not know";
        Ok(batch.tell(subject, name, Severity::Warning, message))
    }
}
