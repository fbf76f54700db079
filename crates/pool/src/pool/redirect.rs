//! Overwrites on disks that may tear a block: the new version goes to another place, and the map
//! changes when it is there (O9).
//!
//! A redirected overwrite is a first write that is recorded when its data has been written. Until
//! its record counts, the block is where it was, untouched: so a crash leaves the old version or
//! the new one, and a write that fails leaves the old one.
//!
//! ```text
//!   planned ──(pinned, data sent)──► written ──(entered, recorded)──► record written: answered
//!                                       └──(failed)──► as it was
//! ```
//!
//! Block `i` of a logical cluster is always at place `i` of a physical one, so an entry that is
//! overwritten has a second cluster, and blocks move from one to the other. As long as there is
//! space, that stays so. When free clusters run short, entries are merged, one after the other:
//! second clusters count as free space that others may have to wait for. Some are kept in any case,
//! so that every overwrite ends.
//!
//! Not here: choosing the other ways (`write`), merging (`merge`).

use block::{Command, Span};

use crate::casts::low32;
use crate::entity::LayerId;
use crate::layout::Cluster;
use crate::map::Packed;
use crate::mutation::{Rule, disabled};

use super::op::{Part, Work, WriteMode};
use super::range_queue::OpId;
use super::read::by_cluster;
use super::write::{NEW, Wait};
use super::{Pool, TornWrites};

/// One cluster in this many is kept for redirected overwrites.
const RESERVE: u32 = 64;
/// Of all clusters, one in this many may be a second one.
const SECOND: u32 = 4;
/// In a small pool it is this many, or one in this many if that is less.
const LEAST: u32 = 16;

/// Clusters that a write needs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Needed {
    first: u32,
    redirect: u32,
}

impl Needed {
    /// Counts for the parts of one logical cluster: they need one at most.
    pub(super) fn count(&mut self, parts: &[Part]) {
        match parts.iter().find(|part| part.cluster == NEW).map(|part| part.way) {
            Some(WriteMode::Redirect) => self.redirect += 1,
            Some(_) => self.first += 1,
            None => {}
        }
    }
}

impl Pool {
    /// Says what a power cut may leave of overwritten blocks from now on, on any of the disks.
    pub fn set_torn_writes(&mut self, torn_writes: TornWrites) {
        self.limits.torn_writes = torn_writes;
        let clusters = self.state.space.clusters();
        self.state.reserve = match torn_writes {
            TornWrites::Possible if clusters < LEAST => 1,
            TornWrites::Possible => (clusters / RESERVE).max(LEAST).min(clusters / LEAST),
            TornWrites::Impossible => 0,
        };
    }

    /// Whether overwrites are redirected.
    pub(super) fn redirects(&self) -> bool {
        self.limits.torn_writes == TornWrites::Possible && !disabled(Rule::RedirectOverwrites)
    }

    /// Whether so few clusters are free, or so many entries have several, that some must be merged.
    pub(super) fn reserve_is_low(&self) -> bool {
        let space = &self.state.space;
        let free = space.free() + space.pending();
        free < self.state.promised + self.state.reserve
            || self.state.second_clusters() > space.clusters() / SECOND
    }

    /// Where a block goes that is somewhere in this entry.
    pub(super) fn redirect(
        &self,
        entry: &Packed,
        block: u16,
    ) -> Result<(WriteMode, Cluster), Wait> {
        let mut is_vacant = false;
        for cluster in entry.vacancies(block) {
            // O5: a block given up by a record is free when the record is durable.
            if !self.was_given_up(cluster, block) {
                return Ok((WriteMode::Redirect, cluster));
            }
            is_vacant = true;
        }
        if is_vacant { Err(Wait::Batch) } else { Ok((WriteMode::Redirect, NEW)) }
    }

    /// Plans what is left of a write: all of it, or the first logical cluster if there is no space
    /// for more. One spare cluster serves any write so, one step after the other.
    pub(super) fn plan_rest(
        &mut self,
        layer: LayerId,
        (span, done): (Span, u64),
        parts: &mut alloc::vec::Vec<Part>,
    ) -> Result<(), Wait> {
        let start = block::Lba(span.start().0 + done);
        let Some(mut rest) = Span::between(start, span.end()) else { return Ok(()) };
        let mut planned = self.plan(layer, rest, parts);
        if self.redirects() && matches!(planned, Err(Wait::NoSpace | Wait::Space | Wait::Batch)) {
            let first = by_cluster(rest, self.state.size.shift()).next();
            let len = first.map_or(0, |(_, run, _)| u64::from(run.len));
            if len < rest.len().0 {
                rest = Span::new(start, block::Blocks(len)).unwrap_or(rest);
                parts.clear();
                planned = self.plan(layer, rest, parts);
            }
        }
        for part in parts.iter_mut() {
            part.offset += low32(done);
        }
        planned
    }

