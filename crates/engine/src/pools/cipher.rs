//! Encryption at rest: AES-256-XTS of 4 KiB blocks, with the logical block as the tweak.
//!
//! XTS is made here from the block cipher of the `aes` crate (AES-NI where the processor has it):
//! the libraries that offer it whole need `unsafe` calls, or work on one block at a time.
//!
//! Deliberately not here: where keys come from and how they are kept ([`super::key`]).

use aes::Aes256;
use aes::cipher::{Array, Block, BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use reactor::PAGE;

/// Encrypts and decrypts the blocks of a replica.
pub(super) struct Cipher {
    data: Aes256,
    tweak: Aes256,
}

impl core::fmt::Debug for Cipher {
    /// Nothing of the key.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Cipher")
    }
}

/// Cipher blocks of a block of a replica.
const UNITS: usize = PAGE / 16;
/// The polynomial of GF(2^128), as IEEE 1619 has it.
const FEEDBACK: u128 = 0x87;

impl Cipher {
    /// Length of a data key: one half for the data, one for the tweak.
    pub(super) const KEY: usize = 64;

    pub(super) fn new(key: &[u8; Cipher::KEY]) -> Cipher {
        let (data, tweak) = key.split_at(Cipher::KEY / 2);
        let half = |half: &[u8]| {
            let mut key = Array::default();
            key.copy_from_slice(half);
            Aes256::new(&key)
        };
        Cipher { data: half(data), tweak: half(tweak) }
    }

    /// Encrypts whole blocks, the first of which is number `first`.
    pub(super) fn encrypt(&self, first: u64, bytes: &mut [u8]) {
        self.each(first, bytes, |units| self.data.encrypt_blocks(units));
    }

    /// Decrypts whole blocks, the first of which is number `first`.
    pub(super) fn decrypt(&self, first: u64, bytes: &mut [u8]) {
        self.each(first, bytes, |units| self.data.decrypt_blocks(units));
    }

    fn each(&self, first: u64, bytes: &mut [u8], turn: impl Fn(&mut [Block<Aes256>])) {
        for (page, number) in bytes.chunks_exact_mut(PAGE).zip(first..) {
            let masks = self.masks(number);
            let mut units = [Block::<Aes256>::default(); UNITS];
            for ((unit, bytes), mask) in units.iter_mut().zip(page.chunks_exact(16)).zip(masks) {
                unit.copy_from_slice(bytes);
                mix(unit, mask);
            }
            turn(&mut units);
            for ((unit, bytes), mask) in units.iter_mut().zip(page.chunks_exact_mut(16)).zip(masks)
            {
                mix(unit, mask);
                bytes.copy_from_slice(unit);
            }
        }
    }

    /// What each unit of a block is mixed with.
    fn masks(&self, number: u64) -> [u128; UNITS] {
        let mut start = Block::<Aes256>::from(u128::from(number).to_le_bytes());
        self.tweak.encrypt_block(&mut start);
        let mut mask = u128::from_le_bytes(start.into());
        core::array::from_fn(|_| {
            let now = mask;
            mask = (mask << 1) ^ (FEEDBACK * (mask >> 127));
            now
        })
    }
}

fn mix(unit: &mut Block<Aes256>, mask: u128) {
    for (byte, mask) in unit.iter_mut().zip(mask.to_le_bytes()) {
        *byte ^= mask;
    }
}

#[cfg(test)]
mod vectors;

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
            .collect()
    }

    /// The key of vectors 10 to 14 of IEEE 1619-2007, for data units of 512 bytes.
    fn standard_key() -> [u8; 64] {
        let key = bytes(
            "27182818284590452353602874713526624977572470936999595749669676273141592653589793\
             238462643383279502884197169399375105820974944592",
        );
        key.try_into().unwrap()
    }

    fn counting() -> Vec<u8> {
        (0..PAGE).map(|at| u8::try_from(at % 256).unwrap()).collect()
    }

    #[test]
    fn as_the_standard_has_it() {
        let cipher = Cipher::new(&standard_key());
        for (number, expected) in vectors::STANDARD {
            // The first units of a data unit do not depend on how long it is.
            let mut page = counting();
            cipher.encrypt(number, &mut page);
            assert_eq!(page[..512], bytes(expected), "{number:x}");
            cipher.decrypt(number, &mut page);
            assert_eq!(page, counting());
        }
    }

    #[test]
    fn all_units_of_a_page_are_as_another_implementation_has_them() {
        let cipher = Cipher::new(&standard_key());
        for (number, expected) in vectors::PAGES {
            let mut page = counting();
            cipher.encrypt(number, &mut page);
            assert_eq!(crc32c::crc32c(&page), expected, "{number:x}");
        }
    }

    #[test]
    fn the_place_of_a_block_matters() {
        let cipher = Cipher::new(&standard_key());
        let mut together = vec![7; 2 * PAGE];
        cipher.encrypt(4, &mut together);
        let mut apart = vec![7; PAGE];
        cipher.encrypt(5, &mut apart);
        assert_eq!(together[PAGE..], apart);
        assert_ne!(together[..PAGE], apart);
        // Equal units within a block do not look equal either.
        assert_ne!(apart[..16], apart[16..32]);
    }

    #[test]
    fn the_key_is_not_printed() {
        assert_eq!(format!("{:?}", Cipher::new(&[9; 64])), "Cipher");
    }
}
