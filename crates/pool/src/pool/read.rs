//! Reads: find the blocks, read them, check them.

use block::{Command, IoError, Lba, Span};

use crate::bits::Run;
use crate::casts::{count, index, low32};
use crate::entity::LayerId;
use crate::layout::Cluster;
use crate::mutation::{Rule, disabled};

use super::Pool;
use super::effect::{Buffer, Effect};
use super::op::{self, Op, Part, Pending, Purpose, Work, WriteMode};
use super::paging::Holder;
use super::range_queue::{OpId, RangeAccess};

/// The runs of a span in each logical cluster, with the offset in the span.
pub(super) fn by_cluster(span: Span, shift: u8) -> impl Iterator<Item = (u32, Run, u32)> {
    let (mut at, end) = (span.start().0, span.end().0);
    core::iter::from_fn(move || {
        if at == end {
            return None;
        }
        let logical = at >> shift;
        let first = at - (logical << shift);
        let len = end.min((logical + 1) << shift) - at;
        let offset = low32(at - span.start().0);
        at += len;
        Some((low32(logical), Run::of(first..first + len), offset))
    })
}

impl Pool {
    /// Takes a read. Most can be sent at once, and nothing that was just found is looked for again.
    pub(super) fn take_read(&mut self, op: Op, span: Span) {
        let token = op.token;
        match self.check(&op, Command::Read { span }, None) {
            Err(fault) => self.effects.push_back(Effect::Done { token, result: Err(fault) }),
            Ok(layer) => {
                let (at, may_run) = self.line_up(op, RangeAccess::Read(span));
                if may_run {
                    self.read_in(at, span, layer);
                }
            }
        }
        self.run_after_read();
    }

    pub(super) fn start_read(&mut self, at: OpId, span: Span) {
        let entity = self.ops.get(at).and_then(|op| self.state.entities.get(&op.id));
        match entity.map(|entity| entity.layer) {
            Some(layer) => self.read_in(at, span, layer),
            None => self.done(at, Err(IoError::Unreachable)),
        }
    }

    /// Reads what a layer shows of a span.
    fn read_in(&mut self, at: OpId, span: Span, layer: LayerId) {
        let Some(op) = self.ops.get_mut(at) else { return };
        op.layer = layer;
        op.sums.resize(index(span.len().0), 0);
        let is_sent = match self.only_part(span, layer) {
            Some(part) => {
                let into = self.place_in_buffer(at, 0);
                self.read_part(at, part, into);
                true
            }
            None => self.read_pieces(at, span, layer),
        };
        if is_sent {
            self.expect_sums(at);
            self.step_op(at);
        }
    }

    /// The place of a span, if all of it lies in one row.
    fn only_part(&self, span: Span, layer: LayerId) -> Option<Part> {
        if self.is_split(span) {
            return None;
        }
        let (logical, run, offset) = by_cluster(span, self.state.size.shift()).next()?;
        let cluster = self.state.covering(layer, logical, run)?;
        Some(Part { way: WriteMode::Read, logical, cluster, run, offset, failed: false })
    }

    /// Whose buffer takes what is read from a block of a command on.
    fn place_in_buffer(&self, at: OpId, block: u32) -> Buffer {
        match self.ops.get(at) {
            Some(Op { work: Work::Verify(_), .. }) | None => Buffer::Own,
            Some(op) => Buffer::Caller { token: op.token, block },
        }
    }

