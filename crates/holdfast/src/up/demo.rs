//! `holdfast up --demo`: what it is for, shown and then said.
//!
//! A volume is written with data that can be recognised, while the node of one of its copies is
//! killed and comes back. Every write is read again; then the rebuild is waited for.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use api::rest::{Control, RebuildQuery, Remote};
use model::{NodeName, Rebuild, Size, Volume, VolumeId, VolumeSpec, VolumeState};

use super::{bootstrap, engines};
use crate::cli::{all, new_id, place};
use crate::nvme::{Seen, verified};

/// How long is written.
const TIME: Duration = Duration::from_secs(15);

/// When the node is killed.
const KILL: Duration = Duration::from_secs(5);

/// How often something is looked at.
const AGAIN: Duration = Duration::from_millis(200);

fn say(text: &str) -> Result<()> {
    let mut out = std::io::stdout();
    writeln!(out, "{text}")?;
    Ok(out.flush()?)
}

pub(super) async fn run(remote: &Remote, dir: &Path) -> Result<()> {
    let volume: VolumeId = new_id()?;
    remote.put_volume(volume, VolumeSpec::new(Size::mib(256), 2)).await?;
    bootstrap::publish(remote, volume).await?;
    let seen = remote.volume(volume).await?;
    let victim = victim(&seen)?;
    say(&format!("volume {volume}: 256MiB, 2 copies, published to this machine"))?;

    let place = place(remote, volume, None, false).await?;
    say(&format!(
        "writing for {TIME:?} over NVMe/TCP at {}; every write is read again",
        place.address
    ))?;
    let writing = tokio::task::spawn_blocking(move || verified(&place, TIME));
    tokio::time::sleep(KILL).await;
    engines::kill(dir, victim.as_str())?;
    let killed = Instant::now();
    say(&format!("killed the engine of {victim}, which has a copy"))?;
    state(remote, volume, VolumeState::Degraded, TIME).await.context("the loss was not noticed")?;
    say(&format!("degraded after {:.1?}; writes go on", killed.elapsed()))?;
    let Seen { commands, failed, wrong, longest } = writing.await??;
    say(&format!(
        "{commands} commands, {failed} failed, {wrong} blocks wrong; the longest took {longest:.1?}"
    ))?;
    ensure!(failed == 0 && wrong == 0, "acknowledged data was lost: this is a bug");

    say(&format!("{victim} is back; waiting for its copy to be rebuilt"))?;
    state(remote, volume, VolumeState::Online, Duration::from_mins(2)).await?;
    let asked = RebuildQuery { volume: Some(volume), ..RebuildQuery::default() };
    let rebuilds: Vec<Rebuild> = all(|paging| remote.rebuilds(asked.clone().at(paging))).await?;
    let copied = rebuilds.iter().fold(Size::ZERO, |sum, one| sum.plus(one.progress.copied));
    say(&format!(
        "online again {:.1?} after the kill; {} rebuilds copied {copied}",
        killed.elapsed(),
        rebuilds.len()
    ))?;
    say("what was seen: one node lost, no write lost, no error, all copies in sync again")
}

/// A node with a copy, but not the one that serves.
fn victim(volume: &Volume) -> Result<NodeName> {
    let status = volume.status.as_ref().context("nothing is known of the volume yet")?;
    let serving = status.target.as_ref().map(|target| &target.node);
    let nodes: BTreeSet<&NodeName> = status.replicas.values().map(|copy| &copy.node).collect();
    let other = nodes.into_iter().find(|node| Some(*node) != serving);
    other.cloned().context("the demo needs two nodes or more; see --nodes")
}

async fn state(
    remote: &Remote,
    volume: VolumeId,
    wanted: VolumeState,
    patience: Duration,
) -> Result<()> {
    let since = Instant::now();
    loop {
        let status = remote.volume(volume).await?.status;
        if status.is_some_and(|status| status.state == wanted) {
            return Ok(());
        }
        if since.elapsed() > patience {
            bail!("volume {volume} did not become {wanted:?} within {patience:?}");
        }
        tokio::time::sleep(AGAIN).await;
    }
}
