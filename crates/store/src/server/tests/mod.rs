//! Tests of the server without sockets.

mod copy;
mod crash;
mod crashdisk;
mod durable;
mod lifecycle;
mod model;
mod settings;
mod tls;
mod watch;

use super::{machine::Start, settings::Settings};

/// A machine with these leases and nothing else.
fn start(leases: Vec<(i64, i64)>) -> Start {
    Start { leases, settings: Settings::default(), quota: usize::MAX, seed: 0 }
}
