//! After the new target of a volume serves: hosts replace their paths, and the old target goes.
//!
//! ```text
//!   ReplacePath ── every host that is there uses the new target, or REPLACE_LIMIT ──►
//!   DeleteTarget ── the old target is gone, or its node is away, or DELETE_LIMIT ──► Successful
//! ```
//!
//! Hosts are not called. Each says again and again which paths it has (`agent::path_watch`), and
//! finds the new target by itself; so a control plane that begins here anew has to know nothing of
//! what was said before, and a report that is lost costs time only.
//!
//! Invariant: no host that is silent, or that cannot reach the new target, keeps a failover from
//! ending: the volume is not healed meanwhile.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use model::{
    EventName, Failover, FailoverEvent, FailoverStage, HostName, PathState, PathStatus, Severity,
    Subject, TargetId, Timestamp, VolumeId, keys,
};

use super::Controller;
use super::batch::Batch;
use super::replica::is_going;

/// How long hosts that are there may take to use the new target.
const REPLACE_LIMIT: Duration = Duration::from_secs(30);
/// How long an engine that is there may take to remove the old one; it goes later, then.
const DELETE_LIMIT: Duration = Duration::from_secs(10);
/// When nobody says anything: how often it is found out who fell silent.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The paths of each volume that a host has attached.
pub(crate) type HostPaths = BTreeMap<VolumeId, Vec<PathStatus>>;

impl Controller {
    /// Goes on with the failover of a volume whose new target serves.
    pub(crate) fn continue_failover(&mut self, volume: VolumeId) {
        let Some(failover) = self.failover_of(volume).cloned() else { return };
        if self.is_locked(&keys::of::<Failover>(failover.id())) {
            return;
        }
        match *failover.stage() {
            FailoverStage::ReplacePath { to } => self.continue_replace_path(failover, to),
            FailoverStage::DeleteTarget { to } => self.continue_delete_target(failover, to),
            _ => {}
        }
    }

    fn continue_replace_path(&mut self, mut failover: Failover, to: TargetId) {
        let (volume, limit) = (failover.volume(), self.since_here(&failover).after(REPLACE_LIMIT));
        let Some(target) = self.state.facts.targets.get(&to).filter(|to| !is_going(*to)) else {
            return;
        };
        if self.is_absent(&target.spec().node) {
            // The planner finds another place.
            return;
        }
        let hosts = failover.hosts().keys().filter(|host| target.spec().hosts.contains_key(*host));
        let late: Vec<&str> =
            hosts.filter(|host| self.is_awaited(host, volume, to)).map(HostName::as_str).collect();
        if !late.is_empty() && self.now < limit {
            let again = self.now.after(LOOK_AGAIN).min(limit);
            return self.wake(again, Subject::Volume(volume));
        }
        let mut batch = Batch::new();
        if !late.is_empty() {
            let message = format!(
                "hosts {} do not use the new target yet; they follow it when they can: holdfast \
                 host get shows their paths",
                late.join(", ")
            );
            let name = EventName::Changed;
            batch = batch.tell(Subject::Volume(volume), name, Severity::Warning, message);
        }
        if failover.on(FailoverEvent::PathsReplaced, self.now).is_ok() {
            let batch = self.delete_former(failover.from(), batch);
            self.try_commit(batch.put(failover));
        }
    }

    fn continue_delete_target(&mut self, mut failover: Failover, to: TargetId) {
        let (volume, limit) = (failover.volume(), self.since_here(&failover).after(DELETE_LIMIT));
        let old = self.state.facts.targets.get(&failover.from());
        let is_awaited = old.is_some_and(|old| self.state.is_online(&old.spec().node));
        if is_awaited && self.now < limit {
            return self.wake(limit, Subject::Volume(volume));
        }
        if failover.on(FailoverEvent::TargetDeleted, self.now).is_err() {
            return;
        }
        let target = self.state.facts.targets.get(&to);
        let place = target.map_or_else(String::new, |it| format!(" by node {}", it.spec().node));
        let message = format!("it is served{place}, and the old target is removed");
        let batch = self.keep_failover(Batch::new(), failover);
        let name = EventName::FailoverEnded;
        self.try_commit(batch.tell(Subject::Volume(volume), name, Severity::Info, message));
    }

    /// The target that was replaced is to go.
    pub(crate) fn delete_former(&self, from: TargetId, batch: Batch) -> Batch {
        let old = self.state.facts.targets.get(&from).filter(|old| !is_going(*old));
        let Some(mut old) = old.cloned() else { return batch };
        if old.delete().is_ok() { batch.put(old) } else { batch }
    }

    /// Since when a failover is in its stage, by the clock of this control plane: what a former one
    /// wrote was told by another clock, so its limits begin anew.
    fn since_here(&self, failover: &Failover) -> Timestamp {
        let written = failover.updated_at();
        if written > self.now { self.began } else { written.max(self.began) }
    }

    /// Whether a host is there and does not use the new target yet, or may be so: one that was not
    /// heard in this term has the time to show itself that a heartbeat may take.
    fn is_awaited(&self, host: &HostName, volume: VolumeId, to: TargetId) -> bool {
        let Some(known) = self.state.hosts.get(host) else { return false };
        let Some(target) = self.state.facts.targets.get(&to) else { return false };
        // Its report may come before its first heartbeat in this term: then it is there.
        let may_be_there = known.status.as_ref().is_none_or(|it| it.liveness.is_online());
        match self.host_paths.get(host) {
            Some(paths) => {
                let status = target.status.as_ref();
                let addresses = status.map_or(&[][..], |status| status.addresses.as_slice());
                may_be_there && !uses_only(paths.get(&volume), addresses)
            }
            // One that connects by hand has no agent.
            None => {
                known.spec().address.machine.is_some()
                    && self.now < self.began.after(self.pace.deadline)
            }
        }
    }

    /// A host said something that failovers of volumes that it uses may wait for.
    pub(crate) fn enqueue_failovers_of(&mut self, host: &HostName) {
        let of_host = self.state.facts.failovers.values().filter(|failover| {
            let waits = matches!(failover.stage(), FailoverStage::ReplacePath { .. });
            waits && failover.hosts().contains_key(host)
        });
        let volumes: Vec<Subject> = of_host.map(|it| Subject::Volume(it.volume())).collect();
        for volume in volumes {
            self.enqueue(&volume);
        }
    }
}

/// Whether a path leads to the target, and none elsewhere. A volume that is not attached has no
/// path to be replaced.
fn uses_only(paths: Option<&Vec<PathStatus>>, target: &[SocketAddr]) -> bool {
    let Some(paths) = paths else { return true };
    let leads_there = |path: &PathStatus| target.contains(&path.address);
    let works = |path: &PathStatus| leads_there(path) && path.state == PathState::Live;
    paths.iter().any(works) && paths.iter().all(leads_there)
}
