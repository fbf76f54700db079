//! What a change would do: decided like the change itself, and thrown away.

use api::rest::{DryRun, DryRunRequest};
use model::{Lifecycle, Problem, Resource, Spec};
use planner::{Facts, Step, View};

use super::admission::AdmissionContext;
use super::batch::Change;
use super::{Controller, Entry, PendingRequest, Request, Ticket, event_text};

impl Controller {
    /// What a change would do.
    pub fn try_out(&self, request: DryRunRequest) -> Result<DryRun, Problem> {
        self.dry_run(crate::rest::request_of_dry_run(request))
    }

    /// What a request would write, and what would be begun then.
    fn dry_run(&self, request: Request) -> Result<DryRun, Problem> {
        let view = self.view();
        let mut ids = self.ids;
        let mut context = AdmissionContext::new(&view, &mut ids);
        let asked = PendingRequest { ticket: Ticket(0), request, if_match: None };
        let batch = self.decide(&mut context, &asked)?;
        let changes = batch.changes().map(|change| self.in_words(change)).collect();
        if batch.is_empty() {
            return Ok(DryRun { changes, steps: Vec::new() });
        }
        let before = planner::plan(&view).steps;
        let mut facts = self.state.facts.clone();
        for change in batch.changes() {
            apply(&mut facts, change);
        }
        let after = planner::plan(&View::new(&facts, &self.settings, self.now)).steps;
        let new = after.iter().filter(|step| !before.contains(step));
        Ok(DryRun { changes, steps: new.map(step_in_words).collect() })
    }

    fn in_words(&self, change: &Change) -> String {
        match change {
            Change::Put(Entry::Volume(volume)) => put("volume", &**volume),
            Change::Put(Entry::Replica(replica)) => {
                let pool = &replica.spec().pool;
                let node = self.state.pool(pool).map(|pool| pool.spec().node.to_string());
                let place = format!("pool {pool} on node {}", node.unwrap_or_default());
                format!("{}, in {place}", put("copy", &**replica))
            }
            Change::Put(Entry::Target(target)) => {
                format!("{}, on node {}", put("target", &**target), target.spec().node)
            }
            Change::Put(Entry::Snapshot(snapshot)) => put("snapshot", &**snapshot),
            Change::Put(Entry::Pool(pool)) => put("pool", &**pool),
            Change::Put(Entry::Node(node)) => put("node", &**node),
            Change::Put(Entry::MoveRecord(moving)) => {
                format!("copy {} moves to pool {}", moving.from, moving.pool)
            }
            Change::Put(Entry::TargetRecord(record)) => {
                format!("epoch {} of volume {} is taken", record.epoch(), record.volume())
            }
            Change::Put(entry) => format!("{} is written", name(entry)),
            Change::Drop(entry) => format!("{} is forgotten", name(entry)),
        }
    }
}

fn name(entry: &Entry) -> String {
    entry.subject().map_or_else(|| entry.key(), |subject| subject.to_string())
}

fn put<S: Spec>(kind: &str, object: &Resource<S>) -> String
where
    S::Id: std::fmt::Display,
{
    let id = object.id();
    match object.lifecycle() {
        Lifecycle::Creating {} => format!("{kind} {id} is made"),
        Lifecycle::Created { operation: Some(operation) } => {
            format!("{kind} {id}: {}", event_text::change(&operation.change))
        }
        Lifecycle::Created { operation: None } => format!("{kind} {id} is changed"),
        Lifecycle::Deleting {} | Lifecycle::Deleted {} => format!("{kind} {id} is deleted"),
    }
}

/// The records as they would be, for the planner.
fn apply(facts: &mut Facts, change: &Change) {
    match change {
        Change::Put(entry) => match entry.clone() {
            Entry::Node(mut node) => {
                node.status = facts.nodes.get(node.id()).and_then(|had| had.status.clone());
                facts.nodes.insert(node.id().clone(), *node);
            }
            Entry::Pool(mut pool) => {
                pool.status = facts.pools.get(pool.id()).and_then(|had| had.status.clone());
                facts.pools.insert(pool.id().clone(), *pool);
            }
            Entry::Volume(volume) => drop(facts.volumes.insert(*volume.id(), *volume)),
            Entry::Replica(mut replica) => {
                let had = facts.replicas.get(replica.id());
                replica.status = had.and_then(|had| had.status.clone());
                facts.replicas.insert(*replica.id(), *replica);
            }
            Entry::Target(mut target) => {
                let had = facts.targets.get(target.id());
                target.status = had.and_then(|had| had.status.clone());
                facts.targets.insert(*target.id(), *target);
            }
            Entry::Snapshot(snapshot) => {
                facts.snapshots.insert(*snapshot.id(), *snapshot);
            }
            Entry::MoveRecord(moving) => {
                let super::MoveRecord { volume, from, replica, pool } = *moving;
                facts.moves.insert(volume, planner::ReplicaMove { from, replica, pool });
            }
            _ => {}
        },
        Change::Drop(Entry::Target(target)) => drop(facts.targets.remove(target.id())),
        Change::Drop(_) => {}
    }
}

fn step_in_words(step: &Step) -> String {
    match step {
        Step::OpenPool { pool, node } => format!("pool {pool} is opened on node {node}"),
        Step::BeginFailover { volume, node, .. } | Step::Republish { volume, node, .. } => {
            format!("volume {volume} is served by node {node}")
        }
        Step::OpenToHeal { volume, node, .. } => {
            format!("volume {volume} gets a target on node {node}, to heal")
        }
        Step::Close { volume, .. } => format!("the target of volume {volume} is closed"),
        Step::AddReplica { volume, pool, .. } => {
            format!("volume {volume} gets a copy in pool {pool}")
        }
        Step::Attach { volume, replica, .. } => {
            format!("copy {replica} of volume {volume} is used")
        }
        Step::Rebuild(plan) => {
            format!("copy {} of volume {} is brought in sync", plan.replica, plan.volume)
        }
        Step::RemoveReplica { volume, replica, .. } => {
            format!("copy {replica} of volume {volume} is given up")
        }
        Step::MoveReplica { volume, from, pool, .. } => {
            format!("copy {from} of volume {volume} moves to pool {pool}")
        }
        Step::Delete(subject) | Step::GoOnDeleting(subject) => format!("{subject} is deleted"),
        Step::Finish(subject) => format!("the change of {subject} is complete"),
        other => format!("{} is worked on", other.subject()),
    }
}
