//! What a target says of itself.

use alloc::vec::Vec;

use block::Geometry;
use model::{ChildState, ChildStatus, LabelConflict, Rebuild, TargetState};

use crate::mirror::Mirror;

impl Mirror {
    /// The shape of the volume.
    pub fn geometry(&self) -> Geometry {
        self.base.cx.geometry()
    }

    /// How it serves.
    pub fn state(&self) -> TargetState {
        self.base.service.state()
    }

    /// Copies that contradict the store or what is known of them, and how.
    pub fn conflicts(&self) -> &[LabelConflict] {
        self.base.conflicts.told()
    }

    /// Its children.
    pub fn children(&self) -> Vec<ChildStatus> {
        self.base
            .replicas
            .iter()
            .map(|(slot, child)| ChildStatus {
                replica: child.replica(),
                state: child.state(),
                progress: self
                    .rebuilder
                    .progress_of(slot)
                    .filter(|_| child.state() == ChildState::Rebuilding),
            })
            .collect()
    }

    /// How many commands of hosts had to wait for a limit.
    pub fn throttled(&self) -> u64 {
        self.commands.throttled()
    }

    /// Rebuilds that run or wait, then those that ended, newest last.
    pub fn rebuilds(&self) -> impl Iterator<Item = &Rebuild> {
        self.rebuilder.rebuilds()
    }
}
