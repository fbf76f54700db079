//! Targets: what they see of their copies, and what they record.

use std::collections::{BTreeMap, BTreeSet};

use api::node::{RebuildWish, SnapshotWish, TargetSnapshot};
use model::stored::decode;
use model::{
    Ana, ChildState, ChildStatus, End, Extent, FaultReason, HeldIo, HoldCause, Kind, Lifecycle,
    NodeName, Order, Problem, Rebuild, RebuildEvent, RebuildId, RebuildPlan, ReplicaId, SetChange,
    SnapshotGroup, SnapshotGroupId, SnapshotId, StopCause, TargetId, TargetRecord, TargetSpec,
    TargetState, TargetStatus, Timestamp, keys,
};

use super::Cluster;
use super::cluster::no_engine;
use super::engine::{Serving, admit, missing};
use crate::core::Answer;

impl Cluster {
    pub(crate) fn put_target(
        &mut self,
        node: &NodeName,
        id: TargetId,
        order: Order<TargetSpec>,
    ) -> Result<Answer, Problem> {
        let volume = order.spec.volume;
        let fenced = || Problem::new(Kind::Fenced, "another target owns the volume");
        let owns = |(_, record): &(_, TargetRecord)| {
            record.target() == id && record.epoch() == order.spec.epoch
        };
        let (_, record) = self.record(volume).filter(owns).ok_or_else(fenced)?;
        let engine = self.engines.get_mut(node).ok_or_else(no_engine)?;
        let other = engine
            .targets
            .iter()
            .find(|(other, serving)| **other != id && serving.order.spec.volume == volume);
        if other.is_some() {
            return Err(Problem::new(Kind::InUse, "the volume is served here already"));
        }
        if let Some(have) = engine.targets.get(&id) {
            admit(&order, have.order.generation, &have.order.spec)?;
            if uses_one_in_sync(&record, &have.order.spec)
                && !uses_one_in_sync(&record, &order.spec)
            {
                return Err(Problem::new(Kind::LastReplica, "it is the last copy in sync"));
            }
        }
        let status = engine.targets.get(&id).map(|have| have.status.clone());
        let status = status.unwrap_or(TargetStatus {
            state: TargetState::Init,
            children: Vec::new(),
            addresses: engine.address.data.clone(),
            connected: BTreeSet::new(),
        });
        engine.targets.insert(id, Serving { order, status });
        self.settle();
        let found = self.engines.get(node).and_then(|engine| engine.target(id));
        found.map(|found| Answer::Target(Box::new(found))).ok_or_else(|| missing("target", &id))
    }

    pub(crate) fn delete_target(
        &mut self,
        node: &NodeName,
        id: TargetId,
    ) -> Result<Answer, Problem> {
        let engine = self.engines.get_mut(node).ok_or_else(no_engine)?;
        let Some(gone) = engine.targets.remove(&id) else { return Ok(Answer::Gone) };
        let spec = gone.order.spec;
        if let Some((_, record)) = self.record(spec.volume)
            && record.target() == id
            && let Ok(closed) = record.close(spec.epoch)
            && record.end() == End::Unclean
        {
            self.put_record(&closed);
        }
        Ok(Answer::Gone)
    }

    pub(crate) fn put_target_snapshot(
        &mut self,
        node: &NodeName,
        target: TargetId,
        snapshot: SnapshotId,
        wish: SnapshotWish,
    ) -> Result<Answer, Problem> {
        let engine = self.engines.get(node).ok_or_else(no_engine)?;
        let Some(serving) = engine.targets.get(&target) else {
            return Err(missing("target", &target));
        };
        let not_held = wish.group.and_then(|group| self.not_held(group));
        let in_sync = |child: &&ChildStatus| child.state == ChildState::InSync;
        let replicas: BTreeSet<ReplicaId> =
            serving.status.children.iter().filter(in_sync).map(|child| child.replica).collect();
        self.broken.extend(not_held);
        if replicas.is_empty() {
            return Err(Problem::new(Kind::Unavailable, "no copy in sync answers"));
        }
        for engine in self.engines.values_mut() {
            for replica in &replicas {
                if engine.replicas.contains_key(replica) {
                    engine.put_snapshot(*replica, snapshot, &wish)?;
                }
            }
        }
        Ok(Answer::TargetSnapshot(Box::new(TargetSnapshot { snapshot, wish, replicas })))
    }

    /// While a group is being taken, no host may write to any of its volumes.
    fn not_held(&self, group: SnapshotGroupId) -> Option<String> {
        let key = keys::of::<SnapshotGroup>(group);
        let records = self.records();
        let found = records.iter().find(|found| *found.key == *key.as_bytes())?;
        let group = decode::<SnapshotGroup>(&found.value).ok()?;
        let takes = matches!(group.lifecycle(), Lifecycle::Creating {});
        let volumes = &group.spec().snapshots;
        let targets = self.engines.values().flat_map(|engine| engine.targets.values());
        let served = targets.filter(|it| volumes.contains_key(&it.order.spec.volume));
        let mut served = served.filter(|it| it.status.state.serves());
        let open = served.find(|it| takes && it.order.spec.ana != Ana::Inaccessible)?;
        Some(format!("hosts write to volume {} of {group:?}", open.order.spec.volume))
    }

