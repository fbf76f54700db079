//! How the engines of a cluster meet: what a target and the engine of a replica prove to each
//! other, and how their bytes are protected on the way.
//!
//! ```text
//!   cluster secret ──HKDF(purpose, host NQN, replica NQN)──► host's key, controller's key
//!                                                                 │                │
//!   target ── Connect ──► engine of the replica ── DH-HMAC-CHAP ──┴── both prove ──┘
//! ```
//!
//! Each pair of names has keys of its own, so what one queue knows opens nothing else. The file of
//! the secret holds one line, or two while it is replaced: the first is proved with, all are
//! accepted. It is looked at again from time to time, so that no engine is stopped for it. The
//! second line may be `none` while a cluster that had no secret gets one: engines without one are
//! accepted, and asked for no proof.
//!
//! The exchange has no Diffie-Hellman group. A group keeps who listens from guessing a weak secret;
//! this one is 32 random bytes. An exponentiation takes milliseconds on a reactor, twice for each
//! queue, while every volume of a node attaches its replicas anew; and a stranger could make an
//! engine compute them for nothing.
//!
//! Invariant: nothing of a secret is in an error or a log, and its bytes are wiped when dropped.
//!
//! Deliberately not here: who may attach which replica (the list of hosts of its subsystem),
//! secrecy on the wire, and protection from somebody who can change packets on their way: digests
//! find accidents, not intent.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use nvme::auth::{Accepted, ControllerSide, Group, Hash, Keys, Names, Secret};
use nvme::initiator::{Association, Host, Options};
use nvme::pdu::Digests;
use nvme::wire::Nqn;
use zeroize::Zeroizing;

/// How engines speak to each other.
#[derive(Clone, Debug)]
pub struct Replication {
    /// What both sides prove that they know; nothing: whoever is listed as a host is believed.
    pub secret: Option<Arc<ClusterSecret>>,
    /// Checksums of what goes over the wire between them.
    pub digests: Digests,
}

impl Default for Replication {
    fn default() -> Replication {
        Replication { secret: None, digests: Digests { header: true, data: true } }
    }
}

impl Replication {
    /// How a target connects to a replica.
    pub fn association(&self, host: Host, subsystem: Nqn, options: Options) -> Association {
        let keys = self.secret.as_ref().map(|secret| secret.keys(&host.nqn, &subsystem));
        let options = Options { digests: self.digests, ..options };
        Association { host, subsystem, keys, accepted: accepted(), options }
    }
}

/// What all engines of a cluster know, and nobody else.
#[derive(Debug)]
pub struct ClusterSecret {
    path: PathBuf,
    secrets: RwLock<Secrets>,
}

/// What is in a file.
#[derive(Debug, PartialEq, Eq)]
struct Secrets {
    /// The one that is proved with.
    first: Secret,
    /// The one that is accepted as well.
    second: Option<Secret>,
    /// Engines that know none are accepted as well.
    is_optional: bool,
}

/// Why a file gives no cluster secret.
#[derive(Debug, thiserror::Error)]
pub enum SecretFileError {
    /// The system refused.
    #[error("the cluster secret {} cannot be read", .path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Others may read it.
    #[error(
        "others may read the cluster secret {path} (its mode is {mode:o}); run: chmod 600 {path}",
        path = .path.display()
    )]
    Mode {
        /// Which file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// It allows engines without a secret, which did not hold before.
    #[error(
        "the cluster secret {} has the line `none` now, which is heeded only at the start of an \
         engine: remove the line, or restart the engine",
        .path.display()
    )]
    Loosened {
        /// Which file.
        path: PathBuf,
    },
    /// It holds something else.
    #[error(
        "the cluster secret {} must be one line of 64 hexadecimal digits, or two while it is \
         replaced (the second may be `none` while engines without a secret are left); make one \
         with: openssl rand -hex 32",
        .path.display()
    )]
    Form {
        /// Which file.
        path: PathBuf,
    },
}

