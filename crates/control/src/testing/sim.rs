//! A control plane in a cluster, one effect at a time.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use model::{
    HostName, NodeName, Problem, ProblemKind, TargetState, Timestamp, VolumeId, VolumeTarget, keys,
};
use planner::Settings;
use store::contract::{Revision, Txn};

use super::{Cluster, HostAgent, HostConduct};
use crate::controller::{
    Call, CallId, CallResponse, CommitResult, Controller, Effect, Entry, EventDraft, Input,
    Intervals, PendingRequest, Request, RequestOutcome, State, Ticket,
};

/// What goes wrong with one effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The node does not get the call, or the store not the write.
    NotSent,
    /// It is done, but nobody hears of it.
    AnswerLost,
    /// It is done twice.
    Twice,
    /// The node refuses, and would again.
    Refused,
    /// The control plane crashes before it is done.
    CrashBefore,
    /// The control plane crashes after it was done.
    CrashAfter,
    /// Engines write the records that the write is about first, and the control plane hears of it
    /// before it hears that its own write is refused.
    Overtaken,
}

impl Fault {
    /// All of them.
    pub const ALL: [Fault; 7] = [
        Fault::NotSent,
        Fault::AnswerLost,
        Fault::Twice,
        Fault::Refused,
        Fault::CrashBefore,
        Fault::CrashAfter,
        Fault::Overtaken,
    ];
}

/// As many as etcd takes in a transaction, beside the one that is the guard.
const MOST_OPERATIONS: usize = 127;

/// How a node is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Its engine stops without a word.
    Stopped,
    /// It goes on to show that it is there, and does nothing else.
    Hung,
}

/// A control plane in a cluster.
pub struct Sim {
    /// The world outside.
    pub cluster: Cluster,
    /// The control plane.
    pub controller: Controller,
    /// The time.
    pub now: Timestamp,
    /// What is to be done.
    pending: VecDeque<Effect>,
    /// Which effect goes wrong, and how.
    pub fault: Option<(usize, Fault)>,
    /// Before which effect a node is lost, which, and how.
    pub loss: Option<(usize, NodeName, Loss)>,
    /// Whether the store has room for nothing.
    pub store_is_full: bool,
    /// How many effects that can go wrong there were.
    pub done: usize,
    /// How often the control plane began anew.
    pub restarts: u64,
    settings: Settings,
    last_ticket: u64,
    /// What callers were answered.
    pub answers: BTreeMap<Ticket, Result<RequestOutcome, Problem>>,
    /// When, by the clock on the wall: for benchmarks.
    pub answered: BTreeMap<Ticket, Instant>,
    /// What was told.
    pub told: Vec<EventDraft>,
    /// The longest that the control plane was at work without a break: so long others wait for it.
    pub longest_turn: Duration,
    /// Decides which of the pending effects is next; zero: the oldest.
    pub seed: u64,
    /// Machines that use volumes and have an agent, by name.
    pub hosts: BTreeMap<HostName, HostAgent>,
    /// Whether hosts write to what they can use, whenever something is done.
    pub writing: bool,
}

impl Sim {
    /// A control plane that begins with an empty store and engines that show themselves.
    pub fn new(nodes: usize) -> Sim {
        let settings = Settings {
            second_look: Duration::from_secs(20),
            half_made_after: Duration::from_mins(1),
            replace_after: Duration::from_mins(1),
            scrub_every: None,
            compare_every: None,
            ..Settings::default()
        };
        let now = Timestamp::from_millis(1_000_000_000);
        let controller =
            Controller::new(State::default(), settings.clone(), Intervals::default(), 1, now);
        let mut sim = Sim {
            cluster: Cluster::new(nodes),
            controller,
            now,
            pending: VecDeque::new(),
            fault: None,
            loss: None,
            store_is_full: false,
            done: 0,
            restarts: 0,
            settings,
            last_ticket: 0,
            answers: BTreeMap::new(),
            answered: BTreeMap::new(),
            told: Vec::new(),
            longest_turn: Duration::ZERO,
            seed: 0,
            hosts: BTreeMap::new(),
            writing: true,
        };
        sim.beat();
        sim.run();
        sim
    }

