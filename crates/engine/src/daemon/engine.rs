//! What the node API works on: the running server, and what is known of its pools and replicas.
//!
//! Orders about one thing are carried out one after the other: about a pool alone, about its
//! replicas side by side. Each runs as a task of its own, so it goes on when its caller is tired of
//! waiting; asked again it is answered when it is done.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use api::events::Log;
use api::node::{ApiResult, NodeInfo, RebuildRequest, Scrub};
use model::{
    Event, EventName, Nqn, PoolName, PoolSpec, Problem, ProblemKind, RebuildId, ReplicaId,
    ReplicaSpec, Severity, SnapshotId, StoreMark, Subject, TargetId, TargetSpec, Timestamp,
};
use pool::Id;
use tokio::sync::RwLock;
use tracing::Instrument as _;

use super::ErrorLimits;
use super::error_windows::PoolErrors;
use super::generation_guard::GenerationGuard;
use super::keys::{Keys, Lock};
use super::pool_manifest::{Dir, PoolManifest};
use super::problems;
use super::records::Records;
use super::targets::Target;
use crate::pools::{EntityStatus, PoolError, PoolRequest, PoolResponse, PoolStatus};
use crate::serve::{PoolHandle, TargetHandle, VolumeHandle};
use crate::volumes::{Damage, VolumeEvent};

/// An engine under the node API. Clones are the same engine.
#[derive(Clone)]
pub(super) struct Engine(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub(super) info: NodeInfo,
    pub(super) pools: PoolHandle,
    pub(super) orders: TargetHandle,
    pub(super) volumes: VolumeHandle,
    /// Where the records of volumes are; without, there are no targets.
    pub(super) records: Option<Records>,
    /// The name under which this engine connects to others.
    pub(super) wire_name: nvme::wire::Nqn,
    /// A random name that no host has: it stands for nobody where a host must be named.
    pub(super) nobody: nvme::wire::Nqn,
    /// Where targets say what happens.
    pub(super) news: SyncSender<VolumeEvent>,
    /// How many reactors there are.
    cores: usize,
    /// Where replicas are served.
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) events: Arc<Log<Event>>,
    pub(super) pool_locks: Locks<PoolName>,
    pub(super) replica_locks: Locks<ReplicaId>,
    pub(super) target_locks: Locks<TargetId>,
    pub(super) keys: Keys,
    pub(super) error_limits: ErrorLimits,
    /// How long a proof of ownership lets its targets answer reads.
    pub(super) read_lease: Duration,
    /// When this run began.
    pub(super) started: Instant,
    /// Held while the file of pools is written.
    dir: tokio::sync::Mutex<Arc<Dir>>,
    state: Mutex<State>,
}

/// What is known without asking the reactors.
#[derive(Default)]
pub(super) struct State {
    /// Every pool of this engine.
    pub(super) pools: BTreeMap<PoolName, PoolEntry>,
    /// The replicas of the open ones.
    pub(super) replicas: BTreeMap<ReplicaId, ReplicaEntry>,
    pub(super) pool_orders: GenerationGuard<PoolSpec>,
    pub(super) replica_orders: GenerationGuard<ReplicaSpec>,
    /// The targets that came since the start, with those that are shut down.
    pub(super) targets: BTreeMap<TargetId, Target>,
    pub(super) target_orders: GenerationGuard<TargetSpec>,
    /// What was wanted of rebuilds.
    pub(super) rebuild_orders: BTreeMap<RebuildId, model::VersionedSpec<RebuildRequest>>,
    /// The last scrub of each replica.
    pub(super) scrubs: BTreeMap<ReplicaId, Scrub>,
    /// Damage that targets found since the start.
    pub(super) damage: DamageTotals,
    /// The errors of pools that still count.
    pub(super) disk_errors: BTreeMap<Id, PoolErrors>,
}

/// Blocks that targets found damaged since the start.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DamageTotals {
    pub(super) repaired: u64,
    pub(super) accepted: u64,
    pub(super) unreadable: u64,
    pub(super) differing: u64,
}

