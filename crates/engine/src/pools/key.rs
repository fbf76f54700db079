//! Data keys of replicas, wrapped by a key that the operator supplies.
//!
//! ```text
//!   0        16       17      29             93       109
//!   | check  | form 1 | nonce | 64 of the key | GCM tag |
//! ```
//!
//! The check value is a hash of the data key, so it stays the same when the key is wrapped anew,
//! and a wrong data key is noticed before a block is read with it.

use std::io;
use std::rc::Rc;
use std::sync::Arc;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use block::Command;
use pool::{Id, KEY_CHECK};
use sha2::{Digest, Sha256};
use zeroize::{Zeroize, Zeroizing};

use super::cipher::Cipher;
use super::pool_command::BlockCipher;
use super::{Open, PoolError};
use crate::entropy;

/// A key that wraps data keys: AES-256-GCM.
#[derive(Clone)]
pub struct WrappingKey(Arc<LessSafeKey>);

impl core::fmt::Debug for WrappingKey {
    /// Nothing of the key.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("WrappingKey")
    }
}

/// Why a data key cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// Not 32 bytes.
    #[error("a wrapping key has 32 bytes, not {0}")]
    Length(usize),
    /// Another key wrapped it, or it was changed.
    #[error(
        "the key that was given does not open this replica; give the one it was made \
         with, or the last one it was rotated to"
    )]
    Wrong,
    /// Not in a form that is known here.
    #[error("the wrapped key of this replica is damaged, or of a newer version")]
    Damaged,
    /// No random numbers.
    #[error("the system gives no random numbers")]
    Random(#[source] io::Error),
}

/// Form of what follows the check value.
const FORM: u8 = 1;

impl WrappingKey {
    /// Takes a key over; the caller's copy is overwritten.
    pub fn new(key: &mut [u8]) -> Result<WrappingKey, KeyError> {
        let made = UnboundKey::new(&AES_256_GCM, key).map_err(|_| KeyError::Length(key.len()));
        key.zeroize();
        Ok(WrappingKey(Arc::new(LessSafeKey::new(made?))))
    }

    /// A new data key, wrapped: what a pool keeps with a replica.
    pub fn new_data_key(&self) -> Result<Vec<u8>, KeyError> {
        let mut key = Zeroizing::new([0; Cipher::KEY]);
        entropy::fill(&mut *key).map_err(KeyError::Random)?;
        self.wrap(&key)
    }

    /// The same data key, wrapped by another key.
    pub fn rewrap(&self, wrapped: &[u8], by: &WrappingKey) -> Result<Vec<u8>, KeyError> {
        by.wrap(&*self.unwrap(wrapped)?)
    }

    /// What the data key encrypts, with its check value.
    pub(super) fn cipher(&self, wrapped: &[u8]) -> Result<([u8; KEY_CHECK], Cipher), KeyError> {
        let key = self.unwrap(wrapped)?;
        Ok((check_of(&key), Cipher::new(&key)))
    }

    fn wrap(&self, key: &[u8; Cipher::KEY]) -> Result<Vec<u8>, KeyError> {
        let mut nonce = [0; NONCE_LEN];
        entropy::fill(&mut nonce).map_err(KeyError::Random)?;
        let check = check_of(key);
        let mut sealed = key.to_vec();
        self.0
            .seal_in_place_append_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(check),
                &mut sealed,
            )
            .map_err(|_| KeyError::Damaged)?;
        Ok([&check[..], &[FORM], &nonce, &sealed].concat())
    }

    fn unwrap(&self, wrapped: &[u8]) -> Result<Zeroizing<[u8; Cipher::KEY]>, KeyError> {
        let (check, rest) = wrapped.split_first_chunk::<KEY_CHECK>().ok_or(KeyError::Damaged)?;
        let (form, rest) = rest.split_first().ok_or(KeyError::Damaged)?;
        let (nonce, sealed) = rest.split_first_chunk::<NONCE_LEN>().ok_or(KeyError::Damaged)?;
        if *form != FORM {
            return Err(KeyError::Damaged);
        }
        let mut sealed = Zeroizing::new(sealed.to_vec());
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let opened = self.0.open_in_place(nonce, Aad::from(*check), &mut sealed);
        let opened = opened.map_err(|_| KeyError::Wrong)?;
        let key: [u8; Cipher::KEY] = (&*opened).try_into().map_err(|_| KeyError::Damaged)?;
        Ok(Zeroizing::new(key))
    }
}

