//! Disks that keep only what was flushed, and may tear, drop and reorder the rest.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::vec;
use std::vec::Vec;

pub(super) use block::testing::Random;

use crate::TornWrites;
use crate::layout::{BLOCK, Place};

type Bytes = Arc<[u8]>;

/// All disks of a pool.
#[derive(Clone, Debug, Default)]
pub(super) struct Disks {
    durable: BTreeMap<Place, Bytes>,
    /// Writes that no flush covers, oldest first; with their number and whether they completed.
    volatile: Vec<(u64, bool, Place, Vec<u8>)>,
    next: u64,
    /// Disks that say they flushed and did not.
    pub(super) lies: Lie,
    /// Sectors of 4096 bytes, which are not torn, instead of 512.
    pub(super) is_large: bool,
    /// Whether the pool is told that blocks may be torn. If not, one that is overwritten may be.
    pub(super) torn_writes: TornWrites,
    /// What becomes of one write that is acknowledged all the same, by its number.
    pub(super) false_write: Option<(u64, FalseWrite)>,
    /// Reads that were asked for so far, which of them fails, and whether its place always does.
    pub(super) reads: u64,
    pub(super) failing: Option<(u64, Failing)>,
    /// Reads of any of these blocks fail.
    pub(super) unreadable: Vec<Range<Place>>,
}

/// How a write goes wrong that is said to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FalseWrite {
    /// It is not there.
    Lost,
    /// It is that many blocks further.
    Shifted(u64),
}

/// How long a read fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failing {
    Once,
    Forever,
}

/// Which flushes do nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Lie {
    #[default]
    None,
    All,
    /// Those after which only a journal group, or only data, were written.
    Groups,
    /// Those after parts of a checkpoint, but its headers.
    Bodies,
    /// Those after superblocks.
    Supers,
}

impl Disks {
    /// Whether a multiple of three writes was sent: so it is in some of all histories.
    pub(super) fn is_third(&self) -> bool {
        self.next.is_multiple_of(3)
    }

    /// A write was sent; answers its number.
    pub(super) fn write(&mut self, place: Place, bytes: &[u8]) -> u64 {
        self.next += 1;
        let place = match self.false_write {
            Some((number, FalseWrite::Lost)) if number == self.next => return self.next,
            Some((number, FalseWrite::Shifted(by))) if number == self.next => {
                Place { block: place.block + by, ..place }
            }
            _ => place,
        };
        self.volatile.push((self.next, false, place, bytes.to_vec()));
        self.next
    }

    pub(super) fn written(&mut self, number: u64) {
        for write in self.volatile.iter_mut().filter(|write| write.0 == number) {
            write.1 = true;
        }
    }

    /// The writes that a flush sent now will cover.
    pub(super) fn completed(&self) -> Vec<u64> {
        if self.lied() {
            return Vec::new();
        }
        self.volatile.iter().filter(|write| write.1).map(|write| write.0).collect()
    }

    /// Whether a flush that is sent now is one that does nothing, by what it would cover.
    fn lied(&self) -> bool {
        let holds = |mark: &[u8]| {
            self.volatile
                .iter()
                .any(|(_, completed, _, bytes)| *completed && bytes.starts_with(mark))
        };
        let (headers, supers) = (holds(b"HOLDCKPT"), holds(b"HOLDPOOL"));
        let groups = holds(b"HJNL");
        match self.lies {
            Lie::None => false,
            Lie::All => true,
            Lie::Groups => groups && !headers && !supers,
            Lie::Bodies => !headers && !supers && !groups,
            Lie::Supers => supers,
        }
    }

    pub(super) fn flushed(&mut self, covers: &[u64]) {
        let all = core::mem::take(&mut self.volatile);
        // An older write of the same blocks that is still under way may land later.
        for write in all {
            if covers.contains(&write.0) {
                apply(&mut self.durable, write.2, &write.3);
            } else {
                self.volatile.push(write);
            }
        }
    }

    /// How many writes were sent.
    pub(super) fn writes(&self) -> u64 {
        self.next
    }

    /// A read is asked for; whether it is the one that fails.
    pub(super) fn strikes(&mut self, place: Place, blocks: u32) -> bool {
        self.reads += 1;
        let Some((_, how)) = self.failing.filter(|(nth, _)| *nth == self.reads) else {
            return self.is_unreadable(place, blocks);
        };
        if how == Failing::Forever {
            self.unreadable.push(place..Place { block: place.block + u64::from(blocks), ..place });
        }
        true
    }

