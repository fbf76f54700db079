//! Moving the target of a volume.
//!
//! The new target has the next epoch, and copies let its node in and no other: the old one is
//! fenced before the new one serves. What follows when it serves is `path_replacement`.

use model::{
    EventName, Failover, FailoverEvent, FailoverPlan, FailoverReason, FailoverStage, Lifecycle,
    NodeName, Problem, ProblemKind, Severity, Subject, Target, TargetChange, TargetId, Timestamp,
    Volume, VolumeChange, VolumeId,
};

use super::admission::AdmissionContext;
use super::batch::{Batch, WaitFor};
use super::ids::Ids;
use super::publish::{OpenState, made};
use super::replica::is_going;
use super::{Controller, PendingRequest, RequestOutcome};

/// How many failovers that have ended are remembered.
const MOST_FAILOVERS: usize = 1000;
/// How many of them of one volume.
const MOST_OF_VOLUME: usize = 20;

impl Controller {
    pub(crate) fn decide_republish(
        &self,
        context: &mut AdmissionContext<'_, '_>,
        asked: &PendingRequest,
        id: VolumeId,
        node: Option<&NodeName>,
    ) -> Result<Batch, Problem> {
        let volume = self.known_volume(id, asked)?;
        let target = self.target_of(id).filter(|target| !target.spec().hosts.is_empty());
        let Some(target) = target else {
            let detail = format!("volume {id} is not published; publish it");
            return Err(Problem::new(ProblemKind::NotPublished, detail));
        };
        let serves = target.status.as_ref().is_some_and(|status| status.state.serves());
        if serves && node == Some(&target.spec().node) && self.state.is_online(&target.spec().node)
        {
            return Ok(Batch::new().reply(asked.ticket, RequestOutcome::Unchanged));
        }
        if let Some(failover) = self.failover_of(id) {
            let detail = format!(
                "the target of volume {id} is on the move (failover {}, {}); try again soon",
                failover.id(),
                failover.stage()
            );
            return Err(Problem::new(ProblemKind::Busy, detail));
        }
        let place = planner::place_target(context.view, volume, node).map_err(Problem::from)?;
        let batch =
            self.begin_failover(context.ids, volume, target, (place, FailoverReason::Asked {}))?;
        Ok(batch.wait(Subject::Volume(id), WaitFor::End))
    }

    /// The failover under way of a volume.
    pub(crate) fn failover_of(&self, volume: VolumeId) -> Option<&Failover> {
        let mut failovers = self.state.facts.failovers.values();
        failovers.rfind(|it| it.volume() == volume && !it.stage().is_ended())
    }

    pub(crate) fn begin_failover(
        &self,
        ids: &mut Ids,
        volume: &Volume,
        from: &Target,
        (node, cause): (NodeName, FailoverReason),
    ) -> Result<Batch, Problem> {
        let id = *volume.id();
        let why = super::event_text::cause(&cause);
        let message = format!("from node {} to node {node}: {why}", from.spec().node);
        let hosts = from.spec().hosts.clone();
        let plan = FailoverPlan { volume: id, cause, from: *from.id(), hosts };
        let mut failover = Failover::new(ids.failover()?, plan, self.now);
        failover.on(FailoverEvent::Begin, self.now)?;
        let batch = self.republish(ids, volume, &failover, &node)?.put(failover);
        let name = EventName::FailoverStarted;
        Ok(batch.tell(Subject::Volume(id), name, Severity::Warning, message))
    }

    /// A new target on this node instead of the old one, which may be forgotten already.
    pub(crate) fn republish(
        &self,
        ids: &mut Ids,
        volume: &Volume,
        failover: &Failover,
        node: &NodeName,
    ) -> Result<Batch, Problem> {
        let from = failover.from();
        // Hosts may have been admitted and dismissed since it began.
        let hosts = self.target_of(*volume.id()).map(|target| target.spec().hosts.clone());
        let hosts = hosts.unwrap_or_else(|| failover.hosts().clone());
        let target = ids.target()?;
        let change = VolumeChange::Republish { from, target, node: node.clone() };
        let old = self.state.facts.targets.get(&from).filter(|old| !is_going(*old)).cloned();
        let batch = self.open(volume, change, target, (node.clone(), hosts))?;
        let Some(mut old) = old else { return Ok(batch) };
        if old.spec().node == *node {
            // An engine serves a volume once.
            old.delete()?;
        } else if old.spec().shutdown {
            return Ok(batch);
        } else {
            old.change(TargetChange::Shutdown {}, self.now)?;
        }
        Ok(batch.put(old))
    }

