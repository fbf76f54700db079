//! What a volume and its children have done.

use block::{Completion, Instant};
use mirror::Session;
use nvme::wire::Nqn;

use super::request::{Status, VolumeCounters};
use super::volume::Volume;
use crate::counters::{Counters, OpTimer};

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
    pub(super) fn measured(&self, now: Instant) -> VolumeCounters {
        let known = self.mirror.children().into_iter().map(|child| child.replica);
        let of = |replica| (replica, self.by_child.get(&replica).copied().unwrap_or_default());
        let oldest = self
            .host_commands
            .iter()
            .map(|(_, host_commands)| host_commands.counted.age(now))
            .max();
        VolumeCounters {
            target: self.target(),
            volume: Counters { throttled: self.mirror.throttled(), ..self.counters },
            children: known.map(of).collect(),
            oldest: oldest.unwrap_or_default(),
        }
    }

    /// A block command of a child has ended.
    pub(super) fn count_for(
        &mut self,
        session: Session,
        counted: OpTimer,
        result: Completion,
        now: Instant,
    ) {
        if let Some(child) = self.children.get(&session) {
            self.by_child.entry(child.replica).or_default().ended(counted, result, now);
        }
    }
}
