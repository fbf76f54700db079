//! An engine in memory, and a server for it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::str::FromStr;
use std::sync::{Arc, Mutex};

use api::events::Log;
use api::node::{
    ApiResult, CheckReport, CheckRequest, DeletePool, DeleteReplica, DiffQuery, Fault, FaultKind,
    FaultPlace, Faults, Fence, FenceReset, GenerationQuery, Health, JobControl, Node, NodeInfo,
    Observed, ObservedSnapshot, PoolFilter, Range, RebuildRequest, Remote, Run, Scrub, ScrubState,
    SnapshotRequest, Statistics, StatisticsOf, TargetSnapshot, Traffic,
};
use api::{Applied, Deleted, Guard, Page, Paging, Server, Text};
use model::*;
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;

pub(crate) fn good<T: FromStr<Err: std::fmt::Debug>>(text: &str) -> T {
    text.parse().unwrap()
}

/// The `n`th id of its kind.
pub(crate) fn id<T: FromStr<Err: std::fmt::Debug>>(n: u32) -> T {
    good(&format!("00000000-0000-4000-8000-{n:012}"))
}

/// A golden file of the model.
pub(crate) fn golden<T: DeserializeOwned>(name: &str) -> T {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/golden").join(name);
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

pub(crate) fn order<S>(generation: u64, spec: S) -> VersionedSpec<S> {
    VersionedSpec { generation: Generation::new(generation).unwrap(), spec }
}

/// Things of one kind: the last order for each, and the generation of each removal.
struct Things<S: Spec> {
    held: BTreeMap<S::Id, VersionedSpec<S>>,
    removed: BTreeMap<S::Id, Generation>,
    status: S::Status,
}

impl<S: Spec> Things<S> {
    fn like(sample: &Resource<S>) -> Things<S> {
        let status = sample.status.clone().unwrap();
        Things { held: BTreeMap::new(), removed: BTreeMap::new(), status }
    }

    fn found(&self, id: &S::Id, order: &VersionedSpec<S>) -> Observed<S> {
        let (generation, spec) = (Some(order.generation), order.spec.clone());
        Observed { id: id.clone(), generation, spec, status: self.status.clone() }
    }

    fn get(&self, id: &S::Id) -> ApiResult<Observed<S>> {
        let missing =
            || Problem::new(ProblemKind::NotFound, format!("there is no {} {id}", S::KIND));
        self.held.get(id).map(|order| self.found(id, order)).ok_or_else(missing)
    }

    fn put(&mut self, id: &S::Id, order: VersionedSpec<S>) -> ApiResult<Applied<Observed<S>>> {
        if let Some(&have) = self.removed.get(id) {
            let sent = order.generation;
            if sent <= have {
                return Err(GenerationConflict::Stale { sent, have }.into());
            }
        }
        let held = self.held.get(id);
        let admitted = order.admit(held)?;
        let existed = held.is_some();
        self.held.insert(id.clone(), order);
        let now = self.get(id)?;
        Ok(match (admitted, existed) {
            (Admission::Again, _) => Applied::unchanged(now),
            (Admission::New, true) => Applied::changed(now),
            (Admission::New, false) => Applied::created(now),
        })
    }

    fn delete(&mut self, id: &S::Id, sent: Generation) -> ApiResult<Deleted> {
        if let Some(held) = self.held.get(id)
            && sent < held.generation
        {
            return Err(GenerationConflict::Stale { sent, have: held.generation }.into());
        }
        self.removed.insert(id.clone(), sent);
        Ok(Deleted { existed: self.held.remove(id).is_some() })
    }

    fn page(&self, paging: &Paging) -> ApiResult<Page<Observed<S>>> {
        let all = self.held.iter().map(|(id, order)| self.found(id, order));
        paging.cut(all, |found| found.id.to_string())
    }
}

struct State {
    pools: Things<PoolSpec>,
    replicas: Things<ReplicaSpec>,
    targets: Things<TargetSpec>,
    snapshots: BTreeMap<(ReplicaId, SnapshotId), ObservedSnapshot>,
    rebuilds: BTreeMap<RebuildId, Rebuild>,
    scrub: Option<Scrub>,
    faults: Faults,
}

/// An engine in memory.
pub(crate) struct Fake(Mutex<State>);

impl Fake {
    pub(crate) fn new() -> Fake {
        Fake(Mutex::new(State {
            pools: Things::like(&golden::<Pool>("pool.json")),
            replicas: Things::like(&golden::<Replica>("replica.json")),
            targets: Things::like(&golden::<Target>("target.json")),
            snapshots: BTreeMap::new(),
            rebuilds: BTreeMap::new(),
            scrub: None,
            faults: Faults::default(),
        }))
    }

    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.0.lock().unwrap())
    }
}

