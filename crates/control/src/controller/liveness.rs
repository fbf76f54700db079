//! Nodes and hosts: registration, heartbeats, and whether they answer.

use std::collections::BTreeMap;
use std::time::Duration;

use model::{
    EventName, Heartbeat, Host, HostAddress, HostChange, HostName, HostSpec, HostStatus,
    InstanceId, Labels, Liveness, LivenessEvent, Node, NodeAddress, NodeChange, NodeName, NodeSpec,
    NodeStatus, Problem, Severity, Subject, Timestamp,
};

use super::batch::{Batch, WaitFor};
use super::{Call, CallId, Controller, Effect, RequestOutcome, calls::CallInFlight, event_text};

/// How much later nodes are listed again for each one that there is.
const EACH: Duration = Duration::from_millis(60);

/// So many listings in a row must fail before a node is in doubt: one alone says little.
const FAILED_LISTINGS: u32 = 3;

/// How long the report of a host counts; it repeats it meanwhile.
const REPORT: Duration = Duration::from_secs(5);

/// A node that sends heartbeats but could not be listed for this long is taken for absent: what
/// is under way there would wait for ever. Its targets may still serve, so there is no hurry.
const DOUBT_LIMIT: Duration = Duration::from_mins(1);

/// What was heard of a node.
#[derive(Clone, Debug)]
pub(crate) struct NodeHealth {
    /// When its last heartbeat came, or when this control plane began.
    heard: Timestamp,
    instance: Option<InstanceId>,
    version: Option<String>,
    /// The listing under way.
    listing: Option<CallId>,
    /// When it was last listed; absent: not in this run of it.
    listed: Option<Timestamp>,
    /// When it is to be listed again although nothing happens.
    list_at: Option<Timestamp>,
    /// How many listings failed since one succeeded, and when the first of them did.
    failed: u32,
    failing_since: Option<Timestamp>,
    /// Why the last one failed, and when.
    problem: Option<(Timestamp, Problem)>,
    /// When a host last said that it has lost its path to a target there.
    pub(crate) reported: Option<Timestamp>,
}

impl NodeHealth {
    fn new(now: Timestamp) -> NodeHealth {
        NodeHealth {
            heard: now,
            instance: None,
            version: None,
            listing: None,
            listed: None,
            list_at: None,
            failed: 0,
            failing_since: None,
            problem: None,
            reported: None,
        }
    }

    /// Whether a host says that it cannot reach it; what is not repeated is forgotten.
    fn is_reported(&self, now: Timestamp) -> bool {
        self.reported.is_some_and(|at| now.since(at) < REPORT)
    }

    /// Whether it says that it is there but does not say what it has.
    fn listing_fails(&self, now: Timestamp, deadline: Duration) -> bool {
        let long = self.failing_since.is_some_and(|since| now.since(since) >= deadline);
        self.failed >= FAILED_LISTINGS || long
    }

    /// When it is taken for absent if it still does not say what it has.
    fn given_up_at(&self) -> Option<Timestamp> {
        self.failing_since.map(|since| since.after(DOUBT_LIMIT))
    }
}

impl Controller {
    /// Everything that is stored is looked at once.
    pub(crate) fn begin(&mut self) {
        let names: Vec<NodeName> = self.state.facts.nodes.keys().cloned().collect();
        for name in names {
            self.node_health.insert(name.clone(), NodeHealth::new(self.now));
            self.see_node(&name);
        }
        self.count_failed_rebuilds();
        self.survey();
        self.enqueue_everything();
    }

    pub(crate) fn enqueue_everything(&mut self) {
        let facts = &self.state.facts;
        let nodes = facts.nodes.keys().cloned().map(Subject::Node);
        let pools = facts.pools.keys().cloned().map(Subject::Pool);
        let volumes = facts.volumes.keys().copied().map(Subject::Volume);
        let replicas = facts.replicas.keys().copied().map(Subject::Replica);
        let targets = facts.targets.keys().copied().map(Subject::Target);
        let snapshots = facts.snapshots.keys().copied().map(Subject::Snapshot);
        let groups = self.state.groups.keys().copied().map(Subject::SnapshotGroup);
        let aside = facts.quarantined.keys().copied().map(Subject::Replica);
        let all = nodes
            .chain(aside)
            .chain(pools)
            .chain(volumes)
            .chain(replicas)
            .chain(targets)
            .chain(snapshots);
        self.dirty.extend(all.chain(groups));
    }

