//! Merging the clusters that deleted snapshots left in one entry, so that their space comes back.
//!
//! A collapse moves fragments, never blocks: a logical cluster may end with many physical ones,
//! each with a few valid blocks. Since no block is valid twice in an entry, all of them have room
//! in one: the blocks of the emptiest fragment are copied to the same places of the fullest. To the
//! journal such a copy is a first write (O1), so a crash leaves a block in one place or the other.
//!
//! ```text
//!   Entering ──(all lanes)──► Reading ──(sums match)──► Writing ──► recorded
//! ```
//!
//! Invariants:
//! - one step of one entry at a time, bounded in blocks and in I/O;
//! - everybody who sees the layer is kept off the blocks until they are recorded: a read that
//!   found the old place must not be under way when that is given away;
//! - the entry stays in this layer: whoever would delete an entity that sees it waits in its lane,
//!   and a hidden layer is not collapsed meanwhile.
//!
//! Not here: hidden layers that are about to be collapsed; what they have is merged afterwards.

use alloc::vec::Vec;

use block::{Blocks, Lba, Span};

use crate::bits::Run;
use crate::casts::{count, index, low32};
use crate::entity::{Id, LayerId};
use crate::layout::{BLOCK, Cluster};
use crate::map::Fragment;
use crate::state::{LayerState, PageKey};

use super::Pool;
use super::effect::{Buffer, CommandId};
use super::op::{Op, Part, Purpose, Work, WriteMode};
use super::paging::Holder;
use super::range_queue::{OpId, RangeAccess};

/// Most blocks, and most runs of them, that move in one step.
const BLOCKS: u64 = 256;
const RUNS: usize = 32;

/// The merge under way, and where the next one is looked for.
#[derive(Debug, Default)]
pub(super) struct MergeState {
    step: Option<Step>,
    hand: (LayerId, u32),
    /// A cluster was given up, and nobody asked yet for a commit that frees it.
    owes: bool,
    /// The window that was read to be merged.
    page: Option<PageKey>,
}

/// A step of a merge.
#[derive(Debug)]
struct Step {
    logical: u32,
    /// Its window, which is held.
    page: PageKey,
    into: Cluster,
    /// Entities that see the layer, in whose lanes it is.
    ranges_by_id: Vec<Id>,
    /// Lanes that did not let it in yet.
    waits: usize,
    bytes: Vec<u8>,
}

impl Pool {
    /// Begins the next step, if there is something to merge and nothing speaks against it.
    pub(super) fn advance_merge(&mut self) {
        let is_awaited = !self.waiting_for_pages.is_empty();
        let stays_off = self.broken || (self.is_exporting() && !is_awaited) || self.open.is_full();
        if self.merging.step.is_some() || stays_off || self.unsettled {
            return;
        }
        let is_wanted = !self.redirects() || is_awaited || self.reserve_is_low();
        if is_wanted {
            self.begin_merge();
        }
        if self.merging.step.is_some() || self.paging.is_waiting(Holder::Merge) {
            return;
        }
        if let Some(page) = self.merging.page.take() {
            if is_wanted {
                self.state.tried(page);
            }
            self.let_go(Holder::Merge);
        }
        if core::mem::take(&mut self.merging.owes) {
            self.open.wanted = true;
        }
    }

    /// A window was read that has something to be merged.
    pub(super) fn merge_has_page(&mut self, failed: bool) {
        let Some((layer, window)) = self.merging.page else { return };
        self.merging.hand = (layer, *self.state.logicals(window).start());
        if failed {
            self.state.tried((layer, window));
        }
    }