/// A fault of each sort.
pub(crate) fn faults() -> Faults {
    let place = FaultPlace::Disk { disk: good("/dev/sda") };
    let fault = |kind| {
        let range = Some(Range { offset: Size::ZERO, length: Size::mib(1) });
        Fault { place: place.clone(), kind, range, skip: 1, count: Some(2), hits: 0 }
    };
    let kinds = [FaultKind::ReadError {}, FaultKind::Delay { millis: 5 }, FaultKind::Corrupt {}];
    Faults { faults: kinds.into_iter().map(fault).collect() }
}

fn ranges() -> Vec<Range> {
    let at = |n| Range { offset: Size::mib(n), length: Size::kib(4) };
    (0..5).map(at).collect()
}

impl Node for Fake {
    async fn health(&self) -> ApiResult<Health> {
        Ok(Health { version: "0.1.0".to_owned(), instance: id(1) })
    }

    async fn node(&self) -> ApiResult<NodeInfo> {
        let heartbeat: Heartbeat<NodeAddress> = golden("heartbeat.json");
        Ok(NodeInfo {
            name: good("node-1"),
            instance: heartbeat.instance,
            version: heartbeat.version,
            started_at: Timestamp::EPOCH,
            address: heartbeat.address,
        })
    }

    async fn pools(&self, paging: Paging) -> ApiResult<Page<Observed<PoolSpec>>> {
        self.with(|state| state.pools.page(&paging))
    }

    async fn pool(&self, pool: PoolName) -> ApiResult<Observed<PoolSpec>> {
        self.with(|state| state.pools.get(&pool))
    }

    async fn put_pool(
        &self,
        pool: PoolName,
        order: VersionedSpec<PoolSpec>,
    ) -> ApiResult<Applied<Observed<PoolSpec>>> {
        assert_ne!(pool.as_str(), "panic", "asked for");
        if pool.as_str() == "slow" {
            std::future::pending::<()>().await;
        }
        self.with(|state| state.pools.put(&pool, order))
    }

    async fn clear_pool_errors(&self, pool: PoolName) -> ApiResult<Deleted> {
        self.with(|state| state.pools.get(&pool).map(|_| Deleted { existed: false }))
    }

    async fn delete_pool(&self, pool: PoolName, order: DeletePool) -> ApiResult<Deleted> {
        self.with(|state| {
            let found = state.pools.get(&pool).ok();
            if found.is_some_and(|found| found.spec.uuid != Some(order.uuid)) {
                return Ok(Deleted { existed: false });
            }
            state.pools.delete(&pool, order.generation)
        })
    }

    async fn replicas(&self, paging: Paging) -> ApiResult<Page<Observed<ReplicaSpec>>> {
        self.with(|state| state.replicas.page(&paging))
    }

    async fn replica(&self, replica: ReplicaId) -> ApiResult<Observed<ReplicaSpec>> {
        self.with(|state| state.replicas.get(&replica))
    }

    async fn put_replica(
        &self,
        replica: ReplicaId,
        order: VersionedSpec<ReplicaSpec>,
    ) -> ApiResult<Applied<Observed<ReplicaSpec>>> {
        self.with(|state| state.replicas.put(&replica, order))
    }

    async fn delete_replica(&self, replica: ReplicaId, order: DeleteReplica) -> ApiResult<Deleted> {
        self.with(|state| state.replicas.delete(&replica, order.generation))
    }

    async fn put_label(
        &self,
        replica: ReplicaId,
        label: ReplicaLabel,
    ) -> ApiResult<Applied<ReplicaLabel>> {
        assert_eq!(replica, label.replica);
        Ok(Applied::changed(label))
    }

    async fn put_spec_backup(
        &self,
        _: ReplicaId,
        spec_backup: SpecBackup,
    ) -> ApiResult<Applied<SpecBackup>> {
        Ok(Applied::changed(spec_backup))
    }

