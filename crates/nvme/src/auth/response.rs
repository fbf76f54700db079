//! What is signed, and with what randomness.

use alloc::string::String;
use core::fmt;
use core::num::NonZeroU32;

use zeroize::Zeroize;

use super::group::EXPONENT_LEN;
use super::hash::{Digest, Hash};
use super::secret::Secret;

/// The names both sides sign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// NQN of the host.
    pub host: String,
    /// NQN of the subsystem.
    pub subsystem: String,
}

/// Randomness for one exchange: never to be used twice, wiped when dropped.
pub struct Entropy {
    pub(super) challenge: [u8; 64],
    pub(super) exponent: [u8; EXPONENT_LEN],
    pub(super) sequence: NonZeroU32,
}

impl Entropy {
    /// How many random bytes one exchange takes.
    pub const LEN: usize = 64 + EXPONENT_LEN;

    /// Takes them, and wipes the caller's copy. `sequence` is the next of a [`Sequence`].
    pub fn new(random: &mut [u8; Entropy::LEN], sequence: NonZeroU32) -> Entropy {
        let (left, right) = random.split_at(64);
        let mut entropy = Entropy { challenge: [0; 64], exponent: [0; EXPONENT_LEN], sequence };
        entropy.challenge.copy_from_slice(left);
        entropy.exponent.copy_from_slice(right);
        random.zeroize();
        entropy
    }

    /// The challenge for a hash: as many bytes as it yields.
    pub(super) fn challenge(&self, hash: Hash) -> &[u8] {
        self.challenge.split_at(hash.digest_len()).0
    }
}

impl Drop for Entropy {
    fn drop(&mut self) {
        self.challenge.zeroize();
        self.exponent.zeroize();
    }
}

impl fmt::Debug for Entropy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Entropy(hidden)")
    }
}

/// Numbers of challenges: each differs from the one before and none is zero, which would mean
/// "no challenge". One per process, begun at a random number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequence(u32);

impl Sequence {
    /// Begins at a random number.
    pub fn starting_at(random: u32) -> Sequence {
        Sequence(random)
    }

    /// The next number.
    pub fn advance(&mut self) -> NonZeroU32 {
        loop {
            self.0 = self.0.wrapping_add(1);
            if let Some(number) = NonZeroU32::new(self.0) {
                return number;
            }
        }
    }
}

/// A challenge with all that its answer depends on, except who answers.
pub(super) struct Question<'a> {
    pub(super) hash: Hash,
    pub(super) challenge: &'a [u8],
    /// Of the group, if one is used.
    pub(super) shared: Option<&'a [u8]>,
    pub(super) sequence: u32,
    pub(super) transaction: u16,
}

impl Question<'_> {
    /// How the host answers.
    pub(super) fn host_answer(&self, secret: &Secret, names: &Names) -> Digest {
        self.answer(&secret.key_of(&names.host), b"HostHost", [&names.host, &names.subsystem])
    }

    /// How the controller answers.
    pub(super) fn controller_answer(&self, secret: &Secret, names: &Names) -> Digest {
        let key = secret.key_of(&names.subsystem);
        self.answer(&key, b"Controller", [&names.subsystem, &names.host])
    }

    fn answer(&self, key: &[u8], role: &[u8], [own, other]: [&String; 2]) -> Digest {
        let augmented = self.shared.map(|shared| {
            let session = self.hash.digest(shared);
            self.hash.mac(session.as_bytes(), &[self.challenge])
        });
        let challenge = augmented.as_ref().map_or(self.challenge, Digest::as_bytes);
        self.hash.mac(
            key,
            &[
                challenge,
                &self.sequence.to_le_bytes(),
                &self.transaction.to_le_bytes(),
                // Secure-channel concatenation: none.
                &[0],
                role,
                own.as_bytes(),
                &[0],
                other.as_bytes(),
            ],
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::vectors;
    use super::*;
    use alloc::format;

    #[test]
    fn answers_match_those_computed_elsewhere() {
        for vector in &vectors::ANSWERS {
            let challenge = vectors::bytes(vectors::CHALLENGE);
            let shared = vector.shared.map(vectors::bytes);
            let question = Question {
                hash: vector.hash,
                challenge: &challenge[..vector.hash.digest_len()],
                shared: shared.as_deref(),
                sequence: 0x1234_5678,
                transaction: 0xABCD,
            };
            let secret: Secret = vector.secret.parse().unwrap();
            let names = vectors::names();
            let host = question.host_answer(&secret, &names);
            assert_eq!(host.as_bytes(), vectors::bytes(vector.host), "{:?}", vector.hash);
            let controller = question.controller_answer(&secret, &names);
            assert_eq!(controller.as_bytes(), vectors::bytes(vector.controller));
        }
    }

    #[test]
    fn sequence_numbers_skip_zero() {
        let mut sequence = Sequence::starting_at(u32::MAX - 1);
        assert_eq!(sequence.advance().get(), u32::MAX);
        assert_eq!(sequence.advance().get(), 1);
        assert_eq!(sequence.advance().get(), 2);
    }

    #[test]
    fn randomness_is_taken_once_and_not_printed() {
        let mut random = [0xA5; Entropy::LEN];
        let entropy = Entropy::new(&mut random, NonZeroU32::MIN);
        assert_eq!(random, [0; Entropy::LEN]);
        assert_eq!(entropy.challenge(Hash::Sha384), &[0xA5; 48]);
        assert_eq!(format!("{entropy:?}"), "Entropy(hidden)");
    }
}
