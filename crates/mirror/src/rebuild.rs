//! Rebuilds: bringing stale children in sync; and comparing copies in sync where they may differ.
//!
//! ```text
//!   Stale ──► gets writes, and its note ──► chunks of what it missed ──► flush ──► all? ──► record
//!                                              ▲                          │ no
//!                                              └──────────────────────────┘
//! ```
//!
//! Invariants:
//! - A region leaves the map of a child only after a flush of the child that was sent when all its
//!   chunks were copied, and only if no write failed in it since (**D2**).
//! - A write that is sent while a region is copied reaches source and child, before or after the
//!   copy of its blocks, never between its read and its write (**W2**).
//! - A region in doubt is not copied to a stale child before it is out of doubt.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use block::{Blocks, Command, Completion, Lba, Span};
use model::{
    ChildEvent, ChildState, FaultReason, Problem, Rebuild, RebuildEvent, RebuildId, RebuildKind,
    RebuildPlan, RebuildState, RegionSet, SetChange,
};

use crate::api::{Buffer, Effect};
use crate::chunk::{ChunkCopy, CopyPurpose};
use crate::context::{Pending, Purpose};
use crate::mirror::Mirror;
use crate::replicas::{Asked, Child, ChildSlot, reason};
use crate::throttle::HostLoad;

/// Regions copied before a flush makes them count.
const CHECKPOINT: u64 = 64;

/// Chunks of regions under way.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    /// By region: the next block, chunks under way, whether all were well.
    regions: BTreeMap<u64, Part>,
}

#[derive(Clone, Copy, Debug)]
struct Part {
    next: Lba,
    end: Lba,
    left: u32,
    fine: bool,
}

impl Parts {
    fn begin(&mut self, region: u64, span: Span) {
        let part = Part { next: span.start(), end: span.end(), left: 0, fine: true };
        self.regions.insert(region, part);
    }

    /// The next chunk of a region that was begun.
    fn chunk(&mut self, most: Blocks) -> Option<(u64, Span)> {
        let (region, part) = self.regions.iter_mut().find(|(_, part)| part.next < part.end)?;
        let end = Lba(part.next.0.saturating_add(most.0.max(1))).min(part.end);
        let span = Span::between(part.next, end)?;
        part.next = end;
        part.left += 1;
        Some((*region, span))
    }

    /// A chunk has ended. A region of which one did not end well is begun anew later.
    pub(crate) fn ended(&mut self, region: u64, fine: bool) {
        let Some(part) = self.regions.get_mut(&region) else { return };
        part.left = part.left.saturating_sub(1);
        part.fine &= fine;
        if !part.fine {
            part.next = part.end;
            if part.left == 0 {
                self.regions.remove(&region);
            }
        }
    }

    /// Takes out the regions that are all copied.
    pub(crate) fn take_finished(&mut self) -> Vec<u64> {
        let finished = |part: &Part| part.fine && part.left == 0 && part.next >= part.end;
        let regions: Vec<u64> = self
            .regions
            .iter()
            .filter(|(_, part)| finished(part))
            .map(|(region, _)| *region)
            .collect();
        self.regions.retain(|_, part| !finished(part));
        regions
    }

    /// What was copied of these does not count.
    fn spoil(&mut self, regions: &RegionSet) {
        for (region, part) in &mut self.regions {
            if regions.contains(*region) {
                part.fine = false;
            }
        }
        // One that has no chunk under way would never end.
        self.regions.retain(|_, part| part.fine || part.left > 0);
    }
}

/// A rebuild under way.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) rebuild: Rebuild,
    pub(crate) parts: Parts,
    /// Copied, but no flush was sent since.
    copied: RegionSet,
    /// Copied before the flush that is under way.
    flushing: Option<RegionSet>,
    cursor: u64,
    total: u64,
    /// Blocks that were written.
    pub(crate) moved: u64,
    /// It has everything; the record is to say so.
    pub(crate) proposed: bool,
}

impl Job {
    /// Regions that are in doubt have to be copied again.
    pub(crate) fn redo(&mut self, regions: &RegionSet) {
        self.parts.spoil(regions);
        for region in regions.iter() {
            self.copied.remove(region);
            if let Some(flushing) = &mut self.flushing {
                flushing.remove(region);
            }
        }
    }

