//! Snapshots, what is restored from them, clones and groups.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::cluster::{Cluster, items};
use crate::pods;
use crate::space::Space;
use crate::wait::until;

/// Writes what is to be found again.
const FIRST: &str = "dd if=/dev/urandom of=/data/first bs=1M count=8 2> /dev/null &&
    cd /data && sha256sum first > sums && sync -f sums && cat sums";
/// Changes it.
const SECOND: &str = "echo changed > /data/first && touch /data/second && sync -f /data/second";
/// Finds what was there before the change.
const FOUND: &str = "cd /data && sha256sum -c sums > /dev/null && test ! -e second && cat sums";

fn source(claim: &mut Value, kind: &str, name: &str) {
    let group = (kind == "VolumeSnapshot").then_some("snapshot.storage.k8s.io");
    claim["spec"]["dataSource"] = json!({ "apiGroup": group, "kind": kind, "name": name });
}

fn wait_ready(space: &Space<'_>, snapshot: &str) -> Result<()> {
    until(&format!("snapshot {snapshot} is ready"), || {
        let found = space.get(&["volumesnapshot", snapshot])?;
        Ok((found["status"]["readyToUse"] == true).then_some(()))
    })
}

pub(crate) fn a_snapshot_is_restored_and_a_volume_cloned(cluster: &Cluster) -> Result<()> {
    let space = Space::new(cluster, "snapshots")?;
    space.apply(pods::claim("data", "holdfast-xfs", "512Mi"))?;
    space.apply(pods::pod("user", "data", "sleep 100000"))?;
    space.wait_running("user")?;
    let sums = space.exec("user", FIRST)?;
    space.apply(json!({
        "apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshot",
        "metadata": { "name": "monday" },
        "spec": {
            "volumeSnapshotClassName": "holdfast",
            "source": { "persistentVolumeClaimName": "data" },
        },
    }))?;
    wait_ready(&space, "monday")?;
    let mut clone = pods::claim("clone", "holdfast-xfs", "512Mi");
    source(&mut clone, "PersistentVolumeClaim", "data");
    space.apply(clone)?;
    let cloned = space.run(pods::pod("cloned", "clone", FOUND))?;
    ensure!(cloned == sums, "the clone holds {cloned}, the source {sums}");
    space.exec("user", SECOND)?;
    // Larger than its source.
    let mut restored = pods::claim("restored", "holdfast-xfs", "1Gi");
    source(&mut restored, "VolumeSnapshot", "monday");
    space.apply(restored)?;
    let size = "stat -f -c '%b %S' /data";
    let found = space.run(pods::pod("reader", "restored", &format!("{FOUND} && {size}")))?;
    let (found, size) = found.split_at(sums.len().min(found.len()));
    ensure!(found == sums, "restored were {found}, of {sums}");
    let bytes: u64 = size.split_whitespace().map(|word| word.parse::<u64>().unwrap_or(0)).product();
    ensure!(bytes > 900 << 20, "the file system of a restored larger volume has {bytes} bytes");
    let changed = space.exec("user", "cat /data/first")?;
    ensure!(changed == "changed\n", "the source holds {changed}");
    space.kubectl(&["delete", "volumesnapshot", "monday", "--wait=true"])?;
    until("the snapshot is gone from the control plane", || {
        let left = cluster.holdfast(&["snapshot", "list"])?;
        Ok((left == json!([])).then_some(()))
    })?;
    let again = space.run(pods::pod("again", "restored", FOUND))?;
    ensure!(again == sums, "without its snapshot the restored volume holds {again}");
    space.end()
}

/// Two volumes that one pod writes one after the other: the second is never ahead.
const PAIR: &str = "n=0; while :; do n=$((n + 1)); echo $n > /data/n && sync -f /data/n || exit 1
    echo $n > /second/n && sync -f /second/n || exit 1; echo wrote $n; done";

pub(crate) fn a_group_is_snapshotted_at_one_moment(cluster: &Cluster) -> Result<()> {
    let space = Space::new(cluster, "groups")?;
    for name in ["one", "two"] {
        let mut claim = pods::claim(name, "holdfast-double", "128Mi");
        claim["metadata"]["labels"] = json!({ "group": "pair" });
        space.apply(claim)?;
    }
    let with_both = |name: &str, (one, two): (&str, &str), script: &str| {
        let mut pod = pods::pod(name, one, script);
        let spec = &mut pod["spec"];
        let volume = json!({ "name": "two", "persistentVolumeClaim": { "claimName": two } });
        let mount = json!({ "name": "two", "mountPath": "/second" });
        if let Some(list) = spec["volumes"].as_array_mut() {
            list.push(volume);
        }
        if let Some(list) = spec["containers"][0]["volumeMounts"].as_array_mut() {
            list.push(mount);
        }
        pod
    };
    space.apply(with_both("writer", ("one", "two"), PAIR))?;
    until("the pod writes", || Ok((space.written("writer")? >= 10).then_some(())))?;
    space.apply(json!({
        "apiVersion": "groupsnapshot.storage.k8s.io/v1",
        "kind": "VolumeGroupSnapshot",
        "metadata": { "name": "both" },
        "spec": {
            "volumeGroupSnapshotClassName": "holdfast",
            "source": { "selector": { "matchLabels": { "group": "pair" } } },
        },
    }))?;
    until("the group snapshot is ready", || {
        let found = space.get(&["volumegroupsnapshot", "both"])?;
        Ok((found["status"]["readyToUse"] == true).then_some(()))
    })?;
    let snapshots = space.get(&["volumesnapshots"])?;
    ensure!(items(&snapshots).len() == 2, "a snapshot of each: {snapshots}");
    for snapshot in items(&snapshots) {
        let name = snapshot["metadata"]["name"].as_str().context("a snapshot has a name")?;
        let of = snapshot["spec"]["source"]["persistentVolumeClaimName"].as_str();
        let of = of.or(snapshot["status"]["volumeGroupSnapshotName"].as_str());
        eprintln!("snapshot {name} of {of:?}");
        wait_ready(&space, name)?;
        let mut claim = pods::claim(&format!("from-{name}"), "holdfast-double", "128Mi");
        source(&mut claim, "VolumeSnapshot", name);
        space.apply(claim)?;
    }
    let names: Vec<String> = items(&snapshots)
        .iter()
        .filter_map(|one| Some(format!("from-{}", one["metadata"]["name"].as_str()?)))
        .collect();
    let script = "cat /data/n /second/n";
    let [one, two] = names.as_slice() else { anyhow::bail!("two snapshots, not {names:?}") };
    let found = space.run(with_both("reader", (one, two), script))?;
    let mut numbers: Vec<u64> =
        found.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    numbers.sort_unstable();
    eprintln!("the restored pair holds {numbers:?}");
    let [low, high] = numbers.as_slice() else { anyhow::bail!("the pair holds {found}") };
    ensure!(high - low <= 1, "the snapshots are of different moments: {numbers:?}");
    space.kubectl(&["delete", "volumegroupsnapshot", "both", "--wait=true"])?;
    space.end()
}
