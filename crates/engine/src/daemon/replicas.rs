//! Replicas by the node API: made, resized, shared, labelled, deleted.

use std::collections::{BTreeMap, BTreeSet};

use api::node::{Answered, Found, Removal};
use api::{Ensured, Gone, Page, Paging};
use model::{
    ChildPath, EventName, Kind, Label, Memo, Nqn, Order, PoolName, Problem, ReplicaId, ReplicaSpec,
    ReplicaState, ReplicaStatus, Subject, TargetId, TargetSpec,
};
use nvme::target::NamespaceIds;
use nvme::wire::AnaState;
use pool::{Change, Entity, Id};

use super::engine::{Engine, Lodger, now};
use super::kept;
use super::keys::{self, Lock};
use super::pages::page_of;
use super::problems::{self, in_field};
use crate::pools::{EntityStatus, Order as PoolOrder, PoolError};
use crate::serve::{Backing, Host, Namespace, Subsystem};

/// The one namespace of the subsystem of a replica or a volume.
pub(super) const NSID: u32 = 1;

fn no_replica(replica: ReplicaId) -> Problem {
    Problem::new(Kind::NotFound, format!("there is no replica {replica} on this node"))
}

/// A name as it travels.
pub(super) fn wire_name(nqn: &Nqn) -> Answered<nvme::wire::Nqn> {
    nvme::wire::Nqn::new(nqn.as_str())
        .map_err(|error| in_field("spec.hosts", Kind::InvalidArgument, error))
}

impl Engine {
    fn lodger(&self, replica: ReplicaId) -> Option<Lodger> {
        self.state().replicas.get(&replica).cloned()
    }

    /// Where a replica is, and what its pool says of it.
    pub(super) async fn place_of(
        &self,
        replica: ReplicaId,
    ) -> Answered<(PoolName, Id, EntityStatus)> {
        let Some(lodger) = self.lodger(replica) else {
            self.all_are_open()?;
            return Err(no_replica(replica));
        };
        let pool = self.open_pool(&lodger.pool)?;
        let found = self.entity(pool, kept::id_of(replica.uuid())).await?;
        Ok((lodger.pool, pool, found.ok_or_else(|| no_replica(replica))?))
    }

    /// One replica.
    pub(super) async fn find_replica(&self, replica: ReplicaId) -> Answered<Found<ReplicaSpec>> {
        let (pool, _, found) = self.place_of(replica).await?;
        let (generation, held, hosts, lock) = {
            let state = self.state();
            let order = state.replica_orders.get(&replica);
            let lodger = state.replicas.get(&replica);
            let hosts = lodger.map(|lodger| lodger.hosts.clone());
            let lock = lodger.map_or(Lock::None, |lodger| lodger.lock.clone());
            let (generation, spec) = order.map(|o| (o.generation, o.spec.clone())).unzip();
            (generation, spec, hosts.unwrap_or_default(), lock)
        };
        let entity = &found.entity;
        let on_disk = || kept::replica_spec(&pool, entity, &hosts, lock.encryption());
        let spec = held.or_else(on_disk).ok_or_else(|| no_replica(replica))?;
        let label = kept::label(entity);
        let state = match (&label, lock.detail()) {
            (Ok(_), None) => ReplicaState::Online,
            (Ok(_), Some(detail)) => ReplicaState::Faulted { detail },
            (Err(error), _) => ReplicaState::Faulted { detail: error.to_string() },
        };
        let addresses = if hosts.is_empty() { Vec::new() } else { self.0.addresses.clone() };
        let usage = kept::usage_of(found.usage, entity.kind);
        let status = ReplicaStatus {
            state,
            usage,
            label: label.ok().flatten(),
            fence: kept::fence(entity),
            memo: kept::memo(entity),
            addresses,
        };
        Ok(Found { id: replica, generation, spec, status })
    }

    /// A page of replicas, by id.
    pub(super) async fn page_of_replicas(
        &self,
        paging: Paging,
    ) -> Answered<Page<Found<ReplicaSpec>>> {
        let all = self.state().replicas.keys().copied().collect();
        page_of(paging, all, |replica| self.find_replica(replica)).await
    }

