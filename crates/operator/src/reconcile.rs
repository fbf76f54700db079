//! What to do about one `DiskPool`, and what to show.
//!
//! [`decide`] takes the resource and what the control plane says about its pool, and returns at
//! most one action with the status that holds if nothing goes wrong; [`refused`] is the status
//! after the control plane said no. There is no memory between two calls: the status of the
//! resource says which pool it owns.

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use model::{
    DiskFinding, DiskStatus, Lifecycle, Pool, PoolChange, PoolSpec, PoolState, PoolStatus, Problem,
    ProblemKind,
};

use crate::disk_pool::{Condition, Disk, DiskPool, DiskPoolSpec, DiskPoolStatus, FINALIZER, READY};

/// What the control plane says about the pool of a resource.
#[derive(Clone, Debug, PartialEq)]
pub enum Observed {
    /// It does not say anything.
    Unreachable {
        /// Why.
        reason: String,
    },
    /// There is no such pool.
    Absent,
    /// There is one.
    Present {
        /// The pool.
        pool: Box<Pool>,
        /// The volumes with a copy in it; asked for only when the resource is being deleted.
        volumes: Vec<String>,
    },
}

/// Something to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Keep the resource until its pool is gone.
    AddFinalizer,
    /// Let the resource go.
    RemoveFinalizer,
    /// Create or import the pool.
    Create(Box<PoolSpec>),
    /// Change the pool.
    Change(PoolChange),
    /// Destroy the pool.
    Delete,
}

/// When to look again, unless something happens before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// At once: something was begun.
    Soon,
    /// As always: nothing is to be done.
    Poll,
    /// Later each time: somebody else must act first.
    BackOff,
}

/// What was decided.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// What to do; absent: nothing.
    pub action: Option<Action>,
    /// What to show.
    pub status: DiskPoolStatus,
    /// When to look again.
    pub next: Next,
}

/// What the Ready condition says.
struct Ready<'a> {
    status: &'a str,
    reason: &'a str,
    message: String,
}

/// Decides about one resource.
pub fn decide(resource: &DiskPool, observed: &Observed, now: Timestamp) -> Decision {
    let before = resource.status.clone().unwrap_or_default();
    let draft = Draft { resource, before, now };
    if resource.metadata.deletion_timestamp.is_some() {
        return draft.deleted(observed);
    }
    if !resource.finalizers().iter().any(|name| name == FINALIZER) {
        return draft
            .creating("Accepted", "the operator takes care of this resource")
            .with(Action::AddFinalizer);
    }
    let wanted = match resource.spec.pool_spec() {
        Ok(wanted) => wanted,
        Err(invalid) => return draft.stuck("Invalid", "InvalidSpec", invalid.to_string()),
    };
    match observed {
        Observed::Unreachable { reason } => draft.unreachable(reason),
        Observed::Absent if draft.before.uuid.is_some() => draft.stuck(
            "NotFound",
            "NotFound",
            "the pool was deleted by somebody else and is not created again; delete this DiskPool \
             and create it anew if the disks are to be used"
                .to_owned(),
        ),
        Observed::Absent => {
            let message = format!("creating the pool on node {}", wanted.node);
            draft.creating("Creating", &message).with(Action::Create(Box::new(wanted)))
        }
        Observed::Present { pool, .. } => draft.present(pool, &wanted),
    }
}

/// The status after the control plane refused an action.
pub fn refused(decision: Decision, problem: &Problem, now: Timestamp) -> Decision {
    let Decision { action, mut status, .. } = decision;
    let (reason, doing) = match &action {
        Some(Action::Create(_)) => ("CreateFailed", "the pool cannot be created"),
        Some(Action::Change(_)) => ("ChangeFailed", "the pool cannot be changed"),
        Some(Action::Delete) if problem.kind == ProblemKind::InUse => {
            ("InUse", "the pool cannot be destroyed")
        }
        Some(Action::Delete) => ("DeleteFailed", "the pool cannot be destroyed"),
        _ => ("Failed", "the resource cannot be updated"),
    };
    let message = format!("{doing}: {}; it is tried again", problem.detail);
    set_ready(&mut status, Ready { status: "False", reason, message }, now);
    Decision { action, status, next: Next::BackOff }
}

