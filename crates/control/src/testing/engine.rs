//! One engine: what it holds, and how it takes orders.

use std::collections::{BTreeMap, BTreeSet};

use api::node::{
    CheckRequest, DeletePool, DeleteReplica, Observed, ObservedSnapshot, Scrub, ScrubState,
    SnapshotRequest,
};
use model::{
    Admission, DiskStatus, Encryption, Generation, Heartbeat, InstanceId, NodeAddress, NodeName,
    Nqn, PoolName, PoolSpec, PoolState, PoolStatus, PoolUuid, Problem, ProblemKind, Progress,
    Rebuild, ReplicaId, ReplicaLabel, ReplicaSet, ReplicaSpec, ReplicaState, ReplicaStatus, Size,
    SnapshotId, SnapshotLabel, SpecBackup, StoreMark, TargetId, TargetSpec, TargetStatus,
    Timestamp, Usage, VersionedSpec, VolumeId,
};
use uuid::Uuid;

use super::content::{Content, Data};
use crate::controller::{Call, CallResponse, Inventory};

/// One machine with its engine.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fault of its own")]
pub struct Engine {
    /// Its name.
    pub name: NodeName,
    /// Whether it runs.
    pub up: bool,
    /// Whether the control plane cannot reach it; hosts and other engines can.
    pub cut_off: bool,
    /// Whether it only shows that it is there: it answers nobody, and none of its I/O ends.
    pub hung: bool,
    /// Whether it carries out no order; it says what it has.
    pub refuses: bool,
    /// How much each of its pools holds.
    pub capacity: Size,
    pub(crate) address: NodeAddress,
    pub(crate) instance: InstanceId,
    pub(crate) pools: BTreeMap<PoolName, (Option<Generation>, PoolSpec)>,
    /// Its copies.
    pub replicas: BTreeMap<ReplicaId, Copy>,
    /// Its targets.
    pub targets: BTreeMap<TargetId, Serving>,
    pub(crate) snapshots: BTreeMap<(ReplicaId, SnapshotId), SnapshotReplica>,
    pub(crate) rebuilds: Vec<Rebuild>,
    /// Pools whose disks hang here, whether it uses them or not.
    pub disks: BTreeSet<PoolName>,
    /// How much is written to each of its copies.
    pub written: Size,
    /// How far the store had come, as it was last told.
    pub told: Option<StoreMark>,
    /// Blocks that its targets have compared.
    pub compared: u64,
    /// Blocks of each of its copies that a scrub finds bad, until a target of the volume has
    /// repaired them.
    pub rot: BTreeMap<ReplicaId, u64>,
    /// How many times it will not say what it has.
    pub mute: u32,
    /// Orders to delete that must not be undone by late ones.
    deleted: BTreeMap<ReplicaId, Generation>,
}

/// A copy on an engine.
#[derive(Clone, Debug)]
pub struct Copy {
    /// Of which volume.
    pub volume: VolumeId,
    pub(crate) generation: Option<Generation>,
    /// What was last ordered of it.
    pub spec: ReplicaSpec,
    /// What is written with it.
    pub label: Option<ReplicaLabel>,
    /// What is written of its volume.
    pub spec_backup: Option<SpecBackup>,
    /// Its blocks.
    pub data: Data,
}

/// A copy of a snapshot on an engine.
#[derive(Clone, Debug)]
pub(crate) struct SnapshotReplica {
    pub(crate) label: SnapshotLabel,
    pub(crate) pool: PoolName,
    pub(crate) content: Content,
}

impl Copy {
    /// How it is encrypted.
    pub fn key(&self) -> Option<&Encryption> {
        self.spec.encryption.as_ref()
    }
}

/// A target on an engine.
#[derive(Clone, Debug)]
pub struct Serving {
    pub(crate) order: VersionedSpec<TargetSpec>,
    /// The copies as it last recorded them.
    pub(crate) set: Option<ReplicaSet>,
    /// What it sees.
    pub status: TargetStatus,
}

