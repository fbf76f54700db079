//! Opening a pool: the newest checkpoint but its maps, then the journal, then one look at the data
//! of the last groups.
//!
//! ```text
//!   Headers ──► Body (copy 0, then copy 1 if needed) ──► Journal ──► Check ──► Replay ──► Flush
//! ```
//!
//! Of the maps only those pages are read that the records of the journal are about.
//!
//! Not here: finding the disks of a pool (`life::assemble`).

mod replay;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use crate::casts::{count, index, low16, low32};
use crate::checkpoint::{self, BadCheckpoint, Header, Regions, Restored};
use crate::checkpoint_reader::CheckpointReader;
use crate::checksums::ChecksumCache;
use crate::journal::{Group, Position};
use crate::layout::{BLOCK, Disk, DiskLayout, Place, Use};
use crate::mutation::{Rule, disabled};
use crate::pool::{Buffer, DiskFailed, Effect, IoId, Limits, Opened, Pool};
use crate::record::Record;
use crate::state::{PageKey, State};
use crate::superblock::{Superblock, super_offset};

/// Blocks of one read.
const CHUNK: u64 = 256;
/// How often a read is tried that a disk fails.
const TRIES: u8 = 3;

/// Why a pool cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    /// The superblock does not describe a pool.
    #[error("the superblock makes no sense")]
    Layout,
    /// No checkpoint can be read.
    #[error("no checkpoint can be read; the pool's metadata is lost")]
    NoCheckpoint,
    /// The newest checkpoint is damaged in both copies.
    #[error("the newest checkpoint is damaged")]
    Checkpoint(#[from] BadCheckpoint),
    /// Both copies of a journal block are damaged.
    #[error("both copies of a part of the journal are damaged; flushed writes would be lost")]
    JournalGap,
    /// A record contradicts what came before.
    #[error("record {record} of journal group {group} contradicts what came before")]
    Contradiction {
        /// Which group.
        group: u64,
        /// Which record of it.
        record: usize,
    },
    /// A disk failed to read what is needed.
    #[error("a disk cannot read a part of a map; import the pool again when the disk is well")]
    Unreadable,
    /// A disk cannot be flushed.
    #[error("a disk cannot be flushed")]
    Flush,
}

/// What a read is for.
#[derive(Clone, Copy, Debug)]
enum ReadPurpose {
    Super { disk: usize, copy: usize },
    Header { slot: u8, copy: u8 },
    Body { copy: usize, at: usize },
    Journal { copy: usize, at: usize },
    Check { physical: u64, blocks: u32 },
    Page { key: PageKey, at: u32 },
    Flush,
}

/// An I/O that was asked for.
#[derive(Clone, Copy, Debug)]
struct PendingRead {
    want: ReadPurpose,
    /// What is read, and how often that failed; nothing of a flush.
    read: Option<(Place, u32, u8)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Headers,
    Body,
    Journal,
    Check,
    Replay,
    Flush,
    Done,
}

/// Opens a pool.
#[derive(Debug)]
pub struct Recovery {
    superblock: Superblock,
    disk_layout: DiskLayout,
    limits: Limits,
    /// The pool was just made: there is nothing in its journal.
    is_new: bool,
    stage: Stage,
    wants: Vec<Option<PendingRead>>,
    outstanding: usize,
    effects: VecDeque<Effect>,
    /// Generations of the superblocks of each disk.
    supers: Vec<[Option<u64>; 2]>,
    headers: Vec<(Header, u8)>,
    bodies: [Vec<u8>; 2],
    journals: [Vec<u8>; 2],
    restored: Option<Box<Restored>>,
    sums: ChecksumCache,
    position: Position,
    /// Groups that are proved and whose records are not replayed yet.
    groups: VecDeque<Group>,
    /// Records to be replayed next, each with its group and number.
    queue: VecDeque<(u64, usize, Record)>,
    /// Pages of maps that are being read.
    fetches: BTreeMap<PageKey, CheckpointReader>,
    /// Records of the groups that no later one proves durable, each with its group and number.
    last: Vec<(u64, usize, Record)>,
    /// What first writes of those groups say of blocks, the last of each.
    claims: BTreeMap<u64, u32>,
    /// The sums of what is in the blocks that those groups are about; nothing of one that cannot
    /// be read.
    found: BTreeMap<u64, Option<u32>>,
    /// Blocks of which records say that they have no sum.
    sumless: BTreeSet<u64>,
    /// Some records are not so.
    dropped: bool,
    result: Option<Result<Box<Pool>, ImportError>>,
}

