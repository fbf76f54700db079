//! Waiting for what a cluster does in its own time.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// How long a cluster on a busy machine may take for anything.
pub(crate) const PATIENCE: Duration = Duration::from_mins(4);
/// How often it is looked at.
const INTERVAL: Duration = Duration::from_millis(500);

/// Asks until there is an answer; an error is an answer that is not there yet.
pub(crate) fn until<T>(what: &str, mut ask: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let started = Instant::now();
    loop {
        let asked = ask();
        if let Ok(Some(answer)) = asked {
            eprintln!("{what}: after {:.1} s", started.elapsed().as_secs_f64());
            return Ok(answer);
        }
        if started.elapsed() > PATIENCE {
            return match asked {
                Err(error) => Err(error).with_context(|| format!("{what}: not in time")),
                Ok(_) => bail!("{what}: not within {PATIENCE:?}"),
            };
        }
        std::thread::sleep(INTERVAL);
    }
}
