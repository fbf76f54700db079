//! Group commit: records wait in a batch; a batch is written as groups, a few at once, and made
//! durable by one flush of all disks (O2).
//!
//! Whoever wants its records durable waits for the flush. Whoever only changed something waits
//! until its record is written: what was acknowledged then survives the death of this process,
//! though not a power cut. Written batches gather until somebody asks for a flush.
//!
//! Recovery stops at the first group that is missing, so groups count as written in their order.

use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;

use block::Fault;

use crate::breaks::{Rule, left_out};
use crate::entity::Layer;
use crate::journal::{self, GroupHead, MAX_GROUP, PAYLOAD};
use crate::layout::{BLOCK, Cluster, Place, Use};
use crate::record::{MAX_RECORD, Record};
use crate::widen::{count, index};
use crate::wire::le16;

use super::Pool;
use super::ahead::BatchNumber;
use super::lane::OpId;
use super::op::{Op, Purpose, Work};

/// A batch is written without being asked when it has this many bytes.
const HEAVY: usize = 192 << 10;
/// Writes wait when it has this many.
const FULL: usize = 512 << 10;

/// Most groups being written at once.
const AT_ONCE: usize = 4;
/// Answers that a group must bring for each that is being written: small groups cost as many writes
/// as large ones. In tests few, so that histories have several.
const WORTH: usize = if cfg!(test) { 1 } else { 4 };

/// Entries of a hidden layer that move down with one batch.
/// In tests few, so that histories are cut between.
const MOVES: usize = if cfg!(test) { 2 } else { 4096 };

/// Records that become durable together, and what waits for that.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) payload: Vec<u8>,
    /// Blocks with a first-write record in it.
    pub(super) fresh: BTreeSet<u64>,
    /// Blocks given up by its records.
    pub(super) cleared: BTreeSet<u64>,
    /// Clusters given up by its records.
    pub(super) freed: Vec<Cluster>,
    /// Regions marked by its records.
    pub(super) marks: BTreeSet<u32>,
    /// Layers hidden by its records.
    pub(super) hidden: Vec<Layer>,
    /// Commands that end when it is durable.
    pub(super) waiters: Vec<OpId>,
    /// Commands that end when it is written.
    answers: Vec<OpId>,
    /// Somebody waits for it to be durable.
    pub(super) wanted: bool,
    /// A group must be written even without records (O3).
    pub(super) proof: bool,
}

impl Batch {
    pub(super) fn is_full(&self) -> bool {
        self.payload.len() >= FULL
    }

    pub(super) fn note_size(&mut self) {
        self.wanted |= self.payload.len() >= HEAVY;
    }

    /// Whether somebody waits for it.
    fn is_due(&self) -> bool {
        self.wanted || !self.answers.is_empty()
    }

    fn append(&mut self, mut other: Batch) {
        self.payload.append(&mut other.payload);
        self.fresh.append(&mut other.fresh);
        self.cleared.append(&mut other.cleared);
        self.freed.append(&mut other.freed);
        self.marks.append(&mut other.marks);
        self.hidden.append(&mut other.hidden);
        self.waiters.append(&mut other.waiters);
        self.answers.append(&mut other.answers);
        self.wanted |= other.wanted;
        self.proof |= other.proof;
    }
}

/// Where a batch that is being written stands.
///
/// ```text
///   Groups ──(all written, wanted durable)──► Flush ──► done
///   Groups ──(journal full)──► Stalled ──(checkpoint done)──► Groups
///                              Stalled ──(checkpoint has it)──► Absorbed ──► done
/// ```
///
/// While nobody wants it durable, more records join it, and it rests when all are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stage {
    #[default]
    Groups,
    Flush {
        left: u32,
    },
    Stalled,
    Absorbed,
}

/// A group that is being written.
#[derive(Debug)]
struct Flight {
    /// Writes under way, of each copy.
    left: [u32; 2],
    good: [bool; 2],
    /// Commands that end when it and all before it are written.
    answers: Vec<OpId>,
}

impl Flight {
    /// Whether nothing of it is under way.
    fn is_over(&self) -> bool {
        self.left == [0, 0]
    }

