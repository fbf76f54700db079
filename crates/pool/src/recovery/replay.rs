//! Replaying the journal, with the pages of maps that its records are about.

use alloc::vec::Vec;

use crate::bits::Run;
use crate::casts::{count, index, low32};
use crate::checkpoint;
use crate::checkpoint_reader::CheckpointReader;
use crate::checksums::{NO_SUM, sum_of};
use crate::codec::Reader;
use crate::journal::{Copies, Found, Group};
use crate::layout::BLOCK;
use crate::mutation::{Rule, disabled};
use crate::record::{FirstWrite, Record};
use crate::state::PageKey;

use super::{CHUNK, ImportError, ReadPurpose, Recovery, Stage};

impl Recovery {
    /// Finds what is to be replayed, and has the data of the groups read that are not proved.
    pub(super) fn find_groups(&mut self) -> Result<(), ImportError> {
        let bytes = [&self.journals[0][..], &self.journals[1][..]];
        let Found { groups, incarnation, proved, gap } =
            Copies { pool: self.superblock.mark(), bytes }.find(self.position);
        if gap {
            return Err(ImportError::JournalGap);
        }
        self.journals = [Vec::new(), Vec::new()];
        for group in groups {
            self.position = group.after;
            if group.after.group <= proved {
                self.groups.push_back(group);
            } else {
                let mut records = records_of(&group)?;
                self.last.append(&mut records);
            }
        }
        self.position.incarnation = incarnation + 1;
        self.stage = Stage::Check;
        self.read_claims();
        Ok(())
    }

    fn physical(&self, at: &FirstWrite) -> u64 {
        (u64::from(at.cluster.0) << self.superblock.cluster.shift()) + u64::from(at.first)
    }

    /// Has every block read that the last groups say was written.
    fn read_claims(&mut self) {
        let blocks = u64::from(self.disk_layout.clusters()) << self.superblock.cluster.shift();
        for (_, _, record) in &self.last {
            let (first, crcs) = match record {
                Record::FirstWrite { at, crcs } => (self.physical(at), crcs),
                Record::Overwrite { first, crcs } => (*first, crcs),
                _ => continue,
            };
            let claims = || (first..).zip(crcs).filter(|(physical, _)| *physical < blocks);
            self.found.extend(claims().map(|(physical, _)| (physical, None)));
            if let Record::FirstWrite { .. } = record {
                // The last record of a block is the one that counts (O3).
                self.claims.extend(claims().map(|(physical, crc)| (physical, *crc)));
            }
        }
        let claimed: Vec<u64> = self.found.keys().copied().collect();
        let shift = self.superblock.cluster.shift();
        let together = |a: &u64, b: &u64| a + 1 == *b && a >> shift == b >> shift;
        for run in claimed.chunk_by(together) {
            for run in run.chunks(index(CHUNK)) {
                self.read_check(run[0], low32(count(run.len())));
            }
        }
    }

    fn read_check(&mut self, physical: u64, blocks: u32) {
        let place = self.disk_layout.place(physical);
        self.read(ReadPurpose::Check { physical, blocks }, place, blocks);
    }

    pub(super) fn check_blocks(&mut self, first: u64, bytes: &[u8]) {
        for (physical, block) in (first..).zip(bytes.chunks_exact(BLOCK)) {
            self.found.insert(physical, Some(sum_of(block)));
        }
    }

    /// An error concerns its own block: the others are read one by one.
    pub(super) fn cannot_check(&mut self, first: u64, blocks: u32) {
        if blocks > 1 {
            for physical in first..first + u64::from(blocks) {
                self.read_check(physical, 1);
            }
        }
    }

    /// Whether a record says what is in a block. Of one that cannot be read it may: what was
    /// flushed is not given up for that, and a block that holds something else fails its sum.
    fn has_arrived(&self, physical: u64, crc: u32) -> bool {
        let found = self.found.get(&physical).copied().flatten();
        found.is_none_or(|found| found == crc) || disabled(Rule::CheckLastGroup)
    }

    /// Takes those blocks out of the last groups that never reached the disk, or are older than
    /// what did.
    pub(super) fn drop_wrong(&mut self) {
        for (group, nth, record) in core::mem::take(&mut self.last) {
            let (first, crcs) = match &record {
                Record::FirstWrite { at, crcs } => (self.physical(at), crcs),
                Record::Overwrite { first, crcs } => (*first, crcs),
                _ => {
                    self.last.push((group, nth, record));
                    continue;
                }
            };
            let is_first = matches!(record, Record::FirstWrite { .. });
            let good: Vec<bool> = (first..)
                .zip(crcs)
                .map(|(physical, crc)| match self.claims.get(&physical) {
                    Some(last) if is_first => self.has_arrived(physical, *last),
                    // That a block has no sum says nothing of what it holds.
                    _ if !is_first && *crc == NO_SUM => true,
                    _ => self.has_arrived(physical, *crc),
                })
                .collect();
            // What counts because it could not be read might not count the next time.
            let is_unread = |physical| matches!(self.found.get(&physical), Some(None));
            let unread = (first..).take(crcs.len()).any(is_unread);
            self.dropped |= good.contains(&false) || unread;
            for run in runs_of(&good) {
                let from = usize::from(run.first);
                let crcs = crcs[from..from + usize::from(run.len)].to_vec();
                let part = match &record {
                    Record::FirstWrite { at, .. } => {
                        let at = FirstWrite { first: at.first + run.first, ..*at };
                        Record::FirstWrite { at, crcs }
                    }
                    _ => Record::Overwrite { first: first + u64::from(run.first), crcs },
                };
                self.last.push((group, nth, part));
            }
        }
        self.found.clear();
    }