    /// Whether there are clusters for a write, or will be.
    pub(super) fn find_space(&mut self, layer: LayerId, needed: Needed) -> Result<(), Wait> {
        let Needed { first, redirect } = needed;
        let is_there = match (first, redirect) {
            (0, 0) => true,
            (0, more) => self.state.may_redirect(more),
            (more, 0) => self.state.may_allocate(layer, more),
            // If not, the write is done one logical cluster after the other.
            (first, redirect) => self.state.may_allocate(layer, first + redirect),
        };
        if is_there {
            return Ok(());
        }
        let is_merged = self.redirects() && self.merge_is_due() || self.collapse_awaits_merge();
        Err(if self.state.space.pending() > 0 || self.collapse_is_due() {
            Wait::Batch
        } else if is_merged {
            Wait::Space
        } else {
            Wait::NoSpace
        })
    }

    /// Has a write wait until clusters were merged. Meanwhile merges may pass it, and nobody else.
    pub(super) fn await_space(&mut self, at: OpId) {
        let Some(id) = self.ops.get(at).map(|op| op.id) else { return };
        self.waiting_for_pages.push(at);
        self.open.wanted = true;
        if let Some(ranges) = self.ranges_by_id.get_mut(&id) {
            ranges.idle(at, &mut self.ready);
        }
    }

    /// Clusters were merged or became free: whoever waits for that is tried again.
    pub(super) fn feed_redirects(&mut self) {
        for at in core::mem::take(&mut self.waiting_for_pages) {
            let Some(id) = self.ops.get(at).map(|op| op.id) else { continue };
            let goes_on = self.ranges_by_id.get_mut(&id).is_some_and(|ranges| ranges.resume(at));
            let waiting = if goes_on { &mut self.ready } else { &mut self.waiting_for_pages };
            waiting.push(at);
        }
    }

    /// Keeps the places of redirected blocks until they are entered.
    pub(super) fn pin_redirects(&mut self, layer: LayerId, parts: &[Part]) {
        for part in parts.iter().filter(|part| part.way == WriteMode::Redirect) {
            self.state.pin(layer, part.logical, part.cluster);
        }
    }

    /// All data of a write has been written, or that failed. Enters and records the redirected
    /// blocks that are there; true if that must be written first.
    pub(super) fn enter_redirects(&mut self, at: OpId) -> bool {
        let Some(op) = self.ops.get_mut(at) else { return false };
        if op.parts.iter().all(|part| part.way != WriteMode::Redirect) {
            return false;
        }
        let layer = op.layer;
        let (mut parts, sums) = (core::mem::take(&mut op.parts), core::mem::take(&mut op.sums));
        let mut entered = false;
        for part in parts.iter_mut().filter(|part| part.way == WriteMode::Redirect) {
            part.way = WriteMode::Redirected;
            // Nothing is done on account of what may never be written.
            part.failed |= self.broken || self.state.is_damaged(layer);
            if !part.failed {
                self.enter_part(layer, part, part.sums(&sums));
                entered = true;
            }
            self.state.unpin(layer, part.logical, part.cluster);
            self.take_given_up();
        }
        if let Some(op) = self.ops.get_mut(at) {
            (op.parts, op.sums, op.unrecorded) = (parts, sums, entered);
        }
        if entered {
            self.wait_for_writing(at);
        }
        entered
    }

    /// Whether a write that was planned in part has more to do.
    pub(super) fn goes_on(&mut self, at: OpId) -> bool {
        let Some(op) = self.ops.get_mut(at) else { return false };
        let Work::Block(Command::Write { span, .. }) = op.work else { return false };
        let end = |part: &Part| u64::from(part.offset) + u64::from(part.run.len);
        let done = op.parts.iter().map(end).max().unwrap_or(0);
        op.done = done;
        done < span.len().0
    }
}
