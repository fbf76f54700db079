//! What requests come to: changed records, or why not.

use model::{
    EventName, Generation, Problem, ProblemKind, Resource, Severity, Spec, Subject, TargetChange,
    Volume, VolumeChange, VolumeId,
};
use planner::{Budget, View};

use super::batch::{Batch, WaitFor};
use super::ids::Ids;
use super::state::StoredResource;
use super::{Controller, Effect, Entry, PendingRequest, Request, RequestOutcome};

/// What decisions of one round share: what is known, what they have given away, new ids.
pub(crate) struct AdmissionContext<'d, 'v> {
    pub(crate) view: &'d View<'v>,
    pub(crate) budget: Budget,
    pub(crate) ids: &'d mut Ids,
    /// How many watches are granted.
    pub(crate) webhooks: usize,
}

impl<'d, 'v> AdmissionContext<'d, 'v> {
    pub(crate) fn new(view: &'d View<'v>, ids: &'d mut Ids) -> AdmissionContext<'d, 'v> {
        AdmissionContext { view, budget: Budget::new(), ids, webhooks: 0 }
    }
}

/// Refuses a caller who has not seen the newest generation.
pub(crate) fn expect<S: Spec>(object: &Resource<S>, asked: &PendingRequest) -> Result<(), Problem> {
    asked.if_match.map_or(Ok(()), |seen: Generation| object.expect(seen))
}

/// Refuses a name that another one of the kind has.
pub(crate) fn expect_free_name<'s, S: Spec + 's>(
    id: &S::Id,
    spec: &S,
    mut all: impl Iterator<Item = &'s Resource<S>>,
) -> Result<(), Problem> {
    let Some(name) = spec.name() else { return Ok(()) };
    let has = |it: &&Resource<S>| it.spec().name() == Some(name) && it.id() != id;
    let Some(other) = all.find(has) else { return Ok(()) };
    let kind = S::KIND;
    let detail = format!("{kind} {} is called {name} already; choose another name", other.id());
    let field = Some("name".to_owned());
    Err(Problem { field, ..Problem::new(ProblemKind::AlreadyExists, detail) })
}

impl Controller {
    /// Decides all requests that wait, with one look at what is known.
    pub(crate) fn admit_requests(&mut self) {
        self.refresh_reservations();
        let asked = std::mem::take(&mut self.asked);
        let mut ids = self.ids;
        let mut decisions = Vec::with_capacity(asked.len());
        {
            let view = self.view();
            let mut context = AdmissionContext::new(&view, &mut ids);
            for asked in asked {
                let decision = self.decide(&mut context, &asked);
                decisions.push((asked, decision));
            }
        }
        self.ids = ids;
        for (asked, decision) in decisions {
            match decision {
                Ok(batch) => self.accept(asked, batch),
                Err(problem) => self.out.push(Effect::Reply(asked.ticket, Err(problem))),
            }
        }
    }

