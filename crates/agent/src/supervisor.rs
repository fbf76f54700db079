//! Who keeps the descriptor of `/dev/fuse` while workers come and go.
//!
//! ```text
//!              Ready                    Ended by itself, or killed
//!   Starting ─────────► Serving ◄──────────────────────────────┐
//!      │                 │  │ silent: Kill                     │ Ready
//!      │ Ended, late     │  └───► Killing ──Ended──► Waiting ──┴─► Resuming
//!      ▼                 │           │ still there: Abort  time: Spawn
//!    Failed              │           ▼
//!                        │        Aborted: I/O fails, and can be ended
//!                        └ Ended, unmounted ──► Over
//! ```
//!
//! The supervisor does next to nothing, so that it does not fail: it holds the descriptor, starts
//! a worker, and listens for its signs of life. Requests that a dead worker had are sent again by
//! the kernel to its successor.
//!
//! Invariants:
//! - A worker that has served once is always replaced; its volume stalls and does not fail.
//! - A worker that hangs is killed, and if even that does not end it (it waits in the kernel for
//!   memory that only its own answer would free), the connection is aborted: I/O errors are
//!   better than a machine that cannot be restarted.
//!
//! Not here: volumes, paths, requests.

mod process;

use std::time::Duration;

pub use process::{SERVING, SuperviseError, run};

/// How long a worker may be silent; it says something every second.
const SILENCE: Duration = Duration::from_secs(30);
/// How long the first worker may take until it serves.
const START: Duration = Duration::from_mins(1);
/// How long a killed worker may take to end.
const DEATH: Duration = Duration::from_secs(30);
/// Between the end of a worker and its successor: twice as long each time, from and to this.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(5));
/// A worker that lived that long is no part of a series of failures.
const LONG_LIFE: Duration = Duration::from_mins(1);

/// What was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The worker serves; whether a successor could go on.
    Ready {
        /// As the kernel said.
        can_resend: bool,
    },
    /// The worker lives.
    Beat,
    /// The worker ended; in good order when the file system was unmounted.
    Ended {
        /// Whether it was.
        unmounted: bool,
    },
    /// Time has passed.
    Time,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Nothing.
    Wait,
    /// Start a worker that goes on with the session.
    Spawn,
    /// Kill the worker.
    Kill,
    /// Abort the connection, so that all I/O ends.
    Abort,
    /// Tell who started us that the volume is served.
    TellReady,
    /// End: there is nothing more to do.
    Stop,
    /// End: the first worker did not serve.
    Fail,
}

/// Time since the supervisor started.
type Now = Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The first worker has not served yet.
    Starting {
        until: Now,
    },
    Serving {
        since: Now,
        heard: Now,
    },
    Killing {
        until: Now,
    },
    /// The next worker is due.
    Waiting {
        until: Now,
    },
    /// A successor has not served yet; it lives as long as it says something.
    Resuming {
        heard: Now,
    },
    Aborted,
    Over,
}

/// The supervisor without its processes.
#[derive(Debug)]
pub(crate) struct Supervisor {
    state: State,
    can_resend: bool,
    /// Workers that ended soon, one after another.
    failures: u32,
}

impl Supervisor {
    /// The first worker was started.
    pub(crate) fn new(now: Now) -> Supervisor {
        let state = State::Starting { until: now.saturating_add(START) };
        Supervisor { state, can_resend: false, failures: 0 }
    }

    /// When to say that time has passed, at the latest.
    pub(crate) fn deadline(&self) -> Option<Now> {
        match self.state {
            State::Starting { until } | State::Killing { until } | State::Waiting { until } => {
                Some(until)
            }
            State::Serving { heard, .. } | State::Resuming { heard } => {
                Some(heard.saturating_add(SILENCE))
            }
            State::Aborted | State::Over => None,
        }
    }

    pub(crate) fn on(&mut self, now: Now, event: Event) -> Action {
        let is_due = self.deadline().is_some_and(|at| at <= now);
        match (self.state, event) {
            (State::Starting { .. }, Event::Ready { can_resend }) => {
                self.can_resend = can_resend;
                self.state = State::Serving { since: now, heard: now };
                Action::TellReady
            }
            (State::Starting { .. }, Event::Ended { .. }) => self.end(Action::Fail),
            (State::Starting { .. }, Event::Time) if is_due => self.end(Action::Fail),
            (State::Resuming { .. }, Event::Ready { .. }) => {
                self.state = State::Serving { since: now, heard: now };
                Action::Wait
            }
            (State::Resuming { .. }, Event::Beat) => {
                self.state = State::Resuming { heard: now };
                Action::Wait
            }
            (State::Serving { since, .. }, Event::Beat) => {
                self.state = State::Serving { since, heard: now };
                Action::Wait
            }
            (State::Serving { .. } | State::Resuming { .. }, Event::Time) if is_due => {
                self.state = State::Killing { until: now.saturating_add(DEATH) };
                Action::Kill
            }
            (State::Killing { .. }, Event::Time) if is_due => {
                self.state = State::Aborted;
                Action::Abort
            }
            (_, Event::Ended { unmounted: true }) | (State::Aborted, Event::Ended { .. }) => {
                self.end(Action::Stop)
            }
            (
                State::Serving { .. } | State::Resuming { .. } | State::Killing { .. },
                Event::Ended { unmounted: false },
            ) => self.replace(now),
            (State::Waiting { .. }, Event::Time) if is_due => {
                self.state = State::Resuming { heard: now };
                Action::Spawn
            }
            _ => Action::Wait,
        }
    }

