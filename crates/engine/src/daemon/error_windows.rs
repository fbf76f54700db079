//! Errors of disks over a sliding window, so that an old error does not count for ever.
//!
//! Counters only grow. Each time they are looked at, what they gained goes into the window of its
//! hour, and windows that are too old are forgotten. Clearing forgets all of them: what comes after
//! counts anew.

use std::collections::VecDeque;
use std::time::Duration;

/// When errors make a disk suspect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorLimits {
    /// So many errors of a kind within the window.
    pub errors: u64,
    /// The window.
    pub window: Duration,
}

impl Default for ErrorLimits {
    fn default() -> ErrorLimits {
        ErrorLimits { errors: 5, window: Duration::from_hours(24) }
    }
}

/// The errors of a pool: of each disk, and blocks that were not what was written.
#[derive(Clone, Debug, Default)]
pub(super) struct PoolErrors {
    disks: Vec<ErrorWindow>,
    checksums: ErrorWindow,
}

impl PoolErrors {
    /// Takes in the counters: of each disk, and of checksums. Returns the same within the window.
    pub(super) fn observe(
        &mut self,
        (disks, checksums): (&[u64], u64),
        (now, window): (Duration, Duration),
    ) -> (Vec<u64>, u64) {
        self.disks.resize_with(disks.len(), ErrorWindow::default);
        let each = self.disks.iter_mut().zip(disks);
        let recent = each.map(|(one, total)| one.observe(*total, (now, window))).collect();
        (recent, self.checksums.observe(checksums, (now, window)))
    }

    /// Forgets what was counted until now; whether there was anything.
    pub(super) fn clear(&mut self) -> bool {
        let all = self.disks.iter_mut().chain([&mut self.checksums]);
        all.map(ErrorWindow::clear).filter(|had| *had).count() > 0
    }
}

/// What a counter gained lately.
#[derive(Clone, Debug, Default)]
struct ErrorWindow {
    /// The counter when it was last looked at.
    seen: u64,
    /// What it gained in each hour, the oldest first, with the end of the hour.
    gains: VecDeque<(Duration, u64)>,
}

/// How much of a window is forgotten at once: an hour in a day.
const PARTS: u32 = 24;

impl ErrorWindow {
    fn observe(&mut self, total: u64, (now, window): (Duration, Duration)) -> u64 {
        // A pool that was opened anew counts from zero.
        let gained = total.checked_sub(self.seen).unwrap_or(total);
        self.seen = total;
        while self.gains.front().is_some_and(|(end, _)| *end + window <= now) {
            self.gains.pop_front();
        }
        if gained > 0 {
            match self.gains.back_mut().filter(|(end, _)| now < *end) {
                Some((_, sum)) => *sum = sum.saturating_add(gained),
                None => self.gains.push_back((now + window / PARTS, gained)),
            }
        }
        self.gains.iter().fold(0, |sum, (_, gained)| gained.saturating_add(sum))
    }

    fn clear(&mut self) -> bool {
        let had = !self.gains.is_empty();
        self.gains.clear();
        had
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_hours(24);

    fn hours(hours: u64) -> Duration {
        Duration::from_hours(hours)
    }

    #[test]
    fn errors_of_a_disk_are_forgotten_after_a_while() {
        let mut window = ErrorWindow::default();
        assert_eq!(window.observe(3, (hours(0), DAY)), 3);
        assert_eq!(window.observe(4, (hours(20), DAY)), 4);
        // The first three are more than a day old, the fourth is not.
        assert_eq!(window.observe(4, (hours(26), DAY)), 1);
        assert_eq!(window.observe(4, (hours(47), DAY)), 0);
        assert_eq!(window.observe(5, (hours(48), DAY)), 1);
        // The pool was closed and opened: its counters begin at zero.
        assert_eq!(window.observe(2, (hours(48), DAY)), 3);
        for hour in 50..5000 {
            window.observe(hour, (hours(hour), DAY));
        }
        assert!(window.gains.len() <= 26, "it grows: {}", window.gains.len());
    }

    #[test]
    fn cleared_errors_do_not_count_any_more() {
        let mut errors = PoolErrors::default();
        let now = (hours(1), DAY);
        assert_eq!(errors.observe((&[7, 0], 2), now), (vec![7, 0], 2));
        assert!(errors.clear());
        assert!(!errors.clear());
        assert_eq!(errors.observe((&[7, 0], 2), now), (vec![0, 0], 0));
        assert_eq!(errors.observe((&[8, 1], 2), now), (vec![1, 1], 0));
    }
}
