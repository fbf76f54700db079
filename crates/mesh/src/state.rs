//! The states of a volume and of a partition, and the only ways between them.

use serde::{Deserialize, Serialize};

/// Where a volume is in its life. Health is in the MD state and the counters.
///
/// ```text
///   New ─► Requested ─► Syncing ⇄ Synced ⇄ Expanding
///                          ▲         │
///                          └ Replacing ◄        any ─► Deleting
/// ```
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
pub enum Phase {
    /// Nothing is requested yet.
    #[default]
    New,
    /// The consumer has requested partitions.
    Requested,
    /// A member is being synchronised.
    Syncing,
    /// Every member that is there has all data.
    Synced,
    /// Partitions, array and file system are growing.
    Expanding,
    /// A member is being replaced.
    Replacing,
    /// Partitions are being removed.
    Deleting,
}

/// What is seen of a volume, as far as its phase depends on it.
#[expect(clippy::struct_excessive_bools, reason = "each is seen by itself, and any may hold")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeObservation {
    /// The resource is being deleted.
    pub deleting: bool,
    /// Partitions are requested.
    pub requested: bool,
    /// The array was created once.
    pub created: bool,
    /// MD synchronises a member.
    pub syncing: bool,
    /// A member is to be replaced.
    pub replacing: bool,
    /// A partition or the array is smaller than the volume shall be.
    pub growing: bool,
}

impl Phase {
    /// The phase after an observation.
    #[must_use]
    pub fn on(self, seen: VolumeObservation) -> Phase {
        match self {
            _ if seen.deleting => Phase::Deleting,
            // Deletion cannot be taken back in Kubernetes.
            Phase::Deleting => Phase::Deleting,
            _ if !seen.requested => Phase::New,
            _ if !seen.created => Phase::Requested,
            _ if seen.growing => Phase::Expanding,
            _ if seen.replacing => Phase::Replacing,
            _ if seen.syncing => Phase::Syncing,
            _ => Phase::Synced,
        }
    }
}

/// What a partition is to its volume.
///
/// ```text
///   Requested ─► Created ─► Spare ─► Syncing ⇄ Synced ─► Missing | Faulty ─► Spare
///                                       Synced ─► Replacing ─► Deleting
///                                                    Missing | Faulty ─► Deleting
/// ```
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
pub enum PartitionState {
    /// Asked for by the consumer.
    #[default]
    Requested,
    /// Made by its node; never a member of the array.
    Created,
    /// Added to the array, not yet synchronised.
    Spare,
    /// MD copies to it.
    Syncing,
    /// It has all data.
    Synced,
    /// The consumer cannot reach it.
    Missing,
    /// MD or its node found it failed.
    Faulty,
    /// It is in sync and being replaced.
    Replacing,
    /// Its node removes it.
    Deleting,
}

/// What happened to a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartitionEvent {
    /// Its node has made it.
    Made,
    /// MD has it as a member that is not in sync.
    Added,
    /// MD copies to it.
    SyncStarted,
    /// It is recorded in sync.
    InSync,
    /// The consumer lost it.
    Lost,
    /// It failed.
    Failed,
    /// Another one takes its place while it serves.
    ReplacementStarted,
    /// It is not wanted any more.
    Removed,
}

impl PartitionState {
    /// The next state; an event that means nothing now changes nothing.
    #[must_use]
    pub fn on(self, event: PartitionEvent) -> PartitionState {
        use PartitionEvent as Event;
        use PartitionState as State;
        match (self, event) {
            (State::Deleting, _) | (_, Event::Removed) => State::Deleting,
            (State::Requested, Event::Made) => State::Created,
            (State::Created | State::Missing | State::Faulty, Event::Added) => State::Spare,
            (
                State::Created | State::Spare | State::Missing | State::Faulty,
                Event::SyncStarted,
            ) => State::Syncing,
            (State::Requested | State::Replacing, Event::InSync)
            | (State::Requested | State::Created | State::Faulty, Event::Lost) => self,
            (_, Event::InSync) => State::Synced,
            (_, Event::Lost) => State::Missing,
            (_, Event::Failed) => State::Faulty,
            (State::Synced, Event::ReplacementStarted) => State::Replacing,
            (_, Event::Made | Event::Added | Event::SyncStarted | Event::ReplacementStarted) => {
                self
            }
        }
    }

    /// Whether it is waited for, and replaced when that takes too long.
    pub fn is_lost(self) -> bool {
        matches!(self, PartitionState::Missing | PartitionState::Faulty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_comes_back_or_goes() {
        use PartitionEvent as Event;
        use PartitionState as State;
        let follow = |events: &[Event]| {
            events.iter().fold(State::default(), |state, event| state.on(*event))
        };
        let made = [Event::Made, Event::Added, Event::SyncStarted, Event::InSync];
        assert_eq!(follow(&made), State::Synced);
        let back = [&made[..], &[Event::Lost, Event::Added, Event::InSync]].concat();
        assert_eq!(follow(&back), State::Synced);
        let gone = [&made[..], &[Event::Lost, Event::Removed, Event::Added]].concat();
        assert_eq!(follow(&gone), State::Deleting);
        assert_eq!(follow(&[Event::Made, Event::Lost]), State::Created, "it was no member");
    }

    #[test]
    fn the_phase_follows_what_is_seen_and_deletion_is_final() {
        let seen = VolumeObservation { requested: true, ..VolumeObservation::default() };
        assert_eq!(Phase::New.on(seen), Phase::Requested);
        let created = VolumeObservation { created: true, ..seen };
        assert_eq!(Phase::Requested.on(created), Phase::Synced);
        let growing = VolumeObservation { growing: true, syncing: true, ..created };
        assert_eq!(Phase::Synced.on(growing), Phase::Expanding);
        let deleting = VolumeObservation { deleting: true, ..created };
        assert_eq!(Phase::Synced.on(deleting).on(created), Phase::Deleting);
    }
}
