//! Why a thing is as it is: what is wanted, what was seen, for what it waits, what comes next.
//!
//! Everything here is read from what the controller decides by, so it explains what is done and not
//! what should be.

use std::fmt::Display;
use std::time::Duration;

use api::rest::{Explanation, NextAttempt, OperationStatus, Refusal};
use model::{
    Event, Lifecycle, Liveness, NodeName, PoolName, PoolState, Problem, ProblemKind, Resource,
    Spec, Subject, Timestamp, VolumeId,
};
use serde::Serialize;

use super::{Controller, event_text};

/// How many events are shown.
const EVENTS: usize = 10;
/// How many things of an ambiguous name are listed.
const CANDIDATES: usize = 5;

fn text(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        Ok(other) => other.to_string(),
        Err(_) => String::new(),
    }
}

/// An operation that takes longer is named in the status: most end within a minute by themselves.
const STUCK: Duration = Duration::from_mins(2);

/// What is going on.
pub(crate) struct Activity {
    /// Calls to engines.
    pub(crate) orders: u64,
    /// Operations on volumes, snapshots and pools.
    pub(crate) operations: u64,
    /// Since when the oldest of them has been under way.
    pub(crate) oldest_operation: Duration,
}

impl Controller {
    /// Every operation under way, in words, with its age. Nobody knows when a deletion began.
    fn operations(&self) -> impl Iterator<Item = (Subject, String, Duration)> {
        let facts = &self.state.facts;
        let volumes = facts.volumes.values().filter_map(|volume| {
            let change = volume.lifecycle().operation().map(|it| &it.change);
            // It takes as long as its rebuilds.
            if matches!(change, Some(model::VolumeChange::SetReplicas { .. })) {
                return None;
            }
            Some((Subject::Volume(*volume.id()), self.operation_of(volume)?))
        });
        let snapshots = facts.snapshots.values().filter_map(|snapshot| {
            Some((Subject::Snapshot(*snapshot.id()), self.operation_of(snapshot)?))
        });
        let pools = facts
            .pools
            .values()
            .filter_map(|pool| Some((Subject::Pool(pool.id().clone()), self.operation_of(pool)?)));
        volumes.chain(snapshots).chain(pools).map(|(subject, (what, age))| (subject, what, age))
    }

    fn operation_of<S: Spec>(&self, object: &Resource<S>) -> Option<(String, Duration)> {
        match object.lifecycle() {
            Lifecycle::Creating {} => {
                Some(("it is being made".to_owned(), self.now.since(object.created_at())))
            }
            Lifecycle::Created { operation: Some(operation) } => {
                let what = format!("{:?} is under way", event_text::change(&operation.change));
                Some((what, self.now.since(operation.started_at)))
            }
            _ => None,
        }
    }

    /// Operations that take longer than they should.
    pub(crate) fn stuck_operations(&self) -> Vec<(Subject, String, Duration)> {
        self.operations().filter(|(.., age)| *age >= STUCK).collect()
    }

    /// What is going on.
    pub(crate) fn activity(&self) -> Activity {
        let ages: Vec<Duration> = self.operations().map(|(.., age)| age).collect();
        Activity {
            orders: u64::try_from(self.calls.len()).unwrap_or(u64::MAX),
            operations: u64::try_from(ages.len()).unwrap_or(u64::MAX),
            oldest_operation: ages.into_iter().max().unwrap_or_default(),
        }
    }

    /// How long ago each node was heard.
    pub(crate) fn heartbeat_ages(&self) -> impl Iterator<Item = (&NodeName, Duration)> {
        let nodes = self.state.facts.nodes.iter();
        let seen = nodes.filter_map(|(name, node)| Some((name, node.status.as_ref()?.seen_at?)));
        seen.map(|(name, at)| (name, self.now.since(at)))
    }

