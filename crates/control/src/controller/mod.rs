//! The control plane as one state machine: events in, effects out; no I/O, no clock.
//!
//! ```text
//!            Asked, Heard, Answered, Stored, Recorded
//!                              │
//!                              ▼
//!   ┌─ touched things ◄── what is known ──► plan (planner) ─┐
//!   │                                                       │
//!   └──► drive: what does it need next? ◄── steps ──────────┘
//!                              │
//!                              ▼
//!                 Store, Call, Reply, Tell, Resign
//! ```
//!
//! How work is done: **intent first**. A request or a step becomes changed records, written
//! together ([`batch`]). From then on `reconcile` looks at a thing as it is written and as it was
//! seen, and does what comes next: send an order to an engine, write that it is made, undo it. It
//! has no memory of its own, so after a crash the next control plane drives on from the records.
//! What is being made is undone when it turns out that it cannot be; what is being deleted is
//! deleted in the end.
//!
//! Invariants:
//! - Nothing is ordered from an engine that is not in the store. One write and one call about a
//!   thing are under way at most.
//! - An order never brings back a copy that was lost: only what is `Creating` is made.
//! - A copy is deleted only when no target uses it and the record of its volume does not count it,
//!   and, while its volume lives, only if it is superseded; otherwise it is set aside.
//! - Nothing is ordered for a volume of which a disk knows more than the store ([`conflict`]), and
//!   no target before every node was heard or is known to be away.
//! - After [`Effect::Resign`] nothing more is done.
//!
//! Deliberately not here: sockets, the lease, tokens ([`crate::service`]); where things go and what
//! is sick (planner).

mod admission;
mod adopt;
mod apply_plan;
mod batch;
mod brake;
mod calls;
mod comparison;
mod conflict;
mod dry_run;
mod effect;
mod engine_events;
mod engine_object;
mod entry;
mod event_text;
mod explain;
mod failover;
mod group;
mod ids;
mod inventory;
mod liveness;
mod machine;
mod maintenance;
mod move_record;
mod path_replacement;
mod planner_inputs;
mod pool;
mod publish;
mod purge;
mod quarantine;
mod recover;
mod replica;
mod request;
mod scrub_record;
mod sequence;
mod snapshot;
mod state;
mod status;
mod store_backoff;
mod target;
mod unreadable;
mod volume;
mod webhook;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use model::{
    EventName, HostName, NodeName, PoolName, Problem, ProblemKind, Rebuild, RebuildId, ReplicaId,
    Severity, SnapshotId, SpecBackup, Subject, Timestamp, VolumeId, WebhookName,
};
use planner::{Blocked, Settings};

pub use apply_plan::MadePlan;
use batch::{Batch, WaitFor};
use brake::BrakeState;
use calls::CallInFlight;
use comparison::Comparison;
pub use comparison::ComparisonRecord;
use conflict::Suspicion;
pub use effect::{
    Call, CallId, CallResponse, CommitResult, Effect, EventDraft, Inventory, RequestOutcome,
    Ticket, WriteId,
};
use engine_events::EventBudget;
pub(crate) use engine_events::is_stored;
use engine_object::EngineObject;
pub use entry::Entry;
use ids::Ids;
use liveness::NodeHealth;
pub use move_record::MoveRecord;
use path_replacement::HostPaths;
pub use planner_inputs::WorkCounts;
pub use request::{Input, PendingRequest, Request};
pub use scrub_record::ScrubRecord;
pub use sequence::HeartbeatAcks;
pub use state::{LoadError, State};
use store_backoff::StoreBackoff;

/// How often things are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intervals {
    /// When daemons are to send the next heartbeat.
    pub heartbeat: Duration,
    /// When one without a heartbeat is taken for gone.
    pub deadline: Duration,
    /// How often a node is asked for all it has, if nothing happens there.
    pub listing: Duration,
    /// The least time between two plans.
    pub plan: Duration,
    /// The most time between two plans.
    pub slow: Duration,
}

impl Default for Intervals {
    fn default() -> Intervals {
        Intervals {
            heartbeat: Duration::from_secs(2),
            deadline: Duration::from_secs(10),
            listing: Duration::from_secs(10),
            plan: Duration::from_millis(500),
            slow: Duration::from_secs(30),
        }
    }
}

/// The most requests that wait to be decided.
const MAX_PENDING_REQUESTS: usize = 4096;

/// How many resources are reconciled before others may look.
const SLICE: usize = 512;

