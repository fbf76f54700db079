//! Where things are on the disks: areas, and the arithmetic of clusters and sums pages.
//!
//! Not here: the bytes of the table (`superblock`), which clusters are free (`space`).

use alloc::vec::Vec;

use block::{Blocks, Bytes};

use crate::casts::{count, low32};

/// Bytes in a block.
pub const BLOCK: usize = 4096;
/// Sums in a sums page.
pub(crate) const SUMS_PER_PAGE: u64 = 1008;
/// Blocks in front of the first area of a disk, where the superblocks are.
pub(crate) const FIRST_AREA: u64 = 512;
/// Block of the second superblock.
pub(crate) const SECOND_SUPER: u64 = 256;
/// Most disks of a pool.
pub(crate) const MAX_DISKS: usize = 16;
/// Most areas of a pool.
pub(crate) const MAX_AREAS: usize = 96;
/// Bytes of physical space under one write-intent mark; few in tests, so that their small disks
/// have many regions.
pub(crate) const REGION_BYTES: u64 = if cfg!(test) { 512 << 10 } else { 16 << 20 };
/// Most blocks of one copy of the journal: it is read whole into memory.
pub(crate) const MAX_JOURNAL: u64 = 16384;
/// Clusters are numbered by 32 bits; the last numbers are kept unused.
const MAX_CLUSTERS: u64 = 0xffff_0000;
/// Data areas and the data in them begin at a multiple of this many blocks.
const ALIGN: u64 = 256;

/// Number of a physical cluster, counted through all data areas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cluster(pub u32);

/// Number of a disk in its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Disk(pub u16);

/// A place on a disk of the pool, in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Which disk.
    pub disk: Disk,
    /// Which block of it.
    pub block: u64,
}

/// Blocks per cluster: a power of two from 64 (256 KiB) to 16384 (64 MiB).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterSize {
    shift: u8,
}

impl ClusterSize {
    /// 1 MiB.
    pub const DEFAULT: ClusterSize = ClusterSize { shift: 8 };

    /// A cluster of this many bytes, if that is supported.
    pub fn of_bytes(bytes: Bytes) -> Option<ClusterSize> {
        bytes
            .0
            .is_multiple_of(count(BLOCK))
            .then_some(bytes.0 / count(BLOCK))
            .and_then(ClusterSize::of_blocks)
    }

    pub(crate) fn of_blocks(blocks: u64) -> Option<ClusterSize> {
        let shift = u8::try_from(blocks.trailing_zeros()).ok()?;
        (blocks.is_power_of_two() && (6..=14).contains(&shift)).then_some(ClusterSize { shift })
    }

    /// Blocks in a cluster.
    pub fn blocks(self) -> u64 {
        1 << self.shift
    }

    /// Base-two logarithm of that.
    pub(crate) fn shift(self) -> u8 {
        self.shift
    }

    /// Bytes of a validity bitmap.
    pub(crate) fn bitmap_bytes(self) -> usize {
        1 << (self.shift - 3)
    }

    /// Clusters under one write-intent mark.
    pub(crate) fn per_region(self) -> u32 {
        let clusters = REGION_BYTES / (self.blocks() * count(BLOCK));
        low32(clusters.max(1))
    }
}

/// What an area is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// A copy of the journal.
    Journal {
        /// 0 or 1.
        copy: u8,
    },
    /// A copy of a checkpoint slot.
    Checkpoint {
        /// 0 or 1.
        slot: u8,
        /// 0 or 1.
        copy: u8,
    },
    /// Sums and clusters.
    Data {
        /// Number of its first cluster.
        first: Cluster,
        /// Block of its disk where the clusters begin.
        data_start: u64,
    },
}

/// A run of blocks with one use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// What it is for.
    pub usage: Use,
    /// Where it begins.
    pub start: Place,
    /// How long it is.
    pub blocks: u64,
}

/// A data area, with its numbers worked out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DataArea {
    pub(crate) first: u32,
    pub(crate) clusters: u32,
    pub(crate) disk: Disk,
    /// Block where the sums begin: copy A, then copy B.
    pub(crate) sums_start: u64,
    pub(crate) pages: u64,
    pub(crate) data_start: u64,
}

impl DataArea {
    /// Works the numbers out, or finds that they make no sense.
    pub(crate) fn of(area: &Area, size: ClusterSize) -> Option<DataArea> {
        let Use::Data { first, data_start } = area.usage else { return None };
        let end = area.start.block.checked_add(area.blocks)?;
        let clusters = end.checked_sub(data_start)? >> size.shift();
        let pages = (clusters << size.shift()).div_ceil(SUMS_PER_PAGE);
        let sums_end = area.start.block.checked_add(2 * pages)?;
        let numbered = u64::from(first.0).checked_add(clusters)? <= MAX_CLUSTERS;
        (clusters > 0 && sums_end <= data_start && numbered).then_some(DataArea {
            first: first.0,
            clusters: low32(clusters),
            disk: area.start.disk,
            sums_start: area.start.block,
            pages,
            data_start,
        })
    }
}