    /// Whether one copy is there. That is enough: recovery takes each block from either.
    fn is_written(&self) -> bool {
        (0..2).any(|copy| self.left[copy] == 0 && self.good[copy])
    }
}

/// What is being written, or was and is not durable yet.
#[derive(Debug, Default)]
pub(super) struct Writing {
    pub(super) batch: Batch,
    /// Bytes of its payload that groups have.
    done: usize,
    groups: u32,
    stage: Stage,
    /// The last batch of records that joined it.
    pub(super) joined: BatchNumber,
    /// Groups being written, in order. The last has the number of the journal's position.
    flights: VecDeque<Flight>,
}

impl Writing {
    /// Whether nothing happens to it by itself.
    pub(super) fn rests(&self) -> bool {
        self.stage == Stage::Groups
            && self.flights.is_empty()
            && self.done == self.batch.payload.len()
            && !self.batch.wanted
    }

    /// Whether it goes on when something else has come to its end.
    fn waits(&self) -> bool {
        self.stage == Stage::Stalled || self.stage == Stage::Groups && self.batch.wanted
    }

    /// Whether records that wait may join it now.
    fn takes(&self, open: &Batch) -> bool {
        let in_flight = self.flights.len();
        self.stage == Stage::Groups
            && !self.batch.wanted
            && in_flight < AT_ONCE
            && (open.wanted || open.answers.len() >= WORTH * in_flight)
    }

    /// Commands whose groups are written, and all groups before; groups that are over are
    /// forgotten.
    fn written(&mut self) -> Vec<OpId> {
        let mut answers = Vec::new();
        for flight in self.flights.iter_mut() {
            if !flight.is_written() && !left_out(Rule::AnswerInOrder) {
                break;
            }
            if flight.is_written() {
                answers.append(&mut flight.answers);
            }
        }
        while self.flights.front().is_some_and(Flight::is_over) {
            self.flights.pop_front();
        }
        answers
    }
}

impl Pool {
    /// The command ends when everything recorded so far is durable.
    pub(super) fn wait_for_commit(&mut self, at: OpId) {
        self.open.waiters.push(at);
        self.open.wanted = true;
    }

    /// The command ends when everything recorded so far is written.
    pub(super) fn wait_for_writing(&mut self, at: OpId) {
        if left_out(Rule::AnswerWhenWritten) {
            return self.answer(alloc::vec![at]);
        }
        self.open.answers.push(at);
    }

    /// Moves the commit on; true if something else may be able to move now.
    pub(super) fn advance_commit(&mut self) -> bool {
        if self.broken {
            return self.fail_waiters();
        }
        if self.writing.as_ref().is_some_and(Writing::waits) {
            self.next_groups();
            return false;
        }
        let takes = self.writing.as_ref().is_none_or(|writing| writing.takes(&self.open));
        if !takes || !self.open.is_due() {
            return false;
        }
        if self.join() {
            self.cut_checkpoint();
        }
        self.next_groups();
        true
    }

    /// The open batch joins what is being written; true if that is wanted durable.
    fn join(&mut self) -> bool {
        let open = core::mem::take(&mut self.open);
        let writing = self.writing.get_or_insert_default();
        writing.batch.append(open);
        writing.joined = self.ahead.close();
        // What recovery would have to check is bounded.
        writing.batch.note_size();
        writing.batch.wanted
    }

    /// Blocks of the journal that are still needed.
    pub(super) fn journal_used(&self) -> u64 {
        self.position.number.wrapping_sub(self.tail)
    }

    /// Writes what is left of the batch, as far as it may be under way at once.
    fn next_groups(&mut self) {
        while let Some(writing) = &mut self.writing {
            let proves = writing.batch.proof && writing.groups == 0;
            if writing.done == writing.batch.payload.len() && !proves {
                return self.all_written();
            }
            if writing.flights.len() == AT_ONCE || !self.next_group() {
                return;
            }
        }
    }

