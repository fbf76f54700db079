//! Writing a checkpoint beside I/O (O6, O7).
//!
//! ```text
//!   cut ──► First (first copies of sums pages, bodies) ──► FirstFlush ──► Second ──► SecondFlush
//!       ──► First … (the next pages) … ──► Headers ──► LastFlush ──► done
//! ```
//!
//! When it is done, the journal before the cut is free. The headers wait until the batch at whose
//! sealing the state was cut is durable in the journal, or, if that is full, take its place.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use crate::casts::count;
use crate::checkpoint::{Encoder, Next};
use crate::checksum_page;
use crate::checksums::Version;
use crate::entity::LayerId;
use crate::journal::Position;
use crate::layout::{BLOCK, Place, Use};
use crate::mutation::{Rule, disabled};

use super::Pool;
use super::checkpoint_copy::CheckpointCopy;
use super::data_barrier::BatchNumber;
use super::op::Purpose;

/// Most I/O of a checkpoint at once, so that it stays out of the way.
const AT_ONCE: u32 = 16;
/// Sums pages that are written between two flushes.
const ROUND: usize = 1024;
/// Stands for the number of a copy where a sums page is written.
const PAGE: u8 = 2;
/// Bytes of one write of a body, and of the body that are made in one go: a few thousand entries.
/// In tests one block, so that histories are cut between.
const CHUNK: usize = if cfg!(test) { BLOCK } else { 128 << 10 };

/// Checkpoints of a pool: the current one, and the one being written.
#[derive(Debug)]
pub(super) struct Checkpointer {
    pub(super) slot: u8,
    generation: u64,
    wanted: bool,
    pub(super) run: Option<Run>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    First,
    FirstFlush,
    Second,
    SecondFlush,
    Headers,
    LastFlush,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Job {
    /// The first or second copy to be written of a page.
    Page { page: u64 },
    /// The next part of the body, in both copies.
    Body,
}

/// A page of which one copy was written.
#[derive(Debug)]
struct Written {
    version: Version,
    second: u8,
    image: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct Run {
    stage: Stage,
    pub(super) encoder: Encoder,
    /// Blocks of the body that were asked to be written.
    body: u64,
    pub(super) jobs: VecDeque<Job>,
    /// Pages for the rounds to come.
    left: VecDeque<u64>,
    pub(super) outstanding: u32,
    /// Pages that are being read.
    reading: BTreeSet<u64>,
    /// Pages of this round that were written once.
    pages: BTreeMap<u64, Written>,
    /// The last batch that it has.
    batch: BatchNumber,
    /// Where the journal stands after the cut, when that is known.
    position: Option<Position>,
    /// Regions that it makes clean.
    cleaned: BTreeSet<u32>,
    good: [bool; 2],
    pub(super) pages_good: bool,
    /// Pages of maps that are being copied.
    pub(super) copying: Option<CheckpointCopy>,
}

impl Checkpointer {
    /// Which checkpoint is the current one.
    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// The map of a layer is lost: the checkpoint being written has none of it.
    pub(super) fn leave_out(&mut self, layer: LayerId, is_being_written: bool) {
        if let Some(run) = &mut self.run {
            run.encoder.leave_out(layer, is_being_written);
        }
    }

    pub(super) fn new(slot: u8, generation: u64) -> Checkpointer {
        Checkpointer { slot, generation, wanted: false, run: None }
    }

    pub(super) fn want(&mut self) {
        self.wanted = true;
    }

    pub(super) fn is_running(&self) -> bool {
        self.run.is_some()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.run.is_none() && !self.wanted
    }

    /// Whether the checkpoint being written was cut with this batch.
    pub(super) fn was_cut_at(&self, batch: BatchNumber) -> bool {
        self.run.as_ref().is_some_and(|run| run.batch == batch)
    }

    /// A batch is done, and the journal goes on from here.
    pub(super) fn position_known(&mut self, batch: BatchNumber, position: Position) {
        if let Some(run) = self.run.as_mut().filter(|run| run.batch == batch) {
            run.position.get_or_insert(position);
        }
    }
}

impl Pool {
    /// Asks for a checkpoint; when it is done the journal is empty and idle regions are clean.
    pub fn request_checkpoint(&mut self) {
        self.checkpoint.want();
        self.run();
    }

    /// Takes the state, at a moment when it is exactly what the journal and the batch being
    /// written lead to.
    pub(super) fn cut_checkpoint(&mut self) {
        let moving = self.table.is_some();
        if !self.checkpoint.wanted || self.checkpoint.run.is_some() || moving {
            return;
        }
        self.checkpoint.wanted = false;
        self.overwriting.retain(|_, under_way| *under_way > 0);
        let used =
            |region: &u32| self.hot.contains(region) || self.overwriting.contains_key(region);
        let (kept, cleaned) = self.regions.dirty.iter().copied().partition(used);
        self.regions.dirty = kept;
        self.hot.clear();
        let mut regions = self.regions.clone();
        if let Some(writing) = &self.writing {
            regions.dirty.extend(&writing.batch.marks);
        }
        let batch =
            self.writing.as_ref().map_or_else(BatchNumber::default, |writing| writing.joined);
        let encoder = Encoder::cut(&mut self.state, &regions);
        let left = self.sums.dirty().collect();
        let jobs = VecDeque::from([Job::Body]);
        let (pages, position, outstanding) = (BTreeMap::new(), None, 0);
        let reading = BTreeSet::new();
        let (good, pages_good, stage) = ([true; 2], true, Stage::First);
        self.checkpoint.run = Some(Run {
            stage,
            encoder,
            body: 0,
            jobs,
            left,
            outstanding,
            reading,
            pages,
            batch,
            position,
            cleaned,
            good,
            pages_good,
            copying: None,
        });
        self.next_round();
    }

