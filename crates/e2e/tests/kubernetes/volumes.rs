//! Claims of every kind, and the pods that use them.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::cluster::{Cluster, items};
use crate::pods;
use crate::space::Space;
use crate::wait::until;

pub(crate) fn a_pod_keeps_its_data_when_it_moves_to_another_node(cluster: &Cluster) -> Result<()> {
    let space = Space::new(cluster, "moved")?;
    space.start_writer("holdfast-double", None)?;
    space.check_in("writer")?;
    let (node, written) = (space.node_of("writer")?, space.written("writer")?);
    space.delete_pod("writer")?;
    space.check_on(&space.other_node(&node)?, written)?;
    space.check_on(&node, written)?;
    space.end()
}

pub(crate) fn a_volume_grows_while_a_pod_writes(cluster: &Cluster) -> Result<()> {
    let space = Space::new(cluster, "grown")?;
    space.start_writer("holdfast-xfs", None)?;
    let blocks = || -> Result<u64> {
        let text = space.exec("writer", "stat -f -c %b /data")?;
        text.trim().parse().context("a number of blocks")
    };
    let (before, written) = (blocks()?, space.written("writer")?);
    space.apply(pods::claim("data", "holdfast-xfs", "1Gi"))?;
    until("the pod sees more room", || Ok((blocks()? > before * 3 / 2).then_some(())))?;
    until("the claim says so", || {
        let claim = space.get(&["persistentvolumeclaim", "data"])?;
        Ok((claim["status"]["capacity"]["storage"] == "1Gi").then_some(()))
    })?;
    space.goes_on(written)?;
    space.check_in("writer")?;
    let shrunk = space.apply(pods::claim("data", "holdfast-xfs", "512Mi"));
    ensure!(shrunk.is_err(), "a claim was made smaller");
    space.end()
}

pub(crate) fn a_block_device_keeps_its_bytes(cluster: &Cluster) -> Result<()> {
    let space = Space::new(cluster, "block")?;
    let mut claim = pods::claim("data", "holdfast-double", "128Mi");
    claim["spec"]["volumeMode"] = json!("Block");
    space.apply(claim)?;
    let write = "blockdev --getsize64 /dev/data &&
        dd if=/dev/urandom of=/tmp/bytes bs=1M count=16 2> /dev/null &&
        dd if=/tmp/bytes of=/dev/data bs=1M seek=100 conv=fsync 2> /dev/null &&
        sha256sum < /tmp/bytes";
    let read = "blockdev --getsize64 /dev/data &&
        dd if=/dev/data bs=1M skip=100 count=16 2> /dev/null | sha256sum";
    let mut writer = pods::block_pod("writer", "data", write);
    pods::place(&mut writer, "node2");
    let wrote = space.run(writer)?;
    ensure!(wrote.starts_with("134217728\n"), "the pod says: {wrote}");
    let mut reader = pods::block_pod("reader", "data", read);
    pods::place(&mut reader, "node3");
    let found = space.run(reader)?;
    ensure!(found == wrote, "written: {wrote}, read on another node: {found}");
    space.end()
}

/// The scheduler refuses a second pod; one that was not scheduled is refused by the node.
pub(crate) fn a_claim_for_one_pod_refuses_a_second_twice(cluster: &Cluster) -> Result<()> {
    let space = Space::new(cluster, "exclusive")?;
    let mut claim = pods::claim("data", "holdfast-single", "128Mi");
    claim["spec"]["accessModes"] = json!(["ReadWriteOncePod"]);
    space.apply(claim)?;
    space.apply(pods::pod("first", "data", "sleep 100000"))?;
    space.wait_running("first")?;
    space.apply(pods::pod("second", "data", "sleep 100000"))?;
    until("the scheduler refuses the second pod", || {
        let pod = space.get(&["pod", "second"])?;
        let condition = &pod["status"]["conditions"][0];
        let message = condition["message"].as_str().unwrap_or_default();
        Ok(message.contains("ReadWriteOncePod").then_some(()))
    })?;
    let node = space.node_of("first")?;
    let mut third = pods::pod("third", "data", "sleep 100000");
    third["spec"]["nodeName"] = json!(node);
    space.apply(third)?;
    until("the node refuses the third pod", || {
        let events = space.get(&["events", "--field-selector=involvedObject.name=third"])?;
        let refused = items(&events).iter().any(|event| event["reason"] == "FailedMount");
        let running = space.get(&["pod", "third"])?["status"]["phase"] == "Running";
        ensure!(!running, "two pods use the claim");
        Ok(refused.then_some(()))
    })?;
    space.end()
}

