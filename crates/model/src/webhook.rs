//! A request to be called when something happens: an address to which events are posted.
//!
//! Deliberately not here: the calls (control). How often they are tried, and what becomes of events
//! that nobody takes, is said in `docs/rest.md`.

use alloc::string::String;

use serde::{Deserialize, Serialize};

use crate::{
    CallbackUrl, Event, Resource, Severity, Spec, Subject, Timestamp, ValidationError, WebhookName,
};

/// A webhook. It exists as soon as it is stored.
pub type Webhook = Resource<WebhookSpec>;

/// What is wanted of a webhook.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WebhookSpec {
    /// Where each event is posted to.
    pub url: CallbackUrl,
    /// Only events about this; absent: about anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about: Option<Subject>,
    /// Only events that are at least so serious; absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub severity: Option<Severity>,
}

/// What can be done to a webhook.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "camelCase", deny_unknown_fields)]
pub enum WebhookChange {
    /// Filter by something else, or call elsewhere.
    Modify {
        /// All of the spec.
        spec: WebhookSpec,
    },
}

/// What became of the calls of a webhook. It is stored, so that the next control plane goes on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WebhookStatus {
    /// How many events were taken.
    pub delivered: u64,
    /// How many were given up: nobody took them, or more came than could wait.
    pub missed: u64,
    /// How many of these since one was last taken.
    #[serde(default)]
    pub missed_since: u64,
    /// The last event that is done with: taken, given up, or not waited for.
    #[serde(default)]
    pub after: u64,
    /// When one was last taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivered_at: Option<Timestamp>,
    /// Why the last call failed; absent: it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

impl WebhookStatus {
    /// An event was taken.
    pub fn take(&mut self, now: Timestamp) {
        self.delivered = self.delivered.saturating_add(1);
        self.missed_since = 0;
        (self.delivered_at, self.failure) = (Some(now), None);
    }

    /// An event was given up.
    pub fn miss(&mut self) {
        self.missed = self.missed.saturating_add(1);
        self.missed_since = self.missed_since.saturating_add(1);
    }
}

impl WebhookSpec {
    /// Whether an event is one that is waited for.
    pub fn wants(&self, event: &Event) -> bool {
        self.about.as_ref().is_none_or(|about| *about == event.subject)
            && self.severity.is_none_or(|least| event.severity >= least)
    }
}

impl Spec for WebhookSpec {
    const KIND: &'static str = "watch";
    type Id = WebhookName;
    type Status = WebhookStatus;
    type Change = WebhookChange;

    fn validate(&self) -> Result<(), ValidationError> {
        Ok(())
    }

    fn check(&self, _: &WebhookChange) -> Result<(), ValidationError> {
        Ok(())
    }

    fn apply(&mut self, change: &WebhookChange) {
        let WebhookChange::Modify { spec } = change.clone();
        *self = spec;
    }
}
