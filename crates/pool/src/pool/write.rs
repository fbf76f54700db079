//! Writes, discards and repairs: choose the way of each block, then write it.
//!
//! A write is planned without side effects. If anything must be durable first, it is parked and
//! planned anew after the next batch.
//!
//! Blocks new to the map are entered there, and recorded, when their data is sent: both are written
//! at once, and the write ends when both are (O1). Until then nobody sees these blocks: whatever
//! overlaps waits in the lane, and so do snapshots.

use core::ops::Range;

use block::{Blocks, Command, IoError, Lba, Span};

use crate::bits::Run;
use crate::casts::{count, low32};
use crate::entity::LayerId;
use crate::layout::Cluster;
use crate::map::{BlockState, Packed};
use crate::mutation::{Rule, disabled};
use crate::record::{self, FirstWrite, MAX_FIRST, Record};

use super::Pool;
use super::batch::Batch;
use super::effect::{Buffer, Effect};
use super::op::{self, Part, Pending, Purpose, Repair, Work, WriteMode};
use super::paging::Holder;
use super::range_queue::OpId;
use super::read::by_cluster;
use super::redirect::Needed;

/// A cluster that is still to be allocated.
pub(super) const NEW: Cluster = Cluster(u32::MAX);

/// Windows of maps that are discarded in one go, but for the first one. In tests none, so that
/// histories are cut between.
const DISCARDED: u32 = if cfg!(test) { 0 } else { 15 };

/// Why a write cannot start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// The open batch must be durable first.
    Batch,
    /// A group must prove the newest batch first (O3).
    Proof,
    /// This region must be marked first (O4).
    Mark(u32),
    /// Entries must be merged first: there is no other space (O9).
    Space,
    /// There is no space, nor will there be.
    NoSpace,
    /// A part of its map must be read first.
    Map,
    /// A part of a map below must be read first.
    MapBelow,
    /// Changes of maps must be written first.
    Checkpoint,
}

impl Pool {
    pub(super) fn start_write(&mut self, at: OpId, span: Span) {
        let Some(op) = self.ops.get_mut(at) else { return };
        let Some(entity) = self.state.entities.get(&op.id) else {
            return self.done(at, Err(IoError::Unreachable));
        };
        op.layer = entity.layer;
        let repair = matches!(op.work, Work::Repair(_));
        let (layer, done) = (op.layer, op.done);
        let mut parts = core::mem::take(&mut op.parts);
        parts.clear();
        let planned = if repair {
            self.plan_repair(layer, span, &mut parts)
        } else {
            self.plan_rest(layer, (span, done), &mut parts)
        };
        match planned {
            Ok(()) if parts.is_empty() => return self.done(at, Ok(())),
            Ok(()) => {
                if repair && self.prepare_repair(at, &parts) {
                    return;
                }
                self.allocate(&mut parts);
                self.pin_redirects(layer, &parts);
                if let Some(op) = self.ops.get_mut(at) {
                    op.parts = parts;
                }
                self.issue(at);
                return self.record_ahead(at);
            }
            Err(Wait::NoSpace) => return self.done(at, Err(IoError::NoSpace)),
            Err(Wait::Space) => return self.await_space(at),
            Err(Wait::Map) => {
                let mut missing = alloc::vec::Vec::new();
                self.state.absent_in(layer, self.windows_of(span), &mut missing);
                return self.await_pages(Holder::Op(at), missing);
            }
            Err(Wait::MapBelow) => {
                self.await_seen(at, layer, span);
                return;
            }
            Err(Wait::Checkpoint) => return self.paging.waiting_for_checkpoint.push(at),
            Err(Wait::Batch) => {}
            Err(Wait::Proof) => self.open.needs_proof_group = true,
            Err(Wait::Mark(region)) => self.mark(region),
        }
        self.open.wanted = true;
        self.waiting_for_commit.push(at);
    }

    fn mark(&mut self, region: u32) {
        if self.open.marks.insert(region) {
            Record::Dirty { region }.encode(&mut self.open.payload);
        }
    }