    pub(crate) fn on_node_heard(&mut self, name: &NodeName, beat: Heartbeat<NodeAddress>) {
        let now = self.now;
        let node_health =
            self.node_health.entry(name.clone()).or_insert_with(|| NodeHealth::new(now));
        node_health.heard = now;
        let is_new_run = node_health.instance != Some(beat.instance);
        if is_new_run {
            (node_health.instance, node_health.version) = (Some(beat.instance), Some(beat.version));
            (node_health.listed, node_health.list_at) = (None, Some(now));
            self.watch_at = now;
        }
        if is_new_run {
            self.forget_orders(name);
        }
        self.on_mark(name, beat.told);
        let entry = match self.state.node(name) {
            None => {
                let spec = NodeSpec {
                    address: beat.address,
                    labels: Labels::new(),
                    cordons: [].into(),
                    drains: [].into(),
                };
                let made = Node::new(name.clone(), spec, now).map_err(Problem::from);
                made.and_then(|mut node| node.made().map(|()| node).map_err(Problem::from))
            }
            Some(node) if node.spec().address != beat.address => {
                let mut node = node.clone();
                let change = NodeChange::Register { address: beat.address };
                node.change(change, now).map(|()| node)
            }
            Some(_) => {
                self.sign(name, LivenessEvent::Heartbeat);
                return;
            }
        };
        match entry {
            Ok(node) => {
                let subject = Subject::Node(name.clone());
                let batch = Batch::new().put(node).tell(
                    subject,
                    EventName::Changed,
                    Severity::Info,
                    "registered with its address",
                );
                self.try_commit(batch);
            }
            Err(problem) => tracing::warn!(node = %name, %problem, "a heartbeat is refused"),
        }
        self.sign(name, LivenessEvent::Heartbeat);
    }

    pub(crate) fn on_node_left(&mut self, name: &NodeName, instance: InstanceId) {
        if self
            .node_health
            .get(name)
            .is_some_and(|node_health| node_health.instance == Some(instance))
        {
            self.sign(name, LivenessEvent::Left);
        }
    }

    /// The process of an engine has ended, as its machine says: what it served moves at once. Like
    /// every absence this is no proof; the new targets fence the old ones.
    pub(crate) fn on_node_refused(&mut self, name: &NodeName) {
        self.sign(name, LivenessEvent::Refused);
    }

    /// A machine that was not listed in this run of it, or cannot be any more, is in doubt,
    /// whatever it says.
    fn sign(&mut self, name: &NodeName, sign: LivenessEvent) {
        let Some(node_health) = self.node_health.get(name) else { return };
        let listing_fails =
            node_health.listed.is_none() || node_health.listing_fails(self.now, self.pace.deadline);
        // What was not seen before has no status yet.
        self.see_node(name);
        if sign == LivenessEvent::Heartbeat && listing_fails {
            return;
        }
        let Some(node) = self.state.facts.nodes.get(name) else { return };
        let before = node.status.as_ref().map_or(Liveness::NOT_SEEN, |status| status.liveness);
        let Ok(after) = before.on(sign) else { return };
        if let Some(node) = self.state.facts.nodes.get_mut(name)
            && let Some(status) = &mut node.status
        {
            status.liveness = after;
        }
        self.survey();
        let doubts = [before, after].map(|it| matches!(it, Liveness::Unknown { .. }));
        if before == after || doubts == [true, true] {
            return;
        }
        self.replan = true;
        let (severity, message) = match after {
            Liveness::Online => (Severity::Info, "it answers".to_owned()),
            Liveness::Unknown { reason } => {
                (Severity::Warning, format!("in doubt: {}", event_text::doubt(reason)))
            }
            Liveness::Offline { reason } => {
                (Severity::Error, format!("it is away: {}", event_text::absence(reason)))
            }
        };
        self.tell(Subject::Node(name.clone()), EventName::StateChanged, severity, message);
        if after.is_online() {
            self.refresh_engine_objects(name);
        } else {
            self.is_not_listed(&Subject::Node(name.clone()), super::pool::absent(name));
            self.enqueue_all_of(name);
        }
    }

    /// Fills in what the status of a node says beside its liveness.
    fn see_node(&mut self, name: &NodeName) {
        let Some(node_health) = self.node_health.get(name) else { return };
        let (instance, version) = (node_health.instance, node_health.version.clone());
        let seen_at = instance.map(|_| node_health.heard);
        let Some(node) = self.state.facts.nodes.get_mut(name) else { return };
        let liveness = node.status.as_ref().map_or(Liveness::NOT_SEEN, |status| status.liveness);
        let drain = node.status.as_ref().and_then(|status| status.drain.clone());
        node.status = Some(NodeStatus { liveness, instance, version, seen_at, drain });
    }

