//! The life of an installation.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::cluster::{Cluster, HOLDFAST, items};
use crate::pools;
use crate::space::Space;
use crate::wait::until;

pub(crate) fn the_chart_is_upgraded_and_rolled_back_under_load(cluster: &Cluster) -> Result<()> {
    let space = Space::new(cluster, "upgraded")?;
    space.start_writer("holdfast-double", None)?;
    let secrets = || cluster.get(&["secrets", "--namespace", HOLDFAST]);
    let data = |secrets: &serde_json::Value| {
        let mine = |secret: &&serde_json::Value| secret["type"] == "Opaque";
        let all = items(secrets).iter().filter(mine).map(|secret| secret["data"].clone());
        all.collect::<Vec<_>>()
    };
    let kept = data(&secrets()?);
    let mut values = Cluster::values();
    values["log"] = json!("debug");
    let before = space.written("writer")?;
    cluster.helm(&["upgrade", HOLDFAST, Cluster::CHART], &values)?;
    wait_rolled_out(cluster)?;
    space.goes_on(before)?;
    ensure!(data(&secrets()?) == kept, "an upgrade changed certificates or tokens");
    let before = space.written("writer")?;
    cluster.helm_without_values(&["rollback", HOLDFAST, "1"])?;
    wait_rolled_out(cluster)?;
    space.goes_on(before)?;
    ensure!(data(&secrets()?) == kept, "a rollback changed certificates or tokens");
    pools::wait_online(cluster)?;
    space.wait_in_sync("data")?;
    space.check_in("writer")?;
    space.end()
}

/// With everything that can be switched on: linted, and accepted by the API server.
pub(crate) fn the_chart_is_linted_and_its_objects_are_accepted(cluster: &Cluster) -> Result<()> {
    let mut values = Cluster::values();
    values["networkPolicies"] = json!({ "enabled": true, "nodes": ["10.200.0.0/24"] });
    values["control"] = json!({ "replicas": 2 });
    cluster.helm(&["lint", Cluster::CHART, "--strict"], &values)?;
    let objects = cluster.helm(&["template", HOLDFAST, Cluster::CHART], &values)?;
    for kind in ["NetworkPolicy", "PodDisruptionBudget", "VolumeGroupSnapshotClass", "CSIDriver"] {
        ensure!(objects.contains(&format!("kind: {kind}\n")), "the chart makes no {kind}");
    }
    cluster.accepts(&objects)?;
    values["csi"]["node"] = json!({ "hold": "ten minutes" });
    let refused = cluster.helm(&["template", HOLDFAST, Cluster::CHART], &values);
    let refusal = format!("{:#}", refused.err().context("a wrong value was taken")?);
    ensure!(refusal.contains("hold"), "{refusal}");
    Ok(())
}

/// What roles may not do, although they talk to the API server.
pub(crate) fn roles_have_the_rights_they_need_and_no_more(cluster: &Cluster) -> Result<()> {
    let may = |role: &str, verb: &str, resource: &str| -> Result<bool> {
        let account = format!("--as=system:serviceaccount:{HOLDFAST}:holdfast-{role}");
        let asked = cluster.kubectl(&["auth", "can-i", verb, resource, &account, "-A"]);
        // An answer of no is an exit code as well.
        Ok(asked.is_ok_and(|answer| answer.trim() == "yes"))
    };
    let allowed = [
        ("operator", "patch", "diskpools.holdfast.io"),
        ("csi-controller", "patch", "volumeattachments.storage.k8s.io"),
    ];
    for (role, verb, resource) in allowed {
        ensure!(may(role, verb, resource)?, "{role} may not {verb} {resource}");
    }
    let denied = [
        ("operator", "delete", "diskpools.holdfast.io"),
        ("operator", "patch", "nodes"),
        ("operator", "get", "secrets"),
        ("operator", "list", "persistentvolumes"),
        ("csi-controller", "get", "secrets"),
        ("csi-controller", "create", "pods"),
        ("csi-controller", "patch", "nodes"),
        ("csi-controller", "delete", "persistentvolumeclaims"),
        ("csi-controller", "delete", "volumeattachments.storage.k8s.io"),
        ("csi-controller", "list", "diskpools.holdfast.io"),
    ];
    for (role, verb, resource) in denied {
        ensure!(!may(role, verb, resource)?, "{role} may {verb} {resource}");
    }
    let requests = cluster.requests()?;
    let refused = requests.iter().filter(|one| one["responseStatus"]["code"] == 403);
    let refused: Vec<_> = refused.map(|one| one["requestURI"].to_string()).collect();
    ensure!(refused.is_empty(), "asked for, and refused: {refused:?}");
    Ok(())
}

