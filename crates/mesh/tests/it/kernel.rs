//! A node's kernel in the model: how actions change it.

use std::collections::BTreeSet;

use mesh::reconcile::{
    Action, Array, Export, Import, KernelView, Leg, LegPath, LocalPartition, Member, MemberState,
};

use crate::array::{Disk, REGIONS, Running};
use crate::world::World;

/// The size of every drive.
const DRIVE: u64 = 64 << 30;

type Done = Result<(), String>;

impl World {
    /// What becomes of I/O of an array or leg on `node` to a partition.
    pub(crate) fn path(&self, node: usize, uuid: &str, epoch: u64) -> LegPath {
        let here = &self.nodes[node];
        let released = here.legs.iter().any(|(leg, of, gone)| leg == uuid && *of == epoch && *gone);
        if released {
            return LegPath::Failed;
        }
        if here.partitions.iter().any(|it| it.uuid == uuid) {
            return LegPath::Live;
        }
        let import = here.imports.iter().find(|it| it.partition == uuid && it.epoch == epoch);
        let works = import.is_some_and(|import| {
            let source = self.index(&import.source);
            let shows = self.nodes[source].exports.iter().any(|it| {
                it.partition == uuid && it.target == here.name && it.epoch == import.epoch
            });
            self.connected(node, source) && (shows || !self.rules.fence)
        });
        match (works, self.rules.hold) {
            (true, _) => LegPath::Live,
            (false, true) => LegPath::Held,
            (false, false) => LegPath::Failed,
        }
    }

    pub(crate) fn kernel_view(&self, node: usize) -> KernelView {
        let here = &self.nodes[node];
        let leg = |(uuid, epoch, _): &(String, u64, bool)| Leg {
            partition: uuid.clone(),
            epoch: *epoch,
            path: self.path(node, uuid, *epoch),
        };
        let array = here.array.as_ref().map(|array| Array {
            volume: self.volume.name.clone(),
            epoch: Some(array.epoch),
            members: array
                .members
                .iter()
                .map(|(uuid, state)| Member { partition: uuid.clone(), state: *state })
                .collect(),
            slots: array.slots,
            sync: (!array.recovery.is_empty()).then(|| "50.0%".to_owned()),
            bytes: array.bytes,
            state: "active".to_owned(),
        });
        KernelView {
            partitions: here.partitions.clone(),
            exports: here.exports.clone(),
            imports: here.imports.clone(),
            legs: here.legs.iter().map(leg).collect(),
            arrays: array.into_iter().collect(),
        }
    }

    /// Carries out an action; the same one again must be harmless.
    pub(crate) fn execute(&mut self, node: usize, action: &Action) -> Done {
        match action {
            Action::StopArray { .. } => {
                self.nodes[node].array = None;
                self.nodes[node].attached = None;
                self.nodes[node].legs.clear();
            }
            Action::RemoveLeg { partition, epoch } => self.remove_leg(node, partition, *epoch)?,
            Action::Disconnect { source, .. } => {
                self.nodes[node].imports.retain(|it| it.source != *source);
            }
            Action::CreatePartition { partition, drive, bytes } => {
                self.create_partition(
                    node,
                    LocalPartition {
                        uuid: partition.clone(),
                        drive: drive.clone(),
                        bytes: *bytes,
                        room: DRIVE,
                        prepared: false,
                    },
                );
            }
            Action::PreparePartition { partition } => {
                let all = &mut self.nodes[node].partitions;
                let found = all.iter_mut().find(|it| it.uuid == *partition);
                found.ok_or("no such partition")?.prepared = true;
                self.disks.insert(partition.clone(), Disk::default());
            }
            Action::Revoke { target, .. } => {
                self.nodes[node].exports.retain(|it| it.target != *target);
            }
            Action::Export { volume, partition, target, epoch, .. } => {
                let export = Export {
                    volume: volume.clone(),
                    partition: partition.clone(),
                    target: target.clone(),
                    epoch: *epoch,
                };
                if !self.nodes[node].exports.contains(&export) {
                    self.nodes[node].exports.push(export);
                }
            }
            Action::GrowPartition { partition, bytes } => {
                let all = &mut self.nodes[node].partitions;
                let found = all.iter_mut().find(|it| it.uuid == *partition);
                found.ok_or("no such partition")?.bytes = *bytes;
            }
            Action::RemovePartition { partition } => {
                let used = self.nodes[node].legs.iter().any(|(uuid, ..)| uuid == partition);
                assert!(!used, "{partition} was removed under a leg");
                self.nodes[node].partitions.retain(|it| it.uuid != *partition);
                self.disks.remove(partition);
            }
            Action::Connect { volume, source, .. } => self.connect(node, volume, source)?,
            Action::CreateLeg { partition, epoch } => {
                let leg = (partition.clone(), *epoch, false);
                let legs = &mut self.nodes[node].legs;
                if !legs.iter().any(|(uuid, of, _)| uuid == partition && of == epoch) {
                    legs.push(leg);
                }
            }
            Action::ReleaseLeg { partition, epoch } => {
                for leg in &mut self.nodes[node].legs {
                    leg.2 |= leg.0 == *partition && leg.1 == *epoch;
                }
            }
            _ => self.execute_md(node, action)?,
        }
        Ok(())
    }