/// The control plane.
pub struct Controller {
    pub(crate) state: State,
    settings: Settings,
    pace: Intervals,
    /// When this control plane began to lead.
    began: Timestamp,
    now: Timestamp,
    ids: Ids,
    last_number: u64,
    writes: BTreeMap<WriteId, Batch>,
    /// The keys of records that are being written, and what waits for each of these writes.
    locked: BTreeMap<String, BTreeSet<Subject>>,
    /// What is being driven.
    reconciling: Option<Subject>,
    engine_objects: BTreeMap<Subject, EngineObject>,
    calls: BTreeMap<CallId, CallInFlight>,
    node_health: BTreeMap<NodeName, NodeHealth>,
    /// How many more events of each engine are stored.
    event_budgets: BTreeMap<NodeName, EventBudget>,
    /// What nodes said they have and nobody here knows.
    unknown: BTreeMap<NodeName, Inventory>,
    /// Volumes of which the disks know more than the store.
    conflicts: BTreeMap<VolumeId, Suspicion>,
    /// What disks say is wanted of volumes, where that is newer than what the store says.
    newer_spec_backups: BTreeMap<VolumeId, SpecBackup>,
    /// Whether every node was heard in this term, or is known to be away.
    surveyed: bool,
    sequence_timer: sequence::SequenceTimer,
    store_backoff: StoreBackoff,
    /// When nodes are to be looked at.
    watch_at: Timestamp,
    waiting: BTreeMap<Subject, Vec<(Ticket, WaitFor)>>,
    asked: VecDeque<PendingRequest>,
    /// Wishes about something that is being written.
    waiting_for_write: VecDeque<PendingRequest>,
    dirty: BTreeSet<Subject>,
    timers: BTreeSet<(Timestamp, Subject)>,
    /// Volumes of which the operation under way is to be undone.
    cancelled: BTreeSet<VolumeId>,
    /// The paths of each volume that a host has attached, as its agent said in this term.
    host_paths: BTreeMap<HostName, HostPaths>,
    /// Why something that is being undone is.
    failures: BTreeMap<Subject, Problem>,
    /// When volumes whose repair failed are looked at again, and how often it failed.
    back_offs: BTreeMap<Subject, (u32, Timestamp)>,
    /// Of which copies snapshots in the making were taken; of which those that go are dropped.
    taken: BTreeMap<SnapshotId, BTreeSet<ReplicaId>>,
    dropped: BTreeMap<SnapshotId, BTreeSet<ReplicaId>>,
    /// What goes as soon as its pool can be used again.
    awaiting: BTreeMap<PoolName, BTreeSet<Subject>>,
    /// Rebuilds as nodes last told them, but for those that have ended and are stored.
    running: BTreeMap<RebuildId, Rebuild>,
    /// Comparisons of copies under way, with how far they are.
    comparisons: BTreeMap<VolumeId, Comparison>,
    /// Watches of which the store does not know yet how far their calls went, and when it is told.
    unnoted: BTreeSet<WebhookName>,
    note_at: Timestamp,
    planned_at: Option<Timestamp>,
    /// Since when a plan is being made.
    planning_since: Option<Timestamp>,
    replan: bool,
    work: WorkCounts,
    blocked: Vec<Blocked>,
    brake: BrakeState,
    out: Vec<Effect>,
    is_over: bool,
}

impl Controller {
    /// A control plane that begins with what is stored. `random` must not be the same twice.
    pub fn new(
        state: State,
        settings: Settings,
        pace: Intervals,
        random: u64,
        now: Timestamp,
    ) -> Controller {
        let mut controller = Controller {
            state,
            settings,
            pace,
            began: now,
            now,
            ids: Ids::new(random),
            last_number: 0,
            writes: BTreeMap::new(),
            locked: BTreeMap::new(),
            reconciling: None,
            engine_objects: BTreeMap::new(),
            calls: BTreeMap::new(),
            node_health: BTreeMap::new(),
            event_budgets: BTreeMap::new(),
            unknown: BTreeMap::new(),
            conflicts: BTreeMap::new(),
            newer_spec_backups: BTreeMap::new(),
            surveyed: false,
            sequence_timer: sequence::SequenceTimer::new(now),
            store_backoff: StoreBackoff::default(),
            watch_at: now,
            waiting: BTreeMap::new(),
            asked: VecDeque::new(),
            waiting_for_write: VecDeque::new(),
            dirty: BTreeSet::new(),
            timers: BTreeSet::new(),
            cancelled: BTreeSet::new(),
            host_paths: BTreeMap::new(),
            failures: BTreeMap::new(),
            back_offs: BTreeMap::new(),
            taken: BTreeMap::new(),
            dropped: BTreeMap::new(),
            awaiting: BTreeMap::new(),
            running: BTreeMap::new(),
            comparisons: BTreeMap::new(),
            unnoted: BTreeSet::new(),
            note_at: now,
            planned_at: None,
            planning_since: None,
            work: WorkCounts::default(),
            replan: true,
            blocked: Vec::new(),
            brake: BrakeState::default(),
            out: Vec::new(),
            is_over: false,
        };
        controller.begin();
        controller
    }

