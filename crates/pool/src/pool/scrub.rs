//! Looking at data that nobody asked for: verifying blocks, and narrowing the doubt after a crash.
//!
//! A region that was dirty at a crash is read through, a step at a time:
//!
//! ```text
//!              ┌─ a block matches its sum: proven
//!   step read ─┼─ it does not: listed, and unproven until it is written or accepted
//!              └─ the read fails: its blocks are read one by one; one that fails again and again
//!                 is listed, as it may be unproven
//! ```
//!
//! A region whose blocks were all looked at is in doubt no more, but for those on the list. No
//! block gets a sum here: only writing it, or having compared every copy, proves it.
//!
//! Not here: when and how fast (the engine asks for one step after another).

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::ops::Range;

use block::{Command, Span};

use crate::bits::Run;
use crate::casts::{index, low32};
use crate::checkpoint::Regions;
use crate::checksums::NO_SUM;
use crate::entity::Id;
use crate::layout::Cluster;
use crate::mutation::{Rule, disabled};

use super::Pool;
use super::effect::{Buffer, CommandId};
use super::op::{Op, Part, Work, WriteMode};
use super::range_queue::{OpId, RangeAccess};

/// Blocks of one step.
const STEP: u64 = 256;
/// How often a block is read that a disk fails to read.
const TRIES: u8 = 3;

/// How far the doubtful regions were read through.
#[derive(Clone, Debug, Default)]
pub(super) struct Pass {
    /// First block of the next step; blocks are only looked at in the first doubtful region that
    /// is not kept.
    next: u64,
    /// First block of the step under way.
    step: Option<u64>,
    /// A write to its blocks ended meanwhile: it says nothing.
    disturbed: bool,
    /// Blocks before this one are read one by one.
    singly: u64,
    /// How often the block at hand could not be read.
    failed: u8,
    /// Regions that stay in doubt, because the list has no room for their blocks.
    kept: BTreeSet<u32>,
    /// The list has room again: when the pass is through, it begins anew with those.
    has_room: bool,
}

impl Pass {
    /// The list has room again. Regions that are kept are not looked at before the pass begins
    /// anew: it is past blocks of theirs that are on no list.
    pub(super) fn room_came(&mut self) {
        self.has_room = !self.kept.is_empty();
    }
}

impl Pool {
    /// Reads blocks and checks them, without handing them out. It ends as a read does.
    pub fn verify(&mut self, token: CommandId, id: Id, span: Span) {
        let op = Op::new(token, id, Work::Verify(span), Vec::new());
        self.take(op, Command::Read { span }, None);
    }

    /// Looks at the next blocks of the doubtful regions. False if there are none, or a step is
    /// under way. When the last step of a region is done, it is in doubt no more from the next
    /// checkpoint on, but for its blocks that are unproven.
    pub fn narrow_doubt(&mut self, token: CommandId) -> bool {
        if self.pass.step.is_some() {
            return false;
        }
        let Some(first) = self.next_doubtful() else { return false };
        (self.pass.next, self.pass.step, self.pass.disturbed) = (first, Some(first), false);
        self.enter(Op::new(token, Id::NONE, Work::Pass(first), Vec::new()), RangeAccess::Free);
        self.run();
        true
    }

    /// The next used block of a doubtful region; regions that are through lose their doubt.
    fn next_doubtful(&mut self) -> Option<u64> {
        let shift = self.state.size.shift();
        let per_region = self.state.size.per_region();
        let next = |pool: &Pool| pool.regions.doubtful.difference(&pool.pass.kept).next().copied();
        loop {
            let Some(region) = next(self) else {
                self.pass.next = 0;
                if !core::mem::take(&mut self.pass.has_room) {
                    return None;
                }
                self.pass.kept.clear();
                continue;
            };
            let first = u64::from(region) * u64::from(per_region);
            let end = (first + u64::from(per_region)).min(u64::from(self.state.space.clusters()));
            let mut at = self.pass.next.max(first << shift);
            while at < end << shift {
                if self.state.space.is_taken(Cluster(low32(at >> shift))) {
                    return Some(at);
                }
                at = ((at >> shift) + 1) << shift;
            }
            self.regions.doubtful.remove(&region);
            self.pass.next = 0;
        }
    }