    /// Chooses the way of every block.
    pub(super) fn plan(
        &mut self,
        layer: LayerId,
        span: Span,
        parts: &mut alloc::vec::Vec<Part>,
    ) -> Result<(), Wait> {
        if self.open.is_full() {
            return Err(Wait::Batch);
        }
        let Some(layer_state) = self.state.layers.get(&layer) else { return Err(Wait::NoSpace) };
        let mut needed = Needed::default();
        for (logical, run, offset) in by_cluster(span, self.state.size.shift()) {
            let entry = layer_state.map.get(&logical);
            if entry.is_none() && self.state.is_absent(layer, logical) {
                return Err(Wait::Map);
            }
            if let Some(cluster) = self.plain_overwrite(entry, run) {
                self.check_mark(cluster)?;
                let way = WriteMode::InPlace;
                parts.push(Part { way, logical, cluster, run, offset, failed: false });
                continue;
            }
            let from = parts.len();
            for (block, offset) in run.blocks().zip(offset..) {
                let (way, cluster) = self.way_of(entry, block)?;
                match parts[from..].last_mut() {
                    Some(last) if (last.way, last.cluster) == (way, cluster) => last.run.len += 1,
                    _ => {
                        let run = Run { first: block, len: 1 };
                        parts.push(Part { way, logical, cluster, run, offset, failed: false });
                    }
                }
            }
            needed.count(&parts[from..]);
        }
        let changes_maps = parts.iter().any(|part| part.way != WriteMode::InPlace);
        if changes_maps && (self.state.resident.is_over_budget() || self.unsettled) {
            return Err(Wait::Checkpoint);
        }
        self.find_space(layer, needed)
    }

    /// The common case: one fragment has all blocks, and all are durable.
    fn plain_overwrite(&self, entry: Option<&Packed>, run: Run) -> Option<Cluster> {
        let cluster = entry?.covering(run).filter(|_| !self.redirects())?;
        let first = self.physical(cluster, run.first);
        let blocks = first..first + u64::from(run.len);
        let is_plain = !self.is_fresh(blocks.clone()) && !self.is_sumless(blocks);
        is_plain.then_some(cluster)
    }

    /// Whether a block of the range was first written in a batch that is not proved yet.
    pub(super) fn is_fresh(&self, blocks: Range<u64>) -> bool {
        if disabled(Rule::ProveBeforeRewrite) {
            return false;
        }
        let unproved = self.unproved.iter().map(|unproved| &unproved.blocks);
        self.batches()
            .map(|batch| &batch.fresh)
            .chain(unproved)
            .any(|set| !set.is_empty() && set.range(blocks.clone()).next().is_some())
    }

    fn check_mark(&self, cluster: Cluster) -> Result<(), Wait> {
        let region = self.region(cluster);
        let marked = self.regions.dirty.contains(&region) || disabled(Rule::MarkBeforeOverwrite);
        if marked { Ok(()) } else { Err(Wait::Mark(region)) }
    }

    fn way_of(&self, entry: Option<&Packed>, block: u16) -> Result<(WriteMode, Cluster), Wait> {
        let says = entry.map_or(BlockState::Nothing, |entry| entry.says(block));
        if let (BlockState::At(_), Some(entry), true) = (says, entry, self.redirects()) {
            return self.redirect(entry, block);
        }
        if let BlockState::At(cluster) = says {
            let physical = self.physical(cluster, block);
            if self.is_fresh(physical..physical + 1) {
                return Err(Wait::Proof);
            }
            if self.is_sumless(physical..physical + 1) {
                return Ok((WriteMode::First, cluster));
            }
            self.check_mark(cluster)?;
            return Ok((WriteMode::InPlace, cluster));
        }
        let Some(vacant) = entry.and_then(|entry| entry.vacant(block)) else {
            return Ok((WriteMode::First, NEW));
        };
        // O5: a block given up by a record is free when the record is durable.
        let given_up = self.was_given_up(vacant, block);
        if given_up { Err(Wait::Batch) } else { Ok((WriteMode::First, vacant)) }
    }

    /// Whether a record that is not durable gave the block up.
    pub(super) fn was_given_up(&self, cluster: Cluster, block: u16) -> bool {
        let physical = self.physical(cluster, block);
        self.batches().any(|batch| batch.cleared.contains(&physical))
    }

    /// Those that are not durable.
    fn batches(&self) -> impl Iterator<Item = &Batch> {
        let writing = self.writing.as_ref().map(|writing| &writing.batch);
        let sealed = self.sealed.as_ref().map(|sealed| &sealed.batch);
        core::iter::once(&self.open).chain(writing).chain(sealed)
    }

    /// A repair writes blocks where they are, in whatever layer that is. No region is marked for
    /// it: its blocks have no sum meanwhile, and so are never in doubt.
    fn plan_repair(
        &mut self,
        layer: LayerId,
        span: Span,
        parts: &mut alloc::vec::Vec<Part>,
    ) -> Result<(), Wait> {
        let mut pieces = core::mem::take(&mut self.pieces);
        let mut planned = Ok(());
        for (logical, within, offset) in by_cluster(span, self.state.size.shift()) {
            if !self.state.pieces(layer, logical, within, &mut pieces) {
                planned = Err(Wait::MapBelow);
                break;
            }
            for piece in &pieces {
                let Some(cluster) = piece.at else { continue };
                let run = piece.run;
                let first = self.physical(cluster, run.first);
                if self.is_fresh(first..first + u64::from(run.len)) {
                    planned = Err(Wait::Proof);
                }
                let offset = offset + u32::from(run.first - within.first);
                let way = WriteMode::InPlace;
                parts.push(Part { way, logical, cluster, run, offset, failed: false });
            }
        }
        self.pieces = pieces;
        planned
    }

