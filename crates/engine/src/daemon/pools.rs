//! Pools by the node API: made, opened, enlarged, handed over, destroyed.

use std::path::{Path, PathBuf};

use api::node::{Answered, Found, PoolRemoval};
use api::{Ensured, Gone};
use model::{
    Admitted, DevicePath, EventName, Kind, Order, PoolName, PoolSpec, PoolState, PoolStatus,
    PoolUuid, Problem, Severity, Size, Subject, Symptom, SymptomKind,
};
use pool::{ClusterSize, Id, Refused, Superblock};
use tracing::Instrument as _;

use super::engine::{Door, Engine, Home, Lodger};
use super::kept;
use super::keys::Lock;
use super::known::Known;
use super::problems::{self, in_field};
use crate::patience::Patience;
use crate::pools::{self as engine_pools, Answer, NewDisk, NewPool, Order as PoolOrder, PoolError};

/// What an order did.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Did {
    Nothing,
    Change,
    Made,
}

fn paths_of(spec: &PoolSpec) -> Vec<PathBuf> {
    spec.disks.iter().map(|disk| PathBuf::from(disk.as_str())).collect()
}

/// A path as disks are named.
pub(super) fn device_path(path: &Path) -> Option<DevicePath> {
    path.to_str()?.parse().ok()
}

impl Engine {
    /// Opens the pools that were open before; one that cannot be opened does not stop the others.
    pub(super) async fn open_known(&self, known: Known) {
        for (name, mut spec) in known.pools {
            let id = spec.uuid.map_or(Id::NONE, |uuid| kept::id_of(uuid.uuid()));
            let door = if spec.exported {
                Door::Exported
            } else {
                let span = tracing::info_span!("open", pool = %name);
                match self.open_when_free(&name, &spec).instrument(span).await {
                    Ok(()) => Door::Open,
                    Err(problem) => {
                        let (subject, what) =
                            (Subject::Pool(name.clone()), EventName::StateChanged);
                        let message = format!("it cannot be opened: {problem}");
                        self.tell_as(Severity::Error, subject, what, message);
                        Door::Shut(problem)
                    }
                }
            };
            spec.import = false;
            self.state().pools.insert(name, Home { spec, id, door });
        }
    }

    /// One pool.
    pub(super) async fn find_pool(&self, name: &PoolName) -> Answered<Found<PoolSpec>> {
        let (found, id) = {
            let state = self.state();
            let Some(home) = state.pools.get(name) else {
                let detail = format!("there is no pool {name} on node {}", self.0.info.name);
                return Err(Problem::new(Kind::NotFound, detail));
            };
            let generation = state.pool_orders.get(name).map(|order| order.generation);
            let status = closed_status(home)?;
            let is_open = matches!(home.door, Door::Open);
            let (id, spec) = (name.clone(), home.spec.clone());
            (Found { id, generation, spec, status }, is_open.then_some(home.id))
        };
        match id {
            Some(id) => Ok(Found { status: self.open_status(id).await?, ..found }),
            None => Ok(found),
        }
    }

    /// Makes a pool what the order says.
    pub(super) async fn order_pool(
        &self,
        name: PoolName,
        order: Order<PoolSpec>,
    ) -> Answered<Ensured<Found<PoolSpec>>> {
        let _alone = self.0.pool_locks.of(&name).write_owned().await;
        let admitted = self.state().pool_orders.admit(&name, &order)?;
        let spec = order.spec.clone();
        if spec.node != self.0.info.name {
            let detail = format!("this is the engine of node {}", self.0.info.name);
            return Err(in_field("spec.node", Kind::InvalidArgument, detail));
        }
        let was_open = self.check_pool(&name, &spec)?;
        self.state().pool_orders.follow(name.clone(), order);
        let did = match (was_open, spec.exported) {
            (Some(id), true) => self.export(&name, &spec, id).await?,
            (None, true) => self.leave_exported(&name, &spec).await?,
            (Some(id), false) => self.adapt(&name, &spec, id, admitted).await?,
            (None, false) => self.make_or_import(&name, &spec).await?,
        };
        let now = self.find_pool(&name).await?;
        Ok(match did {
            Did::Made => Ensured::created(now),
            Did::Change => Ensured::changed(now),
            Did::Nothing => Ensured::unchanged(now),
        })
    }

