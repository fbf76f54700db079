//! What wishes come to: changed records, or why not.

use model::{
    EventName, Generation, Kind, Object, Problem, Severity, Spec, Subject, TargetChange, Volume,
    VolumeChange, VolumeId,
};
use planner::{Budget, View};

use super::batch::{Batch, For};
use super::ids::Ids;
use super::state::Kept;
use super::{Asked, Core, Done, Effect, Entry, Wish};

/// What decisions of one round share: what is known, what they have given away, new ids.
pub(crate) struct Desk<'d, 'v> {
    pub(crate) view: &'d View<'v>,
    pub(crate) budget: Budget,
    pub(crate) ids: &'d mut Ids,
    /// How many watches are granted.
    pub(crate) watches: usize,
}

impl<'d, 'v> Desk<'d, 'v> {
    pub(crate) fn new(view: &'d View<'v>, ids: &'d mut Ids) -> Desk<'d, 'v> {
        Desk { view, budget: Budget::new(), ids, watches: 0 }
    }
}

/// Refuses a caller who has not seen the newest generation.
pub(crate) fn expect<S: Spec>(object: &Object<S>, asked: &Asked) -> Result<(), Problem> {
    asked.seen.map_or(Ok(()), |seen: Generation| object.expect(seen))
}

impl Core {
    /// Decides all wishes that wait, with one look at what is known.
    pub(crate) fn decide_wishes(&mut self) {
        self.refresh_reservations();
        let asked = std::mem::take(&mut self.asked);
        let mut ids = self.ids;
        let mut decisions = Vec::with_capacity(asked.len());
        {
            let view = View::new(&self.state.facts, &self.settings, self.now);
            let mut desk = Desk::new(&view, &mut ids);
            for asked in asked {
                let decision = self.decide(&mut desk, &asked);
                decisions.push((asked, decision));
            }
        }
        self.ids = ids;
        for (asked, decision) in decisions {
            match decision {
                Ok(batch) => self.grant(asked, batch),
                Err(problem) => self.out.push(Effect::Reply(asked.ticket, Err(problem))),
            }
        }
    }

    fn grant(&mut self, asked: Asked, mut batch: Batch) {
        let ticket = asked.ticket;
        batch.asked = Some(asked);
        if batch.is_empty() {
            match batch.waits.take() {
                Some((subject, what)) => self.wait_for(subject, ticket, what),
                None => self.take_effect(batch),
            }
        } else if let Err(batch) = self.commit(batch) {
            match self.why_not_written().or_else(|| self.why_unreadable(&batch)) {
                Some(problem) => self.out.push(Effect::Reply(ticket, Err(problem))),
                None => self.parked.extend(batch.asked),
            }
        }
    }

    fn decide(&self, desk: &mut Desk<'_, '_>, asked: &Asked) -> Result<Batch, Problem> {
        self.expect_agreement(&asked.wish)?;
        match &asked.wish {
            Wish::CreateVolume(id, spec) => self.decide_create_volume(desk, asked, *id, spec),
            Wish::DeleteVolume(id) => self.decide_delete_volume(asked, *id),
            Wish::Publish { volume, host, node } => {
                self.decide_publish(desk, asked, *volume, (host.as_ref(), node.as_ref()))
            }
            Wish::Unpublish { volume, host, force } => {
                self.decide_unpublish(desk, asked, *volume, (host.as_ref(), *force))
            }
            Wish::Republish { volume, node } => {
                self.decide_republish(desk, asked, *volume, node.as_ref())
            }
            Wish::Resize { volume, size } => self.decide_resize(desk, asked, *volume, *size),
            Wish::SetReplicas { volume, replicas } => {
                self.decide_replicas(desk, asked, *volume, *replicas)
            }
            Wish::ModifyVolume(volume, spec) => self.decide_modify(asked, *volume, spec),
            Wish::MoveReplica { volume, replica, pool } => {
                self.decide_move(desk, asked, *volume, (*replica, pool.as_ref()))
            }
            Wish::RemoveReplica { volume, replica } => self.decide_remove(asked, *volume, *replica),
            Wish::SetReplicaOffline { volume, replica, offline } => {
                self.decide_offline(asked, *volume, (*replica, *offline))
            }
            Wish::DropTargets(volume) => self.decide_drop_targets(asked, *volume),
            Wish::CreateSnapshot(id, spec) => self.decide_create_snapshot(desk, asked, *id, spec),
            Wish::ChangeSnapshot(id, change) => {
                let snapshot = self.known::<model::SnapshotSpec>(id)?;
                self.change_at_once(asked, snapshot, change.clone(), Subject::Snapshot)
            }
            Wish::DeleteSnapshot(id) => self.decide_delete_snapshot(asked, *id),
            Wish::CreateGroup(id, spec) => self.decide_create_group(desk, asked, *id, spec),
            Wish::ChangeGroup(id, change) => {
                let group = self.known::<model::SnapshotGroupSpec>(id)?;
                self.change_at_once(asked, group, change.clone(), Subject::SnapshotGroup)
            }
            Wish::DeleteGroup(id) => self.decide_delete_group(asked, *id),
            Wish::CreatePool(name, spec) => self.decide_create_pool(desk, asked, name, spec),
            Wish::ChangePool(name, change) => self.decide_change_pool(asked, name, change),
            Wish::DeletePool(name) => self.decide_delete_pool(asked, name),
            Wish::PurgePool(name, lost) => self.decide_purge_pool(asked, name, lost),
            Wish::ChangeNode(name, change) => {
                let name = self.known::<model::NodeSpec>(name)?;
                self.change_at_once(asked, name, change.clone(), Subject::Node)
            }
            Wish::PurgeNode(name, lost) => self.decide_purge_node(asked, name, lost),
            Wish::ChangeHost(name, change) => {
                let host = self.known::<model::HostSpec>(name)?;
                self.change_at_once(asked, host, change.clone(), Subject::Host)
            }
            Wish::DeleteHost(name) => self.decide_delete_host(asked, name),
            Wish::CreateWatch(name, spec) => self.decide_create_watch(desk, asked, name, spec),
            Wish::ChangeWatch(name, change) => self.decide_change_watch(asked, name, change),
            Wish::DeleteWatch(name) => self.decide_delete_watch(asked, name),
            Wish::Rescue { replica, snapshot } => self.decide_rescue(asked, *replica, *snapshot),
            Wish::Discard(replica) => self.decide_discard(asked, *replica),
            Wish::Scrub(replica) => self.decide_scrub(asked, *replica),
            Wish::List(node) => self.decide_list(node),
            Wish::Recover(incomplete) => self.decide_recover(desk, asked, incomplete),
        }
    }

