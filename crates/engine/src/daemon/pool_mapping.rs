//! How the resources of the model lie in a pool: the one mapping between the two.
//!
//! | model | pool |
//! |---|---|
//! | `ReplicaId`, `SnapshotId`, `PoolUuid` | [`Id`]: the same 128 bits |
//! | [`ReplicaLabel`] of a replica | `label`: its numbers and sets, the whole record in `opaque` |
//! | [`SyncMetadata`] of a target | the same; the label is in the note |
//! | [`SpecBackup`] of the volume of a replica | `spec_backup` |
//! | [`SnapshotLabel`] | `label.opaque`; without one it follows from the entity |
//!
//! A replica that was made without a volume (by `holdfast engine serve`) is taken for the only copy
//! of a volume with its own id, so that it is seen and can be deleted.

use std::collections::BTreeSet;

use block::Blocks;
use model::envelope::{self, DecodeError};
use model::{
    Consistency, Encryption, Epoch, Nqn, PoolName, PoolUuid, ReplicaId, ReplicaLabel, ReplicaSpec,
    Size, SnapshotId, SnapshotLabel, SpecBackup, SyncMetadata, Timestamp, Usage, VolumeId,
};
use pool::{Entity, EntityKind, Id, NewReplica, NewSnapshot};
use uuid::Uuid;

const _: () = assert!(SpecBackup::MOST_BYTES <= Entity::MOST_SPEC_BACKUP);

/// The pool's name for a thing with this UUID.
pub(super) fn id_of(uuid: Uuid) -> Id {
    Id(uuid.as_u128())
}

fn uuid_of(id: Id) -> Uuid {
    Uuid::from_u128(id.0)
}

/// Which pool this is.
pub(super) fn pool_uuid(id: Id) -> Option<PoolUuid> {
    PoolUuid::new(uuid_of(id)).ok()
}

/// Which replica this is.
pub(super) fn replica_id(id: Id) -> Option<ReplicaId> {
    ReplicaId::new(uuid_of(id)).ok()
}

/// Which snapshot this is.
pub(super) fn snapshot_id(id: Id) -> Option<SnapshotId> {
    SnapshotId::new(uuid_of(id)).ok()
}

/// Blocks of a pool as a size.
pub(super) fn size_of(Blocks(blocks): Blocks) -> Size {
    Size::from(block::Bytes(blocks.saturating_mul(Size::BLOCK.bytes().0)))
}

/// A size as blocks of a pool; parts of a block are refused before it comes here.
pub(super) fn blocks_of(size: Size) -> Blocks {
    Blocks(size.bytes().0 / Size::BLOCK.bytes().0)
}

/// The space that a replica or snapshot takes.
pub(super) fn usage_of(usage: pool::Usage, kind: EntityKind) -> Usage {
    // What lies below a snapshot belongs to older ones.
    let below = if kind == EntityKind::Replica { usage.below.into() } else { Size::ZERO };
    Usage { capacity: usage.size.into(), allocated: usage.own.into(), snapshots: below }
}

/// What is written on disk with a replica.
enum StoredMetadata {
    Nothing,
    Label(ReplicaLabel),
    Note(SyncMetadata),
}

fn written(entity: &Entity) -> Result<StoredMetadata, DecodeError> {
    let bytes = &entity.label.opaque;
    // A replica that has a name only was made by `holdfast engine serve`.
    if bytes.is_empty() || entity.label.volume == Id::NONE {
        return Ok(StoredMetadata::Nothing);
    }
    match envelope::decode::<SyncMetadata>(bytes) {
        Err(DecodeError::OtherKind { .. }) => envelope::decode(bytes).map(StoredMetadata::Label),
        note => note.map(StoredMetadata::Note),
    }
}

/// The label of a replica, if it was given one.
pub(super) fn label(entity: &Entity) -> Result<Option<ReplicaLabel>, DecodeError> {
    Ok(match written(entity)? {
        StoredMetadata::Nothing => None,
        StoredMetadata::Label(label) => Some(label),
        StoredMetadata::Note(note) => Some(note.label),
    })
}

