//! The finite-field groups of RFC 7919.
//!
//! All five primes are built from the digits of *e*, as that document defines them:
//! `p = 2^b − 2^(b−64) + (⌊2^(b−130)·e⌋ + x)·2^64 − 1`, with the smallest `x` that makes `p` and
//! `(p−1)/2` prime. One constant and five small numbers replace five long ones.

use alloc::vec;
use alloc::vec::Vec;

use crypto_bigint::modular::{BoxedMontyForm, BoxedMontyParams};
use crypto_bigint::{BoxedUint, Odd};
use zeroize::Zeroizing;

/// `⌊2^8062·e⌋`, in hexadecimal.
const E: &str = "\
    adf85458a2bb4a9aafdc5620273d3cf1d8b9c583ce2d3695a9e13641146433fbcc939dce\
    249b3ef97d2fe363630c75d8f681b202aec4617ad3df1ed5d5fd65612433f51f5f066ed0\
    856365553ded1af3b557135e7f57c935984f0c70e0e68b77e2a689daf3efe8721df158a1\
    36ade73530acca4f483a797abc0ab182b324fb61d108a94bb2c8e3fbb96adab760d7f468\
    1d4f42a3de394df4ae56ede76372bb190b07a7c8ee0a6d709e02fce1cdf7e2ecc03404cd\
    28342f619172fe9ce98583ff8e4f1232eef28183c3fe3b1b4c6fad733bb5fcbc2ec22005\
    c58ef1837d1683b2c6f34a26c1b2effa886b4238611fcfdcde355b3b6519035bbc34f4de\
    f99c023861b46fc9d6e6c9077ad91d2691f7f7ee598cb0fac186d91caefe130985139270\
    b4130c93bc437944f4fd4452e2d74dd364f2e21e71f54bff5cae82ab9c9df69ee86d2bc5\
    22363a0dabc521979b0deada1dbf9a42d5c4484e0abcd06bfa53ddef3c1b20ee3fd59d7c\
    25e41d2b669e1ef16e6f52c3164df4fb7930e9e4e58857b6ac7d5f42d69f6d187763cf1d\
    5503400487f55ba57e31cc7a7135c886efb4318aed6a1e012d9e6832a907600a918130c4\
    6dc778f971ad0038092999a333cb8b7a1a1db93d7140003c2a4ecea9f98d0acc0a8291cd\
    cec97dcf8ec9b55a7f88a46b4db5a851f44182e1c68a007e5e0dd9020bfd64b645036c7a\
    4e677d2c38532a3a23ba4442caf53ea63bb454329b7624c8917bdd64b1c0fd4cb38e8c33\
    4c701c3acdad0657fccfec719b1f5c3e4e46041f388147fb4cfdb477a52471f7a9a96910\
    b855322edb6340d8a00ef092350511e30abec1fff9e3a26e7fb29f8c183023c3587e38da\
    0077d9b4763e4e4b94b2bbc194c6651e77caf992eeaac0232a281bf6b3a739c122611682\
    0ae8db5847a67cbef9c9091b462d538cd72b03746ae77f5e62292c311562a846505dc82d\
    b854338ae49f5235c95b91178ccf2dd5cacef403ec9d1810c6272b045b3b71f9dc6b80d6\
    3fdd4a8e9adb1e6962a69526d43161c1a41d570d7938dad4a40e329ccff46aaa36ad004c\
    f600c8381e425a31d951ae64fdb23fcec9509d43687feb69edd1cc5e0b8cc3bdf64b10ef\
    86b63142a3ab8829555b2f747c932665cb2c0f1cc01bd70229388839d2af05e454504ac7\
    8b7582822846c0ba35c35f5c59160cc046fd8251541fc68c9c86b022bb7099876a460e74\
    51a8a93109703fee1c217e6c3826e52c51aa691e0e423cfc99e9e31650c1217b624816cd\
    ad9a95f9d5b8019488d9c0a0a1fe3075a577e23183f81d4a3f2fa4571efc8ce0ba8a4fe8\
    b6855dfe72b0a66eded2fbabfbe58a30fafabe1c5d71a87e2f741ef8c1fe86fea6bbfde5\
    30677f0d97d11d49f7a8443d0822e506a9f4614e011e2a94838ff88cd68c8bb7c51eef6d\
";

