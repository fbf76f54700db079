//! Leading: one term after another, from winning the lease to losing it.
//!
//! A term begins with reading all of the store and ends when the lease is lost, when a write is
//! refused because somebody else leads, or when nobody knows what became of a write: the next term
//! reads again. Whatever a former leader still has under way changes nothing: each of its writes is
//! checked against the leader's key.

use std::num::NonZeroU32;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use futures::{StreamExt as _, TryStreamExt as _};
use model::{NodeName, Problem, ProblemKind, TargetRecord, Timestamp, VolumeId, envelope, keys};
use store::contract::{
    Change, KeyValue, Keys, OpResponse as Read, Query, Revision, StoreExt as _, SystemClock, Txn,
    TxnOutcome, WatchFrom, WriteError,
};
use store::leader::{Guard, GuardedError};
use store::lease::RenewedLease;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tracing::Instrument as _;

use crate::backups::{self, BackupConfig};
use crate::controller::{
    Call, CallId, CallResponse, CommitResult, Controller, Effect, EventDraft, Input, Intervals,
    State,
};
use crate::engine_clients::Subscription;
use crate::event_store;
use crate::metrics::add_one;
use crate::process_state::{ProcessState, seed};

/// How long a leader that is silent still leads.
const LEASE: Duration = Duration::from_secs(5);
/// How long after a failure the next term is tried.
const AGAIN: Duration = Duration::from_secs(1);
/// Records read at a time.
const PAGE: NonZeroU32 = NonZeroU32::MIN.saturating_add(999);
/// How many events may wait to be kept.
const TELLINGS: usize = 4096;
/// How long to wait after something happened on a node before it is looked at: more may follow.
const GATHER: Duration = Duration::from_millis(50);

/// What the control plane is told to do.
#[derive(Clone, Debug, Default)]
pub struct ControlConfig {
    /// What operators set.
    pub settings: planner::Settings,
    /// How often things are looked at.
    pub pace: Intervals,
    /// How the store is backed up; absent: it is not.
    pub backups: Option<BackupConfig>,
}