    /// Takes what happened. What follows from it, [`Controller::run`] does.
    pub fn on(&mut self, now: Timestamp, input: Input) {
        self.now = self.now.max(now);
        match input {
            Input::Asked(asked) => self.take_request(asked),
            Input::NodeHeard(node, beat) => self.on_node_heard(&node, beat),
            Input::NodeLeft(node, instance) => self.on_node_left(&node, instance),
            Input::NodeRefused(node) => self.on_node_refused(&node),
            Input::HostHeard(host, beat) => self.on_host_heard(&host, beat),
            Input::PathsReported(host, report) => self.on_paths_reported(&host, report),
            Input::HostLeft(host, instance) => self.on_host_left(&host, instance),
            Input::NodeChanged(node) => self.look_at(&node),
            Input::Answered(call, result) => self.on_answered(call, result),
            Input::Planned(made) => self.on_planned(*made),
            Input::Stored(write, stored) => self.on_stored(write, stored),
            Input::Reported(node, place, event) => self.on_reported(&node, place, *event),
            Input::Told(event) => self.state.remember(event),
            Input::Called(watch, made, status) => self.on_called(watch, made, status),
            Input::Recorded(volume, revision, record) => {
                if self.state.observe_record(volume, revision, record) {
                    self.sequence_timer.is_wanted = true;
                    self.enqueue(&Subject::Volume(volume));
                }
            }
        }
    }

    /// Does all that can be done now.
    pub fn run(&mut self, now: Timestamp) -> Vec<Effect> {
        self.now = self.now.max(now);
        self.fire_timers();
        self.end_maintenance();
        self.watch_nodes();
        self.note_calls();
        self.raise_mark();
        if !self.asked.is_empty() {
            self.admit_requests();
        }
        for _ in 0..SLICE {
            let Some(subject) = self.dirty.pop_first() else { break };
            self.reconcile(&subject);
            if self.is_over {
                break;
            }
        }
        if self.is_plan_due() && self.dirty.is_empty() && !self.is_over {
            self.prepare_plan();
            self.out.push(Effect::Plan);
        }
        let is_last = |effect: &Effect| matches!(effect, Effect::Resign(_) | Effect::Reply(..));
        let mut out = std::mem::take(&mut self.out);
        if self.is_over {
            out.retain(is_last);
        }
        out
    }

    /// Whether [`Controller::run`] has more to do at once: it stops after a while, so that others
    /// may look in between.
    pub fn has_work(&self) -> bool {
        !(self.is_over || self.asked.is_empty() && self.dirty.is_empty())
    }

    /// When [`Controller::run`] has something to do without anything happening.
    pub fn wake_at(&self) -> Timestamp {
        if self.has_work() {
            return self.now;
        }
        let timer = self.timers.first().map(|(at, _)| *at);
        let slow = self.planned_at.map_or(self.now, |at| at.after(self.plan_wait()));
        let slow = slow.max(self.store_backoff.until(self.now).unwrap_or(slow));
        let timer = timer.into_iter().chain(self.maintenance().map(|it| it.until)).min();
        let others = timer.into_iter().chain(self.calls_noted_at()).chain(self.raised_at());
        others.chain([self.watch_at]).fold(slow, Timestamp::min)
    }

    /// What should be done and cannot, as of the last plan.
    pub fn blocked(&self) -> &[Blocked] {
        &self.blocked
    }

    /// Why nothing can be done about a thing, as of the last plan.
    pub(crate) fn blocked_reasons(&self, subject: &Subject) -> impl Iterator<Item = &String> {
        // They are in the order of their subjects.
        let from = self.blocked.partition_point(|it| it.subject < *subject);
        let rest = self.blocked.get(from..).unwrap_or_default().iter();
        rest.take_while(move |it| it.subject == *subject).map(|it| &it.reason)
    }

    pub(crate) fn set_blocked(&mut self, mut blocked: Vec<Blocked>) {
        blocked.sort_by(|one, other| one.subject.cmp(&other.subject));
        self.blocked = blocked;
    }

    fn take_request(&mut self, asked: PendingRequest) {
        if self.asked.len() + self.waiting_for_write.len() < MAX_PENDING_REQUESTS {
            self.asked.push_back(asked);
        } else {
            let detail = "too many requests wait to be decided; try again soon";
            let problem = Problem::new(ProblemKind::Overloaded, detail);
            self.out.push(Effect::Reply(asked.ticket, Err(problem)));
        }
    }