    fn create_partition(&mut self, node: usize, new: LocalPartition) {
        let all = &mut self.nodes[node].partitions;
        if all.iter().any(|it| it.uuid == new.uuid) {
            return;
        }
        // Somebody's old data: to be zeroed before it is believed.
        let disk = self.disks.entry(new.uuid.clone()).or_default();
        disk.data = [u64::MAX; REGIONS];
        all.push(new);
    }

    fn remove_leg(&mut self, node: usize, partition: &str, epoch: u64) -> Done {
        let array = self.nodes[node].array.as_ref();
        if array.is_some_and(|it| it.epoch == epoch && it.members.contains_key(partition)) {
            return Err("the leg is in use".to_owned());
        }
        self.nodes[node].legs.retain(|(uuid, of, _)| uuid != partition || *of != epoch);
        Ok(())
    }

    fn connect(&mut self, node: usize, volume: &str, source: &str) -> Done {
        let from = self.index(source);
        if !self.connected(node, from) {
            return Err("unreachable".to_owned());
        }
        let name = self.nodes[node].name.clone();
        let shown = self.nodes[from].exports.iter();
        let mut shown: Vec<(String, u64)> = shown
            .filter(|it| it.target == name && it.volume == volume)
            .map(|it| (it.partition.clone(), it.epoch))
            .collect();
        if !self.rules.fence {
            let all = self.nodes[from].partitions.iter();
            shown = all.map(|it| (it.uuid.clone(), self.volume.status.epoch)).collect();
        }
        let imports = &mut self.nodes[node].imports;
        imports.retain(|it| it.source != source);
        imports.extend(shown.into_iter().map(|(partition, epoch)| Import {
            volume: volume.to_owned(),
            partition,
            source: source.to_owned(),
            epoch,
        }));
        Ok(())
    }

    fn legs_live(&self, node: usize, members: &[String], epoch: u64) -> bool {
        let legs = &self.nodes[node].legs;
        members.iter().all(|uuid| {
            legs.iter().any(|(leg, of, _)| leg == uuid && *of == epoch)
                && self.path(node, uuid, epoch) == LegPath::Live
        })
    }

