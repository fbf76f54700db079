//! Entities: the replicas and snapshots that a pool holds, and what is written about them.
//!
//! Not here: their maps (`layers`).

use alloc::vec::Vec;

use block::Blocks;

use crate::casts::{count, low32};
use crate::codec::{Put, Reader};

/// An id of 128 bits, as the caller chose it. Zero means none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(pub u128);

impl Id {
    /// No id.
    pub const NONE: Id = Id(0);
}

/// Number of a layer. Zero means none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LayerId(pub u32);

impl LayerId {
    /// No layer.
    pub const NONE: LayerId = LayerId(0);
}

/// Longest byte string of an entity.
pub(crate) const MAX_STRING: usize = 4096;

impl Entity {
    /// Most bytes of its spec backup.
    pub const MOST_SPEC_BACKUP: usize = 16 << 10;
}

impl Label {
    /// Most bytes of what else the engine keeps.
    pub const MOST_OPAQUE: usize = MAX_STRING;
}

/// Most replicas of a set.
pub(crate) const MAX_SET: usize = 64;
const FIXED: usize = 4 + 16 + 16 + 4 + 4 + 8 + 8 + 16 + 8 + 8 + 16;
/// Fixed part of an encoded entity, and the lengths of its six strings.
pub(crate) const MIN_LEN: usize = FIXED + 6 * 2;
const _: () = assert!(FIXED == 108);

/// What kind of entity it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntityKind {
    /// Takes reads and writes.
    Replica,
    /// Takes reads.
    Snapshot,
}

/// What a replica knows of its volume, so that a lost store can be read back from disks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Label {
    /// The volume it is a copy of.
    pub volume: Id,
    /// Ownership number of the volume when this was written.
    pub epoch: u64,
    /// Number of the replica set.
    pub generation: u64,
    /// Transaction id of a snapshot.
    pub transaction: Id,
    /// All replicas of the volume.
    pub set: Vec<Id>,
    /// Those that are in sync.
    pub in_sync: Vec<Id>,
    /// Whatever else the engine wants to keep here.
    pub opaque: Vec<u8>,
}

/// A replica or a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entity {
    /// Its id.
    pub id: Id,
    /// What it was made from: the replica of a snapshot, the snapshot of a clone.
    pub origin: Id,
    /// Replica or snapshot.
    pub kind: EntityKind,
    /// Its topmost layer.
    pub layer: LayerId,
    /// Its size.
    pub size: Blocks,
    /// Whether space for all of it is reserved.
    pub thick: bool,
    /// When it was made, in milliseconds since 1970, as the caller said.
    pub created: u64,
    /// What it knows of its volume.
    pub label: Label,
    /// The wrapped data key with its check value; empty if it is not encrypted.
    pub key: Vec<u8>,
    /// How it is shared, as the engine wrote it.
    pub share: Vec<u8>,
    /// What is wanted of its volume, as somebody else than the engine wrote it.
    pub spec_backup: Vec<u8>,
}

/// Why an entity cannot be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadEntity {
    /// An id is missing.
    #[error("an id of zero means none; choose another")]
    NoId,
    /// A string or a set is too long.
    #[error("{what} is too long; at most {most}")]
    TooLong {
        /// Which one.
        what: &'static str,
        /// The limit.
        most: usize,
    },
    /// More clusters than a map can number.
    #[error("a replica of this pool has at most {most} blocks of 4 KiB")]
    TooLarge {
        /// The limit.
        most: u64,
    },
    /// No block at all.
    #[error("a size of zero blocks makes no sense")]
    Empty,
}

impl Entity {
    /// Refuses what cannot be stored.
    pub fn check(&self) -> Result<(), BadEntity> {
        let strings = [
            ("the wrapped key", self.key.len(), MAX_STRING),
            ("the share state", self.share.len(), MAX_STRING),
            ("the label", self.label.opaque.len(), MAX_STRING),
            ("the spec backup", self.spec_backup.len(), Entity::MOST_SPEC_BACKUP),
            ("the replica set", self.label.set.len(), MAX_SET),
            ("the in-sync set", self.label.in_sync.len(), MAX_SET),
        ];
        match strings.into_iter().find(|(_, len, most)| len > most) {
            Some((what, _, most)) => Err(BadEntity::TooLong { what, most }),
            None if self.id == Id::NONE => Err(BadEntity::NoId),
            None if self.size == Blocks::ZERO => Err(BadEntity::Empty),
            None => Ok(()),
        }
    }

    /// Whether its data are encrypted by the edge.
    pub fn is_encrypted(&self) -> bool {
        !self.key.is_empty()
    }

    /// Bytes of its encoding.
    pub(crate) fn encoded_len(&self) -> usize {
        let ids = self.label.set.len() + self.label.in_sync.len();
        let strings = [&self.key, &self.share, &self.label.opaque, &self.spec_backup];
        MIN_LEN + ids * 16 + strings.map(Vec::len).iter().sum::<usize>()
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        let snapshot = u32::from(self.kind == EntityKind::Snapshot);
        out.put32(low32(count(self.encoded_len())));
        out.put128(self.id.0);
        out.put128(self.origin.0);
        out.put32(self.layer.0);
        out.put32(snapshot | (u32::from(self.thick) << 1) | (u32::from(self.is_encrypted()) << 2));
        out.put64(self.size.0);
        out.put64(self.created);
        out.put128(self.label.volume.0);
        out.put64(self.label.epoch);
        out.put64(self.label.generation);
        out.put128(self.label.transaction.0);
        debug_assert_eq!(out.len() - start, FIXED);
        for set in [&self.label.set, &self.label.in_sync] {
            out.put16(crate::casts::low16(count(set.len() * 16)));
            for id in set {
                out.put128(id.0);
            }
        }
        for string in [&self.key, &self.share, &self.label.opaque, &self.spec_backup] {
            out.put_string(string);
        }
    }

    pub(crate) fn decode(from: &mut Reader<'_>) -> Option<Entity> {
        let len = usize::try_from(from.u32()?).ok()?;
        let mut body = Reader::new(from.take(len.checked_sub(4)?)?);
        let from = &mut body;
        let (id, origin) = (Id(from.u128()?), Id(from.u128()?));
        let layer = LayerId(from.u32()?);
        let flags = from.u32()?;
        let (size, created) = (Blocks(from.u64()?), from.u64()?);
        let volume = Id(from.u128()?);
        let (epoch, generation) = (from.u64()?, from.u64()?);
        let transaction = Id(from.u128()?);
        let (set, in_sync) = (ids(from.string()?)?, ids(from.string()?)?);
        let (key, share) = (from.string()?.to_vec(), from.string()?.to_vec());
        let (opaque, spec_backup) = (from.string()?.to_vec(), from.string()?.to_vec());
        let label = Label { volume, epoch, generation, transaction, set, in_sync, opaque };
        let kind = if flags & 1 == 0 { EntityKind::Replica } else { EntityKind::Snapshot };
        let thick = flags & 2 != 0;
        let entity = Entity {
            id,
            origin,
            kind,
            layer,
            size,
            thick,
            created,
            label,
            key,
            share,
            spec_backup,
        };
        let agrees = flags >> 3 == 0 && (flags & 4 != 0) == entity.is_encrypted();
        (body.is_empty() && agrees && layer != LayerId::NONE && entity.check().is_ok())
            .then_some(entity)
    }
}

fn ids(bytes: &[u8]) -> Option<Vec<Id>> {
    let mut from = Reader::new(bytes);
    let mut found = Vec::new();
    while !from.is_empty() {
        found.push(Id(from.u128()?));
    }
    Some(found)
}
