//! One path to the namespace.
//!
//! ```text
//! Waiting ─time─► Connecting ─Live─► Live ─Lost─► Waiting … ─too long─► Abandoned
//!    ▲                 └──Lost──► Waiting
//! ```

use core::time::Duration;

use super::Policy;
use super::backoff::Backoff;
use crate::time::Instant;
use crate::wire::AnaState;

/// Names a path, chosen by its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PathId(pub u16);

/// What is known of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathState {
    /// To be connected at a later time.
    Waiting {
        /// When.
        until: Instant,
    },
    /// Being connected.
    Connecting,
    /// Connected.
    Live {
        /// Whether the namespace can be reached by it.
        ana: AnaState,
    },
    /// Given up for good.
    Abandoned,
}

#[derive(Debug)]
pub(super) struct Path {
    pub(super) id: PathId,
    pub(super) state: PathState,
    /// On this machine, or otherwise close.
    near: bool,
    /// Since when it has not been live.
    down_since: Instant,
    backoff: Backoff,
    slots: u32,
    pub(super) in_flight: u32,
    /// Commands failed here without the path being lost: not before this time again.
    suspect_until: Instant,
    /// How long commands took of late, in nanoseconds.
    latency: u64,
}

/// Which path is taken: smaller is better, top to bottom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Score {
    not_optimized: bool,
    /// A worse path is no substitute for a better one that is full.
    full: bool,
    far: bool,
    expected_wait: u64,
    id: PathId,
}

impl Path {
    pub(super) fn new(id: PathId, near: bool, now: Instant, policy: &Policy) -> Path {
        // Each path waits differently, whatever the seed of the host.
        let seed = policy.seed ^ u64::from(id.0) << 32;
        Path {
            id,
            state: PathState::Waiting { until: now },
            near,
            down_since: now,
            backoff: Backoff::new(policy.reconnect_first, policy.reconnect_most, seed),
            slots: 0,
            in_flight: 0,
            suspect_until: Instant::default(),
            latency: 0,
        }
    }

    pub(super) fn on_live(&mut self, slots: u32, ana: AnaState) {
        if self.state != PathState::Abandoned {
            self.state = PathState::Live { ana };
            self.slots = slots;
            self.suspect_until = Instant::default();
            self.backoff.reset();
        }
    }

    pub(super) fn on_ana(&mut self, ana: AnaState) {
        if let PathState::Live { .. } = self.state {
            self.state = PathState::Live { ana };
            self.suspect_until = Instant::default();
        }
    }

    pub(super) fn on_lost(&mut self, now: Instant) {
        if let PathState::Live { .. } = self.state {
            self.down_since = now;
        }
        if matches!(self.state, PathState::Live { .. } | PathState::Connecting) {
            let until = now.after(self.backoff.next());
            self.state = PathState::Waiting { until };
        }
    }

    pub(super) fn suspect(&mut self, until: Instant) {
        self.suspect_until = self.suspect_until.max(until);
    }

    /// Until when it is down at most before it is given up.
    pub(super) fn abandon_at(&self, policy: &Policy) -> Option<Instant> {
        match self.state {
            PathState::Waiting { .. } | PathState::Connecting => {
                policy.abandon_after.map(|after| self.down_since.after(after))
            }
            PathState::Live { .. } | PathState::Abandoned => None,
        }
    }

    /// Whether it may ever carry a command again without somebody's help.
    pub(super) fn has_hope(&self) -> bool {
        self.state != PathState::Abandoned
    }

    pub(super) fn has_room(&self) -> bool {
        self.in_flight < self.slots
    }

    /// How good it is now; nothing if no command can go by it.
    pub(super) fn score(&self, now: Instant) -> Option<Score> {
        let PathState::Live { ana } = self.state else { return None };
        let not_optimized = match ana {
            AnaState::Optimized => false,
            AnaState::NonOptimized => true,
            AnaState::Inaccessible | AnaState::PersistentLoss | AnaState::Change => return None,
        };
        if now < self.suspect_until {
            return None;
        }
        Some(Score {
            not_optimized,
            full: !self.has_room(),
            far: !self.near,
            expected_wait: self.latency.saturating_mul(u64::from(self.in_flight) + 1),
            id: self.id,
        })
    }

    /// When it may be used again after a failure that did not end it.
    pub(super) fn trusted_at(&self, now: Instant) -> Option<Instant> {
        let is_live = matches!(self.state, PathState::Live { .. });
        (is_live && now < self.suspect_until).then_some(self.suspect_until)
    }

    /// A command took so long: one part in eight of the estimate.
    pub(super) fn measured(&mut self, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.latency =
            if self.latency == 0 { took } else { self.latency - self.latency / 8 + took / 8 };
    }
}
