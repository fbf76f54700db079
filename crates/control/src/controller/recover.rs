//! Reading a cluster back from its disks, when the store was lost.
//!
//! Engines say which pools they have open. Every copy that was served carries a label: volume,
//! size, the copies and which of them are in sync; every copy of a snapshot carries one too. Of two
//! labels of one volume the one with the higher stamp is right. A volume that an engine still
//! serves goes on being served: its target is taken over as it is.
//!
//! A volume is read back only if every copy that its newest label names was found: one that is
//! missing may carry a newer label, by which those at hand are stale. Whoever knows that it will
//! not come back says so; that copies were not there is remembered with the volume, and one that
//! comes back is set aside (`quarantine.rs`). It may come back with numbers that were given while
//! nobody here saw it. So what a recovery writes is numbered far above all that was found
//! ([`RecoveredNumbers`]): a branch that was abandoned never looks newer than the one that was
//! kept.
//!
//! Groups of snapshots are put together from the snapshots that name them, when these are known.
//!
//! What was wanted of a volume (labels, policies, limits) is in the newest spec backup that lies
//! with its copies. What lies nowhere (labels of nodes and pools, for example) begins as for
//! something new.

use std::collections::{BTreeMap, BTreeSet};

use api::node::{Observed, ObservedSnapshot};
use api::rest::{DiscoveredVolume, Issue, Recovery};
use model::{
    Epoch, EventName, Generation, NodeName, Pool, PoolName, PoolSpec, Problem, Replica, ReplicaId,
    ReplicaLabel, ReplicaSet, ReplicaSpec, SetRefused, Severity, Snapshot, SnapshotCopy,
    SnapshotGroup, SnapshotGroupId, SnapshotGroupSpec, SnapshotGroupStatus, SnapshotId,
    SnapshotSpec, SnapshotState, SnapshotStatus, SpecBackup, Subject, Target, TargetRecord,
    TargetSpec, Volume, VolumeId, VolumeSpec,
};

use super::admission::AdmissionContext;
use super::batch::Batch;
use super::{Controller, Inventory, PendingRequest, RequestOutcome};

/// So many records at once: a write has a limit. Asking again brings the next.
const AT_ONCE: usize = 90;

/// A volume, as its copies tell of it.
struct Copies<'f> {
    /// The newest.
    label: &'f ReplicaLabel,
    found: BTreeMap<ReplicaId, &'f Observed<ReplicaSpec>>,
    /// What serves it.
    target: Option<&'f Observed<TargetSpec>>,
}

/// Numbers of a recovered volume, far above all that its disks know.
pub(super) struct RecoveredNumbers {
    /// The last one that nobody used: its owner takes the next.
    pub(super) epoch: Epoch,
    generation: Generation,
}

impl RecoveredNumbers {
    /// Above these; absent: there is nothing so far above them.
    pub(super) fn of(epoch: Epoch, generation: Generation) -> Option<RecoveredNumbers> {
        Some(RecoveredNumbers { epoch: epoch.leap()?, generation: generation.leap()? })
    }

    /// A set of copies without those that are missing.
    pub(super) fn set(
        &self,
        set: &ReplicaSet,
        missing: &BTreeSet<ReplicaId>,
    ) -> Result<ReplicaSet, SetRefused> {
        Ok(set.abandon(missing, self.epoch)?.after(self.generation))
    }
}

/// Why there are no numbers above those of a volume.
pub(super) fn too_high(epoch: Epoch, generation: Generation) -> String {
    format!(
        "its disks say epoch {epoch} and replica set {generation}, and a recovery needs numbers \
         that are higher by 2^32: no owner ever counted so far, so look at what wrote these labels"
    )
}

/// What engines have and the store does not know, put together.
#[derive(Default)]
struct Findings<'f> {
    pools: BTreeMap<&'f PoolName, (&'f NodeName, &'f Observed<PoolSpec>)>,
    volumes: BTreeMap<VolumeId, Copies<'f>>,
    snapshots: BTreeMap<SnapshotId, Vec<(&'f PoolName, &'f ObservedSnapshot)>>,
    left: Vec<Issue>,
}

