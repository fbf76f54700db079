//! A pod with a volume of Holdfast: its data survives what happens to the cluster.

use std::fs::File;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::cluster::{Cluster, HOLDFAST, items};
use crate::node::Node;
use crate::wait::until;

/// The disk of each node: a sparse file of this size.
const DISK: u64 = 4 << 30;

/// What the writer does: a file of random bytes again and again, each with its checksum, and a line
/// when both are on the volume.
const WRITER: &str = "
    n=$(ls /data | grep -c '^file' || true)
    while :; do
        dd if=/dev/urandom of=/data/file.$n bs=64k count=2 2> /dev/null
        (cd /data && sha256sum file.$n >> sums) && sync || exit 1
        echo wrote $n
        n=$((n + 1))
        sleep 0.2
    done";

/// What the reader does: compare everything with its checksum.
const CHECK: &str =
    "cd /data && sha256sum -c sums | grep -c ': OK$' && ! sha256sum -c sums 2>&1 | grep FAILED";

#[test]
fn data_survives_the_kill_of_the_engine_that_serves_it() -> Result<()> {
    let cluster = Cluster::start(3)?;
    let outcome = (|| {
        give_disks(&cluster)?;
        cluster.install()?;
        create_pools(&cluster)?;
        start_writing(&cluster)?;
        kill_the_engine(&cluster)?;
        lose_the_engine(&cluster)?;
        let first = check_in_the_pod(&cluster)?;
        read_elsewhere(&cluster, &first)?;
        delete_all(&cluster)
    })();
    if let Err(error) = &outcome {
        explain(&cluster);
        panic!("{error:#}");
    }
    outcome
}

/// A disk for each node, in the directory of its engine.
fn give_disks(cluster: &Cluster) -> Result<()> {
    for node in &cluster.nodes {
        let dir = node.machine.lib().join("holdfast");
        std::fs::create_dir_all(&dir)?;
        File::create(dir.join("disk.img"))?.set_len(DISK)?;
    }
    Ok(())
}

fn create_pools(cluster: &Cluster) -> Result<()> {
    for node in &cluster.nodes {
        cluster.apply(&json!({
            "apiVersion": "holdfast.io/v1",
            "kind": "DiskPool",
            "metadata": { "name": format!("pool-{}", node.name()) },
            "spec": { "node": node.name(), "disks": ["/var/lib/holdfast/disk.img"] },
        }))?;
    }
    until("all pools are online", || {
        let pools = cluster.get(&["diskpools"])?;
        let online = items(&pools).iter().filter(|pool| pool["status"]["state"] == "Online");
        Ok((online.count() == cluster.nodes.len()).then_some(()))
    })?;
    eprintln!("{}", cluster.kubectl(&["get", "diskpools"])?);
    Ok(())
}

/// A pod that runs a script with the claim mounted in `/data`.
fn pod(name: &str, script: &str, node: Option<&str>) -> Value {
    let mut spec = json!({
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "containers": [{
            "name": "shell",
            "image": "holdfast.test/busybox:1",
            "imagePullPolicy": "Never",
            "command": ["sh", "-c", script],
            "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
        }],
        "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": "data" } }],
    });
    if let Some(node) = node {
        spec["nodeSelector"] = json!({ "kubernetes.io/hostname": node });
    }
    let metadata = json!({ "name": name });
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec })
}

/// How many files the writer has written so far.
fn written(cluster: &Cluster) -> Result<usize> {
    let log = cluster.kubectl(&["logs", "writer"])?;
    Ok(log.lines().filter(|line| line.starts_with("wrote")).count())
}

/// A claim with two copies, and a pod that writes to it until it is deleted.
fn start_writing(cluster: &Cluster) -> Result<()> {
    cluster.apply(&json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": { "name": "data" },
        "spec": {
            "storageClassName": "holdfast-double",
            "accessModes": ["ReadWriteOnce"],
            "resources": { "requests": { "storage": "512Mi" } },
        },
    }))?;
    cluster.apply(&pod("writer", WRITER, None))?;
    until("the pod writes", || Ok((written(cluster)? >= 5).then_some(())))
}

/// The node that serves the volume.
fn target_node(cluster: &Cluster) -> Result<String> {
    let volume = volume(cluster)?;
    let node = volume["status"]["target"]["node"].as_str();
    node.map(str::to_owned).context("a volume that is written has a target")
}

/// The only volume.
fn volume(cluster: &Cluster) -> Result<Value> {
    let volumes = cluster.holdfast(&["volume", "list"])?;
    volumes.get(0).cloned().context("there is a volume")
}

/// The pod goes on where it was: it has not even been restarted.
fn goes_on(cluster: &Cluster, before: usize, since: Instant) -> Result<()> {
    until("the pod goes on writing", || Ok((written(cluster)? >= before + 20).then_some(())))?;
    eprintln!("20 more files {:.1} s after the kill", since.elapsed().as_secs_f64());
    let pod = cluster.get(&["pod", "writer"])?;
    let state = &pod["status"]["containerStatuses"][0];
    ensure!(state["restartCount"] == 0 && state["state"]["running"].is_object(), "{state}");
    Ok(())
}