impl DamageTotals {
    pub(super) fn add(&mut self, damage: &Damage) {
        let repaired = damage.repaired.values().chain(damage.repaired_in_snapshots.values());
        self.repaired += repaired.map(|places| places.blocks).sum::<u64>();
        self.accepted += damage.accepted.values().map(|places| places.blocks).sum::<u64>();
        self.unreadable += damage.unreadable.blocks;
        self.differing += damage.differing.blocks;
    }
}

/// A pool.
pub(super) struct PoolEntry {
    /// What is wanted of it, with its uuid.
    pub(super) spec: PoolSpec,
    pub(super) id: Id,
    pub(super) availability: PoolAvailability,
}

/// Whether a pool can be used.
///
/// ```text
///   start ──► Shut{why} ──import──► Open ──export──► Exported ──import──► Open
/// ```
pub(super) enum PoolAvailability {
    /// It is open.
    Open,
    /// It was handed over.
    Exported,
    /// It should be open and could not be.
    Shut(Problem),
}

/// A replica of an open pool.
#[derive(Clone)]
pub(super) struct ReplicaEntry {
    pub(super) pool: PoolName,
    pub(super) source: Option<SnapshotId>,
    /// Whether its data can be had.
    pub(super) lock: Lock,
    /// Who may connect, by order.
    pub(super) hosts: BTreeSet<Nqn>,
    /// Targets of this engine that have it as a local child.
    pub(super) used_by: BTreeSet<TargetId>,
    /// Who may really connect; nobody: it is not served.
    pub(super) served: BTreeSet<Nqn>,
}

impl ReplicaEntry {
    /// One that nobody uses.
    pub(super) fn new(pool: PoolName, source: Option<SnapshotId>, lock: Lock) -> ReplicaEntry {
        let (hosts, used_by, served) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        ReplicaEntry { pool, source, lock, hosts, used_by, served }
    }
}

/// News that may wait to be told; more are only seen in the status.
const NEWS: usize = 4096;
/// An order or a host's command that has been at work for so long is stuck.
pub(super) const STUCK: Duration = Duration::from_secs(30);
/// A reactor that does not answer for so long is not well.
const WHILE: Duration = Duration::from_secs(5);

/// One lock for each thing that somebody works on.
pub(super) struct Locks<K>(Mutex<BTreeMap<K, Weak<RwLock<()>>>>);

impl<K: Ord + Clone> Locks<K> {
    fn new() -> Locks<K> {
        Locks(Mutex::new(BTreeMap::new()))
    }

    /// The lock of this one.
    pub(super) fn of(&self, key: &K) -> Arc<RwLock<()>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, lock| lock.strong_count() > 0);
        if let Some(lock) = all.get(key).and_then(Weak::upgrade) {
            return lock;
        }
        let lock = Arc::new(RwLock::new(()));
        all.insert(key.clone(), Arc::downgrade(&lock));
        lock
    }
}

/// The time of day.
pub(super) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_millis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

impl Engine {
    pub(super) fn new(
        names: (NodeInfo, nvme::wire::Nqn, nvme::wire::Nqn),
        (server, cores): (&crate::serve::Server, usize),
        dir: Dir,
        (keys, error_limits, read_lease): (Keys, ErrorLimits, Duration),
        events: Arc<Log<Event>>,
        records: Option<Records>,
    ) -> (Engine, Receiver<VolumeEvent>) {
        let (info, wire_name, nobody) = names;
        let (news, told) = sync_channel(NEWS);
        let engine = Engine(Arc::new(Inner {
            info,
            pools: server.pools(),
            orders: server.orders(),
            volumes: server.volumes(),
            records,
            wire_name,
            nobody,
            news,
            cores,
            addresses: server.addresses().to_vec(),
            events,
            pool_locks: Locks::new(),
            replica_locks: Locks::new(),
            target_locks: Locks::new(),
            keys,
            error_limits,
            read_lease,
            started: Instant::now(),
            dir: tokio::sync::Mutex::new(Arc::new(dir)),
            state: Mutex::new(State::default()),
        }));
        (engine, told)
    }