/// The largest data area that fits `blocks` blocks from `start`, if any does.
pub(crate) fn fit_data(
    start: Place,
    blocks: u64,
    first: Cluster,
    size: ClusterSize,
) -> Option<Area> {
    let end = start.block.checked_add(blocks)?;
    let mut clusters = (blocks >> size.shift()).min(MAX_CLUSTERS - u64::from(first.0));
    loop {
        if clusters == 0 {
            return None;
        }
        let pages = (clusters << size.shift()).div_ceil(SUMS_PER_PAGE);
        let data_start = (start.block + 2 * pages).next_multiple_of(ALIGN);
        if data_start <= end && (end - data_start) >> size.shift() >= clusters {
            let blocks = data_start + (clusters << size.shift()) - start.block;
            return Some(Area { usage: Use::Data { first, data_start }, start, blocks });
        }
        // The sums are 1/504 of the data: few rounds are needed.
        let over = data_start + (clusters << size.shift()) - end;
        clusters = clusters.saturating_sub((over >> size.shift()).max(1));
    }
}

/// Blocks of one copy of a checkpoint slot for a pool of that many clusters.
pub(crate) fn checkpoint_blocks(clusters: u64, size: ClusterSize) -> u64 {
    let bytes = (1 << 20) + clusters * (48 + size.blocks() / 8);
    bytes.div_ceil(count(BLOCK)).next_multiple_of(16) + 1
}

/// Blocks of one copy of the journal for a disk of that size.
pub(crate) fn journal_blocks(disk: Blocks) -> u64 {
    (disk.0 / 1024).clamp(64, MAX_JOURNAL)
}

/// Areas of a new pool on disks of these sizes, if they are large enough.
pub(crate) fn plan(disks: &[Blocks], size: ClusterSize) -> Option<Vec<Area>> {
    let total: u64 = disks.iter().map(|disk| disk.0 >> size.shift()).sum();
    let journal = journal_blocks(*disks.first()?);
    let slot = checkpoint_blocks(total, size);
    let mut next: Vec<u64> = disks.iter().map(|_| FIRST_AREA).collect();
    let mut areas = Vec::new();
    // The second copy goes to the second disk, unless it would take most of a much smaller one.
    let room = 4 * (FIRST_AREA + journal + 2 * slot);
    let second = usize::from(disks.get(1).is_some_and(|disk| disk.0 >= room));
    let mut put = |disk: usize, usage, blocks| {
        let start = Place { disk: Disk(u16::try_from(disk).ok()?), block: next[disk] };
        next[disk] += blocks;
        areas.push(Area { usage, start, blocks });
        Some(())
    };
    for (copy, disk) in [(0, 0), (1, second)] {
        put(disk, Use::Journal { copy }, journal)?;
        for slot_number in [0, 1] {
            put(disk, Use::Checkpoint { slot: slot_number, copy }, slot)?;
        }
    }
    let mut first = 0;
    for (disk, blocks) in disks.iter().enumerate() {
        let start = Place { disk: Disk(u16::try_from(disk).ok()?), block: next[disk] };
        let area = fit_data(start, blocks.0.checked_sub(start.block)?, Cluster(first), size)?;
        first += DataArea::of(&area, size)?.clusters;
        areas.push(area);
    }
    Some(areas)
}

/// All data areas, for turning numbers of clusters into places.
#[derive(Clone, Debug, Default)]
pub(crate) struct DiskLayout {
    areas: Vec<DataArea>,
    shift: u8,
}

/// A physical block: cluster × blocks per cluster + block in the cluster.
pub(crate) type PhysicalBlock = u64;

/// Where the sum of a physical block is: page and slot in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ChecksumAt {
    /// First cluster of the area, and number of the page in it.
    pub(crate) page: u64,
    pub(crate) slot: u16,
}

impl DiskLayout {
    /// From areas that are all sound and numbered without a gap.
    pub(crate) fn new(areas: &[Area], size: ClusterSize) -> Option<DiskLayout> {
        let mut found = Vec::new();
        let mut next = 0;
        for area in areas.iter().filter(|area| matches!(area.usage, Use::Data { .. })) {
            let area = DataArea::of(area, size)?;
            if area.first != next {
                return None;
            }
            next = area.first + area.clusters;
            found.push(area);
        }
        (!found.is_empty()).then_some(DiskLayout { areas: found, shift: size.shift() })
    }

    /// Number of clusters in all areas.
    pub(crate) fn clusters(&self) -> u32 {
        self.areas.last().map_or(0, |area| area.first + area.clusters)
    }

    fn area_of(&self, cluster: u32) -> &DataArea {
        let after = self.areas.partition_point(|area| area.first <= cluster);
        &self.areas[after - 1]
    }

    /// The place of a physical block.
    pub(crate) fn place(&self, block: PhysicalBlock) -> Place {
        let area = self.area_of(low32(block >> self.shift));
        let offset = block - (u64::from(area.first) << self.shift);
        Place { disk: area.disk, block: area.data_start + offset }
    }

    /// Where its sum is.
    pub(crate) fn sum_at(&self, block: PhysicalBlock) -> ChecksumAt {
        let area = self.area_of(low32(block >> self.shift));
        let offset = block - (u64::from(area.first) << self.shift);
        let page = (u64::from(area.first) << 32) | (offset / SUMS_PER_PAGE);
        ChecksumAt { page, slot: crate::casts::low16(offset % SUMS_PER_PAGE) }
    }

    /// The place of one copy (0 or 1) of a sums page.
    pub(crate) fn page_place(&self, page: u64, copy: u8) -> Place {
        let area = self.area_of(low32(page >> 32));
        let number = page & 0xffff_ffff;
        let block = area.sums_start + u64::from(copy) * area.pages + number;
        Place { disk: area.disk, block }
    }
}
