//! The rebuilder: copies what stale children missed, compares copies in sync where they may differ,
//! and checks blocks that somebody could not read.
//!
//! ```text
//!   stale child ──► Job ──┐ chunks of regions,        ┌──► done: flush, then the map shrinks (D2)
//!   region in doubt ──────┼─► in turns, within limits ─┤
//!   Check of a span ──────┘  (throttle, token bucket)  └──► not well: begun anew later
//! ```
//!
//! A rebuild:
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
//!
//! `chunk_copy.rs` copies one chunk, `source.rs` finds a copy that can give a piece of it,
//! `check.rs` keeps what checks found. Deliberately not here: failing a child; a rebuild that
//! cannot go on is handed out ([`Rebuilder::take_failed`]).

mod check;
mod chunk;
mod chunk_copy;
mod job;
mod parts;
mod source;
mod throttle;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use block::{Blocks, Command, Completion, ErrorClass, Instant};
use model::{
    ChildEvent, ChildState, Problem, Progress, Rebuild, RebuildEvent, RebuildId, RebuildKind,
    RebuildPlan, RegionSet, SetChange, Size,
};

use crate::api::{Buffer, Effect};
use crate::config::MirrorConfig;
use crate::context::{Context, Pending, Purpose, Ticket, Verdict};
use crate::replicas::{Asked, Child, ChildSet, ChildSlot, reason};
use crate::replication::Replication;
use crate::token_bucket::TokenBucket;

pub use check::Checked;
use check::Checks;
use chunk::{ChunkCopy, CopyPurpose};
use job::{Job, Resync};
use parts::Parts;
use throttle::{HostLoad, RebuildThrottle};

/// Regions copied before a flush makes them count.
const CHECKPOINT: u64 = 64;

/// A rebuild that cannot go on, and why.
pub(crate) type FailedRebuild = (ChildSlot, Problem);

/// Rebuilds, comparisons and checks.
#[derive(Debug)]
pub(crate) struct Rebuilder {
    jobs: BTreeMap<ChildSlot, Job>,
    resync: Resync,
    checks: Checks,
    copies: BTreeMap<Ticket, ChunkCopy>,
    free_buffers: Vec<u32>,
    /// What rebuilds together may copy in a second.
    bucket: TokenBucket,
    throttle: RebuildThrottle,
    begun: u64,
    history: VecDeque<Rebuild>,
    failed: Option<FailedRebuild>,
}

impl Rebuilder {
    pub(crate) fn new(config: &MirrorConfig, now: Instant) -> Rebuilder {
        Rebuilder {
            jobs: BTreeMap::new(),
            resync: Resync::default(),
            checks: Checks::default(),
            copies: BTreeMap::new(),
            free_buffers: (0..config.copies).rev().collect(),
            bucket: TokenBucket::new(config.rebuild_limit.map(|size| size.bytes().0), now),
            throttle: RebuildThrottle::default(),
            begun: 0,
            history: VecDeque::new(),
            failed: None,
        }
    }

