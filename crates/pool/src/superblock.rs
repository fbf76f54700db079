//! The superblock: who the pool is, and where its areas are.
//!
//! Invariant: a superblock that decodes has areas inside its disks that do not overlap, two journal
//! copies, two slots of two copies, and data areas numbered without a gap.

use alloc::string::String;
use alloc::vec::Vec;

use block::Blocks;

use crate::Id;
use crate::casts::{count, index, low16};
use crate::codec::{le16, le32, le64, le128, set};
use crate::journal::FAR;
use crate::layout::{
    Area, BLOCK, Cluster, ClusterSize, Disk, DiskLayout, FIRST_AREA, MAX_AREAS, MAX_DISKS,
    MAX_JOURNAL, Place, Use,
};

/// The format this code writes, and the highest it reads.
pub const FORMAT_VERSION: u32 = 3;
const MAGIC: &[u8; 8] = b"HOLDPOOL";

/// Offsets, as in docs/format/pool.md.
mod at {
    pub(super) const VERSION: usize = 8;
    pub(super) const CLUSTER: usize = 12;
    pub(super) const POOL: usize = 16;
    pub(super) const DISK: usize = 32;
    pub(super) const GENERATION: usize = 48;
    pub(super) const INCOMPATIBLE: usize = 56;
    pub(super) const COMPATIBLE: usize = 64;
    pub(super) const NUMBER: usize = 72;
    pub(super) const DISK_COUNT: usize = 74;
    pub(super) const AREA_COUNT: usize = 76;
    pub(super) const ZERO: usize = 78;
    pub(super) const NAME: usize = 80;
    pub(super) const RESERVED: usize = 144;
    pub(super) const DISKS: usize = 256;
    pub(super) const AREAS: usize = 768;
    pub(super) const TAIL: usize = 3840;
    pub(super) const CRC: usize = 4092;
}
const NAME_LEN: usize = 64;
const ENTRY: usize = 32;
const _: () = assert!(at::AREA_COUNT + 2 == at::ZERO && at::ZERO + 2 == at::NAME);
const _: () = assert!(at::NAME + NAME_LEN == at::RESERVED && at::RESERVED < at::DISKS);
const _: () = assert!(at::DISKS + MAX_DISKS * ENTRY == at::AREAS);
const _: () = assert!(at::AREAS + MAX_AREAS * ENTRY == at::TAIL);
const _: () = assert!(at::TAIL < at::CRC && at::CRC + 4 == BLOCK);

/// One disk of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its id.
    pub id: Id,
    /// How much of it the pool uses.
    pub blocks: Blocks,
}

/// A decoded superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// The pool's id.
    pub pool: Id,
    /// The pool's name.
    pub name: String,
    /// Size of a cluster.
    pub cluster: ClusterSize,
    /// Generation of the table.
    pub generation: u64,
    /// Compatible features, known or not.
    pub compatible: u64,
    /// Which disk this copy was read from.
    pub number: Disk,
    /// All disks.
    pub disks: Vec<Member>,
    /// All areas.
    pub areas: Vec<Area>,
}

/// Why a block is not a superblock that can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotSuper {
    /// Not one of ours.
    #[error("no pool is on this disk")]
    Foreign,
    /// Ours, but bytes are wrong.
    #[error("the superblock is damaged")]
    Damaged,
    /// Written by another version.
    #[error("the pool has format {version}; this program reads format {FORMAT_VERSION} only")]
    Version {
        /// What was found.
        version: u32,
    },
    /// Features this program does not know.
    #[error("the pool uses features this program does not know ({features:#x}); upgrade it")]
    Features {
        /// The unknown bits.
        features: u64,
    },
}

impl Superblock {
    /// What journal, checkpoints and sums pages are marked with. Disks get a new id whenever a pool
    /// is made, so what an earlier pool of the same id left on them is not taken for this one's.
    pub(crate) fn mark(&self) -> Id {
        Id(self.pool.0 ^ self.disks.first().map_or(0, |disk| disk.id.0).rotate_left(64))
    }

