//! Life of a pool outside of I/O: making one, and finding which disks belong together.

use alloc::string::String;
use alloc::vec::Vec;

use block::{Blocks, Bytes};

use crate::casts::{count, low16};
use crate::checkpoint::{self, Regions};
use crate::entity::Id;
use crate::journal::Position;
use crate::layout::{self, BLOCK, ClusterSize, Disk, DiskLayout, MAX_DISKS, Place, Use};
use crate::state::State;
use crate::superblock::{Member, NotSuper, Superblock, super_offset};

/// A pool to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewPool {
    /// Its id.
    pub id: Id,
    /// Its name.
    pub name: String,
    /// Size of a cluster.
    pub cluster: ClusterSize,
    /// Its disks, in order, with the blocks they have.
    pub disks: Vec<Member>,
}

/// Why a pool cannot be made, or its disks are not one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPool {
    /// The name is empty or too long.
    #[error("the name of a pool has 1 to 64 bytes and no zero byte")]
    Name,
    /// The id is zero.
    #[error("an id of zero means none; choose another")]
    NoId,
    /// None, or too many.
    #[error("a pool has 1 to {MAX_DISKS} disks")]
    DiskCount,
    /// One is given twice.
    #[error("disk {} is given twice", .number.0)]
    Twice {
        /// Which one.
        number: Disk,
    },
    /// Too small.
    #[error("the disks are too small; a disk needs at least {need}")]
    TooSmall {
        /// About how much is needed.
        need: Bytes,
    },
    /// A disk has no good superblock.
    #[error("disk {} cannot be used", .given)]
    NotSuper {
        /// Which one, as given.
        given: usize,
        /// Why.
        source: NotSuper,
    },
    /// The disks are of different pools.
    #[error("disk {} belongs to another pool than the first", .given)]
    OtherPool {
        /// Which one, as given.
        given: usize,
    },
    /// A disk is missing.
    #[error("disk {} of the pool is missing; give all {} disks", .number.0, .of)]
    Missing {
        /// Which one.
        number: Disk,
        /// How many there are.
        of: usize,
    },
    /// A disk is smaller than it was.
    #[error("disk {} is smaller than the pool on it; was it copied in part?", .number.0)]
    Shrunk {
        /// Which one.
        number: Disk,
    },
}

/// One step of making a pool. Writes between two flushes may be in any order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Write these bytes.
    Write {
        /// To where.
        place: Place,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// Flush all disks.
    Flush,
}

/// The steps that make a pool: a few writes, whatever its size.
pub fn create(new: &NewPool) -> Result<Vec<Step>, BadPool> {
    if !Superblock::name_fits(&new.name) {
        return Err(BadPool::Name);
    }
    if new.id == Id::NONE || new.disks.iter().any(|disk| disk.id == Id::NONE) {
        return Err(BadPool::NoId);
    }
    if new.disks.is_empty() || new.disks.len() > MAX_DISKS {
        return Err(BadPool::DiskCount);
    }
    let sizes: Vec<_> = new.disks.iter().map(|disk| disk.blocks).collect();
    let need = Bytes::mib(24).max(Bytes(new.cluster.blocks() * count(BLOCK) * 4));
    let too_small = BadPool::TooSmall { need };
    let areas = layout::plan(&sizes, new.cluster).ok_or(too_small)?;
    let superblock = Superblock {
        pool: new.id,
        name: new.name.clone(),
        cluster: new.cluster,
        generation: 1,
        compatible: 0,
        number: Disk(0),
        disks: new.disks.clone(),
        areas,
    };
    let mut steps = empty_checkpoint(&superblock).ok_or(too_small)?;
    for copy in [0, 1] {
        steps.push(Step::Flush);
        for disk in (0..low16(count(superblock.disks.len()))).map(Disk) {
            let (place, bytes) = super_write(&superblock, disk, copy);
            steps.push(Step::Write { place, bytes });
        }
    }
    steps.push(Step::Flush);
    Ok(steps)
}