    /// Replays records until a page of a map is missing; true if all are replayed.
    pub(super) fn replay_on(&mut self) -> Result<bool, ImportError> {
        loop {
            let Some((group, nth, record)) = self.queue.pop_front() else {
                if let Some(group) = self.groups.pop_front() {
                    self.queue = records_of(&group)?.into();
                } else if self.last.is_empty() {
                    return Ok(true);
                } else {
                    self.queue = core::mem::take(&mut self.last).into();
                }
                continue;
            };
            let Some(restored) = &self.restored else { return Err(ImportError::NoCheckpoint) };
            let mut needs = Vec::new();
            restored.state.needs(&record, &mut needs);
            if needs.is_empty() {
                self.apply((group, nth), &record)?;
                continue;
            }
            self.queue.push_front((group, nth, record));
            for key in self.look_ahead() {
                self.fetch(key, 0, false);
            }
            return Ok(false);
        }
    }

    /// The pages that the next record needs, and those that first writes behind it will need, as
    /// far as there is memory for them.
    fn look_ahead(&self) -> Vec<PageKey> {
        let Some(restored) = &self.restored else { return Vec::new() };
        let state = &restored.state;
        let mut needs = Vec::new();
        let is_write = |record: &Record| matches!(record, Record::FirstWrite { .. });
        let records = self.queue.iter().map(|(_, _, record)| record).enumerate();
        for (nth, record) in records.filter(|(nth, record)| *nth == 0 || is_write(record)) {
            if nth > 0 && !state.has_memory_for(&needs) {
                break;
            }
            state.needs(record, &mut needs);
        }
        needs.sort_unstable();
        needs.dedup();
        needs
    }

    /// Reads a page; `failed` if reading its other copy did.
    fn fetch(&mut self, key: PageKey, copy: u8, failed: bool) {
        let Ok((_, slot)) = self.newest() else { return };
        let Some(page) = self.restored.as_ref().and_then(|restored| restored.state.page_of(key))
        else {
            return;
        };
        let mut fetch = CheckpointReader::new((slot, copy), page.range());
        let pieces = fetch.pieces(&self.superblock);
        fetch.failed = failed;
        let is_nowhere = pieces.is_empty();
        self.fetches.insert(key, fetch);
        for piece in pieces {
            self.read(ReadPurpose::Page { key, at: piece.at }, piece.place, piece.blocks);
        }
        if is_nowhere {
            self.page_read(key, 0, None);
        }
    }

    pub(super) fn page_read(&mut self, key: PageKey, at: u32, bytes: Option<&[u8]>) {
        let is_last = self.fetches.get_mut(&key).is_some_and(|fetch| fetch.arrived(at, bytes));
        let Some(fetch) = is_last.then(|| self.fetches.remove(&key)).flatten() else { return };
        let Some(restored) = &mut self.restored else { return };
        let state = &mut restored.state;
        let Some(page) = state.page_of(key) else { return };
        let entries = checkpoint::decode_page(&page, fetch.get(page.range()), state.size);
        match state.take_page(key, entries) {
            Ok(()) => {}
            Err(_) if fetch.copy == 0 => self.fetch(key, 1, fetch.failed),
            // The disk may come back, and then nothing is lost.
            Err(_) if fetch.failed => self.result = Some(Err(ImportError::Unreadable)),
            Err(_) => state.lose_map(key.0),
        }
    }

    fn apply(&mut self, (group, nth): (u64, usize), record: &Record) -> Result<(), ImportError> {
        let error = ImportError::Contradiction { group, record: nth };
        let Some(restored) = &mut self.restored else { return Err(ImportError::NoCheckpoint) };
        restored.state.replay(record).map_err(|_| error)?;
        // Not before: what a record needs may be found out in several steps.
        restored.state.shed();
        match record {
            Record::FirstWrite { at, crcs } if at.cluster.0 < self.disk_layout.clusters() => {
                let first = (u64::from(at.cluster.0) << self.superblock.cluster.shift())
                    + u64::from(at.first);
                for (physical, crc) in (first..).zip(crcs) {
                    self.sums.set(self.disk_layout.sum_at(physical), *crc);
                    // It has a sum again, whatever the checkpoint had to say of the place.
                    restored.regions.unproven.remove(&physical);
                    self.sumless.remove(&physical);
                }
            }
            Record::Overwrite { first, crcs } => {
                let end = u64::from(self.disk_layout.clusters()) << self.superblock.cluster.shift();
                for (physical, crc) in (*first..end).zip(crcs) {
                    self.sums.set(self.disk_layout.sum_at(physical), *crc);
                    restored.regions.unproven.remove(&physical);
                    if *crc == NO_SUM {
                        self.sumless.insert(physical);
                    } else {
                        self.sumless.remove(&physical);
                    }
                }
            }
            Record::Dirty { region } => {
                restored.regions.dirty.insert(*region);
            }
            _ => {}
        }
        Ok(())
    }
}

/// The records of a group, numbered.
fn records_of(group: &Group) -> Result<Vec<(u64, usize, Record)>, ImportError> {
    let mut from = Reader::new(&group.payload);
    let mut records = Vec::new();
    let group = group.after.group;
    while !from.is_empty() {
        let error = ImportError::Contradiction { group, record: records.len() };
        let record = Record::decode(&mut from).ok_or(error)?;
        records.push((group, records.len(), record));
    }
    Ok(records)
}

/// The runs of true.
fn runs_of(flags: &[bool]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (at, good) in (0u16..).zip(flags) {
        match runs.last_mut() {
            Some(run) if *good && run.end() == at => run.len += 1,
            _ if *good => runs.push(Run { first: at, len: 1 }),
            _ => {}
        }
    }
    runs
}