/// `kill -9` of the engine that serves the volume; the kubelet starts it again.
fn kill_the_engine(cluster: &Cluster) -> Result<()> {
    let node = target_node(cluster)?;
    let (engine, before, since) = (engine_of(cluster, &node)?, written(cluster)?, Instant::now());
    cluster.node(&node)?.kill(&engine)?;
    eprintln!("killed the engine of {node} after {before} files");
    goes_on(cluster, before, since)
}

/// The same, and it does not come back: another node must serve the volume.
fn lose_the_engine(cluster: &Cluster) -> Result<()> {
    until("both copies are in sync", || {
        Ok((volume(cluster)?["status"]["state"] == "online").then_some(()))
    })?;
    let node = target_node(cluster)?;
    let (engine, before, since) = (engine_of(cluster, &node)?, written(cluster)?, Instant::now());
    cluster.kubectl(&["label", "node", &node, "engine-"])?;
    // It may be stopping already, and then it is gone soon.
    let killed = cluster.node(&node)?.kill(&engine);
    eprintln!("the engine of {node} does not come back ({killed:?}), after {before} files");
    goes_on(cluster, before, since)?;
    until("another node serves the volume", || {
        Ok(Some(target_node(cluster)?).filter(|now| *now != node))
    })?;
    cluster.kubectl(&["label", "node", &node, "engine=yes"]).map(drop)
}

/// Everything that the pod was told is on its volume is there; the answer is its node.
fn check_in_the_pod(cluster: &Cluster) -> Result<String> {
    let intact = cluster.kubectl(&["exec", "writer", "--", "sh", "-c", CHECK])?;
    eprintln!("{} files are intact in the pod that wrote them", intact.trim());
    let pod = cluster.get(&["pod", "writer"])?;
    pod["spec"]["nodeName"].as_str().map(str::to_owned).context("a running pod has a node")
}

/// The container of the engine on a node.
fn engine_of(cluster: &Cluster, node: &str) -> Result<String> {
    let label = "--selector=app.kubernetes.io/component=engine";
    let pods = cluster.get(&["pods", "--namespace", HOLDFAST, label])?;
    let pod = items(&pods).iter().find(|pod| pod["spec"]["nodeName"] == node);
    let pod = pod.context("every node has an engine")?;
    let id = pod["status"]["containerStatuses"][0]["containerID"].as_str();
    id.map(str::to_owned).context("an engine that runs has a container")
}

/// Another pod, on another node, finds what the first has written.
fn read_elsewhere(cluster: &Cluster, first: &str) -> Result<()> {
    cluster.kubectl(&["delete", "pod", "writer", "--wait=true"])?;
    let other = cluster.nodes.iter().map(Node::name).find(|name| *name != first);
    let other = other.context("there is another node")?;
    cluster.apply(&pod("reader", &format!("{CHECK} && echo intact"), Some(other)))?;
    until(&format!("a pod on {other} has read everything"), || {
        let pod = cluster.get(&["pod", "reader"])?;
        let phase = pod["status"]["phase"].as_str().unwrap_or_default();
        Ok(["Succeeded", "Failed"].contains(&phase).then_some(()))
    })?;
    let log = cluster.kubectl(&["logs", "reader"])?;
    eprintln!("{}", log.trim());
    ensure!(log.trim_end().ends_with("intact"), "the reader says: {log}");
    Ok(())
}

/// A pool with copies is kept; without them it goes with its resource.
fn delete_all(cluster: &Cluster) -> Result<()> {
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
    cluster.kubectl(&["delete", "pod", "reader", "--wait=true"])?;
    cluster.kubectl(&["delete", "persistentvolumeclaim", "data", "--wait=true"])?;
    until("the volume is gone, and all pools with their resources", || {
        let gone = |kind| Ok::<_, anyhow::Error>(items(&cluster.get(&[kind])?).is_empty());
        Ok((gone("volumeattachments")? && gone("diskpools")?).then_some(()))
    })
}

/// What a person would look at first.
fn explain(cluster: &Cluster) {
    let looks: [&[&str]; 5] = [
        &["get", "pods", "--all-namespaces", "--output=wide"],
        &["get", "diskpools,pvc,pv,volumeattachments,csinodes", "--output=wide"],
        &["get", "events", "--all-namespaces", "--sort-by=.lastTimestamp"],
        &["logs", "--namespace=holdfast", "deploy/holdfast-control", "--tail=40"],
        &["logs", "--namespace=holdfast", "deploy/holdfast-operator", "--tail=40"],
    ];
    for words in looks {
        match cluster.kubectl(words) {
            Ok(text) => eprintln!("> kubectl {}\n{text}", words.join(" ")),
            Err(error) => eprintln!("> kubectl {}: {error:#}", words.join(" ")),
        }
    }
}
