//! Serving volumes: a target is opened, admits and dismisses hosts, and is closed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use model::{
    Ana, EventName, HostName, Lifecycle, NodeName, Nqn, Problem, ProblemKind, Replica, ReplicaSet,
    SetChange, Severity, Subject, Target, TargetChange, TargetId, TargetRecord, TargetSpec,
    TargetState, Timestamp, Volume, VolumeChange, VolumeId, keys,
};
use planner::Publishing;

use super::admission::AdmissionContext;
use super::batch::{Batch, WaitFor};
use super::replica::is_going;
use super::{Controller, PendingRequest, RequestOutcome};

/// A target that does not serve after this time is given up.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);
/// How often a target that is being opened is looked at.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(300);

impl Controller {
    pub(crate) fn decide_publish(
        &self,
        context: &mut AdmissionContext<'_, '_>,
        asked: &PendingRequest,
        id: VolumeId,
        (host, node): (Option<&HostName>, Option<&NodeName>),
    ) -> Result<Batch, Problem> {
        let volume = self.known_volume(id, asked)?;
        let subject = Subject::Volume(id);
        let Some(host) = host else {
            let is_served = self.target_of(id).is_some();
            if is_served {
                return Ok(Batch::new().reply(asked.ticket, RequestOutcome::Unchanged));
            }
            let node = planner::place_target(context.view, volume, node).map_err(Problem::from)?;
            let target = context.ids.target()?;
            let change = VolumeChange::Publish { target, node: node.clone(), host: None };
            let batch = self.open(volume, change, target, (node, BTreeMap::new()))?;
            return Ok(batch.wait(subject, WaitFor::End));
        };
        match planner::publish(context.view, volume, host, node)? {
            Publishing::Already if volume.lifecycle().is_idle() => {
                Ok(Batch::new().reply(asked.ticket, RequestOutcome::Unchanged))
            }
            Publishing::Already => Ok(Batch::new().wait(subject, WaitFor::End)),
            Publishing::Open { node } => {
                let nqn = self.next_nqn(context, host)?;
                let hosts = BTreeMap::from([(host.clone(), nqn)]);
                let target = context.ids.target()?;
                let host = Some(host.clone());
                let change = VolumeChange::Publish { target, node: node.clone(), host };
                let batch = self.open(volume, change, target, (node, hosts))?;
                Ok(batch.wait(subject, WaitFor::End))
            }
            Publishing::Admit { target } => {
                let mut target = self.known_target(target)?.clone();
                let mut volume = volume.clone();
                let mut hosts = target.spec().hosts.clone();
                hosts.insert(host.clone(), self.next_nqn(context, host)?);
                let (id, node) = (*target.id(), target.spec().node.clone());
                let host = Some(host.clone());
                volume.begin(VolumeChange::Publish { target: id, node, host }, self.now)?;
                target.change(TargetChange::Share { hosts }, self.now)?;
                Ok(Batch::new().put(volume).put(target).wait(subject, WaitFor::End))
            }
            Publishing::Dismiss { .. } | Publishing::Close { .. } => Err(Problem::new(
                ProblemKind::Internal,
                "a request to publish came to its opposite",
            )),
        }
    }

    fn known_target(&self, id: TargetId) -> Result<&Target, Problem> {
        let missing =
            || Problem::new(ProblemKind::Busy, format!("target {id} has just gone; try again"));
        self.state.facts.targets.get(&id).ok_or_else(missing)
    }

    /// The name with which a host connects from now on. A machine gets one for each publication, so
    /// that what it connected in an earlier one stays shut out: its caches are older than what
    /// others wrote since. Whoever connects by hand does so as its agent, or the engine of the same
    /// machine, said; else by the name that follows from the host's.
    fn next_nqn(
        &self,
        context: &mut AdmissionContext<'_, '_>,
        host: &HostName,
    ) -> Result<Nqn, Problem> {
        if let Some(host) = self.state.hosts.get(host) {
            let address = &host.spec().address;
            return match address.machine {
                Some(_) => Ok(Nqn::publication(context.ids.publication()?)),
                None => Ok(address.nqn.clone()),
            };
        }
        let name: NodeName = host.as_str().parse()?;
        match self.state.node(&name) {
            Some(node) => Ok(node.spec().address.nqn.clone()),
            None => Ok(Nqn::node(&name)?),
        }
    }