impl<'f> Findings<'f> {
    fn leave(&mut self, subject: Subject, message: impl Into<String>) {
        let (severity, message) = (Severity::Warning, message.into());
        self.left.push(Issue { subject, severity, message });
    }

    fn add_replica(&mut self, found: &'f Observed<ReplicaSpec>) {
        let label = found.status.label.as_ref().filter(|label| label.replica == found.id);
        let Some(label) = label else {
            let message = format!("pool {} holds it without a label", found.spec.pool);
            return self.leave(Subject::Replica(found.id), message);
        };
        let new = || Copies { label, found: BTreeMap::new(), target: None };
        let copies = self.volumes.entry(label.volume).or_insert_with(new);
        copies.found.insert(found.id, found);
        if label.stamp() > copies.label.stamp() {
            copies.label = label;
        }
    }

    /// Of several targets the last to own the volume serves it.
    fn add_target(&mut self, found: &'f Observed<TargetSpec>) {
        let Some(copies) = self.volumes.get_mut(&found.spec.volume) else { return };
        let newest = copies.target.map_or(copies.label.epoch, |it| it.spec.epoch.next());
        if found.spec.epoch >= newest && !found.spec.shutdown {
            copies.target = Some(found);
        }
    }
}

impl Copies<'_> {
    /// What was last wanted of the volume, as far as its copies say.
    fn spec_backup(&self, id: VolumeId) -> Option<&SpecBackup> {
        let spec_backups =
            self.found.values().filter_map(|found| found.status.spec_backup.as_ref());
        spec_backups
            .filter(|spec_backup| spec_backup.volume == id)
            .max_by_key(|spec_backup| spec_backup.generation)
    }

    /// The highest epoch that a copy remembers: a target may have come and gone without writing a
    /// label.
    fn epoch(&self) -> Epoch {
        let fences = self.found.values().filter_map(|found| found.status.fence);
        let labels = self.found.values().filter_map(|found| found.status.label.as_ref());
        fences.chain(labels.map(|label| label.epoch)).fold(self.label.epoch, Ord::max)
    }

    fn generation(&self) -> Generation {
        let labels = self.found.values().filter_map(|found| found.status.label.as_ref());
        labels.map(|it| it.set.generation()).fold(self.label.set.generation(), Ord::max)
    }

    fn missing(&self) -> BTreeSet<ReplicaId> {
        let members = self.label.set.replicas().iter();
        members.filter(|id| !self.found.contains_key(id)).copied().collect()
    }

    /// Why it cannot be read back, if it cannot.
    fn objection(&self, may_lack: bool) -> Option<String> {
        if !self.label.set.in_sync().iter().any(|id| self.found.contains_key(id)) {
            return Some(
                "none of its copies in sync was found; start the engines that have them".to_owned(),
            );
        }
        if self.target.is_none() && RecoveredNumbers::of(self.epoch(), self.generation()).is_none()
        {
            return Some(too_high(self.epoch(), self.generation()));
        }
        let missing = self.missing();
        let first = missing.first().filter(|_| !may_lack)?;
        Some(format!(
            "{} of its copies were not found, {first} for one, and may be newer; start the engines \
             that have them, or name the volume as incomplete if they will not come back",
            missing.len()
        ))
    }
}

impl Controller {
    /// Keeps of a listing what nobody here knows.
    pub(crate) fn note_unknown(&mut self, node: &NodeName, listing: &Inventory) {
        let facts = &mut self.state.facts;
        let strange = listing.pools.iter().filter(|it| !facts.pools.contains_key(&it.id));
        let strange: Vec<_> = strange.map(|it| (node.clone(), it.id.clone())).collect();
        facts.stray_pools.retain(|(of, _)| of != node);
        facts.stray_pools.extend(strange);
        let Inventory { pools, replicas, targets, snapshots, .. } = listing;
        let pools = pools.iter().filter(|it| !facts.pools.contains_key(&it.id));
        let replicas = replicas.iter().filter(|it| !facts.replicas.contains_key(&it.id));
        let targets = targets.iter().filter(|it| !facts.targets.contains_key(&it.id));
        let snapshots =
            snapshots.iter().filter(|it| !facts.snapshots.contains_key(&it.label.snapshot));
        let unknown = Inventory {
            pools: pools.cloned().collect(),
            replicas: replicas.cloned().collect(),
            targets: targets.cloned().collect(),
            snapshots: snapshots.cloned().collect(),
            rebuilds: Vec::new(),
        };
        if unknown == Inventory::default() {
            self.unknown.remove(node);
        } else {
            self.unknown.insert(node.clone(), unknown);
        }
    }