fn good<T: std::str::FromStr<Err: std::fmt::Debug>>(text: &str) -> T {
    text.parse().unwrap_or_else(|error| unreachable!("{text}: {error:?}"))
}

fn uuid(bits: u128) -> Uuid {
    Uuid::from_u128(bits)
}

fn instance(bits: u128) -> InstanceId {
    InstanceId::new(uuid(bits)).unwrap_or_else(|error| unreachable!("{error}"))
}

impl Engine {
    pub(crate) fn new(at: usize) -> Engine {
        let name: NodeName = good(&format!("n{at}"));
        let (high, low) = (at / 250, at % 250 + 1);
        let nqn = Nqn::node(&name).unwrap_or_else(|error| unreachable!("{error}"));
        let data = vec![good(&format!("10.1.{high}.{low}:4420"))];
        let address = NodeAddress { api: good(&format!("10.0.{high}.{low}:8421")), data, nqn };
        let bits = u128::try_from(at).unwrap_or(1) << 64 | 1;
        Engine {
            name,
            up: true,
            cut_off: false,
            hung: false,
            refuses: false,
            capacity: Size::gib(100),
            address,
            instance: instance(bits),
            pools: BTreeMap::new(),
            replicas: BTreeMap::new(),
            targets: BTreeMap::new(),
            snapshots: BTreeMap::new(),
            rebuilds: Vec::new(),
            disks: BTreeSet::new(),
            written: Size::ZERO,
            told: None,
            compared: 0,
            rot: BTreeMap::new(),
            mute: 0,
            deleted: BTreeMap::new(),
        }
    }

    /// The machine stops; its targets with it.
    pub fn stop(&mut self) {
        self.up = false;
        self.targets.clear();
        self.rebuilds.clear();
        self.deleted.clear();
        for (generation, _) in self.pools.values_mut() {
            *generation = None;
        }
        for replica in self.replicas.values_mut() {
            replica.generation = None;
            replica.spec.hosts.clear();
        }
    }

    /// Whether its targets and copies do anything.
    pub(crate) fn works(&self) -> bool {
        self.up && !self.hung
    }

    /// It comes back, with its disks.
    pub fn start(&mut self) {
        (self.up, self.hung) = (true, false);
        let next = self.instance.uuid().as_u128() + 1;
        self.instance = instance(next);
    }

    /// Somebody puts an empty disk where that of a pool was.
    pub fn swap_disk(&mut self, pool: &PoolName) {
        self.pools.remove(pool);
        self.replicas.retain(|_, copy| copy.spec.pool != *pool);
        self.disks.remove(pool);
    }

    /// Copies of snapshots: of which copy, which snapshot.
    pub fn snapshot_ids(&self) -> impl Iterator<Item = (ReplicaId, SnapshotId)> {
        self.snapshots.keys().copied()
    }

    /// The volume that a call is about.
    pub(crate) fn volume_of(&self, call: &Call) -> Option<VolumeId> {
        let of_target = |id| self.targets.get(id).map(|it| it.order.spec.volume);
        let of_copy = |id| self.replicas.get(id).map(|copy: &Copy| copy.volume);
        match call {
            Call::PutReplica(_, order) => Some(order.spec.volume),
            Call::PutTarget(_, order) => Some(order.spec.volume),
            Call::DeleteTarget(id, _) | Call::PutTargetSnapshot(id, ..) => of_target(id),
            Call::DeleteReplica(id, _)
            | Call::PutSnapshot(id, ..)
            | Call::DeleteSnapshot(id, ..) => of_copy(id),
            Call::PutRebuild(_, order) => of_target(&order.spec.target),
            // Targets see nothing of the others.
            _ => None,
        }
    }

    /// What it sends to show that it is there.
    pub fn heartbeat(&self) -> Heartbeat<NodeAddress> {
        let (instance, address, told) = (self.instance, self.address.clone(), self.told);
        Heartbeat { instance, version: "0.0.0".into(), address, told }
    }