    /// What has this name or id, or an id that begins so.
    pub(crate) fn resolve(&self, thing: &str) -> Result<Subject, Problem> {
        let facts = &self.state.facts;
        let all = facts.nodes.keys().cloned().map(Subject::Node);
        let all = all.chain(facts.pools.keys().cloned().map(Subject::Pool));
        let all = all.chain(self.state.hosts.keys().cloned().map(Subject::Host));
        let all = all.chain(facts.volumes.keys().copied().map(Subject::Volume));
        let all = all.chain(facts.replicas.keys().copied().map(Subject::Replica));
        let all = all.chain(facts.targets.keys().copied().map(Subject::Target));
        let all = all.chain(facts.snapshots.keys().copied().map(Subject::Snapshot));
        let all = all.chain(self.state.groups.keys().copied().map(Subject::SnapshotGroup));
        // A name of a node and of a host may be the same: `node/NAME` says which is meant.
        let (kind, name) =
            thing.split_once('/').map_or((None, thing), |(kind, name)| (Some(kind), name));
        let of_kind = |subject: &Subject| kind.is_none_or(|kind| text(&subject.kind()) == kind);
        let found: Vec<Subject> =
            all.filter(|it| of_kind(it) && it.id().starts_with(name)).collect();
        let exact: Vec<&Subject> = found.iter().filter(|it| it.id() == name).collect();
        match (&exact[..], &found[..]) {
            ([one], _) | ([one, ..], [_]) => Ok((*one).clone()),
            ([], [one]) if !name.is_empty() => Ok(one.clone()),
            ([], [] | [_]) => {
                let detail = format!("nothing is called {thing}, and no id begins so");
                Err(Problem::new(ProblemKind::NotFound, detail))
            }
            _ => {
                let names: Vec<String> = found
                    .iter()
                    .take(CANDIDATES)
                    .map(|it| format!("{}/{}", text(&it.kind()), it.id()))
                    .collect();
                let detail = format!("{thing} may be one of {}: say more", names.join(", "));
                Err(Problem::new(ProblemKind::InvalidArgument, detail))
            }
        }
    }

    /// Why a thing is as it is.
    pub fn explain(&self, thing: &str) -> Result<Explanation, Problem> {
        let subject = self.resolve(thing)?;
        let mut all = Explanation {
            subject: subject.clone(),
            wanted: Vec::new(),
            seen: Vec::new(),
            operation: None,
            waits_for: Vec::new(),
            refusal: None,
            next: None,
            remedies: Vec::new(),
            events: Vec::new(),
        };
        let parts = self.explained_parts(&subject);
        match &subject {
            Subject::Node(name) => self.explain_node(&mut all, name),
            Subject::Pool(name) => self.explain_pool(&mut all, name),
            Subject::Volume(id) => self.explain_volume(&mut all, *id),
            _ => self.explain_other(&mut all, &subject),
        }
        for part in &parts {
            self.explain_orders(&mut all, part);
        }
        let blocked = self.blocked_reasons(&subject).cloned();
        all.waits_for.extend(blocked);
        self.explain_rest(&mut all, &subject);
        all.waits_for.dedup();
        all.remedies.dedup();
        let about = |event: &&Event| parts.contains(&event.subject);
        let mut events: Vec<Event> =
            self.state.events.values().rev().filter(about).take(EVENTS).cloned().collect();
        events.reverse();
        all.events = events;
        Ok(all)
    }

    /// A thing with what belongs to it.
    fn explained_parts(&self, subject: &Subject) -> Vec<Subject> {
        let mut parts = vec![subject.clone()];
        if let Subject::Volume(volume) = subject {
            let members = self.state.members(*volume);
            parts.extend(members.replicas.into_iter().map(Subject::Replica));
            parts.extend(members.targets.into_iter().map(Subject::Target));
            parts.extend(members.snapshots.into_iter().map(Subject::Snapshot));
        }
        parts
    }