    /// A worker ended: its successor comes after a pause that grows with every failure.
    fn replace(&mut self, now: Now) -> Action {
        if !self.can_resend {
            // What it had read is lost, and whoever waits for it would wait for ever.
            self.state = State::Over;
            return Action::Abort;
        }
        let lived = match self.state {
            State::Serving { since, .. } => now.saturating_sub(since),
            _ => Duration::ZERO,
        };
        self.failures = if lived >= LONG_LIFE { 0 } else { self.failures.saturating_add(1) };
        let factor = 1_u32.checked_shl(self.failures.saturating_sub(1)).unwrap_or(u32::MAX);
        let pause = PAUSE.0.saturating_mul(factor).min(PAUSE.1);
        self.state = State::Waiting { until: now.saturating_add(pause) };
        Action::Wait
    }

    fn end(&mut self, how: Action) -> Action {
        self.state = State::Over;
        how
    }

    /// Whether nothing more will be done.
    pub(crate) fn is_over(&self) -> bool {
        self.state == State::Over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READY: Event = Event::Ready { can_resend: true };
    const DIED: Event = Event::Ended { unmounted: false };

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn serving() -> Supervisor {
        let mut supervisor = Supervisor::new(secs(0));
        assert_eq!(supervisor.on(secs(1), READY), Action::TellReady);
        supervisor
    }

    #[test]
    fn a_worker_that_never_served_is_not_replaced() {
        assert_eq!(Supervisor::new(secs(0)).on(secs(1), DIED), Action::Fail);
        let mut late = Supervisor::new(secs(0));
        assert_eq!(late.on(secs(59), Event::Time), Action::Wait);
        assert_eq!(late.on(secs(60), Event::Time), Action::Fail);
    }

    #[test]
    fn one_that_served_is_replaced_again_and_again_ever_slower() {
        let mut supervisor = serving();
        let mut pauses = Vec::new();
        let mut now = secs(2);
        for _ in 0..12 {
            assert_eq!(supervisor.on(now, DIED), Action::Wait);
            let due = supervisor.deadline().unwrap();
            pauses.push(due.saturating_sub(now));
            now = due;
            assert_eq!(supervisor.on(now, Event::Time), Action::Spawn);
        }
        assert_eq!(pauses[0], PAUSE.0);
        assert!(pauses.windows(2).all(|two| two[0] <= two[1]));
        assert_eq!(pauses.last(), Some(&PAUSE.1));
        // One that lived for long begins a new series.
        assert_eq!(supervisor.on(now, READY), Action::Wait, "only the first is told");
        assert_eq!(supervisor.on(now + LONG_LIFE, DIED), Action::Wait);
        assert_eq!(supervisor.on(now + LONG_LIFE + PAUSE.0, Event::Time), Action::Spawn);
    }

    #[test]
    fn an_unmounted_file_system_is_the_end() {
        assert_eq!(serving().on(secs(9), Event::Ended { unmounted: true }), Action::Stop);
    }

    #[test]
    fn one_that_hangs_is_killed_and_if_that_is_not_enough_the_connection_is_aborted() {
        let mut supervisor = serving();
        for now in 2..100 {
            assert_eq!(supervisor.on(secs(now), Event::Beat), Action::Wait);
        }
        assert_eq!(supervisor.on(secs(128), Event::Time), Action::Wait);
        assert_eq!(supervisor.on(secs(129), Event::Time), Action::Kill);
        assert_eq!(supervisor.on(secs(130), Event::Time), Action::Wait);
        assert_eq!(supervisor.on(secs(159), Event::Time), Action::Abort);
        assert_eq!(supervisor.deadline(), None);
        assert_eq!(supervisor.on(secs(160), DIED), Action::Stop);

        let mut killed = serving();
        assert_eq!(killed.on(secs(31), Event::Time), Action::Kill);
        assert_eq!(killed.on(secs(32), DIED), Action::Wait);
        assert_eq!(killed.on(secs(33), Event::Time), Action::Spawn);
    }

    #[test]
    fn without_a_way_to_get_requests_again_the_connection_ends_with_its_worker() {
        let mut supervisor = Supervisor::new(secs(0));
        supervisor.on(secs(1), Event::Ready { can_resend: false });
        assert_eq!(supervisor.on(secs(2), DIED), Action::Abort);
        assert!(supervisor.is_over());
    }
}
