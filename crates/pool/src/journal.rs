//! Journal blocks: how records become groups of blocks, and groups are found again.
//!
//! Invariant: a group is found only if all its blocks are there, from one incarnation.
//!
//! Not here: when a group is written (`pool::commit`), what its records do (`state`).

use alloc::vec::Vec;

use crate::Id;
use crate::casts::{count, index, low16, low32};
use crate::codec::{crc_around, le16, le32, le64, le128, nth_block, set};
use crate::layout::BLOCK;

/// Most blocks of a group.
pub(crate) const MAX_GROUP: u64 = 64;
/// Payload bytes of a block.
pub(crate) const PAYLOAD: usize = BLOCK - at::PAYLOAD;
const MAGIC: &[u8; 4] = b"HJNL";

/// Numbers that count up are never so large: a structure that says so is not one of ours, and what
/// is added to smaller ones cannot wrap.
pub(crate) const FAR: u64 = 1 << 62;

/// Offsets, as in docs/format/pool.md.
mod at {
    pub(super) const CRC: usize = 4;
    pub(super) const POOL: usize = 8;
    pub(super) const NUMBER: usize = 24;
    pub(super) const GROUP: usize = 32;
    pub(super) const INCARNATION: usize = 40;
    pub(super) const INDEX: usize = 48;
    pub(super) const COUNT: usize = 50;
    pub(super) const USED: usize = 52;
    pub(super) const PROVED: usize = 56;
    pub(super) const PAYLOAD: usize = 64;
}
const _: () = assert!(at::PROVED + 8 == at::PAYLOAD && PAYLOAD == 4032);

/// Where the journal stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    /// Number of the next block.
    pub(crate) number: u64,
    /// Sequence of the last group.
    pub(crate) group: u64,
    /// Incarnation that writes.
    pub(crate) incarnation: u64,
}

impl Position {
    /// Whether it is one that a pool can have reached.
    pub(crate) fn is_near(self) -> bool {
        [self.number, self.group, self.incarnation].iter().all(|number| *number < FAR)
    }
}

/// Blocks that a payload of this length needs; an empty group has one.
pub(crate) fn group_blocks(payload: usize) -> u64 {
    count(payload.div_ceil(PAYLOAD).max(1))
}

/// What a group says of itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupHead {
    pub(crate) pool: Id,
    /// Where the journal stands before it.
    pub(crate) after: Position,
    /// The last group that is durable.
    pub(crate) proved: u64,
}

/// The blocks of a group.
pub(crate) fn encode_group(head: GroupHead, payload: &[u8], out: &mut Vec<u8>) {
    let GroupHead { pool, after: position, proved } = head;
    let blocks = group_blocks(payload.len());
    out.clear();
    out.resize(index(blocks) * BLOCK, 0);
    let mut rest = payload;
    for (nth, block) in (0..blocks).zip(out.chunks_exact_mut(BLOCK)) {
        let (used, after) = rest.split_at(rest.len().min(PAYLOAD));
        rest = after;
        set(block, 0, MAGIC);
        set(block, at::POOL, &pool.0.to_le_bytes());
        set(block, at::NUMBER, &(position.number + nth).to_le_bytes());
        set(block, at::GROUP, &(position.group + 1).to_le_bytes());
        set(block, at::INCARNATION, &position.incarnation.to_le_bytes());
        set(block, at::INDEX, &low16(nth).to_le_bytes());
        set(block, at::COUNT, &low16(blocks).to_le_bytes());
        set(block, at::USED, &low32(count(used.len())).to_le_bytes());
        set(block, at::PROVED, &proved.to_le_bytes());
        set(block, at::PAYLOAD, used);
        let crc = crc_around(block, at::CRC);
        set(block, at::CRC, &crc.to_le_bytes());
    }
}

/// A decoded block header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) number: u64,
    pub(crate) group: u64,
    pub(crate) incarnation: u64,
    pub(crate) index: u16,
    pub(crate) count: u16,
    pub(crate) proved: u64,
    used: u32,
}