/// Ends a time of leading however it ends: what does not lead any more, since it panicked, must not
/// take heartbeats.
struct EndOnDrop(Arc<ProcessState>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Leads whenever it can, until it is told to stop.
pub(crate) async fn run(
    shared: Arc<ProcessState>,
    policy: ControlConfig,
    mut stop: watch::Receiver<bool>,
) {
    let _ended = EndOnDrop(Arc::clone(&shared));
    while !*stop.borrow() {
        let span = tracing::info_span!("term", of = shared.identity);
        if let Err(why) = term(&shared, &policy, stop.clone()).instrument(span).await {
            tracing::warn!("leadership term ended: {why}");
        }
        shared.end();
        tokio::select! {
            () = tokio::time::sleep(AGAIN) => {}
            () = stopped(&mut stop) => {}
        }
    }
}

async fn stopped(stop: &mut watch::Receiver<bool>) {
    // An error: whoever would have said so is gone.
    let _ = stop.wait_for(|stop| *stop).await;
}

async fn term(
    shared: &Arc<ProcessState>,
    policy: &ControlConfig,
    mut stop: watch::Receiver<bool>,
) -> Result<(), String> {
    // Whoever cannot read what is stored must not keep others from leading.
    load(shared).await?;
    let clock = Arc::new(SystemClock::new());
    let granted = RenewedLease::grant(Arc::clone(&shared.store), clock, LEASE).await;
    let (lease, keeper) = granted.map_err(|error| format!("no lease: {error}"))?;
    let mut tasks = JoinSet::new();
    tasks.spawn(keeper);
    let identity = shared.identity.clone();
    let campaign =
        Guard::campaign(Arc::clone(&shared.store), keys::LEADER, identity, lease.clone());
    let guard = tokio::select! {
        won = campaign => won.map_err(|error| error.to_string())?,
        error = follow_leader(shared) => return Err(error),
        () = stopped(&mut stop) => return Ok(()),
    };
    shared.note_leader(Some(shared.identity.clone()));
    let mut keeping = JoinSet::new();
    let ended = tokio::select! {
        why = serve(shared, policy, &guard, (&mut tasks, &mut keeping)) => Err(why),
        () = lease.lost() => Err("the lease is lost".to_owned()),
        () = stopped(&mut stop) => Ok(()),
    };
    shared.end();
    // What was told is kept while this one still leads: the next one tells it.
    drop(tokio::time::timeout(AGAIN, keeping.join_next()).await);
    tasks.abort_all();
    // The key goes at once, so that the next leader need not wait for the lease to run out.
    drop(tokio::time::timeout(AGAIN, guard.resign()).await);
    ended
}

/// Reads everything, then leads; says why that ended.
async fn serve(
    shared: &Arc<ProcessState>,
    policy: &ControlConfig,
    guard: &Guard,
    (tasks, keeping): (&mut JoinSet<()>, &mut JoinSet<()>),
) -> String {
    let (state, revision) = match load(shared).await {
        Ok(loaded) => loaded,
        Err(why) => return why,
    };
    let stored_events = (state.last_event(), state.retention.clone());
    tracing::info!(records = state.count(), "leading");
    let now = shared.now();
    // What a former term had read may not have been stored.
    shared.callers.lock().unwrap_or_else(PoisonError::into_inner).forget_places();
    shared.begin(Controller::new(state, policy.settings.clone(), policy.pace, seed(), now));
    shared.settle_calls();
    let (tell, told) = mpsc::channel(TELLINGS);
    keeping.spawn(event_store::keep(Arc::clone(shared), guard.clone(), stored_events, told));
    add_one(&shared.metrics.terms);
    if let Some(backups) = policy.backups.clone() {
        tasks.spawn(backups::run(Arc::clone(shared), backups));
    }
    let (fail, mut failed) = mpsc::channel(1);
    tasks.spawn(watch_records(Arc::clone(shared), revision, fail));
    tokio::select! {
        why = lead(shared, guard, &tell, tasks) => why,
        why = failed.recv() => why.unwrap_or_default(),
    }
}

/// Notes who leads, and each who does after that; says why that ended.
async fn follow_leader(shared: &ProcessState) -> String {
    let name = |found: &KeyValue| String::from_utf8_lossy(&found.value).into_owned();
    let page = match shared.store.range(Query::key(keys::LEADER)).await {
        Ok(page) => page,
        Err(error) => return error.to_string(),
    };
    shared.note_leader(page.kvs.first().map(name));
    let key = Keys::one(keys::LEADER);
    let mut news = shared.store.watch(WatchFrom::new(key, page.revision.next()));
    loop {
        match news.next().await {
            Some(Ok(changes)) => {
                for change in &changes.changes {
                    shared.note_leader(match change {
                        Change::Put { now, .. } => Some(name(now)),
                        Change::Deleted { .. } => None,
                    });
                }
            }
            Some(Err(error)) => return error.to_string(),
            None => return "the watch has ended".to_owned(),
        }
    }
}

/// Everything that is stored, at one revision.
async fn load(shared: &ProcessState) -> Result<(State, Revision), String> {
    let mut pages = Box::pin(shared.store.pages(Query::prefix(keys::ROOT), PAGE));
    let mut records = Vec::new();
    let mut revision = None;
    while let Some(page) = pages.try_next().await.map_err(|error| error.to_string())? {
        revision.get_or_insert(page.revision);
        records.extend(page.kvs);
    }
    let state = State::load(records).map_err(|error| format!("{error}: {}", error.source))?;
    Ok((state, revision.unwrap_or(Revision::ZERO)))
}

/// Does what the core says, until it resigns; says why.
async fn lead(
    shared: &Arc<ProcessState>,
    guard: &Guard,
    tell: &mpsc::Sender<EventDraft>,
    tasks: &mut JoinSet<()>,
) -> String {
    loop {
        let Some((effects, wake)) = turn(shared) else { return "the term is over".into() };
        let mut plans = false;
        for effect in effects {
            match effect {
                Effect::Store(id, txn) => {
                    let (shared, guard) = (Arc::clone(shared), guard.clone());
                    tasks.spawn(async move {
                        let began = Instant::now();
                        let stored = write(&guard, txn).await;
                        shared.metrics.count_write(&stored, began.elapsed());
                        shared.feed(Input::Stored(id, stored));
                    });
                }
                Effect::Call(id, node, call) => call_node(shared, tasks, (id, node), *call),
                Effect::Reply(ticket, result) => shared.reply(ticket, result),
                Effect::Tell(draft) => {
                    // What is lost is what people would read, and nothing else.
                    if let Err(error) = tell.try_send(draft) {
                        add_one(&shared.metrics.events_lost);
                        tracing::warn!(%error, "event dropped: too many wait to be stored");
                    }
                }
                Effect::Plan => plans = true,
                Effect::Resign(why) => return why,
            }
        }
        while tasks.try_join_next().is_some() {}
        if plans {
            if let Err(why) = plan(shared).await {
                return why;
            }
            continue;
        }
        let wait = wake.since(shared.now());
        tokio::select! {
            () = shared.wakeup() => {}
            () = tokio::time::sleep(wait.max(Duration::from_millis(1))) => {}
        }
    }
}

/// Takes in what came, and does what can be done now; what is to be done outside, and when to look
/// again.
fn turn(shared: &Arc<ProcessState>) -> Option<(Vec<Effect>, Timestamp)> {
    let inputs = shared.take_inputs();
    let tells = inputs.iter().any(|input| matches!(input, Input::Told(_)));
    let now = shared.now();
    let turned = {
        let mut controller = shared.controller_mut();
        let controller = controller.as_mut()?;
        for input in inputs {
            controller.on(now, input);
        }
        let effects = controller.run(now);
        shared.note_heartbeats(controller.heartbeats());
        (effects, controller.wake_at())
    };
    if tells {
        shared.settle_calls();
    }
    Some(turned)
}

/// Makes a plan on a thread of its own, beside everything that only reads or hands in, and takes
/// it in before anything else.
async fn plan(shared: &Arc<ProcessState>) -> Result<(), String> {
    let planner = Arc::clone(shared);
    let planning = tokio::task::spawn_blocking(move || {
        planner.controller().as_ref().map(Controller::make_plan)
    });
    let made = planning.await.map_err(|error| format!("no plan could be made: {error}"))?;
    let now = shared.now();
    if let (Some(made), Some(controller)) = (made, shared.controller_mut().as_mut()) {
        controller.on(now, Input::Planned(Box::new(made)));
    }
    Ok(())
}

/// Writes under the guard. What was not sent is sent again for as long as the lease lasts.
async fn write(guard: &Guard, txn: Txn) -> CommitResult {
    loop {
        match guard.txn(txn.clone()).await {
            Ok(outcome) if outcome.succeeded => return CommitResult::Committed(outcome.revision),
            Ok(outcome) => return CommitResult::Conflict(records_of(&txn, outcome)),
            Err(GuardedError::Write(WriteError::NotSent { .. })) if !guard.lease().is_lost() => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Err(GuardedError::Write(error)) if was_refused(&error) => {
                let full = matches!(error, WriteError::Full { .. });
                let kind = if full { ProblemKind::NoSpace } else { ProblemKind::Unavailable };
                return CommitResult::Denied(Problem::new(kind, error.to_string()));
            }
            Err(error) => return CommitResult::Unknown(error.to_string()),
        }
    }
}

/// Whether the store said no: then it has written nothing, and is still ours.
fn was_refused(error: &WriteError) -> bool {
    matches!(error, WriteError::Full { .. } | WriteError::Refused { .. })
}

/// What the store answered about records of volumes, instead of writing.
fn records_of(txn: &Txn, outcome: TxnOutcome) -> Vec<(VolumeId, Revision, Option<TargetRecord>)> {
    let asked = txn.otherwise.iter().filter_map(|op| match op {
        store::contract::Op::Get(query) => match &query.keys {
            Keys::One(key) => volume_of(key),
            _ => None,
        },
        _ => None,
    });
    let revision = outcome.revision;
    let answers = asked.zip(outcome.answers).filter_map(|(volume, answer)| match answer {
        Read::Read(page) => match page.kvs.into_iter().next() {
            Some(found) => {
                let record = envelope::decode(&found.value).ok()?;
                Some((volume, found.changed, Some(record)))
            }
            None => Some((volume, revision, None)),
        },
        _ => None,
    });
    answers.collect()
}

fn volume_of(key: &[u8]) -> Option<VolumeId> {
    let (kind, id) = keys::parse(str::from_utf8(key).ok()?)?;
    (kind == <TargetRecord as envelope::Versioned>::KIND).then(|| id.parse().ok()).flatten()
}

fn call_node(
    shared: &Arc<ProcessState>,
    tasks: &mut JoinSet<()>,
    (id, node): (CallId, NodeName),
    call: Call,
) {
    let address = shared.read(|controller| Ok(controller.address_of(&node))).ok().flatten();
    let caller = match address {
        Some(address) => {
            let mut callers = shared.callers.lock().unwrap_or_else(PoisonError::into_inner);
            callers.get(&node, address)
        }
        None => Err(Problem::new(ProblemKind::NodeUnavailable, "nobody knows the node")),
    };
    let shared = Arc::clone(shared);
    let span = tracing::info_span!("order", call = id.0, %node);
    let ordered = async move {
        let began = Instant::now();
        let mut subscription = None;
        let result = match caller {
            Ok(caller) => {
                let is_listing = call == Call::List;
                let result = caller.call(call).await;
                let is_listed = is_listing && matches!(result, Ok(CallResponse::Listing(_)));
                subscription = if is_listed { caller.subscribe() } else { None };
                result
            }
            Err(problem) => Err(problem),
        };
        shared.metrics.count_order(result.is_ok(), began.elapsed());
        shared.feed(Input::Answered(id, result));
        if let Some(subscription) = subscription {
            // Within this task, so that it ends with the term.
            listen(&shared, node, subscription).await;
        }
    };
    tasks.spawn(ordered.instrument(span));
}

/// Reads the events of a node: those that matter are stored, and the node is looked at soon after
/// one. Ends when it does not answer any more, or when what it says cannot be taken in: whoever
/// listens next begins there.
async fn listen(shared: &ProcessState, node: NodeName, subscription: Subscription) {
    let caller = subscription.engine();
    let stored = || {
        let found = |it: &Controller| Ok(it.state().last_report(&node).map(str::to_owned));
        shared.read(found).ok().flatten()
    };
    // Whatever the engine still keeps is new to a control plane that never listened to it.
    let place = caller.place().or_else(stored).unwrap_or_else(|| "start".to_owned());
    if let Ok(mut events) = caller.remote().events(Some(place)).await {
        let mut look_at: Option<tokio::time::Instant> = None;
        loop {
            let due = look_at.unwrap_or_else(tokio::time::Instant::now);
            let news = tokio::select! {
                news = events.next() => news,
                () = tokio::time::sleep_until(due), if look_at.is_some() => {
                    shared.feed(Input::NodeChanged(node.clone()));
                    look_at = None;
                    continue;
                }
            };
            let Ok(Some(news)) = news else { break };
            look_at.get_or_insert_with(|| tokio::time::Instant::now() + GATHER);
            if let (api::StreamItem::Event(event), Some(place)) = (news, events.last()) {
                if crate::controller::is_stored(&event) {
                    let event = Box::new(event);
                    let reported = Input::Reported(node.clone(), place.to_owned(), event);
                    if !shared.try_feed(reported) {
                        break;
                    }
                }
                caller.reach(place);
            }
        }
        if look_at.is_some() {
            shared.feed(Input::NodeChanged(node.clone()));
        }
    }
    let caller = caller.clone();
    drop(subscription);
    // One that restarts is heard of soon, and lists what it has again.
    if caller.is_refused().await {
        shared.feed(Input::NodeRefused(node));
    }
}

/// Hands in who owns each volume, as engines write it.
async fn watch_records(shared: Arc<ProcessState>, since: Revision, fail: mpsc::Sender<String>) {
    let all = Keys::prefix(keys::all::<TargetRecord>());
    let mut news = shared.store.watch(WatchFrom::new(all, since.next()));
    let why = loop {
        let changes = match news.next().await {
            Some(Ok(changes)) => changes.changes,
            Some(Err(error)) => break error.to_string(),
            None => break "the watch has ended".to_owned(),
        };
        for change in changes {
            let Some(volume) = volume_of(change.key()) else { continue };
            let record = match &change {
                Change::Put { now, .. } => match envelope::decode(&now.value) {
                    Ok(record) => Some(record),
                    Err(error) => {
                        tracing::error!(%volume, %error, "the record of a volume is unreadable");
                        continue;
                    }
                },
                Change::Deleted { .. } => None,
            };
            shared.feed(Input::Recorded(volume, change.at(), record));
        }
    };
    // Nobody listens any more if the term is over.
    let _ = fail.send(why).await;
}
