//! A program as databases are: it commits, and knows what was acknowledged.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::cluster::until;

/// A program that commits: appends a record, syncs it, and counts it as acknowledged.
pub struct Committer {
    path: PathBuf,
    acknowledged: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    /// The longest commit since somebody looked, in microseconds.
    longest: Arc<AtomicU64>,
    thread: JoinHandle<Result<Duration>>,
}

fn record(number: u64) -> String {
    format!("{number:015}\n")
}

impl Committer {
    /// Begins to commit to a new file.
    pub fn start(path: PathBuf) -> Result<Committer> {
        let mut file = File::create_new(&path)?;
        let (acknowledged, stop) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (count, ends) = (Arc::clone(&acknowledged), Arc::clone(&stop));
        let since = Arc::<AtomicU64>::default();
        let recent = Arc::clone(&since);
        let thread = std::thread::spawn(move || {
            let mut longest = Duration::ZERO;
            while !ends.load(Ordering::SeqCst) {
                let begun = Instant::now();
                let number = count.load(Ordering::SeqCst);
                file.write_all(record(number).as_bytes()).context("a write failed")?;
                file.sync_all().context("a sync failed")?;
                count.store(number + 1, Ordering::SeqCst);
                let took = begun.elapsed();
                longest = longest.max(took);
                let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
                recent.fetch_max(micros, Ordering::SeqCst);
            }
            Ok(longest)
        });
        Ok(Committer { path, acknowledged, stop, longest: since, thread })
    }

    /// Waits until so many more were acknowledged; how long that took.
    pub fn go_on(&self, what: &str, more: u64) -> Result<Duration> {
        let wanted = self.acknowledged.load(Ordering::SeqCst) + more;
        let begun = Instant::now();
        until("more is committed", || {
            if self.thread.is_finished() {
                bail!("the writer ended after {what}");
            }
            Ok(self.acknowledged.load(Ordering::SeqCst) >= wanted)
        })?;
        Ok(begun.elapsed())
    }

    /// How long the longest commit took that ended since this was asked last.
    pub fn take_longest(&self) -> Duration {
        Duration::from_micros(self.longest.swap(0, Ordering::SeqCst))
    }

    /// Stops it; every call it made must have succeeded. How many were acknowledged, and how long
    /// the longest took.
    pub fn stop(self) -> Result<(u64, Duration)> {
        self.stop.store(true, Ordering::SeqCst);
        let longest = self.thread.join().map_err(|_| anyhow::anyhow!("the writer panicked"))??;
        let acknowledged = self.acknowledged.load(Ordering::SeqCst);
        check(&self.path, acknowledged)?;
        Ok((acknowledged, longest))
    }
}

/// The log holds exactly what was acknowledged.
pub fn check(path: &Path, acknowledged: u64) -> Result<()> {
    let found = fs::read_to_string(path)?;
    let expected: String = (0..acknowledged).map(record).collect();
    ensure!(found == expected, "{} of {} bytes are right", common(&found, &expected), found.len());
    Ok(())
}

fn common(a: &str, b: &str) -> usize {
    a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count()
}
