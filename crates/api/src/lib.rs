//! Contracts between processes: routes, what they carry, and who may use them.
//!
//! A [`Route`] is the one definition of a request. The server ([`ApiRouter`]), the [`Client`] and
//! the OpenAPI document ([`ApiRouter::document`]) are made from the same values, so they cannot
//! disagree.
//!
//! Invariants:
//! - Every failure is answered as `application/problem+json` with a kind from
//!   [`model::ProblemKind`], the id of the request, and where one is to blame the field.
//! - Every request has an end: headers, bodies and answers have a size and a deadline.
//! - A request may be sent again. `PUT` has ids that the caller chose; [`Applied`] says whether
//!   anything changed.
//! - A token never appears in a log, an error or a `Debug` output.
//!
//! Deliberately not here: what the requests do (engine, control), and the types of the resources
//! (model).

#![forbid(unsafe_code)]

mod body;
mod browser;
mod client;
mod document;
mod event_stream;
pub mod events;
pub mod heartbeat;
pub mod node;
mod outcome;
mod page;
mod remote;
mod request_counters;
mod request_id;
mod response;
pub mod rest;
mod route;
mod router;
mod server;
mod tls;
mod token;
mod token_review;
mod webhook_client;

pub use body::Body;
pub use client::{CallError, Client, ClientConfig};
pub use event_stream::{EventStream, StreamItem, Subscription};
pub use outcome::{Applied, Deleted, Effect, IfMatch};
pub use page::{MOST_PER_PAGE, Page, Paging};
pub use request_counters::RequestCounters;
pub use response::{Failed, FromResponse, Json, Reply, Text};
pub use route::{Method, NoBody, NoQuery, PathParams, Request, Route};
pub use router::{ApiRouter, Guard};
pub use server::{Limits, Server, StartError};
pub use tls::{TlsClient, TlsError, TlsServer};
pub use token::{Role, Token, TokenError, Tokens};
pub use token_review::{ReviewError, TokenReviewer};
pub use webhook_client::WebhookClient;