    /// Reads a span piece by piece; false if a part of a map must be read first.
    fn read_pieces(&mut self, at: OpId, span: Span, layer: LayerId) -> bool {
        // Nothing is begun before all of it is known. Of one cluster a flat table may know what is
        // not in memory; of several one may, and another not.
        if self.is_split(span) && self.await_seen(at, layer, span) {
            return false;
        }
        let mut pieces = core::mem::take(&mut self.pieces);
        let mut is_known = true;
        for (logical, run, offset) in by_cluster(span, self.state.size.shift()) {
            is_known = self.state.pieces(layer, logical, run, &mut pieces);
            if !is_known {
                self.await_seen(at, layer, span);
                break;
            }
            for piece in &pieces {
                let offset = offset + u32::from(piece.run.first - run.first);
                let into = self.place_in_buffer(at, offset);
                match (piece.at, into) {
                    (None, Buffer::Own) => {}
                    (None, Buffer::Caller { token, block }) => {
                        let blocks = u32::from(piece.run.len);
                        self.effects.push_back(Effect::Zero { token, block, blocks });
                    }
                    (Some(cluster), into) => {
                        let (way, run) = (WriteMode::Read, piece.run);
                        let part = Part { way, logical, cluster, run, offset, failed: false };
                        self.read_part(at, part, into);
                    }
                }
            }
        }
        self.pieces = pieces;
        is_known
    }

    pub(super) fn is_read(&self, op: OpId) -> bool {
        let work = self.ops.get(op).map(|op| &op.work);
        matches!(work, Some(Work::Block(Command::Read { .. })))
    }

    /// As [`Pool::run`], when nothing but a read has gone on since: most change nothing that
    /// anything else waits for, and so nothing else need be looked at.
    pub(super) fn run_after_read(&mut self) {
        let is_missed = !self.ready.is_empty() || self.is_exporting() || self.holds_any();
        if is_missed || self.sums.is_heavy() || self.state.resident.is_over() {
            self.run();
        }
    }

    pub(super) fn region(&self, cluster: Cluster) -> u32 {
        cluster.0 / self.state.size.per_region()
    }

    pub(super) fn physical(&self, cluster: Cluster, block: u16) -> u64 {
        (u64::from(cluster.0) << self.state.size.shift()) + u64::from(block)
    }

    /// Where a part lies.
    pub(super) fn blocks_of(&self, part: &Part) -> core::ops::Range<u64> {
        let first = self.physical(part.cluster, part.run.first);
        first..first + u64::from(part.run.len)
    }

    /// Whether a span lies in several logical clusters.
    fn is_split(&self, span: Span) -> bool {
        let shift = self.state.size.shift();
        span.start().0 >> shift != (span.end().0 - 1) >> shift
    }

    /// The windows of maps that a span lies in.
    pub(super) fn windows_of(&self, span: Span) -> core::ops::RangeInclusive<u32> {
        self.state.window_at(span.start().0)..=self.state.window_at(span.end().0 - 1)
    }

    /// Has everything read that the layer shows of a span; false if nothing is missing.
    pub(super) fn await_seen(&mut self, at: OpId, layer: LayerId, span: Span) -> bool {
        let mut missing = alloc::vec::Vec::new();
        self.state.absent_below(layer, self.windows_of(span), &mut missing);
        let any = !missing.is_empty();
        if any {
            self.await_pages(Holder::Op(at), missing);
        }
        any
    }

    pub(super) fn read_part(&mut self, at: OpId, part: Part, into: Buffer) {
        let place = self.disk_layout.place(self.physical(part.cluster, part.run.first));
        let Some(op) = self.ops.get_mut(at) else { return };
        let number = low32(count(op.parts.len()));
        op.parts.push(part);
        op.outstanding += 1;
        let purpose = Purpose::Data { op: at, part: number };
        let pending = Pending { purpose, bytes: alloc::vec::Vec::new() };
        let io = op::io(self.ios.insert(pending));
        let blocks = u32::from(part.run.len);
        self.effects.push_back(Effect::Read { io, place, blocks, into });
    }

    /// Notes the sums that a read should find; those that are not in memory are read.
    fn expect_sums(&mut self, at: OpId) {
        let shift = self.state.size.shift();
        let Some(Op { parts, sums, unsure, .. }) = self.ops.get_mut(at) else { return };
        let mut missing = false;
        for part in parts {
            let first = (u64::from(part.cluster.0) << shift) + u64::from(part.run.first);
            let expected = sums.iter_mut().skip(index(u64::from(part.offset)));
            for (block, sum) in (first..first + u64::from(part.run.len)).zip(expected) {
                match self.sums.get(self.disk_layout.sum_at(block)) {
                    Some(known) => *sum = known,
                    None => missing = true,
                }
            }
        }
        *unsure = missing;
        if missing {
            self.request_sums(at);
        }
    }