    /// Queues the next pages; false if there are none.
    fn next_round(&mut self) -> bool {
        let Some(run) = &mut self.checkpoint.run else { return false };
        let most = run.left.len().min(ROUND);
        run.jobs.extend(run.left.drain(..most).map(|page| Job::Page { page }));
        most > 0
    }

    /// Moves a checkpoint on; true if one ended.
    pub(super) fn advance_checkpoint(&mut self) -> bool {
        if self.broken {
            return false;
        }
        if self.checkpoint.wanted && self.checkpoint.run.is_none() {
            self.open.wanted = true;
        }
        let heavy =
            self.sums.is_heavy() || self.state.resident.is_heavy() || self.state.seeks_lost();
        if heavy && self.checkpoint.is_idle() {
            self.checkpoint.want();
            self.open.wanted = true;
        }
        while let Some(run) = &mut self.checkpoint.run {
            if run.outstanding >= AT_ONCE {
                return false;
            }
            let stage = run.stage;
            match run.jobs.pop_front() {
                Some(Job::Body) => {
                    // The next part is made when somebody calls again: its writes will end.
                    if self.write_body() {
                        return false;
                    }
                }
                Some(Job::Page { page }) => {
                    run.outstanding += 1;
                    if stage == Stage::First {
                        self.write_first(page);
                    } else {
                        self.write_second(page);
                    }
                }
                None if run.outstanding > 0 => return false,
                None => {
                    if !self.next_stage(stage) {
                        return !self.checkpoint.is_running();
                    }
                }
            }
        }
        false
    }

    /// Makes the next part of the body, and has it written; false if there is none.
    fn write_body(&mut self) -> bool {
        let Some(run) = &mut self.checkpoint.run else { return false };
        let bytes = match run.encoder.next(&mut self.state, CHUNK) {
            Next::Bytes(bytes) => bytes,
            Next::Copy(copy) => {
                self.copy_pages(copy, None);
                return true;
            }
            Next::End => return false,
        };
        let at = 1 + run.body;
        run.body += count(bytes.len() / BLOCK);
        let slot = Use::Checkpoint { slot: 1 - self.checkpoint.slot, copy: 0 };
        let room = self.superblock.area(slot).map_or(0, |area| area.blocks - 1);
        if run.body > room {
            // Whatever let the maps grow so large: what lies behind the slot is not written over.
            (run.good, self.broken) = ([false; 2], true);
            return false;
        }
        run.outstanding += 2;
        run.jobs.push_back(Job::Body);
        self.write_slot(0, at, bytes.clone());
        self.write_slot(1, at, bytes);
        true
    }

    /// A page cannot be read: a checkpoint that waits for it cannot be written.
    pub(super) fn checkpoint_page_failed(&mut self, page: u64) {
        if let Some(run) = &mut self.checkpoint.run
            && run.reading.remove(&page)
        {
            run.outstanding -= 1;
            run.pages_good = false;
        }
    }

    /// A page was read; if the checkpoint waits for it, it is written.
    pub(super) fn checkpoint_page_loaded(&mut self, page: u64) {
        if self.checkpoint.run.as_mut().is_some_and(|run| run.reading.remove(&page)) {
            self.write_first(page);
        }
    }

    /// Writes the copy of a page that is not known to be good, after reading it if need be.
    fn write_first(&mut self, page: u64) {
        let Some((sums, version, first)) = self.sums.image(page) else {
            if let Some(run) = &mut self.checkpoint.run {
                run.reading.insert(page);
            }
            return self.load_page(page, None);
        };
        let image = checksum_page::encode(self.superblock.mark(), page, &sums);
        if let Some(run) = &mut self.checkpoint.run {
            let written = Written { version, second: 1 - first, image: image.clone() };
            run.pages.insert(page, written);
        }
        let place = self.disk_layout.page_place(page, first);
        self.write_own(Purpose::Checkpoint { copy: PAGE }, place, image);
    }

    fn write_second(&mut self, page: u64) {
        let Some(run) = &mut self.checkpoint.run else { return };
        let Some(written) = run.pages.get_mut(&page) else { return };
        let (second, image) = (written.second, core::mem::take(&mut written.image));
        let place = self.disk_layout.page_place(page, second);
        self.write_own(Purpose::Checkpoint { copy: PAGE }, place, image);
    }