    pub(crate) fn list(&self) -> Inventory {
        let replicas = self.replicas.iter().filter(|(_, copy)| self.has_open(&copy.spec.pool));
        let snapshots = self.snapshots.values().filter(|kept| self.has_open(&kept.pool));
        Inventory {
            pools: self.pools.keys().filter_map(|name| self.pool(name)).collect(),
            replicas: replicas.filter_map(|(id, _)| self.replica(*id)).collect(),
            targets: self.targets.keys().filter_map(|id| self.target(*id)).collect(),
            snapshots: snapshots.map(found_snapshot).collect(),
            rebuilds: self.rebuilds.clone(),
        }
    }

    /// Which pool has this name.
    pub fn pool_uuid(&self, pool: &PoolName) -> Option<PoolUuid> {
        self.pools.get(pool).and_then(|(_, spec)| spec.uuid)
    }

    /// Whether it uses a pool.
    pub fn has_open(&self, pool: &PoolName) -> bool {
        self.pools.get(pool).is_some_and(|(_, spec)| !spec.exported)
    }

    /// Nobody can say what is in a pool that it does not use.
    fn expect_open(&self, pool: &PoolName) -> Result<(), Problem> {
        if self.has_open(pool) { Ok(()) } else { Err(missing("pool", pool)) }
    }

    fn pool(&self, name: &PoolName) -> Option<Observed<PoolSpec>> {
        let (generation, spec) = self.pools.get(name)?;
        let here = self.replicas.values().filter(|it| it.spec.pool == *name);
        let committed = here.fold(Size::ZERO, |sum, it| sum.plus(it.spec.size));
        let uuid = spec.uuid.or_else(|| PoolUuid::new(uuid(7)).ok())?;
        let path = spec.disks.first()?.clone();
        let (io_errors, checksum_errors, stalls) = (0, 0, 0);
        let size = self.capacity;
        let disk = DiskStatus { path, size, io_errors, checksum_errors, stalls };
        let copies = self.replicas.values().filter(|it| it.spec.pool == *name);
        let status = PoolStatus {
            state: if spec.exported { PoolState::Offline } else { PoolState::Online },
            uuid,
            capacity: self.capacity,
            used: copies.fold(Size::ZERO, |sum, _| sum.plus(self.written)),
            committed,
            cluster_size: Size::mib(1),
            disks: vec![disk],
        };
        Some(Observed { id: name.clone(), generation: *generation, spec: spec.clone(), status })
    }

    pub(crate) fn replica(&self, id: ReplicaId) -> Option<Observed<ReplicaSpec>> {
        let replica = self.replicas.get(&id)?;
        let (capacity, allocated) = (replica.spec.size, self.written);
        let usage = Usage { capacity, allocated, ..Usage::default() };
        let status = ReplicaStatus {
            state: ReplicaState::Online,
            usage,
            label: replica.label.clone(),
            fence: replica.data.fence,
            spec_backup: replica.spec_backup.clone(),
            addresses: Vec::new(),
        };
        let (generation, spec) = (replica.generation, replica.spec.clone());
        Some(Observed { id, generation, spec, status })
    }

    pub(crate) fn target(&self, id: TargetId) -> Option<Observed<TargetSpec>> {
        let serving = self.targets.get(&id)?;
        let generation = Some(serving.order.generation);
        let (spec, status) = (serving.order.spec.clone(), serving.status.clone());
        Some(Observed { id, generation, spec, status })
    }

