//! Webhooks: addresses that are called when something happens.
//!
//! How far the calls of a webhook went is stored with it, a moment later: after a change of leader
//! some events are posted again, and none is left out.
//!
//! Deliberately not here: the calls ([`crate::webhooks`]).

use std::time::Duration;

use model::{
    EventName, Problem, ProblemKind, Severity, Subject, Timestamp, Webhook, WebhookChange,
    WebhookName, WebhookSpec, WebhookStatus, keys,
};

use super::admission::{AdmissionContext, expect};
use super::batch::Batch;
use super::{Controller, Entry, PendingRequest, RequestOutcome};

/// How many webhooks there may be: each may have a call under way.
pub(crate) const MOST_WEBHOOKS: usize = 64;

/// The least time between two writes of how far calls went.
const NOTE_EVERY: Duration = Duration::from_millis(500);

impl Controller {
    /// Calls were made, or were in vain.
    pub(crate) fn on_called(&mut self, name: WebhookName, made: Timestamp, status: WebhookStatus) {
        let Some(webhook) = self.state.webhooks.get_mut(&name) else { return };
        if webhook.created_at() != made {
            return;
        }
        let went_on = |it: &WebhookStatus| (it.after, it.delivered, it.missed);
        if webhook.status.as_ref().map(went_on) != Some(went_on(&status)) {
            self.unnoted.insert(name);
        }
        webhook.status = Some(status);
    }

    /// When the store is to be told how far calls went.
    pub(crate) fn calls_noted_at(&self) -> Option<Timestamp> {
        // Those that are due now and still here are locked: the store's answer wakes.
        (!self.unnoted.is_empty() && self.note_at > self.now).then_some(self.note_at)
    }

    /// Tells the store how far calls went, of all webhooks at once.
    pub(crate) fn note_calls(&mut self) {
        if self.unnoted.is_empty() || self.note_at > self.now {
            return;
        }
        let mut batch = Batch::new();
        for name in std::mem::take(&mut self.unnoted) {
            let Some(webhook) = self.state.webhooks.get(&name) else { continue };
            if self.is_locked(&keys::of::<Webhook>(&name)) {
                self.unnoted.insert(name);
            } else {
                batch = batch.put(webhook.clone());
            }
        }
        if !batch.is_empty() {
            self.note_at = self.now.after(NOTE_EVERY);
            self.try_commit(batch);
        }
    }

    pub(crate) fn decide_webhook(
        &self,
        context: &mut AdmissionContext<'_, '_>,
        asked: &PendingRequest,
        name: &WebhookName,
        spec: &WebhookSpec,
    ) -> Result<Batch, Problem> {
        if let Some(have) = self.state.webhooks.get(name) {
            have.again(spec)?;
            return Ok(Batch::new().reply(asked.ticket, RequestOutcome::Unchanged));
        }
        if self.state.webhooks.len() + self.pending_webhooks() + context.webhooks >= MOST_WEBHOOKS {
            let detail = format!(
                "there are {MOST_WEBHOOKS} webhooks; delete one, or let one address hear of \
                 more things"
            );
            return Err(Problem::new(ProblemKind::CapacityLimit, detail));
        }
        context.webhooks += 1;
        let mut webhook = Webhook::new(name.clone(), spec.clone(), self.now)?;
        webhook.made()?;
        let after = self.state.last_event();
        webhook.status = Some(WebhookStatus { after, ..WebhookStatus::default() });
        let batch = Batch::new().put(webhook).reply(asked.ticket, RequestOutcome::Created);
        Ok(told(batch, name, EventName::Created, "it is called from now on"))
    }

    /// How many are being stored.
    fn pending_webhooks(&self) -> usize {
        let puts = self.writes.values().flat_map(Batch::puts);
        let is_new = |entry: &&Entry| match entry {
            Entry::Webhook(webhook) => !self.state.webhooks.contains_key(webhook.id()),
            _ => false,
        };
        puts.filter(is_new).count()
    }

    pub(crate) fn decide_change_webhook(
        &self,
        asked: &PendingRequest,
        name: &WebhookName,
        change: &WebhookChange,
    ) -> Result<Batch, Problem> {
        let webhook = self.known::<WebhookSpec>(name)?;
        expect(webhook, asked)?;
        let mut webhook = webhook.clone();
        let before = webhook.spec().clone();
        webhook.change(change.clone(), self.now)?;
        if *webhook.spec() == before {
            return Ok(Batch::new().reply(asked.ticket, RequestOutcome::Unchanged));
        }
        let batch = Batch::new().put(webhook).reply(asked.ticket, RequestOutcome::Changed);
        Ok(told(batch, name, EventName::Changed, "its filter or its address was changed"))
    }

    pub(crate) fn decide_delete_webhook(
        &self,
        asked: &PendingRequest,
        name: &WebhookName,
    ) -> Result<Batch, Problem> {
        let Some(webhook) = self.state.webhooks.get(name) else {
            return Ok(Batch::new().reply(asked.ticket, RequestOutcome::Unchanged));
        };
        expect(webhook, asked)?;
        let batch = Batch::new().drop(webhook.clone()).reply(asked.ticket, RequestOutcome::Gone);
        Ok(told(batch, name, EventName::Deleted, "it is called no more"))
    }
}

/// The event names the webhook and not its address, which may be nobody else's business.
fn told(batch: Batch, name: &WebhookName, event: EventName, message: &str) -> Batch {
    batch.tell(Subject::Webhook(name.clone()), event, Severity::Info, message)
}
