//! Hashes of passwords: PBKDF2 with HMAC-SHA-256 and a salt of its own for each.

use std::num::NonZeroU32;

use aws_lc_rs::{pbkdf2, rand};
use bytes::Bytes;

/// Rounds of the key derivation of new hashes.
const ROUNDS: NonZeroU32 = NonZeroU32::new(100_000).unwrap();
const SALT: usize = 16;
const KEY: usize = 32;

/// The system has no random numbers to give.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NoRandomness;

/// So many random bytes.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], NoRandomness> {
    let mut bytes = [0; N];
    rand::fill(&mut bytes).map_err(|_| NoRandomness)?;
    Ok(bytes)
}

/// Hashes a password: number of rounds, salt, key. Takes some milliseconds, on purpose.
pub(crate) fn hash(password: &str) -> Result<Bytes, NoRandomness> {
    let salt = random::<SALT>()?;
    let mut key = [0; KEY];
    pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, ROUNDS, &salt, password.as_bytes(), &mut key);
    Ok([&ROUNDS.get().to_le_bytes()[..], &salt, &key].concat().into())
}

/// Whether a password has this hash. A user without a password has none that fits.
pub(crate) fn fits(password: &str, hash: &[u8]) -> bool {
    let Some((rounds, rest)) = hash.split_first_chunk::<4>() else { return false };
    let Some((salt, key)) = rest.split_at_checked(SALT) else { return false };
    let Some(rounds) = NonZeroU32::new(u32::from_le_bytes(*rounds)) else { return false };
    let password = password.as_bytes();
    pbkdf2::verify(pbkdf2::PBKDF2_HMAC_SHA256, rounds, salt, password, key).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_fits_its_own_hash_only() {
        let one = hash("secret").unwrap();
        assert!(fits("secret", &one) && !fits("Secret", &one) && !fits("", &one));
        assert_ne!(one, hash("secret").unwrap(), "each has a salt of its own");
        assert!(!fits("", b"") && !fits("secret", &one[..10]));
    }
}