/// The resources to create for pools that have none.
pub fn missing(pools: &[Pool], resources: &[DiskPool]) -> Vec<DiskPool> {
    let has_resource =
        |pool: &Pool| resources.iter().any(|one| one.name_any() == pool.id().as_str());
    let lives =
        |pool: &&Pool| !matches!(pool.lifecycle(), Lifecycle::Deleting {} | Lifecycle::Deleted {});
    let pools = pools.iter().filter(lives).filter(|pool| !has_resource(pool));
    pools.map(|pool| DiskPool::new(pool.id().as_str(), DiskPoolSpec::of(pool.spec()))).collect()
}

/// What to tell about a change of status, once for each distinct thing.
pub fn event<'a>(
    before: Option<&DiskPoolStatus>,
    after: &'a DiskPoolStatus,
) -> Option<&'a Condition> {
    let after = after.condition(READY)?;
    let before = before.and_then(|status| status.condition(READY));
    let same = |before: &Condition| {
        (&before.status, &before.reason, &before.message)
            == (&after.status, &after.reason, &after.message)
    };
    (!before.is_some_and(same)).then_some(after)
}

/// A decision in the making.
struct Draft<'a> {
    resource: &'a DiskPool,
    before: DiskPoolStatus,
    now: Timestamp,
}

impl Decision {
    fn with(self, action: Action) -> Decision {
        Decision { action: Some(action), next: Next::Soon, ..self }
    }
}

impl Draft<'_> {
    fn decision(self, state: &str, ready: Ready<'_>, next: Next) -> Decision {
        let mut status = self.before;
        state.clone_into(&mut status.state);
        status.observed_generation = self.resource.metadata.generation;
        set_ready(&mut status, ready, self.now);
        Decision { action: None, status, next }
    }

    fn creating(self, reason: &str, message: &str) -> Decision {
        let ready = Ready { status: "False", reason, message: message.to_owned() };
        self.decision("Creating", ready, Next::Soon)
    }

    /// Nothing can be done until somebody acts.
    fn stuck(self, state: &str, reason: &str, message: String) -> Decision {
        self.decision(state, Ready { status: "False", reason, message }, Next::BackOff)
    }

    fn unreachable(self, reason: &str) -> Decision {
        let message = format!("the control plane does not answer: {reason}");
        let state = if self.resource.metadata.deletion_timestamp.is_some() {
            "Terminating"
        } else {
            "Unknown"
        };
        let ready = Ready { status: "Unknown", reason: "ControlPlaneUnavailable", message };
        self.decision(state, ready, Next::BackOff)
    }

    fn deleted(self, observed: &Observed) -> Decision {
        let pool = match observed {
            Observed::Unreachable { reason } => return self.unreachable(reason),
            Observed::Present { pool, volumes } if self.owns(pool) => {
                if !volumes.is_empty() {
                    return self.in_use(volumes);
                }
                pool
            }
            // Gone, or never ours.
            Observed::Absent | Observed::Present { .. } => {
                let decision = self.stuck("Terminating", "Destroyed", String::new());
                return decision.with(Action::RemoveFinalizer);
            }
        };
        let message = format!("destroying the pool on node {}", pool.spec().node);
        let being_deleted = matches!(pool.lifecycle(), Lifecycle::Deleting {});
        let decision = self.stuck("Terminating", "Destroying", message);
        if being_deleted { decision } else { decision.with(Action::Delete) }
    }

    fn in_use(self, volumes: &[String]) -> Decision {
        const SHOWN: usize = 10;
        let mut names = volumes.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
        if let Some(more) = volumes.len().checked_sub(SHOWN).filter(|more| *more > 0) {
            names = format!("{names} and {more} more");
        }
        let message = format!(
            "the pool holds copies of {} volumes: {names}; delete the volumes, or move their \
             copies away with `holdfast volume move`",
            volumes.len()
        );
        self.stuck("Terminating", "InUse", message)
    }

    /// Whether this resource may destroy the pool.
    fn owns(&self, pool: &Pool) -> bool {
        self.before.uuid.is_some() && self.before.uuid == uuid(pool)
    }

    fn present(mut self, pool: &Pool, wanted: &PoolSpec) -> Decision {
        let spec = pool.spec();
        if let Some(message) = self.conflict(pool, wanted) {
            return self.stuck("Conflict", "Conflict", message);
        }
        if matches!(pool.lifecycle(), Lifecycle::Deleting {} | Lifecycle::Deleted {}) {
            let message = "the pool is being destroyed by somebody else".to_owned();
            return self.stuck("NotFound", "BeingDeleted", message);
        }
        self.before.uuid = uuid(pool);
        let change = self.change(spec, wanted);
        let Some(seen) = &pool.status else {
            let message = format!("the engine on node {} opens the pool", spec.node);
            return self.creating("Opening", &message);
        };
        self.fill(seen);
        let (state, ready) = health(seen, spec);
        let decision = self.decision(state, ready, Next::Poll);
        match change {
            Some(change) => decision.with(Action::Change(change)),
            None => decision,
        }
    }

    /// Why the resource and the pool of its name are not the same thing.
    fn conflict(&self, pool: &Pool, wanted: &PoolSpec) -> Option<String> {
        let spec = pool.spec();
        if let (Some(mine), Some(its)) = (&self.before.uuid, uuid(pool))
            && *mine != its
        {
            return Some(format!(
                "this resource owns pool {mine}, and the pool of its name is another, {its}; \
                 nothing is done to either"
            ));
        }
        if spec.node != wanted.node {
            return Some(format!(
                "the pool is on node {}, not {}; nothing is done to it",
                spec.node, wanted.node
            ));
        }
        let shares = spec.disks.iter().any(|disk| wanted.disks.contains(disk));
        if self.before.uuid.is_none() && !shares {
            return Some("a pool of this name exists on other disks of the node".to_owned());
        }
        None
    }

    /// The next difference to remove.
    fn change(&self, spec: &PoolSpec, wanted: &PoolSpec) -> Option<PoolChange> {
        let managed = self.resource.spec.labels.is_some();
        if managed && spec.labels != wanted.labels {
            return Some(PoolChange::Label { labels: wanted.labels.clone() });
        }
        let added = wanted.disks.iter().find(|disk| !spec.disks.contains(disk));
        added.map(|disk| PoolChange::AddDisk { disk: disk.clone() })
    }

    fn fill(&mut self, seen: &PoolStatus) {
        let findings: &[DiskFinding] = match &seen.state {
            PoolState::Suspect { symptoms } | PoolState::Faulted { symptoms } => symptoms,
            PoolState::Online | PoolState::Offline | PoolState::Unknown => &[],
        };
        let of = |disk: &DiskStatus| {
            let findings = findings.iter().filter(|finding| finding.disk == disk.path);
            findings.map(|finding| finding.detail.clone()).collect()
        };
        self.before.capacity = Some(seen.capacity.to_string());
        self.before.used = Some(seen.used.to_string());
        self.before.committed = Some(seen.committed.to_string());
        let disk = |disk: &DiskStatus| Disk {
            path: disk.path.to_string(),
            size: disk.size.to_string(),
            findings: of(disk),
        };
        self.before.disks = seen.disks.iter().map(disk).collect();
    }
}

