//! The control plane as a library: takes wishes over REST, and turns them into orders to engines.
//!
//! Invariants:
//! - It serves only what the store can back: when the store cannot be reached, health says so with
//!   503 and the reason, and nothing is answered from memory.
//! - Every failure is answered as `application/problem+json` with a kind from [`model::Kind`].
//!
//! Deliberately not here: the store itself, how it is reached (the binary hands in a
//! [`Store`](store::contract::Store)), and what was typed on the command line.

#![forbid(unsafe_code)]

mod callbacks;
pub mod core;
mod health;
mod history;
mod lead;
mod nodes;
mod rest;
mod service;
mod shared;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use lead::Policy;
pub use nodes::Reach;
pub use service::{Config, Service, StartError};