    pub(super) fn is_unreadable(&self, place: Place, blocks: u32) -> bool {
        let end = Place { block: place.block + u64::from(blocks), ..place };
        self.unreadable.iter().any(|places| places.start < end && place < places.end)
    }

    pub(super) fn read(&self, place: Place, blocks: u32) -> Vec<u8> {
        let mut out = vec![0; blocks as usize * BLOCK];
        for (nth, into) in out.chunks_exact_mut(BLOCK).enumerate() {
            let at = Place { block: place.block + nth as u64, ..place };
            if let Some(bytes) = self.durable.get(&at) {
                into.copy_from_slice(bytes);
            }
            for (_, completed, from, bytes) in &self.volatile {
                let inside = at.disk == from.disk
                    && (from.block..from.block + (bytes.len() / BLOCK) as u64).contains(&at.block);
                if inside && *completed {
                    let offset = (at.block - from.block) as usize * BLOCK;
                    into.copy_from_slice(&bytes[offset..offset + BLOCK]);
                }
            }
        }
        out
    }

    /// What a power cut leaves.
    pub(super) fn after_crash(&self, random: &mut Random) -> Disks {
        let mut durable = self.durable.clone();
        let mood = random.below(4);
        for (_, _, place, bytes) in &self.volatile {
            for (nth, block) in bytes.chunks_exact(BLOCK).enumerate() {
                let at = Place { block: place.block + nth as u64, ..*place };
                let fate = match mood {
                    0 => 0,
                    1 => 1,
                    _ => random.below(3),
                };
                match fate {
                    0 => {}
                    1 => apply(&mut durable, at, block),
                    _ if self.is_large => {
                        if random.one_in(2) {
                            apply(&mut durable, at, block);
                        }
                    }
                    _ => {
                        const SECTOR: usize = 512;
                        let mut torn = durable.get(&at).map_or(vec![0; BLOCK], |old| old.to_vec());
                        for sector in 0..BLOCK / SECTOR {
                            if random.one_in(2) {
                                let range = sector * SECTOR..(sector + 1) * SECTOR;
                                torn[range.clone()].copy_from_slice(&block[range]);
                            }
                        }
                        apply(&mut durable, at, &torn);
                    }
                }
            }
        }
        Disks { durable, volatile: Vec::new(), unreadable: Vec::new(), ..*self }
    }

    /// What is there when the process died and the power stayed: all that was written, and of what
    /// was under way any blocks.
    pub(super) fn after_death(&self, random: &mut Random) -> Disks {
        let mut after = self.clone();
        let mut volatile = Vec::new();
        for (number, completed, place, bytes) in core::mem::take(&mut after.volatile) {
            for (nth, block) in bytes.chunks_exact(BLOCK).enumerate() {
                let at = Place { block: place.block + nth as u64, ..place };
                if completed || random.one_in(2) {
                    volatile.push((number, true, at, block.to_vec()));
                }
            }
        }
        Disks { volatile, unreadable: Vec::new(), ..after }
    }

    /// Puts other bytes where these are, if they are durable somewhere.
    pub(super) fn rot(&mut self, good: &[u8], bad: &[u8]) -> bool {
        let mut places = self.durable.iter().filter(|(_, bytes)| bytes[..] == *good);
        // A merge leaves a copy behind, which nobody reads.
        let (Some((place, _)), None) = (places.next(), places.next()) else { return false };
        let place = *place;
        if self.volatile.is_empty() {
            apply(&mut self.durable, place, bad);
        }
        self.volatile.is_empty()
    }

    /// Flips bits of a durable block.
    pub(super) fn damage(&mut self, place: Place, byte: usize, mask: u8) {
        let mut block = self.read(place, 1);
        block[byte] ^= mask;
        apply(&mut self.durable, place, &block);
    }
}

fn apply(durable: &mut BTreeMap<Place, Bytes>, place: Place, bytes: &[u8]) {
    for (nth, block) in bytes.chunks_exact(BLOCK).enumerate() {
        let at = Place { block: place.block + nth as u64, ..place };
        durable.insert(at, Arc::from(block));
    }
}