    fn execute_md(&mut self, node: usize, action: &Action) -> Done {
        let bytes = self.volume.spec.capacity_bytes;
        match action {
            Action::CreateArray { epoch, members, .. } => {
                let members: Vec<String> = members.iter().map(|(_, uuid)| uuid.clone()).collect();
                if self.nodes[node].array.is_some() || !self.legs_live(node, &members, *epoch) {
                    return Err("cannot create".to_owned());
                }
                let mut array = Running::new(*epoch, bytes, self.volume.spec.slots());
                for uuid in members {
                    let disk = self.disks.get_mut(&uuid).ok_or("no disk")?;
                    assert_eq!(disk.data, [0; REGIONS], "{uuid} was not zeroed, or had data");
                    disk.events = 1;
                    array.members.insert(uuid, MemberState::InSync);
                }
                self.nodes[node].array = Some(array);
            }
            Action::AssembleArray { epoch, members, .. } => {
                self.assemble(node, *epoch, members, bytes)?;
            }
            Action::AddMember { partition, epoch, was_member, .. } => {
                self.add(node, partition, *epoch, *was_member)?;
            }
            Action::RemoveMember { partition, .. } => {
                let array = self.nodes[node].array.as_mut().ok_or("no array")?;
                if array.members.get(partition) != Some(&MemberState::Faulty) {
                    array.fail(partition);
                }
                if array.members.get(partition) == Some(&MemberState::Faulty) {
                    array.members.remove(partition);
                    let legs = &mut self.nodes[node].legs;
                    legs.retain(|(uuid, ..)| uuid != partition);
                }
            }
            Action::SetSlots { slots, .. } => {
                let array = self.nodes[node].array.as_mut().ok_or("no array")?;
                if array.members.len() > usize::from(*slots) {
                    return Err("too many members".to_owned());
                }
                array.slots = *slots;
            }
            Action::GrowArray { .. } => {
                let array = self.nodes[node].array.as_mut().ok_or("no array")?;
                array.bytes = bytes;
            }
            other => return Err(format!("not in the model: {other:?}")),
        }
        Ok(())
    }

    /// The freshest superblock decides; members that it calls failed, or that are older, stay out.
    fn assemble(&mut self, node: usize, epoch: u64, members: &[String], bytes: u64) -> Done {
        if self.nodes[node].array.is_some() || !self.legs_live(node, members, epoch) {
            return Err("cannot assemble".to_owned());
        }
        let disks = members.iter().map(|uuid| (uuid, &self.disks[uuid]));
        let disks: Vec<_> = disks.filter(|(_, disk)| disk.events > 0).collect();
        let (_, freshest) = disks.iter().max_by_key(|(_, disk)| disk.events).ok_or("no disks")?;
        let mut array = Running::new(epoch, bytes, self.volume.spec.slots());
        array.events = freshest.events + 1;
        for (uuid, disk) in &disks {
            if disk.events + 1 < freshest.events || freshest.failed.contains(*uuid) {
                continue;
            }
            array.members.insert((*uuid).clone(), MemberState::InSync);
            for region in 0..REGIONS {
                array.bits[region] |= disk.bits[region];
            }
        }
        array.resync = (0..REGIONS).filter(|region| array.bits[*region]).collect();
        array.supers = array.live();
        self.nodes[node].array = Some(array);
        Ok(())
    }

    fn add(&mut self, node: usize, uuid: &str, epoch: u64, was_member: bool) -> Done {
        if !self.legs_live(node, &[uuid.to_owned()], epoch) {
            return Err("the leg has no path".to_owned());
        }
        let disk = self.disks.get_mut(uuid).ok_or("no disk")?;
        let array = self.nodes[node].array.as_mut().ok_or("no array")?;
        let is_full = array.members.len() >= usize::from(array.slots);
        if array.epoch != epoch || array.members.contains_key(uuid) || is_full {
            return Err("it is a member, or the array is of another claim".to_owned());
        }
        let by_bitmap = was_member && disk.events > 0;
        let lacks: BTreeSet<usize> =
            (0..REGIONS).filter(|region| !by_bitmap || array.bits[*region]).collect();
        disk.bits = array.bits;
        disk.events = array.events;
        array.members.insert(uuid.to_owned(), MemberState::Recovering);
        array.recovery.insert(uuid.to_owned(), lacks);
        Ok(())
    }
}