    /// Writes a group; false if the journal has no room for it.
    fn next_group(&mut self) -> bool {
        let used = self.journal_used();
        let Some(writing) = &mut self.writing else { return false };
        let rest = &writing.batch.payload[writing.done..];
        let most = index(MAX_GROUP.min(self.ring / 4)) * PAYLOAD;
        let len = prefix(rest, most.max(MAX_RECORD));
        let blocks = journal::group_blocks(len);
        if used + blocks > self.ring {
            // Nobody may write over a group that is still being written.
            if writing.flights.is_empty() {
                writing.stage = Stage::Stalled;
                self.stalled();
            }
            return false;
        }
        let mut bytes = Vec::new();
        let proved =
            if left_out(Rule::ProvedWhenDurable) { self.position.group } else { self.proved };
        let head = GroupHead { pool: self.superblock.mark(), after: self.position, proved };
        journal::encode_group(head, &rest[..len], &mut bytes);
        writing.stage = Stage::Groups;
        writing.done += len;
        writing.groups += 1;
        let has_all = writing.done == writing.batch.payload.len();
        let answers =
            if has_all { core::mem::take(&mut writing.batch.answers) } else { Vec::new() };
        let from = self.position.number;
        self.position.number += blocks;
        self.position.group += 1;
        let left = self.write_group(from, &bytes);
        if let Some(writing) = &mut self.writing {
            let good = left.map(|writes| writes > 0);
            writing.flights.push_back(Flight { left, good, answers });
        }
        if self.journal_used() > self.ring / 2 {
            self.checkpoint.want();
        }
        true
    }

    /// Asks for the writes of both copies, in two where the ring ends; says how many of each.
    fn write_group(&mut self, from: u64, bytes: &[u8]) -> [u32; 2] {
        let group = self.position.group;
        let at = from % self.ring;
        let before_end = bytes.len().min(index(self.ring - at) * BLOCK);
        let (head, tail) = bytes.split_at(before_end);
        let mut writes = [0; 2];
        let copies: &[u8] = if left_out(Rule::SecondCopy) { &[0] } else { &[0, 1] };
        for copy in copies.iter().copied() {
            let Some(area) = self.superblock.area(Use::Journal { copy }) else { continue };
            for (at, bytes) in [(at, head), (0, tail)] {
                if !bytes.is_empty() {
                    let place = Place { block: area.start.block + at, ..area.start };
                    let purpose = Purpose::Group { copy, group };
                    self.write_own(purpose, place, bytes.to_vec());
                    writes[usize::from(copy)] += 1;
                }
            }
        }
        writes
    }

    /// A write of a copy of a group ended.
    pub(super) fn group_written(&mut self, (copy, group): (u8, u64), good: bool) {
        let Some(writing) = &mut self.writing else { return };
        let since = index(self.position.group - group);
        let Some(nth) = writing.flights.len().checked_sub(since + 1) else { return };
        let (copy, flight) = (usize::from(copy), &mut writing.flights[nth]);
        flight.left[copy] -= 1;
        flight.good[copy] &= good;
        if flight.is_over() && !flight.is_written() {
            self.broken = true;
            return;
        }
        let answers = writing.written();
        self.answer(answers);
        self.next_groups();
    }

    /// Every record of the batch is in a group: when they are written, and all data they speak of,
    /// it can be made durable.
    fn all_written(&mut self) {
        let Some(writing) = &mut self.writing else { return };
        let is_written = writing.flights.is_empty()
            && (self.ahead.is_over(writing.joined) || left_out(Rule::DataBeforeFlush));
        if is_written && writing.stage == Stage::Groups && writing.batch.wanted {
            let left = self.flush_all(|| Purpose::GroupFlush);
            if let Some(writing) = &mut self.writing {
                writing.stage = Stage::Flush { left };
            }
        }
    }

    pub(super) fn group_flushed(&mut self, good: bool) {
        let Some(writing) = &mut self.writing else { return };
        let Stage::Flush { left } = &mut writing.stage else { return };
        *left -= 1;
        self.broken |= !good;
        if *left == 0 && !self.broken {
            self.batch_done();
        }
    }

    /// The journal is full: only a checkpoint helps. If one has this batch, that makes it durable.
    fn stalled(&mut self) {
        if !self.checkpoint.is_running() {
            // Join what came since, so that the state is exactly what the batch leads to.
            self.join();
            self.checkpoint.want();
            self.cut_checkpoint();
        }
        if self.checkpoint.has_current_batch() {
            self.checkpoint.position_known(self.position);
            if let Some(writing) = &mut self.writing {
                writing.stage = Stage::Absorbed;
            }
        }
    }

