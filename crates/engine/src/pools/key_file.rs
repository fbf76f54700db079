//! Wrapping keys in files: one key a file, readable by its owner only.
//!
//! A file holds 32 bytes, or 64 hexadecimal digits and white space around them. It is read when the
//! key is needed, and not kept.
//!
//! Deliberately not here: what a key wraps ([`super::key`]), which file is meant (the callers).

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use super::key::WrappingKey;

/// Why a file gives no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// The system refused.
    #[error("the key file {} cannot be read", .path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Others may read it.
    #[error(
        "others may use the key file {path} (its mode is {mode:o}); run: chmod 600 {path}",
        path = .path.display()
    )]
    Open {
        /// Which file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// It holds something else.
    #[error(
        "the key file {} holds no key: it must be 32 bytes or 64 hexadecimal digits; \
         make one with: openssl rand -hex 32",
        .path.display()
    )]
    NoKey {
        /// Which file.
        path: PathBuf,
    },
}

/// Length of a key.
const KEY: usize = 32;
/// Longer than any key with white space around it.
const MOST: u64 = 256;

impl WrappingKey {
    /// The key in a file.
    pub fn read(path: &Path) -> Result<WrappingKey, KeyFileError> {
        let failed = |source| KeyFileError::Read { path: path.into(), source };
        let file = File::open(path).map_err(failed)?;
        let found = file.metadata().map_err(failed)?;
        if !found.is_file() {
            return Err(KeyFileError::NoKey { path: path.into() });
        }
        let mode = found.permissions().mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(KeyFileError::Open { path: path.into(), mode });
        }
        // Room for all of it from the start: growing would leave copies behind.
        let mut bytes = Zeroizing::new(Vec::with_capacity(usize::try_from(MOST).unwrap_or(KEY)));
        file.take(MOST).read_to_end(&mut bytes).map_err(failed)?;
        let key = key_in(&bytes).and_then(|mut key| WrappingKey::new(&mut *key).ok());
        key.ok_or_else(|| KeyFileError::NoKey { path: path.into() })
    }
}

fn key_in(bytes: &[u8]) -> Option<Zeroizing<[u8; KEY]>> {
    if let Ok(key) = bytes.try_into() {
        return Some(Zeroizing::new(key));
    }
    let digits = bytes.trim_ascii();
    let mut key = Zeroizing::new([0; KEY]);
    if digits.len() != 2 * KEY {
        return None;
    }
    for (byte, pair) in key.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |at: usize| pair.get(at).and_then(|digit| char::from(*digit).to_digit(16));
        *byte = u8::try_from(digit(0)? * 16 + digit(1)?).ok()?;
    }
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn read(bytes: &[u8], mode: u32) -> Result<WrappingKey, KeyFileError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        WrappingKey::read(&path)
    }

    #[test]
    fn bytes_and_digits_are_the_same_key() {
        let raw = read(&[0xAB; 32], 0o600).unwrap();
        let digits = read(format!("{}\n", "aB".repeat(32)).as_bytes(), 0o400).unwrap();
        let wrapped = raw.new_data_key().unwrap();
        assert!(digits.rewrap(&wrapped, &raw).is_ok());
    }

    #[test]
    fn what_is_no_key_is_refused_and_not_shown() {
        let long = "ab".repeat(40);
        for bad in [&b""[..], b"short", &[7; 31], &[7; 33], long.as_bytes(), &[b'x'; 64]] {
            let error = read(bad, 0o600).unwrap_err();
            assert!(matches!(error, KeyFileError::NoKey { .. }), "{bad:?}");
            let text = String::from_utf8_lossy(bad).into_owned();
            assert!(text.is_empty() || !error.to_string().contains(&text));
        }
    }

    #[test]
    fn a_key_that_others_may_use_is_refused() {
        for mode in [0o644, 0o640, 0o602, 0o660] {
            let error = read(&[1; 32], mode).unwrap_err();
            assert!(matches!(error, KeyFileError::Open { mode: found, .. } if found == mode));
            assert!(error.to_string().contains("chmod 600"), "{error}");
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = WrappingKey::read(Path::new("/nowhere/key")).unwrap_err();
        assert!(error.to_string().contains("/nowhere/key"), "{error}");
        let folder = tempfile::tempdir().unwrap();
        let error = WrappingKey::read(folder.path()).unwrap_err();
        assert!(matches!(error, KeyFileError::NoKey { .. }), "{error}");
    }
}
