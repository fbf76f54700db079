//! What a target says of itself.

use alloc::vec::Vec;

use block::Geometry;
use model::{ChildState, ChildStatus, Rebuild, TargetState};

use crate::mirror::Mirror;

impl Mirror {
    /// The shape of the volume.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// How it serves.
    pub fn state(&self) -> TargetState {
        self.state
    }

    /// Its children.
    pub fn children(&self) -> Vec<ChildStatus> {
        let progress = |slot| self.jobs.get(&slot).map(|job| job.rebuild.progress);
        self.each_child()
            .map(|(slot, child)| ChildStatus {
                replica: child.replica,
                state: child.state,
                progress: progress(slot).filter(|_| child.state == ChildState::Rebuilding),
            })
            .collect()
    }

    /// How many commands of hosts had to wait for a limit.
    pub fn throttled(&self) -> u64 {
        self.throttled
    }

    /// Rebuilds that run or wait, then those that ended, newest last.
    pub fn rebuilds(&self) -> impl Iterator<Item = &Rebuild> {
        self.history.iter().chain(self.jobs.values().map(|job| &job.rebuild))
    }
}