    pub(crate) fn put_rebuild(
        &mut self,
        node: &NodeName,
        id: RebuildId,
        wish: &RebuildWish,
    ) -> Result<Answer, Problem> {
        let engine = self.engines.get(node).ok_or_else(no_engine)?;
        let Some(serving) = engine.targets.get(&wish.target) else {
            return Err(missing("target", &wish.target));
        };
        let volume = serving.order.spec.volume;
        let child = serving.status.children.iter().find(|child| child.replica == wish.replica);
        if child.is_none_or(|child| child.state != ChildState::Stale) {
            return Err(Problem::new(Kind::Busy, "the child is not stale"));
        }
        let (_, record) = self.record(volume).ok_or_else(no_engine)?;
        let set = record.set().on(SetChange::Synced(wish.replica))?;
        self.put_record(&record.record(record.epoch(), set)?);
        let plan = RebuildPlan {
            volume,
            target: wish.target,
            replica: wish.replica,
            sources: record.set().in_sync().clone(),
            extent: Extent::Full,
        };
        let mut rebuild = Rebuild::new(id, plan, Timestamp::EPOCH);
        rebuild.on(RebuildEvent::Start, Timestamp::EPOCH)?;
        rebuild.on(RebuildEvent::Finish, Timestamp::EPOCH)?;
        let engine = self.engines.get_mut(node).ok_or_else(no_engine)?;
        engine.rebuilds.push(rebuild.clone());
        self.settle();
        Ok(Answer::Rebuild(Box::new(rebuild)))
    }

    /// Lets each target see what has become of its copies, and record it.
    pub fn settle(&mut self) {
        let targets: Vec<(NodeName, TargetId, TargetSpec)> = self
            .engines
            .values()
            .filter(|engine| engine.up)
            .flat_map(|engine| {
                let targets = engine.targets.iter();
                targets.map(|(id, it)| (engine.name.clone(), *id, it.order.spec.clone()))
            })
            .collect();
        for (node, id, spec) in targets {
            let (state, children) = self.look(&node, id, &spec);
            let serving = self.engines.get_mut(&node).and_then(|it| it.targets.get_mut(&id));
            if let Some(serving) = serving {
                (serving.status.state, serving.status.children) = (state, children);
            }
        }
    }

    fn look(
        &mut self,
        node: &NodeName,
        id: TargetId,
        spec: &TargetSpec,
    ) -> (TargetState, Vec<ChildStatus>) {
        let owned = self.record(spec.volume).map(|(_, record)| record);
        let Some(record) = owned.filter(|it| it.target() == id && it.epoch() == spec.epoch) else {
            return (TargetState::Shutdown { cause: StopCause::Fenced }, Vec::new());
        };
        if spec.shutdown {
            return (TargetState::Shutdown { cause: StopCause::Ordered }, Vec::new());
        }
        let mut set = record.set().clone();
        let mut reached = BTreeMap::new();
        for child in &spec.children {
            set = set.on(SetChange::Added(child.replica)).unwrap_or(set);
            reached.insert(child.replica, self.reaches(node, child.replica));
        }
        let is_ours = |replica: &ReplicaId| reached.get(replica).copied().unwrap_or(false);
        if !set.in_sync().iter().any(is_ours) {
            let state = TargetState::Held { cause: HoldCause::NoChild, io: HeldIo::Waiting };
            return (state, children_of(&record, &reached));
        }
        for (replica, reached) in &reached {
            if !reached {
                set = set.on(SetChange::Stale(*replica)).unwrap_or(set);
            }
        }
        for replica in set.replicas().clone() {
            if !reached.contains_key(&replica) {
                set = set.on(SetChange::Removed(replica)).unwrap_or(set);
            }
        }
        let changed = set != *record.set();
        let next = if changed { record.record(spec.epoch, set.clone()).ok() } else { None };
        let record = next.inspect(|record| self.put_record(record)).unwrap_or(record);
        for replica in reached.iter().filter(|(_, reached)| **reached).map(|(id, _)| *id) {
            for engine in self.engines.values_mut() {
                engine.label(replica, spec.epoch, record.set());
            }
        }
        let state = if record.set().is_whole() { TargetState::Open } else { TargetState::Degraded };
        (state, children_of(&record, &reached))
    }

    /// Whether a node may use a copy now.
    fn reaches(&self, node: &NodeName, replica: ReplicaId) -> bool {
        let Some(nqn) = self.engines.get(node).map(|engine| &engine.address.nqn) else {
            return false;
        };
        self.engines.values().filter(|engine| engine.up).any(|engine| {
            let copy = engine.replicas.get(&replica);
            let copy = copy.filter(|copy| engine.has_open(&copy.spec.pool));
            copy.is_some_and(|copy| copy.spec.hosts.contains(nqn))
        })
    }
}

fn uses_one_in_sync(record: &TargetRecord, spec: &TargetSpec) -> bool {
    let mut used = spec.children.iter().filter(|child| !child.offline);
    used.any(|child| record.set().in_sync().contains(&child.replica))
}

fn children_of(record: &TargetRecord, reached: &BTreeMap<ReplicaId, bool>) -> Vec<ChildStatus> {
    let child = |(replica, reached): (&ReplicaId, &bool)| {
        let state = match (reached, record.set().in_sync().contains(replica)) {
            (true, true) => ChildState::InSync,
            (true, false) => ChildState::Stale,
            (false, _) => ChildState::Faulted { reason: FaultReason::ConnectionLost },
        };
        ChildStatus { replica: *replica, state, progress: None }
    };
    reached.iter().map(child).collect()
}