/// A Diffie-Hellman group of DH-HMAC-CHAP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names are the definition")]
pub enum Group {
    /// No exchange: an eavesdropper may try guesses of a weak secret at leisure.
    Null,
    Ffdhe2048,
    Ffdhe3072,
    Ffdhe4096,
    Ffdhe6144,
    Ffdhe8192,
}

impl Group {
    /// All of them, smallest first.
    pub const ALL: [Group; 6] = [
        Group::Null,
        Group::Ffdhe2048,
        Group::Ffdhe3072,
        Group::Ffdhe4096,
        Group::Ffdhe6144,
        Group::Ffdhe8192,
    ];

    /// The identifier on the wire.
    pub fn id(self) -> u8 {
        match self {
            Group::Null => 0,
            Group::Ffdhe2048 => 1,
            Group::Ffdhe3072 => 2,
            Group::Ffdhe4096 => 3,
            Group::Ffdhe6144 => 4,
            Group::Ffdhe8192 => 5,
        }
    }

    /// The group with this identifier.
    pub fn from_id(id: u8) -> Option<Group> {
        Group::ALL.into_iter().find(|group| group.id() == id)
    }

    /// Bytes of a public value; none without a group.
    pub fn value_len(self) -> usize {
        self.field().map_or(0, |field| field.bytes)
    }

    fn field(self) -> Option<Field> {
        let (bytes, x, exponent) = match self {
            Group::Null => return None,
            Group::Ffdhe2048 => (256, 560_316, 29),
            Group::Ffdhe3072 => (384, 2_625_351, 35),
            Group::Ffdhe4096 => (512, 5_736_041, 41),
            Group::Ffdhe6144 => (768, 15_705_020, 47),
            Group::Ffdhe8192 => (1024, 10_965_728, EXPONENT_LEN),
        };
        Some(Field { bytes, x, exponent })
    }
}

/// Bytes of the longest private exponent.
pub(super) const EXPONENT_LEN: usize = 50;

/// What tells one group from another.
struct Field {
    bytes: usize,
    x: u32,
    /// Bytes of a private exponent: RFC 7919's 225, 275, 325, 375 and 400 bits, rounded up.
    exponent: usize,
}

impl Field {
    fn prime(&self) -> Vec<u8> {
        let mut prime = vec![0xFF; self.bytes];
        let digits = E.as_bytes().chunks_exact(2);
        let middle = self.bytes - 16;
        for (byte, pair) in prime.iter_mut().skip(8).zip(digits).take(middle) {
            *byte = pair.iter().fold(0, |byte, &digit| byte << 4 | nibble(digit));
        }
        // The last −1 of the definition fills the low 64 bits with ones and borrows from above.
        let mut carry = self.x - 1;
        for byte in prime.iter_mut().skip(8).take(middle).rev() {
            let [low, high @ ..] = (u32::from(*byte) + carry).to_le_bytes();
            *byte = low;
            carry = high.into_iter().rev().fold(0, |sum, byte| sum << 8 | u32::from(byte));
        }
        prime
    }

    fn bits(&self) -> u32 {
        // At most 8192.
        u32::try_from(self.bytes * 8).unwrap_or(u32::MAX)
    }

    fn number(&self, bytes: &[u8]) -> Option<BoxedUint> {
        BoxedUint::from_be_slice(bytes, self.bits()).ok()
    }
}

fn nibble(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => digit - b'a' + 10,
    }
}

/// One side's part of an exchange; the private part is wiped when dropped.
pub(super) struct KeyPair {
    field: Field,
    modulus: BoxedMontyParams,
    exponent: Zeroizing<BoxedUint>,
    public: Vec<u8>,
}

