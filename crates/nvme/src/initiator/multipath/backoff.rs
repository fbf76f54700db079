//! How long to wait before trying again.

use core::time::Duration;

/// Delays that double up to a limit, each with some chance in it, so that many hosts that lost the
/// same controller do not all come back at once.
#[derive(Clone, Debug)]
pub(super) struct Backoff {
    first: Duration,
    most: Duration,
    attempt: u32,
    random: u64,
}

impl Backoff {
    pub(super) fn new(first: Duration, most: Duration, seed: u64) -> Backoff {
        Backoff { first, most, attempt: 0, random: seed }
    }

    /// It worked: begin with the shortest delay next time.
    pub(super) fn reset(&mut self) {
        self.attempt = 0;
    }

    /// The next delay: between half and all of what the number of attempts gives.
    pub(super) fn next(&mut self) -> Duration {
        let factor = 1u32.checked_shl(self.attempt).unwrap_or(u32::MAX);
        self.attempt = self.attempt.saturating_add(1);
        let whole = self.first.saturating_mul(factor).min(self.most);
        let half = whole / 2;
        let chance = u32::try_from(self.draw() >> 48).unwrap_or_default();
        half.saturating_add(half.saturating_mul(chance) / (1 << 16))
    }

    /// A step of SplitMix64.
    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn delays_double_up_to_the_limit(seed: u64) {
            let (first, most) = (Duration::from_millis(100), Duration::from_secs(10));
            let mut backoff = Backoff::new(first, most, seed);
            for attempt in 0..100u32 {
                let whole = first.saturating_mul(1 << attempt.min(20)).min(most);
                let delay = backoff.next();
                prop_assert!(whole / 2 <= delay && delay <= whole, "{attempt}: {delay:?}");
            }
            backoff.reset();
            prop_assert!(backoff.next() <= first);
        }
    }

    #[test]
    fn two_hosts_wait_differently() {
        let delay =
            |seed| Backoff::new(Duration::from_secs(1), Duration::from_secs(1), seed).next();
        assert_ne!(delay(1), delay(2));
        assert_eq!(delay(1), delay(1));
    }
}
