//! What a volume is wanted to be, as it is written on disk with each of its copies.
//!
//! The control plane writes it, beside the label that targets write: labels say which copies may be
//! believed, memos what the volume is called, how it is limited and where it may lie. Nothing is
//! decided by a memo while there is a store; when the store is lost, volumes are read back with it.

use alloc::boxed::Box;

use serde::{Deserialize, Serialize};

use crate::stored::{self, Record};
use crate::{Generation, Labels, Topology, Volume, VolumeId, VolumeSpec};

/// What is wanted of a volume, kept with a copy. Of two memos of one volume the one with the higher
/// generation is right.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Memo {
    /// Which volume.
    pub volume: VolumeId,
    /// Its generation when this was written.
    pub generation: Generation,
    /// What was wanted of it.
    pub spec: Box<VolumeSpec>,
}

impl Memo {
    /// So many bytes have room beside a copy.
    pub const MOST_BYTES: usize = 16 << 10;

    /// What is to be kept of a volume. What has no room is left out: first its labels, then the
    /// rules for its copies.
    pub fn of(volume: &Volume) -> Memo {
        let (id, generation) = (*volume.id(), volume.generation());
        let spec = Box::new(volume.spec().clone());
        let mut memo = Memo { volume: id, generation, spec };
        if !memo.fits() {
            memo.spec.labels = Labels::new();
        }
        if !memo.fits() {
            memo.spec.topology = Topology::default();
        }
        memo
    }

    /// Whether it has room.
    pub fn fits(&self) -> bool {
        stored::encode(self).is_ok_and(|text| text.len() <= Memo::MOST_BYTES)
    }
}

impl Record for Memo {
    const KIND: &'static str = "volumeMemo";
    const VERSION: u32 = 1;
}