    /// Whether nothing is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.jobs.is_empty() && self.copies.is_empty() && self.checks.is_empty()
    }

    /// A host's command came.
    pub(crate) fn host_came(&mut self, now: Instant) {
        self.throttle.came(now);
    }

    /// A host's command that came at this time has ended.
    pub(crate) fn host_ended(&mut self, cx: &Context, came: Instant) {
        self.throttle.ended(cx.now().since(came), cx.now(), cx.config());
    }

    pub(crate) fn set_limit(&mut self, limit: Option<Size>, now: Instant) {
        self.bucket = TokenBucket::new(limit.map(|size| size.bytes().0), now);
    }

    /// Children that are being rebuilt.
    pub(crate) fn children(&self) -> ChildSet {
        self.jobs.keys().copied().collect()
    }

    /// Whether the rebuild of a child runs, and is not over but for the record.
    pub(crate) fn may_stop(&self, slot: ChildSlot) -> bool {
        self.jobs.get(&slot).is_some_and(|job| !job.proposed)
    }

    /// Whether the rebuild of a child is over but for the record.
    pub(crate) fn is_proposed(&self, slot: ChildSlot) -> bool {
        self.jobs.get(&slot).is_some_and(|job| job.proposed)
    }

    pub(crate) fn progress_of(&self, slot: ChildSlot) -> Option<Progress> {
        self.jobs.get(&slot).map(|job| job.rebuild.progress)
    }

    /// Rebuilds that ended, oldest first, then those that run or wait.
    pub(crate) fn rebuilds(&self) -> impl Iterator<Item = &Rebuild> {
        self.history.iter().chain(self.jobs.values().map(|job| &job.rebuild))
    }

    /// Lets a rebuild wait, or go on; whether there is one.
    pub(crate) fn pause(&mut self, cx: &mut Context, slot: ChildSlot, event: RebuildEvent) -> bool {
        let Some(job) = self.jobs.get_mut(&slot).filter(|job| !job.proposed) else { return false };
        if job.rebuild.on(event, cx.wall()).is_ok() {
            cx.emit(Effect::RebuildChanged(Box::new(job.rebuild.clone())));
        }
        true
    }

    /// Whether a ticket of the range queue is a copy's.
    pub(crate) fn has(&self, ticket: Ticket) -> bool {
        self.copies.contains_key(&ticket)
    }

    /// Copies that may go on without an answer.
    pub(crate) fn stuck(&self) -> Vec<Ticket> {
        let stuck = |(ticket, copy): (&Ticket, &ChunkCopy)| copy.is_stuck().then_some(*ticket);
        self.copies.iter().filter_map(stuck).collect()
    }

    /// When copies may go on whose children were busy.
    pub(crate) fn busy_until(&self) -> impl Iterator<Item = Instant> {
        self.copies.values().filter_map(|copy| copy.not_before)
    }

    /// When copies may begin that have to wait.
    pub(crate) fn timeout(&self, cx: &Context) -> Option<Instant> {
        if self.jobs.is_empty() && self.checks.is_empty() {
            return None;
        }
        self.bucket.opens().into_iter().chain(self.throttle.next(cx.now(), cx.config())).min()
    }

    /// A rebuild that cannot go on: its child is to be failed before anything else is done.
    pub(crate) fn take_failed(&mut self) -> Option<FailedRebuild> {
        self.failed.take()
    }

    /// Hosts wait for these regions.
    pub(crate) fn hurry(&mut self, regions: Vec<u64>) {
        self.resync.hurry(regions);
    }

    /// Regions that are in doubt have to be copied again.
    pub(crate) fn redo(&mut self, regions: &RegionSet) {
        self.jobs.values_mut().for_each(|job| job.redo(regions));
        self.resync.redo(regions);
    }

    /// Begins, checks and ends rebuilds. A copy that joins while others take a snapshot would lack
    /// it: then none may.
    pub(crate) fn pump_rebuilds(&mut self, base: &mut Replication, may_join: bool) {
        if !base.service.is_active() {
            return;
        }
        if base.replicas.required_acks().len() < 2 && !base.log.in_doubt().is_empty() {
            // There is nobody to differ from.
            base.log.settle_all();
            base.cx.rescan();
        }
        if base.log.in_doubt().is_empty() && base.replicas.forget_losses() {
            base.change_note();
        }
        let stale = base.replicas.those_that(|state| state == ChildState::Stale);
        for slot in stale.iter() {
            let wanted = base.replicas.get(slot).is_some_and(Child::may_be_rebuilt);
            let turn = self.jobs.len() < base.cx.config().rebuilds.max(1);
            if wanted && turn && !base.service.is_stopping() && !base.replicas.in_sync().is_empty()
            {
                self.begin_rebuild(base, slot);
            }
        }
        let slots: Vec<ChildSlot> = self.jobs.keys().copied().collect();
        for slot in slots {
            self.check_job(base, slot, may_join);
        }
    }

    fn begin_rebuild(&mut self, base: &mut Replication, slot: ChildSlot) {
        let Some(replica) = base.replicas.replica_in(slot) else { return };
        // While anybody may call it in sync its note must not look like that of such a copy: it
        // gets none, and no writes, before it is recorded stale.
        let may_be_in_sync = base.replicas.required_acks().contains(slot);
        #[cfg(test)]
        let may_be_in_sync =
            may_be_in_sync && base.cx.broken != crate::tests::Broken::RebuiltUnrecorded;
        if !base.replicas.record().is_stale_member(replica) || may_be_in_sync {
            return;
        }
        let extent = if base.log.missed_by(replica).is_some() {
            RebuildKind::Partial
        } else {
            RebuildKind::Full
        };
        let size = base.cx.geometry().blocks();
        let total = base.log.begin_rebuild(replica, size);
        let sources = base.replicas.replicas_in(base.replicas.in_sync());
        let plan = RebuildPlan {
            volume: base.replicas.record().volume(),
            target: base.replicas.record().target(),
            replica,
            sources: sources.collect(),
            extent,
        };
        let id = RebuildId::nth(base.replicas.record().target(), self.begun);
        self.begun += 1;
        let mut rebuild = Rebuild::new(id, plan, base.cx.wall());
        rebuild.progress =
            progress(&base.cx, of_regions(&base.cx, total), Blocks::ZERO, Blocks::ZERO);
        // A rebuild that was just made can start.
        let _ = rebuild.on(RebuildEvent::Start, base.cx.wall());
        base.cx.emit(Effect::RebuildChanged(Box::new(rebuild.clone())));
        let none = base.log.no_regions();
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
        base.replicas.set_loss(slot, 0);
        base.replicas.change(&mut base.cx, slot, ChildEvent::Began);
        base.cx.rescan();
    }

    /// Flushes, records or ends a rebuild when it is time.
    fn check_job(&mut self, base: &mut Replication, slot: ChildSlot, may_join: bool) {
        let Some(replica) = base.replicas.replica_in(slot) else { return };
        let Some(job) = self.jobs.get_mut(&slot) else { return };
        for region in job.parts.take_finished() {
            job.copied.insert(region);
        }
        if job.proposed {
            let synced = base.replicas.record().is_recorded()
                && base.replicas.record().wants_in_sync(replica);
            if synced {
                base.log.forget_missed(replica);
                base.change_note();
                base.replicas.change(&mut base.cx, slot, ChildEvent::Copied);
                self.close_job(base, slot, RebuildEvent::Finish);
            }
            return;
        }
        let Some(missed) = base.log.missed_by(replica) else { return };
        let (left, idle) = (missed.len(), job.parts.is_empty());
        let (copied, total) = (job.copied.len(), job.total);
        let moved = job.moved;
        let flush_now = job.flushing.is_none() && copied > 0 && (copied >= CHECKPOINT || idle);
        let complete = idle && left == 0 && copied == 0 && job.flushing.is_none();
        let complete = complete && job.is_running();
        let done = of_regions(&base.cx, total.saturating_sub(left));
        let progress = progress(&base.cx, of_regions(&base.cx, total), done, Blocks(moved));
        #[cfg(test)]
        let may_join = may_join || base.cx.broken == crate::tests::Broken::JoinsDuringSnapshot;
        let has_note = base.replicas.get(slot).is_some_and(|child| child.kept() > 0);
        let Some(job) = self.jobs.get_mut(&slot) else { return };
        job.rebuild.progress = progress;
        if flush_now {
            self.flush_job(base, slot);
        } else if complete && has_note && may_join {
            job.proposed = base.replicas.change_set(SetChange::Synced(replica)).is_ok();
            base.cx.rescan();
        }
    }

    /// **D2**: what was copied counts after this flush.
    fn flush_job(&mut self, base: &mut Replication, slot: ChildSlot) {
        let none = base.log.no_regions();
        let Some(Asked { io, child, session }) = base.ask(slot, Purpose::JobFlush) else {
            return;
        };
        let (command, buffer) = (Command::Flush, Buffer::None);
        base.cx.emit(Effect::Io { io, child, session, command, buffer });
        if let Some(job) = self.jobs.get_mut(&slot) {
            job.flushing = Some(core::mem::replace(&mut job.copied, none));
        }
    }

    /// A child that is rebuilt has flushed what was copied, or failed to.
    pub(crate) fn job_flushed(
        &mut self,
        base: &mut Replication,
        from: Pending,
        result: Completion,
    ) -> Verdict {
        let current = base.replicas.get(from.slot).filter(|child| child.is_current(from.session));
        let Some(replica) = current.map(Child::replica) else { return Verdict::Fine };
        if let Err(fault) = result {
            return match fault.class() {
                ErrorClass::Owner => Verdict::Fenced,
                _ => Verdict::Failed(ChildSet::one(from.slot), reason(fault)),
            };
        }
        let job = self.jobs.get_mut(&from.slot);
        let Some(job) = job else { return Verdict::Fine };
        let flushed = job.flushing.take();
        if let Some(flushed) = flushed {
            base.log.copied(replica, flushed.iter());
        }
        base.cx.rescan();
        Verdict::Fine
    }

    /// Starts copies while there is room for them.
    pub(crate) fn pump_copies(&mut self, base: &mut Replication) {
        if !base.service.is_active() {
            return;
        }
        let most = usize::try_from(base.cx.config().copies).unwrap_or(1);
        while !self.free_buffers.is_empty() && self.copies.len() < most {
            // Hosts may wait for what is in doubt or checked for a read; they never wait for a
            // rebuild.
            let yields = self.must_yield(base);
            if !self.next_resync(base)
                && !self.next_check(base, yields)
                && !self.next_rebuild(base, yields)
            {
                return;
            }
        }
    }

    fn next_resync(&mut self, base: &mut Replication) -> bool {
        if base.log.in_doubt().is_empty() || !base.is_settled() {
            return false;
        }
        let size = base.cx.geometry().blocks();
        if self.resync.parts.are_begun() {
            let begun = |region: &u64| self.resync.parts.contains(*region);
            let urgent = self.resync.urgent.iter().copied();
            let mut wanted = urgent.chain(base.log.in_doubt().iter());
            let free = |region: &u64| !begun(region) && base.log.in_doubt().contains(*region);
            let Some(region) = wanted.find(free) else { return false };
            drop(wanted);
            let Some(span) = base.log.in_doubt().span(region, size) else {
                base.log.settle_region(region);
                return true;
            };
            if !base.log.is_marked(&base.replicas, span) {
                return false;
            }
            self.resync.urgent.retain(|other| *other != region);
            self.resync.parts.begin(region, span);
        }
        let Some((region, span)) = self.resync.parts.chunk(base.cx.config().chunk) else {
            return false;
        };
        self.start_copy(base, CopyPurpose::Resync, region, span);
        true
    }

    /// Whether what nobody waits for is to wait for hosts.
    fn must_yield(&self, base: &Replication) -> bool {
        let hosts = self.throttle.hosts(base.cx.now(), base.cx.config());
        let begun = |copy: &ChunkCopy| copy.whose != CopyPurpose::Resync;
        if hosts != HostLoad::Away && self.copies.values().any(begun) {
            return true;
        }
        hosts == HostLoad::Served && self.throttle.is_pausing(base.cx.now())
    }

    fn next_rebuild(&mut self, base: &mut Replication, yields: bool) -> bool {
        if !self.bucket.is_open(base.cx.now()) || base.replicas.in_sync().is_empty() || yields {
            return false;
        }
        let is_served = self.throttle.hosts(base.cx.now(), base.cx.config()) == HostLoad::Served;
        let most = if is_served { base.cx.config().small_chunk } else { base.cx.config().chunk };
        // Jobs take turns: the one with the fewest chunks under way is next.
        let mut slots: Vec<(usize, ChildSlot)> = (self.jobs.iter())
            .filter(|(_, job)| job.is_running() && !job.proposed)
            .map(|(slot, _)| (self.copies_for(*slot), *slot))
            .collect();
        slots.sort_unstable();
        slots.into_iter().any(|(_, slot)| self.next_chunk(base, slot, most))
    }

    fn copies_for(&self, slot: ChildSlot) -> usize {
        self.copies.values().filter(|copy| copy.whose == CopyPurpose::Rebuild(slot)).count()
    }

    fn next_chunk(&mut self, base: &mut Replication, slot: ChildSlot, most: Blocks) -> bool {
        let Some(replica) = base.replicas.replica_in(slot) else { return false };
        let size = base.cx.geometry().blocks();
        let Some(missed) = base.log.missed_by(replica) else { return false };
        let Some(job) = self.jobs.get_mut(&slot) else { return false };
        if job.parts.are_begun() {
            let doubt = base.log.in_doubt();
            let free = |region: &u64| {
                let flushing = job.flushing.as_ref().is_some_and(|set| set.contains(*region));
                !flushing
                    && !job.copied.contains(*region)
                    && !job.parts.contains(*region)
                    && !doubt.contains(*region)
            };
            let after = missed.iter().skip_while(|region| *region < job.cursor).find(free);
            let Some(region) = after.or_else(|| missed.iter().find(free)) else { return false };
            job.cursor = region + 1;
            let Some(span) = missed.span(region, size) else {
                base.log.copied(replica, core::iter::once(region));
                base.cx.rescan();
                return true;
            };
            job.parts.begin(region, span);
        }
        let Some((region, span)) = job.parts.chunk(most) else { return false };
        let bytes = base.cx.geometry().block_size().bytes_of(span.len());
        self.bucket.take(bytes.map_or(0, |bytes| bytes.0));
        self.start_copy(base, CopyPurpose::Rebuild(slot), region, span);
        true
    }

    /// A rebuild ends because its child takes no more writes.
    pub(crate) fn end_job(
        &mut self,
        base: &mut Replication,
        slot: ChildSlot,
        why: Option<Problem>,
    ) {
        self.drop_copies(base, CopyPurpose::Rebuild(slot));
        self.close_job(base, slot, why.map_or(RebuildEvent::Cancel, RebuildEvent::Fail));
    }

    fn close_job(&mut self, base: &mut Replication, slot: ChildSlot, event: RebuildEvent) {
        let Some(mut job) = self.jobs.remove(&slot) else { return };
        let now = base.cx.wall();
        if job.rebuild.on(event, now).is_ok() {
            base.cx.emit(Effect::RebuildChanged(Box::new(job.rebuild.clone())));
            self.history.push_back(job.rebuild);
            while self.history.len() > base.cx.config().history {
                self.history.pop_front();
            }
        }
        base.cx.rescan();
    }

    /// Whether a child is being rebuilt.
    #[cfg(test)]
    pub(crate) fn is_rebuilding(&self, slot: ChildSlot) -> bool {
        self.jobs.contains_key(&slot)
    }
}

/// The blocks of so many regions.
fn of_regions(cx: &Context, regions: u64) -> Blocks {
    Blocks(regions.saturating_mul(cx.config().region.get())).min(cx.geometry().blocks())
}

fn progress(cx: &Context, total: Blocks, done: Blocks, copied: Blocks) -> Progress {
    let block_size = cx.geometry().block_size();
    let size = |blocks| block_size.bytes_of(blocks).unwrap_or_default().into();
    Progress { total: size(total), done: size(done), copied: size(copied) }
}
