//! Moving the target of a volume.
//!
//! The new target has the next epoch, and copies let its node in and no other: the old one is
//! fenced before the new one serves. There are no agents on hosts yet that could be told of the new
//! path, so the stage in which they replace it passes at once.

use model::{
    Cause, EventName, Failover, FailoverPlan, Kind, Lifecycle, NodeName, Problem, Severity, Stage,
    StageEvent, Subject, Target, TargetChange, TargetId, Timestamp, Volume, VolumeChange, VolumeId,
};

use super::batch::{Batch, For};
use super::publish::{Opening, made};
use super::replica::is_going;
use super::wishes::Desk;
use super::{Asked, Core};

impl Core {
    pub(crate) fn decide_republish(
        &self,
        desk: &mut Desk<'_, '_>,
        asked: &Asked,
        id: VolumeId,
        node: Option<&NodeName>,
    ) -> Result<Batch, Problem> {
        let volume = self.known_volume(id, asked)?;
        let target = self.target_of(id).filter(|target| !target.spec().hosts.is_empty());
        let Some(target) = target else {
            let detail = format!("volume {id} is not published; publish it");
            return Err(Problem::new(Kind::NotPublished, detail));
        };
        let place = planner::place_target(desk.view, volume, node).map_err(Problem::from)?;
        let batch = self.begin_failover(desk, volume, target, (place, Cause::Asked {}))?;
        Ok(batch.wait(Subject::Volume(id), For::End))
    }

    /// The failover under way of a volume.
    pub(crate) fn failover_of(&self, volume: VolumeId) -> Option<&Failover> {
        let mut failovers = self.state.facts.failovers.values();
        failovers.rfind(|it| it.volume() == volume && !it.stage().is_ended())
    }

    pub(crate) fn begin_failover(
        &self,
        desk: &mut Desk<'_, '_>,
        volume: &Volume,
        from: &Target,
        (node, cause): (NodeName, Cause),
    ) -> Result<Batch, Problem> {
        let id = *volume.id();
        let message = format!("from node {} to node {node}: {cause:?}", from.spec().node);
        let hosts = from.spec().hosts.keys().cloned().collect();
        let plan = FailoverPlan { volume: id, cause, from: *from.id(), hosts };
        let mut failover = Failover::new(desk.ids.failover()?, plan, self.now);
        failover.on(StageEvent::Begin, self.now)?;
        let batch = self.republish(desk, volume, *from.id(), node)?.put(failover);
        let name = EventName::FailoverStarted;
        Ok(batch.tell(Subject::Volume(id), name, Severity::Warning, message))
    }

    /// A new target on this node instead of the old one.
    pub(crate) fn republish(
        &self,
        desk: &mut Desk<'_, '_>,
        volume: &Volume,
        from: TargetId,
        node: NodeName,
    ) -> Result<Batch, Problem> {
        let Some(old) = self.state.facts.targets.get(&from) else {
            let detail = format!("target {from} of volume {} has gone", volume.id());
            return Err(Problem::new(Kind::NotPublished, detail));
        };
        let target = desk.ids.target()?;
        let hosts = old.spec().hosts.clone();
        let change = VolumeChange::Republish { from, target, node: node.clone() };
        let is_same_node = old.spec().node == node;
        let batch = self.open(volume, change, target, (node, hosts))?;
        let mut old = old.clone();
        if is_going(&old) || (old.spec().shutdown && !is_same_node) {
            return Ok(batch);
        }
        if is_same_node {
            // An engine serves a volume once.
            old.delete()?;
        } else {
            old.change(TargetChange::Shutdown {}, self.now)?;
        }
        Ok(batch.put(old))
    }

    pub(crate) fn go_on_republishing(
        &mut self,
        volume: Volume,
        target: TargetId,
        from: TargetId,
        since: Timestamp,
    ) {
        let id = *volume.id();
        let subject = Subject::Volume(id);
        match self.opening(target, since) {
            Opening::Locked => {}
            Opening::Waits => {
                self.wake(self.now.after(std::time::Duration::from_millis(300)), subject);
            }
            Opening::Serves(target) => {
                let message = format!("it is served by node {}", target.spec().node);
                let mut batch = made(target);
                let old = self.state.facts.targets.get(&from);
                if let Some(mut old) = old.filter(|old| !is_going(*old)).cloned()
                    && old.delete().is_ok()
                {
                    batch = batch.put(old);
                }
                if let Some(failover) = self.failover_of(id) {
                    batch = batch.drop(failover.clone());
                }
                let name = EventName::FailoverEnded;
                let batch = batch.tell(subject.clone(), name, Severity::Info, message);
                self.rests.remove(&subject);
                self.end(volume, Ok(()), batch);
            }
            Opening::Failed(target, problem) => {
                let mut batch = self.undo_target(target, None);
                if let Some(mut failover) = self.failover_of(id).cloned() {
                    failover.retry(self.now);
                    batch = batch.put(failover);
                }
                self.rest(subject);
                self.end(volume, Err(problem), batch);
            }
        }
    }

    /// The old target of a failover that nobody wants any more stays as it was; the failover ends.
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
        if matches!(failover.stage(), Stage::ReplacePath { .. }) {
            failover.on(StageEvent::Unreachable, self.now)?;
        }
        Ok(Batch::new().put(failover))
    }

    /// Targets that were replaced are forgotten.
    pub(crate) fn decide_drop_targets(
        &self,
        asked: &Asked,
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
        let done = if found { super::Done::Changed } else { super::Done::Unchanged };
        Ok(batch.reply(asked.ticket, done))
    }
}
