//! Nodes, their network, the API server, pods; and what must always hold.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use mesh::node_device::{MeshNodeDeviceSpec, MeshNodeDeviceStatus};
use mesh::placement::Drive;
use mesh::reconcile::{
    Action, Export, Import, LegPath, LocalPartition, MemberState, View, Volume, claim, decide,
    release,
};
use mesh::volume::MeshVolumeSpec;

use crate::array::{Disk, REGIONS, Running, Write};

/// Which rules hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// I/O to a member that cannot be reached waits until it is recorded.
    pub(crate) hold: bool,
    /// Exports are withdrawn, and a member is used only when its node says so.
    pub(crate) fence: bool,
}

pub(crate) const SAFE: Rules = Rules { hold: true, fence: true };

/// Something a node is about to do.
#[derive(Clone, Debug)]
pub(crate) enum Pending {
    Act(Action),
    Write(Box<Volume>),
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) up: bool,
    pub(crate) has_api: bool,
    pub(crate) partitions: Vec<LocalPartition>,
    pub(crate) exports: Vec<Export>,
    pub(crate) imports: Vec<Import>,
    /// Partition, epoch, and whether its I/O fails.
    pub(crate) legs: Vec<(String, u64, bool)>,
    pub(crate) array: Option<Running>,
    /// The epoch of the claim in which a pod writes here.
    pub(crate) attached: Option<u64>,
    /// Whether a pod shall run here.
    pub(crate) wanted: bool,
    pub(crate) pending: VecDeque<Pending>,
    pub(crate) heartbeat: u64,
    pub(crate) boots: u64,
}

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) rules: Rules,
    pub(crate) nodes: Vec<Node>,
    pub(crate) disks: BTreeMap<String, Disk>,
    pub(crate) volume: Volume,
    pub(crate) cuts: BTreeSet<(usize, usize)>,
    pub(crate) now: u64,
    pub(crate) acked: [u64; REGIONS],
    pub(crate) acks: u64,
    pub(crate) violations: Vec<String>,
    pub(crate) log: Vec<String>,
    /// Writes that the pods still issue.
    pub(crate) budget: u64,
    version: u64,
    resource_version: u64,
    last_attached: u64,
    seed: u64,
}

impl World {
    pub(crate) fn new(seed: u64, nodes: usize, replicas: u16, rules: Rules) -> World {
        let node = |index: usize| Node {
            name: format!("n{index}"),
            up: true,
            has_api: true,
            heartbeat: 1000,
            ..Node::default()
        };
        let spec = MeshVolumeSpec {
            volume_id: "6f1d0a57-0000-4000-8000-000000000001".to_owned(),
            capacity_bytes: 1 << 30,
            replica_count: replicas,
            stripe_width: 1,
            member_missing_timeout: 60,
            sector_size: 4096,
            partitions: Vec::new(),
        };
        let volume = Volume { name: "pvc-1".to_owned(), spec, ..Volume::default() };
        World {
            rules,
            nodes: (0..nodes).map(node).collect(),
            disks: BTreeMap::new(),
            volume: Volume { resource_version: "0".to_owned(), finalizer: true, ..volume },
            cuts: BTreeSet::new(),
            now: 1000,
            acked: [0; REGIONS],
            acks: 0,
            violations: Vec::new(),
            log: Vec::new(),
            budget: u64::MAX,
            version: 0,
            resource_version: 0,
            last_attached: 0,
            seed: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
        }
    }

    pub(crate) fn chance(&mut self, of: usize) -> usize {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        usize::try_from(self.seed >> 33).unwrap() % of.max(1)
    }

    pub(crate) fn index(&self, name: &str) -> usize {
        self.nodes.iter().position(|node| node.name == name).unwrap()
    }

    pub(crate) fn connected(&self, a: usize, b: usize) -> bool {
        self.nodes[a].up && self.nodes[b].up && !self.cuts.contains(&(a.min(b), a.max(b)))
    }

    fn note(&mut self, text: String) {
        self.log.push(text);
    }