    /// A control plane that begins with what the cluster's store holds.
    pub fn over(cluster: Cluster, now: Timestamp) -> Sim {
        let mut sim = Sim { cluster, now, writing: false, ..Sim::new(0) };
        sim.restart();
        sim
    }

    /// The control plane begins anew with other settings.
    pub fn set(&mut self, change: impl FnOnce(&mut Settings)) {
        change(&mut self.settings);
        self.restart();
    }

    /// A page of volumes, as REST writes it.
    pub fn page_of_volumes(&self, limit: u32) -> String {
        let asked = api::rest::VolumeQuery { limit: Some(limit), ..Default::default() };
        let page = crate::rest::lists::volumes(&self.controller, &asked);
        page.ok().and_then(|page| serde_json::to_string(&page).ok()).unwrap_or_default()
    }

    /// Engines that are up show it.
    pub fn beat(&mut self) {
        let up = self.cluster.engines.values().filter(|engine| engine.up && !engine.cut_off);
        let beats: Vec<_> = up.map(|it| (it.name.clone(), it.heartbeat())).collect();
        // As the leader loop noted it last.
        let heartbeats = self.controller.heartbeats();
        for (name, beat) in beats {
            let told = beat.told;
            self.controller.on(self.now, Input::NodeHeard(name.clone(), beat));
            let engine = self.cluster.engines.get_mut(&name);
            if let (Some(engine), Some(mark)) = (engine, heartbeats.answer(&name, told).mark) {
                engine.told = Some(mark);
            }
        }
        self.hear_hosts();
    }

    /// Hosts show that they are there and which paths they have, and follow targets.
    fn hear_hosts(&mut self) {
        let there = self.hosts.iter_mut().filter(|(_, it)| it.conduct != HostConduct::Silent);
        for (name, host) in there {
            self.controller.on(self.now, Input::HostHeard(name.clone(), host.heartbeat()));
            let follows = host.conduct == HostConduct::Follows;
            let attached = host.attached.keys().filter(|_| follows);
            for volume in attached.copied().collect::<Vec<VolumeId>>() {
                let seen = self.controller.volume_seen(volume);
                let target = seen.and_then(|it| it.status).and_then(|status| status.target);
                let serves = |it: &VolumeTarget| it.state.is_some_and(TargetState::serves);
                if let Some(target) = target.filter(serves) {
                    host.follow(volume, &target);
                }
            }
            self.controller.on(self.now, Input::PathsReported(name.clone(), host.report()));
        }
    }

    /// The control plane starts anew from what is stored.
    pub fn restart(&mut self) {
        self.restarts += 1;
        self.pending.clear();
        let state = State::load(self.cluster.records());
        let state = state.unwrap_or_else(|error| unreachable!("{error:?}"));
        let seed = 1 + (self.restarts << 32);
        self.controller =
            Controller::new(state, self.settings.clone(), Intervals::default(), seed, self.now);
        self.cluster.news.clear();
        self.beat();
    }

    /// Somebody wants something.
    pub fn ask(&mut self, request: Request) -> Ticket {
        self.last_ticket += 1;
        let ticket = Ticket(self.last_ticket);
        self.controller
            .on(self.now, Input::Asked(PendingRequest { ticket, request, if_match: None }));
        ticket
    }