    fn is_running(&self) -> bool {
        *self.rebuild.state() == RebuildState::Running {}
    }
}

/// Comparing copies in sync.
#[derive(Debug, Default)]
pub(crate) struct Resync {
    pub(crate) parts: Parts,
    /// Regions that hosts wait for.
    urgent: Vec<u64>,
}

impl Resync {
    pub(crate) fn hurry(&mut self, regions: Vec<u64>) {
        if self.urgent.len() < 64 {
            self.urgent.extend(regions);
        }
    }

    pub(crate) fn redo(&mut self, regions: &RegionSet) {
        self.parts.spoil(regions);
    }
}

impl Mirror {
    /// Regions that are in doubt have to be copied again.
    pub(crate) fn redo(&mut self, regions: &RegionSet) {
        self.jobs.values_mut().for_each(|job| job.redo(regions));
        self.resync.redo(regions);
    }

    /// Begins, checks and ends rebuilds.
    pub(crate) fn pump_rebuilds(&mut self) {
        if !self.base.service.is_open() || self.base.service.is_down() {
            return;
        }
        if self.base.replicas.required_acks().len() < 2 && !self.base.log.in_doubt().is_empty() {
            // There is nobody to differ from.
            self.base.log.settle_all();
            self.base.cx.rescan();
        }
        if self.base.log.in_doubt().is_empty() && self.base.replicas.forget_losses() {
            self.base.change_note();
        }
        let stale = self.base.replicas.those_that(|state| state == ChildState::Stale);
        for slot in stale.iter() {
            let wanted = self.base.replicas.get(slot).is_some_and(Child::may_be_rebuilt);
            let turn = self.jobs.len() < self.base.cx.config().rebuilds.max(1);
            if wanted
                && turn
                && !self.base.service.is_stopping()
                && !self.base.replicas.in_sync().is_empty()
            {
                self.begin_rebuild(slot);
            }
        }
        let slots: Vec<ChildSlot> = self.jobs.keys().copied().collect();
        for slot in slots {
            self.check_job(slot);
        }
    }

    fn begin_rebuild(&mut self, slot: ChildSlot) {
        let Some(replica) = self.base.replicas.replica_in(slot) else { return };
        // While anybody may call it in sync its note must not look like that of such a copy: it
        // gets none, and no writes, before it is recorded stale.
        if !self.base.replicas.record().is_stale_member(replica)
            || self.base.replicas.required_acks().contains(slot)
        {
            return;
        }
        let extent = if self.base.log.missed_by(replica).is_some() {
            RebuildKind::Partial
        } else {
            RebuildKind::Full
        };
        let size = self.base.cx.geometry().blocks();
        let total = self.base.log.begin_rebuild(replica, size);
        let sources = self.base.replicas.replicas_in(self.base.replicas.in_sync());
        let plan = RebuildPlan {
            volume: self.base.replicas.record().volume(),
            target: self.base.replicas.record().target(),
            replica,
            sources: sources.collect(),
            extent,
        };
        let id = RebuildId::nth(self.base.replicas.record().target(), self.rebuilds_begun);
        self.rebuilds_begun += 1;
        let mut rebuild = Rebuild::new(id, plan, self.base.cx.wall());
        rebuild.progress = self.progress(self.of_regions(total), Blocks::ZERO, Blocks::ZERO);
        // A rebuild that was just made can start.
        let _ = rebuild.on(RebuildEvent::Start, self.base.cx.wall());
        self.base.cx.emit(Effect::RebuildChanged(Box::new(rebuild.clone())));
        let none = self.base.log.no_regions();
        let job = Job {
            rebuild,
            parts: Parts::default(),
            copied: none,
            flushing: None,
            cursor: 0,
            total,
            moved: 0,
            proposed: false,
        };
        self.jobs.insert(slot, job);
        self.base.replicas.set_loss(slot, 0);
        self.base.replicas.change(&mut self.base.cx, slot, ChildEvent::Began);
        self.base.cx.rescan();
    }