    fn view(&self, node: usize) -> View {
        let drive = |node: &Node| Drive {
            spec: MeshNodeDeviceSpec { node_id: node.name.clone(), device: "nvme0n1".to_owned() },
            status: MeshNodeDeviceStatus {
                biggest_usable_free_bytes: 8 << 30,
                remote_partitions: u32::try_from(node.partitions.len()).unwrap(),
                sector_size: 4096,
                tcp_address: Some("10.0.0.1".to_owned()),
                heartbeat: node.heartbeat,
                ..MeshNodeDeviceStatus::default()
            },
        };
        let mut volume = self.volume.clone();
        if !self.rules.fence {
            let epoch = volume.status.epoch;
            volume.status.partitions.iter_mut().for_each(|entry| entry.granted_epoch = epoch);
        }
        View {
            node: self.nodes[node].name.clone(),
            boot_id: self.nodes[node].boots.to_string(),
            now: self.now,
            volumes: vec![volume],
            drives: self.nodes.iter().map(drive).collect(),
            kernel: self.kernel_view(node),
        }
    }

    /// The API server: a write with an old version is refused.
    fn write(&mut self, mut volume: Volume) -> bool {
        if volume.resource_version != self.volume.resource_version {
            return false;
        }
        self.resource_version += 1;
        volume.resource_version = self.resource_version.to_string();
        self.note(format!(
            "write: {:?} e{} inSync {:?}",
            volume.status.node_name, volume.status.epoch, volume.status.in_sync
        ));
        self.volume = volume;
        true
    }

    /// A node looks, and decides what it will do.
    pub(crate) fn cycle(&mut self, node: usize) {
        if !self.nodes[node].up || !self.nodes[node].has_api || !self.nodes[node].pending.is_empty()
        {
            return;
        }
        self.nodes[node].heartbeat = self.now;
        let view = self.view(node);
        let plan = decide(&view);
        let mut pending: VecDeque<Pending> =
            plan.actions.into_iter().map(|(_, action)| Pending::Act(action)).collect();
        pending.extend(plan.writes.into_iter().map(|it| Pending::Write(Box::new(it))));
        self.nodes[node].pending = pending;
    }

    /// One thing a node has decided is done.
    pub(crate) fn advance(&mut self, node: usize) {
        if !self.nodes[node].up {
            return;
        }
        match self.nodes[node].pending.pop_front() {
            Some(Pending::Act(action)) => {
                let done = self.execute(node, &action);
                self.note(format!("n{node}: {action:?} {done:?}"));
            }
            Some(Pending::Write(volume)) if self.nodes[node].has_api => {
                self.write(*volume);
            }
            Some(Pending::Write(_)) | None => {}
        }
    }

    /// The kubelet of a node stages or unstages.
    pub(crate) fn kubelet(&mut self, node: usize) {
        if !self.nodes[node].up || !self.nodes[node].has_api || !self.nodes[node].pending.is_empty()
        {
            return;
        }
        let view = self.view(node);
        if self.nodes[node].wanted {
            match claim(&view, &self.volume) {
                Ok(Some(claimed)) => {
                    self.write(claimed);
                }
                Ok(None) => self.attach(node),
                Err(_) => {}
            }
        } else if self.volume.status.node_name.as_deref() == Some(view.node.as_str()) {
            self.nodes[node].attached = None;
            let volume = self.volume.name.clone();
            self.execute(node, &Action::StopArray { volume }).unwrap();
            if let Some(released) = release(&self.view(node), &self.volume) {
                self.write(released);
            }
        }
    }

    /// The device is given to the pod once every recorded member is in the array.
    fn attach(&mut self, node: usize) {
        let status = &self.volume.status;
        let Some(array) = &self.nodes[node].array else { return };
        let is_whole = status.in_sync.iter().all(|uuid| array.in_sync().contains(uuid));
        let is_ours = status.node_name.as_deref() == Some(self.nodes[node].name.as_str());
        if !is_ours || array.epoch != status.epoch || status.in_sync.is_empty() || !is_whole {
            return;
        }
        if self.nodes[node].attached.is_none() {
            let epoch = array.epoch;
            self.nodes[node].attached = Some(epoch);
            self.last_attached = self.last_attached.max(epoch);
            self.note(format!("n{node}: attached in epoch {epoch}"));
            self.check();
        }
    }

