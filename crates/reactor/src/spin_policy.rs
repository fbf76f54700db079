//! When to spin and when to sleep.
//!
//! Falling asleep and being woken costs tens of microseconds, in a virtual machine on both ends, so
//! spinning instead answers much sooner; but it burns a core while it lasts, so it must pay. It is
//! tried only if the last sleep was short: a few times what we would spin, since a sleep lasts
//! longer than what it waits for. Each time it was in vain the next try comes later. Whoever spins
//! lets others have the core first, so that it never keeps those from running whom it waits for;
//! whoever is idle never starts.

use core::time::Duration;

/// Longest pause between two vain attempts, counted in sleeps.
const LONGEST_PAUSE: u32 = 63;
/// A sleep that was longer than this many spins says that there is no load.
const SHORT_SLEEP: u32 = 3;

/// Decides before each wait whether to spin first.
#[derive(Debug)]
pub(crate) struct SpinPolicy {
    longest_spin: Duration,
    pays: bool,
    vain: u32,
    pause: u32,
}

impl SpinPolicy {
    pub(crate) fn new(longest_spin: Duration) -> SpinPolicy {
        SpinPolicy { longest_spin, pays: false, vain: 0, pause: 0 }
    }

    /// How long to spin before the coming sleep.
    pub(crate) fn spin(&mut self) -> Option<Duration> {
        if !self.pays || self.longest_spin.is_zero() {
            return None;
        }
        match self.pause.checked_sub(1) {
            Some(left) => {
                self.pause = left;
                None
            }
            None => Some(self.longest_spin),
        }
    }

    /// Something came while spinning.
    pub(crate) fn spun_well(&mut self) {
        self.vain = 0;
    }

    /// Nothing came while spinning.
    pub(crate) fn spun_in_vain(&mut self) {
        self.vain = (self.vain * 2 + 1).min(LONGEST_PAUSE);
        self.pause = self.vain;
    }

    /// Slept that long until something came.
    pub(crate) fn slept(&mut self, time: Duration) {
        self.pays = time <= self.longest_spin * SHORT_SLEEP;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPIN: Duration = Duration::from_micros(10);

    #[test]
    fn the_idle_never_spin() {
        let mut waiting = SpinPolicy::new(SPIN);
        for _ in 0..100 {
            assert_eq!(waiting.spin(), None);
            waiting.slept(Duration::from_millis(1));
        }
    }

    #[test]
    fn under_load_every_wait_spins() {
        let mut waiting = SpinPolicy::new(SPIN);
        waiting.slept(Duration::from_micros(3));
        for _ in 0..100 {
            assert_eq!(waiting.spin(), Some(SPIN));
            waiting.spun_well();
        }
    }

    #[test]
    fn spinning_in_vain_becomes_rare() {
        let mut waiting = SpinPolicy::new(SPIN);
        let mut spins = 0;
        for _ in 0..6400 {
            if waiting.spin().is_some() {
                spins += 1;
                waiting.spun_in_vain();
            }
            waiting.slept(Duration::from_micros(5));
        }
        assert!((100..120).contains(&spins), "{spins} spins");
    }

    #[test]
    fn no_spin_at_all_can_be_asked_for() {
        let mut waiting = SpinPolicy::new(Duration::ZERO);
        waiting.slept(Duration::ZERO);
        assert_eq!(waiting.spin(), None);
    }
}