/// Reads a block, if it is a sound one of this pool.
pub(crate) fn decode_block(pool: Id, block: &[u8]) -> Option<(Header, &[u8])> {
    let ours = block.len() == BLOCK && block.starts_with(MAGIC) && le128(block, at::POOL) == pool.0;
    if !ours || crc_around(block, at::CRC) != le32(block, at::CRC) {
        return None;
    }
    let header = Header {
        number: le64(block, at::NUMBER),
        group: le64(block, at::GROUP),
        incarnation: le64(block, at::INCARNATION),
        index: le16(block, at::INDEX),
        count: le16(block, at::COUNT),
        proved: le64(block, at::PROVED),
        used: le32(block, at::USED),
    };
    let Header { number, group, incarnation, .. } = header;
    let sane = header.index < header.count
        && u64::from(header.count) <= MAX_GROUP
        && header.proved < header.group
        && Position { number, group, incarnation }.is_near();
    let used = index(u64::from(header.used));
    (sane && used <= PAYLOAD).then(|| (header, &block[at::PAYLOAD..at::PAYLOAD + used]))
}

/// The records of one group, and where the journal stands after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) payload: Vec<u8>,
    pub(crate) after: Position,
    /// The last group that was durable when it was written.
    pub(crate) proved: u64,
}

/// What was found in the journal after a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// The groups in order.
    pub(crate) groups: Vec<Group>,
    /// The highest incarnation on any block.
    pub(crate) incarnation: u64,
    /// The last group that a later one proves durable.
    pub(crate) proved: u64,
    /// A group that was durable is not there: acknowledged changes are lost.
    pub(crate) gap: bool,
}

/// Both copies of the journal, read whole.
pub(crate) struct Copies<'a> {
    pub(crate) pool: Id,
    pub(crate) bytes: [&'a [u8]; 2],
}

impl Copies<'_> {
    /// Finds all groups after `from`.
    pub(crate) fn find(&self, from: Position) -> Found {
        let mut groups: Vec<Group> = Vec::new();
        let mut here = from;
        while let Some(group) = self.next_group(here) {
            here = group.after;
            groups.push(group);
        }
        let ring = count(self.bytes[0].len() / BLOCK);
        let all = (0..ring).flat_map(|at| self.bytes.iter().map(move |copy| nth_block(copy, at)));
        let mut incarnation = here.incarnation;
        let mut gap = false;
        let proved = groups.last().map_or(from.group, |last| last.proved.max(from.group));
        for (header, _) in all.filter_map(|block| decode_block(self.pool, block)) {
            incarnation = incarnation.max(header.incarnation);
            gap |= header.proved > here.group;
        }
        Found { groups, incarnation, proved, gap }
    }

    fn next_group(&self, from: Position) -> Option<Group> {
        let mut payload = Vec::new();
        let (first, bytes) = self.block(from, 0, None)?;
        payload.extend_from_slice(bytes);
        for nth in 1..u64::from(first.count) {
            let (_, bytes) = self.block(from, nth, Some(first))?;
            payload.extend_from_slice(bytes);
        }
        let after = Position {
            number: from.number + u64::from(first.count),
            group: from.group + 1,
            incarnation: first.incarnation,
        };
        Some(Group { payload, after, proved: first.proved })
    }

    /// Block `nth` of the group after `from`, from whichever copy is sound; the higher
    /// incarnation if they differ, since the other is of a group that was never acknowledged.
    fn block(&self, from: Position, nth: u64, first: Option<Header>) -> Option<(Header, &[u8])> {
        let ring = count(self.bytes[0].len() / BLOCK);
        let number = from.number.checked_add(nth).filter(|_| ring > 0)?;
        let sound =
            |copy: &usize| decode_block(self.pool, nth_block(self.bytes[*copy], number % ring));
        let fits = |(header, _): &(Header, &[u8])| {
            header.number == number
                && header.group == from.group + 1
                && u64::from(header.index) == nth
                && first.map_or(header.incarnation >= from.incarnation, |first| {
                    let same = |header: &Header| (header.incarnation, header.count, header.proved);
                    same(header) == same(&first)
                })
        };
        [0, 1].iter().filter_map(sound).filter(fits).max_by_key(|(header, _)| header.incarnation)
    }
}