    /// Asks nodes for what they have, and notices those that are silent.
    pub(crate) fn watch_nodes(&mut self) {
        if self.now < self.watch_at {
            return;
        }
        let late = self.pace.heartbeat * 2;
        let mut silent = Vec::new();
        let mut due = Vec::new();
        for (name, node_health) in &self.node_health {
            let wait = self.now.since(node_health.heard);
            let is_late = wait >= late && node_health.instance.is_some();
            // Two who do not know of each other miss it: that is as good as the deadline. The word
            // of a host alone may mean its own cable.
            if wait >= self.pace.deadline || (is_late && node_health.is_reported(self.now)) {
                silent.push((name.clone(), LivenessEvent::Lapsed));
            } else if node_health.given_up_at().is_some_and(|at| at <= self.now) {
                silent.push((name.clone(), LivenessEvent::Unresponsive));
            } else if is_late {
                silent.push((name.clone(), LivenessEvent::Late));
            }
            let lost = wait >= self.pace.deadline;
            let is_due = node_health.list_at.is_some_and(|at| at <= self.now);
            let known = self.state.facts.nodes.contains_key(name);
            if is_due && node_health.listing.is_none() && known && !lost {
                due.push(name.clone());
            }
        }
        for (name, sign) in silent {
            self.sign(&name, sign);
        }
        for name in due {
            self.list(name);
        }
        self.notice_silent_hosts();
        self.watch_at = self.next_sign().unwrap_or(self.now.after(self.pace.slow));
    }

    /// Nothing is moved because a host is silent, but people see it.
    fn notice_silent_hosts(&mut self) {
        let (now, deadline) = (self.now, self.pace.deadline);
        let hosts = &self.state.hosts;
        self.host_paths.retain(|host, _| hosts.contains_key(host));
        let statuses = self.state.hosts.values_mut().filter_map(|host| host.status.as_mut());
        let is_silent =
            |status: &HostStatus| status.seen_at.is_none_or(|seen| now.since(seen) >= deadline);
        for status in statuses.filter(|status| is_silent(status)) {
            if let Ok(absent) = status.liveness.on(LivenessEvent::Lapsed) {
                status.liveness = absent;
            }
        }
    }

    fn list(&mut self, name: NodeName) {
        let id = CallId(self.number());
        let Some(node_health) = self.node_health.get_mut(&name) else { return };
        (node_health.listing, node_health.list_at) = (Some(id), None);
        let subject = Subject::Node(name.clone());
        self.calls.insert(id, CallInFlight { subject, node: name.clone(), call: Call::List });
        self.out.push(Effect::Call(id, name, Box::new(Call::List)));
    }

    /// When a node must be looked at.
    fn next_sign(&self) -> Option<Timestamp> {
        let moments = self.node_health.values().flat_map(|node_health| {
            let deadline = node_health.heard.after(self.pace.deadline);
            let late = node_health.heard.after(self.pace.heartbeat * 2);
            let ahead = |at: &Timestamp| *at > self.now;
            // A node that is silent is not asked.
            let can_be_asked = node_health.listing.is_none() && ahead(&deadline);
            let list = node_health.list_at.filter(|_| can_be_asked);
            let given_up = node_health.given_up_at().filter(ahead);
            [Some(deadline).filter(ahead), Some(late).filter(ahead), given_up, list]
        });
        let hosts = self.state.hosts.values().filter_map(|host| host.status.as_ref());
        let seen = hosts.filter(|it| it.liveness.is_online()).filter_map(|it| it.seen_at);
        let silent = seen.map(|at| at.after(self.pace.deadline)).filter(|at| *at > self.now);
        moments.flatten().chain(silent).min()
    }

    /// Something happened there.
    pub(crate) fn look_at(&mut self, name: &NodeName) {
        let now = self.now;
        if let Some(node_health) = self.node_health.get_mut(name) {
            node_health.list_at = Some(now);
            self.watch_at = now;
        }
    }

    /// The listing has come: the node is there, and all of it is known.
    pub(crate) fn listed(&mut self, name: &NodeName, call: CallId) -> bool {
        // All nodes together are not asked more often than a few times a second.
        let nodes = u32::try_from(self.state.facts.nodes.len()).unwrap_or(u32::MAX);
        let again = self.pace.listing.max(EACH.saturating_mul(nodes));
        let now = self.now;
        let Some(node_health) =
            self.node_health.get_mut(name).filter(|node_health| node_health.listing == Some(call))
        else {
            return false;
        };
        (node_health.listing, node_health.listed) = (None, Some(now));
        (node_health.failed, node_health.failing_since, node_health.problem) = (0, None, None);
        node_health.list_at.get_or_insert(now.after(again));
        self.watch_at = now;
        true
    }

