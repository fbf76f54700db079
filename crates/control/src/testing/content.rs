//! What copies hold: a version number for each region, hosts that write, and what must be read.
//!
//! ```text
//!   write, flushed ──► on every copy in sync ──► only this version may be read
//!   torn write ──► on some of them, marked on all; the target dies ──► old or new may be read,
//!                  until the next target has compared the copies and made one of them win
//! ```
//!
//! Rules, noted in [`Cluster::broken`] when they are broken:
//! - What was flushed is read, whichever copy in sync is asked.
//! - The copies of a snapshot are the same, and so are those that a volume begins with.

use std::collections::{BTreeMap, BTreeSet};

use model::{
    Ana, Epoch, HostName, NodeName, ReplicaId, SnapshotId, TargetId, TargetState, VolumeId,
};

use super::Cluster;

/// How many regions a copy has.
pub(crate) const REGIONS: usize = 4;

/// For each region the number of the last write to it; zero: none.
pub type Content = [u64; REGIONS];

/// What lies on the disk of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Data {
    /// The blocks.
    pub content: Content,
    /// Regions that may be being written (write intents).
    pub(crate) marks: [bool; REGIONS],
    /// The highest epoch that has attached; lower ones are refused.
    pub(crate) fence: Option<Epoch>,
}

/// The versions of each region of a volume that a host may read.
#[derive(Clone, Debug, Default)]
pub(crate) struct History([BTreeSet<u64>; REGIONS]);

impl History {
    fn of(content: Content) -> History {
        History(content.map(|version| BTreeSet::from([version])))
    }

    /// The regions that hold something else than may be read.
    pub(crate) fn violations(&self, content: Content) -> Vec<(usize, u64)> {
        let regions = self.0.iter().zip(content).enumerate();
        let wrong = regions.filter(|(_, (may, is))| !may.contains(is));
        wrong.map(|(region, (_, is))| (region, is)).collect()
    }
}

/// A target that can write now, with the copies in sync that it writes to.
struct Writer {
    node: NodeName,
    target: TargetId,
    volume: VolumeId,
    copies: BTreeSet<ReplicaId>,
    hosts: BTreeSet<HostName>,
}

impl Cluster {
    pub(crate) fn data_of(&mut self, replica: ReplicaId) -> Option<&mut Data> {
        let mut engines = self.engines.values_mut();
        engines.find_map(|engine| engine.replicas.get_mut(&replica)).map(|copy| &mut copy.data)
    }

    /// A target attaches its copies: each remembers the epoch. Whether all of them let it.
    pub(crate) fn attach(&mut self, epoch: Epoch, copies: &BTreeSet<ReplicaId>) -> bool {
        for replica in copies {
            if self.data_of(*replica).is_some_and(|data| data.fence > Some(epoch)) {
                return false;
            }
        }
        for replica in copies {
            if let Some(data) = self.data_of(*replica) {
                data.fence = Some(epoch);
            }
        }
        true
    }

    /// A target has its copies in sync at hand: where they may differ the first of them wins, and
    /// then any of them may be read.
    pub(crate) fn reconcile(&mut self, volume: VolumeId, in_sync: &BTreeSet<ReplicaId>) {
        let data: Vec<Data> = in_sync.iter().filter_map(|id| self.data_of(*id).copied()).collect();
        let Some(first) = data.first().copied() else { return };
        let marked = |region: usize| {
            data.iter().any(|data| data.marks.get(region).copied().unwrap_or_default())
        };
        let marks: [bool; REGIONS] = std::array::from_fn(marked);
        for replica in in_sync {
            let Some(data) = self.data_of(*replica) else { continue };
            for ((to, from), marked) in data.content.iter_mut().zip(first.content).zip(marks) {
                if marked {
                    *to = from;
                }
            }
            data.marks = [false; REGIONS];
        }
        let began = History::of(first.content);
        let history = self.histories.entry(volume).or_insert(began);
        for ((may, from), marked) in history.0.iter_mut().zip(first.content).zip(marks) {
            if marked && may.contains(&from) {
                *may = BTreeSet::from([from]);
            }
        }
        for replica in in_sync {
            self.check_read(volume, *replica);
        }
    }

