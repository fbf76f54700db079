//! Secrets as operators write them: `DHHC-1:HH:base64(key ‖ crc32(key)):`.
//!
//! `HH` says whether the key is used as it is (`00`) or first bound to the name of its owner with a
//! hash (`01` SHA-256, `02` SHA-384, `03` SHA-512). The checksum catches a mistyped secret.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

use subtle::ConstantTimeEq;
use zeroize::{Zeroize, Zeroizing};

use super::hash::Hash;
use super::response::Names;

const PREFIX: &str = "DHHC-1:";
/// Appended to the owner's name when a key is bound to it.
const BINDING: &[u8] = b"NVMe-over-Fabrics";
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// A shared secret. Wiped when dropped; printing it shows that there is one, not which.
#[derive(Clone)]
pub struct Secret {
    key: Zeroizing<Vec<u8>>,
    bound_with: Option<Hash>,
}

impl Secret {
    /// A secret from random bytes: 32, 48 or 64 of them.
    pub fn new(key: &[u8], bound_with: Option<Hash>) -> Result<Secret, BadSecret> {
        match key.len() {
            32 | 48 | 64 => Ok(Secret { key: Zeroizing::new(key.to_vec()), bound_with }),
            bytes => Err(BadSecret::Length { bytes }),
        }
    }

    /// The text an operator would configure elsewhere.
    pub fn to_text(&self) -> Zeroizing<String> {
        let mut bytes = Zeroizing::new(Vec::with_capacity(self.key.len() + 4));
        bytes.extend_from_slice(&self.key);
        bytes.extend_from_slice(&crc32(&self.key).to_le_bytes());
        // Sized in advance, so that growing leaves no copy of the secret behind.
        let mut text = Zeroizing::new(String::with_capacity(PREFIX.len() + 4 + bytes.len() * 2));
        text.push_str(PREFIX);
        text.push('0');
        text.push(char::from(b'0' + self.bound_with.map_or(0, Hash::id)));
        text.push(':');
        encode(&bytes, &mut text);
        text.push(':');
        text
    }

    /// A secret for one purpose between two parties, from which neither this one nor that of other
    /// parties or purposes can be found: HKDF with SHA-256 (RFC 5869), the purpose as salt, both
    /// names as info.
    #[must_use]
    pub fn derive(&self, purpose: &str, names: &Names) -> Secret {
        let extracted = Hash::Sha256.mac(purpose.as_bytes(), &[&self.key]);
        // A name has no zero byte, so no two pairs of names look alike. One block is enough.
        let info = [names.host.as_bytes(), &[0], names.subsystem.as_bytes(), &[1]];
        let expanded = Hash::Sha256.mac(extracted.as_bytes(), &info);
        Secret { key: Zeroizing::new(expanded.as_bytes().to_vec()), bound_with: None }
    }

    /// The key that answers are made with when `owner` proves itself.
    pub(super) fn key_of(&self, owner: &str) -> Zeroizing<Vec<u8>> {
        match self.bound_with {
            None => self.key.clone(),
            Some(hash) => {
                let bound = hash.mac(&self.key, &[owner.as_bytes(), BINDING]);
                Zeroizing::new(bound.as_bytes().to_vec())
            }
        }
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Secret) -> bool {
        self.bound_with == other.bound_with && bool::from(self.key.ct_eq(&other.key))
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(hidden)")
    }
}

impl FromStr for Secret {
    type Err = BadSecret;

    fn from_str(text: &str) -> Result<Secret, BadSecret> {
        let rest = text.trim().strip_prefix(PREFIX).ok_or(BadSecret::Form)?;
        let (kind, encoded) = rest.split_once(':').ok_or(BadSecret::Form)?;
        let bound_with = match kind {
            "00" => None,
            "01" => Some(Hash::Sha256),
            "02" => Some(Hash::Sha384),
            "03" => Some(Hash::Sha512),
            _ => return Err(BadSecret::Hash),
        };
        // The closing colon is part of the form, but some tools leave it out.
        let encoded = encoded.strip_suffix(':').unwrap_or(encoded);
        let bytes = Zeroizing::new(decode(encoded).ok_or(BadSecret::Base64)?);
        let Some((key, sum)) = bytes.split_last_chunk::<4>() else {
            return Err(BadSecret::Length { bytes: 0 });
        };
        let secret = Secret::new(key, bound_with)?;
        if u32::from_le_bytes(*sum) != crc32(key) {
            return Err(BadSecret::Checksum);
        }
        Ok(secret)
    }
}

