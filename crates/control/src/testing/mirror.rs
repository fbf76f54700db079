//! Targets: what they see of their copies, and what they record.

use std::collections::{BTreeMap, BTreeSet};

use api::node::{RebuildRequest, SnapshotRequest, TargetSnapshot};
use model::envelope::decode;
use model::{
    Ana, ChildState, ChildStatus, FaultReason, Lifecycle, NodeName, Problem, ProblemKind, Rebuild,
    RebuildEvent, RebuildId, RebuildKind, RebuildPlan, ReplicaId, ReplicaSet, SetChange,
    ShutdownState, SnapshotGroup, SnapshotGroupId, SnapshotId, StopCause, SuspendReason,
    SuspendedIo, TargetId, TargetRecord, TargetSpec, TargetState, TargetStatus, Timestamp,
    VersionedSpec, keys,
};

use super::Cluster;
use super::cluster::no_engine;
use super::content::is_down;
use super::engine::{Serving, admit, missing};
use crate::controller::CallResponse;

impl Cluster {
    pub(crate) fn put_target(
        &mut self,
        node: &NodeName,
        id: TargetId,
        order: VersionedSpec<TargetSpec>,
    ) -> Result<CallResponse, Problem> {
        let volume = order.spec.volume;
        let fenced = || Problem::new(ProblemKind::Fenced, "another target owns the volume");
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
            return Err(Problem::new(ProblemKind::InUse, "the volume is served here already"));
        }
        if let Some(have) = engine.targets.get(&id) {
            admit(&order, have.order.generation, &have.order.spec)?;
            if uses_one_in_sync(&record, &have.order.spec)
                && !uses_one_in_sync(&record, &order.spec)
            {
                return Err(Problem::new(ProblemKind::LastReplica, "it is the last copy in sync"));
            }
        }
        let had = engine.targets.get(&id).map(|have| (have.status.clone(), have.set.clone()));
        let (status, set) = had.unzip();
        let status = status.unwrap_or(TargetStatus {
            state: TargetState::Init,
            children: Vec::new(),
            addresses: engine.address.data.clone(),
            connected: BTreeSet::new(),
            conflicts: Vec::new(),
        });
        engine.targets.insert(id, Serving { order, set: set.flatten(), status });
        self.settle_after(Some(volume));
        let found = self.engines.get(node).and_then(|engine| engine.target(id));
        found
            .map(|found| CallResponse::Target(Box::new(found)))
            .ok_or_else(|| missing("target", &id))
    }

    pub(crate) fn delete_target(
        &mut self,
        node: &NodeName,
        id: TargetId,
    ) -> Result<CallResponse, Problem> {
        let engine = self.engines.get_mut(node).ok_or_else(no_engine)?;
        let Some(gone) = engine.targets.remove(&id) else { return Ok(CallResponse::Gone) };
        let spec = gone.order.spec;
        // One that cannot reach its copies ends without saying that they are equal.
        if let Some((_, record)) = self.record(spec.volume)
            && gone.status.state.serves()
            && record.target() == id
            && let Ok(closed) = record.close(spec.epoch)
            && record.end() == ShutdownState::Unclean
        {
            self.put_record(&closed);
        }
        Ok(CallResponse::Gone)
    }

    pub(crate) fn put_target_snapshot(
        &mut self,
        node: &NodeName,
        target: TargetId,
        snapshot: SnapshotId,
        request: SnapshotRequest,
    ) -> Result<CallResponse, Problem> {
        let engine = self.engines.get(node).ok_or_else(no_engine)?;
        let Some(serving) = engine.targets.get(&target) else {
            return Err(missing("target", &target));
        };
        let not_held = request.group.and_then(|group| self.not_held(group));
        let in_sync = |child: &&ChildStatus| child.state == ChildState::InSync;
        let replicas: BTreeSet<ReplicaId> =
            serving.status.children.iter().filter(in_sync).map(|child| child.replica).collect();
        self.broken.extend(not_held);
        if replicas.is_empty() {
            return Err(Problem::new(ProblemKind::Unavailable, "no copy in sync answers"));
        }
        for engine in self.engines.values_mut() {
            for replica in &replicas {
                if engine.replicas.contains_key(replica) {
                    engine.put_snapshot(*replica, snapshot, &request)?;
                }
            }
        }
        Ok(CallResponse::TargetSnapshot(Box::new(TargetSnapshot { snapshot, request, replicas })))
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
        let open = served.find(|it| {
            let spec = &it.order.spec;
            takes && spec.ana != Ana::Inaccessible && !spec.hosts.is_empty()
        })?;
        Some(format!("hosts write to volume {} of {group:?}", open.order.spec.volume))
    }

    /// So many rebuilds of a copy have ended, the last three of them badly, and the engine of the
    /// target tells of all of them.
    pub fn end_rebuilds(&mut self, volume: model::VolumeId, replica: ReplicaId, count: u32) {
        let serving = |engine: &super::Engine| {
            let mut targets = engine.targets.iter();
            targets.find(|(_, it)| it.order.spec.volume == volume).map(|(id, _)| *id)
        };
        let found = self.engines.values_mut().find_map(|it| Some((serving(it)?, it)));
        let Some((target, engine)) = found else { return };
        for number in 1..=count {
            let at = Timestamp::from_millis(number.into());
            let id = uuid::Uuid::from_u128((1 << 100) | u128::from(number));
            let (sources, extent) = (BTreeSet::new(), RebuildKind::Full);
            let plan = RebuildPlan { volume, target, replica, sources, extent };
            let Ok(id) = RebuildId::new(id) else { continue };
            let mut rebuild = Rebuild::new(id, plan, at);
            let end = if number + 3 > count {
                RebuildEvent::Fail(Problem::new(ProblemKind::Internal, "simulated"))
            } else {
                RebuildEvent::Finish
            };
            let ended = rebuild.on(RebuildEvent::Start, at).and_then(|()| rebuild.on(end, at));
            engine.rebuilds.extend(ended.is_ok().then_some(rebuild));
        }
    }

    pub(crate) fn put_rebuild(
        &mut self,
        node: &NodeName,
        id: RebuildId,
        request: &RebuildRequest,
    ) -> Result<CallResponse, Problem> {
        let engine = self.engines.get(node).ok_or_else(no_engine)?;
        let Some(serving) = engine.targets.get(&request.target) else {
            return Err(missing("target", &request.target));
        };
        let volume = serving.order.spec.volume;
        let child = serving.status.children.iter().find(|child| child.replica == request.replica);
        if child.is_none_or(|child| child.state != ChildState::Stale) {
            return Err(Problem::new(ProblemKind::Busy, "the child is not stale"));
        }
        let (_, record) = self.record(volume).ok_or_else(no_engine)?;
        let set = record.set().on(SetChange::Synced(request.replica))?;
        let source = record.set().in_sync().iter().find_map(|it| self.content(*it));
        if let (Some(content), Some(to)) = (source, self.data_of(request.replica)) {
            to.content = content;
        }
        let synced = record.record(record.epoch(), set)?;
        self.put_record(&synced);
        let plan = RebuildPlan {
            volume,
            target: request.target,
            replica: request.replica,
            sources: record.set().in_sync().clone(),
            extent: RebuildKind::Full,
        };
        let mut rebuild = Rebuild::new(id, plan, Timestamp::EPOCH);
        rebuild.on(RebuildEvent::Start, Timestamp::EPOCH)?;
        rebuild.on(RebuildEvent::Finish, Timestamp::EPOCH)?;
        let engine = self.engines.get_mut(node).ok_or_else(no_engine)?;
        engine.rebuilds.push(rebuild.clone());
        self.settle();
        Ok(CallResponse::Rebuild(Box::new(rebuild)))
    }

    /// Lets each target see what has become of its copies, and record it.
    pub fn settle(&mut self) {
        self.settle_some(|_| true);
    }

    /// The same for some of them.
    pub(crate) fn settle_some(&mut self, looks: impl Fn(&TargetSpec) -> bool) {
        let targets: Vec<(NodeName, TargetId, TargetSpec)> = self
            .engines
            .values()
            .filter(|engine| engine.works())
            .flat_map(|engine| {
                let targets = engine.targets.iter().filter(|(_, it)| looks(&it.order.spec));
                targets.map(|(id, it)| (engine.name.clone(), *id, it.order.spec.clone()))
            })
            .collect();
        for (node, id, spec) in targets {
            let had = self.engines.get(&node).and_then(|it| it.targets.get(&id));
            if had.is_some_and(|had| is_down(had.status.state)) {
                continue;
            }
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
        if spec.shutdown {
            return (TargetState::Shutdown { cause: StopCause::Ordered }, Vec::new());
        }
        let children = spec.children.iter().map(|child| child.replica);
        let reached: BTreeMap<ReplicaId, bool> =
            children.map(|replica| (replica, self.reaches(node, replica))).collect();
        let at_hand: BTreeSet<ReplicaId> =
            reached.iter().filter(|(_, reached)| **reached).map(|(id, _)| *id).collect();
        if !self.attach(spec.epoch, &at_hand) {
            return (TargetState::Shutdown { cause: StopCause::Fenced }, Vec::new());
        }
        let serving = self.engines.get(node).and_then(|it| it.targets.get(&id));
        let known = serving.and_then(|serving| serving.set.clone());
        let record = match self.record(spec.volume) {
            Some((_, record)) if record.target() == id && record.epoch() == spec.epoch => record,
            Some((_, record)) if record.epoch() >= spec.epoch => {
                return (TargetState::Shutdown { cause: StopCause::Fenced }, Vec::new());
            }
            _ => return self.carry_on(spec, known, &reached),
        };
        // What it recorded itself it knows, although the store may have gone back since.
        let newer = |known: &ReplicaSet| known.generation() > record.set().generation();
        let mut set = known.filter(newer).unwrap_or_else(|| record.set().clone());
        for replica in reached.keys() {
            set = set.on(SetChange::Added(*replica)).unwrap_or(set);
        }
        let is_ours = |replica: &ReplicaId| at_hand.contains(replica);
        if !set.in_sync().iter().any(is_ours) {
            let state =
                TargetState::Suspended { cause: SuspendReason::NoChild, io: SuspendedIo::Waiting };
            return (state, children_of(record.set(), &reached));
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
        let serving = self.engines.get_mut(node).and_then(|it| it.targets.get_mut(&id));
        if let Some(serving) = serving {
            serving.set = Some(record.set().clone());
        }
        self.serve(spec, record.set(), &reached)
    }

    /// A target uses its copies in sync, and keeps labels with them.
    fn serve(
        &mut self,
        spec: &TargetSpec,
        set: &ReplicaSet,
        reached: &BTreeMap<ReplicaId, bool>,
    ) -> (TargetState, Vec<ChildStatus>) {
        let at_hand = |id: &&ReplicaId| reached.get(id).copied().unwrap_or(false);
        let in_sync: BTreeSet<ReplicaId> = set.in_sync().iter().filter(at_hand).copied().collect();
        self.reconcile(spec.volume, &in_sync);
        for replica in in_sync {
            for engine in self.engines.values_mut() {
                engine.label(replica, spec, set);
            }
        }
        let state = if set.is_whole() { TargetState::Open } else { TargetState::Degraded };
        (state, children_of(set, reached))
    }

    /// The store has lost the record, or went back: a target goes on with the copies it has, but
    /// can record nothing.
    fn carry_on(
        &mut self,
        spec: &TargetSpec,
        known: Option<ReplicaSet>,
        reached: &BTreeMap<ReplicaId, bool>,
    ) -> (TargetState, Vec<ChildStatus>) {
        let Some(set) = known else { return (TargetState::Init, Vec::new()) };
        let at_hand = |id: &ReplicaId| reached.get(id).copied().unwrap_or(false);
        if set.in_sync().iter().all(at_hand) {
            return self.serve(spec, &set, reached);
        }
        let state =
            TargetState::Suspended { cause: SuspendReason::NotRecorded, io: SuspendedIo::Waiting };
        (state, children_of(&set, reached))
    }

    /// Whether a node may use a copy now.
    fn reaches(&self, node: &NodeName, replica: ReplicaId) -> bool {
        let Some(nqn) = self.engines.get(node).map(|engine| &engine.address.nqn) else {
            return false;
        };
        self.engines.values().filter(|engine| engine.works()).any(|engine| {
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

fn children_of(set: &ReplicaSet, reached: &BTreeMap<ReplicaId, bool>) -> Vec<ChildStatus> {
    let child = |(replica, reached): (&ReplicaId, &bool)| {
        let state = match (reached, set.in_sync().contains(replica)) {
            (true, true) => ChildState::InSync,
            (true, false) => ChildState::Stale,
            (false, _) => ChildState::Faulted { reason: FaultReason::ConnectionLost },
        };
        ChildStatus { replica: *replica, state, progress: None }
    };
    reached.iter().map(child).collect()
}
