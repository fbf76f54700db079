//! What breaks while a pod writes.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::cluster::{Cluster, HOLDFAST, items};
use crate::pods;
use crate::pools;
use crate::space::Space;
use crate::wait::until;

/// `kill -9` of the engine that serves the volume; the kubelet starts it again.
pub(crate) fn the_kill_of_the_engine_that_serves_a_volume_is_not_noticed(
    cluster: &Cluster,
) -> Result<()> {
    let space = Space::new(cluster, "killed")?;
    space.start_writer("holdfast-double", None)?;
    let node = space.target("data")?;
    let (before, since) = (space.written("writer")?, Instant::now());
    kill_engine(cluster, &node)?;
    eprintln!("killed the engine of {node} after {before} files");
    space.goes_on(before)?;
    eprintln!("10 more files {:.1} s after the kill", since.elapsed().as_secs_f64());
    space.check_in("writer")?;
    space.wait_in_sync("data")?;
    space.end()
}

/// The same, and it does not come back: another node must serve the volume.
pub(crate) fn the_loss_of_the_engine_that_serves_a_volume_is_not_noticed(
    cluster: &Cluster,
) -> Result<()> {
    let space = Space::new(cluster, "lost")?;
    space.start_writer("holdfast-double", None)?;
    let node = space.target("data")?;
    let (before, since) = (space.written("writer")?, Instant::now());
    cluster.kubectl(&["label", "node", &node, "engine-"])?;
    // It may be stopping already, and then it is gone soon.
    let killed = kill_engine(cluster, &node);
    eprintln!("the engine of {node} does not come back ({killed:?}), after {before} files");
    space.goes_on(before)?;
    eprintln!("10 more files {:.1} s after the loss", since.elapsed().as_secs_f64());
    until("another node serves the volume", || {
        Ok(Some(space.target("data")?).filter(|now| *now != node))
    })?;
    cluster.kubectl(&["label", "node", &node, "engine=yes"])?;
    cluster.wait_for_holdfast()?;
    pools::wait_online(cluster)?;
    space.wait_in_sync("data")?;
    space.check_in("writer")?;
    let written = space.written("writer")?;
    space.delete_pod("writer")?;
    space.check_on(&node, written)?;
    space.end()
}

/// `kill -9` of the engine of a node.
fn kill_engine(cluster: &Cluster, node: &str) -> Result<()> {
    let id = container(cluster, "engine", Some(node))?;
    cluster.node(node)?.kill(&id)
}

/// The container of a component of Holdfast, on this node if it has one on each.
fn container(cluster: &Cluster, component: &str, node: Option<&str>) -> Result<String> {
    let label = format!("--selector=app.kubernetes.io/component={component}");
    let pods = cluster.get(&["pods", "--namespace", HOLDFAST, &label])?;
    let mut pods = items(&pods).iter();
    let pod = pods.find(|pod| node.is_none_or(|node| pod["spec"]["nodeName"] == node));
    let pod = pod.with_context(|| format!("no pod of {component}"))?;
    let containers = pod["status"]["containerStatuses"].as_array();
    let mut containers = containers.context("a pod has containers")?.iter();
    let mine = containers.find(|one| one["name"] == component);
    let id = mine.and_then(|one| one["containerID"].as_str());
    id.map(str::to_owned).with_context(|| format!("{component} does not run"))
}

/// The node on which a component with one pod runs.
fn node_of(cluster: &Cluster, component: &str) -> Result<String> {
    let label = format!("--selector=app.kubernetes.io/component={component}");
    let pods = cluster.get(&["pods", "--namespace", HOLDFAST, &label])?;
    let node = items(&pods).first().and_then(|pod| pod["spec"]["nodeName"].as_str());
    node.map(str::to_owned).with_context(|| format!("no pod of {component}"))
}

