//! Engines and a store, and what hangs between them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::FutureExt as _;
use model::envelope::{decode, encode};
use model::{
    Lifecycle, NodeName, PoolName, Problem, ProblemKind, ReplicaId, TargetRecord, Volume, VolumeId,
    keys,
};
use store::contract::{KeyValue, Keys, Op, Query, Revision, Store as _, Txn, TxnOutcome};
use store::testing::{ManualClock, MemoryStore};

use super::content::History;
use super::{Engine, Loss};
use crate::controller::{Call, CallResponse};

/// The world outside of a control plane.
pub struct Cluster {
    /// Machines, by name.
    pub engines: BTreeMap<NodeName, Engine>,
    store: MemoryStore,
    /// Records that engines wrote and the control plane was not told of yet.
    pub(crate) news: BTreeSet<VolumeId>,
    /// Rules that were broken.
    pub broken: Vec<String>,
    /// What may be read of each volume.
    pub(crate) histories: BTreeMap<VolumeId, History>,
    /// Copies of another history, of which that is not so.
    pub apart: BTreeSet<ReplicaId>,
    /// Number of the last write of a host.
    pub(crate) written: u64,
    /// Whether only the targets of the volume that a call is about look at their copies after it,
    /// and deletions are not checked: for benchmarks.
    pub is_large: bool,
}

/// What the store held at one moment.
#[derive(Clone, Debug)]
pub struct Backup(Vec<KeyValue>);

impl Backup {
    /// The same from a time at which nothing was kept under this key.
    #[must_use]
    pub fn without(mut self, key: &str) -> Backup {
        self.0.retain(|record| *record.key != *key.as_bytes());
        self
    }
}

impl Cluster {
    /// So many engines named `n1`, `n2` and on; nothing is on them.
    pub fn new(nodes: usize) -> Cluster {
        let engines = (1..=nodes).map(|at| {
            let engine = Engine::new(at);
            (engine.name.clone(), engine)
        });
        Cluster {
            engines: engines.collect(),
            store: MemoryStore::new(Arc::new(ManualClock::new())),
            news: BTreeSet::new(),
            broken: Vec::new(),
            histories: BTreeMap::new(),
            apart: BTreeSet::new(),
            written: 0,
            is_large: false,
        }
    }

    /// The engine with this name.
    pub fn engine(&mut self, name: &str) -> &mut Engine {
        let found = self.engines.get_mut(name);
        found.unwrap_or_else(|| unreachable!("no engine {name} was made"))
    }

    /// Everything that is stored.
    pub fn records(&self) -> Vec<KeyValue> {
        let page = self.store.range(Query::prefix(keys::ROOT)).now_or_never();
        page.and_then(Result::ok).map(|page| page.kvs).unwrap_or_default()
    }

    /// Everything that is stored, to be put back later.
    pub fn back_up(&self) -> Backup {
        Backup(self.records())
    }

    /// The store is as it was when it was backed up; whoever runs goes on running.
    pub fn restore(&mut self, backup: &Backup) {
        self.txn(Txn::new().then(Op::delete(Keys::prefix(keys::ROOT))));
        for record in &backup.0 {
            self.txn(Txn::new().then(Op::put(record.key.clone(), record.value.clone())));
        }
        self.settle();
    }

    /// Writes.
    pub fn txn(&self, txn: Txn) -> Option<TxnOutcome> {
        self.store.txn(txn).now_or_never().and_then(Result::ok)
    }

    /// Who owns a volume, as the store has it.
    pub fn record(&self, volume: VolumeId) -> Option<(Revision, TargetRecord)> {
        let query = Query::key(keys::target_record(volume));
        let page = self.store.range(query).now_or_never()?.ok()?;
        let found = page.kvs.into_iter().next()?;
        Some((found.changed, decode(&found.value).ok()?))
    }

    /// An engine writes who owns a volume.
    pub(crate) fn put_record(&mut self, record: &TargetRecord) {
        let volume = record.volume();
        if let Ok(text) = encode(record) {
            self.txn(Txn::new().then(Op::put(keys::target_record(volume), text)));
            self.news.insert(volume);
        }
    }