impl Recovery {
    /// Begins; `superblock` is what [`crate::assemble`] found, and its order that of the disks.
    pub fn new(superblock: Superblock, limits: Limits) -> Result<Recovery, ImportError> {
        let disk_layout =
            DiskLayout::new(&superblock.areas, superblock.cluster).ok_or(ImportError::Layout)?;
        let mut recovery = Recovery {
            superblock,
            disk_layout,
            limits,
            is_new: false,
            stage: Stage::Headers,
            wants: Vec::new(),
            outstanding: 0,
            effects: VecDeque::new(),
            supers: Vec::new(),
            headers: Vec::new(),
            bodies: [Vec::new(), Vec::new()],
            journals: [Vec::new(), Vec::new()],
            restored: None,
            sums: ChecksumCache::new(index(limits.cache.0 / 2) / BLOCK),
            position: Position { number: 0, group: 0, incarnation: 0 },
            groups: VecDeque::new(),
            queue: VecDeque::new(),
            fetches: BTreeMap::new(),
            last: Vec::new(),
            claims: BTreeMap::new(),
            found: BTreeMap::new(),
            sumless: BTreeSet::new(),
            dropped: false,
            result: None,
        };
        for (slot, copy) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let area = recovery.superblock.area(Use::Checkpoint { slot, copy });
            let start = area.ok_or(ImportError::Layout)?.start;
            recovery.read(ReadPurpose::Header { slot, copy }, start, 1);
        }
        recovery.supers = alloc::vec![[None; 2]; recovery.superblock.disks.len()];
        for disk in 0..recovery.supers.len() {
            for copy in [0, 1] {
                let block = super_offset(copy) / count(BLOCK);
                let place = Place { disk: Disk(low16(count(disk))), block };
                recovery.read(ReadPurpose::Super { disk, copy: usize::from(copy) }, place, 1);
            }
        }
        Ok(recovery)
    }

    /// Begins with a pool that was made a moment ago, by whoever asks.
    pub fn of_new(superblock: Superblock, limits: Limits) -> Result<Recovery, ImportError> {
        Ok(Recovery { is_new: true, ..Recovery::new(superblock, limits)? })
    }

    /// The next thing to do: reads and flushes only.
    pub fn poll(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// The pool, when all is done.
    pub fn take(&mut self) -> Option<Result<Box<Pool>, ImportError>> {
        self.result.take()
    }

    fn read(&mut self, want: ReadPurpose, place: Place, blocks: u32) {
        self.try_to_read(want, (place, blocks, 0));
    }

    fn try_to_read(&mut self, want: ReadPurpose, (place, blocks, failed): (Place, u32, u8)) {
        let io = IoId(low32(count(self.wants.len())));
        self.wants.push(Some(PendingRead { want, read: Some((place, blocks, failed)) }));
        self.outstanding += 1;
        self.effects.push_back(Effect::Read { io, place, blocks, into: Buffer::Own });
    }

    /// Has a whole row of blocks read in chunks.
    fn read_row(&mut self, start: Place, blocks: u64, want: impl Fn(usize) -> ReadPurpose) {
        let mut at = 0;
        while at < blocks {
            let len = (blocks - at).min(CHUNK);
            let place = Place { block: start.block + at, ..start };
            self.read(want(index(at) * BLOCK), place, low32(len));
            at += len;
        }
    }

    /// Says how an I/O went.
    pub fn complete(&mut self, io: IoId, result: Result<&[u8], DiskFailed>) {
        let asked = self.wants.get_mut(index(u64::from(io.0))).and_then(Option::take);
        let Some(PendingRead { want, read }) = asked else { return };
        self.outstanding -= 1;
        if let (Err(DiskFailed), Some((place, blocks, failed))) = (result, read)
            && failed + 1 < TRIES
        {
            return self.try_to_read(want, (place, blocks, failed + 1));
        }
        let bytes = result.unwrap_or(&[]);
        match want {
            ReadPurpose::Super { disk, copy } => {
                let found = Superblock::decode(bytes).ok();
                let ours = found.filter(|found| found.pool == self.superblock.pool);
                self.supers[disk][copy] = ours.map(|found| found.generation);
            }
            ReadPurpose::Header { slot, copy } => {
                let area = self.superblock.area(Use::Checkpoint { slot, copy });
                let room = area.map_or(0, |area| (area.blocks - 1) * count(BLOCK));
                let header = Header::decode(self.superblock.mark(), bytes, room);
                self.headers.extend(header.map(|header| (header, slot)));
            }
            ReadPurpose::Body { copy, at } => fill(&mut self.bodies[copy], at, bytes),
            ReadPurpose::Journal { copy, at } => fill(&mut self.journals[copy], at, bytes),
            ReadPurpose::Check { physical, blocks } if result.is_err() => {
                self.cannot_check(physical, blocks);
            }
            ReadPurpose::Check { physical, .. } => self.check_blocks(physical, bytes),
            ReadPurpose::Page { key, at } => self.page_read(key, at, result.ok()),
            ReadPurpose::Flush if result.is_err() => self.result = Some(Err(ImportError::Flush)),
            ReadPurpose::Flush => {}
        }
        while self.outstanding == 0 && self.result.is_none() && self.stage != Stage::Done {
            if let Err(error) = self.next_stage() {
                self.stage = Stage::Done;
                self.result = Some(Err(error));
            }
        }
    }

    fn next_stage(&mut self) -> Result<(), ImportError> {
        match self.stage {
            Stage::Headers => {
                // The newest first.
                self.headers.sort_by_key(|(header, _)| core::cmp::Reverse(header.generation));
                self.stage = Stage::Body;
                self.read_body(0)
            }
            Stage::Body => self.restore(),
            Stage::Journal => self.find_groups(),
            Stage::Check => {
                self.drop_wrong();
                self.stage = Stage::Replay;
                Ok(())
            }
            Stage::Replay => {
                if self.replay_on()? {
                    self.stage = Stage::Flush;
                    self.flush();
                }
                Ok(())
            }
            Stage::Flush => {
                self.stage = Stage::Done;
                self.open()
            }
            Stage::Done => Ok(()),
        }
    }

    fn newest(&self) -> Result<(Header, u8), ImportError> {
        self.headers.first().copied().ok_or(ImportError::NoCheckpoint)
    }

    fn read_body(&mut self, copy: u8) -> Result<(), ImportError> {
        let (header, slot) = self.newest()?;
        let area = self.superblock.area(Use::Checkpoint { slot, copy });
        let start = area.ok_or(ImportError::Layout)?.start;
        let first = header.meta / count(BLOCK);
        let blocks = header.body.div_ceil(count(BLOCK)) - first;
        let start = Place { block: start.block + 1 + first, ..start };
        let copy = usize::from(copy);
        self.bodies[copy] = alloc::vec![0; index(blocks) * BLOCK];
        self.read_row(start, blocks, |at| ReadPurpose::Body { copy, at });
        Ok(())
    }

    /// Takes the state from the checkpoint; has the second copy read if the first is not good.
    fn restore(&mut self) -> Result<(), ImportError> {
        let (header, _) = self.newest()?;
        let room = self.superblock.checkpoint_room();
        let clusters = self.disk_layout.clusters();
        let mut state = State::new(self.superblock.cluster, clusters, room);
        state.limit_flat(self.limits.cache.0 / 4);
        state.limit_maps(self.limits.cache.0 / 4);
        let copies = [&self.bodies[0][..], &self.bodies[1][..]];
        let restored = checkpoint::restore(&header, copies, state);
        let good = restored.as_ref().is_ok_and(|restored| restored.is_whole);
        if !good && self.bodies[1].is_empty() {
            return self.read_body(1);
        }
        self.restored = Some(Box::new(restored?));
        self.bodies = [Vec::new(), Vec::new()];
        self.position = header.position;
        self.stage = Stage::Journal;
        if self.is_new {
            return Ok(());
        }
        for copy in [0, 1] {
            let area = self.superblock.area(Use::Journal { copy }).ok_or(ImportError::Layout)?;
            let copy = usize::from(copy);
            self.journals[copy] = alloc::vec![0; index(area.blocks) * BLOCK];
            self.read_row(area.start, area.blocks, |at| ReadPurpose::Journal { copy, at });
        }
        Ok(())
    }

    /// What was found may still be in a disk's cache; the next group must prove it durable.
    fn flush(&mut self) {
        for disk in 0..low16(count(self.superblock.disks.len())) {
            let io = IoId(low32(count(self.wants.len())));
            self.wants.push(Some(PendingRead { want: ReadPurpose::Flush, read: None }));
            self.outstanding += 1;
            self.effects.push_back(Effect::Flush { io, disk: Disk(disk) });
        }
    }

    fn open(&mut self) -> Result<(), ImportError> {
        let (header, slot) = self.newest()?;
        let restored = self.restored.take().ok_or(ImportError::NoCheckpoint)?;
        let Restored { state, mut regions, .. } = *restored;
        let Regions { dirty, doubtful, .. } = &mut regions;
        doubtful.extend(dirty.iter());
        let claims = core::mem::take(&mut self.claims);
        let pool = Pool::open(Opened {
            superblock: self.superblock.clone(),
            disk_layout: self.disk_layout.clone(),
            state,
            sums: core::mem::take(&mut self.sums),
            regions,
            position: self.position,
            tail: header.position.number,
            generation: header.generation,
            slot,
            limits: self.limits,
            unproved: claims.into_keys().collect(),
            sumless: core::mem::take(&mut self.sumless),
            dropped: self.dropped && !disabled(Rule::CheckpointAfterDrop),
            first_supers: self.supers.iter().map(|[a, b]| u8::from(a > b)).collect(),
        });
        self.result = Some(Ok(Box::new(pool)));
        Ok(())
    }
}

fn fill(into: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(into) = into.get_mut(at..at + bytes.len()) {
        into.copy_from_slice(bytes);
    }
}