    pub(crate) fn continue_republish(
        &mut self,
        volume: Volume,
        target: TargetId,
        from: TargetId,
        since: Timestamp,
    ) {
        let id = *volume.id();
        let subject = Subject::Volume(id);
        match self.opening(target, since) {
            OpenState::Locked => {}
            OpenState::Waits => {
                self.wake(self.now.after(std::time::Duration::from_millis(300)), subject);
            }
            OpenState::Serves(target) => {
                let message = format!("it is served by node {}", target.spec().node);
                let to = *target.id();
                let mut batch = made(target);
                match self.failover_of(id).cloned() {
                    Some(mut failover) => {
                        if failover.on(FailoverEvent::Republished { to }, self.now).is_ok() {
                            batch = batch.put(failover);
                        }
                    }
                    // Nobody is left who would remove it later.
                    None => batch = self.delete_former(from, batch),
                }
                let name = EventName::Changed;
                let batch = batch.tell(subject.clone(), name, Severity::Info, message);
                self.back_offs.remove(&subject);
                self.end(volume, Ok(()), batch);
            }
            OpenState::Failed(target, problem) => {
                let mut batch = self.undo_target(target, None);
                if let Some(mut failover) = self.failover_of(id).cloned() {
                    failover.retry(self.now);
                    batch = batch.put(failover);
                }
                self.back_off_volume(subject);
                self.end(volume, Err(problem), batch);
            }
        }
    }

    /// A failover that has ended is remembered, and no more of them than can be: of its volume, or
    /// the write that deletes the volume would grow too large, and of all.
    pub(crate) fn keep_failover(&self, batch: Batch, failover: Failover) -> Batch {
        let ended = || self.state.facts.failovers.values().filter(|it| it.stage().is_ended());
        let of_volume = || ended().filter(|it| it.volume() == failover.volume());
        let age = |it: &&Failover| (it.updated_at(), it.id());
        let oldest = if of_volume().count() >= MOST_OF_VOLUME {
            of_volume().min_by_key(age)
        } else if ended().count() >= MOST_FAILOVERS {
            ended().min_by_key(age)
        } else {
            None
        };
        oldest.cloned().into_iter().fold(batch, Batch::drop).put(failover)
    }

    /// A failover of a volume that nobody uses any more ends without a new target.
    pub(crate) fn end_failover(&self, volume: VolumeId, batch: Batch) -> Batch {
        let Some(failover) = self.failover_of(volume) else { return batch };
        let mut failover = failover.clone();
        let problem =
            Problem::new(ProblemKind::NotPublished, "the volume was unpublished meanwhile");
        match failover.on(FailoverEvent::Fail(problem), self.now) {
            Ok(()) => self.keep_failover(batch, failover),
            Err(_) => batch.drop(failover),
        }
    }

    /// With a volume what is remembered of its failovers goes.
    pub(crate) fn drop_failovers(&self, volume: VolumeId, mut batch: Batch) -> Batch {
        for failover in self.state.facts.failovers.values() {
            if failover.volume() == volume {
                batch = batch.drop(failover.clone());
            }
        }
        batch
    }

    /// Another place is needed: begin again with that.
    pub(crate) fn reroute(&self, volume: VolumeId) -> Result<Batch, Problem> {
        let Some(failover) = self.failover_of(volume) else { return Ok(Batch::new()) };
        let mut failover = failover.clone();
        if matches!(failover.stage(), FailoverStage::ReplacePath { .. }) {
            failover.on(FailoverEvent::Unreachable, self.now)?;
        }
        Ok(Batch::new().put(failover))
    }

    /// Targets that were replaced are forgotten.
    pub(crate) fn decide_drop_targets(
        &self,
        asked: &PendingRequest,
        id: VolumeId,
    ) -> Result<Batch, Problem> {
        self.known_volume(id, asked)?;
        let mut batch = Batch::new();
        let mut found = false;
        for target in self.state.targets_of(id) {
            let away = !self.state.is_online(&target.spec().node);
            let is_down = target.spec().shutdown || is_going(target);
            let creating = matches!(target.lifecycle(), Lifecycle::Creating {});
            if is_down && away && !creating {
                found = true;
                batch = batch.drop(target.clone());
            }
        }
        let done = if found { RequestOutcome::Changed } else { RequestOutcome::Unchanged };
        Ok(batch.reply(asked.ticket, done))
    }
}