    /// What is found and not known yet.
    fn findings(&self) -> Findings<'_> {
        let facts = &self.state.facts;
        let mut findings = Findings::default();
        let nodes = self.unknown.iter().filter(|(node, _)| facts.nodes.contains_key(*node));
        let nodes: Vec<(&NodeName, &Inventory)> = nodes.collect();
        for (node, listing) in &nodes {
            for found in listing.pools.iter().filter(|it| !facts.pools.contains_key(&it.id)) {
                if let Some((other, _)) = findings.pools.get(&found.id).copied() {
                    let message = format!("node {node} has one too, and node {other}");
                    findings.leave(Subject::Pool(found.id.clone()), message);
                } else {
                    findings.pools.insert(&found.id, (node, found));
                }
            }
        }
        for (_, listing) in &nodes {
            let known = |it: &&Observed<ReplicaSpec>| {
                facts.replicas.contains_key(&it.id) || facts.quarantined.contains_key(&it.id)
            };
            for found in listing.replicas.iter().filter(|it| !known(it)) {
                findings.add_replica(found);
            }
        }
        findings.volumes.retain(|id, _| !facts.volumes.contains_key(id));
        for (_, listing) in &nodes {
            for found in &listing.targets {
                findings.add_target(found);
            }
            for found in &listing.snapshots {
                self.add_snapshot(&mut findings, found);
            }
        }
        findings
    }

    /// Also one of a copy that has moved elsewhere since: snapshots stay where they were taken.
    fn add_snapshot<'f>(&'f self, findings: &mut Findings<'f>, found: &'f ObservedSnapshot) {
        let id = found.label.snapshot;
        if !self.state.facts.snapshots.contains_key(&id) {
            findings.snapshots.entry(id).or_default().push((&found.pool, found));
        }
    }

    /// What would be read back, and what not.
    pub(crate) fn recovery(&self, incomplete: &BTreeSet<VolumeId>) -> Recovery {
        let Findings { pools, volumes, snapshots, left } = self.findings();
        let mut recovery = Recovery { left, ..Recovery::default() };
        recovery.left.extend(self.unlisted().map(|node| Issue {
            subject: Subject::Node(node.clone()),
            severity: Severity::Warning,
            message: "it does not answer, so nobody knows what it has; start its engine".to_owned(),
        }));
        recovery.pools = pools.into_keys().cloned().collect();
        for (id, copies) in volumes {
            if let Some(message) = copies.objection(incomplete.contains(&id)) {
                let (subject, severity) = (Subject::Volume(id), Severity::Error);
                recovery.left.push(Issue { subject, severity, message });
                continue;
            }
            let places = copies.found.iter().map(|(id, it)| (*id, it.spec.pool.clone()));
            let found = DiscoveredVolume {
                size: copies.label.size,
                copies: places.collect(),
                missing: copies.missing(),
                served_by: copies.target.map(|target| target.spec.node.clone()),
                newer_than_store: false,
            };
            recovery.volumes.insert(id, found);
        }
        self.add_adoptions(&mut recovery, incomplete);
        for (id, found) in snapshots {
            let volume = found.first().map(|(_, first)| first.label.volume);
            let known = |id| self.state.volume(id).is_some() || recovery.volumes.contains_key(&id);
            if volume.is_some_and(known) {
                recovery.snapshots.insert(id);
            } else {
                let message = "the volume it was taken of is not read back".to_owned();
                let (subject, severity) = (Subject::Snapshot(id), Severity::Warning);
                recovery.left.push(Issue { subject, severity, message });
            }
        }
        recovery
    }

    /// First pools, then what lies in them, then snapshots, then their groups; as much as one write
    /// may hold.
    pub(crate) fn decide_recover(
        &self,
        context: &mut AdmissionContext<'_, '_>,
        asked: &PendingRequest,
        incomplete: &BTreeSet<VolumeId>,
    ) -> Result<Batch, Problem> {
        let findings = self.findings();
        let mut batch = Batch::new();
        let is_full = |batch: &Batch| batch.puts().count() >= AT_ONCE;
        for (name, (node, found)) in findings.pools {
            if !is_full(&batch) {
                batch = self.recover_pool(batch, name, (node, found))?;
            }
        }
        let pools_first = !batch.is_empty();
        for (id, copies) in findings.volumes {
            let homeless = |it: &&Observed<ReplicaSpec>| self.state.pool(&it.spec.pool).is_none();
            let waits = pools_first || copies.found.values().any(homeless);
            if !waits && !is_full(&batch) && copies.objection(incomplete.contains(&id)).is_none() {
                batch = self.recover_volume(context, batch, id, &copies)?;
            }
        }
        if !pools_first {
            batch = self.adopt_all(context, batch, (incomplete, AT_ONCE))?;
        }
        for (id, found) in findings.snapshots {
            let volume = found.first().map(|(_, first)| first.label.volume);
            let lives = volume.is_some_and(|volume| self.state.volume(volume).is_some());
            if lives && !is_full(&batch) {
                batch = recover_snapshot(batch, id, &found)?;
            }
        }
        // A group is made once: all its snapshots must be known by then.
        if batch.is_empty() {
            for (id, snapshots) in self.groups_without_record() {
                if !is_full(&batch) {
                    batch = self.recover_group(batch, id, &snapshots)?;
                }
            }
        }
        let done =
            if batch.is_empty() { RequestOutcome::Unchanged } else { RequestOutcome::Changed };
        Ok(batch.reply(asked.ticket, done))
    }

    /// Groups that snapshots name and nobody knows.
    fn groups_without_record(&self) -> BTreeMap<SnapshotGroupId, Vec<&Snapshot>> {
        let mut groups: BTreeMap<SnapshotGroupId, Vec<&Snapshot>> = BTreeMap::new();
        for snapshot in self.state.facts.snapshots.values() {
            let group = snapshot.spec().group.filter(|id| !self.state.groups.contains_key(id));
            if let Some(group) = group {
                groups.entry(group).or_default().push(snapshot);
            }
        }
        groups
    }

    fn recover_group(
        &self,
        batch: Batch,
        id: SnapshotGroupId,
        snapshots: &[&Snapshot],
    ) -> Result<Batch, Problem> {
        let members = snapshots.iter().map(|it| (it.spec().volume, *it.id())).collect();
        let spec = SnapshotGroupSpec::new(members);
        let mut group = SnapshotGroup::found(id, spec, None, self.now)?;
        let first = snapshots.iter().find_map(|snapshot| snapshot.status.as_ref());
        group.status = first.map(|first| SnapshotGroupStatus {
            state: SnapshotState::Ready,
            taken_at: first.taken_at,
            consistency: first.consistency,
        });
        let message = format!("put together from {} snapshots", snapshots.len());
        let (subject, batch) = (Subject::SnapshotGroup(id), batch.put(group));
        Ok(batch.tell(subject, EventName::Created, Severity::Warning, message))
    }

    fn recover_pool(
        &self,
        batch: Batch,
        name: &PoolName,
        (node, found): (&NodeName, &Observed<PoolSpec>),
    ) -> Result<Batch, Problem> {
        let uuid = Some(found.status.uuid);
        let spec = PoolSpec { node: node.clone(), uuid, ..found.spec.clone() };
        let pool = Pool::found(name.clone(), spec, found.generation, self.now)?;
        let message = format!("found on node {node}");
        let batch = batch.put(pool);
        Ok(batch.tell(Subject::Pool(name.clone()), EventName::Created, Severity::Warning, message))
    }

    fn recover_volume(
        &self,
        context: &mut AdmissionContext<'_, '_>,
        mut batch: Batch,
        id: VolumeId,
        copies: &Copies<'_>,
    ) -> Result<Batch, Problem> {
        let label = &ReplicaLabel { epoch: copies.epoch(), ..copies.label.clone() };
        let members = label.set.replicas();
        let count = u8::try_from(members.len()).unwrap_or(VolumeSpec::MOST_REPLICAS);
        let count = count.clamp(1, VolumeSpec::MOST_REPLICAS);
        let spec_backup = copies.spec_backup(id);
        let mut spec = VolumeSpec::new(label.size, count);
        if let Some(spec_backup) = spec_backup {
            spec = VolumeSpec { size: label.size, ..VolumeSpec::clone(&spec_backup.spec) };
        }
        // A copy that no key opened does not say which one would.
        let known = copies.found.values().find_map(|found| found.spec.encryption.clone());
        spec.encryption = known.or(spec.encryption);
        let encryption = &spec.encryption.clone();
        let mut node = None;
        // Copies that the newest label does not count are left to those who clear away.
        for (replica, found) in copies.found.iter().filter(|(id, _)| members.contains(id)) {
            spec.thin = found.spec.thin;
            let home = self.state.pool(&found.spec.pool).map(|pool| pool.spec().node.clone());
            node = node.or(home);
            let found_spec = found.spec.clone();
            let encryption = encryption.clone();
            let spec = ReplicaSpec { size: label.size, volume: id, encryption, ..found_spec };
            let replica = Replica::found(*replica, spec, found.generation, self.now)?;
            batch = batch.put(replica);
        }
        if let Some(found) = copies.target {
            let (epoch, node) = (found.spec.epoch, found.spec.node.clone());
            batch = batch.put(TargetRecord::adopted(label, (found.id, epoch), node));
            let target = Target::found(found.id, found.spec.clone(), found.generation, self.now)?;
            batch = batch.put(target);
        } else if let (Some(node), Some(ahead)) =
            (node, RecoveredNumbers::of(copies.epoch(), copies.generation()))
        {
            let set = ahead.set(&label.set, &copies.missing())?;
            let label = ReplicaLabel { epoch: ahead.epoch, set, ..label.clone() };
            batch = batch.put(TargetRecord::recovered(&label, context.ids.target()?, node));
        }
        let volume = Volume::found(
            id,
            spec,
            spec_backup.map(|spec_backup| spec_backup.generation),
            self.now,
        )?;
        let message = format!("read back from {} copies on disks", copies.found.len());
        let batch = batch.put(volume);
        Ok(batch.tell(Subject::Volume(id), EventName::Created, Severity::Warning, message))
    }
}

pub(super) fn recover_snapshot(
    batch: Batch,
    id: SnapshotId,
    found: &[(&PoolName, &ObservedSnapshot)],
) -> Result<Batch, Problem> {
    let Some((_, first)) = found.first() else { return Ok(batch) };
    let label = &first.label;
    let copy = |it: &ObservedSnapshot| {
        let (replica, usage) = (it.label.replica, it.usage);
        SnapshotCopy { replica, online: true, usage }
    };
    let copies = found.iter().map(|(pool, it)| ((*pool).clone(), copy(it))).collect();
    let spec = SnapshotSpec { group: label.group, ..SnapshotSpec::new(label.volume) };
    let mut snapshot = Snapshot::found(id, spec, None, label.taken_at)?;
    snapshot.status = Some(SnapshotStatus {
        state: SnapshotState::Ready,
        taken_at: label.taken_at,
        size: label.size,
        consistency: label.consistency,
        copies,
    });
    let message = format!("read back from {} copies on disks", found.len());
    let batch = batch.put(snapshot);
    Ok(batch.tell(Subject::Snapshot(id), EventName::Created, Severity::Warning, message))
}
