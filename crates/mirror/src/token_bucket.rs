//! Token buckets: what hosts or rebuilds may ask in a second.
//!
//! A bucket holds a tenth of a second's worth. A command larger than that goes when the bucket is
//! full and leaves a debt, so that any command goes sooner or later and the rate holds over time.

use core::time::Duration;

use block::Instant;

/// One limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenBucket {
    /// Units a second; absent: no limit.
    rate: Option<u64>,
    /// Billionths of a unit; below zero: a debt.
    level: i128,
    at: Instant,
}

const BILLION: i128 = 1_000_000_000;

impl TokenBucket {
    pub(crate) fn new(rate: Option<u64>, now: Instant) -> TokenBucket {
        let mut bucket = TokenBucket { rate, level: 0, at: now };
        bucket.level = bucket.full();
        bucket
    }

    /// Another rate from now on; what is owed stays owed.
    pub(crate) fn set(&mut self, rate: Option<u64>, now: Instant) {
        self.fill(now);
        self.rate = rate;
        self.level = self.level.min(self.full());
    }

    /// Whether something may go now.
    pub(crate) fn is_open(&mut self, now: Instant) -> bool {
        self.fill(now);
        self.rate.is_none() || self.level > 0
    }

    /// Something went.
    pub(crate) fn take(&mut self, units: u64) {
        if self.rate.is_some() {
            self.level -= i128::from(units) * BILLION;
        }
    }

    /// Whether there is a limit.
    pub(crate) fn is_limited(&self) -> bool {
        self.rate.is_some()
    }

    /// When something may go again; nothing if it may now.
    pub(crate) fn opens(&self) -> Option<Instant> {
        let rate = self.rate.filter(|_| self.level <= 0)?;
        let wait = (1 - self.level).div_euclid(i128::from(rate.max(1))) + 1;
        Some(self.at.after(Duration::from_nanos(u64::try_from(wait).unwrap_or(u64::MAX))))
    }

    fn full(&self) -> i128 {
        (i128::from(self.rate.unwrap_or(0)) * BILLION / 10).max(BILLION)
    }

    fn fill(&mut self, now: Instant) {
        let Some(rate) = self.rate else { return };
        let gained = i128::try_from(now.since(self.at).as_nanos()).unwrap_or(i128::MAX / 2);
        let gained = gained.saturating_mul(i128::from(rate));
        self.level = self.level.saturating_add(gained).min(self.full());
        self.at = self.at.max(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_holds_over_time_and_large_things_go() {
        let mut now = Instant::ZERO;
        let mut bucket = TokenBucket::new(Some(1000), now);
        let mut gone = 0;
        while now < Instant::since_start(Duration::from_secs(10)) {
            while bucket.is_open(now) {
                bucket.take(300);
                gone += 300;
            }
            now = bucket.opens().unwrap();
        }
        assert!((10_000..=10_500).contains(&gone), "{gone}");
        bucket.set(None, now);
        assert!(bucket.is_open(now) && bucket.opens().is_none());
    }
}
