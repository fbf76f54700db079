//! Asymmetric namespace access: the state of this path to each group of namespaces.

use alloc::collections::BTreeMap;

use crate::wire::{AnaState, Status};

/// Largest group id.
pub const MAX_GROUPS: u32 = 128;

/// One group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::target) struct Group {
    pub(in crate::target) state: AnaState,
    /// Number of the change that gave it this state.
    pub(in crate::target) changed_at: u64,
}

/// All groups of a subsystem; a group that was never set is optimized.
#[derive(Clone, Debug, Default)]
pub(in crate::target) struct Ana {
    groups: BTreeMap<u32, Group>,
    changes: u64,
}

impl Ana {
    /// The state of a group.
    #[inline]
    pub(in crate::target) fn state(&self, group: u32) -> AnaState {
        self.groups.get(&group).map_or(AnaState::Optimized, |group| group.state)
    }

    /// Sets it; says whether that changed anything.
    pub(super) fn set(&mut self, group: u32, state: AnaState) -> bool {
        let is_new = self.state(group) != state;
        if is_new {
            self.changes += 1;
            self.groups.insert(group, Group { state, changed_at: self.changes });
        }
        is_new
    }

    /// Number of changes so far.
    pub(in crate::target) fn changes(&self) -> u64 {
        self.changes
    }

    /// A group as the log shows it.
    pub(in crate::target) fn group(&self, group: u32) -> Group {
        let unset = Group { state: AnaState::Optimized, changed_at: 0 };
        self.groups.get(&group).copied().unwrap_or(unset)
    }
}

/// How commands end that this state does not let through.
#[inline]
pub(in crate::target) fn refusal(state: AnaState) -> Option<Status> {
    match state {
        AnaState::Optimized | AnaState::NonOptimized => None,
        AnaState::Inaccessible => Some(Status::ANA_INACCESSIBLE),
        AnaState::PersistentLoss => Some(Status::ANA_PERSISTENT_LOSS),
        AnaState::Change => Some(Status::ANA_TRANSITION),
    }
}
