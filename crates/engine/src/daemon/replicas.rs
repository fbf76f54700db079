//! Replicas by the node API: made, resized, shared, labelled, deleted.

use std::collections::{BTreeMap, BTreeSet};

use api::node::{ApiResult, DeleteReplica, Observed};
use api::{Applied, Deleted, Page, Paging};
use model::{
    ChildPath, EventName, Nqn, PoolName, Problem, ProblemKind, ReplicaId, ReplicaLabel,
    ReplicaSpec, ReplicaState, ReplicaStatus, SpecBackup, Subject, TargetId, TargetSpec,
    VersionedSpec,
};
use nvme::target::NamespaceIds;
use nvme::wire::AnaState;
use pool::{Change, Entity, Id};

use super::engine::{Engine, ReplicaEntry, now};
use super::keys::Lock;
use super::pages::page_of;
use super::pool_mapping;
use super::problems::{self, in_field};
use super::replica_checks::{check, may_follow};
use crate::pools::{EntityStatus, PoolError, PoolRequest};
use crate::serve::{Backing, Host, Namespace, Subsystem};

/// The one namespace of the subsystem of a replica or a volume.
pub(super) const NSID: u32 = 1;

fn missing_replica(replica: ReplicaId) -> Problem {
    Problem::new(ProblemKind::NotFound, format!("there is no replica {replica} on this node"))
}

/// A name as it travels.
pub(super) fn wire_name(nqn: &Nqn) -> ApiResult<nvme::wire::Nqn> {
    nvme::wire::Nqn::new(nqn.as_str())
        .map_err(|error| in_field("spec.hosts", ProblemKind::InvalidArgument, error))
}

impl Engine {
    fn replica_entry(&self, replica: ReplicaId) -> Option<ReplicaEntry> {
        self.state().replicas.get(&replica).cloned()
    }

    /// Where a replica is, and what its pool says of it.
    pub(super) async fn place_of(
        &self,
        replica: ReplicaId,
    ) -> ApiResult<(PoolName, Id, EntityStatus)> {
        let Some(replica_entry) = self.replica_entry(replica) else {
            self.all_are_open()?;
            return Err(missing_replica(replica));
        };
        let pool = self.open_pool(&replica_entry.pool)?;
        let found = self.entity(pool, pool_mapping::id_of(replica.uuid())).await?;
        Ok((replica_entry.pool, pool, found.ok_or_else(|| missing_replica(replica))?))
    }

    /// One replica.
    pub(super) async fn find_replica(
        &self,
        replica: ReplicaId,
    ) -> ApiResult<Observed<ReplicaSpec>> {
        let (pool, _, found) = self.place_of(replica).await?;
        let (generation, held, hosts, lock) = {
            let state = self.state();
            let order = state.replica_orders.get(&replica);
            let replica_entry = state.replicas.get(&replica);
            let hosts = replica_entry.map(|replica_entry| replica_entry.hosts.clone());
            let lock = replica_entry.map_or(Lock::None, |replica_entry| replica_entry.lock.clone());
            let (generation, spec) = order.map(|o| (o.generation, o.spec.clone())).unzip();
            (generation, spec, hosts.unwrap_or_default(), lock)
        };
        let entity = &found.entity;
        let on_disk = || pool_mapping::replica_spec(&pool, entity, &hosts, lock.encryption());
        let spec = held.or_else(on_disk).ok_or_else(|| missing_replica(replica))?;
        let label = pool_mapping::label(entity);
        let state = match (&label, lock.detail()) {
            (Ok(_), None) => ReplicaState::Online,
            (Ok(_), Some(detail)) => ReplicaState::Faulted { detail },
            (Err(error), _) => ReplicaState::Faulted { detail: error.to_string() },
        };
        let addresses = if hosts.is_empty() { Vec::new() } else { self.0.addresses.clone() };
        let usage = pool_mapping::usage_of(found.usage, entity.kind);
        let status = ReplicaStatus {
            state,
            usage,
            label: label.ok().flatten(),
            fence: pool_mapping::fence(entity),
            spec_backup: pool_mapping::spec_backup(entity),
            addresses,
        };
        Ok(Observed { id: replica, generation, spec, status })
    }

    /// A page of replicas, by id.
    pub(super) async fn page_of_replicas(
        &self,
        paging: Paging,
    ) -> ApiResult<Page<Observed<ReplicaSpec>>> {
        let all = self.state().replicas.keys().copied().collect();
        page_of(paging, all, |replica| self.find_replica(replica)).await
    }