    /// Asks, and goes on until there is an answer that asking again would not change. A caller of a
    /// control plane that crashed gets no answer and asks again.
    pub fn insist(&mut self, request: &Request) -> Result<RequestOutcome, Problem> {
        for _ in 0..200 {
            let restarts = self.restarts;
            let ticket = self.ask(request.clone());
            for _ in 0..200 {
                self.run();
                if self.answers.contains_key(&ticket) || self.restarts != restarts {
                    break;
                }
                self.pass(Duration::from_millis(500));
            }
            match self.answers.remove(&ticket) {
                Some(Ok(done)) => return Ok(done),
                Some(Err(problem)) if is_final(problem.kind) => return Err(problem),
                _ => self.pass(Duration::from_millis(700)),
            }
        }
        Err(Problem::new(ProblemKind::TimedOut, format!("no answer to {request:?}")))
    }

    /// Time passes; engines go on showing that they are there.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now.after(time);
        while self.now < end {
            self.now = self.now.after(Duration::from_millis(500)).min(end);
            self.beat();
            self.run();
        }
    }

    /// Does all that is to be done at this moment.
    pub fn run(&mut self) {
        for _ in 0..100_000 {
            let began = Instant::now();
            let effects = self.controller.run(self.now);
            self.longest_turn = self.longest_turn.max(began.elapsed());
            for effect in effects {
                if effect == Effect::Plan {
                    // Nothing comes in between, as in the leader loop.
                    let made = self.controller.make_plan();
                    self.controller.on(self.now, Input::Planned(Box::new(made)));
                } else {
                    self.pending.push_back(effect);
                }
            }
            let changed = self.hear_records();
            let Some(effect) = self.next() else {
                if changed || self.controller.has_work() {
                    continue;
                }
                return;
            };
            self.act(effect);
        }
        unreachable!("the control plane does not come to rest: {:?}", self.pending);
    }

    /// Records that engines wrote, as a watch tells; whether there were some.
    fn hear_records(&mut self) -> bool {
        let news = std::mem::take(&mut self.cluster.news);
        let changed = !news.is_empty();
        for volume in news {
            let (revision, record) = self.cluster.record(volume).unzip();
            let revision = revision.unwrap_or(Revision::ZERO);
            self.controller.on(self.now, Input::Recorded(volume, revision, record));
        }
        changed
    }

    fn next(&mut self) -> Option<Effect> {
        if self.seed == 0 || self.pending.is_empty() {
            return self.pending.pop_front();
        }
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let at = usize::try_from(self.seed >> 33).unwrap_or(0) % self.pending.len();
        self.pending.remove(at)
    }

    fn act(&mut self, effect: Effect) {
        match effect {
            Effect::Reply(ticket, result) => {
                self.answers.insert(ticket, result);
                self.answered.insert(ticket, Instant::now());
            }
            Effect::Tell(draft) => self.told.push(draft),
            Effect::Plan => {}
            Effect::Resign(_) => self.restart(),
            Effect::Call(id, _, ref call) if **call == Call::List => {
                // Listings are repeated anyway; what goes wrong with them is not counted.
                self.call(effect_call(&effect), id);
            }
            Effect::Call(id, ..) => {
                let fault = self.fault_now();
                self.call_with(effect_call(&effect), id, fault);
            }
            Effect::Store(id, txn) => {
                let fault = self.fault_now();
                self.store_with(id, txn, fault);
            }
        }
    }

    fn fault_now(&mut self) -> Option<Fault> {
        if self.writing {
            self.cluster.write_all();
        }
        self.done += 1;
        if let Some((_, node, loss)) = self.loss.take_if(|(at, ..)| *at == self.done) {
            self.cluster.lose(&node, loss);
        }
        let (at, fault) = self.fault?;
        (at == self.done).then_some(fault)
    }

    fn call(&mut self, (node, call): (NodeName, Call), id: CallId) {
        let result = self.cluster.call(&node, call);
        self.controller.on(self.now, Input::Answered(id, result));
    }

    fn call_with(&mut self, (node, call): (NodeName, Call), id: CallId, fault: Option<Fault>) {
        let failed =
            |kind| -> Result<CallResponse, Problem> { Err(Problem::new(kind, "simulated")) };
        let result = match fault {
            None | Some(Fault::Overtaken) => self.cluster.call(&node, call),
            Some(Fault::NotSent) => failed(ProblemKind::NodeUnavailable),
            Some(Fault::Refused) => failed(ProblemKind::NoSpace),
            Some(Fault::AnswerLost) => {
                drop(self.cluster.call(&node, call));
                failed(ProblemKind::TimedOut)
            }
            Some(Fault::Twice) => {
                let first = self.cluster.call(&node, call.clone());
                let second = self.cluster.call(&node, call);
                first.or(second)
            }
            Some(Fault::CrashBefore) => return self.restart(),
            Some(Fault::CrashAfter) => {
                drop(self.cluster.call(&node, call));
                return self.restart();
            }
        };
        self.controller.on(self.now, Input::Answered(id, result));
    }

    fn store_with(&mut self, id: crate::controller::WriteId, txn: Txn, fault: Option<Fault>) {
        let lost = || CommitResult::Unknown("simulated".into());
        let denied =
            || CommitResult::Denied(Problem::new(ProblemKind::NoSpace, "the store is full"));
        let stored = match fault {
            None if self.store_is_full => denied(),
            None => self.store(txn),
            Some(Fault::Overtaken) => {
                for volume in txn.when.iter().filter_map(record_of).collect::<Vec<_>>() {
                    if let Some((_, record)) = self.cluster.record(volume) {
                        self.cluster.put_record(&record);
                    }
                }
                let stored = self.store(txn);
                self.hear_records();
                stored
            }
            Some(Fault::Refused) => {
                CommitResult::Denied(Problem::new(ProblemKind::Unavailable, "the store is busy"))
            }
            Some(Fault::NotSent) => lost(),
            Some(Fault::AnswerLost | Fault::Twice) => {
                drop(self.store(txn));
                lost()
            }
            Some(Fault::CrashBefore) => return self.restart(),
            Some(Fault::CrashAfter) => {
                drop(self.store(txn));
                return self.restart();
            }
        };
        self.controller.on(self.now, Input::Stored(id, stored));
    }

    fn store(&mut self, txn: Txn) -> CommitResult {
        let records: Vec<VolumeId> = txn.when.iter().filter_map(record_of).collect();
        if txn.then.len() > MOST_OPERATIONS {
            return CommitResult::Unknown("the store refuses: too many operations".into());
        }
        match self.cluster.txn(txn) {
            Some(outcome) if outcome.succeeded => CommitResult::Committed(outcome.revision),
            Some(outcome) => {
                let now = records.into_iter().map(|volume| {
                    let (revision, record) = self.cluster.record(volume).unzip();
                    (volume, revision.unwrap_or(outcome.revision), record)
                });
                CommitResult::Conflict(now.collect())
            }
            None => CommitResult::Unknown("the store refuses".into()),
        }
    }

    /// What is stored, as a control plane would read it.
    pub fn stored(&self) -> Vec<Entry> {
        let records = self.cluster.records();
        let entries = records.iter().filter_map(|found| {
            let key = String::from_utf8_lossy(&found.key);
            Entry::decode(&key, &found.value)?.ok()
        });
        entries.collect()
    }
}

fn effect_call(effect: &Effect) -> (NodeName, Call) {
    match effect {
        Effect::Call(_, node, call) => (node.clone(), (**call).clone()),
        other => unreachable!("not a call: {other:?}"),
    }
}

fn record_of(compare: &store::contract::Compare) -> Option<VolumeId> {
    let key = str::from_utf8(&compare.key).ok()?;
    let (kind, id) = keys::parse(key)?;
    (kind == "targetRecord").then(|| id.parse().ok()).flatten()
}

fn is_final(kind: ProblemKind) -> bool {
    use model::ErrorClass;
    kind.class() != ErrorClass::Retry && kind != ProblemKind::Deleting
}