    /// After the statuses were taken over.
    pub(crate) fn listed_is_online(&mut self, name: &NodeName, call: CallId) {
        self.sign(name, LivenessEvent::Heartbeat);
        self.answer(
            &Subject::Node(name.clone()),
            WaitFor::Listed(call),
            &Ok(RequestOutcome::Unchanged),
        );
    }

    pub(crate) fn decide_list(&self, name: &NodeName) -> Result<Batch, Problem> {
        self.known::<NodeSpec>(name)?;
        if !self.state.is_online(name) {
            return Err(super::pool::absent(name));
        }
        let last = CallId(self.last_number);
        Ok(Batch::new().wait(Subject::Node(name.clone()), WaitFor::Listed(last)))
    }

    /// Nodes of which nobody knows what they have now.
    pub(crate) fn unlisted(&self) -> impl Iterator<Item = &NodeName> {
        let names = self.state.facts.nodes.keys();
        names.filter(|name| {
            let failed =
                self.node_health.get(*name).is_none_or(|node_health| node_health.failed > 0);
            failed || !self.state.is_online(name)
        })
    }

    /// Why a node last did not say what it has, and when.
    pub(crate) fn last_listing_problem(&self, name: &NodeName) -> Option<(Timestamp, &Problem)> {
        let (at, problem) = self.node_health.get(name)?.problem.as_ref()?;
        Some((*at, problem))
    }

    /// When a node is asked next what it has.
    pub(crate) fn next_listing(&self, name: &NodeName) -> Option<Timestamp> {
        self.node_health.get(name)?.list_at
    }

    pub(crate) fn on_listing_failed(&mut self, name: &NodeName, call: CallId, problem: &Problem) {
        self.answer(&Subject::Node(name.clone()), WaitFor::Listed(call), &Err(problem.clone()));
        let now = self.now;
        let Some(node_health) = self.node_health.get_mut(name) else { return };
        node_health.listing = None;
        node_health.list_at = Some(now.after(Duration::from_secs(1)));
        node_health.failed = node_health.failed.saturating_add(1);
        node_health.failing_since.get_or_insert(now);
        node_health.problem = Some((now, problem.clone()));
        let listing_fails = node_health.listing_fails(now, self.pace.deadline);
        self.watch_at = now;
        if node_health.failed == FAILED_LISTINGS {
            tracing::warn!(node = %name, %problem, "inventory keeps failing; node is unknown");
        } else {
            tracing::debug!(node = %name, %problem, "inventory of a node failed; will retry");
        }
        if listing_fails {
            self.sign(name, LivenessEvent::ListingFailed);
        }
    }

    pub(crate) fn on_host_heard(&mut self, name: &HostName, beat: Heartbeat<HostAddress>) {
        let now = self.now;
        let instance = Some(beat.instance);
        if let Err(problem) = self.check_machine(name, &beat.address) {
            tracing::warn!(host = %name, %problem, "a heartbeat is refused");
            return;
        }
        let known = self.state.hosts.get(name);
        let changed = known.map(|host| host.spec().address.updated(beat.address.clone()));
        let entry = match known {
            None => {
                let spec = HostSpec { address: beat.address, labels: Labels::new() };
                let made = Host::new(name.clone(), spec, now).map_err(Problem::from);
                made.and_then(|mut host| host.made().map(|()| host).map_err(Problem::from))
            }
            Some(host) if changed.as_ref() != Some(&host.spec().address) => {
                let mut host = host.clone();
                let address = changed.unwrap_or(beat.address);
                host.change(HostChange::Register { address }, now).map(|()| host)
            }
            Some(_) => {
                let status = self.state.hosts.get_mut(name).map(|host| &mut host.status);
                let liveness = Liveness::Online;
                let seen_at = Some(now);
                if let Some(status) = status {
                    let attached = status.take().map_or(BTreeMap::new(), |had| had.attached);
                    *status = Some(HostStatus { liveness, instance, seen_at, attached });
                }
                return;
            }
        };
        match entry {
            Ok(mut host) => {
                let attached = host.status.take().map_or(BTreeMap::new(), |had| had.attached);
                let (liveness, seen_at) = (Liveness::Online, Some(now));
                host.status = Some(HostStatus { liveness, instance, seen_at, attached });
                self.try_commit(Batch::new().put(host));
            }
            Err(problem) => tracing::warn!(host = %name, %problem, "a heartbeat is refused"),
        }
    }

    pub(crate) fn on_host_left(&mut self, name: &HostName, instance: InstanceId) {
        let status = self.state.hosts.get_mut(name).and_then(|host| host.status.as_mut());
        if let Some(status) = status.filter(|status| status.instance == Some(instance)) {
            let absent = Liveness::Offline { reason: model::OfflineReason::Left };
            status.liveness = absent;
        }
    }
}
