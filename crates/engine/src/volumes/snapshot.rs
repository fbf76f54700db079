//! Snapshots of a volume: what every copy writes with one.

use model::{ReplicaId, SnapshotId, SnapshotLabel};

use super::request::SnapshotCommand;
use super::volume::{BLOCK, Volume};

impl Volume {
    /// What a copy writes with a snapshot.
    pub(super) fn snapshot_label(
        &mut self,
        snapshot: SnapshotId,
        replica: ReplicaId,
    ) -> Option<Vec<u8>> {
        let (_, taking, told) = self.taking.as_mut()?;
        told.insert(replica);
        let SnapshotCommand { group, taken_at, consistency, .. } = *taking;
        let size = block::Bytes(self.mirror.geometry().blocks().0.saturating_mul(BLOCK)).into();
        let volume = self.id();
        let label = SnapshotLabel { snapshot, volume, replica, group, taken_at, size, consistency };
        model::envelope::encode(&label).ok().map(String::into_bytes)
    }
}