    pub(crate) fn known<S: Kept>(&self, id: &S::Id) -> Result<&Object<S>, Problem> {
        let missing = || Problem::new(Kind::NotFound, format!("there is no {} {id}", S::KIND));
        S::map(&self.state).get(id).ok_or_else(missing)
    }

    /// The volume, if it is there and as the caller has seen it.
    pub(crate) fn known_volume(&self, id: VolumeId, asked: &Asked) -> Result<&Volume, Problem> {
        let volume = self.known::<model::VolumeSpec>(&id)?;
        expect(volume, asked)?;
        Ok(volume)
    }

    /// A change that needs no steps.
    pub(crate) fn change_at_once<S: Kept>(
        &self,
        asked: &Asked,
        object: &Object<S>,
        change: S::Change,
        subject: impl FnOnce(S::Id) -> Subject,
    ) -> Result<Batch, Problem>
    where
        Entry: From<Object<S>>,
    {
        expect(object, asked)?;
        let mut object = object.clone();
        let before = object.spec().clone();
        let message = super::words::change(&change);
        object.change(change, self.now)?;
        if *object.spec() == before {
            return Ok(Batch::new().reply(asked.ticket, Done::Unchanged));
        }
        let subject = subject(object.id().clone());
        let batch = Batch::new().put(object).reply(asked.ticket, Done::Changed);
        Ok(batch.tell(subject, EventName::Changed, Severity::Info, message))
    }

    fn decide_resize(
        &self,
        desk: &mut Desk<'_, '_>,
        asked: &Asked,
        id: VolumeId,
        size: model::Size,
    ) -> Result<Batch, Problem> {
        let volume = self.known_volume(id, asked)?;
        if volume.spec().size == size && volume.lifecycle().is_idle() {
            return Ok(Batch::new().reply(asked.ticket, Done::Unchanged));
        }
        planner::check_resize(desk.view, volume, size)?;
        let mut volume = volume.clone();
        volume.begin(VolumeChange::Resize { size }, self.now)?;
        Ok(Batch::new().put(volume).wait(Subject::Volume(id), For::End))
    }

    /// The number is in effect at once; the copies follow.
    fn decide_replicas(
        &self,
        desk: &mut Desk<'_, '_>,
        asked: &Asked,
        id: VolumeId,
        replicas: u8,
    ) -> Result<Batch, Problem> {
        let volume = self.known_volume(id, asked)?;
        planner::check_replica_count(desk.view, volume, replicas)?;
        self.change_at_once(asked, volume, VolumeChange::SetReplicas { replicas }, Subject::Volume)
    }

