//! A cluster in one thread: engines and a store in memory, for tests and benchmarks.
//!
//! [`Cluster`] is the world outside; [`Sim`] runs a control plane in it, one effect at a time, in
//! an order and with faults that whoever drives it chooses.

mod cluster;
mod content;
mod engine;
mod fill;
mod host;
mod mirror;
mod sim;

pub use cluster::{Backup, Cluster};
pub use content::{Content, Data};
pub use engine::Engine;
pub use fill::{fill, fill_published, volume_id};
pub use host::{HostAgent, HostConduct};
pub use sim::{Fault, Loss, Sim};