/// What to keep so that a replica has this label; maps that are kept with it stay.
pub(super) fn with_label(entity: &Entity, label: ReplicaLabel) -> Result<pool::Label, DecodeError> {
    let set = |ids: &BTreeSet<ReplicaId>| ids.iter().map(|id| id_of(id.uuid())).collect();
    let kept = pool::Label {
        volume: id_of(label.volume.uuid()),
        epoch: label.epoch.number(),
        generation: label.set.generation().number(),
        transaction: entity.label.transaction,
        set: set(label.set.replicas()),
        in_sync: set(label.set.in_sync()),
        opaque: Vec::new(),
    };
    let text = match written(entity)? {
        StoredMetadata::Note(note) => {
            let sequence = note.sequence.saturating_add(1);
            envelope::encode(&SyncMetadata { label, sequence, ..note })
        }
        StoredMetadata::Label(_) | StoredMetadata::Nothing => envelope::encode(&label),
    };
    let unwritable = |error: &dyn std::fmt::Display| DecodeError::Damaged {
        kind: "replicaLabel",
        reason: error.to_string(),
    };
    let opaque = text.map_err(|error| unwritable(&error))?.into_bytes();
    Ok(pool::Label { opaque, ..kept })
}

/// What is kept of the volume of a replica. One that cannot be read is written anew: it decides
/// nothing while there is a store.
pub(super) fn spec_backup(entity: &Entity) -> Option<SpecBackup> {
    envelope::decode(&entity.spec_backup).ok()
}

/// The highest epoch that held a replica.
pub(super) fn fence(entity: &Entity) -> Option<Epoch> {
    crate::serve::least_epoch(&entity.share).and_then(Epoch::new)
}

fn volume_of(entity: &Entity, replica: Id) -> Option<VolumeId> {
    let known = VolumeId::new(uuid_of(entity.label.volume)).ok();
    known.or_else(|| VolumeId::new(uuid_of(replica)).ok())
}

/// What a replica on the disks is wanted to be, as far as they say.
pub(super) fn replica_spec(
    pool: &PoolName,
    entity: &Entity,
    hosts: &BTreeSet<Nqn>,
    encryption: Option<Encryption>,
) -> Option<ReplicaSpec> {
    Some(ReplicaSpec {
        volume: volume_of(entity, entity.id)?,
        pool: pool.clone(),
        size: size_of(entity.size),
        thin: !entity.thick,
        source: snapshot_id(entity.origin),
        encryption,
        hosts: hosts.clone(),
    })
}

/// The replica to make.
pub(super) fn new_replica(
    id: ReplicaId,
    spec: &ReplicaSpec,
    key: Vec<u8>,
    now: Timestamp,
) -> NewReplica {
    let volume = id_of(spec.volume.uuid());
    NewReplica {
        id: id_of(id.uuid()),
        origin: spec.source.map_or(Id::NONE, |source| id_of(source.uuid())),
        size: blocks_of(spec.size),
        thick: !spec.thin,
        created: now.millis(),
        label: pool::Label { volume, ..pool::Label::default() },
        key,
    }
}

/// What is written with a snapshot, or follows from it.
pub(super) fn snapshot_label(entity: &Entity) -> Option<SnapshotLabel> {
    let kept: Option<SnapshotLabel> = envelope::decode(&entity.label.opaque).ok();
    kept.or_else(|| {
        Some(SnapshotLabel {
            snapshot: snapshot_id(entity.id)?,
            volume: volume_of(entity, entity.origin)?,
            replica: replica_id(entity.origin)?,
            group: None,
            taken_at: Timestamp::from_millis(entity.created),
            size: size_of(entity.size),
            consistency: Consistency::Crash,
        })
    })
}

/// The snapshot to take of a replica.
pub(super) fn new_snapshot(replica: &Entity, label: &SnapshotLabel) -> Option<NewSnapshot> {
    let opaque = envelope::encode(label).ok()?.into_bytes();
    Some(NewSnapshot {
        id: id_of(label.snapshot.uuid()),
        created: label.taken_at.millis(),
        label: pool::Label { opaque, ..replica.label.clone() },
    })
}

