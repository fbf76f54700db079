//! What a node does next: nine steps over everything it sees.
//!
//! [`decide`] takes a [`View`] and returns a [`Plan`]: actions on the kernel, in the order of the
//! steps, and resources to write. Each write carries the resource version that was read, and is
//! about what was seen before the actions; so it does not matter where a cycle is interrupted,
//! and whatever was not done is decided again.

mod claim;
mod maintenance;
mod owner;
mod startup;
mod view;

use crate::placement::Drive;
use crate::state::{PartitionEvent, VolumeObservation};

pub use claim::{ClaimRefused, claim, release};
pub use view::{
    Array, Export, Import, KernelView, Leg, LegPath, LocalPartition, Member, MemberState, View,
    Volume,
};

/// Something to do with the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are named after what they hold")]
pub enum Action {
    /// Fail all I/O of an array, unmount it, stop it, remove its legs.
    StopArray { volume: String },
    /// Remove a leg that no array uses.
    RemoveLeg { partition: String, epoch: u64 },
    /// End the connection to a node that shows partitions of a volume.
    Disconnect { volume: String, source: String },
    /// Make a partition; nothing on it is believed until it is prepared.
    CreatePartition { partition: String, drive: String, bytes: u64 },
    /// Fill a new partition with zeros and give it its label.
    PreparePartition { partition: String },
    /// End the connections of a node to a volume, and wait for their commands.
    Revoke { volume: String, target: String },
    /// Show a partition to a node.
    Export { volume: String, partition: String, target: String, epoch: u64, nsid: u32 },
    /// Let a partition end later.
    GrowPartition { partition: String, bytes: u64 },
    /// Remove a partition from the table.
    RemovePartition { partition: String },
    /// Connect to a node that shows partitions of a volume.
    Connect { volume: String, source: String, address: String },
    /// Make a leg for a partition, which holds I/O when it loses its path.
    CreateLeg { partition: String, epoch: u64 },
    /// Let the I/O that a leg holds fail: the member is recorded not in sync.
    ReleaseLeg { partition: String, epoch: u64 },
    /// Make an array of partitions of zeros, in the order of their slots.
    CreateArray { volume: String, epoch: u64, members: Vec<(u16, String)> },
    /// Start an array with members that have all its data.
    AssembleArray { volume: String, epoch: u64, members: Vec<String> },
    /// Add a member: by its bitmap if it was one, else wiped and whole.
    AddMember { volume: String, partition: String, epoch: u64, was_member: bool },
    /// Fail a member and take it out.
    RemoveMember { volume: String, partition: String, epoch: u64 },
    /// Give an array so many places: one more while a member is being replaced.
    SetSlots { volume: String, slots: u16 },
    /// Let an array use all of its members.
    GrowArray { volume: String },
}

impl Action {
    /// The volume it is about, for actions that name one.
    pub fn volume(&self) -> Option<&str> {
        match self {
            Action::StopArray { volume }
            | Action::Disconnect { volume, .. }
            | Action::Revoke { volume, .. }
            | Action::Export { volume, .. }
            | Action::Connect { volume, .. }
            | Action::CreateArray { volume, .. }
            | Action::AssembleArray { volume, .. }
            | Action::AddMember { volume, .. }
            | Action::RemoveMember { volume, .. }
            | Action::SetSlots { volume, .. }
            | Action::GrowArray { volume } => Some(volume),
            _ => None,
        }
    }
}

/// What a cycle does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// On the kernel, in this order; of one volume, what follows a failure waits.
    pub actions: Vec<(String, Action)>,
    /// Resources as they shall be, with the version they were read with.
    pub writes: Vec<Volume>,
}

/// One volume, looked at by one node: what was read, and what it shall become.
struct Draft<'a> {
    view: &'a View,
    old: &'a Volume,
    new: Volume,
    actions: Vec<(Step, Action)>,
}

/// The steps of a cycle, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    StopForeign,
    Collect,
    Export,
    Grow,
    Remove,
    Replace,
    AddImported,
}

impl Draft<'_> {
    fn act(&mut self, step: Step, action: Action) {
        self.actions.push((step, action));
    }

    /// Something happened to a partition.
    fn event(&mut self, partition: &str, event: PartitionEvent) {
        let now = self.view.now;
        if let Some(entry) = self.new.status.partition_mut(partition) {
            entry.synced |= event == PartitionEvent::InSync;
            let next = entry.state.on(event);
            if next != entry.state {
                entry.state = next;
                entry.updated_at = now;
            }
        }
    }

    fn is_consumer(&self) -> bool {
        self.old.status.node_name.as_deref() == Some(self.view.node.as_str())
    }

    fn array(&self) -> Option<&Array> {
        self.view.kernel.array(&self.old.name)
    }

    /// The address of a node for NVMe/TCP.
    fn address(&self, node: &str) -> Option<String> {
        let of_node = |drive: &&Drive| drive.spec.node_id == node;
        self.view.drives.iter().filter(of_node).find_map(|drive| drive.status.tcp_address.clone())
    }

    fn is_healthy(&self, node: &str) -> bool {
        let now = self.view.now;
        self.view.drives.iter().any(|drive| drive.spec.node_id == node && drive.is_healthy(now))
    }
}