    fn is_plan_due(&self) -> bool {
        self.store_backoff.until(self.now).is_none()
            && self.planning_since.is_none()
            && self.planned_at.is_none_or(|at| at.after(self.plan_wait()) <= self.now)
    }

    fn plan_wait(&self) -> Duration {
        if self.replan { self.pace.plan } else { self.pace.slow }
    }

    /// It or something near it has changed: what it needs next is to be found out.
    pub(crate) fn enqueue(&mut self, subject: &Subject) {
        // Nothing is planned about those who are called.
        self.replan |= !matches!(subject, Subject::Webhook(_));
        self.dirty.insert(subject.clone());
        let facts = &self.state.facts;
        let volume = match subject {
            Subject::Volume(volume) => Some(*volume),
            Subject::Replica(replica) => facts.replicas.get(replica).map(|it| it.spec().volume),
            Subject::Target(target) => facts.targets.get(target).map(|it| it.spec().volume),
            Subject::Snapshot(snapshot) => {
                let snapshot = facts.snapshots.get(snapshot);
                if let Some(group) = snapshot.and_then(|snapshot| snapshot.spec().group) {
                    self.dirty.insert(Subject::SnapshotGroup(group));
                }
                snapshot.map(|snapshot| snapshot.spec().volume)
            }
            _ => None,
        };
        let Some(volume) = volume else { return };
        let members = self.state.members(volume);
        self.dirty.insert(Subject::Volume(volume));
        self.dirty.extend(members.replicas.into_iter().map(Subject::Replica));
        self.dirty.extend(members.targets.into_iter().map(Subject::Target));
        self.dirty.extend(members.snapshots.into_iter().map(Subject::Snapshot));
    }

    /// Does what a thing needs next, if it can be done now.
    fn reconcile(&mut self, subject: &Subject) {
        if let Some(later) = self.store_backoff.until(self.now) {
            // What follows from it could not be written.
            return self.wake(later, subject.clone());
        }
        self.reconciling = Some(subject.clone());
        match subject {
            Subject::Pool(pool) => self.reconcile_pool(pool),
            Subject::Volume(volume) => self.reconcile_volume(*volume),
            Subject::Replica(replica) => self.reconcile_replica(*replica),
            Subject::Target(target) => self.reconcile_target(*target),
            Subject::Snapshot(snapshot) => self.reconcile_snapshot(*snapshot),
            Subject::SnapshotGroup(group) => self.reconcile_group(*group),
            Subject::Node(node) => self.reconcile_node(node),
            Subject::Host(_) | Subject::Webhook(_) => {}
        }
        self.reconciling = None;
    }

    fn fire_timers(&mut self) {
        while let Some((at, subject)) = self.timers.pop_first() {
            if at > self.now {
                self.timers.insert((at, subject));
                break;
            }
            self.enqueue(&subject);
        }
    }

    pub(crate) fn wake(&mut self, at: Timestamp, subject: Subject) {
        self.timers.insert((at, subject));
    }

    pub(crate) fn engine_object(&mut self, subject: &Subject) -> &mut EngineObject {
        self.engine_objects.entry(subject.clone()).or_default()
    }

    /// Whether a call about it may be made now; if only time is missing, it is touched then.
    pub(crate) fn is_due(&mut self, subject: &Subject) -> bool {
        let now = self.now;
        let engine_object = self.engine_object(subject);
        if engine_object.is_due(now) {
            return true;
        }
        if let (None, Some(due)) = (engine_object.call, engine_object.due()) {
            self.wake(due, subject.clone());
        }
        false
    }

    pub(crate) fn resign(&mut self, why: String) {
        if self.is_over {
            return;
        }
        self.is_over = true;
        let detail = format!("this control plane begins again: {why}; try again soon");
        let problem = Problem::new(ProblemKind::Unavailable, detail);
        let waiting = std::mem::take(&mut self.waiting).into_values().flatten();
        let mut tickets: Vec<Ticket> = waiting.map(|(ticket, _)| ticket).collect();
        tickets.extend(self.asked.drain(..).map(|asked| asked.ticket));
        tickets.extend(self.waiting_for_write.drain(..).map(|asked| asked.ticket));
        for ticket in tickets {
            self.out.push(Effect::Reply(ticket, Err(problem.clone())));
        }
        self.out.push(Effect::Resign(why));
    }

    pub(crate) fn tell(
        &mut self,
        subject: Subject,
        name: EventName,
        severity: Severity,
        message: impl Into<String>,
    ) {
        let (message, origin) = (message.into(), None);
        self.out.push(Effect::Tell(EventDraft { subject, name, severity, message, origin }));
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }
}

/// The answer to those who wait for something that goes.
fn going(subject: &Subject) -> Problem {
    Problem::new(ProblemKind::Deleting, format!("{subject} was deleted meanwhile"))
}