    /// What is known. Never held while something is awaited.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries out an order to its end, also if nobody waits for it any more, and says so when that
    /// takes long.
    pub(super) async fn run_detached<T: Send + 'static>(
        &self,
        order: impl Future<Output = ApiResult<T>> + Send + 'static,
    ) -> ApiResult<T> {
        let watched = async move {
            let (begun, mut order) = (tokio::time::Instant::now(), Box::pin(order));
            loop {
                if let Ok(answered) = tokio::time::timeout(STUCK, &mut order).await {
                    return answered;
                }
                tracing::warn!(seconds = begun.elapsed().as_secs(), "request still in progress");
            }
        };
        tokio::spawn(watched.in_current_span()).await.unwrap_or_else(|error| {
            tracing::error!(%error, "request ended without a response");
            Err(Problem::new(
                ProblemKind::Internal,
                "the request failed; see the log of the engine",
            ))
        })
    }

    /// Whether every reactor answers within a while.
    pub(super) async fn is_alive(&self) -> ApiResult<()> {
        // All at once: that each of many is a little late is no reason to call the engine dead.
        let cores = 0..self.0.cores;
        let answers = futures::future::join_all(cores.map(|core| self.answers(core))).await;
        let Some(core) = answers.iter().position(|answers| !answers) else { return Ok(()) };
        let detail = format!("reactor {core} does not answer; restart the engine");
        Err(Problem::new(ProblemKind::Unavailable, detail))
    }

    /// Whether the reactor of a core answers. One whose mailbox is full did not take the question.
    async fn answers(&self, core: usize) -> bool {
        // No pool has such an id; any answer will do.
        let id = Id(u128::try_from(core).unwrap_or(0));
        let answer = tokio::time::timeout(WHILE, self.ask(id, PoolRequest::Status(id))).await;
        matches!(answer, Ok(Ok(answer)) if !matches!(answer, Err(PoolError::Full)))
    }

    /// How far the store had come, as the control plane last told it.
    pub(super) async fn mark(&self) -> Option<StoreMark> {
        let dir = Arc::clone(&*self.0.dir.lock().await);
        let mark = self.run_blocking(move || dir.mark()).await.ok().flatten();
        self.hear(mark);
        mark
    }

    fn hear(&self, mark: Option<StoreMark>) {
        if let (Some(records), Some(mark)) = (&self.0.records, mark) {
            records.hear(mark);
        }
    }

    /// Keeps how far the store has come; whether that is durable.
    pub(super) async fn keep_mark(&self, mark: StoreMark) -> bool {
        let dir = Arc::clone(&*self.0.dir.lock().await);
        match self.run_blocking(move || dir.keep_mark(mark)).await {
            Ok(Ok(())) => {
                self.hear(Some(mark));
                true
            }
            Ok(Err(error)) => {
                let error = problems::chain(&error);
                tracing::warn!(error, "store sequence number not saved; will retry");
                false
            }
            Err(_) => false,
        }
    }

    /// Runs what may block on a thread for that.
    pub(super) async fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> ApiResult<T> {
        let span = tracing::Span::current();
        tokio::task::spawn_blocking(move || span.in_scope(work)).await.map_err(|error| {
            tracing::error!(%error, "work ended without a result");
            Problem::new(ProblemKind::Internal, "the request failed; see the log of the engine")
        })
    }

    /// Gives an order to the pools of a core.
    pub(super) async fn ask(
        &self,
        pool: Id,
        order: PoolRequest,
    ) -> ApiResult<Result<PoolResponse, PoolError>> {
        let (reply, answer) = tokio::sync::oneshot::channel();
        let reply = Box::new(move |answer| {
            // Nobody is left who wants to know.
            let _ = reply.send(answer);
        });
        self.0.pools.request(pool, order, reply);
        answer.await.map_err(|_| problems::stopping())
    }

    /// The same, with refusals as problems.
    pub(super) async fn carry_out(&self, pool: Id, order: PoolRequest) -> ApiResult<PoolResponse> {
        self.ask(pool, order).await?.map_err(|error| problems::of_pool(&error))
    }

    /// How a pool is.
    pub(super) async fn status(&self, pool: Id) -> ApiResult<PoolStatus> {
        match self.carry_out(pool, PoolRequest::Status(pool)).await? {
            PoolResponse::Pool(status) => Ok(*status),
            _ => Err(problems::stopping()),
        }
    }

    /// A replica or snapshot of an open pool, if it is there.
    pub(super) async fn entity(&self, pool: Id, id: Id) -> ApiResult<Option<EntityStatus>> {
        match self.ask(pool, PoolRequest::Entity { pool, id }).await? {
            Ok(PoolResponse::Entity(found)) => Ok(Some(*found)),
            Ok(_) | Err(PoolError::Refused(pool::Refused::NotFound)) => Ok(None),
            Err(error) => Err(problems::of_pool(&error)),
        }
    }

    /// The id of a pool that must be open.
    pub(super) fn open_pool(&self, name: &PoolName) -> ApiResult<Id> {
        match self.state().pools.get(name) {
            None => {
                let node = &self.0.info.name;
                let detail = format!("there is no pool {name} on node {node}; make or import it");
                Err(Problem::new(ProblemKind::NotFound, detail))
            }
            Some(PoolEntry { id, availability: PoolAvailability::Open, .. }) => Ok(*id),
            Some(PoolEntry { availability: PoolAvailability::Exported, .. }) => {
                let detail = format!("pool {name} is exported; import it first");
                Err(Problem::new(ProblemKind::Unavailable, detail))
            }
            Some(PoolEntry { availability: PoolAvailability::Shut(why), .. }) => {
                let detail = format!("pool {name} is not open: {why}");
                Err(Problem::new(ProblemKind::Unavailable, detail))
            }
        }
    }

    /// Pools that are open, by name.
    pub(super) fn open_pools(&self) -> Vec<(PoolName, Id)> {
        let state = self.state();
        let open = state
            .pools
            .iter()
            .filter(|(_, pool_entry)| matches!(pool_entry.availability, PoolAvailability::Open));
        open.map(|(name, pool_entry)| (name.clone(), pool_entry.id)).collect()
    }

    /// What is not found may still be in a pool that could not be opened: then nobody can say that
    /// it is gone.
    pub(super) fn all_are_open(&self) -> ApiResult<()> {
        let shut = self.state().pools.iter().find_map(|(name, pool_entry)| {
            match &pool_entry.availability {
                PoolAvailability::Shut(why) => Some((name.clone(), why.clone())),
                PoolAvailability::Open | PoolAvailability::Exported => None,
            }
        });
        shut.map_or(Ok(()), |(name, why)| {
            let detail = format!("it may be in pool {name}, which is not open: {why}");
            Err(Problem::new(ProblemKind::Unavailable, detail))
        })
    }

    /// Writes down which pools there are.
    pub(super) async fn remember(&self) -> ApiResult<()> {
        let dir = self.0.dir.lock().await;
        let known = {
            let state = self.state();
            let specs = state
                .pools
                .iter()
                .map(|(name, pool_entry)| (name.clone(), pool_entry.spec.clone()));
            PoolManifest { node: self.0.info.name.clone(), pools: specs.collect() }
        };
        let place = Arc::clone(&dir);
        let written = self.run_blocking(move || place.write(&known)).await?;
        written.map_err(|error| {
            let detail = format!("{}; free space there and ask again", problems::chain(&error));
            Problem::new(ProblemKind::Unavailable, detail)
        })
    }

    /// Tells those who listen.
    pub(super) fn tell(&self, subject: Subject, name: EventName, message: impl Into<String>) {
        self.tell_as(Severity::Info, subject, name, message);
    }

    /// The same, with a severity.
    pub(super) fn tell_as(
        &self,
        severity: Severity,
        subject: Subject,
        name: EventName,
        message: impl Into<String>,
    ) {
        let (at, message) = (now(), message.into());
        match severity {
            Severity::Info => tracing::info!(%subject, ?name, message),
            Severity::Warning => tracing::warn!(%subject, ?name, message),
            Severity::Error => tracing::error!(%subject, ?name, message),
        }
        let origin = None;
        self.0.events.push(|number| Event { number, at, subject, name, severity, message, origin });
    }
}