/// The volume of a replica.
pub(super) fn volume(entity: &Entity) -> Option<VolumeId> {
    volume_of(entity, entity.id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::num::NonZeroU64;
    use model::{RegionSet, ReplicaSet};
    use pool::LayerId;

    fn replica(n: u128) -> ReplicaId {
        replica_id(Id(n)).unwrap()
    }

    fn entity(label: pool::Label) -> Entity {
        Entity {
            id: Id(20),
            origin: Id(30),
            kind: EntityKind::Replica,
            layer: LayerId(1),
            size: Blocks(256),
            thick: true,
            created: 5,
            label,
            key: Vec::new(),
            share: Vec::new(),
            spec_backup: Vec::new(),
        }
    }

    fn label_of(epoch: u64) -> ReplicaLabel {
        ReplicaLabel {
            volume: VolumeId::new(Uuid::from_u128(10)).unwrap(),
            replica: replica(20),
            size: Size::mib(1),
            epoch: Epoch::new(epoch).unwrap(),
            set: ReplicaSet::new([replica(20), replica(21)].into()).unwrap(),
        }
    }

    #[test]
    fn a_label_is_read_as_it_was_written() {
        let fresh = entity(pool::Label { volume: Id(10), ..pool::Label::default() });
        assert_eq!(label(&fresh).unwrap(), None);
        let kept = with_label(&fresh, label_of(3)).unwrap();
        assert_eq!((kept.volume, kept.epoch, kept.generation), (Id(10), 3, 1));
        assert_eq!((&kept.set[..], &kept.in_sync[..]), (&[Id(20), Id(21)][..], &kept.set[..]));
        assert_eq!(label(&entity(kept)).unwrap(), Some(label_of(3)));
    }

    #[test]
    fn a_new_label_leaves_the_maps_of_a_target() {
        let mut intents = RegionSet::new(NonZeroU64::MIN);
        intents.insert(3);
        let missed = [(replica(21), intents.clone())].into();
        let note = SyncMetadata {
            label: label_of(3),
            owner: "00000000-0000-4000-8000-000000000030".parse().unwrap(),
            sequence: 7,
            settled: None,
            incarnation: 9,
            loss: 0,
            intents,
            missed,
            reservations: Box::default(),
            left: [].into(),
        };
        let opaque = envelope::encode(&note).unwrap().into_bytes();
        let held = entity(pool::Label { volume: Id(10), opaque, ..pool::Label::default() });
        let kept = with_label(&held, label_of(4)).unwrap();
        let found: SyncMetadata = envelope::decode(&kept.opaque).unwrap();
        assert_eq!(found, SyncMetadata { label: label_of(4), sequence: 8, ..note });
        assert_eq!(label(&entity(kept)).unwrap(), Some(label_of(4)));
    }

    #[test]
    fn what_is_damaged_is_not_taken_for_nothing() {
        let opaque = b"{\"kind\":\"replicaLabel\",\"version\":9,\"record\":{}}".to_vec();
        let held = entity(pool::Label { volume: Id(10), opaque, ..pool::Label::default() });
        assert!(label(&held).is_err() && with_label(&held, label_of(4)).is_err());
    }

    #[test]
    fn a_replica_that_has_a_name_only_is_its_own_volume() {
        let opaque = b"vol1".to_vec();
        let held = entity(pool::Label { opaque, ..pool::Label::default() });
        assert_eq!(label(&held).unwrap(), None);
        let spec = replica_spec(&"tank".parse().unwrap(), &held, &[].into(), None).unwrap();
        assert_eq!((spec.volume.uuid(), spec.thin), (Uuid::from_u128(20), false));
        assert_eq!((spec.source, spec.size), (snapshot_id(Id(30)), Size::mib(1)));
    }

    #[test]
    fn a_snapshot_of_a_target_has_a_label_too() {
        let told = pool::Label { volume: Id(10), ..pool::Label::default() };
        let taken = Entity { kind: EntityKind::Snapshot, origin: Id(20), ..entity(told) };
        let label = snapshot_label(&taken).unwrap();
        assert_eq!((label.replica, label.taken_at.millis()), (replica(20), 5));
        let of = entity(pool::Label { volume: Id(10), ..pool::Label::default() });
        let new = new_snapshot(&of, &label).unwrap();
        let kept = Entity { label: new.label, ..taken };
        assert_eq!(snapshot_label(&kept), Some(label));
    }
}