/// Bytes of a secret.
const BYTES: usize = 32;
/// The second line while engines without a secret are left.
const NONE: &[u8] = b"none";
/// Longer than any good file.
const MOST_TEXT: u64 = 512;
/// What keys are derived for. Another protocol would have another purpose, and so other keys.
const OF_HOST: &str = "holdfast replication 1 host";
const OF_CONTROLLER: &str = "holdfast replication 1 controller";

impl ClusterSecret {
    /// The secret in a file.
    pub fn read(path: &Path) -> Result<ClusterSecret, SecretFileError> {
        let secrets = RwLock::new(read(path)?);
        Ok(ClusterSecret { path: path.into(), secrets })
    }

    /// Looks at the file again: how many secrets are accepted from now on, if that is new. After an
    /// error those of before are.
    pub fn reload(&self) -> Result<Option<usize>, SecretFileError> {
        let found = read(&self.path)?;
        let mut secrets = self.secrets.write().unwrap_or_else(PoisonError::into_inner);
        if *secrets == found {
            return Ok(None);
        }
        // Who may listen without a secret is decided at the start.
        if found.is_optional && !secrets.is_optional {
            return Err(SecretFileError::Loosened { path: self.path.clone() });
        }
        *secrets = found;
        Ok(Some(1 + usize::from(secrets.second.is_some())))
    }

    /// Whether whoever proves nothing is no engine of this cluster.
    pub fn is_required(&self) -> bool {
        !self.secrets.read().unwrap_or_else(PoisonError::into_inner).is_optional
    }

    /// With which a target proves itself, and expects the engine of a replica to, unless that may
    /// not know the secret yet.
    fn keys(&self, host: &Nqn, subsystem: &Nqn) -> Keys {
        let secrets = self.secrets.read().unwrap_or_else(PoisonError::into_inner);
        let keys = keys_of(&secrets.first, &names(host, subsystem));
        let controller = keys.controller.filter(|_| !secrets.is_optional);
        Keys { controller, ..keys }
    }

    /// How the engine of a replica lets a target prove itself.
    pub(crate) fn controller(&self, host: &Nqn, subsystem: &Nqn) -> ControllerSide {
        let names = names(host, subsystem);
        let secrets = self.secrets.read().unwrap_or_else(PoisonError::into_inner);
        let second = secrets.second.as_ref().map(|secret| keys_of(secret, &names));
        let keys = keys_of(&secrets.first, &names);
        let side = ControllerSide::new(names, keys, accepted());
        let side = second.into_iter().fold(side, ControllerSide::or);
        if secrets.is_optional { side.optional() } else { side }
    }
}

/// What is used between engines.
fn accepted() -> Accepted {
    Accepted { hashes: vec![Hash::Sha256], groups: vec![Group::Null] }
}

fn names(host: &Nqn, subsystem: &Nqn) -> Names {
    Names { host: host.as_str().to_owned(), subsystem: subsystem.as_str().to_owned() }
}

fn keys_of(secret: &Secret, names: &Names) -> Keys {
    Keys {
        host: secret.derive(OF_HOST, names),
        controller: Some(secret.derive(OF_CONTROLLER, names)),
    }
}

fn read(path: &Path) -> Result<Secrets, SecretFileError> {
    let failed = |source| SecretFileError::Read { path: path.into(), source };
    let file = File::open(path).map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    let form = || SecretFileError::Form { path: path.into() };
    if !found.is_file() {
        return Err(form());
    }
    let mode = found.permissions().mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(SecretFileError::Mode { path: path.into(), mode });
    }
    // Room for all of it from the start: growing would leave copies behind.
    let room = usize::try_from(MOST_TEXT).unwrap_or(0);
    let mut bytes = Zeroizing::new(Vec::with_capacity(room));
    file.take(MOST_TEXT).read_to_end(&mut bytes).map_err(failed)?;
    let lines = bytes.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let mut lines = lines.filter(|line| !line.is_empty());
    let (first, second) = (lines.next(), lines.next());
    let first = first.and_then(secret_in).filter(|_| lines.next().is_none()).ok_or_else(form)?;
    let is_optional = second == Some(NONE);
    let second = second.filter(|_| !is_optional);
    let second = second.map(|line| secret_in(line).ok_or_else(form)).transpose()?;
    Ok(Secrets { first, second, is_optional })
}

