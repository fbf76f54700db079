//! What Kubernetes knows about nodes reaches the control plane: topology labels, and cordons.
//!
//! Only what came from Kubernetes is changed there: labels with the keys of [`is_managed`], and the
//! cordon [`CORDON`]. What people set with `holdfast node label` and `cordon` stays.

use k8s_openapi::api::core::v1::Node as KubernetesNode;
use kube::ResourceExt as _;
use model::{LabelKey, LabelValue, Labels, NodeChange, NodeSpec};

/// The reason of cordons that follow `kubectl cordon`.
pub const CORDON: &str = "kubernetes";

/// Whether a label of a Kubernetes node becomes a label of the node in the control plane.
fn is_managed(key: &str) -> bool {
    key.starts_with("topology.kubernetes.io/") || key.starts_with("node.holdfast.io/")
}

/// What to change of a node, one thing after the other.
pub fn changes(from: &KubernetesNode, node: &NodeSpec) -> Vec<NodeChange> {
    let mut changes = Vec::new();
    let labels = wanted_labels(from, &node.labels);
    if labels != node.labels {
        changes.push(NodeChange::Label { labels });
    }
    let Ok(cordon) = CORDON.parse() else { return changes };
    let wanted = from.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false);
    match (wanted, node.cordons.contains(&cordon)) {
        (true, false) => changes.push(NodeChange::Cordon { cordon }),
        (false, true) => changes.push(NodeChange::Uncordon { cordon }),
        _ => {}
    }
    changes
}

/// The labels of the control plane, with the managed ones as Kubernetes has them.
fn wanted_labels(from: &KubernetesNode, now: &Labels) -> Labels {
    let others = now.iter().filter(|(key, _)| !is_managed(key.as_str()));
    let mut labels: Labels = others.map(|(key, value)| (key.clone(), value.clone())).collect();
    for (key, value) in from.labels().iter().filter(|(key, _)| is_managed(key)) {
        // Kubernetes has the same rules; what does not fit here is left out.
        if let (Ok(key), Ok(value)) = (key.parse::<LabelKey>(), value.parse::<LabelValue>()) {
            labels.insert(key, value);
        }
    }
    labels
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ZONE: &str = "topology.kubernetes.io/zone";

    fn check(kubernetes: &serde_json::Value, node: &serde_json::Value, wanted: &[&str]) {
        let from = json!({
            "metadata": { "name": "n1", "labels": kubernetes["labels"] },
            "spec": { "unschedulable": kubernetes["unschedulable"] },
        });
        let nqn = "nqn.2026-11.io.holdfast:n1";
        let address = json!({ "api": "10.0.0.1:7442", "data": ["10.0.0.1:4420"], "nqn": nqn });
        let mut spec = json!({ "address": address });
        for (key, value) in node.as_object().unwrap() {
            spec[key] = value.clone();
        }
        let from: KubernetesNode = serde_json::from_value(from).unwrap();
        let spec: NodeSpec = serde_json::from_value(spec).unwrap();
        let found: Vec<String> = changes(&from, &spec)
            .iter()
            .map(|change| match change {
                NodeChange::Label { labels } => {
                    let pairs: Vec<_> =
                        labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
                    format!("label {}", pairs.join(" "))
                }
                NodeChange::Cordon { cordon } => format!("cordon {cordon}"),
                NodeChange::Uncordon { cordon } => format!("uncordon {cordon}"),
                other => format!("{other:?}"),
            })
            .collect();
        assert_eq!(found, wanted);
    }

    #[test]
    fn labels_and_cordons_of_kubernetes_reach_the_node() {
        let zone = json!({ "labels": { ZONE: "a", "team": "x" }, "unschedulable": true });
        let both = ["label topology.kubernetes.io/zone=a", "cordon kubernetes"];
        check(&zone, &json!({}), &both);
        check(&zone, &json!({ "labels": { ZONE: "a" }, "cordons": ["kubernetes"] }), &[]);
        let plain = json!({ "labels": {} });
        check(&plain, &json!({ "cordons": ["kubernetes"] }), &["uncordon kubernetes"]);
        check(&plain, &json!({ "labels": { ZONE: "a" } }), &["label "]);
    }

    #[test]
    fn what_people_have_set_stays() {
        let plain = json!({ "labels": {} });
        check(&plain, &json!({ "labels": { "disk": "ssd" }, "cordons": ["repair"] }), &[]);
        let zone = json!({ "labels": { ZONE: "b" } });
        let wanted = ["label disk=ssd topology.kubernetes.io/zone=b"];
        check(&zone, &json!({ "labels": { "disk": "ssd", ZONE: "a" } }), &wanted);
    }
}