    /// Refuses what contradicts the pool that is there; the id of one that is open.
    fn check_pool(&self, name: &PoolName, spec: &PoolSpec) -> Answered<Option<Id>> {
        let state = self.state();
        let Some(home) = state.pools.get(name) else { return Ok(None) };
        let differs = |field, detail: String| Err(in_field(field, Kind::AlreadyExists, detail));
        if let (Some(wanted), Some(has)) = (spec.uuid, home.spec.uuid)
            && wanted != has
        {
            return differs("spec.uuid", format!("pool {name} is {has}; choose another name"));
        }
        if let (Some(wanted), Some(has)) = (spec.cluster_size, home.spec.cluster_size)
            && wanted != has
        {
            let detail = format!("the clusters of pool {name} have {has}, for good");
            return differs("spec.clusterSize", detail);
        }
        Ok(matches!(home.door, Door::Open).then_some(home.id))
    }

    /// A pool that is not open stays so.
    async fn leave_exported(&self, name: &PoolName, spec: &PoolSpec) -> Answered<Did> {
        let was = {
            let mut state = self.state();
            let Some(home) = state.pools.get_mut(name) else {
                let detail = format!("there is no pool {name} here that could be exported");
                return Err(Problem::new(Kind::NotFound, detail));
            };
            home.spec = PoolSpec { uuid: home.spec.uuid, ..spec.clone() };
            std::mem::replace(&mut home.door, Door::Exported)
        };
        self.remember().await?;
        Ok(if matches!(was, Door::Exported) { Did::Nothing } else { Did::Change })
    }

    async fn export(&self, name: &PoolName, spec: &PoolSpec, id: Id) -> Answered<Did> {
        self.nothing_is_shared(name)?;
        let before = {
            let mut state = self.state();
            let home = state.pools.get_mut(name).ok_or_else(problems::stopping)?;
            let now = PoolSpec { uuid: home.spec.uuid, ..spec.clone() };
            std::mem::replace(&mut home.spec, now)
        };
        // First the file: a pool that was handed over must not be opened by the next run.
        let exported = match self.remember().await {
            Ok(()) => self.carry_out(id, PoolOrder::Export(id)).await.map(|_| ()),
            Err(problem) => Err(problem),
        };
        if let Err(problem) = exported {
            if let Some(home) = self.state().pools.get_mut(name) {
                home.spec = before;
            }
            self.remember().await?;
            return Err(problem);
        }
        let mut state = self.state();
        if let Some(home) = state.pools.get_mut(name) {
            home.door = Door::Exported;
        }
        state.replicas.retain(|_, lodger| lodger.pool != *name);
        drop(state);
        self.tell(Subject::Pool(name.clone()), EventName::StateChanged, "it was exported");
        Ok(Did::Change)
    }

    fn nothing_is_shared(&self, name: &PoolName) -> Answered<()> {
        let state = self.state();
        let shared = |lodger: &Lodger| lodger.pool == *name && !lodger.hosts.is_empty();
        let found = state.replicas.iter().find(|(_, lodger)| shared(lodger));
        found.map_or(Ok(()), |(replica, _)| {
            let detail = format!("replica {replica} of pool {name} is exported; unshare it first");
            Err(Problem::new(Kind::InUse, detail))
        })
    }

    /// An open pool: more disks, larger disks.
    async fn adapt(
        &self,
        name: &PoolName,
        spec: &PoolSpec,
        id: Id,
        admitted: Admitted,
    ) -> Answered<Did> {
        let real = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let mut has = Vec::new();
        for (path, _) in self.status(id).await?.disks {
            has.push(real(&path));
        }
        let paths = paths_of(spec);
        let wanted: Vec<PathBuf> = paths.iter().map(|path| real(path)).collect();
        if let Some(left_out) = has.iter().find(|path| !wanted.contains(path)) {
            let shown = left_out.display();
            let detail = format!("{shown} is a disk of pool {name} and cannot be taken out of it");
            return Err(in_field("spec.disks", Kind::NotSupported, detail));
        }
        let mut did = Did::Nothing;
        for path in paths.into_iter().filter(|path| !has.contains(&real(path))) {
            let disk = NewDisk { path, id: new_id()? };
            let add = PoolOrder::AddDisk { pool: id, disk, force: false };
            self.carry_out(id, add).await?;
            did = Did::Change;
        }
        let has_more = did == Did::Change;
        if admitted == Admitted::New {
            match self.ask(id, PoolOrder::Grow(id)).await? {
                Ok(_) => did = Did::Change,
                Err(PoolError::Refused(Refused::NotLarger)) => {}
                Err(error) => return Err(problems::of_pool(&error)),
            }
        }
        let changed = {
            let mut state = self.state();
            let home = state.pools.get_mut(name).ok_or_else(problems::stopping)?;
            let (uuid, cluster_size) = (home.spec.uuid, home.spec.cluster_size);
            let now = PoolSpec { uuid, cluster_size, import: false, ..spec.clone() };
            std::mem::replace(&mut home.spec, now.clone()) != now
        };
        if changed || did == Did::Change {
            self.remember().await?;
            if has_more {
                let told = (EventName::Changed, "it has more disks");
                self.tell_of_disks(name, told, spec.disks.clone()).await;
            } else {
                self.tell(Subject::Pool(name.clone()), EventName::Changed, "its spec changed");
            }
            did = Did::Change;
        }
        Ok(did)
    }