fn secret_in(line: &[u8]) -> Option<Secret> {
    let mut key = Zeroizing::new([0; BYTES]);
    if line.len() != 2 * BYTES {
        return None;
    }
    for (byte, digits) in key.iter_mut().zip(line.chunks_exact(2)) {
        for digit in digits {
            let value = char::from(*digit).to_digit(16)?;
            *byte = *byte << 4 | u8::try_from(value).ok()?;
        }
    }
    Secret::new(&*key, None).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str, mode: u32) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        (dir, path)
    }

    fn nqn(name: &str) -> Nqn {
        Nqn::new(&format!("nqn.2026-11.io.holdfast:{name}")).unwrap()
    }

    #[test]
    fn a_file_that_is_no_secret_is_refused_without_repeating_it() {
        let good = "5a".repeat(32);
        for (text, mode) in [
            (String::new(), 0o600),
            ("secret".to_owned(), 0o600),
            (good[1..].to_owned(), 0o600),
            (format!("{good}0"), 0o600),
            (good.replace('a', "g"), 0o600),
            (format!("{good}\n{good}\n{good}\n"), 0o600),
            (format!("{good} {good}\n"), 0o600),
            ("none\n".to_owned(), 0o600),
            (format!("none\n{good}\n"), 0o600),
            (good.clone(), 0o640),
            (good.clone(), 0o604),
        ] {
            let (_dir, path) = file(&text, mode);
            let error = ClusterSecret::read(&path).unwrap_err().to_string();
            assert!(!error.contains("5a5a") && error.contains("secret"), "{error}");
        }
        let (both, open) = (format!("\n {good} \r\n{good}\n\n"), format!("{good}\nnone\n"));
        for text in [good.clone(), format!("{good}\n"), both, open] {
            let (_dir, path) = file(&text, 0o600);
            let secret = ClusterSecret::read(&path).unwrap();
            assert!(!format!("{secret:?}").contains("5a5a"));
        }
    }

    #[test]
    fn every_pair_of_names_has_keys_of_its_own() {
        let (_dir, path) = file(&"5a".repeat(32), 0o600);
        let secret = ClusterSecret::read(&path).unwrap();
        let keys = |host, of| secret.keys(&nqn(host), &nqn(of));
        let one = keys("node:a", "replica:1");
        assert_eq!(one, keys("node:a", "replica:1"));
        assert_ne!(Some(&one.host), one.controller.as_ref());
        for other in [keys("node:b", "replica:1"), keys("node:a", "replica:2")] {
            assert!(other.host != one.host && other.controller != one.controller);
        }
    }

    #[test]
    fn the_first_line_is_proved_with_and_a_bad_file_changes_nothing() {
        let (old, new) = ("11".repeat(32), "22".repeat(32));
        let (_dir, path) = file(&old, 0o600);
        let secret = ClusterSecret::read(&path).unwrap();
        let proof = || secret.keys(&nqn("a"), &nqn("r"));
        let with_old = proof();
        assert_eq!(secret.reload().unwrap(), None);
        std::fs::write(&path, format!("{old}\n{new}\n")).unwrap();
        assert_eq!(secret.reload().unwrap(), Some(2));
        assert_eq!(proof(), with_old);
        std::fs::write(&path, "half a fi").unwrap();
        assert!(secret.reload().is_err());
        assert_eq!(proof(), with_old);
        std::fs::write(&path, format!("{new}\n{old}\n")).unwrap();
        assert_eq!(secret.reload().unwrap(), Some(2));
        let with_new = proof();
        assert_ne!(with_new, with_old);
        std::fs::write(&path, new).unwrap();
        assert_eq!(secret.reload().unwrap(), Some(1));
        assert_eq!(proof(), with_new);
    }
}
