//! Becoming the consumer of a volume, and ceasing to be.

use super::{View, Volume};

/// Why a volume cannot be used here now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClaimRefused {
    /// It is being deleted.
    #[error("the volume is being deleted")]
    Deleting,
    /// Another node uses it, and is alive.
    #[error("node {0} uses the volume; it is free when its last pod there is gone")]
    InUse(String),
}

/// The volume with this node as its consumer; nothing: it is already.
///
/// Each claim has an epoch of its own, also one of the same node after it was booted again: what
/// its former connections had sent is then as foreign as that of another node.
pub fn claim(view: &View, volume: &Volume) -> Result<Option<Volume>, ClaimRefused> {
    if volume.deleting {
        return Err(ClaimRefused::Deleting);
    }
    match volume.status.node_name.as_deref() {
        Some(node) if node == view.node && volume.status.boot_id == view.boot_id => {
            return Ok(None);
        }
        Some(node) if node == view.node => {}
        Some(node) => {
            let mut drives = view.drives.iter().filter(|drive| drive.spec.node_id == node);
            if drives.any(|drive| drive.is_healthy(view.now)) {
                return Err(ClaimRefused::InUse(node.to_owned()));
            }
        }
        None => {}
    }
    let mut claimed = volume.clone();
    claimed.status.node_name = Some(view.node.clone());
    claimed.status.epoch += 1;
    claimed.status.boot_id.clone_from(&view.boot_id);
    claimed.status.claimed_at = Some(view.now);
    Ok(Some(claimed))
}

/// The volume without this node as its consumer; nothing: it is not. Its array must be stopped.
pub fn release(view: &View, volume: &Volume) -> Option<Volume> {
    let is_ours = volume.status.node_name.as_deref() == Some(view.node.as_str());
    if !is_ours || view.kernel.array(&volume.name).is_some() {
        return None;
    }
    let mut released = volume.clone();
    released.status.node_name = None;
    released.status.claimed_at = None;
    released.status.boot_id.clear();
    released.status.md_state = String::new();
    Some(released)
}
