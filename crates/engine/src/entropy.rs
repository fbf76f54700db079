//! Random numbers for authentication, from the kernel.

use std::io;
use std::num::NonZeroU32;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use nvme::auth::Entropy;
use rustix::rand::{GetRandomFlags, getrandom};

/// Randomness for one exchange.
pub(crate) fn fresh() -> io::Result<Entropy> {
    let mut random = [0; Entropy::LEN];
    fill(&mut random)?;
    Ok(Entropy::new(&mut random, next_number()?))
}

/// Fills `bytes` with random ones.
pub(crate) fn fill(bytes: &mut [u8]) -> io::Result<()> {
    let mut left = bytes;
    while !left.is_empty() {
        let got = getrandom(&mut *left, GetRandomFlags::empty())?;
        left = left.get_mut(got..).unwrap_or_default();
    }
    Ok(())
}

/// A number that nobody else has: random, or the time of day if the kernel has no random bytes.
pub(crate) fn number() -> u64 {
    let mut bytes = [0; 8];
    if fill(&mut bytes).is_ok() {
        return u64::from_ne_bytes(bytes);
    }
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| u64::try_from(now.as_nanos()).unwrap_or(u64::MAX))
}

/// The number of a challenge: begun at a random one, never the same twice in a row, never zero.
fn next_number() -> io::Result<NonZeroU32> {
    static LAST: OnceLock<AtomicU32> = OnceLock::new();
    let mut start = [0; 4];
    fill(&mut start)?;
    let last = LAST.get_or_init(|| AtomicU32::new(u32::from_ne_bytes(start)));
    loop {
        if let Some(number) = NonZeroU32::new(last.fetch_add(1, Ordering::Relaxed)) {
            return Ok(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_follow_each_other_and_bytes_differ() {
        let (one, two) = (next_number().unwrap(), next_number().unwrap());
        assert_ne!(one, two);
        let (mut a, mut b) = ([0; 32], [0; 32]);
        fill(&mut a).unwrap();
        fill(&mut b).unwrap();
        assert_ne!(a, b);
    }
}