    /// Has every page read that the parts need; true if one is missing.
    pub(super) fn request_sums(&mut self, at: OpId) -> bool {
        let mut missing = false;
        let parts = self.ops.get(at).map_or(0, |op| op.parts.len());
        for nth in 0..parts {
            let Some(part) = self.ops.get(at).and_then(|op| op.parts.get(nth).copied()) else {
                break;
            };
            let mut last = None;
            for block in part.run.blocks() {
                let sum = self.disk_layout.sum_at(self.physical(part.cluster, block));
                if last != Some(sum.page) && self.sums.get(sum).is_none() {
                    self.load_page(sum.page, Some(at));
                    last = Some(sum.page);
                    missing = true;
                }
            }
        }
        missing
    }

    pub(super) fn finish_read(&mut self, at: OpId) {
        let Some(op) = self.ops.get(at) else { return };
        if !op.unsure {
            return self.done(at, Ok(()));
        }
        let Some(span) = op.span() else { return };
        let lba = |offset: u32| Lba(span.start().0 + u64::from(offset));
        if let Some(part) = op.parts.iter().find(|part| part.failed) {
            let start = lba(part.offset);
            let failed = Span::new(start, block::Blocks(u64::from(part.run.len))).unwrap_or(span);
            return self.done(at, Err(IoError::Medium { span: failed }));
        }
        let mut missing = false;
        let (mut bad, mut unproven) = (None, None);
        let is_sole = matches!(op.work, Work::Block(_)) && self.sole.contains(&op.id);
        let is_verify = matches!(op.work, Work::Verify(_));
        let mut believed = alloc::vec::Vec::new();
        for part in &op.parts {
            for (block, offset) in part.run.blocks().zip(part.offset..) {
                let found = op.sums[index(u64::from(offset))];
                let physical = self.physical(part.cluster, block);
                let known = self.sums.get(self.disk_layout.sum_at(physical));
                if known == Some(found) || disabled(Rule::VerifyReads) {
                    continue;
                }
                missing |= known.is_none();
                let in_doubt = self.is_in_doubt(physical);
                if in_doubt && is_sole {
                    believed.push((physical, found));
                    continue;
                }
                let run = if in_doubt { &mut unproven } else { &mut bad };
                match run {
                    None => *run = Some((offset, offset + 1)),
                    Some((_, end)) if *end == offset => *end += 1,
                    Some(_) => {}
                }
            }
        }
        if missing {
            // Given up by the cache since it was asked for.
            self.request_sums(at);
            return;
        }
        if bad.is_none() && !believed.is_empty() {
            let (id, blocks) = (op.id, count(believed.len()));
            self.effects.push_back(Effect::Believed { id, span, blocks: block::Blocks(blocks) });
            for (physical, found) in believed {
                self.believe(physical, found);
            }
        }
        let span = |(from, to)| Span::between(lba(from), lba(to));
        // A scrub looks at the rest again, and so wants what comes first.
        let is_later = |a: Span, b: Span| a.start() > b.start();
        let fault = match (bad.and_then(span), unproven.and_then(span)) {
            (Some(bad), Some(unproven)) if is_verify && is_later(bad, unproven) => {
                Some(IoError::Unproven { span: unproven })
            }
            (Some(span), _) => Some(IoError::Checksum { span }),
            (None, unproven) => unproven.map(|span| IoError::Unproven { span }),
        };
        self.done(at, fault.map_or(Ok(()), Err));
    }

    pub(super) fn is_doubtful(&self, cluster: Cluster) -> bool {
        self.regions.doubtful.contains(&self.region(cluster))
    }
}
