//! How the engines of a test speak to each other.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use engine::replication::{ClusterSecret, Replication};
use nvme::pdu::Digests;

/// What protects the bytes of replication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Both sides prove that they know the secret of the cluster; header and data digests.
    Full,
    /// Nothing.
    None,
}

/// The same in all tests.
const DIGITS: &str = "5eed";

fn secret() -> String {
    DIGITS.repeat(16)
}

impl Protection {
    /// What is said to an engine with this folder; its secret is put beside the folder.
    pub(super) fn words(self, dir: &Path) -> Result<Vec<String>> {
        if self == Protection::None {
            let words = ["--unauthenticated-replication", "--no-replication-digests"];
            return Ok(words.map(str::to_owned).into());
        }
        let path = dir.with_extension("secret");
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(&path).context("cannot make the secret of the cluster")?;
        file.write_all(secret().as_bytes())?;
        let path = path.to_str().context("an odd path")?;
        Ok(vec!["--cluster-secret".to_owned(), path.to_owned()])
    }

    /// How a target of the cluster speaks to copies.
    pub(super) fn replication(self) -> Result<Replication> {
        if self == Protection::None {
            return Ok(Replication { secret: None, digests: Digests::default() });
        }
        let mut file = tempfile::NamedTempFile::new().context("cannot make a file")?;
        file.write_all(secret().as_bytes())?;
        let secret = ClusterSecret::read(file.path())?;
        Ok(Replication { secret: Some(Arc::new(secret)), ..Replication::default() })
    }
}
