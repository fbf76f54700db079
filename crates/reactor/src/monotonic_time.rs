//! Time as the reactor tells it.

use core::time::Duration;

/// A point in time on a clock that never goes back, goes on while the machine is suspended, and has
/// no calendar: nanoseconds since some start. Only differences mean anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MonotonicTime(u64);

impl MonotonicTime {
    /// This many nanoseconds after the clock's start.
    pub const fn from_nanos(nanos: u64) -> MonotonicTime {
        MonotonicTime(nanos)
    }

    /// Nanoseconds since the clock's start.
    pub const fn nanos(self) -> u64 {
        self.0
    }

    /// Whole milliseconds since the clock's start.
    pub const fn millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// That much later; the end of time if it would wrap (five hundred years from the start).
    #[must_use]
    pub fn after(self, delay: Duration) -> MonotonicTime {
        MonotonicTime(self.0.saturating_add(u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// How long ago `earlier` was; nothing if it lies ahead.
    pub fn since(self, earlier: MonotonicTime) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_does_not_wrap_or_go_negative() {
        let start = MonotonicTime::from_nanos(10);
        assert_eq!(start.after(Duration::from_nanos(5)).nanos(), 15);
        assert_eq!(start.after(Duration::MAX).nanos(), u64::MAX);
        assert_eq!(start.since(start.after(Duration::from_secs(1))), Duration::ZERO);
    }
}