    async fn make_or_import(&self, name: &PoolName, spec: &PoolSpec) -> Answered<Did> {
        let did = if self.look(spec).await?.is_some() {
            self.open(name, spec).await?;
            Did::Change
        } else if spec.import {
            let first = spec.disks.first().map_or("", |disk| disk.as_str());
            let detail = format!(
                "there is no pool on {first}; are these its disks? without import one is made"
            );
            return Err(in_field("spec.disks", Kind::NotFound, detail));
        } else {
            self.make(name, spec).await?;
            Did::Made
        };
        let found = self.state().pools.get(name).map(|home| home.id);
        let Some(id) = found else { return Err(problems::stopping()) };
        let status = self.open_status(id).await?;
        if let Some(home) = self.state().pools.get_mut(name) {
            let (uuid, cluster_size) = (Some(status.uuid), Some(status.cluster_size));
            home.spec = PoolSpec { uuid, cluster_size, import: false, ..spec.clone() };
        }
        self.remember().await?;
        let told = match did {
            Did::Made => (EventName::Created, "it was made"),
            _ => (EventName::StateChanged, "it was imported"),
        };
        self.tell_of_disks(name, told, spec.disks.clone()).await;
        Ok(did)
    }

    /// What is on the first disk of a pool.
    async fn look(&self, spec: &PoolSpec) -> Answered<Option<Superblock>> {
        let Some(first) = paths_of(spec).into_iter().next() else { return Ok(None) };
        let found = self.apart(move || engine_pools::superblock_of(&first)).await?;
        found.map_err(|error| problems::of_pool(&error))
    }

    async fn make(&self, name: &PoolName, spec: &PoolSpec) -> Answered<()> {
        let id = match spec.uuid {
            Some(uuid) => kept::id_of(uuid.uuid()),
            None => new_id()?,
        };
        let wanted = spec.cluster_size.unwrap_or(PoolSpec::DEFAULT_CLUSTER);
        let cluster = ClusterSize::of_bytes(wanted.bytes()).unwrap_or(ClusterSize::DEFAULT);
        let disk = |path| Ok::<_, Problem>(NewDisk { path, id: new_id()? });
        let disks = paths_of(spec).into_iter().map(disk).collect::<Result<_, _>>()?;
        let new = NewPool { id, name: name.to_string(), cluster, disks, force: false };
        self.carry_out(id, PoolOrder::Create(new)).await?;
        self.moved_in(name, spec, id, &[]);
        Ok(())
    }

    /// Opens a pool, with patience.
    async fn open_when_free(&self, name: &PoolName, spec: &PoolSpec) -> Answered<()> {
        let patience = Patience::begin();
        loop {
            let opened = self.open(name, spec).await;
            let in_use = opened.as_ref().is_err_and(|problem| problem.kind == Kind::InUse);
            match patience.pause().filter(|_| in_use) {
                Some(pause) => tokio::time::sleep(pause).await,
                None => return opened,
            }
        }
    }

    /// Opens a pool that is on its disks.
    async fn open(&self, name: &PoolName, spec: &PoolSpec) -> Answered<()> {
        let Some(found) = self.look(spec).await? else {
            let detail = format!("the disks of pool {name} hold no pool; are these its disks?");
            return Err(in_field("spec.disks", Kind::NotFound, detail));
        };
        let wanted = spec.uuid.map(|uuid| kept::id_of(uuid.uuid()));
        if found.name != name.as_str() || wanted.is_some_and(|wanted| wanted != found.pool) {
            let uuid = kept::pool_uuid(found.pool).map_or(String::new(), |uuid| uuid.to_string());
            let detail = format!(
                "the disks hold pool {} ({uuid}); give that name, or other disks",
                found.name
            );
            return Err(in_field("spec.disks", Kind::AlreadyExists, detail));
        }
        let import = PoolOrder::Import { paths: paths_of(spec) };
        let Answer::Pool(status) = self.carry_out(found.pool, import).await? else {
            return Err(problems::stopping());
        };
        if status.health.doubtful_regions > 0 {
            self.carry_out(status.id, PoolOrder::NarrowDoubt(status.id)).await?;
        }
        self.moved_in(name, spec, status.id, &status.entities);
        self.unlock_all(status.id, &status.entities).await
    }