    /// Makes a replica what the order says.
    pub(super) async fn order_replica(
        &self,
        replica: ReplicaId,
        order: Order<ReplicaSpec>,
    ) -> Answered<Ensured<Found<ReplicaSpec>>> {
        let spec = order.spec.clone();
        let _pool = self.0.pool_locks.of(&spec.pool).read_owned().await;
        let _alone = self.0.replica_locks.of(&replica).write_owned().await;
        self.state().replica_orders.admit(&replica, &order)?;
        let pool = self.open_pool(&spec.pool)?;
        let lodger = self.lodger(replica);
        let found = self.entity(pool, kept::id_of(replica.uuid())).await?;
        check(replica, &spec, lodger.as_ref(), found.as_ref().map(|found| &found.entity))?;
        let before = {
            let mut state = self.state();
            let before = state.replica_orders.get(&replica).map(|order| order.spec.clone());
            state.replica_orders.follow(replica, order);
            before
        };
        let was_there = found.is_some();
        let mut changed = before.is_some_and(|before| before != spec);
        self.note_hosts(replica, &spec.hosts);
        // It may shrink as soon as no host uses it any more.
        changed |= was_there && self.unshare_unused(replica, pool).await?;
        match found {
            None => self.make_replica(replica, &spec, pool).await?,
            Some(found) => changed |= self.resize(&spec, pool, &found.entity).await?,
        }
        changed |= self.unlock(replica, &spec, pool).await?;
        self.note_hosts(replica, &spec.hosts);
        changed |= self.share(replica, pool).await?;
        let now = self.find_replica(replica).await?;
        if !was_there {
            let message = format!("made in pool {} with {}", spec.pool, spec.size);
            self.tell(Subject::Replica(replica), EventName::Created, message);
            return Ok(Ensured::created(now));
        }
        if changed {
            self.tell(Subject::Replica(replica), EventName::Changed, "its spec changed");
            return Ok(Ensured::changed(now));
        }
        Ok(Ensured::unchanged(now))
    }

    async fn make_replica(&self, replica: ReplicaId, spec: &ReplicaSpec, pool: Id) -> Answered<()> {
        let mut origin = None;
        if let Some(source) = spec.source {
            origin = self.entity(pool, kept::id_of(source.uuid())).await?;
            if origin.is_none() {
                let detail = format!("there is no snapshot {source} in pool {}", spec.pool);
                return Err(in_field("spec.source", Kind::NotFound, detail));
            }
        }
        let key = self.new_key(spec, origin.as_ref().map(|found| &found.entity)).await?;
        let change = Change::Create(kept::new_replica(replica, spec, key, now()));
        self.carry_out(pool, PoolOrder::Change { pool, change }).await?;
        let lock = if spec.encryption.is_some() { Lock::Closed } else { Lock::None };
        let lodger = Lodger::new(spec.pool.clone(), spec.source, lock);
        self.state().replicas.insert(replica, lodger);
        Ok(())
    }

    async fn resize(&self, spec: &ReplicaSpec, pool: Id, entity: &Entity) -> Answered<bool> {
        let size = kept::blocks_of(spec.size);
        if entity.size == size {
            return Ok(false);
        }
        let change = Change::Resize { id: entity.id, size };
        self.carry_out(pool, PoolOrder::Change { pool, change }).await?;
        Ok(true)
    }

    /// Serves a replica no longer if nobody is to use it.
    async fn unshare_unused(&self, replica: ReplicaId, pool: Id) -> Answered<bool> {
        match self.lodger(replica) {
            Some(lodger) if self.users_of(&lodger).is_empty() => self.share(replica, pool).await,
            _ => Ok(false),
        }
    }

    /// Who may connect: those who were named, and this engine if a target of it uses the replica.
    fn users_of(&self, lodger: &Lodger) -> BTreeSet<Nqn> {
        let here = (!lodger.used_by.is_empty()).then(|| self.0.info.address.nqn.clone());
        lodger.hosts.iter().cloned().chain(here).collect()
    }