fn empty_checkpoint(superblock: &Superblock) -> Option<Vec<Step>> {
    let disk_layout = DiskLayout::new(&superblock.areas, superblock.cluster)?;
    let mut state = State::new(superblock.cluster, disk_layout.clusters(), 0);
    let (mut header, body) = checkpoint::encode(&mut state, &Regions::default())?;
    header.generation = 1;
    header.position = Position { number: 0, group: 0, incarnation: 1 };
    let header = header.encode(superblock.mark());
    let mut steps = Vec::new();
    for copy in [0, 1] {
        let area = superblock.area(Use::Checkpoint { slot: 0, copy })?;
        if area.blocks <= count(body.len() / BLOCK) {
            return None;
        }
        let place = Place { block: area.start.block + 1, ..area.start };
        steps.push(Step::Write { place: area.start, bytes: header.clone() });
        steps.push(Step::Write { place, bytes: body.clone() });
    }
    Some(steps)
}

/// The write of one copy of the superblock to one disk.
pub(crate) fn super_write(superblock: &Superblock, disk: Disk, copy: u8) -> (Place, Vec<u8>) {
    let block = super_offset(copy) / count(BLOCK);
    (Place { disk, block }, superblock.encode(disk))
}

/// The steps that destroy a pool: its superblocks go, nothing else is touched.
pub fn wipe(disks: u16) -> Vec<Step> {
    let mut steps = Vec::new();
    for disk in (0..disks).map(Disk) {
        for copy in [0, 1] {
            let place = Place { disk, block: super_offset(copy) / count(BLOCK) };
            steps.push(Step::Write { place, bytes: alloc::vec![0; BLOCK] });
        }
    }
    steps.push(Step::Flush);
    steps
}

/// What was read from a disk that may belong to a pool.
#[derive(Clone, Copy, Debug)]
pub struct Probe<'a> {
    /// Its size.
    pub blocks: Blocks,
    /// Bytes of both superblocks.
    pub supers: [&'a [u8]; 2],
}

impl Probe<'_> {
    /// The better one of the two superblocks.
    pub fn superblock(&self) -> Result<Superblock, NotSuper> {
        let [a, b] = self.supers.map(Superblock::decode);
        match (a, b) {
            (Ok(a), Ok(b)) => Ok(if b.generation > a.generation { b } else { a }),
            (Ok(one), Err(_)) | (Err(_), Ok(one)) => Ok(one),
            // What is wrong with a superblock says more than that the other is not there.
            (Err(NotSuper::Foreign), Err(other)) | (Err(other), Err(_)) => Err(other),
        }
    }
}

/// Puts the disks of a pool in order. Answers the newest superblock, and for each disk of the pool
/// its place in `given`.
pub fn assemble(given: &[Probe<'_>]) -> Result<(Superblock, Vec<usize>), BadPool> {
    let mut found: Vec<Superblock> = Vec::new();
    for (given, probe) in given.iter().enumerate() {
        let superblock =
            probe.superblock().map_err(|source| BadPool::NotSuper { given, source })?;
        if found.first().is_some_and(|first| first.pool != superblock.pool) {
            return Err(BadPool::OtherPool { given });
        }
        found.push(superblock);
    }
    let newest = found.iter().max_by_key(|superblock| superblock.generation);
    let newest = newest.ok_or(BadPool::DiskCount)?.clone();
    let mut order = Vec::new();
    for (number, member) in newest.disks.iter().enumerate() {
        let disk = Disk(low16(count(number)));
        let is_it = |superblock: &&Superblock| {
            superblock.disks.get(usize::from(superblock.number.0)).map(|disk| disk.id)
                == Some(member.id)
        };
        let mut places = found.iter().enumerate().filter(|(_, found)| is_it(found));
        let (at, _) =
            places.next().ok_or(BadPool::Missing { number: disk, of: newest.disks.len() })?;
        if places.next().is_some() {
            return Err(BadPool::Twice { number: disk });
        }
        if given[at].blocks < member.blocks {
            return Err(BadPool::Shrunk { number: disk });
        }
        order.push(at);
    }
    Ok((newest, order))
}