pub(crate) fn attributes_of_a_volume_in_use_are_changed(cluster: &Cluster) -> Result<()> {
    for (name, copies, iops) in [("holdfast-more", "3", "5000"), ("holdfast-fewer", "2", "400")] {
        cluster.apply(&json!({
            "apiVersion": "storage.k8s.io/v1",
            "kind": "VolumeAttributesClass",
            "metadata": { "name": name },
            "driverName": "csi.holdfast.io",
            "parameters": { "repl": copies, "iops": iops },
        }))?;
    }
    let space = Space::new(cluster, "modified")?;
    space.start_writer("holdfast-single", None)?;
    for (name, copies) in [("holdfast-more", 3), ("holdfast-fewer", 2)] {
        let before = space.written("writer")?;
        let patch = json!({ "spec": { "volumeAttributesClassName": name } }).to_string();
        space.kubectl(&["patch", "persistentvolumeclaim", "data", "--patch", &patch])?;
        until(&format!("the claim has the class {name}"), || {
            let claim = space.get(&["persistentvolumeclaim", "data"])?;
            Ok((claim["status"]["currentVolumeAttributesClassName"] == name).then_some(()))
        })?;
        until(&format!("the volume has {copies} copies in sync"), || {
            let volume = space.volume("data")?;
            let there = copies_of(&volume).len();
            Ok((volume["status"]["state"] == "online" && there == copies).then_some(()))
        })?;
        space.goes_on(before)?;
    }
    space.check_in("writer")?;
    space.end()?;
    cluster
        .kubectl(&["delete", "volumeattributesclass", "holdfast-more", "holdfast-fewer"])
        .map(drop)
}

/// The copies of a volume.
fn copies_of(volume: &Value) -> Vec<&Value> {
    volume["status"]["replicas"].as_object().map_or(Vec::new(), |all| all.values().collect())
}

pub(crate) fn a_stateful_set_has_a_volume_for_each_replica(cluster: &Cluster) -> Result<()> {
    let space = Space::new(cluster, "stateful")?;
    cluster.apply(&json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": { "name": "holdfast-spread" },
        "provisioner": "csi.holdfast.io",
        "parameters": { "repl": "1", "stsAffinityGroup": "true" },
        "volumeBindingMode": "WaitForFirstConsumer",
    }))?;
    let mut template =
        pods::pod("db", "data", "hostname >> /data/names && sync -f /data/names; sleep 100000");
    let mut pod = template["spec"].take();
    pod["restartPolicy"] = json!("Always");
    pod["volumes"] = json!([]);
    let labels = json!({ "app": "db" });
    space.apply(json!({
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": { "name": "db" },
        "spec": {
            "serviceName": "db",
            "replicas": 3,
            "podManagementPolicy": "Parallel",
            "selector": { "matchLabels": labels },
            "template": { "metadata": { "labels": labels }, "spec": pod },
            "volumeClaimTemplates": [pods::claim("data", "holdfast-spread", "128Mi")],
        },
    }))?;
    for pod in ["db-0", "db-1", "db-2"] {
        space.wait_running(pod)?;
    }
    let mut used = Vec::new();
    for claim in ["data-db-0", "data-db-1", "data-db-2"] {
        let volume = space.volume(claim)?;
        used.extend(copies_of(&volume).iter().map(|copy| copy["pool"].to_string()));
    }
    used.sort_unstable();
    used.dedup();
    ensure!(used.len() == 3, "the volumes of the set are in the pools {used:?}");
    // Again is the same volume.
    space.delete_pod("db-1")?;
    space.wait_running("db-1")?;
    let names = until("the pod has written again", || {
        let names = space.exec("db-1", "cat /data/names")?;
        Ok((names.lines().count() == 2).then_some(names))
    })?;
    ensure!(names == "db-1\ndb-1\n", "the volume of db-1 holds {names}");
    space.end()?;
    cluster.kubectl(&["delete", "storageclass", "holdfast-spread"]).map(drop)
}

/// Its PersistentVolume was removed by hand, with the finalizers: after the grace it goes, and
/// what is in use stays.
pub(crate) fn a_volume_without_a_persistent_volume_is_deleted(cluster: &Cluster) -> Result<()> {
    let space = Space::new(cluster, "orphan")?;
    space.start_writer("holdfast-single", None)?;
    space.apply(pods::claim("lost", "holdfast-single", "128Mi"))?;
    space.run(pods::pod("user", "lost", "touch /data/file"))?;
    let name = space.persistent_volume("lost")?;
    let orphan = name.strip_prefix("pvc-").context("a volume is named after its claim")?;
    let kept = space.persistent_volume("data")?;
    until("it is detached", || {
        let attachments = cluster.get(&["volumeattachments"])?;
        let of = |one: &&Value| one["spec"]["source"]["persistentVolumeName"] == *name;
        Ok((items(&attachments).iter().filter(of).count() == 0).then_some(()))
    })?;
    let free = r#"{"metadata":{"finalizers":null}}"#;
    cluster.kubectl(&["delete", "persistentvolume", &name, "--wait=false"])?;
    cluster.kubectl(&["patch", "persistentvolume", &name, "--type=merge", "--patch", free])?;
    let there = |id: &str| -> Result<bool> {
        let volumes = cluster.holdfast(&["volume", "list"])?;
        let volumes = volumes.as_array().context("a list of volumes")?;
        Ok(volumes.iter().any(|volume| volume.to_string().contains(id)))
    };
    // The grace is a minute.
    std::thread::sleep(Duration::from_secs(20));
    ensure!(there(orphan)?, "an orphan was deleted without a grace");
    until("the orphan is gone", || Ok((!there(orphan)?).then_some(())))?;
    ensure!(there(kept.strip_prefix("pvc-").unwrap_or(&kept))?, "a volume in use was deleted");
    space.goes_on(space.written("writer")?)?;
    space.check_in("writer")?;
    space.end()
}