    fn begin_merge(&mut self) {
        let Some((layer, logical)) = self.state.next_split(self.merging.hand) else {
            if self.merging.page.is_none()
                && let Some(page) = self.state.absent_split()
            {
                self.merging.page = Some(page);
                self.await_pages(Holder::Merge, alloc::vec![page]);
            }
            return;
        };
        self.merging.hand = (layer, logical.saturating_add(1));
        let base = u64::from(logical) << self.state.size.shift();
        let span = Span::new(Lba(base), Blocks(self.state.size.blocks()));
        let (Some(span), Some(_)) = (span, self.plan_merge(layer, logical)) else { return };
        let mut op = Op::new(CommandId(0), Id::NONE, Work::Merge, Vec::new());
        op.layer = layer;
        let at = self.ops.insert(op);
        let ranges_by_id = self.state.seers(layer);
        let mut waits = 0;
        for id in &ranges_by_id {
            let enters =
                self.ranges_by_id.entry(*id).or_default().enter(at, RangeAccess::Move(span));
            waits += usize::from(!enters);
        }
        let page = (layer, self.state.window_of(logical));
        self.state.hold(page);
        self.merging.step =
            Some(Step { logical, page, into: Cluster(0), ranges_by_id, waits, bytes: Vec::new() });
        if waits == 0 {
            self.read_merge(at);
        }
    }

    /// Chooses what moves where; nothing if that cannot be done now.
    fn plan_merge(&self, layer: LayerId, logical: u32) -> Option<(Vec<Part>, Cluster)> {
        if !self.may_merge(layer) {
            return None;
        }
        let layer_state = self.state.layers.get(&layer)?;
        let entry = layer_state.map.get(&logical)?.entry();
        let size = self.state.size;
        let blocks = |part: &&Fragment| part.valid.count(size);
        let into = entry.fragments.iter().max_by_key(blocks)?.cluster;
        let others = entry.fragments.iter().filter(|part| part.cluster != into);
        let from = others.min_by_key(blocks)?;
        if self.is_doubtful(from.cluster) && !self.redirects() {
            return None;
        }
        let (mut parts, mut offset) = (Vec::new(), 0);
        for run in from.valid.runs(Run::of(0..size.blocks())).take(RUNS) {
            let len = u64::from(run.len).min(BLOCKS - u64::from(offset));
            let first = u64::from(run.first);
            let run = Run::of(first..first + len);
            // O5: places that were given up are free when that is durable.
            if len == 0 || run.blocks().any(|block| self.was_given_up(into, block)) {
                break;
            }
            let (way, cluster) = (WriteMode::Read, from.cluster);
            parts.push(Part { way, logical, cluster, run, offset, failed: false });
            offset += low32(len);
        }
        (!parts.is_empty()).then_some((parts, into))
    }

    /// Whether entries of this layer are merged: somebody owns it, or it stays as it is because
    /// several layers need it.
    fn may_merge(&self, layer: LayerId) -> bool {
        let stays =
            |layer_state: &LayerState| layer_state.owner != Id::NONE || layer_state.children > 1;
        self.state.layers.get(&layer).is_some_and(stays) && !self.state.is_damaged(layer)
    }

    /// The layer that a step is about.
    pub(super) fn merged_layer(&self) -> Option<LayerId> {
        self.merging.step.as_ref().map(|step| step.page.0)
    }

    /// Whether merging will give up clusters.
    pub(super) fn merge_is_due(&mut self) -> bool {
        self.merging.step.is_some()
            || self.merging.page.is_some()
            || self.state.splits().any(|(layer, _)| self.may_merge(layer))
            || self.state.absent_split().is_some()
    }

    /// A lane let it in.
    pub(super) fn merge_entered(&mut self, at: OpId) {
        let Some(step) = &mut self.merging.step else { return };
        step.waits -= 1;
        if step.waits == 0 {
            self.read_merge(at);
        }
    }

    /// Those who came before are done: what is to be moved is known for certain.
    fn read_merge(&mut self, at: OpId) {
        let layer = self.ops.get(at).map_or(LayerId::NONE, |op| op.layer);
        let Some(logical) = self.merging.step.as_ref().map(|step| step.logical) else { return };
        let planned = self.plan_merge(layer, logical).filter(|_| self.same_seers(layer));
        let Some((parts, into)) = planned else { return self.leave_merge(at) };
        let blocks = parts.iter().map(|part| usize::from(part.run.len)).sum::<usize>();
        if let Some(op) = self.ops.get_mut(at) {
            op.sums.resize(blocks, 0);
        }
        if let Some(step) = &mut self.merging.step {
            step.into = into;
            step.bytes.resize(blocks * BLOCK, 0);
        }
        for part in parts {
            self.read_part(at, part, Buffer::Own);
        }
        self.request_sums(at);
    }