    fn accept(&mut self, asked: PendingRequest, mut batch: Batch) {
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
                None => self.waiting_for_write.extend(batch.asked),
            }
        }
    }

    pub(crate) fn decide(
        &self,
        context: &mut AdmissionContext<'_, '_>,
        asked: &PendingRequest,
    ) -> Result<Batch, Problem> {
        self.expect_agreement(&asked.request)?;
        match &asked.request {
            Request::CreateVolume(id, spec) => self.decide_create_volume(context, asked, *id, spec),
            Request::DeleteVolume(id) => self.decide_delete_volume(asked, *id),
            Request::Publish { volume, host, node } => {
                self.decide_publish(context, asked, *volume, (host.as_ref(), node.as_ref()))
            }
            Request::Unpublish { volume, host, force } => {
                self.decide_unpublish(context, asked, *volume, (host.as_ref(), *force))
            }
            Request::Republish { volume, node } => {
                self.decide_republish(context, asked, *volume, node.as_ref())
            }
            Request::Resize { volume, size } => self.decide_resize(context, asked, *volume, *size),
            Request::SetReplicas { volume, replicas } => {
                self.decide_replicas(context, asked, *volume, *replicas)
            }
            Request::ModifyVolume(volume, spec) => self.decide_modify(asked, *volume, spec),
            Request::MoveReplica { volume, replica, pool } => {
                self.decide_move(context, asked, *volume, (*replica, pool.as_ref()))
            }
            Request::RemoveReplica { volume, replica } => {
                self.decide_remove(asked, *volume, *replica)
            }
            Request::SetReplicaOffline { volume, replica, offline } => {
                self.decide_offline(asked, *volume, (*replica, *offline))
            }
            Request::Cancel(volume) => self.decide_cancel(asked, *volume),
            Request::BeginMaintenance(lasts, why) => {
                Ok(self.decide_maintenance(asked, *lasts, why))
            }
            Request::EndMaintenance => Ok(self.decide_end_maintenance(asked)),
            Request::DropTargets(volume) => self.decide_drop_targets(asked, *volume),
            Request::CreateSnapshot(id, spec) => self.decide_snapshot(context, asked, *id, spec),
            Request::ChangeSnapshot(id, change) => {
                self.decide_change::<model::SnapshotSpec>(asked, id, change, Subject::Snapshot)
            }
            Request::DeleteSnapshot(id) => self.decide_delete_snapshot(asked, *id),
            Request::CreateGroup(id, spec) => self.decide_create_group(context, asked, *id, spec),
            Request::ChangeGroup(id, change) => {
                let subject = Subject::SnapshotGroup;
                self.decide_change::<model::SnapshotGroupSpec>(asked, id, change, subject)
            }
            Request::DeleteGroup(id) => self.decide_delete_group(asked, *id),
            Request::CreatePool(name, spec) => self.decide_create_pool(context, asked, name, spec),
            Request::ChangePool(name, change) => self.decide_change_pool(asked, name, change),
            Request::DeletePool(name) => self.decide_delete_pool(asked, name),
            Request::PurgePool(name, lost) => self.decide_purge_pool(asked, name, lost),
            Request::ChangeNode(name, change) => {
                self.decide_change::<model::NodeSpec>(asked, name, change, Subject::Node)
            }
            Request::PurgeNode(name, lost) => self.decide_purge_node(asked, name, lost),
            Request::ChangeHost(name, change) => {
                self.decide_change::<model::HostSpec>(asked, name, change, Subject::Host)
            }
            Request::DeleteHost(name) => self.decide_delete_host(asked, name),
            Request::CreateWebhook(name, spec) => self.decide_webhook(context, asked, name, spec),
            Request::ChangeWebhook(name, change) => self.decide_change_webhook(asked, name, change),
            Request::DeleteWebhook(name) => self.decide_delete_webhook(asked, name),
            Request::Rescue { replica, snapshot } => self.decide_rescue(asked, *replica, *snapshot),
            Request::Discard(replica) => self.decide_discard(asked, *replica),
            Request::Attend(volume) => self.decide_attend(asked, *volume),
            Request::Scrub(replica) => self.decide_scrub(asked, *replica),
            Request::List(node) => self.decide_list(node),
            Request::Recover(incomplete) => self.decide_recover(context, asked, incomplete),
        }
    }

    pub(crate) fn known<S: StoredResource>(&self, id: &S::Id) -> Result<&Resource<S>, Problem> {
        let missing =
            || Problem::new(ProblemKind::NotFound, format!("there is no {} {id}", S::KIND));
        S::map(&self.state).get(id).ok_or_else(missing)
    }

    /// The volume, if it is there and as the caller has seen it.
    pub(crate) fn known_volume(
        &self,
        id: VolumeId,
        asked: &PendingRequest,
    ) -> Result<&Volume, Problem> {
        let volume = self.known::<model::VolumeSpec>(&id)?;
        expect(volume, asked)?;
        Ok(volume)
    }

    /// A change of something that needs no steps.
    fn decide_change<S: StoredResource>(
        &self,
        asked: &PendingRequest,
        id: &S::Id,
        change: &S::Change,
        subject: impl FnOnce(S::Id) -> Subject,
    ) -> Result<Batch, Problem>
    where
        Entry: From<Resource<S>>,
    {
        self.change_at_once(asked, self.known::<S>(id)?, change.clone(), subject)
    }

    /// A change that needs no steps.
    pub(crate) fn change_at_once<S: StoredResource>(
        &self,
        asked: &PendingRequest,
        object: &Resource<S>,
        change: S::Change,
        subject: impl FnOnce(S::Id) -> Subject,
    ) -> Result<Batch, Problem>
    where
        Entry: From<Resource<S>>,
    {
        expect(object, asked)?;
        let mut object = object.clone();
        let before = object.spec().clone();
        let message = super::event_text::change(&change);
        object.change(change, self.now)?;
        if *object.spec() == before {
            return Ok(Batch::new().reply(asked.ticket, RequestOutcome::Unchanged));
        }
        let subject = subject(object.id().clone());
        let batch = Batch::new().put(object).reply(asked.ticket, RequestOutcome::Changed);
        Ok(batch.tell(subject, EventName::Changed, Severity::Info, message))
    }

    fn decide_resize(
        &self,
        context: &mut AdmissionContext<'_, '_>,
        asked: &PendingRequest,
        id: VolumeId,
        size: model::Size,
    ) -> Result<Batch, Problem> {
        let volume = self.known_volume(id, asked)?;
        if volume.spec().size == size && volume.lifecycle().is_idle() {
            return Ok(Batch::new().reply(asked.ticket, RequestOutcome::Unchanged));
        }
        planner::check_resize(context.view, volume, size)?;
        let mut volume = volume.clone();
        volume.begin(VolumeChange::Resize { size }, self.now)?;
        Ok(Batch::new().put(volume).wait(Subject::Volume(id), WaitFor::End))
    }

    /// The number is in effect at once; the copies follow.
    fn decide_replicas(
        &self,
        context: &mut AdmissionContext<'_, '_>,
        asked: &PendingRequest,
        id: VolumeId,
        replicas: u8,
    ) -> Result<Batch, Problem> {
        let volume = self.known_volume(id, asked)?;
        planner::check_replica_count(context.view, volume, replicas)?;
        self.change_at_once(asked, volume, VolumeChange::SetReplicas { replicas }, Subject::Volume)
    }

    fn decide_modify(
        &self,
        asked: &PendingRequest,
        id: VolumeId,
        spec: &model::VolumeSpec,
    ) -> Result<Batch, Problem> {
        let volume = self.known_volume(id, asked)?;
        expect_free_name(&id, spec, self.state.facts.volumes.values())?;
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
        asked: &PendingRequest,
        id: VolumeId,
        replica: model::ReplicaId,
    ) -> Result<Batch, Problem> {
        let volume = self.known_volume(id, asked)?;
        let found = self.state.facts.replicas.get(&replica);
        if found.is_none_or(|found| found.spec().volume != id) {
            return Ok(Batch::new().reply(asked.ticket, RequestOutcome::Unchanged));
        }
        let change = volume.lifecycle().operation().map(|operation| &operation.change);
        if matches!(change, Some(VolumeChange::CreateSnapshot { .. })) {
            // What was taken of this copy already would be left behind.
            let detail = format!("a snapshot of volume {id} is being taken; try again soon");
            return Err(Problem::new(ProblemKind::Busy, detail));
        }
        let others = self
            .state
            .replicas_of(id)
            .filter(|it| *it.id() != replica && self.answers(it) && self.is_in_sync(it));
        if others.count() == 0 {
            let detail = format!("no other copy of volume {id} is in sync and answers");
            return Err(Problem::new(ProblemKind::LastReplica, detail));
        }
        Ok(self.remove_replica(id, replica)?.reply(asked.ticket, RequestOutcome::Changed))
    }

    fn decide_delete_host(
        &self,
        asked: &PendingRequest,
        name: &model::HostName,
    ) -> Result<Batch, Problem> {
        let Some(host) = self.state.hosts.get(name) else {
            return Ok(Batch::new().reply(asked.ticket, RequestOutcome::Unchanged));
        };
        expect(host, asked)?;
        let targets = self.state.facts.targets.values();
        if let Some(target) = targets.into_iter().find(|it| it.spec().hosts.contains_key(name)) {
            let volume = target.spec().volume;
            let detail = format!("host {name} may use volume {volume}; unpublish it first");
            return Err(Problem::new(ProblemKind::InUse, detail));
        }
        Ok(Batch::new().drop(host.clone()).reply(asked.ticket, RequestOutcome::Gone))
    }

    fn decide_change_pool(
        &self,
        asked: &PendingRequest,
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
                    return Ok(Batch::new().reply(asked.ticket, RequestOutcome::Unchanged));
                }
                if exported && matches!(change, P::Grow {}) {
                    let detail = format!("pool {name} is exported; import it first");
                    return Err(Problem::new(ProblemKind::NotSupported, detail));
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
                Ok(Batch::new().put(pool).wait(subject, WaitFor::End))
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
                return Err(Problem::new(ProblemKind::InUse, detail));
            }
        }
        Ok(())
    }
}