fn uuid(pool: &Pool) -> Option<String> {
    let found = pool.spec().uuid.or(pool.status.as_ref().map(|status| status.uuid));
    found.map(|uuid| uuid.to_string())
}

/// How a pool is, for people and for programs.
fn health(seen: &PoolStatus, spec: &PoolSpec) -> (&'static str, Ready<'static>) {
    let details = |symptoms: &[DiskFinding]| {
        let all: Vec<_> =
            symptoms.iter().map(|one| format!("{}: {}", one.disk, one.detail)).collect();
        all.join("; ")
    };
    let (state, status, reason, message) = match &seen.state {
        PoolState::Online => {
            ("Online", "True", "Online", format!("the pool on node {} is online", spec.node))
        }
        PoolState::Suspect { symptoms } => ("Suspect", "True", "Suspect", details(symptoms)),
        PoolState::Faulted { symptoms } => ("Faulted", "False", "Faulted", details(symptoms)),
        PoolState::Offline => {
            let message = format!("the pool is closed, or node {} is away", spec.node);
            ("Offline", "False", "Offline", message)
        }
        PoolState::Unknown => {
            let message = "the pool was not seen since the control plane started".to_owned();
            ("Unknown", "Unknown", "Unknown", message)
        }
    };
    (state, Ready { status, reason, message })
}

/// Sets the Ready condition; its time changes only when its status does.
fn set_ready(status: &mut DiskPoolStatus, ready: Ready<'_>, now: Timestamp) {
    let since = status
        .condition(READY)
        .filter(|condition| condition.status == ready.status)
        .map_or_else(|| now.to_string(), |condition| condition.last_transition_time.clone());
    status.conditions = vec![Condition {
        kind: READY.to_owned(),
        status: ready.status.to_owned(),
        reason: ready.reason.to_owned(),
        message: ready.message,
        last_transition_time: since,
    }];
}

#[cfg(test)]
mod tests;