    /// Notes an open pool and the replicas in it.
    fn moved_in(
        &self,
        name: &PoolName,
        spec: &PoolSpec,
        id: Id,
        entities: &[engine_pools::EntityStatus],
    ) {
        let mut state = self.state();
        for one in entities.iter().filter(|one| one.entity.kind == pool::Kind::Replica) {
            let Some(replica) = kept::replica_id(one.entity.id) else { continue };
            let source = kept::snapshot_id(one.entity.origin);
            let lock = if one.entity.is_encrypted() { Lock::Closed } else { Lock::None };
            let lodger = Lodger::new(name.clone(), source, lock);
            state.replicas.insert(replica, lodger);
        }
        let home = Home { spec: spec.clone(), id, door: Door::Open };
        state.pools.insert(name.clone(), home);
    }

    /// Destroys a pool that holds nothing. Another one of that name stays: an order to make one
    /// that was refused because of it is undone by this order.
    pub(super) async fn order_no_pool(&self, name: PoolName, order: PoolRemoval) -> Answered<Gone> {
        let _alone = self.0.pool_locks.of(&name).write_owned().await;
        self.state().pool_orders.admit_removal(&name, order.generation)?;
        let wanted = kept::id_of(order.uuid.uuid());
        let is_other = |home: &Home| home.id != wanted && home.spec.uuid != Some(order.uuid);
        let found = match self.state().pools.get(&name) {
            Some(home) if is_other(home) => return Ok(Gone { was_there: false }),
            Some(Home { id, spec, door: Door::Open }) => Some((Some(*id), spec.clone())),
            Some(Home { spec, .. }) => Some((None, spec.clone())),
            None => None,
        };
        match &found {
            Some((Some(id), _)) => self.destroy(&name, *id).await?,
            Some((None, spec)) if !spec.exported => self.is_gone(&name, spec).await?,
            // An exported pool is forgotten, and its disks stay as they are.
            Some((None, _)) | None => {}
        }
        {
            let mut state = self.state();
            state.pools.remove(&name);
            state.pool_orders.remove(name.clone(), order.generation);
        }
        if found.is_some() {
            self.remember().await?;
            self.tell(Subject::Pool(name), EventName::Deleted, "it was destroyed");
        }
        Ok(Gone { was_there: found.is_some() })
    }

    async fn destroy(&self, name: &PoolName, id: Id) -> Answered<()> {
        let entities = self.status(id).await?.entities;
        if !entities.is_empty() {
            let count = entities.len();
            let detail =
                format!("pool {name} holds {count} replicas and snapshots; delete them first");
            return Err(Problem::new(Kind::InUse, detail));
        }
        self.carry_out(id, PoolOrder::Destroy(id)).await?;
        Ok(())
    }

    /// A pool that could not be opened may be forgotten if its disks do not hold it any more: an
    /// earlier order to destroy it was cut off.
    async fn is_gone(&self, name: &PoolName, spec: &PoolSpec) -> Answered<()> {
        let wanted = spec.uuid.map(|uuid| kept::id_of(uuid.uuid()));
        match self.look(spec).await {
            Ok(found) if found.as_ref().map(|found| found.pool) != wanted => Ok(()),
            _ => self.open_pool(name).map(|_| ()),
        }
    }
}

fn new_id() -> Answered<Id> {
    engine_pools::new_id().map_err(|error| {
        Problem::new(Kind::Unavailable, format!("the kernel gives no random numbers: {error}"))
    })
}

/// The id of a pool whose disks were seen.
pub(super) fn uuid_of(id: Id) -> Answered<PoolUuid> {
    kept::pool_uuid(id)
        .ok_or_else(|| Problem::new(Kind::Unavailable, "the disks were never seen to hold a pool"))
}

/// A pool that is not open, as far as is known without it.
fn closed_status(home: &Home) -> Answered<PoolStatus> {
    let symptoms = |why: &Problem| {
        let kind = match why.kind {
            Kind::InvalidArgument => SymptomKind::Missing,
            Kind::NotFound | Kind::AlreadyExists => SymptomKind::Foreign,
            _ => SymptomKind::Damaged,
        };
        let first = home.spec.disks.first().cloned();
        first.map(|disk| Symptom { disk, kind, detail: why.detail.clone() }).into_iter().collect()
    };
    Ok(PoolStatus {
        state: match &home.door {
            Door::Open => PoolState::Online,
            Door::Exported => PoolState::Offline,
            Door::Shut(why) => PoolState::Faulted { symptoms: symptoms(why) },
        },
        uuid: uuid_of(home.id)?,
        capacity: Size::ZERO,
        used: Size::ZERO,
        committed: Size::ZERO,
        cluster_size: home.spec.cluster_size.unwrap_or(PoolSpec::DEFAULT_CLUSTER),
        disks: Vec::new(),
    })
}