    async fn written(&self, _: ReplicaId, paging: Paging) -> ApiResult<Page<Range>> {
        paging.cut(ranges(), |range| format!("{:020}", range.offset.bytes().0))
    }

    async fn scrub(&self, replica: ReplicaId) -> ApiResult<Scrub> {
        let never = || Problem::new(ProblemKind::NotFound, format!("{replica} was never scrubbed"));
        self.with(|state| state.scrub.clone()).ok_or_else(never)
    }

    async fn fence(&self, _: ReplicaId) -> ApiResult<Fence> {
        Ok(Fence { epoch: u64::MAX })
    }

    async fn reset_fence(&self, _: ReplicaId, reset: FenceReset) -> ApiResult<Applied<Fence>> {
        Ok(Applied::changed(Fence { epoch: reset.epoch }))
    }

    async fn put_scrub(
        &self,
        _: ReplicaId,
        order: VersionedSpec<JobControl>,
    ) -> ApiResult<Applied<Scrub>> {
        let state = match order.spec.run {
            Run::Run => ScrubState::Running {},
            Run::Pause => ScrubState::Paused {},
            Run::Cancel => ScrubState::Cancelled {},
        };
        let scrub = Scrub {
            generation: order.generation,
            state,
            progress: Progress::default(),
            bad_blocks: 0,
            repaired_blocks: 0,
            bad_in_snapshots: 0,
            started_at: Timestamp::EPOCH,
            ended_at: None,
        };
        self.with(|state| state.scrub = Some(scrub.clone()));
        Ok(Applied::changed(scrub))
    }

    async fn snapshots(&self, paging: Paging) -> ApiResult<Page<ObservedSnapshot>> {
        let all: Vec<_> = self.with(|state| state.snapshots.values().cloned().collect());
        paging.cut(all, |found| format!("{} {}", found.label.replica, found.label.snapshot))
    }

    async fn put_snapshot(
        &self,
        replica: ReplicaId,
        snapshot: SnapshotId,
        request: SnapshotRequest,
    ) -> ApiResult<Applied<ObservedSnapshot>> {
        let SnapshotRequest { group, taken_at, consistency } = request;
        let (volume, size) = (id(10), Size::gib(1));
        let label = SnapshotLabel { snapshot, volume, replica, group, taken_at, size, consistency };
        let (pool, usage) = (good("pool-1"), Usage::default());
        let found = ObservedSnapshot { label, pool, usage, clones: [id(22)].into() };
        self.with(|state| match state.snapshots.get(&(replica, snapshot)) {
            Some(have) if *have == found => Ok(Applied::unchanged(found)),
            Some(_) => Err(Problem::new(ProblemKind::AlreadyExists, "it has other attributes")),
            None => {
                state.snapshots.insert((replica, snapshot), found.clone());
                Ok(Applied::created(found))
            }
        })
    }

    async fn delete_snapshot(
        &self,
        replica: ReplicaId,
        snapshot: SnapshotId,
        _: PoolFilter,
    ) -> ApiResult<Deleted> {
        let was = self.with(|state| state.snapshots.remove(&(replica, snapshot)));
        Ok(Deleted { existed: was.is_some() })
    }

    async fn changed(
        &self,
        _: ReplicaId,
        _: SnapshotId,
        changed: DiffQuery,
    ) -> ApiResult<Page<Range>> {
        let all = if changed.since.is_some() { ranges().split_off(3) } else { ranges() };
        let paging = Paging { limit: changed.limit, after: changed.after };
        paging.cut(all, |range| format!("{:020}", range.offset.bytes().0))
    }

    async fn targets(&self, paging: Paging) -> ApiResult<Page<Observed<TargetSpec>>> {
        self.with(|state| state.targets.page(&paging))
    }

    async fn target(&self, target: TargetId) -> ApiResult<Observed<TargetSpec>> {
        self.with(|state| state.targets.get(&target))
    }

    async fn put_target(
        &self,
        target: TargetId,
        order: VersionedSpec<TargetSpec>,
    ) -> ApiResult<Applied<Observed<TargetSpec>>> {
        self.with(|state| state.targets.put(&target, order))
    }

    async fn delete_target(&self, target: TargetId, order: GenerationQuery) -> ApiResult<Deleted> {
        self.with(|state| state.targets.delete(&target, order.generation))
    }