    fn decide_modify(
        &self,
        asked: &Asked,
        id: VolumeId,
        spec: &model::VolumeSpec,
    ) -> Result<Batch, Problem> {
        let volume = self.known_volume(id, asked)?;
        let change = VolumeChange::Modify { spec: Box::new(spec.clone()) };
        let batch = self.change_at_once(asked, volume, change, Subject::Volume)?;
        let target = self.target_of(id).filter(|target| target.spec().limits != spec.limits);
        let Some(mut target) = target.cloned().filter(|_| !batch.is_empty()) else {
            return Ok(batch);
        };
        target.change(TargetChange::Limit { limits: spec.limits }, self.now)?;
        Ok(batch.put(target))
    }

    /// A copy goes that others stand in for.
    fn decide_remove(
        &self,
        asked: &Asked,
        id: VolumeId,
        replica: model::ReplicaId,
    ) -> Result<Batch, Problem> {
        let volume = self.known_volume(id, asked)?;
        let found = self.state.facts.replicas.get(&replica);
        if found.is_none_or(|found| found.spec().volume != id) {
            return Ok(Batch::new().reply(asked.ticket, Done::Unchanged));
        }
        let change = volume.lifecycle().operation().map(|operation| &operation.change);
        if matches!(change, Some(VolumeChange::CreateSnapshot { .. })) {
            // What was taken of this copy already would be left behind.
            let detail = format!("a snapshot of volume {id} is being taken; try again soon");
            return Err(Problem::new(Kind::Busy, detail));
        }
        let others = self
            .state
            .replicas_of(id)
            .filter(|it| *it.id() != replica && self.answers(it) && self.is_in_sync(it));
        if others.count() == 0 {
            let detail = format!("no other copy of volume {id} is in sync and answers");
            return Err(Problem::new(Kind::LastReplica, detail));
        }
        Ok(self.remove_replica(id, replica)?.reply(asked.ticket, Done::Changed))
    }

    fn decide_delete_host(&self, asked: &Asked, name: &model::HostName) -> Result<Batch, Problem> {
        let Some(host) = self.state.hosts.get(name) else {
            return Ok(Batch::new().reply(asked.ticket, Done::Unchanged));
        };
        expect(host, asked)?;
        let targets = self.state.facts.targets.values();
        if let Some(target) = targets.into_iter().find(|it| it.spec().hosts.contains_key(name)) {
            let volume = target.spec().volume;
            let detail = format!("host {name} may use volume {volume}; unpublish it first");
            return Err(Problem::new(Kind::InUse, detail));
        }
        Ok(Batch::new().drop(host.clone()).reply(asked.ticket, Done::Gone))
    }

    fn decide_change_pool(
        &self,
        asked: &Asked,
        name: &model::PoolName,
        change: &model::PoolChange,
    ) -> Result<Batch, Problem> {
        use model::PoolChange as P;
        let pool = self.known::<model::PoolSpec>(name)?;
        expect(pool, asked)?;
        match change {
            P::Label { .. } | P::Cordon { .. } | P::Uncordon { .. } => {
                self.change_at_once(asked, pool, change.clone(), Subject::Pool)
            }
            P::AddDisk { .. } | P::Grow {} | P::Export {} | P::Import { .. } => {
                if matches!(change, P::Export {}) {
                    self.may_be_exported(name)?;
                }
                let exported = pool.spec().exported && pool.lifecycle().is_idle();
                if exported && matches!(change, P::Export {}) {
                    return Ok(Batch::new().reply(asked.ticket, Done::Unchanged));
                }
                if exported && matches!(change, P::Grow {}) {
                    let detail = format!("pool {name} is exported; import it first");
                    return Err(Problem::new(Kind::NotSupported, detail));
                }
                if let P::Import { node, .. } = change {
                    self.known::<model::NodeSpec>(node)?;
                }
                let mut pool = pool.clone();
                pool.begin(change.clone(), self.now)?;
                let node = pool.order().spec.node;
                if !self.state.is_online(&node) {
                    return Err(super::pool::absent(&node));
                }
                let subject = Subject::Pool(name.clone());
                Ok(Batch::new().put(pool).wait(subject, For::End))
            }
        }
    }

    /// A pool whose copies are in use stays where it is.
    fn may_be_exported(&self, name: &model::PoolName) -> Result<(), Problem> {
        for id in self.replicas_on(&[name.clone()].into()) {
            let Some(replica) = self.state.facts.replicas.get(&id) else { continue };
            if self.target_of(replica.spec().volume).is_some_and(|it| it.spec().child(id).is_some())
            {
                let detail = format!(
                    "volume {} is served and has a copy in pool {name}; unpublish it, or move the \
                     copy",
                    replica.spec().volume
                );
                return Err(Problem::new(Kind::InUse, detail));
            }
        }
        Ok(())
    }
}