    /// What is read of a copy must have been written, and nothing that was flushed may lack.
    pub(crate) fn check_read(&mut self, volume: VolumeId, replica: ReplicaId) {
        let Some(content) = self.data_of(replica).map(|data| data.content) else { return };
        let Some(history) = self.histories.get(&volume) else { return };
        if self.apart.contains(&replica) {
            return;
        }
        for (region, is) in history.violations(content) {
            let may = history.0.get(region).cloned().unwrap_or_default();
            self.broken.push(format!(
                "volume {volume}: region {region} is read as {is} from copy {replica}, but what \
                 was flushed is {may:?}"
            ));
        }
    }

    /// The targets through which hosts can write.
    fn writers(&self) -> Vec<Writer> {
        let mut writers = Vec::new();
        for engine in self.engines.values().filter(|engine| engine.works()) {
            for (id, serving) in &engine.targets {
                let spec = &serving.order.spec;
                let serves = serving.status.state.serves() && spec.ana != Ana::Inaccessible;
                if !serves || spec.hosts.is_empty() {
                    continue;
                }
                let good = |child: &&model::ChildStatus| child.state == model::ChildState::InSync;
                let copies = serving.status.children.iter().filter(good);
                writers.push(Writer {
                    node: engine.name.clone(),
                    target: *id,
                    volume: spec.volume,
                    copies: copies.map(|child| child.replica).collect(),
                    hosts: spec.hosts.keys().cloned().collect(),
                });
            }
        }
        writers
    }

    /// Hosts write once to every volume that they can use, and flush.
    pub fn write_all(&mut self) {
        self.settle();
        for writer in self.writers() {
            self.write(&writer);
        }
    }

    fn write(&mut self, writer: &Writer) {
        debug_assert!(!writer.hosts.is_empty());
        self.written += 1;
        let (version, region) = (self.written, self.next_region());
        for replica in &writer.copies {
            if let Some(to) = self.data_of(*replica).and_then(|it| it.content.get_mut(region)) {
                *to = version;
            }
        }
        let history = self.histories.entry(writer.volume).or_default();
        if let Some(may) = history.0.get_mut(region) {
            *may = BTreeSet::from([version]);
        }
    }

    fn next_region(&self) -> usize {
        usize::try_from(self.written).unwrap_or(0) % REGIONS
    }

    /// The target of a volume dies in the middle of a write that only the first of its copies has;
    /// where it was. Its engine starts again at once.
    pub fn tear(&mut self, volume: VolumeId) -> Option<NodeName> {
        self.settle();
        let writer = self.writers().into_iter().find(|writer| writer.volume == volume)?;
        self.written += 1;
        let (version, region) = (self.written, self.next_region());
        for (nth, replica) in writer.copies.iter().enumerate() {
            let Some(data) = self.data_of(*replica) else { continue };
            if let Some(mark) = data.marks.get_mut(region) {
                *mark = true;
            }
            if let Some(to) = data.content.get_mut(region).filter(|_| nth == 0) {
                *to = version;
            }
        }
        let history = self.histories.entry(volume).or_default();
        if let Some(may) = history.0.get_mut(region) {
            may.insert(version);
        }
        let engine = self.engines.get_mut(&writer.node)?;
        engine.targets.remove(&writer.target);
        engine.stop();
        engine.start();
        self.settle();
        Some(writer.node)
    }

    /// Somebody said that what only lost copies hold may be lost.
    pub fn forget_history(&mut self, volume: VolumeId) {
        self.histories.remove(&volume);
    }

    /// What a copy holds.
    pub fn content(&self, replica: ReplicaId) -> Option<Content> {
        let mut engines = self.engines.values();
        engines.find_map(|it| it.replicas.get(&replica)).map(|copy| copy.data.content)
    }

    /// What each copy of a snapshot holds.
    pub fn contents_of(&self, snapshot: SnapshotId) -> BTreeMap<ReplicaId, Content> {
        let all = self.engines.values().flat_map(|engine| &engine.snapshots);
        let of_it = all.filter(|((_, id), _)| *id == snapshot);
        of_it.map(|((replica, _), kept)| (*replica, kept.content)).collect()
    }

    /// What may be read of a volume: whether each of these copies could be asked.
    pub fn may_be_read(&self, volume: VolumeId, content: Content) -> bool {
        let history = self.histories.get(&volume);
        history.is_none_or(|history| history.violations(content).is_empty())
    }
}

/// Whether a target that was in this state is not to be opened again.
pub(crate) fn is_down(state: TargetState) -> bool {
    matches!(state, TargetState::Shutdown { .. })
}
