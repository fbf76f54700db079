//! Time, handed in so that a simulator can own it.

use std::time::{Duration, Instant};

use futures::FutureExt as _;
use futures::future::BoxFuture;

/// Where waiting code gets its time from.
pub trait Clock: Send + Sync {
    /// Time since some fixed moment; never goes back.
    fn now(&self) -> Duration;

    /// Ends after `time`.
    fn sleep(&self, time: Duration) -> BoxFuture<'static, ()>;
}

/// The machine's clock; sleeping needs a tokio runtime.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// A clock that starts now.
    pub fn new() -> SystemClock {
        SystemClock { start: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> SystemClock {
        SystemClock::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn sleep(&self, time: Duration) -> BoxFuture<'static, ()> {
        tokio::time::sleep(time).boxed()
    }
}
