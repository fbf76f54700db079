//! What REST and the term that leads share.
//!
//! ```text
//!   heartbeats, answers, events ──► inbox ──┐
//!   requests of users ──► inbox, a ticket ──┴─► leader loop ──write──► controller ◄──read── plan,
//!                                                                                       REST
//! ```
//!
//! Invariants:
//! - Whoever hands something in never waits for the controller: it goes into the inbox, which is
//!   held for a moment only. A heartbeat is answered from what the leader loop noted last.
//! - Only the leader loop writes; a plan and the questions of REST read side by side. While a plan
//!   is being made the loop does not write, so that what was planned for is what is there.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use api::RequestCounters;
use api::events::Log;
use api::rest::Leader;
use model::{Event, Generation, InstanceId, Problem, ProblemKind, Timestamp};
use store::contract::Store;
use tokio::sync::{Notify, Semaphore, oneshot};

use crate::controller::{
    Controller, HeartbeatAcks, Input, PendingRequest, Request, RequestOutcome, Ticket,
};
use crate::engine_clients::{EngineAuth, EngineClients};
use crate::metrics::Metrics;
use crate::webhooks::Webhooks;

/// The control plane of this process, whether it leads or not.
pub(crate) struct ProcessState {
    pub(crate) store: Arc<dyn Store>,
    /// The last events, for those who listen.
    pub(crate) events: Arc<Log<Event>>,
    /// How this process is known in the store.
    pub(crate) identity: String,
    /// Who leads, as far as is known.
    leader: Mutex<Option<String>>,
    pub(crate) callers: Mutex<EngineClients>,
    /// Who is called when something happens.
    pub(crate) callbacks: Webhooks,
    pub(crate) metrics: Metrics,
    /// What REST answered.
    pub(crate) requests: Arc<RequestCounters>,
    /// While this one leads.
    controller: RwLock<Option<Controller>>,
    inbox: Mutex<Option<Inbox>>,
    /// Something came for the term.
    wakeup: Notify,
    clock: Clock,
    /// Held by whoever tries out a change: that takes a while, and nothing is decided meanwhile.
    pub(crate) trying: Arc<Semaphore>,
}

/// The most that waits for the leader loop, of what may be refused or comes again by itself.
const MOST_INPUTS: usize = 1 << 16;

/// What came and was not taken in yet, in one time of leading.
#[derive(Default)]
struct Inbox {
    inputs: Vec<Input>,
    waiting: BTreeMap<Ticket, oneshot::Sender<Result<RequestOutcome, Problem>>>,
    last_ticket: u64,
    heartbeats: Option<HeartbeatAcks>,
}

/// Whether the loss of an input would be a loss: others are sent again, or their callers are told.
fn must_be_taken(input: &Input) -> bool {
    match input {
        Input::Asked(_)
        | Input::NodeHeard(..)
        | Input::HostHeard(..)
        | Input::PathsReported(..)
        | Input::NodeChanged(_)
        | Input::Reported(..) => false,
        Input::NodeLeft(..)
        | Input::NodeRefused(_)
        | Input::HostLeft(..)
        | Input::Planned(_)
        | Input::Answered(..)
        | Input::Stored(..)
        | Input::Told(_)
        | Input::Called(..)
        | Input::Recorded(..) => true,
    }
}

impl Inbox {
    /// Whether it was taken.
    fn push(&mut self, input: Input) -> bool {
        let fits = self.inputs.len() < MOST_INPUTS || must_be_taken(&input);
        if fits {
            self.inputs.push(input);
        }
        fits
    }
}

/// The time of day, which here never goes back and never jumps: nobody is taken for gone because a
/// clock was set.
#[derive(Clone, Copy)]
struct Clock {
    began: Instant,
    began_at: Timestamp,
}

impl Clock {
    fn new() -> Clock {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let millis = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        Clock { began: Instant::now(), began_at: Timestamp::from_millis(millis) }
    }

    fn now(self) -> Timestamp {
        self.began_at.after(self.began.elapsed())
    }
}

