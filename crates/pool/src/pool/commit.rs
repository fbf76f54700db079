//! Group commit: records wait in a batch; a batch is written as groups, one after another, and made
//! durable by one flush of all disks (O2).
//!
//! Whoever wants its records durable waits for the flush. Whoever only changed something waits
//! until its record is written: what was acknowledged then survives the death of this process,
//! though not a power cut. Written batches gather until somebody asks for a flush.

use alloc::collections::BTreeSet;
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
use super::lane::OpId;
use super::op::{Purpose, Work};

/// A batch is written without being asked when it has this many bytes.
const HEAVY: usize = 192 << 10;
/// Writes wait when it has this many.
const FULL: usize = 512 << 10;

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
///   Next ──► Groups ──► Next … ──► Written ──(more records)──► Next
///                                  Written ──(wanted durable)──► Flush ──► done
///   Next ──(journal full)──► Stalled ──(checkpoint done)──► Next
///                            Stalled ──(checkpoint has it)──► Absorbed ──► done
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stage {
    #[default]
    Next,
    Groups {
        left: u32,
        good: [bool; 2],
    },
    /// All its records are in groups that were written, and nobody wants more.
    Written,
    Flush {
        left: u32,
    },
    Stalled,
    Absorbed,
}

/// What is being written, or was and is not durable yet.
#[derive(Debug, Default)]
pub(super) struct Writing {
    pub(super) batch: Batch,
    /// Bytes of its payload that groups have.
    done: usize,
    groups: u32,
    stage: Stage,
}

impl Writing {
    /// Whether nothing happens to it by itself.
    pub(super) fn rests(&self) -> bool {
        self.stage == Stage::Written
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
            return self.done(at, Ok(()));
        }
        self.open.answers.push(at);
    }

    /// Moves the commit on; true if something else may be able to move now.
    pub(super) fn advance_commit(&mut self) -> bool {
        if self.broken {
            return self.fail_waiters();
        }
        match self.writing.as_ref().map(|writing| writing.stage) {
            None | Some(Stage::Written) if self.open.is_due() => {
                let open = core::mem::take(&mut self.open);
                let writing = self.writing.get_or_insert_default();
                writing.batch.append(open);
                // What recovery would have to check is bounded.
                writing.batch.note_size();
                if writing.batch.wanted {
                    self.cut_checkpoint();
                }
                self.next_group();
                true
            }
            Some(Stage::Stalled) => {
                self.next_group();
                false
            }
            _ => false,
        }
    }

    /// Blocks of the journal that are still needed.
    pub(super) fn journal_used(&self) -> u64 {
        self.position.number.wrapping_sub(self.tail)
    }

    fn next_group(&mut self) {
        let used = self.journal_used();
        let Some(writing) = &mut self.writing else { return };
        let rest = &writing.batch.payload[writing.done..];
        let needs_group = !rest.is_empty() || (writing.batch.proof && writing.groups == 0);
        if !needs_group {
            return self.all_written();
        }
        let most = index(MAX_GROUP.min(self.ring / 4)) * PAYLOAD;
        let len = prefix(rest, most.max(MAX_RECORD));
        let blocks = journal::group_blocks(len);
        if used + blocks > self.ring {
            writing.stage = Stage::Stalled;
            return self.stalled();
        }
        let mut bytes = Vec::new();
        let proved =
            if left_out(Rule::ProvedWhenDurable) { self.position.group } else { self.proved };
        let head = GroupHead { pool: self.superblock.mark(), after: self.position, proved };
        journal::encode_group(head, &rest[..len], &mut bytes);
        writing.done += len;
        writing.groups += 1;
        let from = self.position.number;
        self.position.number += blocks;
        self.position.group += 1;
        let left = self.write_group(from, &bytes);
        if let Some(writing) = &mut self.writing {
            writing.stage = Stage::Groups { left, good: [true; 2] };
        }
        if self.journal_used() > self.ring / 2 {
            self.checkpoint.want();
        }
    }

    /// Asks for the writes of both copies, in two where the ring ends.
    fn write_group(&mut self, from: u64, bytes: &[u8]) -> u32 {
        let at = from % self.ring;
        let before_end = bytes.len().min(index(self.ring - at) * BLOCK);
        let (head, tail) = bytes.split_at(before_end);
        let mut writes = 0;
        let copies: &[u8] = if left_out(Rule::SecondCopy) { &[0] } else { &[0, 1] };
        for copy in copies.iter().copied() {
            let Some(area) = self.superblock.area(Use::Journal { copy }) else { continue };
            for (at, bytes) in [(at, head), (0, tail)] {
                if !bytes.is_empty() {
                    let place = Place { block: area.start.block + at, ..area.start };
                    self.write_own(Purpose::Group { copy }, place, bytes.to_vec());
                    writes += 1;
                }
            }
        }
        writes
    }

    pub(super) fn group_written(&mut self, copy: u8, good_write: bool) {
        let Some(Writing { stage: Stage::Groups { left, good }, .. }) = &mut self.writing else {
            return;
        };
        good[usize::from(copy)] &= good_write;
        *left -= 1;
        if *left == 0 {
            // One good copy is enough to be durable; recovery takes each block from either.
            if good.contains(&true) { self.next_group() } else { self.broken = true }
        }
    }

    /// Every record of the batch is in a group that was written.
    fn all_written(&mut self) {
        let Some(writing) = &mut self.writing else { return };
        let (answers, wanted) = (core::mem::take(&mut writing.batch.answers), writing.batch.wanted);
        writing.stage = Stage::Written;
        if wanted {
            let left = self.flush_all(|| Purpose::GroupFlush);
            if let Some(writing) = &mut self.writing {
                writing.stage = Stage::Flush { left };
            }
        }
        self.answer(answers);
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
            let open = core::mem::take(&mut self.open);
            if let Some(writing) = &mut self.writing {
                writing.batch.append(open);
            }
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
            match self.ops.get(command).map(|op| &op.work) {
                Some(Work::Change(_)) => self.changed(command, Ok(())),
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
        }
        let any = !waiters.is_empty();
        for waiter in waiters {
            let span = self.ops.get(waiter).and_then(super::op::Op::span);
            let fault = span.map_or(Fault::Internal, |span| Fault::Medium { span });
            match self.ops.get(waiter).map(|op| &op.work) {
                Some(Work::Change(_)) => self.changed(waiter, Err(crate::Refused::Broken)),
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