    /// A part was read.
    pub(super) fn keep_merged(&mut self, offset: u32, bytes: &[u8]) {
        let Some(step) = &mut self.merging.step else { return };
        let from = index(u64::from(offset)) * BLOCK;
        if let Some(into) = step.bytes.get_mut(from..from + bytes.len()) {
            into.copy_from_slice(bytes);
        }
    }

    /// Goes on when everything was read, or written.
    pub(super) fn step_merge(&mut self, at: OpId) {
        let Some(op) = self.ops.get(at) else { return };
        let reading = op.parts.first().is_some_and(|part| part.way == WriteMode::Read);
        let failed = op.parts.iter().any(|part| part.failed);
        let layer = op.layer;
        if !reading {
            return self.finish_merge(at);
        }
        if !failed && self.request_sums(at) {
            return;
        }
        if failed || !self.sums_match(at) {
            // Left as it is until it changes, or until the next import.
            if let Some(step) = &self.merging.step {
                self.state.leave_split((layer, step.logical));
            }
            return self.leave_merge(at);
        }
        self.write_merge(at);
    }

    fn sums_match(&self, at: OpId) -> bool {
        let Some(op) = self.ops.get(at) else { return false };
        op.parts.iter().all(|part| {
            let found = op.sums.iter().skip(index(u64::from(part.offset)));
            part.run.blocks().zip(found).all(|(block, found)| {
                let sum = self.disk_layout.sum_at(self.physical(part.cluster, block));
                self.sums.get(sum) == Some(*found)
            })
        })
    }

    /// Whether those who see the layer are those in whose lanes this step is. A clone, for one, is
    /// made without asking its origin.
    fn same_seers(&self, layer: LayerId) -> bool {
        self.merging.step.as_ref().is_some_and(|step| self.state.seers(layer) == step.ranges_by_id)
    }

    fn write_merge(&mut self, at: OpId) {
        let Some(Step { logical, into, bytes, .. }) = &mut self.merging.step else { return };
        let (logical, into, bytes) = (*logical, *into, core::mem::take(bytes));
        let Some(op) = self.ops.get_mut(at) else { return };
        op.outstanding = low32(count(op.parts.len()));
        for part in &mut op.parts {
            (part.way, part.cluster) = (WriteMode::First, into);
        }
        let (layer, parts) = (op.layer, op.parts.clone());
        for (number, part) in (0..).zip(parts) {
            self.state.pin(layer, logical, into);
            let from = index(u64::from(part.offset)) * BLOCK;
            let bytes = bytes[from..from + usize::from(part.run.len) * BLOCK].to_vec();
            let place = self.disk_layout.place(self.physical(into, part.run.first));
            self.write_own(Purpose::Data { op: at, part: number }, place, bytes);
        }
    }

    /// All was written. The blocks are in their new places, unless somebody new may be reading them
    /// from the old ones.
    fn finish_merge(&mut self, at: OpId) {
        let Some(op) = self.ops.get_mut(at) else { return };
        let layer = op.layer;
        let (parts, sums) = (core::mem::take(&mut op.parts), core::mem::take(&mut op.sums));
        let failed = !self.same_seers(layer) || parts.iter().any(|part| part.failed);
        for part in &parts {
            if !failed {
                self.enter_part(layer, part, part.sums(&sums));
            }
            self.disturb_pass(self.blocks_of(part));
            self.state.unpin(layer, part.logical, part.cluster);
            self.take_given_up();
        }
        if let Some(step) = &self.merging.step {
            self.state.unflatten(layer, step.logical);
        }
        self.merging.owes |= !self.open.freed.is_empty();
        self.leave_merge(at);
    }

    fn leave_merge(&mut self, at: OpId) {
        self.ops.remove(at);
        let step = self.merging.step.take();
        if let Some(step) = &step {
            self.state.release(step.page);
        }
        let ranges_by_id = step.map(|step| step.ranges_by_id);
        for id in ranges_by_id.into_iter().flatten() {
            self.leave_ranges(at, id);
        }
        self.feed_redirects();
        // The layer may have waited for this step.
        self.collapse_hidden();
    }
}