    /// Makes a replica what the order says.
    pub(super) async fn apply_replica(
        &self,
        replica: ReplicaId,
        order: VersionedSpec<ReplicaSpec>,
    ) -> ApiResult<Applied<Observed<ReplicaSpec>>> {
        let spec = order.spec.clone();
        let _pool = self.0.pool_locks.of(&spec.pool).read_owned().await;
        let _alone = self.0.replica_locks.of(&replica).write_owned().await;
        self.state().replica_orders.admit(&replica, &order)?;
        let pool = self.open_pool(&spec.pool)?;
        let replica_entry = self.replica_entry(replica);
        let found = self.entity(pool, pool_mapping::id_of(replica.uuid())).await?;
        check(replica, &spec, replica_entry.as_ref(), found.as_ref().map(|found| &found.entity))?;
        let before = {
            let mut state = self.state();
            let before = state.replica_orders.get(&replica).map(|order| order.spec.clone());
            state.replica_orders.follow(replica, order);
            before
        };
        let existed = found.is_some();
        let mut changed = before.is_some_and(|before| before != spec);
        self.note_hosts(replica, &spec.hosts);
        // It may shrink as soon as no host uses it any more.
        changed |= existed && self.unshare_unused(replica, pool).await?;
        match found {
            None => self.make_replica(replica, &spec, pool).await?,
            Some(found) => changed |= self.resize(&spec, pool, &found.entity).await?,
        }
        changed |= self.unlock(replica, &spec, pool).await?;
        self.note_hosts(replica, &spec.hosts);
        changed |= self.share(replica, pool).await?;
        let now = self.find_replica(replica).await?;
        if !existed {
            let message = format!("made in pool {} with {}", spec.pool, spec.size);
            self.tell(Subject::Replica(replica), EventName::Created, message);
            return Ok(Applied::created(now));
        }
        if changed {
            self.tell(Subject::Replica(replica), EventName::Changed, "its spec changed");
            return Ok(Applied::changed(now));
        }
        Ok(Applied::unchanged(now))
    }

    async fn make_replica(
        &self,
        replica: ReplicaId,
        spec: &ReplicaSpec,
        pool: Id,
    ) -> ApiResult<()> {
        let mut origin = None;
        if let Some(source) = spec.source {
            origin = self.entity(pool, pool_mapping::id_of(source.uuid())).await?;
            if origin.is_none() {
                let detail = format!("there is no snapshot {source} in pool {}", spec.pool);
                return Err(in_field("spec.source", ProblemKind::NotFound, detail));
            }
        }
        let key = self.new_key(spec, origin.as_ref().map(|found| &found.entity)).await?;
        let change = Change::Create(pool_mapping::new_replica(replica, spec, key, now()));
        self.carry_out(pool, PoolRequest::Change { pool, change }).await?;
        let lock = if spec.encryption.is_some() { Lock::Closed } else { Lock::None };
        let replica_entry = ReplicaEntry::new(spec.pool.clone(), spec.source, lock);
        self.state().replicas.insert(replica, replica_entry);
        Ok(())
    }

    async fn resize(&self, spec: &ReplicaSpec, pool: Id, entity: &Entity) -> ApiResult<bool> {
        let size = pool_mapping::blocks_of(spec.size);
        if entity.size == size {
            return Ok(false);
        }
        let change = Change::Resize { id: entity.id, size };
        self.carry_out(pool, PoolRequest::Change { pool, change }).await?;
        Ok(true)
    }

    /// Serves a replica no longer if nobody is to use it.
    async fn unshare_unused(&self, replica: ReplicaId, pool: Id) -> ApiResult<bool> {
        match self.replica_entry(replica) {
            Some(replica_entry) if self.users_of(&replica_entry).is_empty() => {
                self.share(replica, pool).await
            }
            _ => Ok(false),
        }
    }

    /// Who may connect: those who were named, and this engine if a target of it uses the replica.
    fn users_of(&self, replica_entry: &ReplicaEntry) -> BTreeSet<Nqn> {
        let here = (!replica_entry.used_by.is_empty()).then(|| self.0.info.address.nqn.clone());
        replica_entry.hosts.iter().cloned().chain(here).collect()
    }