    /// What it takes to open a target: the next epoch, the target, the operation.
    pub(crate) fn open(
        &self,
        volume: &Volume,
        change: VolumeChange,
        target: TargetId,
        (node, hosts): (NodeName, BTreeMap<HostName, Nqn>),
    ) -> Result<Batch, Problem> {
        let mut volume = volume.clone();
        volume.begin(change, self.now)?;
        Ok(self.open_target(&volume, target, (node, hosts))?.put(volume))
    }

    /// A target with the next epoch, as part of whatever is being done to the volume.
    pub(crate) fn open_target(
        &self,
        volume: &Volume,
        target: TargetId,
        (node, hosts): (NodeName, BTreeMap<HostName, Nqn>),
    ) -> Result<Batch, Problem> {
        let id = *volume.id();
        let exists = |it: &&Replica| matches!(it.lifecycle(), Lifecycle::Created { .. });
        let members: Vec<&Replica> = self.state.replicas_of(id).filter(exists).collect();
        let record = self.next_record(volume, &members, target, &node)?;
        let children = members.iter().filter_map(|replica| self.child_of(replica, &node));
        let spec = TargetSpec {
            volume: id,
            epoch: record.epoch(),
            size: volume.spec().size,
            children: children.collect(),
            node,
            hosts,
            limits: volume.spec().limits,
            ana: Ana::Optimized,
            shutdown: false,
        };
        let target = Target::new(target, spec, self.now)?;
        Ok(Batch::new().put(target).put(record))
    }

    /// The next ownership of a volume, which counts exactly the copies it has.
    fn next_record(
        &self,
        volume: &Volume,
        members: &[&Replica],
        target: TargetId,
        node: &NodeName,
    ) -> Result<TargetRecord, Problem> {
        let id = *volume.id();
        let all: BTreeSet<_> = members.iter().map(|replica| *replica.id()).collect();
        let Some(record) = self.state.facts.records.get(&id) else {
            let right = members.iter().filter(|replica| self.is_in_sync(replica));
            let mut set = ReplicaSet::new(right.map(|replica| *replica.id()).collect())?;
            for replica in &all {
                set = set.on(SetChange::Added(*replica))?;
            }
            return Ok(TargetRecord::new(id, target, node.clone(), set));
        };
        let mut next = record.clone();
        for replica in &all {
            next = next.add(*replica)?;
        }
        for gone in record.set().replicas().difference(&all) {
            next = next.give_up(*gone)?;
        }
        Ok(next.take(target, node.clone()))
    }

    pub(crate) fn continue_publish(
        &mut self,
        volume: Volume,
        target: TargetId,
        host: Option<&HostName>,
        since: Timestamp,
    ) {
        match self.opening(target, since) {
            OpenState::Waits => {
                self.wake(self.now.after(LOOK_AGAIN), Subject::Volume(*volume.id()));
            }
            OpenState::Locked => {}
            OpenState::Serves(target) => {
                let batch = made(target);
                let subject = Subject::Volume(*volume.id());
                let name = EventName::Published;
                let message = match host {
                    Some(host) => format!("host {host} can use it"),
                    None => "served to nobody, to heal".to_owned(),
                };
                let batch = batch.tell(subject, name, Severity::Info, message);
                self.end(volume, Ok(()), batch);
            }
            OpenState::Failed(target, problem) => {
                let batch = self.undo_target(target, host);
                self.back_off_volume(Subject::Volume(*volume.id()));
                self.end(volume, Err(problem), batch);
            }
        }
    }

