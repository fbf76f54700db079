//! How full a volume is.

use std::path::Path;

use linux::mounts::MountTable;
use model::VolumeId;
use tonic::Status;

use super::{Devices, Inner, number_of};
use crate::proto::volume_usage::Unit;
use crate::proto::{NodeGetVolumeStatsResponse, VolumeUsage};

/// What is known of a path that a volume is visible at.
pub(super) enum Visible {
    /// A file system is mounted there.
    Mounted,
    /// The device itself is.
    Device,
}

impl<D: Devices> Inner<D> {
    pub(super) fn usage(
        &self,
        volume: VolumeId,
        at: &Path,
    ) -> Result<NodeGetVolumeStatsResponse, Status> {
        let kernel = &*self.kernel;
        let (visible, device) = self.visible(volume, at)?;
        let failed = |error: std::io::Error| Status::internal(format!("{}: {error}", at.display()));
        let usage = match visible {
            Visible::Device => {
                let total = signed(kernel.device_size(&device).map_err(failed)?);
                vec![VolumeUsage { total, unit: Unit::Bytes.into(), ..VolumeUsage::default() }]
            }
            Visible::Mounted => {
                let found = kernel.usage(at).map_err(failed)?;
                let used = found.total_inodes.saturating_sub(found.free_inodes);
                vec![
                    VolumeUsage {
                        available: signed(found.available_bytes),
                        total: signed(found.total_bytes),
                        used: signed(found.used_bytes),
                        unit: Unit::Bytes.into(),
                    },
                    VolumeUsage {
                        available: signed(found.free_inodes),
                        total: signed(found.total_inodes),
                        used: signed(used),
                        unit: Unit::Inodes.into(),
                    },
                ]
            }
        };
        let volume_condition = Some(self.condition(volume)?);
        Ok(NodeGetVolumeStatsResponse { usage, volume_condition })
    }

    /// How a volume is visible at a path, and its device; anything else there is none of ours.
    pub(super) fn visible(
        &self,
        volume: VolumeId,
        at: &Path,
    ) -> Result<(Visible, std::path::PathBuf), Status> {
        let missing = || {
            let message = format!("volume {volume} is not at {} on this node", at.display());
            Status::not_found(message)
        };
        let device = self.devices.device(volume)?.ok_or_else(missing)?;
        let number = number_of(&*self.kernel, &device)?;
        let table = MountTable::read(self.kernel.tree());
        if table.at(at).is_some_and(|there| there.device == number) {
            return Ok((Visible::Mounted, device));
        }
        match self.kernel.device_number(at) {
            Ok(found) if found == number => Ok((Visible::Device, device)),
            _ => Err(missing()),
        }
    }
}

pub(super) fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
