//! Names of callers to ids of ours: the same name gives the same id, always.
//!
//! Kubernetes names volumes `pvc-UUID`, snapshots `snapshot-UUID` and groups `groupsnapshot-UUID`:
//! the UUID is then the id, so that people find one by the other. Any other name is hashed.

use model::{SnapshotGroupId, SnapshotId, VolumeId};
use sha2::{Digest as _, Sha256};
use tonic::Status;
use uuid::{Builder, Uuid};

use crate::status;

/// The longest name that the specification allows.
const LONGEST: usize = 128;

/// The id of a volume with this name.
pub fn volume(name: &str) -> Result<VolumeId, Status> {
    VolumeId::new(id("pvc-", name)?).map_err(status::invalid)
}

/// The id of a snapshot with this name.
pub fn snapshot(name: &str) -> Result<SnapshotId, Status> {
    SnapshotId::new(id("snapshot-", name)?).map_err(status::invalid)
}

/// The id of a group of snapshots with this name.
pub fn group(name: &str) -> Result<SnapshotGroupId, Status> {
    SnapshotGroupId::new(id("groupsnapshot-", name)?).map_err(status::invalid)
}

/// The id of the snapshot of one volume in a group.
pub fn member(group: SnapshotGroupId, volume: VolumeId) -> Result<SnapshotId, Status> {
    let uuid = hashed("member", &format!("{group}/{volume}"));
    SnapshotId::new(uuid).map_err(status::invalid)
}

/// A name of any length as the value of a label.
pub(crate) fn short(name: &str) -> String {
    hashed("host", name).to_string()
}

fn id(prefix: &str, name: &str) -> Result<Uuid, Status> {
    if name.is_empty() {
        return Err(status::missing("name"));
    }
    if name.len() > LONGEST {
        let message = format!("the name has {} bytes; give at most {LONGEST}", name.len());
        return Err(Status::invalid_argument(message));
    }
    let given = name.strip_prefix(prefix).filter(|rest| rest.len() == 36);
    let given = given.and_then(|rest| Uuid::try_parse(rest).ok()).filter(|uuid| !uuid.is_nil());
    Ok(given.unwrap_or_else(|| hashed(prefix, name)))
}

fn hashed(kind: &str, name: &str) -> Uuid {
    let mut hash = Sha256::new();
    hash.update(kind.as_bytes());
    hash.update([0]);
    hash.update(name.as_bytes());
    let digest = hash.finalize();
    let mut bytes = [0; 16];
    bytes.iter_mut().zip(digest.iter()).for_each(|(to, from)| *to = *from);
    Builder::from_custom_bytes(bytes).into_uuid()
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "5f0c54a1-9d6e-4b6a-8a53-0c1f4b7f8a10";

    #[test]
    fn kubernetes_names_carry_their_id_and_others_are_hashed() {
        assert_eq!(volume(&format!("pvc-{UUID}")).unwrap().to_string(), UUID);
        assert_eq!(snapshot(&format!("snapshot-{UUID}")).unwrap().to_string(), UUID);
        assert_eq!(group(&format!("groupsnapshot-{UUID}")).unwrap().to_string(), UUID);
        let other = volume("Sanity-vol+1").unwrap();
        assert_eq!(volume("Sanity-vol+1").unwrap(), other);
        assert_ne!(volume("sanity-vol+1").unwrap(), other);
        assert_ne!(volume(UUID).unwrap().to_string(), UUID, "a name without prefix is a name");
        assert_ne!(snapshot("x").unwrap().uuid(), volume("x").unwrap().uuid());
        let nil = "pvc-00000000-0000-0000-0000-000000000000";
        assert!(!volume(nil).unwrap().uuid().is_nil());
    }

    #[test]
    fn a_name_is_neither_empty_nor_endless() {
        assert!(volume("").is_err());
        assert!(volume(&"x".repeat(128)).is_ok());
        let refused = volume(&"x".repeat(129)).unwrap_err();
        assert!(refused.message().contains("129 bytes"), "{refused}");
    }
}