    /// How the opening of a target is going.
    pub(crate) fn opening(&mut self, id: TargetId, since: Timestamp) -> OpenState {
        let Some(target) = self.state.facts.targets.get(&id).cloned() else {
            let problem = Problem::new(ProblemKind::Internal, format!("target {id} has gone"));
            return OpenState::Failed(None, problem);
        };
        if self.is_locked(&keys::of::<Target>(id)) {
            return OpenState::Locked;
        }
        let node = target.spec().node.clone();
        let state = target.status.as_ref().map(|status| status.state);
        let engine_object = self.engine_object(&Subject::Target(id)).clone();
        let is_held = engine_object.applied == Some(target.generation());
        if is_held && state.is_some_and(TargetState::serves) {
            return OpenState::Serves(Box::new(target));
        }
        let is_down = is_held && matches!(state, Some(TargetState::Shutdown { .. }));
        let is_late = self.now >= self.give_up_at(since);
        // One that is in doubt was not when it was chosen: another is found sooner than it is back.
        let is_new = matches!(target.lifecycle(), Lifecycle::Creating {});
        let absent = self.is_absent(&node) || (is_new && !is_held && self.is_doubtful(&node));
        let volume = target.spec().volume;
        let called_off = self.cancelled.contains(&volume);
        let problem = called_off.then(|| super::volume::cancelled(volume));
        let problem =
            problem.or_else(|| engine_object.permanent_problem().cloned()).or_else(|| {
                let (kind, why) = if absent {
                    (ProblemKind::NodeUnavailable, "does not answer")
                } else if is_down {
                    (ProblemKind::Fenced, "shut it down")
                } else if is_late {
                    (ProblemKind::TimedOut, "did not serve it in time")
                } else {
                    return None;
                };
                let last =
                    engine_object.problem.as_ref().map(|it| format!(": {it}")).unwrap_or_default();
                Some(Problem::new(kind, format!("node {node} of target {id} {why}{last}")))
            });
        if let Some(problem) = problem {
            return OpenState::Failed(Some(Box::new(target)), problem);
        }
        if is_held {
            self.look_at(&node);
        }
        OpenState::Waits
    }

    /// A new target goes; one that was to admit a host admits the others only.
    pub(crate) fn undo_target(
        &mut self,
        target: Option<Box<Target>>,
        host: Option<&HostName>,
    ) -> Batch {
        let Some(mut target) = target else { return Batch::new() };
        let is_new = matches!(target.lifecycle(), Lifecycle::Creating {});
        let undone = if is_new {
            self.engine_object(&Subject::Target(*target.id())).refresh();
            target.delete()
        } else {
            let mut hosts = target.spec().hosts.clone();
            if let Some(host) = host {
                hosts.remove(host);
            }
            target.change(TargetChange::Share { hosts }, self.now)
        };
        match undone {
            Ok(()) => Batch::new().put(*target),
            Err(_) => Batch::new(),
        }
    }

    pub(crate) fn decide_unpublish(
        &self,
        context: &mut AdmissionContext<'_, '_>,
        asked: &PendingRequest,
        id: VolumeId,
        (host, force): (Option<&HostName>, bool),
    ) -> Result<Batch, Problem> {
        let volume = self.known_volume(id, asked)?;
        let subject = Subject::Volume(id);
        if let Some(batch) = self.unpublish_again(volume, host, force)? {
            return Ok(batch.wait(subject, WaitFor::End));
        }
        match planner::unpublish(context.view, volume, host, force)? {
            Publishing::Dismiss { target } => {
                let mut target = self.known_target(target)?.clone();
                let mut hosts = target.spec().hosts.clone();
                if let Some(host) = host {
                    hosts.remove(host);
                }
                let mut volume = volume.clone();
                let change = VolumeChange::Unpublish { host: host.cloned(), force };
                volume.begin(change, self.now)?;
                target.change(TargetChange::Share { hosts }, self.now)?;
                Ok(Batch::new().put(volume).put(target).wait(subject, WaitFor::End))
            }
            Publishing::Close { .. } => {
                let batch = self.close(volume, host.cloned(), force)?;
                Ok(batch.wait(subject, WaitFor::End))
            }
            _ if volume.lifecycle().is_idle() => {
                Ok(Batch::new().reply(asked.ticket, RequestOutcome::Unchanged))
            }
            _ => Ok(Batch::new().wait(subject, WaitFor::End)),
        }
    }

