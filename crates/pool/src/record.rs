//! Records of the journal: what changed, in order.
//!
//! Not here: blocks and groups (`journal`), what a record does (`state`).

use alloc::vec::Vec;

use block::Blocks;

use crate::casts::{count, low16};
use crate::codec::{Put, Reader};
use crate::entity::{self, Entity, Id, LayerId};
use crate::layout::Cluster;

/// Longest record, with room to spare for the longest entity.
pub(crate) const MAX_RECORD: usize = 32 << 10;
/// Most blocks that one first-write record covers.
pub(crate) const MAX_FIRST: u16 = 3000;
const FIRST_WRITE_HEAD: usize = 20;
const OVERWRITE_HEAD: usize = 16;
const _: () = assert!(MAX_RECORD >= FIRST_WRITE_HEAD + 4 * 3000);
const MAX_ENTITY: usize =
    entity::MIN_LEN + 3 * entity::MAX_STRING + 2 * entity::MAX_SET * 16 + Entity::MOST_SPEC_BACKUP;
const _: () = assert!(MAX_RECORD >= 24 + 4 + MAX_ENTITY);

/// A run of blocks of one cluster that became valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FirstWrite {
    pub(crate) layer: LayerId,
    pub(crate) logical: u32,
    pub(crate) cluster: Cluster,
    pub(crate) first: u16,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    FirstWrite {
        at: FirstWrite,
        crcs: Vec<u32>,
    },
    Discard {
        layer: LayerId,
        start: u64,
        len: u64,
    },
    Dirty {
        region: u32,
    },
    Create(Entity),
    Snapshot {
        source: Id,
        top: LayerId,
        entity: Entity,
    },
    Delete(Id),
    /// Entries of a hidden layer, up to this logical cluster, move down.
    Move {
        layer: LayerId,
        last: u32,
    },
    Collapse(LayerId),
    Update(Entity),
    Resize {
        id: Id,
        size: Blocks,
    },
    /// Blocks hold what was written over them in place: their sums, from this physical one on.
    Overwrite {
        first: u64,
        crcs: Vec<u32>,
    },
}

/// Appends a first write without building a record, for the hot path.
pub(crate) fn put_first_write(out: &mut Vec<u8>, at: FirstWrite, crcs: &[u32]) {
    out.put16(1);
    out.put16(low16(count(FIRST_WRITE_HEAD + 4 * crcs.len())));
    out.put32(at.layer.0);
    out.put32(at.logical);
    out.put32(at.cluster.0);
    out.put16(at.first);
    out.put16(low16(count(crcs.len())));
    for crc in crcs {
        out.put32(*crc);
    }
}

/// Appends an overwrite, likewise; at most [`MAX_FIRST`] blocks.
pub(crate) fn put_overwrite(
    out: &mut Vec<u8>,
    first: u64,
    crcs: impl ExactSizeIterator<Item = u32>,
) {
    out.put16(11);
    out.put16(low16(count(OVERWRITE_HEAD + 4 * crcs.len())));
    out.put64(first);
    out.put16(low16(count(crcs.len())));
    out.put16(0);
    crcs.for_each(|crc| out.put32(crc));
}

impl Record {
    fn kind(&self) -> u16 {
        match self {
            Record::FirstWrite { .. } => 1,
            Record::Discard { .. } => 2,
            Record::Dirty { .. } => 3,
            Record::Create(_) => 4,
            Record::Snapshot { .. } => 5,
            Record::Delete(_) => 6,
            Record::Collapse(_) => 7,
            Record::Update(_) => 8,
            Record::Resize { .. } => 9,
            Record::Move { .. } => 10,
            Record::Overwrite { .. } => 11,
        }
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.put16(self.kind());
        out.put16(0);
        match self {
            Record::FirstWrite { at, crcs } => {
                out.truncate(start);
                return put_first_write(out, *at, crcs);
            }
            Record::Overwrite { first, crcs } => {
                out.truncate(start);
                return put_overwrite(out, *first, crcs.iter().copied());
            }
            Record::Discard { layer, start, len } => {
                out.put32(layer.0);
                out.put32(0);
                out.put64(*start);
                out.put64(*len);
            }
            Record::Dirty { region } => out.put32(*region),
            Record::Create(entity) | Record::Update(entity) => entity.encode(out),
            Record::Snapshot { source, top, entity } => {
                out.put128(source.0);
                out.put32(top.0);
                entity.encode(out);
            }
            Record::Delete(id) => out.put128(id.0),
            Record::Move { layer, last } => {
                out.put32(layer.0);
                out.put32(*last);
            }
            Record::Collapse(layer) => out.put32(layer.0),
            Record::Resize { id, size } => {
                out.put128(id.0);
                out.put64(size.0);
            }
        }
        out.resize(start + (out.len() - start).next_multiple_of(4), 0);
        let len = low16(count(out.len() - start));
        out[start + 2..start + 4].copy_from_slice(&len.to_le_bytes());
    }

    /// The next record; `None` if the bytes are not one.
    pub(crate) fn decode(from: &mut Reader<'_>) -> Option<Record> {
        let kind = from.u16()?;
        let len = usize::from(from.u16()?);
        if !len.is_multiple_of(4) || len > MAX_RECORD {
            return None;
        }
        let mut body = Reader::new(from.take(len.checked_sub(4)?)?);
        let record = decode_body(kind, &mut body)?;
        // Only the padding of an entity may be left.
        (body.rest().len() < 4 && body.rest().iter().all(|byte| *byte == 0)).then_some(record)
    }
}

fn decode_body(kind: u16, from: &mut Reader<'_>) -> Option<Record> {
    Some(match kind {
        1 => {
            let (layer, logical) = (LayerId(from.u32()?), from.u32()?);
            let cluster = Cluster(from.u32()?);
            let (first, blocks) = (from.u16()?, from.u16()?);
            let crcs: Vec<u32> = (0..blocks).map(|_| from.u32()).collect::<Option<_>>()?;
            let at = FirstWrite { layer, logical, cluster, first };
            (!crcs.is_empty()).then_some(Record::FirstWrite { at, crcs })?
        }
        2 => {
            let layer = LayerId(from.u32()?);
            from.u32()?;
            let (start, len) = (from.u64()?, from.u64()?);
            start.checked_add(len)?;
            Record::Discard { layer, start, len }
        }
        3 => Record::Dirty { region: from.u32()? },
        4 => Record::Create(Entity::decode(from)?),
        5 => {
            let (source, top) = (Id(from.u128()?), LayerId(from.u32()?));
            Record::Snapshot { source, top, entity: Entity::decode(from)? }
        }
        6 => Record::Delete(Id(from.u128()?)),
        7 => Record::Collapse(LayerId(from.u32()?)),
        8 => Record::Update(Entity::decode(from)?),
        9 => Record::Resize { id: Id(from.u128()?), size: Blocks(from.u64()?) },
        11 => {
            let first = from.u64()?;
            let blocks = from.u16()?;
            from.u16()?;
            first.checked_add(u64::from(blocks))?;
            let crcs: Vec<u32> = (0..blocks).map(|_| from.u32()).collect::<Option<_>>()?;
            (!crcs.is_empty()).then_some(Record::Overwrite { first, crcs })?
        }
        10 => Record::Move { layer: LayerId(from.u32()?), last: from.u32()? },
        _ => return None,
    })
}