/// An engine that runs where another one does, or as somebody else, registers nothing.
pub(crate) fn an_engine_speaks_for_its_own_node_only(cluster: &Cluster) -> Result<()> {
    let said = |name: &str, account: &str| -> Result<String> {
        cluster.apply(&impostor(name, account))?;
        let pod = format!("pod/{name}");
        let line = until("an engine says what its heartbeat was answered", || {
            let log = cluster.kubectl(&["logs", &pod, "--namespace", HOLDFAST]);
            let log = log.unwrap_or_default();
            let line = log
                .lines()
                .find(|line| line.contains("heartbeat failed") || line.contains("registered with"));
            Ok(line.map(str::to_owned))
        })?;
        cluster.kubectl(&["delete", &pod, "--namespace", HOLDFAST, "--grace-period=0"])?;
        Ok(line)
    };
    let engine = said("another-node", "holdfast-engine")?;
    ensure!(engine.contains("node2") && engine.contains("heartbeat failed"), "{engine}");
    let operator = said("another-account", "holdfast-operator")?;
    ensure!(operator.contains("heartbeat failed"), "{operator}");
    let nodes = cluster.holdfast(&["node", "list"])?;
    let lost = nodes.as_array().into_iter().flatten().find(|it| it["status"]["state"] != "online");
    ensure!(lost.is_none(), "{nodes}");
    Ok(())
}

/// A pod on the first node with an engine that says it is the second one's.
fn impostor(name: &str, account: &str) -> serde_json::Value {
    let args = [
        "engine",
        "run",
        "--node=node2",
        "--dir=/run/engine",
        "--listen=127.0.0.1:4420",
        "--api=127.0.0.1:7442",
        "--control=holdfast-control.holdfast.svc:7440",
        "--control-ca=/etc/holdfast/engine/ca.crt",
        "--control-token-file=/etc/holdfast/identity/token",
    ];
    let token = json!({ "audience": "holdfast", "expirationSeconds": 3600, "path": "token" });
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name, "namespace": HOLDFAST },
        "spec": {
            "nodeName": "node1",
            "serviceAccountName": account,
            "automountServiceAccountToken": false,
            "containers": [{
                "name": "engine",
                "image": "holdfast.test/holdfast:1",
                "imagePullPolicy": "Never",
                "args": args,
                "securityContext": { "privileged": true },
                "volumeMounts": [
                    { "name": "secret", "mountPath": "/etc/holdfast/engine" },
                    { "name": "identity", "mountPath": "/etc/holdfast/identity" },
                    { "name": "dir", "mountPath": "/run/engine" },
                ],
            }],
            "volumes": [
                { "name": "secret", "secret": { "secretName": "holdfast-engine" } },
                { "name": "identity",
                  "projected": { "sources": [{ "serviceAccountToken": token }] } },
                { "name": "dir", "emptyDir": {} },
            ],
        },
    })
}

/// The most requests a minute of all roles together, when nothing happens.
const IDLE: usize = 10;

pub(crate) fn idle_roles_ask_the_api_server_little(cluster: &Cluster) -> Result<()> {
    let before = cluster.requests()?.len();
    std::thread::sleep(Duration::from_mins(2));
    let requests = cluster.requests()?;
    let asked: Vec<String> = requests[before..]
        .iter()
        .map(|one| format!("{} {} {}", one["user"]["username"], one["verb"], one["requestURI"]))
        .collect();
    eprintln!("{} requests in two minutes", asked.len());
    ensure!(asked.len() <= 2 * IDLE, "{}", asked.join("\n"));
    Ok(())
}

/// Waits until every pod that is replaced by itself is of the newest template.
fn wait_rolled_out(cluster: &Cluster) -> Result<()> {
    for what in [
        "daemonset/holdfast-engine",
        "deployment/holdfast-control",
        "deployment/holdfast-csi-controller",
        "deployment/holdfast-operator",
        "statefulset/holdfast-store",
    ] {
        let words = ["rollout", "status", what, "--timeout=300s", "--namespace", HOLDFAST];
        cluster.kubectl(&words)?;
    }
    cluster.wait_for_holdfast()
}

pub(crate) fn an_uninstallation_keeps_definitions_and_removes_the_rest(
    cluster: &Cluster,
) -> Result<()> {
    cluster.helm_without_values(&["uninstall", HOLDFAST, "--wait"])?;
    until("nothing of Holdfast runs", || {
        let pods = cluster.get(&["pods", "--namespace", HOLDFAST])?;
        Ok(items(&pods).is_empty().then_some(()))
    })?;
    cluster.kubectl(&["get", "customresourcedefinition", "diskpools.holdfast.io"])?;
    let claim = "data-holdfast-store-0";
    cluster.kubectl(&["get", "persistentvolumeclaim", claim, "--namespace", HOLDFAST])?;
    for kind in ["storageclasses", "csidrivers", "clusterroles", "clusterrolebindings"] {
        let left = cluster.get(&[kind])?;
        let name = |one: &serde_json::Value| one["metadata"]["name"].to_string();
        let mine: Vec<_> =
            items(&left).iter().map(name).filter(|name| name.contains("holdfast")).collect();
        ensure!(mine.is_empty(), "{kind} that are left: {mine:?}");
    }
    Ok(())
}
