//! Time that moves when told to.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{BoxFuture, poll_fn};

use crate::contract::Clock;

/// A clock that stands still until it is [advanced](ManualClock::advance). Clones are one clock.
#[derive(Clone, Debug, Default)]
pub struct ManualClock {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    now: Duration,
    sleepers: Vec<Waker>,
}

impl ManualClock {
    /// A clock at zero.
    pub fn new() -> ManualClock {
        ManualClock::default()
    }

    /// Lets time pass and wakes all who sleep, so that they look at the clock.
    pub fn advance(&self, time: Duration) {
        let sleepers = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.now += time;
            std::mem::take(&mut state.sleepers)
        };
        sleepers.into_iter().for_each(Waker::wake);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).now
    }

    fn sleep(&self, time: Duration) -> BoxFuture<'static, ()> {
        let state = Arc::clone(&self.state);
        let until = self.now() + time;
        poll_fn(move |context| {
            let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
            if state.now >= until {
                return Poll::Ready(());
            }
            state.sleepers.push(context.waker().clone());
            Poll::Pending
        })
        .boxed()
    }
}
