//! Group commit: records wait in a batch; a batch is written as groups, a few at once, and made
//! durable by one flush of all disks (O2).
//!
//! Whoever wants its records durable waits for the flush. Whoever only changed something waits
//! until its record is written: what was acknowledged then survives the death of this process,
//! though not a power cut. Written batches gather until somebody asks for a flush.
//!
//! Recovery stops at the first group that is missing, so groups count as written in their order.

use alloc::vec::Vec;

use block::IoError;

use crate::casts::{count, index};
use crate::codec::le16;
use crate::journal::{self, GroupHead, MAX_GROUP, PAYLOAD};
use crate::layout::{BLOCK, Place, Use};
use crate::mutation::{Rule, disabled};
use crate::record::MAX_RECORD;

use super::Pool;
use super::batch::{Batch, GroupWrite, Sealed, Stage, Unproved, Writing};
use super::op::{Op, Purpose, Repair, Work};
use super::range_queue::OpId;

/// Most groups being written at once.
const AT_ONCE: usize = 4;
/// Answers that a group must bring for each that is being written: small groups cost as many writes
/// as large ones. In tests few, so that histories have several.
const WORTH: usize = if cfg!(test) { 1 } else { 4 };

impl Pool {
    /// The command ends when everything recorded so far is durable.
    pub(super) fn wait_for_commit(&mut self, at: OpId) {
        self.open.on_durable.push(at);
        self.open.wanted = true;
    }

    /// The command ends when everything recorded so far is written.
    pub(super) fn wait_for_writing(&mut self, at: OpId) {
        if disabled(Rule::AnswerWhenWritten) {
            return self.answer(alloc::vec![at], true);
        }
        self.open.on_written.push(at);
    }

    /// Moves the commit on; true if something else may be able to move now.
    pub(super) fn advance_commit(&mut self) -> bool {
        if self.broken {
            return self.fail_waiters();
        }
        self.flush_sealed();
        let seals = self.may_seal();
        if !seals && !self.may_gather() {
            self.next_groups();
            return false;
        }
        self.join();
        if seals {
            self.cut_checkpoint();
            if let Some(writing) = &mut self.writing {
                writing.stage = Stage::Sealing;
            }
        }
        self.next_groups();
        true
    }

    /// Whether the next batch is to be made durable, and can be.
    fn may_seal(&self) -> bool {
        let writing = self.writing.as_ref();
        let wanted = self.open.wanted || writing.is_some_and(|writing| writing.batch.wanted);
        wanted
            && self.sealed.is_none()
            && writing.is_none_or(|writing| writing.stage == Stage::Gathering)
    }

    /// Whether a group of what waits is worth its writes.
    fn may_gather(&self) -> bool {
        let is_ready = self.writing.as_ref().is_none_or(|writing| {
            let takes_more = !writing.has_rest() && !writing.batch.is_full();
            writing.stage == Stage::Gathering && takes_more
        });
        let (on_written, under_way) = (self.open.on_written.len(), self.flights.len());
        is_ready && on_written > 0 && on_written >= WORTH * under_way && under_way < AT_ONCE
    }

    /// Whether nothing happens by itself.
    pub(super) fn commit_rests(&self) -> bool {
        let rests = |writing: &Writing| {
            writing.stage == Stage::Gathering && !writing.has_rest() && !writing.batch.wanted
        };
        self.flights.is_empty() && self.sealed.is_none() && self.writing.as_ref().is_none_or(rests)
    }

    /// The open batch joins what is being written.
    fn join(&mut self) {
        self.record_overwrites();
        let open = core::mem::take(&mut self.open);
        let writing = self.writing.get_or_insert_default();
        writing.batch.append(open);
        writing.joined = self.ahead.close();
        // What recovery would have to check is bounded.
        writing.batch.note_size();
    }

    /// Blocks of the journal that are still needed.
    pub(super) fn journal_used(&self) -> u64 {
        self.position.number.wrapping_sub(self.tail)
    }

    /// Writes what is left of the batch, as far as it may be under way at once.
    fn next_groups(&mut self) {
        while let Some(writing) = &self.writing {
            let is_sealing = writing.stage == Stage::Sealing;
            // O3: an empty group, if there is no other that says so.
            let proves =
                is_sealing && writing.batch.needs_proof_group && writing.says < Some(self.proved);
            if writing.stage == Stage::Absorbed || !writing.has_rest() && !is_sealing {
                return;
            }
            if !writing.has_rest() && !proves {
                return self.seal();
            }
            if self.flights.len() == AT_ONCE || !self.next_group() {
                return;
            }
        }
    }

    /// All records of the batch are in groups.
    fn seal(&mut self) {
        if let Some(Writing { batch, says, joined, .. }) = self.writing.take() {
            let (position, flushes) = (self.position, None);
            self.sealed = Some(Sealed { batch, says, joined, position, flushes });
            self.flush_sealed();
        }
    }