    /// A write ended: what a step read before says nothing.
    pub(super) fn disturb_pass(&mut self, blocks: Range<u64>) {
        if let Some(step) = self.pass.step {
            self.pass.disturbed |= blocks.end > step && blocks.start < step + STEP;
        }
    }

    pub(super) fn start_pass(&mut self, at: OpId, first: u64) {
        let blocks = self.pass_blocks(first);
        let inside = first & (self.state.size.blocks() - 1);
        let run = Run::of(inside..inside + blocks);
        let cluster = Cluster(low32(first >> self.state.size.shift()));
        let part =
            Part { way: WriteMode::Read, logical: 0, cluster, run, offset: 0, failed: false };
        if let Some(op) = self.ops.get_mut(at) {
            op.parts.push(part);
        }
        self.request_sums(at);
        self.step_op(at);
    }

    fn pass_blocks(&self, first: u64) -> u64 {
        if first < self.pass.singly {
            return 1;
        }
        STEP.min(self.state.size.blocks() - (first & (self.state.size.blocks() - 1)))
    }

    /// First the known sums, then the blocks, then the list of those that differ. A block that was
    /// just written for the first time has the right sum, though its data may be on its way; when
    /// any write ended meanwhile, the step is taken again.
    pub(super) fn step_pass(&mut self, at: OpId, first: u64) {
        let blocks = self.pass_blocks(first);
        let failed = |op: &Op| op.parts.iter().any(|part| part.failed);
        if self.ops.get(at).is_some_and(failed) {
            return self.pass_failed(at, first..first + blocks);
        }
        if self.request_sums(at) {
            return;
        }
        let Some(op) = self.ops.get_mut(at) else { return };
        if op.parts.len() == 1 {
            let known = |at| self.sums.get(self.disk_layout.sum_at(at)).unwrap_or(0);
            op.sums.extend((first..first + blocks).map(known));
            // The buffer's sums are found behind the known ones.
            let part = Part { offset: low32(blocks), ..op.parts[0] };
            op.sums.resize(index(blocks) * 2, 0);
            return self.read_part(at, part, Buffer::Own);
        }
        let sums = core::mem::take(&mut op.sums);
        let (known, found) = sums.split_at(index(blocks));
        self.pass.failed = 0;
        let mut has_room = true;
        if !self.pass.disturbed {
            for ((physical, known), found) in (first..).zip(known).zip(found) {
                // A block without a sum was never written, or its sum is lost: no matter of doubt.
                let differs = known != found && *known != NO_SUM;
                if differs && !self.is_fresh(physical..physical + 1) {
                    has_room &= self.list(physical, *found);
                }
            }
        }
        self.end_pass(at, first + blocks, has_room);
    }

    /// Takes a block down as one that may be unproven; false if there is no room.
    fn list(&mut self, physical: u64, found: u32) -> bool {
        if disabled(Rule::ProveByComparison) {
            self.sums.set(self.disk_layout.sum_at(physical), found);
            return true;
        }
        let unproven = &mut self.regions.unproven;
        let has_room = unproven.len() < Regions::MOST_UNPROVEN || unproven.contains(&physical);
        if has_room {
            unproven.insert(physical);
        }
        has_room
    }

    /// A step could not be read. An error concerns its own block, and may be over the next time.
    fn pass_failed(&mut self, at: OpId, Range { start: first, end }: Range<u64>) {
        if end - first > 1 {
            self.pass.singly = end;
        } else {
            self.pass.failed += 1;
        }
        if self.pass.failed < TRIES {
            return self.end_pass(at, first, true);
        }
        self.pass.failed = 0;
        let has_room = self.list(first, 0);
        self.end_pass(at, first + 1, has_room);
    }

    fn end_pass(&mut self, at: OpId, next: u64, has_room: bool) {
        if let Some(step) = self.pass.step.take()
            && !has_room
        {
            let per_region = u64::from(self.state.size.per_region());
            self.pass.kept.insert(low32((step >> self.state.size.shift()) / per_region));
        }
        self.pass.next = if self.pass.disturbed { self.pass.next } else { next };
        self.pass.disturbed = false;
        self.done(at, Ok(()));
    }
}
