//! The embedded server: one member that speaks the etcd v3 protocol.
//!
//! ```text
//!  gRPC ──reads──────────────► index (memory, at the published revision)
//!    │                           ▲ publish
//!  HTTP ──gateway──► gRPC     │
//!    └─writes─► queue ─► writer ─┴─► journal (disk): apply, append, sync once, then answer
//! ```
//!
//! Invariants:
//! - Nothing is answered or seen by a reader before it is on disk.
//! - One thread changes the store; a refused request changes nothing.
//! - A disk that fails stops all writes until a restart; reads go on with what is safe.
//!
//! Why a journal of our own and all keys in memory: docs/design/0001-embedded-store.md. Its bytes:
//! docs/format/store.md. Deliberately not here: more than one member.

mod auth;
mod browser;
mod config;
mod connection;
mod disk;
mod entry;
mod gateway;
mod http;
mod index;
mod journal;
mod keys;
mod leases;
mod lifecycle;
mod machine;
mod metrics;
mod query;
mod record;
mod rpc;
mod server_state;
mod settings;
mod status;
mod storage;
mod txn;
mod validate;
mod writer;

#[cfg(test)]
mod tests;

pub use config::{Config, Retention, Tls};
pub use journal::Damage;
use lifecycle::random;
pub use lifecycle::{OpenError, RunError, Server};
