//! The secret by which the engines of this cluster know each other, made once.

use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::rand::{GetRandomFlags, getrandom};
use zeroize::Zeroizing;

/// Bytes of a secret.
const BYTES: usize = 32;

/// Where it is.
pub(super) fn place(dir: &Path) -> PathBuf {
    dir.join("cluster.secret")
}

/// Makes it if it is not there. After a crash it is there as a whole, or not.
pub(super) fn ensure(dir: &Path) -> Result<()> {
    let path = place(dir);
    if path.try_exists().with_context(|| format!("cannot look for {}", path.display()))? {
        return Ok(());
    }
    let new = path.with_extension("new");
    make(dir, &new, &path).with_context(|| format!("cannot write {}", path.display()))
}

fn make(dir: &Path, new: &Path, path: &Path) -> Result<()> {
    match std::fs::remove_file(new) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(new)?;
    file.write_all(text()?.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(new, path)?;
    Ok(File::open(dir)?.sync_all()?)
}

/// Random bytes in hexadecimal.
fn text() -> Result<Zeroizing<String>> {
    let mut bytes = Zeroizing::new([0; BYTES]);
    let mut left = &mut bytes[..];
    while !left.is_empty() {
        let got = getrandom(&mut *left, GetRandomFlags::empty())?;
        left = left.get_mut(got..).unwrap_or_default();
    }
    // Room for all of it from the start: growing would leave copies behind.
    let mut text = Zeroizing::new(String::with_capacity(2 * BYTES + 1));
    for byte in bytes.iter() {
        for digit in [byte >> 4, byte & 15] {
            text.push(char::from_digit(digit.into(), 16).unwrap_or('0'));
        }
    }
    text.push('\n');
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use engine::replication::ClusterSecret;

    use super::*;

    #[test]
    fn a_secret_is_made_once_and_for_its_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        // What a crash left behind does no harm.
        std::fs::write(dir.path().join("cluster.new"), "half").unwrap();
        ensure(dir.path()).unwrap();
        let path = place(dir.path());
        let first = std::fs::read(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        ClusterSecret::read(&path).unwrap();
        ensure(dir.path()).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), first);
        let other = tempfile::tempdir().unwrap();
        ensure(other.path()).unwrap();
        assert_ne!(std::fs::read(place(other.path())).unwrap(), first);
    }
}