    /// Whether the batch being written is made durable by a checkpoint.
    pub(super) fn batch_is_absorbed(&self) -> bool {
        self.writing.as_ref().is_some_and(|writing| writing.stage == Stage::Absorbed)
    }

    /// A checkpoint became durable; if it absorbed the batch, so is that.
    pub(super) fn checkpoint_absorbed(&mut self) {
        if self.batch_is_absorbed() {
            self.batch_done();
        }
    }

    fn batch_done(&mut self) {
        let Some(Writing { batch, groups, stage, .. }) = self.writing.take() else { return };
        if stage == Stage::Absorbed {
            self.unproved.clear();
        } else if groups > 0 {
            self.unproved = batch.fresh;
        }
        self.proved = self.position.group;
        self.checkpoint.position_known(self.position);
        for cluster in batch.freed {
            self.state.space.release(cluster);
        }
        self.regions.dirty.extend(batch.marks);
        for layer in &batch.hidden {
            self.hiding.remove(layer);
        }
        self.answer(batch.answers);
        self.answer(batch.waiters);
        self.ready.append(&mut self.parked);
        self.collapse_hidden();
    }

    fn answer(&mut self, commands: Vec<OpId>) {
        for command in commands {
            match self.ops.get(command) {
                Some(Op { work: Work::Change(_), .. }) => self.changed(command, Ok(())),
                Some(Op { unrecorded: true, .. }) => self.recorded(command, true),
                Some(_) => self.done(command, Ok(())),
                None => {}
            }
        }
    }

    /// Collapses hidden layers whose delete is durable, some entries with each batch.
    pub(super) fn collapse_hidden(&mut self) {
        let Some(layer) = self.state.collapsible(&self.hiding) else { return };
        let moved = self.state.move_down(layer, u32::MAX, MOVES);
        let is_empty = self.state.layers.get(&layer).is_some_and(|tier| tier.map.is_empty());
        if let Ok(Some(last)) = moved {
            self.record(&Record::Move { layer, last });
            self.open.wanted = true;
        }
        if is_empty && self.state.collapse(layer).is_ok() {
            self.record(&Record::Collapse(layer));
            self.open.wanted = true;
        }
    }

    /// Whether clusters will come from layers that are still to be collapsed.
    pub(super) fn collapse_is_due(&self) -> bool {
        !self.hiding.is_empty() || self.state.collapsible(&self.hiding).is_some()
    }

    /// Nothing can be made durable any more: whoever waits for that is told so.
    fn fail_waiters(&mut self) -> bool {
        let mut waiters = core::mem::take(&mut self.open.waiters);
        waiters.append(&mut self.parked);
        waiters.append(&mut self.open.answers);
        if let Some(writing) = &mut self.writing {
            waiters.append(&mut writing.batch.waiters);
            waiters.append(&mut writing.batch.answers);
            writing.flights.iter_mut().for_each(|flight| waiters.append(&mut flight.answers));
        }
        let any = !waiters.is_empty();
        for waiter in waiters {
            let span = self.ops.get(waiter).and_then(Op::span);
            let fault = span.map_or(Fault::Internal, |span| Fault::Medium { span });
            match self.ops.get(waiter) {
                Some(Op { work: Work::Change(_), .. }) => {
                    self.changed(waiter, Err(crate::Refused::Broken));
                }
                Some(Op { unrecorded: true, .. }) => self.recorded(waiter, false),
                Some(_) => self.done(waiter, Err(fault)),
                None => {}
            }
        }
        any
    }
}

/// The longest run of whole records that is no longer than `most`.
fn prefix(records: &[u8], most: usize) -> usize {
    let mut len = 0;
    while len < records.len() {
        let next = usize::from(le16(records, len + 2));
        if next == 0 || len + next > most {
            break;
        }
        len += next;
    }
    debug_assert!(len > 0 || records.is_empty(), "a record is longer than a group");
    debug_assert!(count(len) <= MAX_GROUP * count(PAYLOAD));
    len
}