    /// Flushes, records or ends a rebuild when it is time.
    fn check_job(&mut self, slot: ChildSlot) {
        let Some(replica) = self.base.replicas.replica_in(slot) else { return };
        let Some(job) = self.jobs.get_mut(&slot) else { return };
        for region in job.parts.take_finished() {
            job.copied.insert(region);
        }
        if job.proposed {
            let synced = self.base.replicas.record().is_recorded()
                && self.base.replicas.record().wants_in_sync(replica);
            if synced {
                self.base.log.forget_missed(replica);
                self.base.change_note();
                self.base.replicas.change(&mut self.base.cx, slot, ChildEvent::Copied);
                self.close_job(slot, RebuildEvent::Finish);
            }
            return;
        }
        let Some(missed) = self.base.log.missed_by(replica) else { return };
        let (left, idle) = (missed.len(), job.parts.regions.is_empty());
        let (copied, total) = (job.copied.len(), job.total);
        let moved = job.moved;
        let flush_now = job.flushing.is_none() && copied > 0 && (copied >= CHECKPOINT || idle);
        let complete = idle && left == 0 && copied == 0 && job.flushing.is_none();
        let complete = complete && job.is_running();
        let done = self.of_regions(total.saturating_sub(left));
        let progress = self.progress(self.of_regions(total), done, Blocks(moved));
        // A copy that joins while others take a snapshot would lack it.
        let snapshotting = self.is_snapshotting();
        let has_note = self.base.replicas.get(slot).is_some_and(|child| child.kept() > 0);
        let Some(job) = self.jobs.get_mut(&slot) else { return };
        job.rebuild.progress = progress;
        if flush_now {
            self.flush_job(slot);
        } else if complete && has_note && !snapshotting {
            job.proposed = self.base.replicas.change_set(SetChange::Synced(replica)).is_ok();
            self.base.cx.rescan();
        }
    }

    /// **D2**: what was copied counts after this flush.
    fn flush_job(&mut self, slot: ChildSlot) {
        let none = self.base.log.no_regions();
        let Some(Asked { io, child, session }) = self.base.ask(slot, Purpose::JobFlush) else {
            return;
        };
        let (command, buffer) = (Command::Flush, Buffer::None);
        self.base.cx.emit(Effect::Io { io, child, session, command, buffer });
        if let Some(job) = self.jobs.get_mut(&slot) {
            job.flushing = Some(core::mem::replace(&mut job.copied, none));
        }
    }

    pub(crate) fn job_flushed(&mut self, from: Pending, result: Completion) {
        let current =
            self.base.replicas.get(from.slot).filter(|child| child.is_current(from.session));
        let Some(replica) = current.map(Child::replica) else { return };
        if let Err(fault) = result {
            return match fault.class() {
                block::ErrorClass::Owner => self.fenced(),
                _ => self.fail(from.slot, reason(fault)),
            };
        }
        let Some(job) = self.jobs.get_mut(&from.slot) else { return };
        let flushed = job.flushing.take();
        if let Some(flushed) = flushed {
            self.base.log.copied(replica, flushed.iter());
        }
        self.base.cx.rescan();
    }

    /// Starts copies while there is room for them.
    pub(crate) fn pump_copies(&mut self) {
        if !self.base.service.is_open() || self.base.service.is_down() {
            return;
        }
        let most = usize::try_from(self.base.cx.config().copies).unwrap_or(1);
        while !self.free_buffers.is_empty() && self.copies.len() < most {
            // Hosts may wait for what is in doubt or checked for a read; they never wait for a
            // rebuild.
            let yields = self.must_yield();
            if !self.next_resync() && !self.next_check(yields) && !self.next_rebuild(yields) {
                return;
            }
        }
    }

    fn next_resync(&mut self) -> bool {
        if self.base.log.in_doubt().is_empty() || !self.base.is_settled() {
            return false;
        }
        let size = self.base.cx.geometry().blocks();
        if self.resync.parts.regions.values().all(|part| part.next >= part.end) {
            let begun = |region: &u64| self.resync.parts.regions.contains_key(region);
            let urgent = self.resync.urgent.iter().copied();
            let mut wanted = urgent.chain(self.base.log.in_doubt().iter());
            let free = |region: &u64| !begun(region) && self.base.log.in_doubt().contains(*region);
            let Some(region) = wanted.find(free) else { return false };
            drop(wanted);
            let Some(span) = self.base.log.in_doubt().span(region, size) else {
                self.base.log.settle_region(region);
                return true;
            };
            if !self.base.log.is_marked(&self.base.replicas, span) {
                return false;
            }
            self.resync.urgent.retain(|other| *other != region);
            self.resync.parts.begin(region, span);
        }
        let Some((region, span)) = self.resync.parts.chunk(self.base.cx.config().chunk) else {
            return false;
        };
        self.start_copy(CopyPurpose::Resync, region, span);
        true
    }