    /// Serves a replica to exactly those who may use it, as large as it is.
    pub(super) async fn share(&self, replica: ReplicaId, pool: Id) -> ApiResult<bool> {
        let nqn = wire_name(&Nqn::replica(replica))?;
        let replica_entry = self.replica_entry(replica).ok_or_else(|| missing_replica(replica))?;
        let users = self.users_of(&replica_entry);
        let mut hosts = BTreeMap::new();
        for host in &users {
            hosts.insert(wire_name(host)?, Host::default());
        }
        let is_served = !replica_entry.served.is_empty();
        let answer = if hosts.is_empty() {
            self.0.orders.remove(nqn.clone()).await
        } else if is_served {
            self.0.orders.set_hosts(nqn.clone(), hosts).await
        } else {
            let subsystem = subsystem_of(replica, pool, hosts);
            self.0.orders.add(nqn.clone(), subsystem).await
        };
        let mut changed = answer.map_err(|error| problems::of_order(&error))?
            == crate::serve::AdminResponse::Changed;
        let stays_served = is_served && !users.is_empty();
        if let Some(replica_entry) = self.state().replicas.get_mut(&replica) {
            replica_entry.served = users;
        }
        if stays_served
            && let Some(found) = self.entity(pool, pool_mapping::id_of(replica.uuid())).await?
        {
            let size = pool_mapping::size_of(found.entity.size).bytes();
            let grown = self.0.orders.grow(nqn, NSID, size).await;
            let grown = grown.map_err(|error| problems::of_order(&error))?;
            changed |= grown == crate::serve::AdminResponse::Changed;
        }
        Ok(changed)
    }

    fn note_hosts(&self, replica: ReplicaId, hosts: &BTreeSet<Nqn>) {
        if let Some(replica_entry) = self.state().replicas.get_mut(&replica) {
            replica_entry.hosts.clone_from(hosts);
        }
    }

    /// Serves to this engine itself what a target uses as a local child, and nothing else for it.
    pub(super) async fn use_locally(&self, target: TargetId, spec: &TargetSpec) -> ApiResult<bool> {
        let local = spec.children.iter().filter(|child| child.path == ChildPath::Local {});
        let local: BTreeSet<ReplicaId> = local.map(|child| child.replica).collect();
        let mut changed = false;
        for replica in &local {
            let Some(replica_entry) = self.replica_entry(*replica) else {
                self.all_are_open()?;
                let detail = format!("replica {replica} is not on this node; give its addresses");
                return Err(in_field("spec.children", ProblemKind::NotFound, detail));
            };
            if !replica_entry.used_by.contains(&target) {
                changed |= self.set_use(*replica, target, true).await?;
            }
        }
        let used = self.used_by(target);
        for replica in used.into_iter().filter(|replica| !local.contains(replica)) {
            changed |= self.set_use(replica, target, false).await?;
        }
        Ok(changed)
    }

    /// A target is gone: its local children are served to others only.
    pub(super) async fn use_no_longer(&self, target: TargetId) {
        for replica in self.used_by(target) {
            if let Err(problem) = self.set_use(replica, target, false).await {
                tracing::warn!(%replica, %problem, "a replica is still served to this engine");
            }
        }
    }

    fn used_by(&self, target: TargetId) -> Vec<ReplicaId> {
        let state = self.state();
        let used = state
            .replicas
            .iter()
            .filter(|(_, replica_entry)| replica_entry.used_by.contains(&target));
        used.map(|(replica, _)| *replica).collect()
    }

    async fn set_use(
        &self,
        replica: ReplicaId,
        target: TargetId,
        is_used: bool,
    ) -> ApiResult<bool> {
        let _alone = self.0.replica_locks.of(&replica).write_owned().await;
        let Some(replica_entry) = self.replica_entry(replica) else {
            return if is_used { Err(missing_replica(replica)) } else { Ok(false) };
        };
        let pool = self.open_pool(&replica_entry.pool)?;
        if let Some(replica_entry) = self.state().replicas.get_mut(&replica) {
            if is_used {
                replica_entry.used_by.insert(target);
            } else {
                replica_entry.used_by.remove(&target);
            }
        }
        self.share(replica, pool).await
    }

    /// Deletes a replica; its snapshots stay.
    pub(super) async fn remove_replica(
        &self,
        replica: ReplicaId,
        order: DeleteReplica,
    ) -> ApiResult<Deleted> {
        // A pool that is exported meanwhile would take along what is said to be gone.
        let _pool = self.0.pool_locks.of(&order.pool).read_owned().await;
        let _alone = self.0.replica_locks.of(&replica).write_owned().await;
        self.state().replica_orders.admit_removal(&replica, order.generation)?;
        let pool = self.open_pool(&order.pool)?;
        let existed = match self.replica_entry(replica) {
            None => false,
            Some(replica_entry) if replica_entry.pool != order.pool => {
                let detail = format!("replica {replica} is in pool {}", replica_entry.pool);
                return Err(in_field("pool", ProblemKind::InvalidArgument, detail));
            }
            Some(_) => {
                let removed = self.0.orders.remove(wire_name(&Nqn::replica(replica))?).await;
                removed.map_err(|error| problems::of_order(&error))?;
                let change = Change::Delete(pool_mapping::id_of(replica.uuid()));
                match self.ask(pool, PoolRequest::Change { pool, change }).await? {
                    Ok(_) => true,
                    Err(PoolError::Refused(pool::Refused::NotFound)) => false,
                    Err(error) => return Err(problems::of_pool(&error)),
                }
            }
        };
        {
            let mut state = self.state();
            state.replicas.remove(&replica);
            state.scrubs.remove(&replica);
            state.replica_orders.remove(replica, order.generation);
        }
        if existed {
            self.tell(Subject::Replica(replica), EventName::Deleted, "it was deleted");
        }
        Ok(Deleted { existed })
    }

