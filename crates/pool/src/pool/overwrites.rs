//! Sums of blocks that were overwritten in place, until a group records them (O4).
//!
//! A flush records all of them in the group that it makes durable: so the last durable sum of a
//! block is that of its last flush, and after a crash only a block that was overwritten since can
//! differ from it.
//!
//! Invariant: it is emptied whenever records join a batch, so nothing that a record gave up is in
//! it when that record is durable, and the block may be somebody else's.

use alloc::vec::Vec;

use crate::casts::count;
use crate::checksums::NO_SUM;
use crate::mutation::{Rule, disabled};
use crate::record::{self, MAX_FIRST};

use super::Pool;
use super::op::Part;

/// Blocks after which a flush is made unasked: what recovery would have to read is bounded. In
/// tests few, so that histories come to it.
const MOST: usize = if cfg!(test) { 64 } else { 16 << 10 };

/// Blocks and their sums, in the order of their writes.
#[derive(Debug, Default)]
pub(super) struct Overwrites {
    sums: Vec<(u64, u32)>,
}

impl Overwrites {
    fn push(&mut self, first: u64, sums: &[u32]) {
        self.sums.extend((first..).zip(sums.iter().copied()));
    }

    /// Whether there are so many blocks that they should be recorded.
    fn is_full(&mut self) -> bool {
        if self.sums.len() < 2 * MOST {
            return false;
        }
        self.tidy();
        self.sums.len() > MOST
    }

    /// Leaves one sum for each block, the last, in the order of the blocks.
    fn tidy(&mut self) {
        self.sums.sort_by_key(|(physical, _)| *physical);
        self.sums.dedup_by(|later, kept| {
            let is_same = later.0 == kept.0;
            if is_same {
                kept.1 = later.1;
            }
            is_same
        });
    }

    /// Appends records of all, and forgets them.
    fn record(&mut self, out: &mut Vec<u8>) {
        self.tidy();
        let together = |a: &(u64, u32), b: &(u64, u32)| a.0 + 1 == b.0;
        for run in self.sums.chunk_by(together) {
            for run in run.chunks(usize::from(MAX_FIRST)) {
                record::put_overwrite(out, run[0].0, run.iter().map(|(_, sum)| *sum));
            }
        }
        self.sums.clear();
        self.sums.shrink_to(2 * MOST);
    }
}

impl Pool {
    /// A part was written in its place, or that failed.
    pub(super) fn overwritten(&mut self, part: &Part, sums: &[u32]) {
        if !part.failed {
            self.set_sums(part, sums);
            self.note_overwrite(self.physical(part.cluster, part.run.first), sums);
        }
        let region = self.region(part.cluster);
        if let Some(under_way) = self.overwriting.get_mut(&region) {
            *under_way -= 1;
        }
    }

    /// The sums of blocks that hold something else than their durable sums say.
    pub(super) fn note_overwrite(&mut self, first: u64, sums: &[u32]) {
        self.overwrites.push(first, sums);
        self.open.wanted |= self.overwrites.is_full();
    }

    /// What was overwritten so far is recorded with what becomes durable next.
    pub(super) fn record_overwrites(&mut self) {
        let mut lost = Vec::new();
        let is_left_out = disabled(Rule::RecordOverwrites);
        self.overwrites.record(if is_left_out { &mut lost } else { &mut self.open.payload });
    }

    /// Has it recorded that these blocks have no sum: they hold nothing that anybody may be given
    /// until they are written. It is recorded with what becomes durable next.
    pub(super) fn disown(&mut self, blocks: core::ops::Range<u64>) {
        for physical in blocks {
            self.sums.set(self.disk_layout.sum_at(physical), NO_SUM);
            self.sumless.insert(physical);
            self.note_overwrite(physical, &[NO_SUM]);
        }
        self.open.wanted = true;
    }

    pub(super) fn set_sums(&mut self, part: &Part, sums: &[u32]) {
        let first = self.physical(part.cluster, part.run.first);
        for (physical, sum) in (first..).zip(sums) {
            self.sums.set(self.disk_layout.sum_at(physical), *sum);
        }
        let blocks = first..first + count(sums.len());
        let had_none: Vec<u64> = self.sumless.range(blocks.clone()).copied().collect();
        for block in had_none {
            self.sumless.remove(&block);
        }
        self.proven(blocks);
    }

    /// Whether it is recorded of a block of the range that it has no sum. Such a block is written
    /// as one that is new to the map: with its record. A process that dies would else leave an
    /// acknowledged block that the journal calls bad.
    pub(super) fn is_sumless(&self, blocks: core::ops::Range<u64>) -> bool {
        self.sumless.range(blocks).next().is_some() && !disabled(Rule::RecordAfterFailure)
    }

    /// These blocks have sums that are theirs.
    pub(super) fn proven(&mut self, blocks: core::ops::Range<u64>) {
        let unproven = &mut self.regions.unproven;
        if unproven.is_empty() {
            return;
        }
        let listed: Vec<u64> = unproven.range(blocks).copied().collect();
        for block in &listed {
            unproven.remove(block);
        }
        if !listed.is_empty() {
            self.pass.room_came();
        }
    }

    /// Whether a block that does not match its sum was being written at a crash, for all that is
    /// known; if not, it went bad.
    pub(super) fn is_in_doubt(&self, physical: u64) -> bool {
        if self.sums.get(self.disk_layout.sum_at(physical)) == Some(NO_SUM) {
            return false;
        }
        let per_region = self.state.size.per_region();
        let cluster = crate::casts::low32(physical >> self.state.size.shift());
        self.regions.doubtful.contains(&(cluster / per_region))
            || self.regions.unproven.contains(&physical)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::casts::index;
    use crate::codec::Reader;
    use crate::record::Record;
    use alloc::vec;

    fn records(of: &mut Overwrites) -> Vec<(u64, Vec<u32>)> {
        let mut bytes = Vec::new();
        of.record(&mut bytes);
        let mut from = Reader::new(&bytes);
        let mut found = Vec::new();
        while !from.is_empty() {
            match Record::decode(&mut from) {
                Some(Record::Overwrite { first, crcs }) => found.push((first, crcs)),
                other => panic!("{other:?}"),
            }
        }
        found
    }

    #[test]
    fn the_last_sum_of_each_block_is_recorded_once() {
        let mut all = Overwrites::default();
        all.push(7, &[1, 2, 3]);
        all.push(20, &[4]);
        all.push(8, &[5, 6, 7]);
        assert_eq!(records(&mut all), vec![(7, vec![1, 5, 6, 7]), (20, vec![4])]);
        assert_eq!(records(&mut all), vec![]);
        let long: Vec<u32> = (0..u32::from(MAX_FIRST) + 2).collect();
        all.push(1, &long);
        let found = records(&mut all);
        assert_eq!(found.len(), 2);
        assert_eq!(found[1], (1 + u64::from(MAX_FIRST), long[index(MAX_FIRST.into())..].to_vec()));
    }

    #[test]
    fn it_is_full_of_blocks_and_not_of_writes() {
        let mut all = Overwrites::default();
        for nth in 0..3 * MOST {
            all.push(count(nth % 8), &[5]);
            assert!(!all.is_full());
        }
        all.push(100, &vec![1; 2 * MOST]);
        assert!(all.is_full());
    }
}
