//! Which node gets the next copy.
//!
//! The order of the fields of [`Score`] is the policy. Only nodes whose heartbeat is fresh, whose
//! address is known and that have a drive with room are looked at.

use std::collections::BTreeMap;

use crate::node_device::{MeshNodeDeviceSpec, MeshNodeDeviceStatus};

/// A heartbeat older than this, in seconds, is that of a node that is not healthy.
pub const HEARTBEAT_LIMIT: u64 = 30;

/// A drive of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drive {
    /// Where it is.
    pub spec: MeshNodeDeviceSpec,
    /// What its node says of it.
    pub status: MeshNodeDeviceStatus,
}

impl Drive {
    /// Whether its node was alive a moment ago.
    pub fn is_healthy(&self, now: u64) -> bool {
        now.saturating_sub(self.status.heartbeat) <= HEARTBEAT_LIMIT
    }
}

/// How good a node is for the next copy: smaller is better, top to bottom.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Score<'a> {
    /// The consumer's own node reads without the network.
    is_remote: bool,
    /// RDMA has the lower latency, where both ends have it.
    lacks_rdma: bool,
    /// Volumes on its best drive.
    partitions: u32,
    /// Free space, the most first.
    used_up: u64,
    /// For determinism.
    node: &'a str,
}

/// What is to be placed.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The node that uses the volume.
    pub consumer: &'a str,
    /// Bytes of each partition.
    pub size: u64,
    /// The logical block size.
    pub sector_size: u32,
    /// Drives on each node.
    pub drives: usize,
    /// Nodes that have a copy already.
    pub taken: &'a [&'a str],
    /// Seconds since 1970.
    pub now: u64,
}

/// The nodes for further copies, best first, each with its drives, best first.
pub fn rank<'a>(drives: &'a [Drive], wanted: &Wanted<'_>) -> Vec<(&'a str, Vec<&'a str>)> {
    let mut by_node: BTreeMap<&str, Vec<&Drive>> = BTreeMap::new();
    for drive in drives {
        let has_room = drive.status.biggest_usable_free_bytes >= wanted.size;
        let fits =
            drive.status.sector_size == wanted.sector_size && drive.status.unusable.is_none();
        let is_free = !wanted.taken.contains(&drive.spec.node_id.as_str());
        let is_local = drive.spec.node_id == wanted.consumer;
        let is_reachable = is_local || drive.status.tcp_address.is_some();
        if has_room && fits && is_free && is_reachable && drive.is_healthy(wanted.now) {
            by_node.entry(&drive.spec.node_id).or_default().push(drive);
        }
    }
    let consumer_has_rdma = drives
        .iter()
        .any(|it| it.spec.node_id == wanted.consumer && it.status.rdma_address.is_some());
    let mut ranked: Vec<(Score<'_>, Vec<&str>)> = Vec::new();
    for (node, mut drives) in by_node {
        if drives.len() < wanted.drives {
            continue;
        }
        let partitions = |it: &Drive| it.status.local_partitions + it.status.remote_partitions;
        drives.sort_by_key(|it| {
            let free = std::cmp::Reverse(it.status.biggest_usable_free_bytes);
            (partitions(it), free, it.spec.device.as_str())
        });
        let Some(best) = drives.first() else { continue };
        let score = Score {
            is_remote: node != wanted.consumer,
            lacks_rdma: !(consumer_has_rdma && best.status.rdma_address.is_some()),
            partitions: partitions(best),
            used_up: u64::MAX - best.status.biggest_usable_free_bytes,
            node,
        };
        ranked.push((score, drives.iter().map(|it| it.spec.device.as_str()).collect()));
    }
    ranked.sort();
    ranked.into_iter().map(|(score, drives)| (score.node, drives)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `node:device:free:partitions:age` with an `r` behind for RDMA.
    fn drives(text: &str) -> Vec<Drive> {
        let parse = |one: &str| {
            let (one, rdma) = one.strip_suffix('r').map_or((one, None), |one| (one, Some("r")));
            let mut part = one.split(':');
            let mut next = || part.next().unwrap_or_default().to_owned();
            let (node_id, device) = (next(), next());
            let mut number = || next().parse::<u64>().unwrap();
            let (free, partitions, age) = (number(), number(), number());
            Drive {
                spec: MeshNodeDeviceSpec { node_id, device },
                status: MeshNodeDeviceStatus {
                    biggest_usable_free_bytes: free,
                    remote_partitions: u32::try_from(partitions).unwrap(),
                    heartbeat: 1000 - age,
                    sector_size: 4096,
                    tcp_address: Some("10.0.0.1".to_owned()),
                    rdma_address: rdma.map(str::to_owned),
                    ..MeshNodeDeviceStatus::default()
                },
            }
        };
        text.split_whitespace().map(parse).collect()
    }

    fn check(given: &str, expected: &str) {
        let wanted = Wanted {
            consumer: "c",
            size: 10,
            sector_size: 4096,
            drives: 1,
            taken: &["t"],
            now: 1000,
        };
        let drives = drives(given);
        let ranked = rank(&drives, &wanted);
        let found: Vec<String> =
            ranked.iter().map(|(node, drives)| format!("{node}/{}", drives[0])).collect();
        assert_eq!(found.join(" "), expected, "{given}");
    }

    #[test]
    fn the_consumers_own_node_comes_first() {
        check("a:d:99:0:0 c:d:10:9:0", "c/d a/d");
    }

    #[test]
    fn rdma_then_few_volumes_then_room() {
        check("c:d:10:0:0r a:d:99:0:0 b:d:10:5:0r", "c/d b/d a/d");
        check("a:d:99:2:0 b:d:10:1:0", "b/d a/d");
        check("a:d:50:1:0 b:d:99:1:0", "b/d a/d");
    }

    #[test]
    fn nodes_without_room_health_or_with_a_copy_are_left_out() {
        check("a:d:9:0:0 b:d:99:0:31 t:d:99:0:0 e:d:10:0:30", "e/d");
    }

    #[test]
    fn a_node_offers_its_best_drive() {
        check("a:d1:20:3:0 a:d2:10:1:0", "a/d2");
    }
}