    /// Serves a replica to exactly those who may use it, as large as it is.
    pub(super) async fn share(&self, replica: ReplicaId, pool: Id) -> Answered<bool> {
        let nqn = wire_name(&Nqn::replica(replica))?;
        let lodger = self.lodger(replica).ok_or_else(|| no_replica(replica))?;
        let users = self.users_of(&lodger);
        let mut hosts = BTreeMap::new();
        for host in &users {
            hosts.insert(wire_name(host)?, Host::default());
        }
        let is_served = !lodger.served.is_empty();
        let answer = if hosts.is_empty() {
            self.0.orders.remove(nqn.clone()).await
        } else if is_served {
            self.0.orders.set_hosts(nqn.clone(), hosts).await
        } else {
            let subsystem = subsystem_of(replica, pool, hosts);
            self.0.orders.add(nqn.clone(), subsystem).await
        };
        let mut changed =
            answer.map_err(|error| problems::of_order(&error))? == crate::serve::Answer::Changed;
        let stays_served = is_served && !users.is_empty();
        if let Some(lodger) = self.state().replicas.get_mut(&replica) {
            lodger.served = users;
        }
        if stays_served && let Some(found) = self.entity(pool, kept::id_of(replica.uuid())).await? {
            let size = kept::size_of(found.entity.size).bytes();
            let grown = self.0.orders.grow(nqn, NSID, size).await;
            let grown = grown.map_err(|error| problems::of_order(&error))?;
            changed |= grown == crate::serve::Answer::Changed;
        }
        Ok(changed)
    }

    fn note_hosts(&self, replica: ReplicaId, hosts: &BTreeSet<Nqn>) {
        if let Some(lodger) = self.state().replicas.get_mut(&replica) {
            lodger.hosts.clone_from(hosts);
        }
    }