    /// The bytes for disk `number`.
    pub fn encode(&self, number: Disk) -> Vec<u8> {
        let mut block = alloc::vec![0; BLOCK];
        set(&mut block, 0, MAGIC);
        set(&mut block, at::VERSION, &FORMAT_VERSION.to_le_bytes());
        let cluster = u32::try_from(self.cluster.blocks()).unwrap_or(0);
        set(&mut block, at::CLUSTER, &cluster.to_le_bytes());
        set(&mut block, at::POOL, &self.pool.0.to_le_bytes());
        let id = self.disks.get(usize::from(number.0)).map_or(0, |disk| disk.id.0);
        set(&mut block, at::DISK, &id.to_le_bytes());
        set(&mut block, at::GENERATION, &self.generation.to_le_bytes());
        set(&mut block, at::COMPATIBLE, &self.compatible.to_le_bytes());
        set(&mut block, at::NUMBER, &number.0.to_le_bytes());
        set(&mut block, at::DISK_COUNT, &low16(count(self.disks.len())).to_le_bytes());
        set(&mut block, at::AREA_COUNT, &low16(count(self.areas.len())).to_le_bytes());
        set(&mut block, at::NAME, self.name.as_bytes());
        for (disk, at) in self.disks.iter().zip((at::DISKS..).step_by(ENTRY)) {
            set(&mut block, at, &disk.id.0.to_le_bytes());
            set(&mut block, at + 16, &disk.blocks.0.to_le_bytes());
        }
        for (area, at) in self.areas.iter().zip((at::AREAS..).step_by(ENTRY)) {
            encode_area(area, &mut block[at..at + ENTRY]);
        }
        let crc = crc32c::crc32c(&block[..at::CRC]);
        set(&mut block, at::CRC, &crc.to_le_bytes());
        block
    }

    /// What a block says, if it can be believed.
    pub fn decode(block: &[u8]) -> Result<Superblock, NotSuper> {
        if block.len() != BLOCK || !block.starts_with(MAGIC) {
            return Err(NotSuper::Foreign);
        }
        if crc32c::crc32c(&block[..at::CRC]) != le32(block, at::CRC) {
            return Err(NotSuper::Damaged);
        }
        let version = le32(block, at::VERSION);
        if version != FORMAT_VERSION {
            return Err(NotSuper::Version { version });
        }
        let features = le64(block, at::INCOMPATIBLE);
        if features != 0 {
            return Err(NotSuper::Features { features });
        }
        decode_body(block).filter(Superblock::is_sound).ok_or(NotSuper::Damaged)
    }

    /// The longest name that fits.
    pub fn name_fits(name: &str) -> bool {
        !name.is_empty() && name.len() <= NAME_LEN && !name.contains('\0')
    }

    /// Where a use has its area; sound superblocks have each of them once.
    pub(crate) fn area(&self, usage: Use) -> Option<Area> {
        self.areas.iter().find(|area| area.usage == usage).copied()
    }

    /// Bytes of a checkpoint that both slots have room for.
    pub(crate) fn checkpoint_room(&self) -> u64 {
        let slots = [0, 1].map(|slot| self.area(Use::Checkpoint { slot, copy: 0 }));
        let rooms = slots.map(|area| area.map_or(0, |area| (area.blocks - 1) * count(BLOCK)));
        // A page is found by a number of 32 bits, in units of eight bytes.
        rooms[0].min(rooms[1]).min(u64::from(u32::MAX) * 8)
    }

    /// Whether it describes a pool.
    pub(crate) fn is_sound(&self) -> bool {
        let journals = [0, 1].map(|copy| self.area(Use::Journal { copy }).map(|area| area.blocks));
        let slots = [(0, 0), (0, 1), (1, 0), (1, 1)]
            .map(|(slot, copy)| self.area(Use::Checkpoint { slot, copy }).map(|area| area.blocks));
        journals[0] == journals[1]
            && journals[0].is_some_and(|blocks| (16..=MAX_JOURNAL).contains(&blocks))
            && self.generation < FAR
            && slots[0] == slots[1]
            && slots[2] == slots[3]
            && slots.iter().all(|blocks| blocks.is_some_and(|blocks| blocks > 1))
            && DiskLayout::new(&self.areas, self.cluster).is_some()
            && usize::from(self.number.0) < self.disks.len()
            && self.areas_are_apart()
    }

