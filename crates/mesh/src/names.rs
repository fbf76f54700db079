//! Names in the kernel: predictable from volumes and nodes, so that a repeated step finds its work.

use model::VolumeId;
use sha2::{Digest as _, Sha256};
use uuid::{Builder, Uuid};

/// The label of a partition that is ours and ready for use.
pub const LABEL: &str = "holdfast-mesh";
/// The label of a partition that is ours and not yet zeroed.
pub const UNPREPARED_LABEL: &str = "holdfast-mesh-new";

/// The UUID of the partition that a volume requests as its `sequence`-th.
pub fn partition_uuid(volume_id: &str, sequence: usize) -> String {
    hashed(&["partition", volume_id, &sequence.to_string()]).to_string()
}

/// The UUID of a volume's array.
pub fn array_uuid(volume_id: &str) -> String {
    hashed(&["array", volume_id]).to_string()
}

/// What a node calls itself as an NVMe host.
pub fn host_nqn(node: &str) -> String {
    format!("nqn.2026-11.io.holdfast.mesh:{node}")
}

/// The host id that belongs to [`host_nqn`].
pub fn host_id(node: &str) -> String {
    hashed(&["host", node]).to_string()
}

/// The subsystem by which `source` shows partitions of a volume to `target`.
pub fn subsystem(volume: &VolumeId, source: &str, target: &str) -> String {
    format!("nqn.2026-11.io.holdfast.mesh:tcp:{source}:{target}:{volume}")
}

/// The source, target and volume of a subsystem of ours.
pub fn parse_subsystem(nqn: &str) -> Option<(&str, &str, &str)> {
    let rest = nqn.strip_prefix("nqn.2026-11.io.holdfast.mesh:tcp:")?;
    let mut part = rest.split(':');
    let found = (part.next()?, part.next()?, part.next()?);
    part.next().is_none().then_some(found)
}

/// The device-mapper device between an array and a partition, made for one epoch.
pub fn leg(partition: &str, epoch: u64) -> String {
    format!("mesh-{partition}-{epoch}")
}

/// The partition and epoch in the name of a leg.
pub fn parse_leg(name: &str) -> Option<(&str, u64)> {
    let (partition, epoch) = name.strip_prefix("mesh-")?.rsplit_once('-')?;
    (partition.len() == 36).then_some(())?;
    Some((partition, epoch.parse().ok()?))
}

/// The array of a volume below `/dev/md`. MD keeps 32 characters of a name; arrays are found by
/// their UUID and their members, never by this.
pub fn array(volume_id: &str) -> String {
    let short: String = volume_id.chars().filter(|digit| *digit != '-').take(20).collect();
    format!("mesh-{short}")
}

fn hashed(parts: &[&str]) -> Uuid {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update(part.as_bytes());
        hasher.update([0]);
    }
    let digest = hasher.finalize();
    let mut bytes = [0; 16];
    for (to, from) in bytes.iter_mut().zip(digest.iter()) {
        *to = *from;
    }
    Builder::from_custom_bytes(bytes).into_uuid()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_depend_on_all_their_parts_and_legs_are_read_back() {
        let one = partition_uuid("a", 1);
        assert_ne!(one, partition_uuid("a", 2));
        assert_ne!(partition_uuid("a1", 1), partition_uuid("a", 11));
        assert_eq!(parse_leg(&leg(&one, 7)), Some((one.as_str(), 7)));
        assert_eq!(parse_leg("vg-root"), None);
        assert_eq!(parse_leg("mesh-x-1"), None);
        let id: VolumeId = "6f1d0a57-0000-4000-8000-000000000001".parse().unwrap();
        let nqn = subsystem(&id, "n1", "n2");
        assert_eq!(parse_subsystem(&nqn), Some(("n1", "n2", id.to_string().as_str())));
        assert!(array(&id.to_string()).len() <= 32);
    }
}