    pub(crate) fn put_pool(
        &mut self,
        name: &PoolName,
        order: &VersionedSpec<PoolSpec>,
    ) -> Result<CallResponse, Problem> {
        if order.spec.node != self.name {
            let detail = format!("this is the engine of node {}", self.name);
            return Err(Problem::new(ProblemKind::InvalidArgument, detail));
        }
        if let Some((Some(have), spec)) = self.pools.get(name) {
            admit(order, *have, spec)?;
        }
        let had = self.pools.get(name).and_then(|(_, spec)| spec.uuid);
        if had.is_some_and(|had| order.spec.uuid.is_some_and(|wanted| wanted != had)) {
            let detail = format!("there is another pool {name}");
            return Err(Problem::new(ProblemKind::AlreadyExists, detail));
        }
        let has_disks = self.disks.contains(name);
        let is_missing = if order.spec.exported {
            !self.pools.contains_key(name)
        } else {
            order.spec.import && !has_disks
        };
        let mut copies = self.replicas.values().filter(|it| it.spec.pool == *name);
        if is_missing {
            return Err(missing("pool", name));
        }
        if order.spec.exported && copies.any(|copy| !copy.spec.hosts.is_empty()) {
            return Err(Problem::new(
                ProblemKind::InUse,
                format!("pool {name} has shared replicas"),
            ));
        }
        if !order.spec.exported {
            self.disks.insert(name.clone());
        }
        self.pools.insert(name.clone(), (Some(order.generation), order.spec.clone()));
        let found = self.pool(name);
        found.map(|found| CallResponse::Pool(Box::new(found))).ok_or_else(|| missing("pool", name))
    }

    pub(crate) fn delete_pool(
        &mut self,
        name: &PoolName,
        order: &DeletePool,
    ) -> Result<CallResponse, Problem> {
        // Another one of that name stays.
        if self.pool(name).is_some_and(|found| found.status.uuid != order.uuid) {
            return Ok(CallResponse::Gone);
        }
        // One that was handed over is forgotten, and its disks stay as they are.
        if self.has_open(name) {
            if self.replicas.values().any(|it| it.spec.pool == *name) {
                return Err(Problem::new(ProblemKind::InUse, format!("pool {name} has replicas")));
            }
            self.disks.remove(name);
        }
        self.pools.remove(name);
        Ok(CallResponse::Gone)
    }

    pub(crate) fn put_replica(
        &mut self,
        id: ReplicaId,
        order: VersionedSpec<ReplicaSpec>,
    ) -> Result<CallResponse, Problem> {
        self.expect_open(&order.spec.pool)?;
        if self.deleted.get(&id).is_some_and(|deleted| *deleted >= order.generation) {
            return Err(Problem::new(ProblemKind::StaleGeneration, "it was deleted since"));
        }
        let have = self.replicas.get(&id);
        let mut data = have.map(|have| have.data).unwrap_or_default();
        if let Some(source) = order.spec.source.filter(|_| have.is_none()) {
            let mut here = self.snapshots.iter();
            let found = here.find(|((_, it), kept)| *it == source && kept.pool == order.spec.pool);
            let (_, kept) = found.ok_or_else(|| missing("snapshot", &source))?;
            data.content = kept.content;
        }
        if let Some((Some(generation), have)) = have.map(|it| (it.generation, &it.spec)) {
            admit(&order, generation, have)?;
        }
        let label = have.and_then(|have| have.label.clone());
        let spec_backup = have.and_then(|have| have.spec_backup.clone());
        let volume = order.spec.volume;
        let generation = Some(order.generation);
        let copy = Copy { volume, generation, spec: order.spec, label, spec_backup, data };
        self.replicas.insert(id, copy);
        let found = self.replica(id);
        found
            .map(|found| CallResponse::Replica(Box::new(found)))
            .ok_or_else(|| missing("replica", &id))
    }

    pub(crate) fn put_spec_backup(
        &mut self,
        id: ReplicaId,
        spec_backup: SpecBackup,
    ) -> Result<CallResponse, Problem> {
        let copy = self.replicas.get_mut(&id).ok_or_else(|| missing("replica", &id))?;
        if copy.spec_backup.as_ref().is_some_and(|have| have.generation > spec_backup.generation) {
            return Err(Problem::new(ProblemKind::StaleGeneration, "a newer one is written"));
        }
        copy.spec_backup = Some(spec_backup);
        Ok(CallResponse::SpecBackup)
    }

    pub(crate) fn delete_replica(
        &mut self,
        id: ReplicaId,
        order: &DeleteReplica,
    ) -> Result<CallResponse, Problem> {
        self.expect_open(&order.pool)?;
        self.deleted.insert(id, order.generation);
        self.replicas.remove(&id);
        Ok(CallResponse::Gone)
    }

