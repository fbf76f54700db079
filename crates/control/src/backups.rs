//! Scheduled backups of the store: verified files in a folder, the last of them.
//!
//! The leader writes them. A file is written under another name, read back and checked, synced and
//! then renamed, so that what has the name of a backup is one. Only then older ones are removed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use store::contract::Keys;
use store::export;

use crate::metrics::add_one;
use crate::process_state::ProcessState;

/// What a backup is called, before the time.
const PREFIX: &str = "holdfast-";
const SUFFIX: &str = ".backup";

/// How backups are made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupConfig {
    /// Into this folder.
    pub dir: PathBuf,
    /// How often.
    pub every: Duration,
    /// How many are kept.
    pub keep: usize,
}

/// Why there is no backup.
#[derive(Debug, thiserror::Error)]
enum BackupError {
    #[error("cannot write the backup {path}")]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot read the store for a backup")]
    Export(#[from] export::ExportError),
    #[error("the backup {path} is not what was written; look at its disk")]
    Verify { path: PathBuf, source: export::FormatError },
}

/// Makes backups for as long as this one leads.
pub(crate) async fn run(shared: Arc<ProcessState>, config: BackupConfig) {
    loop {
        match back_up(&shared, &config).await {
            Ok((path, keys)) => {
                add_one(&shared.metrics.backups);
                let seconds = shared.now().millis() / 1000;
                shared.metrics.backed_up_at.store(seconds, Ordering::Relaxed);
                tracing::info!(path = %path.display(), keys, "the store was backed up");
            }
            Err(error) => {
                add_one(&shared.metrics.backup_failures);
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                tracing::error!(%error, cause, "no backup of the store was made");
            }
        }
        tokio::time::sleep(config.every).await;
    }
}

async fn back_up(
    shared: &ProcessState,
    config: &BackupConfig,
) -> Result<(PathBuf, u64), BackupError> {
    // Sorts as the time does, and is a name anywhere.
    let at: String = shared.now().to_string().chars().filter(|it| *it != ':').collect();
    let path = config.dir.join(format!("{PREFIX}{at}{SUFFIX}"));
    let part = config.dir.join(format!("{PREFIX}{at}.part"));
    let made = write(shared, config, (&part, &path)).await;
    if made.is_err() {
        // It is no backup; what cannot be removed is overwritten by nobody.
        let _ = fs::remove_file(&part);
    }
    let keys = made?;
    for old in superseded(&config.dir, config.keep) {
        if let Err(error) = fs::remove_file(&old) {
            tracing::warn!(%error, path = %old.display(), "an old backup cannot be removed");
        }
    }
    Ok((path, keys))
}

async fn write(
    shared: &ProcessState,
    config: &BackupConfig,
    (part, path): (&Path, &Path),
) -> Result<u64, BackupError> {
    let failed = |source| BackupError::Write { path: path.to_owned(), source };
    fs::create_dir_all(&config.dir).map_err(failed)?;
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(part);
    let mut file = BufWriter::new(file.map_err(failed)?);
    let ours = Keys::prefix(model::keys::ROOT);
    export::export_keys(&*shared.store, ours, &mut file, &mut |_| {}).await?;
    file.flush().map_err(failed)?;
    file.get_ref().sync_all().map_err(failed)?;
    drop(file);
    let written = BufReader::new(File::open(part).map_err(failed)?);
    let unsound = |source| BackupError::Verify { path: path.to_owned(), source };
    let keys = export::verify(written).map_err(unsound)?;
    fs::rename(part, path).map_err(failed)?;
    File::open(&config.dir).and_then(|dir| dir.sync_all()).map_err(failed)?;
    Ok(keys)
}

/// The backups in a folder beyond the newest so many.
fn superseded(dir: &Path, keep: usize) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with(PREFIX) && name.ends_with(SUFFIX)
    };
    let mut ours: Vec<PathBuf> =
        entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_ours).collect();
    ours.sort();
    ours.truncate(ours.len().saturating_sub(keep));
    ours
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine_clients::EngineAuth;
    use crate::webhooks::Webhooks;
    use store::contract::{Op, Store as _, Txn};
    use store::testing::{ManualClock, MemoryStore};

    fn state(store: MemoryStore) -> ProcessState {
        let instance = "00000000-0000-4000-8000-000000000001".parse().unwrap();
        let events = Arc::new(api::events::Log::new(instance, 4.try_into().unwrap()));
        let outside = (EngineAuth::default(), Webhooks::new(None).unwrap());
        ProcessState::new(Arc::new(store), outside, "test".into(), events)
    }

    #[tokio::test]
    async fn backups_are_verified_and_the_last_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let store = MemoryStore::new(Arc::new(ManualClock::new()));
        for key in ["/holdfast/a", "/holdfast/b", "/elsewhere/c"] {
            store.txn(Txn::new().then(Op::put(key, "1"))).await.unwrap();
        }
        let shared = state(store);
        let config =
            BackupConfig { dir: dir.path().join("new"), every: Duration::from_secs(1), keep: 2 };
        let mut made = Vec::new();
        for _ in 0..4 {
            let (path, keys) = back_up(&shared, &config).await.unwrap();
            assert_eq!(keys, 2, "our keys and no others");
            assert_eq!(export::verify(File::open(&path).unwrap()).unwrap(), 2);
            let mode = std::os::unix::fs::MetadataExt::mode(&path.metadata().unwrap());
            assert_eq!(mode & 0o777, 0o600);
            // Another name for the next one.
            while shared.now().to_string() == path_time(&path) {
                tokio::task::yield_now().await;
            }
            made.push(path);
        }
        let mut left: Vec<PathBuf> =
            fs::read_dir(&config.dir).unwrap().map(|entry| entry.unwrap().path()).collect();
        left.sort();
        assert_eq!(left, made[made.len() - 2..], "the last two, and nothing half made");
    }

    fn path_time(path: &Path) -> String {
        let name = path.file_name().unwrap().to_str().unwrap();
        let at = name.trim_start_matches(PREFIX).trim_end_matches(SUFFIX);
        // 2026-01-01T000000.000Z
        format!("{}:{}:{}", &at[..13], &at[13..15], &at[15..])
    }
}