    fn areas_are_apart(&self) -> bool {
        let mut runs: Vec<_> = self.areas.iter().map(|area| (area.start, area.blocks)).collect();
        runs.sort_unstable();
        let ends = |(start, blocks): (Place, u64)| start.block.checked_add(blocks);
        let inside = runs.iter().all(|run| {
            let disk = self.disks.get(usize::from(run.0.disk.0));
            let end = ends(*run);
            run.0.block >= FIRST_AREA
                && disk.is_some_and(|disk| end.is_some_and(|end| end <= disk.blocks.0))
        });
        inside
            && runs.windows(2).all(|pair| {
                pair[0].0.disk != pair[1].0.disk || ends(pair[0]) <= Some(pair[1].0.block)
            })
    }
}

fn encode_area(area: &Area, entry: &mut [u8]) {
    let (kind, number, data_start): (u16, u32, u64) = match area.usage {
        Use::Journal { copy } => (1, copy.into(), 0),
        Use::Checkpoint { slot, copy } => (2, u32::from(slot) * 2 + u32::from(copy), 0),
        Use::Data { first, data_start } => (3, first.0, data_start),
    };
    set(entry, 0, &kind.to_le_bytes());
    set(entry, 2, &area.start.disk.0.to_le_bytes());
    set(entry, 4, &number.to_le_bytes());
    set(entry, 8, &area.start.block.to_le_bytes());
    set(entry, 16, &area.blocks.to_le_bytes());
    set(entry, 24, &data_start.to_le_bytes());
}

fn decode_area(entry: &[u8]) -> Option<Area> {
    let number = le32(entry, 4);
    let usage = match (le16(entry, 0), number) {
        (1, 0..=1) => Use::Journal { copy: u8::try_from(number).ok()? },
        (2, 0..=3) => Use::Checkpoint {
            slot: u8::try_from(number / 2).ok()?,
            copy: u8::try_from(number % 2).ok()?,
        },
        (3, _) => Use::Data { first: Cluster(number), data_start: le64(entry, 24) },
        _ => return None,
    };
    let start = Place { disk: Disk(le16(entry, 2)), block: le64(entry, 8) };
    Some(Area { usage, start, blocks: le64(entry, 16) })
}

fn decode_body(block: &[u8]) -> Option<Superblock> {
    let disks = usize::from(le16(block, at::DISK_COUNT));
    let areas = usize::from(le16(block, at::AREA_COUNT));
    if disks == 0 || disks > MAX_DISKS || areas > MAX_AREAS {
        return None;
    }
    let entries = |from: usize, number: usize| {
        (0..number).map(move |nth| &block[from + nth * ENTRY..from + (nth + 1) * ENTRY])
    };
    let member = |entry: &[u8]| Member { id: Id(le128(entry, 0)), blocks: Blocks(le64(entry, 16)) };
    let name = &block[at::NAME..at::NAME + NAME_LEN];
    let len = name.iter().position(|byte| *byte == 0).unwrap_or(NAME_LEN);
    Some(Superblock {
        pool: Id(le128(block, at::POOL)),
        name: String::from(core::str::from_utf8(&name[..len]).ok()?),
        cluster: ClusterSize::of_blocks(u64::from(le32(block, at::CLUSTER)))?,
        generation: le64(block, at::GENERATION),
        compatible: le64(block, at::COMPATIBLE),
        number: Disk(le16(block, at::NUMBER)),
        disks: entries(at::DISKS, disks).map(member).collect(),
        areas: entries(at::AREAS, areas).map(decode_area).collect::<Option<_>>()?,
    })
}

/// Byte offset of a superblock copy.
pub const fn super_offset(copy: u8) -> u64 {
    if copy == 0 { 0 } else { crate::layout::SECOND_SUPER * count(BLOCK) }
}

const _: () = assert!(index(super_offset(1)) == 1 << 20);