    /// The order about a thing that is under way, or was refused.
    fn explain_orders(&self, all: &mut Explanation, subject: &Subject) {
        let Some(object) = self.engine_objects.get(subject) else { return };
        if let Some(call) = object.call.and_then(|call| self.calls.get(&call)) {
            let node = &call.node;
            all.waits_for.push(format!("an answer of the engine of node {node} about {subject}"));
        }
        if let (Some(problem), Some(at)) = (&object.problem, object.failed_at)
            && all.refusal.as_ref().is_none_or(|known| known.at < at)
        {
            let (subject, problem) = (subject.clone(), problem.clone());
            all.refusal = Some(Refusal { subject, at, problem });
        }
        if let Some(due) = object.due().filter(|due| object.call.is_none() && *due > self.now) {
            attempt(all, format!("the order about {subject} is sent again"), due);
        }
    }

    /// What holds for everything: writes, pauses, back-off.
    fn explain_rest(&self, all: &mut Explanation, subject: &Subject) {
        let is_written = self
            .writes
            .values()
            .any(|batch| batch.puts().any(|entry| entry.subject().as_ref() == Some(subject)));
        if is_written {
            all.waits_for.push("the store, which is writing a change of it".to_owned());
        }
        if let Some(problem) = self.why_not_written() {
            all.waits_for.push(format!("the store, which refuses to write: {problem}"));
            all.remedies.push("make room in the store, or reduce its load".to_owned());
        }
        if let Some((_, until)) = self.back_offs.get(subject).filter(|(_, at)| *at > self.now) {
            attempt(all, "the repair that failed is tried again".to_owned(), *until);
        }
        if let Some(maintenance) = self.maintenance() {
            let until = maintenance.until;
            all.waits_for.push(format!(
                "the end of maintenance at {until} ({}): nothing is failed over or replaced by \
                 itself before",
                maintenance.reason
            ));
            all.remedies.push("`holdfast maintenance end` ends it now".to_owned());
        }
        if !self.is_surveyed() {
            let waited: Vec<String> =
                self.unlisted().map(ToString::to_string).take(CANDIDATES).collect();
            all.waits_for.push(format!(
                "nodes that this control plane has not heard of since it leads: {}",
                waited.join(", ")
            ));
        }
        if all.next.is_none() && !(all.waits_for.is_empty() && all.operation.is_none()) {
            let at = self.planned_at.map_or(self.now, |at| at.after(self.plan_wait()));
            attempt(all, "everything is planned anew".to_owned(), at);
        }
    }

    fn explain_lifecycle<S: Spec>(&self, all: &mut Explanation, object: &Resource<S>) {
        let since = |what: String, at: Option<Timestamp>| OperationStatus {
            what,
            started_at: at,
            age_seconds: at.map(|at| self.now.since(at).as_secs()),
        };
        all.operation = match object.lifecycle() {
            Lifecycle::Creating {} => {
                Some(since("it is being made".to_owned(), Some(object.created_at())))
            }
            Lifecycle::Created { operation: Some(operation) } => {
                Some(since(event_text::change(&operation.change), Some(operation.started_at)))
            }
            Lifecycle::Created { operation: None } => None,
            Lifecycle::Deleting {} | Lifecycle::Deleted {} => {
                Some(since("it is being deleted".to_owned(), None))
            }
        };
    }

    fn explain_node(&self, all: &mut Explanation, name: &NodeName) {
        let Some(node) = self.state.node(name) else { return };
        self.explain_lifecycle(all, node);
        let spec = node.spec();
        all.wanted.push(format!("its engine at {}", spec.address.api));
        for (what, names) in [("cordoned", &spec.cordons), ("drained", &spec.drains)] {
            let names: Vec<String> = names.iter().map(ToString::to_string).collect();
            if !names.is_empty() {
                all.wanted.push(format!("{what}: {}", names.join(", ")));
            }
        }
        let Some(status) = &node.status else { return };
        all.seen.push(match status.liveness {
            Liveness::Online => "online".to_owned(),
            Liveness::Unknown { reason } => format!("unknown: {}", event_text::doubt(reason)),
            Liveness::Offline { reason } => format!("offline: {}", event_text::absence(reason)),
        });
        if let Some(at) = status.seen_at {
            let seconds = self.now.since(at).as_secs();
            all.seen.push(format!("last heartbeat at {at}, {seconds} s ago"));
        }
        let targets = self.targets_on(name).len();
        let replicas = self.replicas_on(&self.pools_on(name)).len();
        all.seen.push(format!("{targets} targets, {replicas} copies"));
        if let Some(drain) = &status.drain {
            all.waits_for.extend(drain.blocked.iter().cloned());
        }
        if let Some((at, problem)) = self.last_listing_problem(name) {
            let problem = problem.clone();
            all.refusal = Some(Refusal { subject: all.subject.clone(), at, problem });
            all.waits_for.push("its engine, which does not say what it has".to_owned());
        }
        if let Some(at) = self.next_listing(name).filter(|_| !status.liveness.is_online()) {
            attempt(all, "it is asked what it has".to_owned(), at);
        }
        if !status.liveness.is_online() {
            all.remedies.push(remedy_for(name));
        }
    }

