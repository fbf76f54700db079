//! Believing what is on the disk: unproven blocks whose copies were all compared, and, at an
//! operator's word, blocks that went bad or whose sums were lost.
//!
//! ```text
//!   parked (a record must be proved first) ──► blocks read ──► sums set ──► recorded, durable
//! ```

use alloc::vec::Vec;

use block::{Command, IoError, Lba, Span};

use crate::casts::index;
use crate::entity::Id;

use super::Pool;
use super::effect::{Buffer, CommandId};
use super::op::{Op, Part, Work, WriteMode};
use super::range_queue::OpId;
use super::read::by_cluster;

/// Which blocks are believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AcceptScope {
    /// Those that may have been being written at a crash.
    Unproven,
    /// All.
    Any,
}

impl Pool {
    /// Gives those of these blocks that are unproven a checksum, and leaves all others as they
    /// are: a block that went bad stays so. It ends as a command does, when that is durable.
    pub fn accept_unproven(&mut self, token: CommandId, id: Id, span: Span) {
        self.take_accept(token, id, (span, AcceptScope::Unproven));
    }

    /// Gives each of these blocks the checksum of what is on the disk, whatever that is. For
    /// blocks that no copy has, at an operator's word. It ends as a command does, when that is
    /// durable.
    pub fn accept(&mut self, token: CommandId, id: Id, span: Span) {
        self.take_accept(token, id, (span, AcceptScope::Any));
    }

    fn take_accept(&mut self, token: CommandId, id: Id, (span, belief): (Span, AcceptScope)) {
        let op = Op::new(token, id, Work::Accept(span, belief), Vec::new());
        self.take(op, Command::Compare { span }, None);
    }

    pub(super) fn start_accept(&mut self, at: OpId, span: Span) {
        let entity = self.ops.get(at).and_then(|op| self.state.entities.get(&op.id));
        let Some(layer) = entity.map(|entity| entity.layer) else {
            return self.done(at, Err(IoError::Unreachable));
        };
        if self.await_seen(at, layer, span) {
            return;
        }
        let (mut parts, mut pieces) = (Vec::new(), core::mem::take(&mut self.pieces));
        let mut is_fresh = false;
        for (logical, within, offset) in by_cluster(span, self.state.size.shift()) {
            self.state.pieces(layer, logical, within, &mut pieces);
            for piece in &pieces {
                let (Some(cluster), run) = (piece.at, piece.run) else { continue };
                let first = self.physical(cluster, run.first);
                is_fresh |= self.is_fresh(first..first + u64::from(run.len));
                let offset = offset + u32::from(run.first - within.first);
                let way = WriteMode::Read;
                parts.push(Part { way, logical, cluster, run, offset, failed: false });
            }
        }
        self.pieces = pieces;
        if is_fresh {
            // O3: what a record says that is not proved yet is not changed.
            (self.open.needs_proof_group, self.open.wanted) = (true, true);
            return self.waiting_for_commit.push(at);
        }
        if let Some(op) = self.ops.get_mut(at) {
            op.sums.resize(index(span.len().0), 0);
        }
        let is_empty = parts.is_empty();
        for part in parts {
            self.read_part(at, part, Buffer::Own);
        }
        self.request_sums(at);
        if is_empty {
            self.wait_for_commit(at);
        }
    }

    /// Everything was read.
    pub(super) fn step_accept(&mut self, at: OpId, (span, belief): (Span, AcceptScope)) {
        let Some(op) = self.ops.get(at) else { return };
        if let Some(part) = op.parts.iter().find(|part| part.failed) {
            let start = Lba(span.start().0 + u64::from(part.offset));
            let failed = Span::new(start, block::Blocks(u64::from(part.run.len))).unwrap_or(span);
            return self.done(at, Err(IoError::Medium { span: failed }));
        }
        if self.request_sums(at) {
            return;
        }
        let Some(op) = self.ops.get_mut(at) else { return };
        let (parts, sums) = (core::mem::take(&mut op.parts), core::mem::take(&mut op.sums));
        for part in &parts {
            let found = part.sums(&sums);
            for (block, found) in part.run.blocks().zip(found) {
                let physical = self.physical(part.cluster, block);
                let sum = self.disk_layout.sum_at(physical);
                let is_believed = belief == AcceptScope::Any || self.is_in_doubt(physical);
                if is_believed && self.sums.get(sum) != Some(*found) {
                    self.believe(physical, *found);
                }
            }
        }
        self.wait_for_commit(at);
    }

    /// Gives a block the sum of what it holds; durable with the next flush.
    pub(super) fn believe(&mut self, physical: u64, found: u32) {
        self.sums.set(self.disk_layout.sum_at(physical), found);
        self.sumless.remove(&physical);
        self.proven(physical..physical + 1);
        self.note_overwrite(physical, &[found]);
        self.disturb_pass(physical..physical + 1);
    }

    /// Says whether nobody else has a copy of a replica. There is none to compare with then: a
    /// block that is unproven is believed when it is read, and [`super::Effect::Believed`] tells.
    pub fn set_sole(&mut self, id: Id, is_sole: bool) {
        if is_sole {
            self.sole.insert(id);
        } else {
            self.sole.remove(&id);
        }
    }
}
