//! Looking at data that nobody asked for: verifying blocks, and ending the doubt after a crash.
//!
//! Not here: when and how fast (the engine asks for one step after another).

use alloc::vec::Vec;

use block::{Command, Span};

use crate::bits::Run;
use crate::entity::Id;
use crate::layout::Cluster;
use crate::widen::{index, low32};

use super::Pool;
use super::effect::{Buffer, Token};
use super::lane::{Claim, OpId};
use super::op::{Op, Part, Way, Work};

/// Blocks of one step.
const STEP: u64 = 256;

/// How far the doubtful regions were read through.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Resum {
    /// First block of the next step; blocks are only looked at in the first doubtful region.
    next: u64,
    /// First block of the step under way.
    step: Option<u64>,
    /// A write to its blocks ended meanwhile, or more blocks are in doubt: it says nothing.
    disturbed: bool,
}

impl Pool {
    /// Reads blocks and checks them, without handing them out. It ends as a read does.
    pub fn verify(&mut self, token: Token, id: Id, span: Span) {
        let op = Op::new(token, id, Work::Verify(span), Vec::new());
        self.take(op, Command::Read { span }, None);
    }

    /// Doubt begins anew somewhere.
    pub(super) fn resum_again(&mut self) {
        self.resum = Resum { next: 0, disturbed: true, ..self.resum };
    }

    /// Gives the next blocks of the doubtful regions new sums. False if there are none, or a step
    /// is under way. When the last step of a region is done, its doubt ends with the next
    /// checkpoint.
    pub fn resum(&mut self, token: Token) -> bool {
        if self.resum.step.is_some() {
            return false;
        }
        let Some(first) = self.next_doubtful() else { return false };
        self.resum = Resum { next: first, step: Some(first), disturbed: false };
        self.enter(Op::new(token, Id::NONE, Work::Resum(first), Vec::new()), Claim::Free);
        self.run();
        true
    }

    /// The next used block of a doubtful region; regions that are through lose their doubt.
    fn next_doubtful(&mut self) -> Option<u64> {
        let shift = self.state.size.shift();
        let per_region = self.state.size.per_region();
        while let Some(region) = self.regions.doubtful.first().copied() {
            let first = u64::from(region) * u64::from(per_region);
            let end = (first + u64::from(per_region)).min(u64::from(self.state.space.clusters()));
            let mut at = self.resum.next.max(first << shift);
            while at < end << shift {
                if self.state.space.is_taken(Cluster(low32(at >> shift))) {
                    return Some(at);
                }
                at = ((at >> shift) + 1) << shift;
            }
            self.regions.doubtful.remove(&region);
            self.resum.next = 0;
        }
        None
    }

    /// A write ended: what a step read before says nothing.
    pub(super) fn disturb_resum(&mut self, part: &Part) {
        if let Some(step) = self.resum.step {
            let first = self.physical(part.cluster, part.run.first);
            let end = first + u64::from(part.run.len);
            self.resum.disturbed |= end > step && first < step + STEP;
        }
    }

    pub(super) fn start_resum(&mut self, at: OpId, first: u64) {
        let blocks = self.resum_blocks(first);
        let inside = first & (self.state.size.blocks() - 1);
        let run = Run::of(inside..inside + blocks);
        let cluster = Cluster(low32(first >> self.state.size.shift()));
        let part = Part { way: Way::Read, logical: 0, cluster, run, offset: 0, failed: false };
        if let Some(op) = self.ops.get_mut(at) {
            op.parts.push(part);
        }
        self.request_sums(at);
        self.step_op(at);
    }

    fn resum_blocks(&self, first: u64) -> u64 {
        STEP.min(self.state.size.blocks() - (first & (self.state.size.blocks() - 1)))
    }

    /// First the known sums, then the blocks, then new sums where they differ. A block that was
    /// just written for the first time has the right sum, though its data may be on its way; when
    /// any write ended meanwhile, the step is taken again.
    pub(super) fn step_resum(&mut self, at: OpId, first: u64) {
        let failed = |op: &Op| op.parts.iter().any(|part| part.failed);
        if self.ops.get(at).is_some_and(failed) {
            // Its doubt ends as well: reading it will fail.
            return self.end_resum(at, first + self.resum_blocks(first));
        }
        if self.request_sums(at) {
            return;
        }
        let blocks = self.resum_blocks(first);
        let Some(op) = self.ops.get_mut(at) else { return };
        if op.parts.len() == 1 {
            let known = |at| self.sums.get(self.geography.sum_at(at)).unwrap_or(0);
            op.sums.extend((first..first + blocks).map(known));
            // The buffer's sums are found behind the known ones.
            let part = Part { offset: low32(blocks), ..op.parts[0] };
            op.sums.resize(index(blocks) * 2, 0);
            return self.read_part(at, part, Buffer::Own);
        }
        let sums = core::mem::take(&mut op.sums);
        let (before, found) = sums.split_at(index(blocks));
        let is_undisturbed = !self.resum.disturbed;
        for (nth, physical) in (first..first + blocks).enumerate().filter(|_| is_undisturbed) {
            if found[nth] != before[nth] && !self.is_fresh(physical..physical + 1) {
                self.sums.set(self.geography.sum_at(physical), found[nth]);
            }
        }
        self.end_resum(at, first + blocks);
    }

    fn end_resum(&mut self, at: OpId, next: u64) {
        let next = if self.resum.disturbed { self.resum.next } else { next };
        self.resum = Resum { next, step: None, disturbed: false };
        self.done(at, Ok(()));
    }
}