impl ProcessState {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        (reach, callbacks): (EngineAuth, Webhooks),
        identity: String,
        events: Arc<Log<Event>>,
    ) -> ProcessState {
        ProcessState {
            store,
            events,
            identity,
            leader: Mutex::new(None),
            callers: Mutex::new(EngineClients::new(reach)),
            callbacks,
            metrics: Metrics::default(),
            requests: Arc::default(),
            controller: RwLock::new(None),
            inbox: Mutex::new(None),
            wakeup: Notify::new(),
            clock: Clock::new(),
            trying: Arc::new(Semaphore::new(1)),
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Tells those who listen and those who want to be called of what is kept now.
    pub(crate) fn publish(&self, events: Vec<Event>) {
        for event in &events {
            self.feed(Input::Told(event.clone()));
        }
        for event in events {
            self.metrics.count_event(event.severity);
            self.events.push(|_| event);
        }
    }

    /// Those who want to be called are, if this one leads.
    pub(crate) fn settle_calls(self: &Arc<ProcessState>) {
        if let Some(controller) = self.controller().as_ref() {
            self.callbacks.settle(controller, self);
        }
    }

    /// What is known, while this one leads. Several may look at once.
    pub(crate) fn controller(&self) -> RwLockReadGuard<'_, Option<Controller>> {
        self.controller.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same, to be changed: by the leader loop, and never while a plan is being made.
    pub(crate) fn controller_mut(&self) -> RwLockWriteGuard<'_, Option<Controller>> {
        self.controller.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn inbox(&self) -> MutexGuard<'_, Option<Inbox>> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn begin(&self, controller: Controller) {
        let heartbeats = Some(controller.heartbeats());
        *self.controller_mut() = Some(controller);
        *self.inbox() = Some(Inbox { heartbeats, ..Inbox::default() });
    }

    /// The term is over; those who wait are told.
    pub(crate) fn end(&self) {
        let ended = self.inbox().take();
        self.callbacks.end();
        for waiting in ended.into_iter().flat_map(|inbox| inbox.waiting.into_values()) {
            // Whoever has gone needs no answer.
            let _ = waiting.send(Err(not_leading(None)));
        }
        *self.controller_mut() = None;
    }

    /// Hands in what happened.
    pub(crate) fn feed(&self, input: Input) {
        self.try_feed(input);
    }

    /// The same; whether it was taken.
    pub(crate) fn try_feed(&self, input: Input) -> bool {
        let is_taken = self.inbox().as_mut().is_some_and(|inbox| inbox.push(input));
        self.wakeup.notify_one();
        is_taken
    }

    /// What came since the last time.
    pub(crate) fn take_inputs(&self) -> Vec<Input> {
        self.inbox().as_mut().map(|inbox| std::mem::take(&mut inbox.inputs)).unwrap_or_default()
    }

    /// Somebody's request has ended.
    pub(crate) fn reply(&self, ticket: Ticket, result: Result<RequestOutcome, Problem>) {
        let waiting = self.inbox().as_mut().and_then(|inbox| inbox.waiting.remove(&ticket));
        if let Some(waiting) = waiting {
            // Whoever has gone needs no answer.
            let _ = waiting.send(result);
        }
    }

    /// What heartbeats are answered from now on.
    pub(crate) fn note_heartbeats(&self, heartbeats: HeartbeatAcks) {
        if let Some(inbox) = self.inbox().as_mut() {
            inbox.heartbeats = Some(heartbeats);
        }
    }

    /// What heartbeats are answered, while this one leads.
    pub(crate) fn heartbeats(&self) -> Result<HeartbeatAcks, Problem> {
        let noted = self.inbox().as_ref().and_then(|inbox| inbox.heartbeats.clone());
        noted.ok_or_else(|| self.elsewhere())
    }

    pub(crate) async fn wakeup(&self) {
        self.wakeup.notified().await;
    }

    /// Looks at what is known, while this one leads.
    pub(crate) fn read<T>(
        &self,
        look: impl FnOnce(&Controller) -> Result<T, Problem>,
    ) -> Result<T, Problem> {
        match self.controller().as_ref() {
            Some(controller) => look(controller),
            None => Err(self.elsewhere()),
        }
    }

    /// Asks for something, and waits for its end.
    pub(crate) async fn ask(
        &self,
        request: Request,
        if_match: Option<Generation>,
    ) -> Result<RequestOutcome, Problem> {
        let (answer, answered) = oneshot::channel();
        {
            let mut inbox = self.inbox();
            let Some(inbox) = inbox.as_mut() else {
                drop(inbox);
                return Err(self.elsewhere());
            };
            inbox.last_ticket += 1;
            let ticket = Ticket(inbox.last_ticket);
            if !inbox.push(Input::Asked(PendingRequest { ticket, request, if_match })) {
                let detail = "too many requests wait to be decided; try again soon";
                return Err(Problem::new(ProblemKind::Overloaded, detail));
            }
            inbox.waiting.insert(ticket, answer);
        }
        self.wakeup.notify_one();
        answered.await.unwrap_or_else(|_| Err(self.elsewhere()))
    }

    /// Who leads, as far as is known here.
    pub(crate) fn who_leads(&self) -> Leader {
        let here = self.inbox().is_some();
        let known = self.leader.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // Its own name stays noted until another is heard of.
        let name = known.filter(|name| here == (*name == self.identity));
        Leader { here, name }
    }

    pub(crate) fn note_leader(&self, name: Option<String>) {
        *self.leader.lock().unwrap_or_else(PoisonError::into_inner) = name;
    }

    fn elsewhere(&self) -> Problem {
        let leader = self.leader.lock().unwrap_or_else(PoisonError::into_inner).clone();
        not_leading(leader.filter(|leader| *leader != self.identity))
    }
}

