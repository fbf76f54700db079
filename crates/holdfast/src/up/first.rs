//! What a new cluster gets: a pool a node, this machine as a host, and a first volume.
//!
//! Everything is asked for by `PUT` with ids that stay, so running again asks for what is there.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use api::heartbeat::Heard;
use api::rest::{Control, Remote, VolumeWish};
use block::Bytes;
use model::{
    Blame, DevicePath, Heartbeat, HostAddress, HostName, Kind, Labels, PoolSpec, Problem, Size,
    VolumeId, VolumeSpec,
};

use super::engines::folder;
use crate::cli::new_id;

/// This machine as a host.
pub(super) const HOST: &str = "local";

/// The name with which commands of this machine connect to targets.
const NQN: &str = "nqn.2026-11.io.holdfast:cli";

/// Size of the first volume.
const SIZE: Size = Size::gib(1);

/// How often something that is not ready is asked for again.
const AGAIN: Duration = Duration::from_millis(200);

/// How long the parts of a cluster may take to find each other.
const PATIENCE: Duration = Duration::from_mins(2);

/// Shows that this machine is there as long as it is kept.
pub(super) struct Host(tokio::task::JoinHandle<()>);

impl Drop for Host {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Registers this machine as a host, so that volumes can be published to it.
pub(super) fn host(remote: &Remote) -> Result<Host> {
    let remote = remote.clone();
    let heartbeat = Heartbeat {
        instance: new_id()?,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        address: HostAddress { nqn: NQN.parse()?, agent: None },
    };
    let host: HostName = HOST.parse()?;
    Ok(Host(tokio::spawn(async move {
        loop {
            let heard = remote.host_heartbeat(host.clone(), heartbeat.clone()).await;
            let wait = match heard.map(Heard::next_in) {
                Ok(wait) => wait,
                Err(problem) => {
                    tracing::debug!("no heartbeat: {problem}");
                    AGAIN
                }
            };
            tokio::time::sleep(wait).await;
        }
    })))
}

/// A pool for each node, and a volume if this is the first run. Its id, if it is still there.
pub(super) async fn make(
    remote: &Remote,
    dir: &Path,
    nodes: &[String],
    size: Size,
) -> Result<Option<VolumeId>> {
    for node in nodes {
        pool(remote, dir, node, size).await?;
    }
    if nodes.is_empty() {
        return Ok(None);
    }
    ready(remote, nodes.len()).await?;
    let mark = dir.join("first-volume");
    if let Ok(text) = std::fs::read_to_string(&mark) {
        let volume: VolumeId = text.trim().parse()?;
        return match remote.volume(volume).await {
            Ok(_) => Ok(Some(volume)),
            Err(problem) if problem.kind == Kind::NotFound => Ok(None),
            Err(problem) => Err(problem.into()),
        };
    }
    let volume = new_id()?;
    let copies = u8::try_from(nodes.len().min(2)).unwrap_or(2);
    // A small pool has a smaller one: some of a pool is its own.
    let whole = Size::mib(1).bytes().0;
    let half = Size::from(Bytes(size.bytes().0 / 2 / whole * whole));
    patiently(|| remote.put_volume(volume, VolumeSpec::new(SIZE.min(half), copies)))
        .await
        .context("cannot make the first volume")?;
    // Written down once it is made: a run that is stopped before makes another one.
    std::fs::write(&mark, format!("{volume}\n"))?;
    publish(remote, volume).await?;
    Ok(Some(volume))
}

/// Serves a volume to this machine.
pub(super) async fn publish(remote: &Remote, volume: VolumeId) -> Result<()> {
    let wish = || VolumeWish::Publish { host: HOST.parse().ok(), node: None };
    let answer = patiently(|| remote.change_volume(volume, wish(), None)).await;
    answer.context("cannot publish the volume to this machine")?;
    Ok(())
}

/// Waits until every node answers and every pool is open: a run that continues finds both known
/// before they are there again.
async fn ready(remote: &Remote, nodes: usize) -> Result<()> {
    let wanted = u64::try_from(nodes)?;
    let since = Instant::now();
    loop {
        let status = patiently(|| remote.status()).await?;
        if status.nodes.well >= wanted && status.pools.well >= wanted {
            return Ok(());
        }
        if since.elapsed() > PATIENCE {
            let (nodes, pools) = (status.nodes.well, status.pools.well);
            bail!("only {nodes} nodes and {pools} pools of {wanted} are there; see engine.log");
        }
        tokio::time::sleep(AGAIN).await;
    }
}

async fn pool(remote: &Remote, dir: &Path, node: &str, size: Size) -> Result<()> {
    let file = folder(dir, node).join("pool.img");
    if !file.exists() {
        std::fs::File::create_new(&file)
            .and_then(|made| made.set_len(size.bytes().0))
            .with_context(|| format!("cannot make {}", file.display()))?;
    }
    let disk: DevicePath = file.to_str().context("the folder's name must be UTF-8")?.parse()?;
    let spec = PoolSpec {
        node: node.parse()?,
        disks: vec![disk],
        uuid: None,
        import: false,
        exported: false,
        cluster_size: None,
        labels: Labels::new(),
        cordons: [].into(),
    };
    let name = node.replace("node", "pool").parse::<model::PoolName>()?;
    let made = patiently(|| remote.put_pool(name.clone(), spec.clone())).await;
    match made {
        // It was changed since: that is as wanted.
        Err(problem) if problem.kind == Kind::AlreadyExists => Ok(()),
        made => made.map(drop).with_context(|| format!("cannot make the pool of {node}")),
    }
}

/// Asks until it is answered or refused for good: engines and the control plane may still start,
/// and what has not registered yet is not found.
async fn patiently<T, F>(ask: impl Fn() -> F) -> Result<T, Problem>
where
    F: Future<Output = Result<T, Problem>>,
{
    let since = Instant::now();
    loop {
        let problem = match ask().await {
            Ok(answer) => return Ok(answer),
            Err(problem) => problem,
        };
        let may_come = problem.kind == Kind::NotFound || problem.kind.blame() == Blame::Retry;
        if !may_come || since.elapsed() > PATIENCE {
            return Err(problem);
        }
        tracing::debug!("not yet: {problem}");
        tokio::time::sleep(AGAIN).await;
    }
}
