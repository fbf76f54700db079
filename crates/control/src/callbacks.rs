//! Calls of watches: each event that is waited for, posted to the address that waits for it.
//!
//! ```text
//!   event ──► line of each watch that wants it ──► post ──► taken
//!                 │ full                            │ fails, 5 times
//!                 └──────────► missed ◄─────────────┘
//! ```
//!
//! Invariants:
//! - A watch has one line: its events are posted in order, one at a time. A slow address holds up
//!   no other, and nobody waits for it.
//! - Only a control plane that leads calls. What was under way when a term ended is not called
//!   again: who must know reads `/v1/events/kept`.
//! - A log names the watch, not its address.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::rest::WatchCall;
use api::{Poster, TlsClient};
use model::{CallbackUrl, Event, Kind, Problem, Timestamp, Watch, WatchName, WatchStatus};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

/// How long an address may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often an event is posted before it is given up.
const TRIES: u32 = 5;
/// How long after the first failure it is posted again; it doubles.
const FIRST_WAIT: Duration = Duration::from_millis(500);
/// How many events may wait for one address.
const LINE: usize = 256;

/// All watches, as they are called.
pub(crate) struct Callbacks {
    poster: Poster,
    lines: Mutex<BTreeMap<WatchName, Line>>,
}

/// One watch.
struct Line {
    url: CallbackUrl,
    events: mpsc::Sender<Event>,
    seen: Arc<Mutex<Outcome>>,
    caller: AbortHandle,
}

/// What became of its calls.
#[derive(Default)]
struct Outcome {
    status: WatchStatus,
    /// Given up since the last one that was taken.
    missed: u64,
}

impl Outcome {
    fn miss(&mut self) {
        self.missed = self.missed.saturating_add(1);
        self.status.missed = self.status.missed.saturating_add(1);
    }

    fn take(&mut self, now: Timestamp) {
        self.missed = 0;
        self.status.delivered = self.status.delivered.saturating_add(1);
        (self.status.delivered_at, self.status.failure) = (Some(now), None);
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.caller.abort();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Callbacks {
    /// Nobody is called yet; `tls`: which addresses with `https` are believed.
    pub(crate) fn new(tls: Option<TlsClient>) -> Result<Callbacks, api::CallError> {
        let poster = Poster::new(tls, PATIENCE)?;
        Ok(Callbacks { poster, lines: Mutex::default() })
    }

    /// Refuses an address that can never be called from here.
    pub(crate) fn check(&self, url: &CallbackUrl) -> Result<(), Problem> {
        if self.poster.believes(url) {
            return Ok(());
        }
        let detail = "this control plane believes no server: start it with --watch-ca and the \
                      authorities to believe, or use http";
        let problem = Problem::new(Kind::InvalidArgument, detail);
        Err(Problem { field: Some("url".to_owned()), ..problem })
    }

    /// Lets all go whose watch is gone or calls elsewhere.
    pub(crate) fn settle(&self, watches: &BTreeMap<WatchName, Watch>) {
        lock(&self.lines).retain(|name, line| {
            watches.get(name).is_some_and(|watch| watch.spec().url == line.url)
        });
    }

    /// Puts an event into the lines of those who want it.
    pub(crate) fn tell(
        &self,
        event: &Event,
        watches: &BTreeMap<WatchName, Watch>,
        now: impl Fn() -> Timestamp + Clone + Send + Sync + 'static,
    ) {
        self.settle(watches);
        let mut lines = lock(&self.lines);
        for (name, watch) in watches.iter().filter(|(_, watch)| watch.spec().wants(event)) {
            let line = lines
                .entry(name.clone())
                .or_insert_with(|| self.open(name, &watch.spec().url, now.clone()));
            if line.events.try_send(event.clone()).is_err() {
                lock(&line.seen).miss();
            }
        }
    }

    /// What became of the calls of a watch.
    pub(crate) fn status(&self, name: &WatchName) -> WatchStatus {
        let lines = lock(&self.lines);
        lines.get(name).map(|line| lock(&line.seen).status.clone()).unwrap_or_default()
    }

    /// Nobody is called any more.
    pub(crate) fn end(&self) {
        lock(&self.lines).clear();
    }

    fn open(
        &self,
        name: &WatchName,
        url: &CallbackUrl,
        now: impl Fn() -> Timestamp + Send + Sync + 'static,
    ) -> Line {
        let (events, waiting) = mpsc::channel(LINE);
        let seen = Arc::<Mutex<Outcome>>::default();
        let caller = Caller {
            poster: self.poster.clone(),
            watch: name.clone(),
            url: url.clone(),
            seen: Arc::clone(&seen),
        };
        let caller = tokio::spawn(caller.run(waiting, now)).abort_handle();
        Line { url: url.clone(), events, seen, caller }
    }
}

/// Whoever makes the calls of one watch.
struct Caller {
    poster: Poster,
    watch: WatchName,
    url: CallbackUrl,
    seen: Arc<Mutex<Outcome>>,
}

impl Caller {
    async fn run(self, mut waiting: mpsc::Receiver<Event>, now: impl Fn() -> Timestamp + Send) {
        while let Some(event) = waiting.recv().await {
            if self.call(event).await {
                lock(&self.seen).take(now());
            } else {
                lock(&self.seen).miss();
            }
        }
    }

    /// Whether the event was taken.
    async fn call(&self, event: Event) -> bool {
        let (watch, missed) = (self.watch.clone(), lock(&self.seen).missed);
        let call = WatchCall { watch, missed, event };
        let mut wait = FIRST_WAIT;
        for tried in 1..=TRIES {
            let Err(error) = self.poster.post(&self.url, &call).await else { return true };
            tracing::debug!(watch = %self.watch, %error, tried, "a watch was not called");
            lock(&self.seen).status.failure = Some(error.to_string());
            if tried < TRIES {
                tokio::time::sleep(wait).await;
                wait *= 2;
            }
        }
        false
    }
}