/// What this node does now.
pub fn decide(view: &View) -> Plan {
    let mut steps: Vec<(Step, String, Action)> = Vec::new();
    let mut plan = Plan::default();
    for volume in &view.volumes {
        let mut draft = Draft { view, old: volume, new: volume.clone(), actions: Vec::new() };
        stop_foreign(&mut draft);
        owner::own(&mut draft);
        if draft.is_consumer() && !volume.deleting {
            draft.new.status.message.clear();
            let runs = draft.array().is_some_and(|it| it.epoch == Some(volume.status.epoch));
            if runs {
                maintenance::maintain(&mut draft);
            } else {
                startup::start(&mut draft);
            }
        }
        finish(&mut draft);
        let Draft { new, actions, .. } = draft;
        let named = actions.into_iter().map(|(step, action)| (step, volume.name.clone(), action));
        steps.extend(named);
        if new != *volume {
            plan.writes.push(new);
        }
    }
    // The order of the steps holds over all volumes; within a step, that of the volumes.
    steps.sort_by_key(|(step, _, _)| *step);
    plan.actions = steps.into_iter().map(|(_, volume, action)| (volume, action)).collect();
    plan
}

/// Step 1: what runs here for a volume, and is not of this node's claim, ends.
fn stop_foreign(draft: &mut Draft<'_>) {
    let kernel = &draft.view.kernel;
    let (name, status) = (draft.old.name.clone(), &draft.old.status);
    let epoch = draft.is_consumer().then_some(status.epoch);
    let array = kernel.array(&name);
    if array.is_some_and(|array| epoch.is_none() || array.epoch != epoch) {
        draft.act(Step::StopForeign, Action::StopArray { volume: name });
        return;
    }
    let legs = kernel.legs.iter().filter(|leg| draft.old.spec.request(&leg.partition).is_some());
    let stale: Vec<Leg> = legs.filter(|leg| Some(leg.epoch) != epoch).cloned().collect();
    let has_stale = !stale.is_empty();
    for leg in stale {
        let Leg { partition, epoch, .. } = leg;
        draft.act(Step::StopForeign, Action::RemoveLeg { partition, epoch });
    }
    if epoch.is_some() || has_stale {
        return;
    }
    let mut sources: Vec<&str> = kernel
        .imports
        .iter()
        .filter(|import| import.volume == name)
        .map(|import| import.source.as_str())
        .collect();
    sources.dedup();
    for source in sources {
        let action = Action::Disconnect { volume: name.clone(), source: source.to_owned() };
        draft.act(Step::StopForeign, action);
    }
}

/// Phase and counters follow from the rest.
fn finish(draft: &mut Draft<'_>) {
    let array = draft.view.kernel.array(&draft.old.name).cloned();
    let is_consumer = draft.is_consumer();
    let Volume { spec, status, deleting, finalizer, .. } = &mut draft.new;
    if *deleting {
        status.phase = status.phase.on(VolumeObservation { deleting: true, ..Default::default() });
        *finalizer = !spec.partitions.is_empty();
        return;
    }
    if !is_consumer {
        return;
    }
    let array = array.filter(|array| array.epoch == Some(status.epoch));
    let count = |count: usize| u16::try_from(count).unwrap_or(u16::MAX);
    let members = array.as_ref().map_or(&[][..], |array| &array.members);
    let active = members.iter().filter(|it| status.in_sync.contains(&it.partition)).count();
    let failed = members.iter().filter(|it| it.state == MemberState::Faulty).count();
    status.total_devices = spec.slots();
    status.active_devices = count(active);
    status.failed_devices = count(failed);
    status.missing_devices = spec.members().saturating_sub(count(members.len()));
    status.ready = format!("{active}/{}", spec.members());
    status.degraded = spec.members().saturating_sub(count(active));
    status.md_state = array.as_ref().map_or("missing".to_owned(), |array| array.state.clone());
    status.sync_percentage =
        array.as_ref().and_then(|array| array.sync.clone()).unwrap_or_default();
    let small = |bytes: u64| bytes < spec.capacity_bytes;
    status.phase = status.phase.on(VolumeObservation {
        deleting: false,
        requested: !spec.partitions.is_empty(),
        created: !status.in_sync.is_empty(),
        syncing: array.as_ref().is_some_and(|array| array.sync.is_some()),
        replacing: spec.partitions.iter().any(|it| it.replaces.is_some()),
        growing: array.as_ref().is_some_and(|array| small(array.bytes)),
    });
}
