//! The control plane as a library: takes requests over REST, and turns them into orders to engines.
//!
//! Invariants:
//! - It serves only what the store can back: when the store cannot be reached, health says so with
//!   503 and the reason, and nothing is answered from memory.
//! - Every failure is answered as `application/problem+json` with a kind from
//!   [`model::ProblemKind`].
//!
//! Deliberately not here: the store itself, how it is reached (the binary hands in a
//! [`Store`](store::contract::Store)), and what was typed on the command line.

#![forbid(unsafe_code)]

mod backups;
pub mod controller;
mod engine_clients;
mod event_store;
mod health;
mod leader;
mod metrics;
mod process_state;
mod rest;
mod service;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod webhooks;

pub use backups::BackupConfig;
pub use engine_clients::EngineAuth;
pub use leader::ControlConfig;
pub use service::{Config, Service, StartError};
