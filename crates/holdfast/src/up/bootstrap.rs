//! What a new cluster gets: a pool a node, this machine as a host, and a first volume.
//!
//! Everything is asked for by `PUT` with ids that stay, so running again asks for what is there.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use api::heartbeat::HeartbeatAck;
use api::rest::{Control, NodeQuery, PoolQuery, Remote, VolumeAction, VolumeQuery};
use block::Bytes;
use model::{
    DevicePath, ErrorClass, GivenName, Heartbeat, HostAddress, HostName, Labels, Liveness, Node,
    Pool, PoolSpec, PoolState, Problem, ProblemKind, Size, VolumeId, VolumeSpec,
};

use super::engines::folder;
use crate::cli::{all, new_id};

/// This machine as a host.
pub(super) const HOST: &str = "local";

/// The name with which commands of this machine connect to targets.
const NQN: &str = "nqn.2026-11.io.holdfast:cli";

/// What the first volume is called.
const FIRST: &str = "first";

/// Size of the first volume.
const SIZE: Size = Size::gib(1);

/// How often something that is not ready is asked for again.
const AGAIN: Duration = Duration::from_millis(200);

/// How long the parts of a cluster may take to find each other.
const PATIENCE: Duration = Duration::from_mins(2);

/// How long pools may take to open before the cluster is used without them.
const OPENING: Duration = Duration::from_secs(30);

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
        address: HostAddress { nqn: NQN.parse()?, agent: None, machine: None },
        told: None,
    };
    let host: HostName = HOST.parse()?;
    Ok(Host(tokio::spawn(async move {
        loop {
            let heard = remote.host_heartbeat(host.clone(), heartbeat.clone()).await;
            let wait = match heard.map(HeartbeatAck::next_in) {
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

/// What a cluster has after it was started.
pub(super) struct Made {
    /// The first volume, if it is still there.
    pub(super) volume: Option<VolumeId>,
    /// Pools that are not used, and the command that may change that.
    pub(super) notes: Vec<String>,
}

/// A pool for each node, and a volume if this is the first run.
pub(super) async fn make(
    remote: &Remote,
    dir: &Path,
    nodes: &[String],
    size: Size,
) -> Result<Made> {
    for node in nodes {
        pool(remote, dir, node, size).await?;
    }
    if nodes.is_empty() {
        return Ok(Made { volume: None, notes: vec![] });
    }
    let notes = ready(remote, nodes).await?;
    let volume = first_volume(remote, dir, nodes, size).await?;
    Ok(Made { volume, notes })
}

async fn first_volume(
    remote: &Remote,
    dir: &Path,
    nodes: &[String],
    size: Size,
) -> Result<Option<VolumeId>> {
    let mark = dir.join("first-volume");
    if let Ok(text) = std::fs::read_to_string(&mark) {
        let volume: VolumeId = text.trim().parse()?;
        return match remote.volume(volume).await {
            Ok(_) => Ok(Some(volume)),
            Err(problem) if problem.kind == ProblemKind::NotFound => Ok(None),
            Err(problem) => Err(problem.into()),
        };
    }
    let name: GivenName = FIRST.parse()?;
    let called = Some(FIRST.parse()?);
    let same_name = remote.volumes(VolumeQuery { called, ..VolumeQuery::default() }).await?;
    // One that an earlier run made, and was stopped before it had written that down.
    let made = same_name.items.iter().find(|it| it.spec().name.as_ref() == Some(&name));
    let volume = made.map_or_else(new_id, |made| Ok(*made.id()))?;
    let copies = u8::try_from(nodes.len().min(2)).unwrap_or(2);
    // A small pool has a smaller one: some of a pool is its own.
    let whole = Size::mib(1).bytes().0;
    let half = Size::from(Bytes(size.bytes().0 / 2 / whole * whole));
    let wanted = VolumeSpec { name: Some(name), ..VolumeSpec::new(SIZE.min(half), copies) };
    if made.is_none() {
        patiently(|| remote.put_volume(volume, wanted.clone()))
            .await
            .context("cannot make the first volume")?;
    }
    std::fs::write(&mark, format!("{volume}\n"))?;
    publish(remote, volume).await?;
    Ok(Some(volume))
}

/// Serves a volume to this machine.
pub(super) async fn publish(remote: &Remote, volume: VolumeId) -> Result<()> {
    let request = || VolumeAction::Publish { host: HOST.parse().ok(), node: None };
    let answer = patiently(|| remote.change_volume(volume, request(), None)).await;
    answer.context("cannot publish the volume to this machine")?;
    Ok(())
}

/// Waits until every node answers and every pool is open: a run that continues finds both known
/// before they are there again. What to say of pools that are not: one that somebody exported stays
/// closed, and one that does not work keeps nobody from using the others.
async fn ready(remote: &Remote, nodes: &[String]) -> Result<Vec<String>> {
    let since = Instant::now();
    loop {
        let known = || all(|paging| remote.nodes(NodeQuery::default().at(paging)));
        let away = away(&patiently(known).await?, nodes);
        let pools = || all(|paging| remote.pools(PoolQuery::default().at(paging)));
        let pools = patiently(pools).await?;
        let ours = |pool: &Pool| nodes.iter().any(|node| pool.spec().node.as_str() == node);
        let closed = || pools.iter().filter(|pool| ours(pool) && !works(pool));
        let may_come = closed().any(|pool| !pool.spec().exported);
        if away.is_empty() && (!may_come || since.elapsed() > OPENING) {
            let lost = lost(&pools, nodes);
            return Ok(closed().map(note).chain(lost).collect());
        }
        if since.elapsed() > PATIENCE {
            bail!("{} did not register; see engine.log in its folder", away.join(", "));
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Those of the nodes that do not answer.
fn away(known: &[Node], nodes: &[String]) -> Vec<String> {
    let answers = |name: &&String| {
        let node = known.iter().find(|node| node.id().as_str() == name.as_str());
        let liveness = node.and_then(|node| Some(node.status.as_ref()?.liveness));
        liveness == Some(Liveness::Online)
    };
    nodes.iter().filter(|name| !answers(name)).cloned().collect()
}

/// What to say of nodes of whose pools nothing is stored: they are open, or they would have been
/// made anew.
fn lost(pools: &[Pool], nodes: &[String]) -> Option<String> {
    let known = |node: &&String| {
        let pool = node.replace("node", "pool");
        pools.iter().any(|it| it.id().as_str() == pool || it.spec().node.as_str() == node.as_str())
    };
    let unknown: Vec<&str> = nodes.iter().filter(|node| !known(node)).map(String::as_str).collect();
    (!unknown.is_empty()).then(|| {
        format!(
            "the store knows no pool of {}, but there is one. What can be read back of a store \
             that was lost says: holdfast recover",
            unknown.join(", ")
        )
    })
}

fn works(pool: &Pool) -> bool {
    let state = pool.status.as_ref().map(|status| &status.state);
    matches!(state, Some(PoolState::Online | PoolState::Suspect { .. }))
}

/// What to say of a pool that is not open.
fn note(pool: &Pool) -> String {
    let (name, spec) = (pool.id(), pool.spec());
    if !spec.exported {
        return format!("{name} does not work, and why says: holdfast pool get {name}");
    }
    let disks: Vec<String> = spec.disks.iter().map(|disk| format!("--disk {disk}")).collect();
    format!(
        "{name} was exported and stays closed. To use it: holdfast pool import {name} --node {} {}",
        spec.node,
        disks.join(" ")
    )
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
        Err(problem) if problem.kind == ProblemKind::AlreadyExists => Ok(()),
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
        let may_come =
            problem.kind == ProblemKind::NotFound || problem.kind.class() == ErrorClass::Retry;
        if !may_come || since.elapsed() > PATIENCE {
            return Err(problem);
        }
        tracing::debug!("not yet: {problem}");
        tokio::time::sleep(AGAIN).await;
    }
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;

    use super::*;

    fn golden<T: DeserializeOwned>(name: &str, change: impl FnOnce(&mut serde_json::Value)) -> T {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/golden").join(name);
        let mut object = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        change(&mut object);
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn a_pool_that_is_not_open_is_named_with_what_to_do() {
        let exported: Pool = golden("pool.json", |pool| {
            pool["spec"]["exported"] = true.into();
            pool["spec"]["disks"] = serde_json::json!(["/data/pool.img"]);
        });
        let said = note(&exported);
        let import = "holdfast pool import pool-1 --node node-1 --disk /data/pool.img";
        assert!(said.contains("exported") && said.ends_with(import), "{said}");
        let broken: Pool = golden("pool.json", |pool| {
            pool["spec"]["exported"] = false.into();
            pool["status"]["state"] = serde_json::json!({ "name": "faulted", "symptoms": [] });
        });
        assert!(!works(&broken));
        assert!(note(&broken).ends_with("holdfast pool get pool-1"), "{}", note(&broken));
    }

    #[test]
    fn nodes_that_have_not_registered_are_waited_for() {
        let online: Node = golden("node.json", |node| {
            node["status"]["liveness"] = serde_json::json!({ "state": "online" });
        });
        let wanted = ["node-1".to_owned(), "node-2".to_owned()];
        assert_eq!(away(&[online], &wanted), ["node-2"]);
        let pool: Pool = golden("pool.json", |_| ());
        assert_eq!(lost(std::slice::from_ref(&pool), &wanted[..1]), None);
        let said = lost(&[pool], &wanted).unwrap();
        assert!(said.contains("pool of node-2,") && said.ends_with("holdfast recover"), "{said}");
    }
}
