//! What a volume is wanted to be, as it is written on disk with each of its copies.
//!
//! The control plane writes it, beside the label that targets write: labels say which copies may be
//! believed, spec backups what the volume is called, how it is limited and where it may lie.
//! Nothing is decided by a spec backup while there is a store; when the store is lost, volumes are
//! read back with it.

use alloc::boxed::Box;

use serde::{Deserialize, Serialize};

use crate::envelope::{self, Versioned};
use crate::{Generation, Labels, Topology, Volume, VolumeId, VolumeSpec};

/// What is wanted of a volume, kept with a copy. Of two spec backups of one volume the one with the
/// higher generation is right.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SpecBackup {
    /// Which volume.
    pub volume: VolumeId,
    /// Its generation when this was written.
    pub generation: Generation,
    /// What was wanted of it.
    pub spec: Box<VolumeSpec>,
}

impl SpecBackup {
    /// So many bytes have room beside a copy.
    pub const MOST_BYTES: usize = 16 << 10;

    /// What is to be kept of a volume. What has no room is left out: first its labels, then the
    /// rules for its copies.
    pub fn of(volume: &Volume) -> SpecBackup {
        let (id, generation) = (*volume.id(), volume.generation());
        let spec = Box::new(volume.spec().clone());
        let mut spec_backup = SpecBackup { volume: id, generation, spec };
        if !spec_backup.fits() {
            spec_backup.spec.labels = Labels::new();
        }
        if !spec_backup.fits() {
            spec_backup.spec.topology = Topology::default();
        }
        spec_backup
    }

    /// Whether it has room.
    pub fn fits(&self) -> bool {
        envelope::encode(self).is_ok_and(|text| text.len() <= SpecBackup::MOST_BYTES)
    }
}

impl Versioned for SpecBackup {
    const KIND: &'static str = "volumeMemo";
    const VERSION: u32 = 1;
}