    /// Has it made durable that the blocks of a repair have no sum; false if that is done.
    fn prepare_repair(&mut self, at: OpId, parts: &[Part]) -> bool {
        let Some(op) = self.ops.get_mut(at).filter(|op| op.repair == Repair::Planned) else {
            return false;
        };
        op.repair = Repair::Disowned;
        for part in parts {
            self.disown(self.blocks_of(part));
        }
        self.wait_for_commit(at);
        true
    }

    /// A crash leaves the blocks of this repair as bad ones: they may be written.
    pub(super) fn begin_repair(&mut self, at: OpId) {
        if let Some(op) = self.ops.get_mut(at) {
            op.repair = Repair::Ready;
            self.ready.push(at);
        }
    }

    /// Gives clusters to the parts that need one.
    fn allocate(&mut self, parts: &mut [Part]) {
        let mut given: Option<(u32, Cluster)> = None;
        for part in parts {
            if part.cluster == NEW {
                let cluster = match given {
                    Some((logical, cluster)) if logical == part.logical => cluster,
                    // Planned for: there is one.
                    _ => self.state.space.take_any().unwrap_or(NEW),
                };
                given = Some((part.logical, cluster));
                part.cluster = cluster;
            }
            if part.way == WriteMode::InPlace {
                let region = self.region(part.cluster);
                *self.overwriting.entry(region).or_default() += 1;
                self.hot.insert(region);
            }
        }
    }

    /// Enters and records the blocks that are new to the map.
    fn record_ahead(&mut self, at: OpId) {
        let Some(op) = self.ops.get_mut(at) else { return };
        if op.parts.iter().all(|part| part.way != WriteMode::First) {
            return;
        }
        op.unrecorded = true;
        op.ahead = Some(self.ahead.begin());
        let layer = op.layer;
        let (parts, sums) = (core::mem::take(&mut op.parts), core::mem::take(&mut op.sums));
        for part in parts.iter().filter(|part| part.way == WriteMode::First) {
            self.enter_part(layer, part, part.sums(&sums));
        }
        if let Some(op) = self.ops.get_mut(at) {
            (op.parts, op.sums) = (parts, sums);
        }
        self.wait_for_writing(at);
    }

    fn issue(&mut self, at: OpId) {
        let Some(op) = self.ops.get_mut(at) else { return };
        op.outstanding = low32(count(op.parts.len()));
        let (token, parts) = (op.token, op.parts.len());
        for number in 0..parts {
            let Some(part) = self.ops.get(at).map(|op| op.parts[number]) else { return };
            let place = self.disk_layout.place(self.physical(part.cluster, part.run.first));
            let purpose = Purpose::Data { op: at, part: low32(count(number)) };
            let pending = Pending { purpose, bytes: alloc::vec::Vec::new() };
            let io = op::io(self.ios.insert(pending));
            let from = Buffer::Caller { token, block: part.offset };
            let blocks = u32::from(part.run.len);
            self.effects.push_back(Effect::Write { io, place, blocks, from });
        }
    }

    pub(super) fn finish_write(&mut self, at: OpId) {
        if self.enter_redirects(at) {
            return;
        }
        let Some(op) = self.ops.get_mut(at) else { return };
        let parts = core::mem::take(&mut op.parts);
        let sums = core::mem::take(&mut op.sums);
        let span = op.span();
        let durable =
            matches!(op.work, Work::Block(Command::Write { fua: true, .. }) | Work::Repair(_));
        let mut failed = None;
        for part in &parts {
            match part.way {
                WriteMode::InPlace => self.overwritten(part, part.sums(&sums)),
                // What is there is nobody's, though its record may count.
                WriteMode::First if part.failed && !self.broken => {
                    self.disown(self.blocks_of(part));
                }
                WriteMode::First
                | WriteMode::Read
                | WriteMode::Redirect
                | WriteMode::Redirected => {}
            }
            self.disturb_pass(self.blocks_of(part));
            if part.failed && failed.is_none() {
                failed = Some(part);
            }
        }
        let failed = failed.copied();
        if let Some(op) = self.ops.get_mut(at) {
            (op.parts, op.sums) = (parts, sums);
        }
        match (failed, span) {
            (Some(part), Some(span)) => {
                let start = Lba(span.start().0 + u64::from(part.offset));
                let lost = Span::new(start, Blocks(u64::from(part.run.len))).unwrap_or(span);
                self.done(at, Err(IoError::Medium { span: lost }));
            }
            _ if self.goes_on(at) => self.ready.push(at),
            _ if durable => self.wait_for_commit(at),
            _ => self.done(at, Ok(())),
        }
    }

