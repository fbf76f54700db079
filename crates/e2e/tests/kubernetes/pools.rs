//! Disk pools as resources of Kubernetes.

use std::fs::File;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::cluster::{Cluster, items};
use crate::space::Space;
use crate::wait::until;

/// The disk of each node: a sparse file of this size.
const DISK: u64 = 8 << 30;
/// What the disk is called on each node, and another one.
const DISKS: [&str; 2] = ["disk.img", "other.img"];

/// Disks for each node, in the directory of its engine.
pub(crate) fn give_disks(cluster: &Cluster) -> Result<()> {
    for node in &cluster.nodes {
        let dir = node.machine.lib().join("holdfast");
        std::fs::create_dir_all(&dir)?;
        for disk in DISKS {
            File::create(dir.join(disk))?.set_len(DISK)?;
        }
    }
    Ok(())
}

fn disk_pool(name: &str, node: &str, disk: &str) -> Value {
    json!({
        "apiVersion": "holdfast.io/v1",
        "kind": "DiskPool",
        "metadata": { "name": name },
        "spec": { "node": node, "disks": [format!("/var/lib/holdfast/{disk}")] },
    })
}

fn state(cluster: &Cluster, pool: &str) -> Result<String> {
    let pool = cluster.get(&["diskpool", pool])?;
    Ok(pool["status"]["state"].as_str().unwrap_or_default().to_owned())
}

pub(crate) fn wait_online(cluster: &Cluster) -> Result<()> {
    until("all pools are online", || {
        let pools = cluster.get(&["diskpools"])?;
        let online = items(&pools).iter().filter(|pool| pool["status"]["state"] == "Online");
        Ok((online.count() == cluster.nodes.len()).then_some(()))
    })
}

pub(crate) fn disk_pools_come_online_and_are_shown(cluster: &Cluster) -> Result<()> {
    for node in &cluster.nodes {
        let name = format!("pool-{}", node.name());
        cluster.apply(&disk_pool(&name, node.name(), DISKS[0]))?;
    }
    wait_online(cluster)?;
    let table = cluster.kubectl(&["get", "dsp"])?;
    // The age is different each time.
    let shown: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .map(|words| words[..words.len().saturating_sub(1)].to_vec())
        .collect();
    let mut wanted = vec![vec!["NAME", "NODE", "STATE", "CAPACITY", "USED", "COMMITTED"]];
    let names = ["pool-node1", "pool-node2", "pool-node3"];
    for (name, node) in names.iter().zip(["node1", "node2", "node3"]) {
        wanted.push(vec![name, node, "Online", "8151MiB", "0B", "0B"]);
    }
    ensure!(shown == wanted, "kubectl get dsp shows:\n{table}");
    let moved = cluster.apply(&disk_pool("pool-node1", "node2", DISKS[0]));
    let refusal = format!("{:#}", moved.err().context("the node of a pool was changed")?);
    ensure!(refusal.contains("the node of a pool cannot be changed"), "{refusal}");
    let events = cluster.get(&["events", "--field-selector=involvedObject.name=pool-node1"])?;
    let mut told: Vec<&str> =
        items(&events).iter().filter_map(|event| event["reason"].as_str()).collect();
    let all = told.len();
    told.sort_unstable();
    told.dedup();
    ensure!(told.contains(&"Online") && told.len() == all, "events are told once: {told:?}");
    Ok(())
}

/// `holdfast pool delete`, by somebody who does not know of the resource.
pub(crate) fn a_pool_deleted_from_outside_is_not_made_again(cluster: &Cluster) -> Result<()> {
    cluster.apply(&disk_pool("outside", "node2", DISKS[1]))?;
    until("the pool is online", || Ok((state(cluster, "outside")? == "Online").then_some(())))?;
    cluster.holdfast(&["pool", "delete", "outside"])?;
    until("the resource says so", || Ok((state(cluster, "outside")? == "NotFound").then_some(())))?;
    // A new operator has no memory of it.
    cluster.restart("deploy/holdfast-operator")?;
    let pools = cluster.holdfast(&["pool", "list"])?;
    let pools = pools.as_array().context("a list of pools")?;
    ensure!(pools.len() == cluster.nodes.len(), "made again: {pools:?}");
    ensure!(state(cluster, "outside")? == "NotFound", "{}", state(cluster, "outside")?);
    cluster.kubectl(&["delete", "diskpool", "outside", "--wait=true"]).map(drop)
}

pub(crate) fn a_pool_that_holds_copies_is_kept_until_they_are_gone(
    cluster: &Cluster,
) -> Result<()> {
    let space = Space::new(cluster, "held")?;
    space.start_writer("holdfast-double", None)?;
    let pools = cluster.get(&["diskpools"])?;
    let names: Vec<&str> =
        items(&pools).iter().filter_map(|pool| pool["metadata"]["name"].as_str()).collect();
    cluster.kubectl(&[&["delete", "--wait=false", "diskpools"], &names[..]].concat())?;
    until("the pools that hold copies say which", || {
        let pools = cluster.get(&["diskpools"])?;
        let held = items(&pools).iter().filter(|pool| {
            let condition = &pool["status"]["conditions"][0];
            condition["reason"] == "InUse"
        });
        Ok((held.count() == 2).then_some(()))
    })?;
    space.goes_on(space.written("writer")?)?;
    space.delete_pod("writer")?;
    space.end()?;
    until("all pools are gone with their resources", || {
        Ok(items(&cluster.get(&["diskpools"])?).is_empty().then_some(()))
    })?;
    let pools = cluster.holdfast(&["pool", "list"])?;
    ensure!(pools == json!([]), "pools that are left: {pools}");
    Ok(())
}