    /// Every member called in sync has every acknowledged write.
    pub(crate) fn check(&mut self) {
        for uuid in self.volume.status.in_sync.clone() {
            let Some(disk) = self.disks.get(&uuid) else { continue };
            for region in 0..REGIONS {
                if disk.data[region] < self.acked[region] {
                    let text = format!(
                        "{uuid} is called in sync and has {} of {} in region {region}",
                        disk.data[region], self.acked[region]
                    );
                    self.violations.push(text);
                }
            }
        }
    }

    /// One bit of I/O on a node.
    pub(crate) fn io(&mut self, node: usize) {
        if !self.nodes[node].up || self.nodes[node].array.is_none() {
            return;
        }
        match self.chance(8) {
            0 => self.issue(node),
            1 => self.recover(node),
            2 => self.settle(node),
            _ => self.progress(node),
        }
        self.finish_writes(node);
    }

    fn issue(&mut self, node: usize) {
        if self.nodes[node].attached.is_none() || self.budget == 0 {
            return;
        }
        let region = self.chance(REGIONS);
        let array = self.nodes[node].array.as_mut().unwrap();
        if array.writes.iter().any(|write| write.region == region) {
            return;
        }
        self.budget -= 1;
        self.version += 1;
        let live = array.live();
        array.bits[region] = true;
        let write = Write { region, version: self.version, bits: live.clone(), data: live };
        array.writes.push(write);
    }

    /// One member gets its superblock, a bit or data.
    fn progress(&mut self, node: usize) {
        let array = self.nodes[node].array.clone().unwrap();
        if let Some(uuid) = array.supers.iter().next().cloned() {
            match self.path(node, &uuid, array.epoch) {
                LegPath::Live => {
                    let failed: BTreeSet<String> = array
                        .members
                        .iter()
                        .filter(|(_, state)| **state == MemberState::Faulty)
                        .map(|(uuid, _)| uuid.clone())
                        .collect();
                    let disk = self.disks.get_mut(&uuid).unwrap();
                    disk.events = disk.events.max(array.events);
                    disk.failed.extend(failed);
                    self.running(node).supers.remove(&uuid);
                }
                LegPath::Failed => self.running(node).fail(&uuid),
                LegPath::Held => {}
            }
        }
        if array.writes.is_empty() {
            return;
        }
        let index = self.chance(array.writes.len());
        let write = &array.writes[index];
        let waiting = if write.bits.is_empty() { &write.data } else { &write.bits };
        let waiting: Vec<String> = waiting.iter().cloned().collect();
        if waiting.is_empty() {
            return;
        }
        let uuid = waiting[self.chance(waiting.len())].clone();
        match self.path(node, &uuid, array.epoch) {
            LegPath::Held => {}
            LegPath::Failed => self.running(node).fail(&uuid),
            LegPath::Live if !write.bits.is_empty() => {
                self.disks.get_mut(&uuid).unwrap().bits[write.region] = true;
                self.running(node).writes[index].bits.remove(&uuid);
            }
            LegPath::Live => {
                if self.last_attached > array.epoch && self.volume.status.is_in_sync(&uuid) {
                    let text = format!("n{node} of epoch {} wrote to {uuid}", array.epoch);
                    self.violations.push(text);
                }
                self.disks.get_mut(&uuid).unwrap().data[write.region] = write.version;
                self.running(node).writes[index].data.remove(&uuid);
            }
        }
    }

    fn running(&mut self, node: usize) -> &mut Running {
        self.nodes[node].array.as_mut().unwrap()
    }

