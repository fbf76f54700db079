//! The hash functions and their keyed form.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest as _, Sha256, Sha384, Sha512};
use zeroize::Zeroize;

/// A hash function of DH-HMAC-CHAP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names are the definition")]
pub enum Hash {
    Sha256,
    Sha384,
    Sha512,
}

impl Hash {
    /// All of them, weakest first.
    pub const ALL: [Hash; 3] = [Hash::Sha256, Hash::Sha384, Hash::Sha512];

    /// The identifier on the wire and in the text of a secret.
    pub fn id(self) -> u8 {
        match self {
            Hash::Sha256 => 1,
            Hash::Sha384 => 2,
            Hash::Sha512 => 3,
        }
    }

    /// The function with this identifier.
    pub fn from_id(id: u8) -> Option<Hash> {
        Hash::ALL.into_iter().find(|hash| hash.id() == id)
    }

    /// How many bytes it yields.
    pub fn digest_len(self) -> usize {
        match self {
            Hash::Sha256 => 32,
            Hash::Sha384 => 48,
            Hash::Sha512 => 64,
        }
    }

    /// The hash of one string of bytes.
    pub(super) fn digest(self, bytes: &[u8]) -> Digest {
        match self {
            Hash::Sha256 => Digest::new(&Sha256::digest(bytes)),
            Hash::Sha384 => Digest::new(&Sha384::digest(bytes)),
            Hash::Sha512 => Digest::new(&Sha512::digest(bytes)),
        }
    }

    /// HMAC of the parts, one after the other.
    pub(super) fn mac(self, key: &[u8], parts: &[&[u8]]) -> Digest {
        match self {
            Hash::Sha256 => mac::<Hmac<Sha256>>(key, parts),
            Hash::Sha384 => mac::<Hmac<Sha384>>(key, parts),
            Hash::Sha512 => mac::<Hmac<Sha512>>(key, parts),
        }
    }
}

fn mac<M: Mac + KeyInit>(key: &[u8], parts: &[&[u8]]) -> Digest {
    let mut mac = <M as KeyInit>::new_from_slice(key)
        .unwrap_or_else(|_| unreachable!("HMAC takes keys of any length"));
    for part in parts {
        mac.update(part);
    }
    Digest::new(&mac.finalize().into_bytes())
}

/// What a hash yielded; wiped when dropped, because some are keys.
#[derive(Clone)]
pub(super) struct Digest {
    bytes: [u8; 64],
    len: usize,
}

impl Digest {
    fn new(from: &[u8]) -> Digest {
        let mut bytes = [0; 64];
        let (head, _) = bytes.split_at_mut(from.len());
        head.copy_from_slice(from);
        Digest { bytes, len: from.len() }
    }

    /// Its bytes.
    pub(super) fn as_bytes(&self) -> &[u8] {
        self.bytes.split_at(self.len).0
    }
}

impl Drop for Digest {
    fn drop(&mut self) {
        self.bytes.zeroize();
    }
}
