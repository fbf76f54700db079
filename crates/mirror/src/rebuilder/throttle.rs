//! How rebuilds yield to hosts.

use core::time::Duration;

use block::Instant;

use crate::config::MirrorConfig;

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
    not_before: Option<Instant>,
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

    /// Whether a pause is not over.
    pub(crate) fn is_pausing(&self, now: Instant) -> bool {
        self.not_before.is_some_and(|at| now < at)
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
