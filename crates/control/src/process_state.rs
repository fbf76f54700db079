//! What REST and the term that leads share.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use api::events::Log;
use api::rest::Leader;
use model::{Event, Generation, InstanceId, Problem, ProblemKind, Timestamp};
use store::contract::Store;
use tokio::sync::{Notify, oneshot};

use crate::controller::{Controller, Input, PendingRequest, Request, RequestOutcome, Ticket};
use crate::engine_clients::{EngineAuth, EngineClients};
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
    term: Mutex<Option<Term>>,
    /// Something came for the term.
    wakeup: Notify,
    clock: Clock,
}

/// One time of leading.
pub(crate) struct Term {
    pub(crate) controller: Controller,
    pub(crate) waiting: BTreeMap<Ticket, oneshot::Sender<Result<RequestOutcome, Problem>>>,
    last_ticket: u64,
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
            term: Mutex::new(None),
            wakeup: Notify::new(),
            clock: Clock::new(),
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Tells those who listen and those who want to be called of what is kept now.
    pub(crate) fn publish(self: &Arc<ProcessState>, events: Vec<Event>) {
        for event in &events {
            self.feed(Input::Told(event.clone()));
        }
        self.settle_calls();
        for event in events {
            self.events.push(|_| event);
        }
    }

    /// Those who want to be called are, if this one leads.
    pub(crate) fn settle_calls(self: &Arc<ProcessState>) {
        if let Some(term) = self.term().as_mut() {
            self.callbacks.settle(&mut term.controller, self);
        }
    }

    /// The term, while it lasts.
    pub(crate) fn term(&self) -> MutexGuard<'_, Option<Term>> {
        self.term.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn begin(&self, controller: Controller) {
        *self.term() = Some(Term { controller, waiting: BTreeMap::new(), last_ticket: 0 });
    }

    /// The term is over; those who wait are told.
    pub(crate) fn end(&self) {
        let ended = self.term().take();
        self.callbacks.end();
        let Some(term) = ended else { return };
        for waiting in term.waiting.into_values() {
            // Whoever has gone needs no answer.
            let _ = waiting.send(Err(not_leading(None)));
        }
    }

    /// Hands in what happened.
    pub(crate) fn feed(&self, input: Input) {
        let now = self.now();
        if let Some(term) = self.term().as_mut() {
            term.controller.on(now, input);
        }
        self.wakeup.notify_one();
    }

    pub(crate) async fn wakeup(&self) {
        self.wakeup.notified().await;
    }

    /// Looks at what is known, while this one leads.
    pub(crate) fn read<T>(
        &self,
        look: impl FnOnce(&mut Controller) -> Result<T, Problem>,
    ) -> Result<T, Problem> {
        match self.term().as_mut() {
            Some(term) => look(&mut term.controller),
            None => Err(self.elsewhere()),
        }
    }

    /// Asks for something, and waits for its end.
    pub(crate) async fn ask(
        &self,
        request: Request,
        if_match: Option<Generation>,
    ) -> Result<RequestOutcome, Problem> {
        let now = self.now();
        let (answer, answered) = oneshot::channel();
        {
            let mut term = self.term();
            let Some(term) = term.as_mut() else {
                drop(term);
                return Err(self.elsewhere());
            };
            term.last_ticket += 1;
            let ticket = Ticket(term.last_ticket);
            term.waiting.insert(ticket, answer);
            term.controller.on(now, Input::Asked(PendingRequest { ticket, request, if_match }));
        }
        self.wakeup.notify_one();
        answered.await.unwrap_or_else(|_| Err(self.elsewhere()))
    }

    /// Who leads, as far as is known here.
    pub(crate) fn who_leads(&self) -> Leader {
        let here = self.term().is_some();
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
