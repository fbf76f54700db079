//! Things that may happen a million times a second, and are told seldom: the first time, then when
//! there were twice as many. So a disk that fails does not fill the log, and its lines still say
//! how often it failed.

/// How often something happened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LogThrottle(u64);

impl LogThrottle {
    /// It happened again: how often so far, if that is to be told.
    pub(crate) fn again(&mut self) -> Option<u64> {
        self.0 = self.0.saturating_add(1);
        self.0.is_power_of_two().then_some(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_million_times_are_told_in_twenty_lines() {
        let mut seldom = LogThrottle::default();
        let told: Vec<u64> = (0..1_000_000).filter_map(|_| seldom.again()).collect();
        assert_eq!(told[..4], [1, 2, 4, 8]);
        assert_eq!(told.len(), 20);
    }
}
