//! Who may go when: token buckets for what hosts or rebuilds may ask in a second, and how rebuilds
//! yield to hosts.
//!
//! A bucket holds a tenth of a second's worth. A command larger than that goes when the bucket is
//! full and leaves a debt, so that any command goes sooner or later and the rate holds over time.

use core::time::Duration;

use block::Instant;

use crate::config::MirrorConfig;

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

/// How rebuilds yield to hosts.
///
/// ```text
///   hosts      chunks at once
///   served     one small one, and a pause after it
///   resting    one
///   away       as many as there is room for
/// ```
///
/// They are served a little longer than they have commands under way. A command that was slow makes
/// the pause twice as long, others make it shorter again.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RebuildThrottle {
    /// Commands of hosts under way.
    hosts: u32,
    /// When the last of them came or ended.
    seen: Option<Instant>,
    /// How often the pause is doubled.
    doubled: u32,
    /// No chunk begins before.
    pub(crate) not_before: Option<Instant>,
}

/// What hosts are doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostLoad {
    Served,
    Resting,
    Away,
}

/// The longest pause is the usual one doubled so often.
const MOST_DOUBLED: u32 = 6;

impl RebuildThrottle {
    pub(crate) fn came(&mut self, now: Instant) {
        self.hosts = self.hosts.saturating_add(1);
        self.seen = Some(now);
    }

    pub(crate) fn ended(&mut self, took: Duration, now: Instant, config: &MirrorConfig) {
        self.hosts = self.hosts.saturating_sub(1);
        self.seen = Some(now);
        self.doubled = if took > config.slow {
            (self.doubled + 1).min(MOST_DOUBLED)
        } else {
            self.doubled.saturating_sub(1)
        };
    }

    /// A chunk was copied.
    pub(crate) fn copied(&mut self, now: Instant, config: &MirrorConfig) {
        self.not_before = Some(now.after(config.pause.saturating_mul(1 << self.doubled)));
    }

    /// What hosts are doing.
    pub(crate) fn hosts(&self, now: Instant, config: &MirrorConfig) -> HostLoad {
        let within = |time| self.seen.is_some_and(|seen| now < seen.after(time));
        if self.hosts > 0 || within(config.lull) {
            HostLoad::Served
        } else if within(config.away) {
            HostLoad::Resting
        } else {
            HostLoad::Away
        }
    }

    /// When something changes by itself, after now.
    pub(crate) fn next(&self, now: Instant, config: &MirrorConfig) -> Option<Instant> {
        let seen = self.seen.filter(|_| self.hosts == 0);
        let rests = seen.map(|seen| seen.after(config.lull));
        let is_away = seen.map(|seen| seen.after(config.away));
        [rests, is_away, self.not_before].into_iter().flatten().filter(|at| *at > now).min()
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

    #[test]
    fn copies_pause_while_hosts_are_served_and_longer_while_they_are_slow() {
        let config = MirrorConfig::default_for(block::Blocks(1 << 16));
        let (quick, slow) = (Duration::ZERO, config.slow * 2);
        let start = Instant::since_start(Duration::from_secs(1));
        let mut throttle = RebuildThrottle::default();
        assert_eq!(throttle.hosts(start, &config), HostLoad::Away);
        throttle.came(start);
        let late = start.after(config.lull * 100);
        assert_eq!(throttle.hosts(late, &config), HostLoad::Served, "a command is under way");
        assert_eq!(throttle.next(late, &config), None);
        throttle.copied(late, &config);
        assert_eq!(throttle.next(late, &config), Some(late.after(config.pause)));
        throttle.ended(slow, late, &config);
        throttle.copied(late, &config);
        assert_eq!(throttle.not_before, Some(late.after(config.pause * 2)));
        for _ in 0..100 {
            throttle.ended(slow, late, &config);
        }
        throttle.copied(late, &config);
        assert_eq!(throttle.not_before, Some(late.after(config.pause * 64)));
        for _ in 0..100 {
            throttle.ended(quick, late, &config);
        }
        throttle.copied(late, &config);
        assert_eq!(throttle.not_before, Some(late.after(config.pause)));
        let quiet = late.after(config.lull);
        assert_eq!(throttle.hosts(late, &config), HostLoad::Served);
        assert_eq!(throttle.hosts(quiet, &config), HostLoad::Resting);
        assert_eq!(throttle.next(late.after(config.pause), &config), Some(quiet));
        let away = late.after(config.away);
        assert_eq!(throttle.next(quiet, &config), Some(away));
        assert_eq!(throttle.hosts(away, &config), HostLoad::Away);
        assert_eq!(throttle.next(away, &config), None);
    }
}