/// Why the text of a secret was refused. None of these repeats any of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSecret {
    /// The frame around the key is wrong.
    #[error("a secret looks like DHHC-1:01:<base64>: (see `nvme gen-dhchap-key`)")]
    Form,
    /// The number after the first colon is unknown.
    #[error("the hash of a secret is 00 (none), 01 (SHA-256), 02 (SHA-384) or 03 (SHA-512)")]
    Hash,
    /// The key is not base64.
    #[error("the key of the secret is not base64; copy it again, without spaces")]
    Base64,
    /// The key has the wrong length.
    #[error("the key of the secret has {bytes} bytes; it must have 32, 48 or 64")]
    Length {
        /// How many bytes were found.
        bytes: usize,
    },
    /// The key and its checksum disagree.
    #[error("the checksum of the secret does not match; it was mistyped or cut")]
    Checksum,
}

/// CRC-32 as in Ethernet and zip. Secrets are short, so no table.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |sum, &byte| {
        (0..8).fold(sum ^ u32::from(byte), |sum, _| {
            // All ones when the lowest bit is set, else zero: no branch on key bits.
            (sum >> 1) ^ (0xEDB8_8320 & (sum & 1).wrapping_neg())
        })
    })
}

fn encode(bytes: &[u8], text: &mut String) {
    for chunk in bytes.chunks(3) {
        let mut word = [0; 4];
        for (to, from) in word.iter_mut().skip(1).zip(chunk) {
            *to = *from;
        }
        let bits = u32::from_be_bytes(word);
        for place in 0..4 {
            // A chunk of n bytes has n+1 digits; the rest is padding.
            let digit = if place <= chunk.len() {
                let index = usize::try_from(bits >> (18 - 6 * place) & 63).unwrap_or(0);
                ALPHABET.get(index).copied().unwrap_or(b'=')
            } else {
                b'='
            };
            text.push(char::from(digit));
        }
        word.zeroize();
    }
}

