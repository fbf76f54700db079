//! Hosts: which machine a name belongs to, and what becomes of paths that a host has lost.

use model::{HostAddress, HostName, HostStatus, Liveness, PathReport, Problem, ProblemKind};

use super::Controller;

impl Controller {
    /// A host says which paths it has: whoever waits for new ones looks again. Where it has lost
    /// some, the nodes of their targets are looked at more closely.
    pub(crate) fn on_paths_reported(&mut self, host: &HostName, report: PathReport) {
        let now = self.now;
        for (volume, address) in &report.lost {
            let Some(target) = self.target_of(*volume) else { continue };
            let node = target.spec().node.clone();
            let listens = self.state.node(&node).map(|node| node.spec().address.data.as_slice());
            let serves = target.status.as_ref().map(|status| status.addresses.as_slice());
            let leads_there = listens.into_iter().chain(serves).flatten().any(|it| it == address);
            if !leads_there || !target.spec().hosts.contains_key(host) {
                // A path to where the target was: the host will hear where it is.
                continue;
            }
            if let Some(node_health) = self.node_health.get_mut(&node) {
                node_health.reported = Some(now);
                self.watch_at = now;
            }
        }
        if self.state.hosts.contains_key(host) {
            self.host_paths.insert(host.clone(), report.attached);
            self.enqueue_failovers_of(host);
        }
    }

    /// Refuses a machine that calls itself by the name of another one: what is published to that
    /// name would be used by both. A name whose machine is away and may use nothing is free.
    pub(crate) fn check_machine(&self, name: &HostName, told: &HostAddress) -> Result<(), Problem> {
        let Some(host) = self.state.hosts.get(name) else { return Ok(()) };
        if !host.spec().address.is_other_machine(told) {
            return Ok(());
        }
        // One that was not seen to go may be there.
        let offline = |status: &HostStatus| matches!(status.liveness, Liveness::Offline { .. });
        let may_run = !host.status.as_ref().is_some_and(offline);
        let mut targets = self.state.facts.targets.values();
        let used = targets.find(|target| target.spec().hosts.contains_key(name));
        let why = match used {
            Some(target) => format!("may use volume {}", target.spec().volume),
            None if may_run => "may run".to_owned(),
            None => return Ok(()),
        };
        let detail = format!(
            "host {name} is another machine, which {why}: give this machine another name with \
             --host; if that one is gone for good, unpublish its volumes and forget it with \
             holdfast host delete {name}"
        );
        Err(Problem::new(ProblemKind::AlreadyExists, detail))
    }
}