    fn finish_writes(&mut self, node: usize) {
        let last = self.last_attached;
        let Some(array) = self.nodes[node].array.as_mut() else { return };
        // The superblocks of those that are left say first who failed.
        if !array.supers.is_empty() {
            return;
        }
        let (done, open): (Vec<Write>, Vec<Write>) =
            array.writes.drain(..).partition(|it| it.data.is_empty() && it.bits.is_empty());
        array.writes = open;
        let epoch = array.epoch;
        for write in done {
            if last > epoch {
                let text = format!("n{node} of epoch {epoch} acknowledged after {last} began");
                self.violations.push(text);
            }
            self.acked[write.region] = self.acked[write.region].max(write.version);
            self.acks += 1;
        }
        self.check();
    }

    /// Copies one region to a member that lacks it, or makes one equal after an unclean end.
    fn recover(&mut self, node: usize) {
        let array = self.nodes[node].array.clone().unwrap();
        let sources = array.in_sync();
        let live = |world: &World, uuid: &str| world.path(node, uuid, array.epoch) == LegPath::Live;
        let Some(source) = sources.iter().find(|uuid| live(self, uuid)) else { return };
        if let Some(region) = array.resync.iter().next().copied() {
            let busy = array.writes.iter().any(|write| write.region == region);
            if !busy && sources.iter().all(|uuid| live(self, uuid)) {
                let data = self.disks[source].data[region];
                for uuid in &sources {
                    self.disks.get_mut(uuid).unwrap().data[region] = data;
                }
                self.running(node).resync.remove(&region);
            }
            return;
        }
        let Some((uuid, lacks)) = array.recovery.iter().next() else { return };
        if !live(self, uuid) {
            if self.path(node, uuid, array.epoch) == LegPath::Failed {
                self.running(node).fail(uuid);
            }
            return;
        }
        if let Some(region) = lacks.iter().next().copied() {
            if array.writes.iter().any(|write| write.region == region) {
                return;
            }
            let data = self.disks[source].data[region];
            self.disks.get_mut(uuid).unwrap().data[region] = data;
            let running = self.running(node);
            running.copied += 1;
            running.recovery.get_mut(uuid).unwrap().remove(&region);
        } else {
            self.recovered(node, uuid);
        }
    }

    fn recovered(&mut self, node: usize, uuid: &str) {
        let running = self.running(node);
        running.recovery.remove(uuid);
        running.members.insert(uuid.to_owned(), MemberState::InSync);
        running.events += 1;
        running.supers = running.live();
        let all = running.live();
        for disk in all {
            self.disks.get_mut(&disk).unwrap().failed.remove(uuid);
        }
    }

    /// MD clears bits of regions that are the same everywhere.
    fn settle(&mut self, node: usize) {
        let wanted = usize::from(self.volume.spec.members());
        let array = self.nodes[node].array.clone().unwrap();
        let all = array.in_sync();
        let is_whole = all.len() == array.members.len() && all.len() >= wanted;
        let reached = all.iter().all(|it| self.path(node, it, array.epoch) == LegPath::Live);
        if !is_whole || !reached || !array.resync.is_empty() {
            return;
        }
        for region in 0..REGIONS {
            if array.writes.iter().all(|write| write.region != region) {
                for uuid in &all {
                    self.disks.get_mut(uuid).unwrap().bits[region] = false;
                }
                self.running(node).bits[region] = false;
            }
        }
    }

    /// The power of a node goes; its disks stay.
    pub(crate) fn crash(&mut self, node: usize) {
        let old = std::mem::take(&mut self.nodes[node]);
        self.note(format!("n{node}: crash"));
        self.nodes[node] = Node {
            name: old.name,
            has_api: old.has_api,
            partitions: old.partitions,
            wanted: old.wanted,
            heartbeat: old.heartbeat,
            boots: old.boots + 1,
            ..Node::default()
        };
    }

    /// Whatever was decided is forgotten, as when the daemon is killed.
    pub(crate) fn interrupt(&mut self, node: usize) {
        self.nodes[node].pending.clear();
    }
}
