//! JSON posted to an address that an operator chose.
//!
//! Invariants: of the answer nothing but its status is read; a redirect is a failure and is not
//! followed; no token and no header that a caller chose is sent; what is said about a failure names
//! the host and never the rest of the address.

use std::time::Duration;

use http::header::{CONTENT_TYPE, USER_AGENT};
use http::{Method, Request, Uri};
use http_body_util::Full;
use model::{CallbackUrl, Problem, ProblemKind};
use serde::Serialize;

use crate::client::{Connections, connections, unanswered};
use crate::{CallError, TlsClient};

/// Posts to any address.
#[derive(Clone, Debug)]
pub struct WebhookClient {
    connections: Connections,
    patience: Duration,
    is_plain: bool,
}

impl WebhookClient {
    /// One that believes these, or nobody, and waits so long for each answer.
    pub fn new(tls: Option<TlsClient>, patience: Duration) -> Result<WebhookClient, CallError> {
        let is_plain = tls.is_none();
        Ok(WebhookClient { connections: connections(tls, patience)?, patience, is_plain })
    }

    /// Whether it can call this address at all.
    pub fn believes(&self, url: &CallbackUrl) -> bool {
        !(self.is_plain && url.as_str().starts_with("https:"))
    }

    /// Posts once; taken is any status from 200 to 299.
    pub async fn post(&self, url: &CallbackUrl, body: &impl Serialize) -> Result<(), CallError> {
        let unsendable =
            |error: &dyn std::fmt::Display| CallError::Unsendable { reason: error.to_string() };
        let uri: Uri = url.as_str().parse().map_err(|error| unsendable(&error))?;
        let server = uri.authority().cloned().ok_or_else(|| unsendable(&"it names no host"))?;
        let body = serde_json::to_vec(body).map_err(|error| unsendable(&error))?;
        let request = Request::builder()
            .method(Method::POST)
            .uri(uri)
            .header(CONTENT_TYPE, "application/json")
            .header(USER_AGENT, concat!("holdfast/", env!("CARGO_PKG_VERSION")))
            .body(Full::new(body.into()))
            .map_err(|error| unsendable(&error))?;
        let asked = tokio::time::timeout(self.patience, self.connections.request(request));
        let after = self.patience;
        let answer = asked.await.map_err(|_| CallError::TimedOut { after })?;
        let answer = answer.map_err(|error| unanswered(error, server.clone(), self.is_plain))?;
        let status = answer.status();
        if status.is_success() {
            return Ok(());
        }
        let why = if status.is_redirection() { "; redirects are not followed" } else { "" };
        let detail = format!("{server} answered {}{why}", status.as_u16());
        Err(CallError::Refused(Problem::new(ProblemKind::of_status(status.as_u16()), detail)))
    }
}