    /// Makes the sealed batch durable when its groups are written, and all data they speak of.
    fn flush_sealed(&mut self) {
        let Some(sealed) = &self.sealed else { return };
        let under_way = count(self.flights.len());
        let is_written = self.position.group - under_way >= sealed.position.group
            && (self.ahead.is_over(sealed.joined) || disabled(Rule::DataBeforeFlush));
        if is_written && sealed.flushes.is_none() {
            let flushes = self.flush_all(|| Purpose::GroupFlush);
            if let Some(sealed) = &mut self.sealed {
                sealed.flushes = Some(flushes);
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
            // Nobody may write over a group that is still being written, or not durable.
            if self.flights.is_empty() && self.sealed.is_none() {
                self.stalled();
            }
            return false;
        }
        let mut bytes = Vec::new();
        let proved =
            if disabled(Rule::ProvedWhenDurable) { self.position.group } else { self.proved };
        let head = GroupHead { pool: self.superblock.mark(), after: self.position, proved };
        journal::encode_group(head, &rest[..len], &mut bytes);
        writing.done += len;
        writing.says = Some(proved);
        let on_written = if writing.has_rest() {
            Vec::new()
        } else {
            core::mem::take(&mut writing.batch.on_written)
        };
        let from = self.position.number;
        self.position.number += blocks;
        self.position.group += 1;
        let left = self.write_group(from, &bytes);
        let good = left.map(|writes| writes > 0);
        self.flights.push_back(GroupWrite { left, good, on_written });
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
        let copies: &[u8] = if disabled(Rule::SecondCopy) { &[0] } else { &[0, 1] };
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
        let since = index(self.position.group - group);
        let Some(nth) = self.flights.len().checked_sub(since + 1) else { return };
        let (copy, flight) = (usize::from(copy), &mut self.flights[nth]);
        flight.left[copy] -= 1;
        flight.good[copy] &= good;
        if flight.is_over() && !flight.is_written() {
            self.broken = true;
            return;
        }
        let on_written = self.written_groups();
        self.answer(on_written, true);
    }

    /// Commands whose groups are written, and all groups before; groups that are over are
    /// forgotten.
    fn written_groups(&mut self) -> Vec<OpId> {
        let mut on_written = Vec::new();
        for flight in &mut self.flights {
            if flight.is_written() {
                on_written.append(&mut flight.on_written);
            } else if !disabled(Rule::AnswerInOrder) {
                break;
            }
        }
        while self.flights.front().is_some_and(GroupWrite::is_over) {
            self.flights.pop_front();
        }
        on_written
    }

    pub(super) fn group_flushed(&mut self, good: bool) {
        let Some(Sealed { flushes: Some(left), .. }) = &mut self.sealed else { return };
        *left -= 1;
        self.broken |= !good;
        if *left == 0
            && !self.broken
            && let Some(Sealed { mut batch, says, joined, position, .. }) = self.sealed.take()
        {
            self.proved = position.group;
            let is_open = |unproved: &Unproved| Some(unproved.group) > says;
            self.unproved.retain(|one| is_open(one) && !disabled(Rule::ProvedByLater));
            if says.is_some() {
                let blocks = core::mem::take(&mut batch.fresh);
                self.unproved.push(Unproved { group: position.group, blocks });
            }
            self.checkpoint.position_known(joined, position);
            self.batch_done(batch);
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
        let Some(writing) = &mut self.writing else { return };
        if self.checkpoint.was_cut_at(writing.joined) {
            self.checkpoint.position_known(writing.joined, self.position);
            writing.stage = Stage::Absorbed;
        }
    }

    /// Whether the batch being written is made durable by a checkpoint.
    pub(super) fn batch_is_absorbed(&self) -> bool {
        self.writing.as_ref().is_some_and(|writing| writing.stage == Stage::Absorbed)
    }

    /// A checkpoint became durable; if it absorbed the batch, so is that.
    pub(super) fn checkpoint_absorbed(&mut self) {
        if let Some(writing) = self.writing.take_if(|writing| writing.stage == Stage::Absorbed) {
            self.proved = self.position.group;
            self.unproved.clear();
            self.batch_done(writing.batch);
        }
    }

    fn batch_done(&mut self, batch: Batch) {
        for cluster in batch.freed {
            self.state.space.release(cluster);
        }
        self.regions.dirty.extend(batch.marks);
        for layer in &batch.hidden {
            self.hiding.remove(layer);
        }
        self.answer(batch.on_written, true);
        self.answer(batch.on_durable, true);
        self.ready.append(&mut self.waiting_for_commit);
        self.feed_redirects();
        self.collapse_hidden();
    }

    /// What these commands waited for has come, or never will.
    fn answer(&mut self, commands: Vec<OpId>, good: bool) {
        for command in commands {
            let span = self.ops.get(command).and_then(Op::span);
            let fault = span.map_or(IoError::Internal, |span| IoError::Medium { span });
            match self.ops.get(command) {
                Some(Op { work: Work::Change(_), .. }) => {
                    self.changed(command, good.then_some(()).ok_or(crate::Refused::Broken));
                }
                Some(Op { unrecorded: true, .. }) => self.recorded(command, good),
                Some(Op { repair: Repair::Disowned, .. }) if good => self.begin_repair(command),
                Some(_) => self.done(command, good.then_some(()).ok_or(fault)),
                None => {}
            }
        }
    }

    /// Nothing can be made durable any more: whoever waits for that is told so.
    fn fail_waiters(&mut self) -> bool {
        let mut on_durable = core::mem::take(&mut self.open.on_durable);
        on_durable.append(&mut self.waiting_for_commit);
        on_durable.append(&mut self.waiting_for_pages);
        on_durable.append(&mut self.open.on_written);
        self.paging.take_waiters(&mut on_durable);
        let writing = self.writing.as_mut().map(|writing| &mut writing.batch);
        let sealed = self.sealed.as_mut().map(|sealed| &mut sealed.batch);
        for batch in writing.into_iter().chain(sealed) {
            on_durable.append(&mut batch.on_durable);
            on_durable.append(&mut batch.on_written);
        }
        self.flights.iter_mut().for_each(|flight| on_durable.append(&mut flight.on_written));
        let any = !on_durable.is_empty();
        self.answer(on_durable, false);
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
