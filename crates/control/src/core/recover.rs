//! Reading a cluster back from its disks, when the store was lost.
//!
//! Every copy that was served carries a label: volume, size, the copies and which of them are in
//! sync. Of two labels of one volume the one with the higher stamp is right. What a label does not
//! say (labels, policies, snapshots' groups) begins as for a new volume.

use std::collections::BTreeMap;

use model::{
    EventName, Label, Problem, Replica, ReplicaId, ReplicaSpec, Severity, Subject, TargetRecord,
    Volume, VolumeId, VolumeSpec,
};

use super::batch::Batch;
use super::replica::replica_spec;
use super::wishes::Desk;
use super::{Asked, Core, Done};

/// So many volumes at once: a write has a limit. Asking again brings the next.
const AT_ONCE: usize = 10;

impl Core {
    pub(crate) fn decide_recover(
        &self,
        desk: &mut Desk<'_, '_>,
        asked: &Asked,
    ) -> Result<Batch, Problem> {
        let mut newest: BTreeMap<VolumeId, (&Label, BTreeMap<ReplicaId, &model::PoolName>)> =
            BTreeMap::new();
        for (id, stray) in &self.state.facts.stray_replicas {
            let Some(label) = stray.label.as_ref().filter(|label| label.replica == *id) else {
                continue;
            };
            if self.state.volume(label.volume).is_some() || self.state.pool(&stray.pool).is_none() {
                continue;
            }
            let entry = newest.entry(label.volume).or_insert((label, BTreeMap::new()));
            entry.1.insert(*id, &stray.pool);
            if label.stamp() > entry.0.stamp() {
                entry.0 = label;
            }
        }
        let mut batch = Batch::new();
        for (id, (label, found)) in newest.into_iter().take(AT_ONCE) {
            let believed = label.set.in_sync().iter().any(|replica| found.contains_key(replica));
            if believed {
                batch = self.recover(desk, batch, (id, label), &found)?;
            }
        }
        let done = if batch.is_empty() { Done::Unchanged } else { Done::Changed };
        Ok(batch.reply(asked.ticket, done))
    }

    fn recover(
        &self,
        desk: &mut Desk<'_, '_>,
        mut batch: Batch,
        (id, label): (VolumeId, &Label),
        found: &BTreeMap<ReplicaId, &model::PoolName>,
    ) -> Result<Batch, Problem> {
        let copies = u8::try_from(label.set.replicas().len()).unwrap_or(VolumeSpec::MOST_REPLICAS);
        let spec = VolumeSpec::new(label.size, copies.clamp(1, VolumeSpec::MOST_REPLICAS));
        let mut volume = Volume::new(id, spec, self.now)?;
        volume.made()?;
        let mut node = None;
        for (replica, pool) in found {
            if !label.set.replicas().contains(replica) {
                continue;
            }
            node = node.or_else(|| self.state.pool(pool).map(|pool| pool.spec().node.clone()));
            let spec = ReplicaSpec { size: label.size, ..replica_spec(&volume, (*pool).clone()) };
            let mut made = Replica::new(*replica, spec, self.now)?;
            made.made()?;
            batch = batch.put(made);
        }
        if let Some(node) = node {
            batch = batch.put(TargetRecord::recovered(label, desk.ids.target()?, node));
        }
        let subject = Subject::Volume(id);
        let message = format!("read back from {} copies on disks", found.len());
        let batch = batch.put(volume);
        Ok(batch.tell(subject, EventName::Created, Severity::Warning, message))
    }
}
