//! What a volume and its children have done.

use block::{Completion, Instant};
use mirror::Session;
use nvme::wire::Nqn;

use super::order::{Measured, Status};
use super::volume::Volume;
use crate::counters::{Counted, Counters};

impl Volume {
    /// How it is; whoever asks knows the hosts.
    pub(super) fn status(&self, hosts: Vec<Nqn>) -> Status {
        Status {
            volume: self.id(),
            target: self.target(),
            state: self.mirror.state(),
            size: self.mirror.geometry().blocks(),
            children: self.mirror.children(),
            conflicts: self.mirror.conflicts().to_vec(),
            rebuilds: self.mirror.rebuilds().cloned().collect(),
            hosts,
        }
    }

    /// What was done so far.
    pub(super) fn measured(&self, now: Instant) -> Measured {
        let known = self.mirror.children().into_iter().map(|child| child.replica);
        let of = |replica| (replica, self.by_child.get(&replica).copied().unwrap_or_default());
        let oldest = self.hosted.iter().map(|(_, hosted)| hosted.counted.age(now)).max();
        Measured {
            target: self.target(),
            volume: Counters { held_back: self.mirror.held_back(), ..self.counters },
            children: known.map(of).collect(),
            oldest: oldest.unwrap_or_default(),
        }
    }

    /// A block command of a child has ended.
    pub(super) fn count_for(
        &mut self,
        session: Session,
        counted: Counted,
        result: Completion,
        now: Instant,
    ) {
        if let Some(child) = self.children.get(&session) {
            self.by_child.entry(child.replica).or_default().ended(counted, result, now);
        }
    }
}