    /// Its record is written, or never will be.
    pub(super) fn recorded(&mut self, at: OpId, good: bool) {
        let Some(op) = self.ops.get_mut(at) else { return };
        op.unrecorded = false;
        // What was written in its place is there all the same, and has its sum.
        let is_of_record =
            |part: &&mut Part| matches!(part.way, WriteMode::First | WriteMode::Redirected);
        let of_record = op.parts.iter_mut().filter(is_of_record);
        of_record.for_each(|part| part.failed |= !good);
        self.step_op(at);
    }

    /// Takes in blocks that are new to the map: their sums, where they are, and the record of that.
    pub(super) fn enter_part(&mut self, layer: LayerId, part: &Part, sums: &[u32]) {
        let Part { logical, cluster, run, .. } = *part;
        self.set_sums(part, sums);
        self.state.make_valid(layer, logical, cluster, run);
        let first = self.physical(cluster, run.first);
        self.open.fresh.extend(first..first + u64::from(run.len));
        self.record_first(FirstWrite { layer, logical, cluster, first: run.first }, sums);
        self.take_given_up();
    }

    fn record_first(&mut self, mut at: FirstWrite, sums: &[u32]) {
        for sums in sums.chunks(usize::from(MAX_FIRST)) {
            record::put_first_write(&mut self.open.payload, at, sums);
            at.first = at.first.saturating_add(MAX_FIRST);
        }
        self.open.note_size();
    }

    pub(super) fn start_discard(&mut self, at: OpId, span: Span, durable: bool) {
        let Some(op) = self.ops.get(at) else { return };
        let Some(entity) = self.state.entities.get(&op.id) else {
            return self.done(at, Err(IoError::Unreachable));
        };
        let layer = entity.layer;
        if op.done == 0 && !self.state.may_discard(layer, span.start().0..span.end().0) {
            return self.done(at, Err(IoError::NoSpace));
        }
        let (first, end, before) = (span.start().0, span.end().0, op.done > 0);
        let mut from = first + op.done;
        let mut recorded = false;
        while let Some(blocks) = self.next_discard(layer, from..end) {
            let done = blocks.start - first;
            if let Some(op) = self.ops.get_mut(at).filter(|op| op.done < done) {
                // That much is recorded, or there was nothing: its pages it needs no more.
                op.done = done;
                self.let_go(Holder::Op(at));
            }
            // Others may have taken the room while this one waited.
            if !self.state.may_discard(layer, blocks.clone()) {
                return self.done(at, Err(IoError::NoSpace));
            }
            if self.state.resident.is_over_budget() {
                return self.paging.waiting_for_checkpoint.push(at);
            }
            let mut missing = alloc::vec::Vec::new();
            self.state.needs_discard(layer, blocks.clone(), &mut missing);
            if !missing.is_empty() {
                return self.await_pages(Holder::Op(at), missing);
            }
            self.state.discard(layer, blocks.clone());
            let (start, len) = (blocks.start, blocks.end - blocks.start);
            self.record(&Record::Discard { layer, start, len });
            (from, recorded) = (blocks.end, true);
        }
        if before && !recorded {
            // Something to wait for, behind the records before: it says again what they say.
            self.record(&Record::Discard { layer, start: first, len: 1 });
            recorded = true;
        }
        if !recorded && !durable {
            return self.done(at, Ok(()));
        }
        if durable { self.wait_for_commit(at) } else { self.wait_for_writing(at) }
    }

    /// The next blocks of a range that are discarded in one go: what is in a few windows.
    fn next_discard(&self, layer: LayerId, range: Range<u64>) -> Option<Range<u64>> {
        if range.is_empty() {
            return None;
        }
        let window = self.state.next_window(layer, self.state.window_at(range.start))?;
        let start = range.start.max(self.state.window_start(window));
        let end = range.end.min(self.state.window_end(window.saturating_add(DISCARDED)));
        (start < end).then_some(start..end)
    }

    /// Adds a record of a change that was just made to the state.
    pub(super) fn record(&mut self, record: &Record) {
        record.encode(&mut self.open.payload);
        self.open.note_size();
        self.take_given_up();
    }

    /// What a change gave up belongs to the batch with its record (O5).
    pub(super) fn take_given_up(&mut self) {
        if disabled(Rule::ReuseWhenDurable) {
            self.state.freed.drain(..).for_each(|cluster| self.state.space.release(cluster));
            self.state.cleared.clear();
        }
        self.open.freed.append(&mut self.state.freed);
        self.open.cleared.extend(self.state.cleared.drain(..));
    }
}