impl KeyPair {
    /// From random bytes; nothing if there is no group to make it in.
    pub(super) fn new(group: Group, random: &[u8; EXPONENT_LEN]) -> Option<KeyPair> {
        let field = group.field()?;
        let prime: Odd<BoxedUint> = field.number(&field.prime())?.into_odd().into_option()?;
        // The modulus is public, so this may take its time to depend on it.
        let modulus = BoxedMontyParams::new_vartime(prime);
        let mut private = Zeroizing::new(*random);
        // The highest bit is set, so that the exponent is never a small number.
        private[0] |= 0x80;
        let short = private.get(..field.exponent)?;
        let exponent = Zeroizing::new(field.number(short)?);
        let generator = field.number(&[2])?;
        let mut pair = KeyPair { field, modulus, exponent, public: Vec::new() };
        pair.public = pair.raise(generator).to_be_bytes().into_vec();
        Some(pair)
    }

    /// What the other side is told.
    pub(super) fn public(&self) -> &[u8] {
        &self.public
    }

    /// The secret shared with whoever made `peer`, as long as the prime; nothing if the value is
    /// not one an honest peer sends.
    pub(super) fn shared(&self, peer: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        if peer.len() != self.field.bytes {
            return None;
        }
        let peer = self.field.number(peer)?;
        let one = BoxedUint::one_with_precision(self.field.bits());
        let last = self.modulus.modulus().as_ref().wrapping_sub(&one);
        if peer <= one || peer >= last {
            return None;
        }
        let shared = Zeroizing::new(self.raise(peer));
        Some(Zeroizing::new(shared.to_be_bytes().into_vec()))
    }

    fn raise(&self, base: BoxedUint) -> BoxedUint {
        let bits = u32::try_from(self.field.exponent * 8).unwrap_or(u32::MAX);
        BoxedMontyForm::new(base, &self.modulus).pow_bounded_exp(&self.exponent, bits).retrieve()
    }
}

#[cfg(test)]
mod tests {
    use super::super::hash::Hash;
    use super::super::vectors;
    use super::*;

    fn fingerprint(bytes: &[u8]) -> Vec<u8> {
        Hash::Sha256.digest(bytes).as_bytes().to_vec()
    }

    #[test]
    fn primes_and_values_match_those_computed_elsewhere() {
        for (group, prime, ours, shared) in vectors::GROUPS {
            let field = group.field().unwrap();
            assert_eq!(fingerprint(&field.prime()), vectors::bytes(prime), "{group:?}");
            let a = KeyPair::new(group, &vectors::EXPONENT_A).unwrap();
            let b = KeyPair::new(group, &vectors::EXPONENT_B).unwrap();
            assert_eq!(a.public().len(), group.value_len());
            assert_eq!(fingerprint(a.public()), vectors::bytes(ours), "{group:?}");
            let secret = a.shared(b.public()).unwrap();
            assert_eq!(fingerprint(&secret), vectors::bytes(shared), "{group:?}");
            assert_eq!(secret, b.shared(a.public()).unwrap());
        }
    }

    #[test]
    fn values_that_reveal_the_secret_are_refused() {
        let pair = KeyPair::new(Group::Ffdhe2048, &[1; EXPONENT_LEN]).unwrap();
        let prime = pair.field.prime();
        let small = |value: u8| {
            let mut bytes = vec![0; 256];
            bytes[255] = value;
            bytes
        };
        let below = |less: u8| {
            let mut bytes = prime.clone();
            bytes[255] -= less;
            bytes
        };
        for (value, allowed) in [
            (small(0), false),
            (small(1), false),
            (small(2), true),
            (below(2), true),
            (below(1), false),
            (below(0), false),
            (vec![0xFF; 256], false),
            (vec![2; 255], false),
            (vec![2; 257], false),
            (Vec::new(), false),
        ] {
            assert_eq!(pair.shared(&value).is_some(), allowed, "{:?}", value.last());
        }
    }

    #[test]
    fn the_null_group_has_no_keys() {
        assert!(KeyPair::new(Group::Null, &[1; EXPONENT_LEN]).is_none());
        assert_eq!(Group::Null.value_len(), 0);
    }
}
