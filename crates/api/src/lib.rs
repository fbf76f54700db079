//! Contracts between processes: routes, what they carry, and who may use them.
//!
//! A [`Route`] is the one definition of a request. The server ([`Api`]), the [`Client`] and the
//! OpenAPI document ([`Api::document`]) are made from the same values, so they cannot disagree.
//!
//! Invariants:
//! - Every failure is answered as `application/problem+json` with a kind from [`model::Kind`], the
//!   id of the request, and where one is to blame the field.
//! - Every request has an end: headers, bodies and answers have a size and a deadline.
//! - A request may be sent again. `PUT` has ids that the caller chose; [`Ensured`] says whether
//!   anything changed.
//! - A token never appears in a log, an error or a `Debug` output.
//!
//! Deliberately not here: what the requests do (engine, control), and the types of the resources
//! (model).

#![forbid(unsafe_code)]

mod answer;
mod body;
mod client;
mod document;
mod ensured;
pub mod events;
pub mod heartbeat;
pub mod node;
mod page;
mod post;
mod remote;
mod request_id;
pub mod rest;
mod route;
mod secure;
mod server;
mod table;
mod token;
mod watch;

pub use answer::{Failed, Json, Received, Reply, Text};
pub use body::Body;
pub use client::{CallError, Client, ClientConfig};
pub use ensured::{Effect, Ensured, Gone, IfMatch};
pub use page::{MOST_PER_PAGE, Page, Paging};
pub use post::Poster;
pub use route::{At, Method, NoBody, NoQuery, Request, Route};
pub use secure::{TlsClient, TlsError, TlsServer};
pub use server::{Limits, Server, StartError};
pub use table::{Api, Guard};
pub use token::{Role, Token, TokenError, Tokens};
pub use watch::{Seen, Subscription, Watch};