/// Kubelet, CSI node, CSI controller, operator, control plane and store, each killed while a pod
/// writes; claims that are made meanwhile are served.
pub(crate) fn restarts_under_load_lose_nothing(cluster: &Cluster) -> Result<()> {
    let space = Space::new(cluster, "restarts")?;
    space.start_writer("holdfast-double", None)?;
    let node = space.node_of("writer")?;
    for component in ["operator", "csi-controller", "control", "store", "csi-node", "kubelet"] {
        let before = space.written("writer")?;
        eprintln!("killing {component} after {before} files");
        space.apply(pods::claim(component, "holdfast-double", "128Mi"))?;
        space.apply(pods::pod(component, component, "touch /data/file && sync -f /data/file"))?;
        match component {
            "kubelet" => {
                let kubelet = cluster.node(&node)?;
                kubelet.machine.kill("kubelet")?;
                kubelet.start_kubelet(&cluster.paths)?;
            }
            "csi-node" => {
                let id = container(cluster, component, Some(&node))?;
                cluster.node(&node)?.kill(&id)?;
            }
            _ => {
                let (id, on) = (container(cluster, component, None)?, node_of(cluster, component)?);
                cluster.node(&on)?.kill(&id)?;
            }
        }
        space.goes_on(before)?;
        space.wait_finished(component)?;
        space.delete_pod(component)?;
        cluster.wait_for_holdfast()?;
    }
    space.check_in("writer")?;
    let written = space.written("writer")?;
    space.delete_pod("writer")?;
    space.check_on(&space.other_node(&node)?, written)?;
    space.end()
}

/// A node that nobody reaches any more: its pod runs elsewhere once an administrator says that the
/// node is out of service, and what it writes afterwards never arrives.
pub(crate) fn a_pod_of_a_lost_node_runs_elsewhere_and_nobody_else_writes(
    cluster: &Cluster,
) -> Result<()> {
    // Not the node of the store.
    let lost = "node3";
    let space = Space::new(cluster, "outage")?;
    space.start_writer("holdfast-double", Some(lost))?;
    space.wait_in_sync("data")?;
    let written = space.written("writer")?;
    let node = cluster.node(lost)?;
    node.set_link(false)?;
    let outcome = (|| {
        until("the node is not ready", || {
            let found = cluster.get(&["node", lost])?;
            Ok((!crate::cluster::has_condition(&found, "Ready")).then_some(()))
        })?;
        let taint = "node.kubernetes.io/out-of-service=lost:NoExecute";
        cluster.kubectl(&["taint", "node", lost, taint])?;
        until("the pod is gone", || Ok(items(&space.get(&["pods"])?).is_empty().then_some(())))?;
        let mut successor = pods::pod("successor", "data", &pods::WRITER.replace("file.", "next."));
        pods::place(&mut successor, "node2");
        space.apply(successor)?;
        until("another pod writes to the volume", || {
            Ok((space.written("successor")? >= 10).then_some(()))
        })
    })();
    node.set_link(true)?;
    node.connect_pods(3)?;
    outcome?;
    let name = "node.kubernetes.io/out-of-service-";
    cluster.kubectl(&["taint", "node", lost, name])?;
    until("the node is back", || {
        let found = cluster.get(&["node", lost])?;
        Ok(crate::cluster::has_condition(&found, "Ready").then_some(()))
    })?;
    cluster.wait_for_holdfast()?;
    pools::wait_online(cluster)?;
    space.wait_in_sync("data")?;
    let later = space.written("successor")?;
    until("it goes on", || Ok((space.written("successor")? >= later + 10).then_some(())))?;
    let all = written + space.written("successor")?;
    let intact: usize = space.exec("successor", pods::CHECK)?.trim().parse().context("a number")?;
    ensure!(intact >= all, "{all} files were written by both, and {intact} are intact");
    space.delete_pod("successor")?;
    // The file system itself is whole: nobody wrote beside its owner.
    space.check_on(lost, all)?;
    let attachments = cluster.get(&["volumeattachments"])?;
    let of = json!(lost);
    let left = items(&attachments).iter().filter(|one| one["spec"]["nodeName"] == of).count();
    eprintln!("{left} attachments of {lost} are left");
    space.end()
}
