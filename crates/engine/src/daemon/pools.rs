//! Pools by the node API: made, opened, enlarged, handed over, destroyed.

use std::path::{Path, PathBuf};

use api::node::{ApiResult, DeletePool, Observed};
use api::{Applied, Deleted};
use model::{
    Admission, DevicePath, DiskFinding, DiskFindingKind, EventName, PoolName, PoolSpec, PoolState,
    PoolStatus, PoolUuid, Problem, ProblemKind, Severity, Size, Subject, VersionedSpec,
};
use pool::{ClusterSize, Id, Refused, Superblock};
use tracing::Instrument as _;

use super::engine::{Engine, PoolAvailability, PoolEntry, ReplicaEntry};
use super::keys::Lock;
use super::pool_manifest::PoolManifest;
use super::pool_mapping;
use super::problems::{self, in_field};
use crate::pools::{self as engine_pools, NewDisk, NewPool, PoolError, PoolRequest, PoolResponse};
use crate::startup_retry::StartupRetry;

/// What an order did.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PoolEffect {
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
    pub(super) async fn open_known(&self, known: PoolManifest) {
        for (name, mut spec) in known.pools {
            let id = spec.uuid.map_or(Id::NONE, |uuid| pool_mapping::id_of(uuid.uuid()));
            let availability = if spec.exported {
                PoolAvailability::Exported
            } else {
                let span = tracing::info_span!("open", pool = %name);
                let patience = StartupRetry::begin();
                let opened = when_free(&patience, || self.open(&name, &spec));
                match opened.instrument(span).await {
                    Ok(()) => PoolAvailability::Open,
                    Err(problem) => {
                        let (subject, what) =
                            (Subject::Pool(name.clone()), EventName::StateChanged);
                        let message = format!("it cannot be opened: {problem}");
                        self.tell_as(Severity::Error, subject, what, message);
                        PoolAvailability::Shut(problem)
                    }
                }
            };
            spec.import = false;
            self.state().pools.insert(name, PoolEntry { spec, id, availability });
        }
    }

    /// One pool.
    pub(super) async fn find_pool(&self, name: &PoolName) -> ApiResult<Observed<PoolSpec>> {
        let (found, id) = {
            let state = self.state();
            let Some(pool_entry) = state.pools.get(name) else {
                let detail = format!("there is no pool {name} on node {}", self.0.info.name);
                return Err(Problem::new(ProblemKind::NotFound, detail));
            };
            let generation = state.pool_orders.get(name).map(|order| order.generation);
            let status = closed_status(pool_entry)?;
            let is_open = matches!(pool_entry.availability, PoolAvailability::Open);
            let (id, spec) = (name.clone(), pool_entry.spec.clone());
            (Observed { id, generation, spec, status }, is_open.then_some(pool_entry.id))
        };
        match id {
            Some(id) => Ok(Observed { status: self.open_status(id).await?, ..found }),
            None => Ok(found),
        }
    }

    /// Makes a pool what the order says.
    pub(super) async fn apply_pool(
        &self,
        name: PoolName,
        order: VersionedSpec<PoolSpec>,
    ) -> ApiResult<Applied<Observed<PoolSpec>>> {
        let _alone = self.0.pool_locks.of(&name).write_owned().await;
        let admitted = self.state().pool_orders.admit(&name, &order)?;
        let spec = order.spec.clone();
        if spec.node != self.0.info.name {
            let detail = format!("this is the engine of node {}", self.0.info.name);
            return Err(in_field("spec.node", ProblemKind::InvalidArgument, detail));
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
            PoolEffect::Made => Applied::created(now),
            PoolEffect::Change => Applied::changed(now),
            PoolEffect::Nothing => Applied::unchanged(now),
        })
    }

    /// Refuses what contradicts the pool that is there; the id of one that is open.
    fn check_pool(&self, name: &PoolName, spec: &PoolSpec) -> ApiResult<Option<Id>> {
        let state = self.state();
        let Some(pool_entry) = state.pools.get(name) else { return Ok(None) };
        let differs =
            |field, detail: String| Err(in_field(field, ProblemKind::AlreadyExists, detail));
        if let (Some(wanted), Some(has)) = (spec.uuid, pool_entry.spec.uuid)
            && wanted != has
        {
            return differs("spec.uuid", format!("pool {name} is {has}; choose another name"));
        }
        if let (Some(wanted), Some(has)) = (spec.cluster_size, pool_entry.spec.cluster_size)
            && wanted != has
        {
            let detail = format!("the clusters of pool {name} have {has}, for good");
            return differs("spec.clusterSize", detail);
        }
        Ok(matches!(pool_entry.availability, PoolAvailability::Open).then_some(pool_entry.id))
    }

    /// A pool that is not open stays so.
    async fn leave_exported(&self, name: &PoolName, spec: &PoolSpec) -> ApiResult<PoolEffect> {
        let was = {
            let mut state = self.state();
            let Some(pool_entry) = state.pools.get_mut(name) else {
                let detail = format!("there is no pool {name} here that could be exported");
                return Err(Problem::new(ProblemKind::NotFound, detail));
            };
            pool_entry.spec = PoolSpec { uuid: pool_entry.spec.uuid, ..spec.clone() };
            std::mem::replace(&mut pool_entry.availability, PoolAvailability::Exported)
        };
        self.remember().await?;
        Ok(if matches!(was, PoolAvailability::Exported) {
            PoolEffect::Nothing
        } else {
            PoolEffect::Change
        })
    }

    async fn export(&self, name: &PoolName, spec: &PoolSpec, id: Id) -> ApiResult<PoolEffect> {
        self.nothing_is_shared(name)?;
        let before = {
            let mut state = self.state();
            let pool_entry = state.pools.get_mut(name).ok_or_else(problems::stopping)?;
            let now = PoolSpec { uuid: pool_entry.spec.uuid, ..spec.clone() };
            std::mem::replace(&mut pool_entry.spec, now)
        };
        // First the file: a pool that was handed over must not be opened by the next run.
        let exported = match self.remember().await {
            Ok(()) => self.carry_out(id, PoolRequest::Export(id)).await.map(|_| ()),
            Err(problem) => Err(problem),
        };
        if let Err(problem) = exported {
            if let Some(pool_entry) = self.state().pools.get_mut(name) {
                pool_entry.spec = before;
            }
            self.remember().await?;
            return Err(problem);
        }
        let mut state = self.state();
        if let Some(pool_entry) = state.pools.get_mut(name) {
            pool_entry.availability = PoolAvailability::Exported;
        }
        state.replicas.retain(|_, replica_entry| replica_entry.pool != *name);
        drop(state);
        self.tell(Subject::Pool(name.clone()), EventName::StateChanged, "it was exported");
        Ok(PoolEffect::Change)
    }

    fn nothing_is_shared(&self, name: &PoolName) -> ApiResult<()> {
        let state = self.state();
        let shared = |replica_entry: &ReplicaEntry| {
            replica_entry.pool == *name && !replica_entry.hosts.is_empty()
        };
        let found = state.replicas.iter().find(|(_, replica_entry)| shared(replica_entry));
        found.map_or(Ok(()), |(replica, _)| {
            let detail = format!("replica {replica} of pool {name} is exported; unshare it first");
            Err(Problem::new(ProblemKind::InUse, detail))
        })
    }

    /// An open pool: more disks, larger disks.
    async fn adapt(
        &self,
        name: &PoolName,
        spec: &PoolSpec,
        id: Id,
        admitted: Admission,
    ) -> ApiResult<PoolEffect> {
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
            return Err(in_field("spec.disks", ProblemKind::NotSupported, detail));
        }
        let mut did = PoolEffect::Nothing;
        for path in paths.into_iter().filter(|path| !has.contains(&real(path))) {
            let disk = NewDisk { path, id: new_id()? };
            let add = PoolRequest::AddDisk { pool: id, disk, force: false };
            self.carry_out(id, add).await?;
            did = PoolEffect::Change;
        }
        let has_more = did == PoolEffect::Change;
        if admitted == Admission::New {
            match self.ask(id, PoolRequest::Grow(id)).await? {
                Ok(_) => did = PoolEffect::Change,
                Err(PoolError::Refused(Refused::NotLarger)) => {}
                Err(error) => return Err(problems::of_pool(&error)),
            }
        }
        let changed = {
            let mut state = self.state();
            let pool_entry = state.pools.get_mut(name).ok_or_else(problems::stopping)?;
            let (uuid, cluster_size) = (pool_entry.spec.uuid, pool_entry.spec.cluster_size);
            let now = PoolSpec { uuid, cluster_size, import: false, ..spec.clone() };
            std::mem::replace(&mut pool_entry.spec, now.clone()) != now
        };
        if changed || did == PoolEffect::Change {
            self.remember().await?;
            if has_more {
                let told = (EventName::Changed, "it has more disks");
                self.tell_of_disks(name, told, spec.disks.clone()).await;
            } else {
                self.tell(Subject::Pool(name.clone()), EventName::Changed, "its spec changed");
            }
            did = PoolEffect::Change;
        }
        Ok(did)
    }

    async fn make_or_import(&self, name: &PoolName, spec: &PoolSpec) -> ApiResult<PoolEffect> {
        // Whoever exported it a moment ago may still have a reference in the kernel.
        let patience = StartupRetry::for_order();
        let did = if when_free(&patience, || self.look(spec)).await?.is_some() {
            when_free(&patience, || self.open(name, spec)).await?;
            PoolEffect::Change
        } else if spec.import {
            let first = spec.disks.first().map_or("", |disk| disk.as_str());
            let detail = format!(
                "there is no pool on {first}; are these its disks? without import one is made"
            );
            return Err(in_field("spec.disks", ProblemKind::NotFound, detail));
        } else {
            self.make(name, spec).await?;
            PoolEffect::Made
        };
        let found = self.state().pools.get(name).map(|pool_entry| pool_entry.id);
        let Some(id) = found else { return Err(problems::stopping()) };
        let status = self.open_status(id).await?;
        if let Some(pool_entry) = self.state().pools.get_mut(name) {
            let (uuid, cluster_size) = (Some(status.uuid), Some(status.cluster_size));
            pool_entry.spec = PoolSpec { uuid, cluster_size, import: false, ..spec.clone() };
        }
        self.remember().await?;
        let told = match did {
            PoolEffect::Made => (EventName::Created, "it was made"),
            _ => (EventName::StateChanged, "it was imported"),
        };
        self.tell_of_disks(name, told, spec.disks.clone()).await;
        Ok(did)
    }

    /// What is on the first disk of a pool.
    async fn look(&self, spec: &PoolSpec) -> ApiResult<Option<Superblock>> {
        let Some(first) = paths_of(spec).into_iter().next() else { return Ok(None) };
        let found = self.run_blocking(move || engine_pools::superblock_of(&first)).await?;
        found.map_err(|error| problems::of_pool(&error))
    }

    async fn make(&self, name: &PoolName, spec: &PoolSpec) -> ApiResult<()> {
        let id = match spec.uuid {
            Some(uuid) => pool_mapping::id_of(uuid.uuid()),
            None => new_id()?,
        };
        let wanted = spec.cluster_size.unwrap_or(PoolSpec::DEFAULT_CLUSTER);
        let cluster = ClusterSize::of_bytes(wanted.bytes()).unwrap_or(ClusterSize::DEFAULT);
        let disk = |path| Ok::<_, Problem>(NewDisk { path, id: new_id()? });
        let disks = paths_of(spec).into_iter().map(disk).collect::<Result<_, _>>()?;
        let new = NewPool { id, name: name.to_string(), cluster, disks, force: false };
        self.carry_out(id, PoolRequest::Create(new)).await?;
        self.moved_in(name, spec, id, &[]);
        Ok(())
    }

    /// Opens a pool that is on its disks.
    async fn open(&self, name: &PoolName, spec: &PoolSpec) -> ApiResult<()> {
        let Some(found) = self.look(spec).await? else {
            let detail = format!("the disks of pool {name} hold no pool; are these its disks?");
            return Err(in_field("spec.disks", ProblemKind::NotFound, detail));
        };
        let wanted = spec.uuid.map(|uuid| pool_mapping::id_of(uuid.uuid()));
        if found.name != name.as_str() || wanted.is_some_and(|wanted| wanted != found.pool) {
            let uuid =
                pool_mapping::pool_uuid(found.pool).map_or(String::new(), |uuid| uuid.to_string());
            let detail = format!(
                "the disks hold pool {} ({uuid}); give that name, or other disks",
                found.name
            );
            return Err(in_field("spec.disks", ProblemKind::AlreadyExists, detail));
        }
        let import = PoolRequest::Import { paths: paths_of(spec) };
        let PoolResponse::Pool(status) = self.carry_out(found.pool, import).await? else {
            return Err(problems::stopping());
        };
        if status.health.doubtful_regions > 0 {
            self.carry_out(status.id, PoolRequest::NarrowDoubt(status.id)).await?;
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
        for one in entities.iter().filter(|one| one.entity.kind == pool::EntityKind::Replica) {
            let Some(replica) = pool_mapping::replica_id(one.entity.id) else { continue };
            let source = pool_mapping::snapshot_id(one.entity.origin);
            let lock = if one.entity.is_encrypted() { Lock::Closed } else { Lock::None };
            let replica_entry = ReplicaEntry::new(name.clone(), source, lock);
            state.replicas.insert(replica, replica_entry);
        }
        let pool_entry = PoolEntry { spec: spec.clone(), id, availability: PoolAvailability::Open };
        state.pools.insert(name.clone(), pool_entry);
    }

    /// Destroys a pool that holds nothing. Another one of that name stays: an order to make one
    /// that was refused because of it is undone by this order.
    pub(super) async fn remove_pool(
        &self,
        name: PoolName,
        order: DeletePool,
    ) -> ApiResult<Deleted> {
        let _alone = self.0.pool_locks.of(&name).write_owned().await;
        self.state().pool_orders.admit_removal(&name, order.generation)?;
        let wanted = pool_mapping::id_of(order.uuid.uuid());
        let is_other = |pool_entry: &PoolEntry| {
            pool_entry.id != wanted && pool_entry.spec.uuid != Some(order.uuid)
        };
        let found = match self.state().pools.get(&name) {
            Some(pool_entry) if is_other(pool_entry) => return Ok(Deleted { existed: false }),
            Some(PoolEntry { id, spec, availability: PoolAvailability::Open }) => {
                Some((Some(*id), spec.clone()))
            }
            Some(PoolEntry { spec, .. }) => Some((None, spec.clone())),
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
        Ok(Deleted { existed: found.is_some() })
    }

    async fn destroy(&self, name: &PoolName, id: Id) -> ApiResult<()> {
        let entities = self.status(id).await?.entities;
        if !entities.is_empty() {
            let count = entities.len();
            let detail =
                format!("pool {name} holds {count} replicas and snapshots; delete them first");
            return Err(Problem::new(ProblemKind::InUse, detail));
        }
        self.carry_out(id, PoolRequest::Destroy(id)).await?;
        Ok(())
    }

    /// A pool that could not be opened may be forgotten if its disks do not hold it any more: an
    /// earlier order to destroy it was cut off.
    async fn is_gone(&self, name: &PoolName, spec: &PoolSpec) -> ApiResult<()> {
        let wanted = spec.uuid.map(|uuid| pool_mapping::id_of(uuid.uuid()));
        match self.look(spec).await {
            Ok(found) if found.as_ref().map(|found| found.pool) != wanted => Ok(()),
            _ => self.open_pool(name).map(|_| ()),
        }
    }
}

fn new_id() -> ApiResult<Id> {
    engine_pools::new_id().map_err(|error| {
        Problem::new(
            ProblemKind::Unavailable,
            format!("the kernel gives no random numbers: {error}"),
        )
    })
}

/// The id of a pool whose disks were seen.
pub(super) fn uuid_of(id: Id) -> ApiResult<PoolUuid> {
    pool_mapping::pool_uuid(id).ok_or_else(|| {
        Problem::new(ProblemKind::Unavailable, "the disks were never seen to hold a pool")
    })
}

/// A pool that is not open, as far as is known without it.
fn closed_status(pool_entry: &PoolEntry) -> ApiResult<PoolStatus> {
    let symptoms = |why: &Problem| {
        let kind = match why.kind {
            ProblemKind::InvalidArgument => DiskFindingKind::Missing,
            ProblemKind::NotFound | ProblemKind::AlreadyExists => DiskFindingKind::Foreign,
            _ => DiskFindingKind::Damaged,
        };
        let first = pool_entry.spec.disks.first().cloned();
        first
            .map(|disk| DiskFinding { disk, kind, detail: why.detail.clone() })
            .into_iter()
            .collect()
    };
    Ok(PoolStatus {
        state: match &pool_entry.availability {
            PoolAvailability::Open => PoolState::Online,
            PoolAvailability::Exported => PoolState::Offline,
            PoolAvailability::Shut(why) => PoolState::Faulted { symptoms: symptoms(why) },
        },
        uuid: uuid_of(pool_entry.id)?,
        capacity: Size::ZERO,
        used: Size::ZERO,
        committed: Size::ZERO,
        cluster_size: pool_entry.spec.cluster_size.unwrap_or(PoolSpec::DEFAULT_CLUSTER),
        disks: Vec::new(),
    })
}

/// Tries until what it needs is not in use any more, or patience ends.
async fn when_free<T, F: Future<Output = ApiResult<T>>>(
    patience: &StartupRetry,
    attempt: impl Fn() -> F,
) -> ApiResult<T> {
    loop {
        let tried = attempt().await;
        let in_use = tried.as_ref().is_err_and(|problem| problem.kind == ProblemKind::InUse);
        match patience.pause().filter(|_| in_use) {
            Some(pause) => tokio::time::sleep(pause).await,
            None => return tried,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test]
    async fn an_import_waits_for_the_last_reference_to_its_disks() {
        let in_use = || Problem::new(ProblemKind::InUse, "in use");
        let tries = Cell::new(0);
        let attempt = || {
            tries.set(tries.get() + 1);
            let result = if tries.get() < 3 { Err(in_use()) } else { Ok(7) };
            async move { result }
        };
        assert_eq!(when_free(&StartupRetry::for_order(), attempt).await.unwrap(), 7);
        // What is wrong for another reason is not tried again.
        let missing = || async { Err::<(), _>(Problem::new(ProblemKind::NotFound, "no disk")) };
        let refused = when_free(&StartupRetry::for_order(), missing).await.unwrap_err();
        assert_eq!(refused.kind, ProblemKind::NotFound);
    }
}