    /// Whether what nobody waits for is to wait for hosts.
    fn must_yield(&self) -> bool {
        let hosts = self.throttle.hosts(self.base.cx.now(), self.base.cx.config());
        let begun = |copy: &ChunkCopy| copy.whose != CopyPurpose::Resync;
        if hosts != HostLoad::Away && self.copies.values().any(begun) {
            return true;
        }
        hosts == HostLoad::Served
            && self.throttle.not_before.is_some_and(|at| self.base.cx.now() < at)
    }

    fn next_rebuild(&mut self, yields: bool) -> bool {
        if !self.rebuild_bucket.is_open(self.base.cx.now())
            || self.base.replicas.in_sync().is_empty()
            || yields
        {
            return false;
        }
        let is_served =
            self.throttle.hosts(self.base.cx.now(), self.base.cx.config()) == HostLoad::Served;
        let most =
            if is_served { self.base.cx.config().small_chunk } else { self.base.cx.config().chunk };
        // Jobs take turns: the one with the fewest chunks under way is next.
        let mut slots: Vec<(usize, ChildSlot)> = (self.jobs.iter())
            .filter(|(_, job)| job.is_running() && !job.proposed)
            .map(|(slot, _)| (self.copies_for(*slot), *slot))
            .collect();
        slots.sort_unstable();
        slots.into_iter().any(|(_, slot)| self.next_chunk(slot, most))
    }

    fn copies_for(&self, slot: ChildSlot) -> usize {
        self.copies.values().filter(|copy| copy.whose == CopyPurpose::Rebuild(slot)).count()
    }

    fn next_chunk(&mut self, slot: ChildSlot, most: Blocks) -> bool {
        let Some(replica) = self.base.replicas.replica_in(slot) else { return false };
        let size = self.base.cx.geometry().blocks();
        let Some(missed) = self.base.log.missed_by(replica) else { return false };
        let Some(job) = self.jobs.get_mut(&slot) else { return false };
        if job.parts.regions.values().all(|part| part.next >= part.end) {
            let doubt = self.base.log.in_doubt();
            let free = |region: &u64| {
                let flushing = job.flushing.as_ref().is_some_and(|set| set.contains(*region));
                !flushing
                    && !job.copied.contains(*region)
                    && !job.parts.regions.contains_key(region)
                    && !doubt.contains(*region)
            };
            let after = missed.iter().skip_while(|region| *region < job.cursor).find(free);
            let Some(region) = after.or_else(|| missed.iter().find(free)) else { return false };
            job.cursor = region + 1;
            let Some(span) = missed.span(region, size) else {
                self.base.log.copied(replica, core::iter::once(region));
                self.base.cx.rescan();
                return true;
            };
            job.parts.begin(region, span);
        }
        let Some((region, span)) = job.parts.chunk(most) else { return false };
        let bytes = self.base.cx.geometry().block_size().bytes_of(span.len());
        self.rebuild_bucket.take(bytes.map_or(0, |bytes| bytes.0));
        self.start_copy(CopyPurpose::Rebuild(slot), region, span);
        true
    }

    /// A rebuild ends because its child takes no more writes.
    pub(crate) fn end_job(&mut self, slot: ChildSlot, why: Option<Problem>) {
        self.drop_copies(CopyPurpose::Rebuild(slot));
        self.close_job(slot, why.map_or(RebuildEvent::Cancel, RebuildEvent::Fail));
    }

    fn close_job(&mut self, slot: ChildSlot, event: RebuildEvent) {
        let Some(mut job) = self.jobs.remove(&slot) else { return };
        let now = self.base.cx.wall();
        if job.rebuild.on(event, now).is_ok() {
            self.base.cx.emit(Effect::RebuildChanged(Box::new(job.rebuild.clone())));
            self.history.push_back(job.rebuild);
            while self.history.len() > self.base.cx.config().history {
                self.history.pop_front();
            }
        }
        self.base.cx.rescan();
    }

    pub(crate) fn rebuild_failed(&mut self, slot: ChildSlot, problem: Problem) {
        self.leave_write_targets(slot, Some(problem));
        self.fail(slot, FaultReason::RebuildFailed);
    }
}
