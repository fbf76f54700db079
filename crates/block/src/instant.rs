//! Moments, given by the caller.

use core::time::Duration;

/// A moment: so long after a start that the caller chose and keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(Duration);

impl Instant {
    /// The caller's start.
    pub const ZERO: Instant = Instant(Duration::ZERO);

    /// The moment so long after the caller's start.
    pub const fn since_start(elapsed: Duration) -> Instant {
        Instant(elapsed)
    }

    /// The moment so much later.
    #[must_use]
    pub fn after(self, delay: Duration) -> Instant {
        Instant(self.0.saturating_add(delay))
    }

    /// How long after `earlier`; zero if it is not after it.
    pub fn since(self, earlier: Instant) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}