    /// Both copies of the pages of this round are durable.
    fn end_round(&mut self) {
        let Some(run) = &mut self.checkpoint.run else { return };
        for (page, written) in core::mem::take(&mut run.pages) {
            self.sums.written(page, written.version);
            self.page_was_written(page);
        }
    }

    fn write_slot(&mut self, copy: u8, block: u64, bytes: Vec<u8>) {
        let current = self.checkpoint.slot;
        let slot = if disabled(Rule::OtherSlot) { current } else { 1 - current };
        if copy == 1 && disabled(Rule::SecondCopy) {
            return self.checkpoint_written(copy, true);
        }
        let Some(area) = self.superblock.area(Use::Checkpoint { slot, copy }) else { return };
        let place = Place { block: area.start.block + block, ..area.start };
        self.write_own(Purpose::Checkpoint { copy }, place, bytes);
    }

    pub(super) fn checkpoint_written(&mut self, copy: u8, good: bool) {
        let Some(run) = &mut self.checkpoint.run else { return };
        run.outstanding -= 1;
        match run.good.get_mut(usize::from(copy)) {
            Some(all) => *all &= good,
            None => run.pages_good &= good,
        }
    }

    pub(super) fn checkpoint_flushed(&mut self, good: bool) {
        self.broken |= !good;
        if let Some(run) = &mut self.checkpoint.run {
            run.outstanding -= 1;
        }
    }

    /// All I/O of a stage is done; false if the next must wait for something else.
    fn next_stage(&mut self, stage: Stage) -> bool {
        let Some(run) = &mut self.checkpoint.run else { return false };
        if run.good == [false; 2] || !run.pages_good {
            self.give_up_checkpoint();
            return false;
        }
        run.stage = match stage {
            Stage::First => Stage::FirstFlush,
            Stage::FirstFlush => Stage::Second,
            // It has records whose data is still to be written, and must be flushed after that.
            Stage::Second
                if !self.ahead.is_over(run.batch) && !disabled(Rule::DataBeforeCheckpoint) =>
            {
                return false;
            }
            Stage::Second => Stage::SecondFlush,
            Stage::SecondFlush if !run.pages.is_empty() => {
                self.end_round();
                if self.next_round() {
                    self.set_stage(Stage::First);
                }
                return true;
            }
            Stage::SecondFlush if run.position.is_none() => return false,
            Stage::SecondFlush => Stage::Headers,
            Stage::Headers => Stage::LastFlush,
            Stage::LastFlush => {
                self.checkpoint_done();
                return false;
            }
        };
        match run.stage {
            Stage::FirstFlush | Stage::SecondFlush | Stage::LastFlush => {
                let flushes = self.flush_all(|| Purpose::CheckpointFlush);
                if let Some(run) = &mut self.checkpoint.run {
                    run.outstanding = flushes;
                }
            }
            Stage::Second => {
                run.jobs = run.pages.keys().map(|page| Job::Page { page: *page }).collect();
            }
            Stage::Headers => self.write_headers(),
            Stage::First => {}
        }
        true
    }

    fn set_stage(&mut self, stage: Stage) {
        if let Some(run) = &mut self.checkpoint.run {
            run.stage = stage;
        }
    }

    fn write_headers(&mut self) {
        let mark = self.superblock.mark();
        let generation = self.checkpoint.generation + 1;
        let Some(run) = &mut self.checkpoint.run else { return };
        let Some(position) = run.position else { return };
        let Some(mut header) = run.encoder.header() else { return };
        (header.position, header.generation) = (position, generation);
        if disabled(Rule::HeaderPosition) {
            header.position.group = header.position.group.saturating_sub(1);
        }
        let header = header.encode(mark);
        let good = run.good;
        for copy in [0, 1] {
            if good[usize::from(copy)] {
                if let Some(run) = &mut self.checkpoint.run {
                    run.outstanding += 1;
                }
                self.write_slot(copy, 0, header.clone());
            }
        }
    }

    fn checkpoint_done(&mut self) {
        let Some(run) = self.checkpoint.run.take() else { return };
        self.checkpoint.slot = 1 - self.checkpoint.slot;
        self.checkpoint.generation += 1;
        if let Some(position) = run.position {
            self.tail = position.number;
        }
        let (index, lost) = run.encoder.into_parts();
        self.unsettled = false;
        self.state.settle_windows(Some(index));
        if let Some(lost) = lost.filter(|_| self.state.seeks_lost()) {
            self.state.free_lost(&lost);
        }
        self.end_checkpoint_wait();
        self.checkpoint_absorbed();
        self.move_smaller_slot();
    }

    /// The checkpoint cannot be written. The old one and the journal still hold everything, unless
    /// the journal was full.
    fn give_up_checkpoint(&mut self) {
        let Some(run) = self.checkpoint.run.take() else { return };
        self.state.end_cut();
        self.state.settle_windows(None);
        self.end_checkpoint_wait();
        self.regions.dirty.extend(run.cleaned);
        let absorbing = run.position.is_some() && self.batch_is_absorbed();
        self.broken |= absorbing || self.journal_used() > self.ring * 3 / 4;
    }
}