    /// What was asked for before and has not come about: it is waited for again, and forced if it
    /// is now.
    fn unpublish_again(
        &self,
        volume: &Volume,
        host: Option<&HostName>,
        force: bool,
    ) -> Result<Option<Batch>, Problem> {
        let mut volume = volume.clone();
        match volume.lifecycle().operation().map(|operation| &operation.change) {
            Some(VolumeChange::Unpublish { force: false, .. }) if force => {
                let detail = "it was asked for again, with force";
                let problem = Problem::new(ProblemKind::Busy, detail);
                volume.end(model::Outcome::Failed { problem })?;
                volume.commit()?;
            }
            None => {
                let uses = |target: &Target| {
                    host.is_none_or(|host| target.spec().hosts.contains_key(host))
                };
                let id = *volume.id();
                if self.target_of(id).is_some_and(uses) || self.leaving(id).next().is_none() {
                    return Ok(None);
                }
            }
            Some(_) => return Ok(None),
        }
        volume.begin(VolumeChange::Unpublish { host: host.cloned(), force }, self.now)?;
        Ok(Some(Batch::new().put(volume)))
    }

    /// Targets of a volume that were told to go, or to dismiss a host, and have not said that they
    /// did. One whose node is away is shut out by the next epoch.
    fn leaving(&self, volume: VolumeId) -> impl Iterator<Item = &Target> {
        self.state.targets_of(volume).filter(|target| {
            let engine_object = self.engine_objects.get(&Subject::Target(*target.id()));
            let is_held = engine_object
                .is_some_and(|engine_object| engine_object.applied == Some(target.generation()));
            let is_done = !is_going(*target) && is_held;
            !self.is_absent(&target.spec().node) && !is_done && !target.spec().shutdown
        })
    }

    /// All targets of a volume go.
    pub(crate) fn close(
        &self,
        volume: &Volume,
        host: Option<HostName>,
        force: bool,
    ) -> Result<Batch, Problem> {
        let mut volume = volume.clone();
        volume.begin(VolumeChange::Unpublish { host, force }, self.now)?;
        let mut batch = Batch::new();
        for target in self.state.targets_of(*volume.id()).filter(|target| !is_going(*target)) {
            let mut target = target.clone();
            target.delete()?;
            batch = batch.put(target);
        }
        Ok(self.end_failover(*volume.id(), batch).put(volume))
    }

    pub(crate) fn continue_unpublish(
        &mut self,
        volume: Volume,
        (host, force): (Option<&HostName>, bool),
        since: Timestamp,
    ) {
        let id = *volume.id();
        let subject = Subject::Volume(id);
        let waits_for = self.leaving(id).next().filter(|_| !force);
        if let Some(target) = waits_for {
            if self.now < self.give_up_at(since) {
                return self.wake(self.give_up_at(since), subject);
            }
            let detail = format!(
                "node {} has not ended target {} in time; it does when it can; ask again, or \
                 force it",
                target.spec().node,
                target.id()
            );
            return self.end(
                volume,
                Err(Problem::new(ProblemKind::TimedOut, detail)),
                Batch::new(),
            );
        }
        let message = host.map_or("nobody uses it".to_owned(), |it| format!("host {it} left"));
        let batch = Batch::new();
        let batch = batch.tell(subject, EventName::Unpublished, Severity::Info, message);
        self.end(volume, Ok(()), batch);
    }
}

/// How the opening of a target is going.
pub(crate) enum OpenState {
    /// A write about it is under way.
    Locked,
    Waits,
    Serves(Box<Target>),
    Failed(Option<Box<Target>>, Problem),
}

/// The target exists now, if it was being made.
pub(crate) fn made(mut target: Box<Target>) -> Batch {
    match target.made() {
        Ok(()) => Batch::new().put(*target),
        Err(_) => Batch::new(),
    }
}