    pub(crate) fn put_snapshot(
        &mut self,
        replica: ReplicaId,
        id: SnapshotId,
        request: &SnapshotRequest,
    ) -> Result<CallResponse, Problem> {
        let copy = self.replicas.get(&replica).filter(|copy| self.has_open(&copy.spec.pool));
        let Some(copy) = copy else {
            return Err(missing("replica", &replica));
        };
        let SnapshotRequest { group, taken_at, consistency } = request.clone();
        let (volume, size) = (copy.volume, copy.spec.size);
        let snapshot = id;
        let label = SnapshotLabel { snapshot, volume, replica, group, taken_at, size, consistency };
        let (pool, content) = (copy.spec.pool.clone(), copy.data.content);
        // Asked twice, it is the one that was taken first.
        let kept =
            self.snapshots.entry((replica, id)).or_insert(SnapshotReplica { label, pool, content });
        Ok(CallResponse::Snapshot(Box::new(found_snapshot(kept))))
    }

    pub(crate) fn delete_snapshot(
        &mut self,
        snapshot: (ReplicaId, SnapshotId),
        pool: &PoolName,
    ) -> Result<CallResponse, Problem> {
        self.expect_open(pool)?;
        self.snapshots.remove(&snapshot);
        Ok(CallResponse::Gone)
    }

    /// A scrub, which ends when what it found is repaired.
    pub(crate) fn scrub(
        &mut self,
        replica: ReplicaId,
        is_served: bool,
    ) -> Result<CallResponse, Problem> {
        if !self.replicas.contains_key(&replica) {
            return Err(missing("replica", &replica));
        }
        let bad_blocks = self.rot.get(&replica).copied().unwrap_or(0);
        if is_served {
            self.rot.remove(&replica);
        }
        let is_over = is_served || bad_blocks == 0;
        Ok(CallResponse::Scrub(Box::new(Scrub {
            generation: Generation::FIRST,
            state: if is_over { ScrubState::Completed {} } else { ScrubState::Running {} },
            progress: Progress::default(),
            bad_blocks,
            repaired_blocks: if is_over { bad_blocks } else { 0 },
            bad_in_snapshots: 0,
            started_at: Timestamp::from_millis(0),
            ended_at: None,
        })))
    }

    /// What a target finds in a part of its volume.
    pub(crate) fn check(
        &mut self,
        target: TargetId,
        request: &CheckRequest,
    ) -> Result<CallResponse, Problem> {
        let serving = self.targets.get(&target).filter(|it| it.status.state.serves());
        serving.ok_or_else(|| missing("target", &target))?;
        self.compared += request.blocks;
        Ok(CallResponse::Checked(Box::default()))
    }

    /// Writes what a target keeps with a copy.
    pub(crate) fn label(&mut self, id: ReplicaId, spec: &TargetSpec, set: &ReplicaSet) {
        if let Some(copy) = self.replicas.get_mut(&id) {
            let (volume, epoch, size) = (copy.volume, spec.epoch, spec.size);
            copy.label = Some(ReplicaLabel { volume, replica: id, size, epoch, set: set.clone() });
        }
    }
}

fn found_snapshot(kept: &SnapshotReplica) -> ObservedSnapshot {
    let (usage, clones) = (Usage::default(), BTreeSet::new());
    let (label, pool) = (kept.label.clone(), kept.pool.clone());
    ObservedSnapshot { label, pool, usage, clones }
}

/// Late orders, and two contents under one number, are refused.
pub(crate) fn admit<S: Clone + PartialEq>(
    order: &VersionedSpec<S>,
    generation: Generation,
    spec: &S,
) -> Result<Admission, Problem> {
    let held = VersionedSpec { generation, spec: spec.clone() };
    order.admit(Some(&held)).map_err(Problem::from)
}

pub(crate) fn missing(kind: &str, id: &dyn std::fmt::Display) -> Problem {
    Problem::new(ProblemKind::NotFound, format!("there is no {kind} {id}"))
}