    /// Writes the label of a replica.
    pub(super) async fn apply_label(
        &self,
        replica: ReplicaId,
        label: ReplicaLabel,
    ) -> ApiResult<Applied<ReplicaLabel>> {
        let _alone = self.0.replica_locks.of(&replica).write_owned().await;
        let (_, pool, found) = self.place_of(replica).await?;
        let entity = &found.entity;
        if label.replica != replica {
            let detail = format!("this is the label of replica {replica}");
            return Err(in_field("replica", ProblemKind::InvalidArgument, detail));
        }
        if let Some(has) = pool_mapping::volume(entity)
            && has != label.volume
        {
            let detail = format!("replica {replica} is a copy of volume {has}");
            return Err(in_field("volume", ProblemKind::InvalidArgument, detail));
        }
        let before = pool_mapping::label(entity).map_err(|error| problems::of_record(&error))?;
        if before.as_ref() == Some(&label) {
            return Ok(Applied::unchanged(label));
        }
        if let Some(before) = &before {
            may_follow(&label, before)?;
        }
        let kept = pool_mapping::with_label(entity, label.clone());
        let kept = kept.map_err(|error| problems::of_record(&error))?;
        let change = Change::Label { id: entity.id, label: kept };
        self.carry_out(pool, PoolRequest::Change { pool, change }).await?;
        Ok(if before.is_some() { Applied::changed(label) } else { Applied::created(label) })
    }

    /// Writes with a replica what is wanted of its volume.
    pub(super) async fn apply_spec_backup(
        &self,
        replica: ReplicaId,
        spec_backup: SpecBackup,
    ) -> ApiResult<Applied<SpecBackup>> {
        let _alone = self.0.replica_locks.of(&replica).write_owned().await;
        let (_, pool, found) = self.place_of(replica).await?;
        let entity = &found.entity;
        if let Some(has) = pool_mapping::volume(entity)
            && has != spec_backup.volume
        {
            let detail = format!("replica {replica} is a copy of volume {has}");
            return Err(in_field("volume", ProblemKind::InvalidArgument, detail));
        }
        let before =
            pool_mapping::spec_backup(entity).filter(|before| before.volume == spec_backup.volume);
        if let Some(before) = &before {
            if before.spec == spec_backup.spec {
                return Ok(Applied::unchanged(spec_backup));
            }
            if before.generation > spec_backup.generation {
                let (sent, have) = (spec_backup.generation, before.generation);
                let detail = format!("generation {sent} of the volume is older than {have}");
                return Err(in_field("generation", ProblemKind::StaleGeneration, detail));
            }
        }
        let text = match model::envelope::encode(&spec_backup) {
            Ok(text) if spec_backup.fits() => text.into_bytes(),
            _ => {
                let detail = format!("it has more than {} bytes", SpecBackup::MOST_BYTES);
                return Err(in_field("spec", ProblemKind::TooLarge, detail));
            }
        };
        let change = Change::SpecBackup { id: entity.id, spec_backup: text };
        self.carry_out(pool, PoolRequest::Change { pool, change }).await?;
        Ok(if before.is_some() {
            Applied::changed(spec_backup)
        } else {
            Applied::created(spec_backup)
        })
    }
}

/// What hosts see of a replica.
fn subsystem_of(replica: ReplicaId, pool: Id, hosts: BTreeMap<nvme::wire::Nqn, Host>) -> Subsystem {
    let uuid = replica.uuid();
    let ids = NamespaceIds { uuid: *uuid.as_bytes(), nguid: *uuid.as_bytes(), eui64: [0; 8] };
    let backing = Backing::Member { pool, id: pool_mapping::id_of(uuid) };
    let namespace = Namespace { backing, ids, ana: AnaState::Optimized };
    Subsystem { namespaces: BTreeMap::from([(NSID, namespace)]), hosts, cntlids: None }
}
