//! Partitions of ours that no volume claims: found, and removed only when told to.
//!
//! A resource that was lost makes good data look like this. So nothing is removed by itself, and
//! each partition is looked at once more, against a fresh list of volumes, before it goes.

use std::sync::Arc;

use linux::{Kernel, gpt};

use crate::cluster::{Cluster, ClusterError};
use crate::names::{LABEL, UNPREPARED_LABEL};
use crate::observe;
use crate::reconcile::Volume;

/// A partition that no volume claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unclaimed {
    /// The drive it is on.
    pub drive: String,
    /// Its UUID.
    pub uuid: String,
    /// Its size.
    pub bytes: u64,
    /// Why it cannot be removed now.
    pub in_use: Option<String>,
}

/// Partitions with our label on the drives of this machine that none of these volumes claims.
pub fn unclaimed(kernel: &dyn Kernel, volumes: &[Volume]) -> Vec<Unclaimed> {
    let mut found = Vec::new();
    for drive in observe::drives(kernel) {
        let partitions = drive.layout.iter().flat_map(|layout| &layout.partitions);
        for partition in partitions {
            let is_ours = partition.label == LABEL || partition.label == UNPREPARED_LABEL;
            let is_claimed = volumes.iter().any(|volume| {
                volume.spec.request(&partition.uuid).is_some()
                    || volume.status.partition(&partition.uuid).is_some()
            });
            if !is_ours || is_claimed {
                continue;
            }
            let device = gpt::device(&drive.path(), partition.number);
            let name = device.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let holders = kernel.tree().count(&format!("/sys/class/block/{name}/holders"));
            let in_use = (holders > 0).then(|| {
                format!("something holds {}: lsblk {}", device.display(), device.display())
            });
            found.push(Unclaimed {
                drive: drive.name.clone(),
                uuid: partition.uuid.clone(),
                bytes: partition.bytes,
                in_use,
            });
        }
    }
    found
}

/// Why a partition was not removed.
#[derive(Debug, thiserror::Error)]
pub enum CleanupError {
    /// The volumes cannot be listed: then nothing is known to be unclaimed.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// It is claimed now, or gone.
    #[error("partition {0} is not unclaimed any more; nothing was done")]
    Changed(String),
    /// It is in use.
    #[error("partition {0} stays: {1}")]
    InUse(String, String),
    /// The disk was not changed.
    #[error(transparent)]
    System(#[from] linux::SystemError),
}

/// Removes one partition, after looking once more.
pub async fn remove(
    kernel: &Arc<dyn Kernel>,
    cluster: &Cluster,
    one: &Unclaimed,
) -> Result<(), CleanupError> {
    let volumes = cluster.volumes().await?;
    let now = unclaimed(&**kernel, &volumes).into_iter().find(|it| it.uuid == one.uuid);
    let now = now.ok_or_else(|| CleanupError::Changed(one.uuid.clone()))?;
    if let Some(reason) = now.in_use {
        return Err(CleanupError::InUse(now.uuid, reason));
    }
    let disk = std::path::PathBuf::from(format!("/dev/{}", now.drive));
    Ok(gpt::remove(&**kernel, &disk, &now.uuid, &[LABEL, UNPREPARED_LABEL])?)
}