    fn explain_pool(&self, all: &mut Explanation, name: &PoolName) {
        let Some(pool) = self.pool_seen(name) else { return };
        self.explain_lifecycle(all, &pool);
        let spec = pool.spec();
        let disks: Vec<String> = spec.disks.iter().map(ToString::to_string).collect();
        let open = if spec.exported { "exported" } else { "open" };
        all.wanted.push(format!("{open} on node {} with {}", spec.node, disks.join(", ")));
        if !spec.cordons.is_empty() {
            let names: Vec<String> = spec.cordons.iter().map(ToString::to_string).collect();
            all.wanted.push(format!("cordoned: {}", names.join(", ")));
        }
        match &pool.status {
            Some(status) => {
                let (used, capacity) = (status.used, status.capacity);
                all.seen.push(format!("{}, {used} of {capacity} used", in_words(&status.state)));
                if let PoolState::Suspect { symptoms } | PoolState::Faulted { symptoms } =
                    &status.state
                {
                    let found = symptoms.iter().map(|it| format!("{}: {}", it.disk, it.detail));
                    all.seen.extend(found);
                    all.remedies.push(format!(
                        "replace the disk, moving its copies away first (`holdfast replica list \
                         --pool {name}`), or `holdfast pool clear-errors {name}`"
                    ));
                }
            }
            None => all.seen.push("nothing: its node has not said that it has it".to_owned()),
        }
        if !self.state.is_online(&spec.node) {
            all.waits_for.push(format!("node {}, which does not answer", spec.node));
            all.remedies.push(remedy_for(&spec.node));
        }
    }

    fn explain_volume(&self, all: &mut Explanation, id: VolumeId) {
        let Some(volume) = self.volume_seen(id) else { return };
        self.explain_lifecycle(all, &volume);
        let spec = volume.spec();
        all.wanted.push(format!("{} with {} copies", spec.size, spec.replicas));
        let Some(status) = &volume.status else { return };
        all.seen.push(format!("it is {}", text(&status.state)));
        all.seen.extend(status.reasons.iter().cloned());
        match &status.target {
            Some(target) => {
                let hosts: Vec<String> = target.hosts.iter().map(ToString::to_string).collect();
                let hosts = if hosts.is_empty() { "nobody".into() } else { hosts.join(", ") };
                all.wanted.push(format!("served to {hosts} by node {}", target.node));
                let state = target.state.map_or("nothing".to_owned(), |state| text(&state));
                all.seen.push(format!("target {} on node {}: {state}", target.id, target.node));
            }
            None => all.wanted.push("not published".to_owned()),
        }
        for (replica, seen) in &status.replicas {
            let child = seen.child.map(|child| format!(", {child}")).unwrap_or_default();
            let (pool, node, state) = (&seen.pool, &seen.node, text(&seen.state));
            all.seen.push(format!("copy {replica} in pool {pool} on node {node}: {state}{child}"));
            if self.is_absent(node) || self.is_doubtful(node) {
                all.waits_for.push(format!("node {node}, which does not answer"));
                all.remedies.push(remedy_for(node));
            }
        }
        if let Some(failover) = self.failover_of(id) {
            let stage = text(failover.stage());
            all.waits_for.push(format!("a failover, at {stage}"));
        }
        if let Some(brake) = self.brake().filter(|_| spec.policy.self_heal) {
            all.waits_for.push(brake.reason.clone());
        }
        if let Some(operation) = &all.operation {
            let is_unpublish = operation.what.starts_with("unpublish");
            all.remedies.push(if is_unpublish {
                format!("`holdfast volume unpublish {id} --force` does not wait for the engine")
            } else {
                format!("`holdfast volume cancel {id}` undoes it, as far as it can be undone")
            });
        }
    }

