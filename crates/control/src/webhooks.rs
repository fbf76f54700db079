//! Calls of webhooks: each event that is waited for, posted to the address that waits for it.
//!
//! ```text
//!   kept event ──► line of each webhook that wants it ──► post ──► taken ───► done with: noted
//!                      │ full                            │ fails, 5 times    │ in the store
//!                      └──────────► missed ◄─────────────┴───────────────────┘
//! ```
//!
//! Invariants:
//! - A webhook has one line: its events are posted in order, one at a time. A slow address holds up
//!   no other, and nobody waits for it.
//! - Only a control plane that leads calls, and only what is kept in the store. The next one goes
//!   on after the last event that the store says is done with: an event may be posted twice, and
//!   none is left out but those that are counted as missed.
//! - A log names the webhook, not its address.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::rest::WebhookCall;
use api::{TlsClient, WebhookClient};
use model::{
    CallbackUrl, Event, Problem, ProblemKind, Timestamp, Webhook, WebhookName, WebhookStatus,
};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use crate::controller::{Controller, Input};
use crate::metrics::add_one;
use crate::process_state::ProcessState;

/// How long an address may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often an event is posted before it is given up.
const TRIES: u32 = 5;
/// How long after the first failure it is posted again; it doubles.
const FIRST_WAIT: Duration = Duration::from_millis(500);
/// How many events may wait for one address: as many as are kept, of all severities.
const LINE: usize = 3000;
/// How many events nobody waits for may pass before the store is told that they are done with.
const PASSED: u64 = 250;

/// All webhooks, as they are called.
pub(crate) struct Webhooks {
    poster: WebhookClient,
    lines: Mutex<BTreeMap<WebhookName, WebhookQueue>>,
}

/// One webhook.
struct WebhookQueue {
    made: Timestamp,
    url: CallbackUrl,
    events: mpsc::Sender<Event>,
    /// The last event that was put into the line, or was not waited for.
    considered: u64,
    /// The last event that was put into the line; zero: none was.
    queued: u64,
    seen: Arc<Mutex<WebhookStatus>>,
    caller: AbortHandle,
}

impl Drop for WebhookQueue {
    fn drop(&mut self) {
        self.caller.abort();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Webhooks {
    /// Nobody is called yet; `tls`: which addresses with `https` are believed.
    pub(crate) fn new(tls: Option<TlsClient>) -> Result<Webhooks, api::CallError> {
        let poster = WebhookClient::new(tls, PATIENCE)?;
        Ok(Webhooks { poster, lines: Mutex::default() })
    }

    /// Refuses an address that can never be called from here.
    pub(crate) fn check(&self, url: &CallbackUrl) -> Result<(), Problem> {
        if self.poster.believes(url) {
            return Ok(());
        }
        let detail = "this control plane believes no server: start it with --webhook-ca and the \
                      authorities to believe, or use http";
        let problem = Problem::new(ProblemKind::InvalidArgument, detail);
        Err(Problem { field: Some("url".to_owned()), ..problem })
    }

    /// Every webhook has its line, with all kept events that it waits for and that are not done
    /// with; what waits for a webhook that is gone or calls elsewhere is let go.
    pub(crate) fn settle(&self, controller: &Controller, shared: &Arc<ProcessState>) {
        let mut lines = lock(&self.lines);
        let state = controller.state();
        lines.retain(|name, line| {
            let webhook = state.webhooks.get(name);
            webhook.is_some_and(|it| it.created_at() == line.made && it.spec().url == line.url)
        });
        let mut passed = Vec::new();
        for (name, webhook) in &state.webhooks {
            let line = lines.entry(name.clone()).or_insert_with(|| {
                let status = webhook.status.clone();
                let begins = || WebhookStatus { after: state.last_event(), ..Default::default() };
                self.open(webhook, status.unwrap_or_else(begins), shared)
            });
            let news = state.events.range(line.considered.saturating_add(1)..);
            for (number, event) in news {
                line.considered = *number;
                if webhook.spec().wants(event) {
                    match line.events.try_send(event.clone()) {
                        Ok(()) => line.queued = *number,
                        Err(_) => lock(&line.seen).miss(),
                    }
                }
            }
            if let Some(status) = line.passed(webhook.status.as_ref()) {
                passed.push(Input::Called(name.clone(), line.made, status));
            }
        }
        for input in passed {
            shared.feed(input);
        }
    }

    /// Nobody is called any more.
    pub(crate) fn end(&self) {
        lock(&self.lines).clear();
    }

    fn open(
        &self,
        webhook: &Webhook,
        status: WebhookStatus,
        shared: &Arc<ProcessState>,
    ) -> WebhookQueue {
        let (events, waiting) = mpsc::channel(LINE);
        let (made, url, considered) =
            (webhook.created_at(), webhook.spec().url.clone(), status.after);
        let seen = Arc::new(Mutex::new(status));
        let caller = WebhookSender {
            poster: self.poster.clone(),
            webhook: webhook.id().clone(),
            made,
            url: url.clone(),
            seen: Arc::clone(&seen),
            shared: Arc::clone(shared),
        };
        let caller = tokio::spawn(caller.run(waiting)).abort_handle();
        WebhookQueue { made, url, events, considered, queued: 0, seen, caller }
    }
}

impl WebhookQueue {
    /// What is to be noted because many events passed for which nobody waits.
    fn passed(&self, noted: Option<&WebhookStatus>) -> Option<WebhookStatus> {
        let mut seen = lock(&self.seen);
        let before = noted.map_or(0, |status| status.after);
        if seen.after < self.queued || self.considered.saturating_sub(before) < PASSED {
            return None;
        }
        seen.after = self.considered;
        Some(seen.clone())
    }
}

/// Whoever makes the calls of one webhook.
struct WebhookSender {
    poster: WebhookClient,
    webhook: WebhookName,
    made: Timestamp,
    url: CallbackUrl,
    seen: Arc<Mutex<WebhookStatus>>,
    shared: Arc<ProcessState>,
}

impl WebhookSender {
    async fn run(self, mut waiting: mpsc::Receiver<Event>) {
        while let Some(event) = waiting.recv().await {
            let number = event.number;
            let was_taken = self.call(event).await;
            let now = self.shared.now();
            self.report(|status| {
                if was_taken {
                    status.take(now);
                } else {
                    status.miss();
                }
                status.after = number;
            });
        }
    }

    /// Changes what is known of the calls, and tells.
    fn report(&self, change: impl FnOnce(&mut WebhookStatus)) {
        let status = {
            let mut seen = lock(&self.seen);
            change(&mut seen);
            seen.clone()
        };
        self.shared.feed(Input::Called(self.webhook.clone(), self.made, status));
    }

    /// Whether the event was taken.
    async fn call(&self, event: Event) -> bool {
        let (webhook, missed) = (self.webhook.clone(), lock(&self.seen).missed_since);
        let call = WebhookCall { webhook, missed, event };
        let mut wait = FIRST_WAIT;
        for tried in 1..=TRIES {
            let Err(error) = self.poster.post(&self.url, &call).await else { return true };
            add_one(&self.shared.metrics.webhook_failures);
            tracing::debug!(webhook = %self.webhook, %error, tried, "a webhook was not called");
            self.report(|status| status.failure = Some(error.to_string()));
            if tried < TRIES {
                tokio::time::sleep(wait).await;
                wait *= 2;
            }
        }
        false
    }
}