/// Exactly the texts `encode` can make: padded, and with no stray bits at the end.
fn decode(text: &str) -> Option<Vec<u8>> {
    let groups = text.as_bytes().chunks_exact(4);
    if !groups.remainder().is_empty() {
        return None;
    }
    let count = groups.len();
    let mut bytes = Vec::with_capacity(count * 3);
    for (at, group) in groups.enumerate() {
        let padding = group.iter().rev().take_while(|&&digit| digit == b'=').count();
        if padding > 2 || (padding > 0 && at + 1 != count) {
            return None;
        }
        let mut bits = 0u32;
        for digit in group.iter().take(4 - padding) {
            let value = ALPHABET.iter().position(|known| known == digit)?;
            bits = bits << 6 | u32::try_from(value).ok()?;
        }
        bits <<= 6 * padding;
        let [_, decoded @ ..] = bits.to_be_bytes();
        let (kept, stray) = decoded.split_at(3 - padding);
        if stray.iter().any(|&byte| byte != 0) {
            return None;
        }
        bytes.extend_from_slice(kept);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::super::vectors;
    use super::*;
    use alloc::format;
    use alloc::string::ToString;
    use proptest::prelude::*;

    #[test]
    fn secrets_made_elsewhere_are_read_and_written_alike() {
        for (text, key) in vectors::SECRETS {
            let secret: Secret = text.parse().unwrap();
            assert_eq!(secret.key.as_slice(), vectors::bytes(key));
            assert_eq!(secret.to_text().as_str(), text);
        }
    }

    #[test]
    fn keys_are_bound_to_their_owner() {
        for (text, owner, bound) in vectors::BOUND_KEYS {
            let secret: Secret = text.parse().unwrap();
            assert_eq!(secret.key_of(owner).as_slice(), vectors::bytes(bound));
        }
    }

    #[test]
    fn a_bad_secret_is_refused_without_repeating_it() {
        let (good, _) = vectors::SECRETS[0];
        let body = &good[10..good.len() - 1];
        for (text, refused) in [
            (String::new(), BadSecret::Form),
            ("DHHC-2:00:AAAA:".to_string(), BadSecret::Form),
            ("DHHC-1:00".to_string(), BadSecret::Form),
            (format!("DHHC-1:04:{body}:"), BadSecret::Hash),
            (format!("DHHC-1:0:{body}:"), BadSecret::Hash),
            (format!("DHHC-1:00:{}*:", &body[1..]), BadSecret::Base64),
            (format!("DHHC-1:00:{body}=:"), BadSecret::Base64),
            ("DHHC-1:00:AAA=AAAA:".to_string(), BadSecret::Base64),
            ("DHHC-1:00:AB==:".to_string(), BadSecret::Base64),
            ("DHHC-1:00:AAAA:".to_string(), BadSecret::Length { bytes: 0 }),
            ("DHHC-1:00:AAAAAAAA:".to_string(), BadSecret::Length { bytes: 2 }),
            (format!("DHHC-1:00:{}{body}:", "AAAA"), BadSecret::Length { bytes: 35 }),
        ] {
            assert_eq!(text.parse::<Secret>().unwrap_err(), refused, "{text}");
            assert!(text.len() < 16 || !refused.to_string().contains(&text[10..]));
        }
        let swapped = good.replacen(&body[..4], "AAAA", 1);
        assert_eq!(swapped.parse::<Secret>().unwrap_err(), BadSecret::Checksum);
    }

    /// Computed with the HMAC of another implementation, as RFC 5869 says.
    #[test]
    fn derived_secrets_match_those_computed_elsewhere() {
        let root: Vec<u8> = (0..32).collect();
        let root = Secret::new(&root, None).unwrap();
        let names = |host: &str, subsystem: &str| Names {
            host: host.to_string(),
            subsystem: subsystem.to_string(),
        };
        let derived = root.derive("purpose", &names("nqn.a", "nqn.b"));
        let expected = "bd5682aa658f01e39657e45a91f89a0ca0b553415750100cdca75b7aa7f830de";
        assert_eq!(derived.key.as_slice(), vectors::bytes(expected));
        for other in [
            root.derive("other", &names("nqn.a", "nqn.b")),
            root.derive("purpose", &names("nqn.b", "nqn.a")),
            root.derive("purpose", &names("nqn.an", "qn.b")),
            Secret::new(&[1; 32], None).unwrap().derive("purpose", &names("nqn.a", "nqn.b")),
        ] {
            assert_ne!(derived, other);
        }
    }

    #[test]
    fn printing_hides_the_key() {
        let secret = Secret::new(&[7; 32], None).unwrap();
        assert_eq!(format!("{secret:?}"), "Secret(hidden)");
        let keys = super::super::Keys { host: secret.clone(), controller: Some(secret) };
        assert!(!format!("{keys:?}").contains('7'));
    }

    #[test]
    fn a_missing_last_colon_is_forgiven() {
        let (good, _) = vectors::SECRETS[1];
        assert!(good.trim_end_matches(':').parse::<Secret>().is_ok());
    }

    proptest! {
        #[test]
        fn base64_both_ways(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let mut text = String::new();
            encode(&bytes, &mut text);
            prop_assert_eq!(decode(&text), Some(bytes));
        }

        #[test]
        fn any_text_is_a_secret_or_refused(text in "(DHHC-1:0[0-4]:)?[A-Za-z0-9+/=:]{0,100}") {
            if let Ok(secret) = text.parse::<Secret>() {
                prop_assert!(secret.to_text().starts_with(text.trim_end_matches(':')));
            }
        }

        #[test]
        fn one_wrong_byte_is_found(at in 0usize..32, flip in 1u8..=255) {
            let mut bytes = alloc::vec![9; 32];
            let sum = crc32(&bytes);
            bytes[at] ^= flip;
            prop_assert_ne!(crc32(&bytes), sum);
        }
    }
}