    /// The control plane asks a node.
    pub fn call(&mut self, node: &NodeName, call: Call) -> Result<CallResponse, Problem> {
        let Some(engine) = self.engines.get_mut(node).filter(|it| it.works() && !it.cut_off) else {
            let detail = format!("node {node} does not answer");
            return Err(Problem::new(ProblemKind::NodeUnavailable, detail));
        };
        let volume = engine.volume_of(&call);
        let answer = match call {
            Call::List if engine.mute > 0 => {
                engine.mute -= 1;
                Err(Problem::new(ProblemKind::TimedOut, format!("node {node} lists nothing")))
            }
            _ if engine.refuses && call != Call::List => {
                Err(Problem::new(ProblemKind::Overloaded, format!("node {node} does nothing now")))
            }
            Call::List => Ok(CallResponse::Listing(Box::new(engine.list()))),
            Call::PutPool(name, order) => engine.put_pool(&name, &order),
            Call::DeletePool(name, order) => engine.delete_pool(&name, &order),
            Call::PutReplica(id, order) => engine.put_replica(id, order),
            Call::PutSpecBackup(id, spec_backup) => engine.put_spec_backup(id, spec_backup),
            Call::DeleteReplica(id, order) => {
                self.check_deletion(node, id);
                let engine = self.engines.get_mut(node).ok_or_else(no_engine)?;
                engine.delete_replica(id, &order)
            }
            Call::PutTarget(id, order) => return self.put_target(node, id, order),
            Call::DeleteTarget(id, _) => return self.delete_target(node, id),
            Call::PutTargetSnapshot(target, id, request) => {
                return self.put_target_snapshot(node, target, id, request);
            }
            Call::PutSnapshot(replica, id, request) => {
                let taken = engine.put_snapshot(replica, id, &request);
                let volume = engine.replicas.get(&replica).map(|copy| copy.volume);
                if let Some(volume) = volume.filter(|_| taken.is_ok()) {
                    self.check_read(volume, replica);
                }
                taken
            }
            Call::DeleteSnapshot(replica, id, place) => {
                engine.delete_snapshot((replica, id), &place.pool)
            }
            Call::PutRebuild(id, order) => return self.put_rebuild(node, id, &order.spec),
            Call::PutScrub(replica, _) | Call::Scrub(replica) => return self.scrub(node, replica),
            Call::CheckTarget(target, request) => engine.check(target, &request),
        };
        self.settle_after(volume);
        answer
    }

    /// Lets the targets look that a call about this volume may concern.
    pub(crate) fn settle_after(&mut self, volume: Option<VolumeId>) {
        match volume {
            Some(volume) if self.is_large => self.settle_some(|spec| spec.volume == volume),
            None if self.is_large => {}
            _ => self.settle(),
        }
    }

    /// A scrub that ends at once, or waits for a target to repair what it found.
    fn scrub(&mut self, node: &NodeName, replica: ReplicaId) -> Result<CallResponse, Problem> {
        let serves = |engine: &Engine, volume: VolumeId| {
            let mut targets = engine.targets.values();
            engine.works()
                && targets.any(|it| it.order.spec.volume == volume && it.status.state.serves())
        };
        let engine = self.engines.get(node).ok_or_else(no_engine)?;
        let volume = engine.replicas.get(&replica).map(|copy| copy.volume);
        let is_served = |volume| self.engines.values().any(|engine| serves(engine, volume));
        let is_served = volume.is_some_and(is_served);
        self.engines.get_mut(node).ok_or_else(no_engine)?.scrub(replica, is_served)
    }

    /// The last copy in sync of a volume that lives must stay.
    fn check_deletion(&mut self, node: &NodeName, id: ReplicaId) {
        if self.is_large {
            return;
        }
        let engine = self.engines.get(node);
        let Some(volume) = engine.and_then(|engine| engine.replicas.get(&id)).map(|it| it.volume)
        else {
            return;
        };
        let lives = self.records().iter().any(|found| {
            let key = keys::of::<Volume>(volume);
            let volume = (*found.key == *key.as_bytes()).then(|| decode::<Volume>(&found.value));
            let volume = volume.and_then(Result::ok);
            volume.is_some_and(|it| matches!(it.lifecycle(), Lifecycle::Created { .. }))
        });
        let counted =
            self.record(volume).is_some_and(|(_, record)| record.set().in_sync().contains(&id));
        if lives && counted {
            self.broken.push(format!("copy {id} of volume {volume} was deleted and is counted"));
        }
    }

    /// Somebody carries the disks of a pool that was exported to another machine; whether it was.
    pub fn carry(&mut self, pool: &PoolName, from: &NodeName, to: &NodeName) -> bool {
        let Some(old) = self.engines.get_mut(from).filter(|old| !old.has_open(pool)) else {
            return false;
        };
        if !old.disks.remove(pool) {
            return false;
        }
        let here = |_: &_, copy: &mut super::engine::Copy| copy.spec.pool == *pool;
        let mut copies: Vec<_> = old.replicas.extract_if(.., here).collect();
        let snapshots: Vec<_> = old.snapshots.extract_if(.., |_, it| it.pool == *pool).collect();
        for (_, copy) in &mut copies {
            copy.generation = None;
        }
        if let Some(new) = self.engines.get_mut(to) {
            new.disks.insert(pool.clone());
            new.replicas.extend(copies);
            new.snapshots.extend(snapshots);
        }
        true
    }

    /// A node is lost; targets on the others notice.
    pub fn lose(&mut self, node: &NodeName, loss: Loss) {
        let engine = self.engine(node.as_str());
        match loss {
            Loss::Stopped => engine.stop(),
            Loss::Hung => engine.hung = true,
        }
        self.settle();
    }

    /// Every copy of a volume, with its node.
    pub fn copies(&self, volume: VolumeId) -> BTreeMap<ReplicaId, NodeName> {
        let engines = self.engines.values();
        let copies = engines.flat_map(|engine| {
            let here = engine.replicas.iter().filter(|(_, replica)| replica.volume == volume);
            here.map(|(id, _)| (*id, engine.name.clone()))
        });
        copies.collect()
    }
}

pub(crate) fn no_engine() -> Problem {
    Problem::new(ProblemKind::NodeUnavailable, "no such engine")
}
