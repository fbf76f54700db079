//! Room for the data of a cluster. The files of pools are sparse: what is missing is missed only
//! when it is written, so it is said beforehand.

use std::convert::Infallible;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use block::Bytes;
use model::Size;

/// Without so much room not even the store can work.
pub(super) const LEAST: Size = Size::mib(64);

/// How often it is looked at.
const AGAIN: Duration = Duration::from_secs(5);

/// How much is left, rounded down, as people read it.
fn free(dir: &Path) -> Result<Size> {
    let seen = rustix::fs::statvfs(dir)
        .with_context(|| format!("cannot tell how much room {} has", dir.display()))?;
    Ok(whole_mib(seen.f_bavail.saturating_mul(seen.f_frsize)))
}

fn whole_mib(bytes: u64) -> Size {
    Bytes(bytes & !((1 << 20) - 1)).into()
}

/// Refuses a folder without room, and warns of one in which not all pools could be filled.
pub(super) fn check(dir: &Path, (nodes, pool): (u8, Size)) -> Result<()> {
    let (free, shown) = (free(dir)?, dir.display());
    if free < LEAST {
        bail!("{shown} has {free} left, and {LEAST} are needed; choose another --dir");
    }
    let pools = whole_mib(pool.bytes().0.saturating_mul(nodes.into()));
    if free < pools {
        tracing::warn!(
            "{shown} has {free} left, and the pools may grow to {pools}: writes fail when it is \
             full; see --pool-size"
        );
    }
    Ok(())
}

/// What to say when less than `least` is left.
pub(super) fn trouble(dir: &Path, least: Size) -> Option<String> {
    // A folder that cannot be asked has other troubles, which are told elsewhere.
    let free = free(dir).ok().filter(|free| *free < least)?;
    Some(format!(
        "{} has only {free} left: writes fail when it is full. Make room on that disk; all goes on \
         by itself then",
        dir.display()
    ))
}

/// Says when room runs out, and when there is some again.
pub(super) async fn watch(dir: &Path) -> Infallible {
    let mut was_short = false;
    loop {
        let trouble = trouble(dir, LEAST);
        match &trouble {
            Some(trouble) if !was_short => tracing::warn!("{trouble}"),
            None if was_short => tracing::info!("{} has room again", dir.display()),
            _ => {}
        }
        was_short = trouble.is_some();
        tokio::time::sleep(AGAIN).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_room_is_named() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(trouble(dir.path(), Size::ZERO), None);
        let said = trouble(dir.path(), Size::gib(1 << 20)).unwrap();
        assert!(said.contains(dir.path().to_str().unwrap()), "{said}");
        assert!(said.contains("left") && said.contains("Make room"), "{said}");
    }
}