    async fn put_target_snapshot(
        &self,
        _: TargetId,
        snapshot: SnapshotId,
        request: SnapshotRequest,
    ) -> ApiResult<Applied<TargetSnapshot>> {
        let replicas = [id(20), id(21)].into();
        Ok(Applied::created(TargetSnapshot { snapshot, request, replicas }))
    }

    async fn check_target(&self, _: TargetId, _: CheckRequest) -> ApiResult<CheckReport> {
        Ok(CheckReport::default())
    }

    async fn rebuilds(&self, paging: Paging) -> ApiResult<Page<Rebuild>> {
        let all: Vec<_> = self.with(|state| state.rebuilds.values().cloned().collect());
        paging.cut(all, |rebuild| rebuild.id.to_string())
    }

    async fn rebuild(&self, rebuild: RebuildId) -> ApiResult<Rebuild> {
        let missing =
            || Problem::new(ProblemKind::NotFound, format!("there is no rebuild {rebuild}"));
        self.with(|state| state.rebuilds.get(&rebuild).cloned()).ok_or_else(missing)
    }

    async fn put_rebuild(
        &self,
        rebuild: RebuildId,
        order: VersionedSpec<RebuildRequest>,
    ) -> ApiResult<Applied<Rebuild>> {
        let RebuildRequest { target, replica, .. } = order.spec;
        let (sources, extent) = ([id(20)].into(), RebuildKind::Partial);
        let plan = RebuildPlan { volume: id(10), target, replica, sources, extent };
        let made = Rebuild::new(rebuild, plan, Timestamp::EPOCH);
        self.with(|state| state.rebuilds.insert(rebuild, made.clone()));
        Ok(Applied::created(made))
    }

    async fn statistics(&self, paging: Paging) -> ApiResult<Page<Statistics>> {
        let mut read = Traffic { commands: 3, bytes: 12288, errors: 1, ..Traffic::default() };
        for micros in [1, 90, 5000] {
            read.latency.record(micros);
        }
        let of = StatisticsOf::Child { target: id(30), replica: id(20) };
        let (write, discard, flush) = (Traffic::default(), Traffic::default(), Traffic::default());
        let (instance, at) = (id(1), Timestamp::EPOCH);
        let (throttled, oldest_micros) = (0, Some(7));
        let one =
            Statistics { of, instance, at, read, write, discard, flush, throttled, oldest_micros };
        paging.cut([one], |one| format!("{:?}", one.of))
    }

    async fn devices(&self, paging: Paging) -> ApiResult<Page<BlockDevice>> {
        paging.cut([golden("block-device.json")], |device: &BlockDevice| device.path.to_string())
    }

    async fn metrics(&self) -> ApiResult<Text> {
        Ok(Text("# TYPE up gauge\nup 1\n".to_owned()))
    }

    async fn faults(&self) -> ApiResult<Faults> {
        Ok(self.with(|state| state.faults.clone()))
    }

    async fn put_faults(&self, faults: Faults) -> ApiResult<Applied<Faults>> {
        self.with(|state| state.faults = faults.clone());
        Ok(Applied::changed(faults))
    }
}

/// A server on a port of its own, stopped when dropped.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) events: Arc<Log<Event>>,
    pub(crate) stop: Option<oneshot::Sender<()>>,
    pub(crate) ended: tokio::task::JoinHandle<()>,
}

impl Running {
    pub(crate) async fn new() -> Running {
        Running::with(Guard::default(), None).await
    }

    pub(crate) async fn with(guard: Guard, tls: Option<&api::TlsServer>) -> Running {
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let server = Server::bind(listen, tls, guard.limits).await.unwrap();
        let address = server.local_addr().unwrap();
        let events = Arc::new(Log::new(id(1), 4.try_into().unwrap()));
        let router = api::node::router(Fake::new(), Arc::clone(&events), guard);
        let (stop, stopped) = oneshot::channel::<()>();
        let ended = tokio::spawn(server.run(router, async move {
            let _ = stopped.await;
        }));
        Running { address, events, stop: Some(stop), ended }
    }

    pub(crate) fn remote(&self) -> Remote {
        Remote::plain(self.address.to_string().parse().unwrap()).unwrap()
    }
}