    /// Serves to this engine itself what a target uses as a local child, and nothing else for it.
    pub(super) async fn use_locally(&self, target: TargetId, spec: &TargetSpec) -> Answered<bool> {
        let local = spec.children.iter().filter(|child| child.path == ChildPath::Local {});
        let local: BTreeSet<ReplicaId> = local.map(|child| child.replica).collect();
        let mut changed = false;
        for replica in &local {
            let Some(lodger) = self.lodger(*replica) else {
                self.all_are_open()?;
                let detail = format!("replica {replica} is not on this node; give its addresses");
                return Err(in_field("spec.children", Kind::NotFound, detail));
            };
            if !lodger.used_by.contains(&target) {
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
        let used = state.replicas.iter().filter(|(_, lodger)| lodger.used_by.contains(&target));
        used.map(|(replica, _)| *replica).collect()
    }

    async fn set_use(&self, replica: ReplicaId, target: TargetId, is_used: bool) -> Answered<bool> {
        let _alone = self.0.replica_locks.of(&replica).write_owned().await;
        let Some(lodger) = self.lodger(replica) else {
            return if is_used { Err(no_replica(replica)) } else { Ok(false) };
        };
        let pool = self.open_pool(&lodger.pool)?;
        if let Some(lodger) = self.state().replicas.get_mut(&replica) {
            if is_used {
                lodger.used_by.insert(target);
            } else {
                lodger.used_by.remove(&target);
            }
        }
        self.share(replica, pool).await
    }

    /// Deletes a replica; its snapshots stay.
    pub(super) async fn order_no_replica(
        &self,
        replica: ReplicaId,
        order: Removal,
    ) -> Answered<Gone> {
        // A pool that is exported meanwhile would take along what is said to be gone.
        let _pool = self.0.pool_locks.of(&order.pool).read_owned().await;
        let _alone = self.0.replica_locks.of(&replica).write_owned().await;
        self.state().replica_orders.admit_removal(&replica, order.generation)?;
        let pool = self.open_pool(&order.pool)?;
        let was_there = match self.lodger(replica) {
            None => false,
            Some(lodger) if lodger.pool != order.pool => {
                let detail = format!("replica {replica} is in pool {}", lodger.pool);
                return Err(in_field("pool", Kind::InvalidArgument, detail));
            }
            Some(_) => {
                let removed = self.0.orders.remove(wire_name(&Nqn::replica(replica))?).await;
                removed.map_err(|error| problems::of_order(&error))?;
                let change = Change::Delete(kept::id_of(replica.uuid()));
                match self.ask(pool, PoolOrder::Change { pool, change }).await? {
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
        if was_there {
            self.tell(Subject::Replica(replica), EventName::Deleted, "it was deleted");
        }
        Ok(Gone { was_there })
    }

    /// Writes the label of a replica.
    pub(super) async fn order_label(
        &self,
        replica: ReplicaId,
        label: Label,
    ) -> Answered<Ensured<Label>> {
        let _alone = self.0.replica_locks.of(&replica).write_owned().await;
        let (_, pool, found) = self.place_of(replica).await?;
        let entity = &found.entity;
        if label.replica != replica {
            let detail = format!("this is the label of replica {replica}");
            return Err(in_field("replica", Kind::InvalidArgument, detail));
        }
        if let Some(has) = kept::volume(entity)
            && has != label.volume
        {
            let detail = format!("replica {replica} is a copy of volume {has}");
            return Err(in_field("volume", Kind::InvalidArgument, detail));
        }
        let before = kept::label(entity).map_err(|error| problems::of_record(&error))?;
        if before.as_ref() == Some(&label) {
            return Ok(Ensured::unchanged(label));
        }
        if let Some(before) = &before {
            may_follow(&label, before)?;
        }
        let kept = kept::with_label(entity, label.clone());
        let kept = kept.map_err(|error| problems::of_record(&error))?;
        let change = Change::Label { id: entity.id, label: kept };
        self.carry_out(pool, PoolOrder::Change { pool, change }).await?;
        Ok(if before.is_some() { Ensured::changed(label) } else { Ensured::created(label) })
    }

    /// Writes with a replica what is wanted of its volume.
    pub(super) async fn order_memo(
        &self,
        replica: ReplicaId,
        memo: Memo,
    ) -> Answered<Ensured<Memo>> {
        let _alone = self.0.replica_locks.of(&replica).write_owned().await;
        let (_, pool, found) = self.place_of(replica).await?;
        let entity = &found.entity;
        if let Some(has) = kept::volume(entity)
            && has != memo.volume
        {
            let detail = format!("replica {replica} is a copy of volume {has}");
            return Err(in_field("volume", Kind::InvalidArgument, detail));
        }
        let before = kept::memo(entity).filter(|before| before.volume == memo.volume);
        if let Some(before) = &before {
            if before.spec == memo.spec {
                return Ok(Ensured::unchanged(memo));
            }
            if before.generation > memo.generation {
                let (sent, have) = (memo.generation, before.generation);
                let detail = format!("generation {sent} of the volume is older than {have}");
                return Err(in_field("generation", Kind::StaleGeneration, detail));
            }
        }
        let text = match model::stored::encode(&memo) {
            Ok(text) if memo.fits() => text.into_bytes(),
            _ => {
                let detail = format!("it has more than {} bytes", Memo::MOST_BYTES);
                return Err(in_field("spec", Kind::TooLarge, detail));
            }
        };
        let change = Change::Memo { id: entity.id, memo: text };
        self.carry_out(pool, PoolOrder::Change { pool, change }).await?;
        Ok(if before.is_some() { Ensured::changed(memo) } else { Ensured::created(memo) })
    }
}

/// Refuses a label that is not newer.
fn may_follow(label: &Label, before: &Label) -> Answered<()> {
    let (sent, have) = (label.stamp(), before.stamp());
    let refused = |kind, detail: String| Err(Problem::new(kind, detail));
    if sent > have {
        return Ok(());
    }
    if sent.epoch < have.epoch {
        let (sent, have) = (sent.epoch, have.epoch);
        let detail = format!("epoch {sent} is over: {have} owns the volume; give it up");
        return refused(Kind::Fenced, detail);
    }
    if sent == have {
        let number = sent.generation;
        let detail = format!("generation {number} was written with other content; use a new one");
        return refused(Kind::GenerationReused, detail);
    }
    let (sent, have) = (sent.generation, have.generation);
    refused(Kind::StaleGeneration, format!("generation {sent} is late: {have} has been written"))
}

/// Refuses what contradicts the replica that is there.
fn check(
    replica: ReplicaId,
    spec: &ReplicaSpec,
    lodger: Option<&Lodger>,
    found: Option<&Entity>,
) -> Answered<()> {
    let differs = |field, detail: String| Err(in_field(field, Kind::AlreadyExists, detail));
    if let Some(lodger) = lodger
        && lodger.pool != spec.pool
    {
        let detail = format!("replica {replica} is in pool {}", lodger.pool);
        return differs("spec.pool", detail);
    }
    let Some(entity) = found else { return Ok(()) };
    if entity.kind == pool::Kind::Snapshot {
        return differs("replica", format!("{replica} is a snapshot; choose another id"));
    }
    keys::check(replica, spec, entity)?;
    if let Some(volume) = kept::volume(entity)
        && volume != spec.volume
    {
        let detail = format!("replica {replica} is a copy of volume {volume}");
        return differs("spec.volume", detail);
    }
    if entity.thick == spec.thin {
        let kind = if entity.thick { "thick" } else { "thin" };
        return differs("spec.thin", format!("replica {replica} is {kind}, for good"));
    }
    if let (Some(has), Some(wanted)) = (kept::snapshot_id(entity.origin), spec.source)
        && has != wanted
    {
        return differs("spec.source", format!("replica {replica} was started from {has}"));
    }
    may_shrink(replica, spec, entity)?;
    let is_shared = lodger.is_some_and(|lodger| !lodger.served.is_empty());
    let is_used_here = lodger.is_some_and(|lodger| !lodger.used_by.is_empty());
    let stays_shared = is_shared && (is_used_here || !spec.hosts.is_empty());
    if stays_shared && kept::blocks_of(spec.size) < entity.size {
        let detail = "it cannot shrink while it is exported; unshare it first";
        return Err(in_field("spec.size", Kind::InUse, detail));
    }
    Ok(())
}

/// Refuses to cut off what belongs to the volume: a replica is never made smaller than the size on
/// its own label. Generations of orders are forgotten with a restart, so an order of a store that
/// went back may come with any number.
fn may_shrink(replica: ReplicaId, spec: &ReplicaSpec, entity: &Entity) -> Answered<()> {
    if kept::blocks_of(spec.size) >= entity.size {
        return Ok(());
    }
    let wanted = spec.size;
    let detail = match kept::label(entity) {
        Ok(Some(label)) if wanted < label.size => format!(
            "replica {replica} holds a volume of {}, as its label says, and is not cut to \
             {wanted}: whoever orders that is older than the disk; compare the store with \
             `holdfast recover`",
            label.size
        ),
        Err(error) => format!("replica {replica} is not cut to {wanted}: its label: {error}"),
        Ok(_) => return Ok(()),
    };
    Err(in_field("spec.size", Kind::StoreBehind, detail))
}

/// What hosts see of a replica.
fn subsystem_of(replica: ReplicaId, pool: Id, hosts: BTreeMap<nvme::wire::Nqn, Host>) -> Subsystem {
    let uuid = replica.uuid();
    let ids = NamespaceIds { uuid: *uuid.as_bytes(), nguid: *uuid.as_bytes(), eui64: [0; 8] };
    let backing = Backing::Member { pool, id: kept::id_of(uuid) };
    let namespace = Namespace { backing, ids, ana: AnaState::Optimized };
    Subsystem { namespaces: BTreeMap::from([(NSID, namespace)]), hosts, cntlids: None }
}
