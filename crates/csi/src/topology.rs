//! Where a volume should be near: the nodes that a scheduler has chosen or would accept.
//!
//! A volume can be used from every node, so requirements never make one impossible. What is
//! preferred says where a copy saves the network: the first entry is the node of the pod, if its
//! claim waits for the first consumer.

use std::collections::{BTreeMap, BTreeSet};

use model::{HostName, LabelKey, NodeName};
use tonic::Status;

use crate::proto::{Topology, TopologyRequirement};
use crate::status;

/// The segment that names the node.
pub(crate) const NODE: &str = "topology.holdfast.io/node";

/// Where one node is.
pub(crate) fn of_node(node: &HostName, zone: Option<&str>) -> Topology {
    let mut segments = BTreeMap::from([(NODE.to_owned(), node.to_string())]);
    segments.extend(zone.map(|zone| (LabelKey::ZONE.to_owned(), zone.to_owned())));
    Topology { segments }
}

/// The node that a topology names.
pub(crate) fn node(topology: &Topology) -> Result<Option<NodeName>, Status> {
    let named = topology.segments.get(NODE);
    named.map(|name| name.parse::<NodeName>().map_err(status::invalid)).transpose()
}

/// The node that should have a copy: the one preferred most.
pub(crate) fn preferred(
    requirement: Option<&TopologyRequirement>,
) -> Result<BTreeSet<NodeName>, Status> {
    let first = requirement.and_then(|required| required.preferred.first());
    Ok(first.map(node).transpose()?.flatten().into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_preferred_node_gets_a_copy() {
        let at = |name: &str| of_node(&name.parse().unwrap(), Some("a"));
        let requirement = TopologyRequirement {
            requisite: vec![at("n1"), at("n2")],
            preferred: vec![at("n2"), at("n1")],
        };
        let found = preferred(Some(&requirement)).unwrap();
        assert_eq!(found, ["n2".parse().unwrap()].into());
        assert!(preferred(None).unwrap().is_empty());
        let mut bad = requirement;
        bad.preferred[0].segments.insert(NODE.to_owned(), "Not A Node".to_owned());
        assert!(preferred(Some(&bad)).is_err());
    }
}