    fn explain_other(&self, all: &mut Explanation, subject: &Subject) {
        let facts = &self.state.facts;
        let (mut volume, mut node) = (None, None);
        match subject {
            Subject::Replica(id) => {
                let Some(replica) = self.replica_seen(*id) else { return };
                self.explain_lifecycle(all, &replica);
                let spec = replica.spec();
                all.wanted.push(format!("a copy of volume {} in pool {}", spec.volume, spec.pool));
                all.seen.push(replica.status.as_ref().map_or_else(
                    || "nothing: its node has not said that it has it".to_owned(),
                    |status| text(&status.state),
                ));
                volume = Some(spec.volume);
                node = self.state.node_of(&spec.pool).map(|node| node.id().clone());
            }
            Subject::Target(id) => {
                let Some(target) = facts.targets.get(id) else { return };
                self.explain_lifecycle(all, target);
                let spec = target.spec();
                all.wanted.push(format!("to serve volume {} on node {}", spec.volume, spec.node));
                all.seen.push(target.status.as_ref().map_or_else(
                    || "nothing: its node has not said that it has it".to_owned(),
                    |status| text(&status.state),
                ));
                (volume, node) = (Some(spec.volume), Some(spec.node.clone()));
            }
            Subject::Snapshot(id) => {
                let Some(snapshot) = self.snapshot_seen(*id) else { return };
                self.explain_lifecycle(all, &snapshot);
                all.wanted.push(format!("a snapshot of volume {}", snapshot.spec().volume));
                all.seen.extend(snapshot.status.as_ref().map(|status| text(&status.state)));
                volume = Some(snapshot.spec().volume);
            }
            Subject::SnapshotGroup(id) => {
                let Some(group) = self.state.groups.get(id) else { return };
                self.explain_lifecycle(all, group);
                let count = group.spec().snapshots.len();
                all.wanted.push(format!("snapshots of {count} volumes at one moment"));
            }
            Subject::Host(name) => {
                let Some(host) = self.state.hosts.get(name) else { return };
                self.explain_lifecycle(all, host);
                all.seen.extend(host.status.as_ref().map(|status| text(&status.liveness)));
            }
            _ => {}
        }
        if let Some(volume) = volume {
            all.remedies.push(format!("`holdfast explain {volume}` explains its volume"));
        }
        if let Some(node) = node.filter(|node| !self.state.is_online(node)) {
            all.waits_for.push(format!("node {node}, which does not answer"));
            all.remedies.push(remedy_for(&node));
        }
    }
}

fn in_words(state: &PoolState) -> impl Display {
    match state {
        PoolState::Online => "online",
        PoolState::Suspect { .. } => "suspect",
        PoolState::Faulted { .. } => "faulted",
        PoolState::Offline => "offline",
        PoolState::Unknown => "unknown",
    }
}

/// Something is tried again; the next of several counts.
fn attempt(all: &mut Explanation, what: String, at: Timestamp) {
    if all.next.as_ref().is_none_or(|known| at < known.at) {
        all.next = Some(NextAttempt { what, at });
    }
}

fn remedy_for(name: &NodeName) -> String {
    format!(
        "start the engine of node {name} and look into its log; if the node will not come back: \
         `holdfast node drain {name}` replaces its copies, `holdfast node purge {name}` forgets it"
    )
}