fn not_leading(leader: Option<String>) -> Problem {
    let detail = match leader {
        Some(leader) => format!("this control plane does not lead; {leader} does: ask there"),
        None => "no control plane leads at this moment; try again soon".to_owned(),
    };
    Problem::new(ProblemKind::Unavailable, detail)
}

/// A number that is not the same twice: the seed of new ids.
pub(crate) fn seed() -> u64 {
    use std::hash::{BuildHasher as _, Hasher as _};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

/// Which run of this process it is.
pub(crate) fn instance() -> InstanceId {
    let bits = (u128::from(seed()) << 64) | u128::from(seed()) | 1;
    let uuid = uuid::Builder::from_random_bytes(bits.to_be_bytes()).into_uuid();
    // Not nil: the version is in it.
    InstanceId::new(uuid).unwrap_or_else(|_| instance())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::{Intervals, State};
    use model::{Heartbeat, NodeAddress};
    use store::testing::{ManualClock, MemoryStore};

    fn leading() -> Arc<ProcessState> {
        let store = MemoryStore::new(Arc::new(ManualClock::new()));
        let events = Arc::new(Log::new(instance(), 4.try_into().unwrap()));
        let outside = (EngineAuth::default(), Webhooks::new(None).unwrap());
        let shared = ProcessState::new(Arc::new(store), outside, "test".into(), events);
        let (settings, pace) = (planner::Settings::default(), Intervals::default());
        shared.begin(Controller::new(State::default(), settings, pace, 1, shared.now()));
        Arc::new(shared)
    }

    fn beat() -> Input {
        let address = NodeAddress {
            api: "10.0.0.1:7442".parse().unwrap(),
            data: vec!["10.0.0.1:4420".parse().unwrap()],
            nqn: model::Nqn::node(&"n1".parse().unwrap()).unwrap(),
        };
        let (instance, version) = (instance(), "0".to_owned());
        let beat = Heartbeat { instance, version, address, told: None };
        Input::NodeHeard("n1".parse().unwrap(), beat)
    }

    /// While a plan is being made the controller is held for reading: everything that comes in is
    /// taken, and everything that is asked is answered.
    #[tokio::test]
    async fn nobody_waits_for_a_plan() {
        let shared = leading();
        let (done, is_done) = std::sync::mpsc::channel();
        let planning = shared.controller();
        let others = Arc::clone(&shared);
        std::thread::spawn(move || {
            let answered = others.heartbeats().is_ok();
            others.feed(beat());
            let seen = others.read(|controller| Ok(controller.heartbeats())).is_ok();
            // An error: the test has failed already.
            let _ = done.send((answered, seen));
        });
        let waited = is_done.recv_timeout(Duration::from_secs(20));
        assert_eq!(waited.expect("somebody waits for the plan"), (true, true));
        drop(planning);
        assert_eq!(shared.take_inputs().len(), 1, "the heartbeat is taken in later");
    }
}