fn check_of(key: &[u8; Cipher::KEY]) -> [u8; KEY_CHECK] {
    let mut hash = Sha256::new();
    hash.update(b"holdfast data key");
    hash.update(key);
    let mut check = [0; KEY_CHECK];
    check.iter_mut().zip(hash.finalize()).for_each(|(to, from)| *to = from);
    check
}

impl Open {
    /// How the blocks of a command are encrypted, if they are.
    pub(super) fn sealed(&self, id: Id, command: Command) -> Option<BlockCipher> {
        if self.ciphers.is_empty() {
            return None;
        }
        let entity = self.pool.entity(id)?;
        let check = entity.key.first_chunk::<KEY_CHECK>()?;
        let cipher = Rc::clone(self.ciphers.get(check)?);
        Some(BlockCipher { cipher, first: command.span()?.start().0 })
    }

    /// Lets an encrypted replica, and what has its key, take commands.
    pub(super) fn unlock(&mut self, id: Id, key: &WrappingKey) -> Result<(), PoolError> {
        let entity = self.pool.entity(id).ok_or(pool::Refused::NotFound)?;
        if !entity.is_encrypted() {
            return Ok(());
        }
        let (check, cipher) = key.cipher(&entity.key)?;
        let same = |entity: &&pool::Entity| entity.key.starts_with(&check);
        let family: Vec<Id> = self.pool.entities().filter(same).map(|entity| entity.id).collect();
        for id in family {
            self.pool.unlock(id, check)?;
        }
        self.ciphers.entry(check).or_insert_with(|| Rc::new(cipher));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrapping(byte: u8) -> WrappingKey {
        WrappingKey::new(&mut [byte; 32]).unwrap()
    }

    #[test]
    fn a_data_key_is_the_same_after_rotation() {
        let (old, new) = (wrapping(1), wrapping(2));
        let wrapped = old.new_data_key().unwrap();
        let rotated = old.rewrap(&wrapped, &new).unwrap();
        assert_ne!(wrapped, rotated);
        assert_eq!(old.unwrap(&wrapped).unwrap(), new.unwrap(&rotated).unwrap());
        assert_eq!(wrapped[..KEY_CHECK], rotated[..KEY_CHECK]);
    }

    #[test]
    fn the_wrong_key_is_refused() {
        let wrapped = wrapping(1).new_data_key().unwrap();
        assert!(matches!(wrapping(2).cipher(&wrapped), Err(KeyError::Wrong)));
        assert!(matches!(wrapping(2).rewrap(&wrapped, &wrapping(1)), Err(KeyError::Wrong)));
    }

    #[test]
    fn two_data_keys_differ() {
        let key = wrapping(1);
        assert_ne!(
            key.unwrap(&key.new_data_key().unwrap()).unwrap(),
            key.unwrap(&key.new_data_key().unwrap()).unwrap()
        );
    }

    #[test]
    fn every_changed_byte_is_noticed() {
        let key = wrapping(1);
        let wrapped = key.new_data_key().unwrap();
        for at in 0..wrapped.len() {
            let mut changed = wrapped.clone();
            changed[at] ^= 1;
            assert!(key.unwrap(&changed).is_err(), "byte {at}");
            assert!(key.unwrap(&wrapped[..at]).is_err(), "cut at {at}");
        }
    }

    proptest::proptest! {
        /// Bytes that were read from a disk are refused or opened, and nothing else.
        #[test]
        fn no_bytes_make_it_panic(
            bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..300),
            at in 0usize..200,
            value in proptest::num::u8::ANY,
        ) {
            let key = wrapping(1);
            proptest::prop_assert!(key.unwrap(&bytes).is_err());
            let mut changed = key.new_data_key().unwrap();
            let kept = changed.clone();
            changed.truncate(at.max(1));
            changed.extend_from_slice(&bytes);
            let last = changed.len() - 1;
            changed[at.min(last)] = value;
            proptest::prop_assert_eq!(key.unwrap(&changed).is_ok(), changed == kept);
        }
    }

    #[test]
    fn a_key_of_another_length_is_refused_and_none_is_printed() {
        assert!(matches!(WrappingKey::new(&mut [1; 31]), Err(KeyError::Length(31))));
        assert_eq!(format!("{:?}", wrapping(7)), "WrappingKey");
    }

    #[test]
    fn the_callers_copy_is_overwritten() {
        let mut key = [5; 32];
        WrappingKey::new(&mut key).unwrap();
        assert_eq!(key, [0; 32]);
    }
}
