//! The write-intent log: which regions are marked, in doubt or missed by whom, and the notes that
//! keep this beside the blocks.
//!
//! ```text
//!   write to a region without a mark ─┐
//!   record stored, reservations, loss ┼──► next version of the note ──► one under way to each
//!   marks idle, or the note is old ───┘                                 write target ──► durable
//! ```
//!
//! Everything that must be durable beside the blocks (marks, dirty maps, labels) is a change of the
//! note: it gets the next version, and is durable when every child that takes writes has that one.
//! A child has one note under way at most, so many marks share one.
//!
//! Invariant **W3**: a region is durably marked on every child that takes writes before the first
//! write in it is sent to any ([`IntentLog::begin_write`]).
//!
//! Which copies a note shows to be rolled back: `rollback.rs`.

mod dirty_map;
mod rollback;

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use core::num::NonZeroU64;
use core::time::Duration;

use block::{Blocks, Completion, ErrorClass, Instant, Span};
use model::{HostReservations, RegionSet, ReplicaId, SyncMetadata, SyncStamp};

use crate::api::Effect;
use crate::context::{Context, Pending, Purpose, Verdict};
use crate::replicas::{ChildSet, ChildSlot, Replicas, reason};

use dirty_map::DirtyMaps;
pub(crate) use rollback::rolled_back;

/// What is known of regions, and the notes that say so.
#[derive(Debug)]
pub(crate) struct IntentLog {
    dirty: DirtyMaps,
    /// Number of the newest note.
    version: u64,
    /// When it was made.
    noted: Instant,
    /// When marks that are not needed any more are looked for.
    sweep_at: Option<Instant>,
    /// A note that every copy in sync has (L2).
    settled: Option<SyncStamp>,
    /// The oldest of the notes that it was opened with, and the last one before its own.
    base: Option<(SyncStamp, u64)>,
    /// The newest note that each copy had when it left.
    left: BTreeMap<ReplicaId, SyncStamp>,
}

impl IntentLog {
    pub(crate) fn new(region: NonZeroU64, now: Instant) -> IntentLog {
        IntentLog {
            dirty: DirtyMaps::new(region),
            version: 0,
            noted: now,
            sweep_at: None,
            settled: None,
            base: None,
            left: BTreeMap::new(),
        }
    }

    /// The note has changed; answers the version that has the change.
    pub(crate) fn change(&mut self, cx: &mut Context) -> u64 {
        cx.unsettle();
        self.version += 1;
        self.noted = cx.now();
        self.version
    }

    /// The version that every child that takes writes has.
    pub(crate) fn durable_version(&self, replicas: &Replicas) -> u64 {
        #[cfg(test)]
        if replicas.is_broken(crate::tests::Broken::MarksNotAwaited) {
            return self.version;
        }
        self.version.min(replicas.kept_version())
    }

    /// **W3** Marks the regions of a write, and opens them if the marks are durable; if not, it is
    /// tried again when a note was kept.
    pub(crate) fn begin_write(
        &mut self,
        cx: &mut Context,
        replicas: &Replicas,
        span: Span,
    ) -> bool {
        if self.dirty.mark(span, self.version + 1, cx.now()) {
            self.change(cx);
        }
        if !self.dirty.is_marked(span, self.durable_version(replicas)) {
            return false;
        }
        self.dirty.begin(span);
        #[cfg(test)]
        if cx.broken == crate::tests::Broken::NotMissed {
            return true;
        }
        let targets = replicas.write_targets();
        for (_, child) in replicas.iter().filter(|(slot, _)| !targets.contains(*slot)) {
            self.dirty.miss(child.replica(), span);
        }
        true
    }

    /// Opens the regions of a comparison, which may write to copies in sync, if they are marked.
    pub(crate) fn begin_resync(&mut self, replicas: &Replicas, region: u64, span: Span) -> bool {
        let may_begin = self.is_marked(replicas, span) && self.dirty.resync.contains(region);
        if may_begin {
            self.dirty.begin(span);
        }
        may_begin
    }

    /// Whether every region of the span is marked in a note that all write targets have.
    pub(crate) fn is_marked(&self, replicas: &Replicas, span: Span) -> bool {
        self.dirty.is_marked(span, self.durable_version(replicas))
    }

    /// A write to the span has ended, one way or another.
    pub(crate) fn end_write(&mut self, span: Span, now: Instant) {
        self.dirty.end(span, now);
    }

    /// A flush is sent; what ended before is behind it.
    pub(crate) fn flush_begins(&mut self) -> u64 {
        self.dirty.flush_begins()
    }

    /// That flush reached every write target.
    pub(crate) fn flushed(&mut self, begun: u64) {
        self.dirty.flushed(begun);
    }

    /// A flush of our own has ended: marks may go now.
    pub(crate) fn sweep_now(&mut self, now: Instant) {
        self.sweep_at = self.sweep_at.map(|_| now);
    }

    pub(crate) fn sweep_at(&self) -> Option<Instant> {
        self.sweep_at
    }

    /// Takes marks away that are not needed any more; whether a flush would let more go.
    pub(crate) fn expire(&mut self, cx: &mut Context) -> bool {
        let (now, idle) = (cx.now(), cx.config().idle);
        if self.sweep_at.is_none_or(|at| at > now) {
            if self.sweep_at.is_none() && self.dirty.has_marks() {
                self.sweep_at = Some(now.after(idle));
            }
            return false;
        }
        let (went, wants_flush) = self.dirty.sweep(now, idle);
        let is_old = now >= self.noted.after(cx.config().renew) && self.dirty.has_marks();
        if went || is_old {
            self.change(cx);
        }
        self.sweep_at = self.dirty.has_marks().then(|| now.after(idle));
        wants_flush
    }

    /// Nothing is served: marks stay as they are.
    pub(crate) fn stop_sweeping(&mut self) {
        self.sweep_at = None;
    }

    /// Takes away all marks that were flushed; whether any is left.
    pub(crate) fn sweep_all(&mut self, now: Instant) -> bool {
        self.dirty.sweep(now, Duration::ZERO);
        self.dirty.has_marks()
    }

    pub(crate) fn no_regions(&self) -> RegionSet {
        self.dirty.none()
    }

    pub(crate) fn regions_of(&self, span: Span) -> RegionSet {
        let mut regions = self.dirty.none();
        self.dirty.regions(span).for_each(|region| regions.insert(region));
        regions
    }

    /// Copies in sync may differ in these regions; others are not to rely on them either.
    pub(crate) fn doubt(&mut self, cx: &mut Context, replicas: &Replicas, regions: &RegionSet) {
        self.dirty.missed.values_mut().for_each(|missed| missed.add(regions));
        if replicas.required_acks().len() > 1 {
            self.dirty.resync.add(regions);
        }
        cx.rescan();
    }

    /// Regions where copies in sync may differ.
    pub(crate) fn in_doubt(&self) -> &RegionSet {
        &self.dirty.resync
    }

    /// Of the regions of a span those in doubt.
    pub(crate) fn doubtful(&self, span: Span) -> alloc::vec::Vec<u64> {
        self.dirty.doubtful(span)
    }

    /// The copies in sync are equal in this region.
    pub(crate) fn settle_region(&mut self, region: u64) {
        self.dirty.resync.remove(region);
    }

    /// There is nobody to differ from.
    pub(crate) fn settle_all(&mut self) {
        self.dirty.resync = self.dirty.none();
    }

    /// What a stale copy missed; absent: everything.
    pub(crate) fn missed_by(&self, replica: ReplicaId) -> Option<&RegionSet> {
        self.dirty.missed.get(&replica)
    }

    /// What a copy missed that is to be rebuilt, which is everything if there is no map.
    pub(crate) fn begin_rebuild(&mut self, replica: ReplicaId, size: Blocks) -> u64 {
        let all = self.dirty.all(size);
        self.dirty.missed.entry(replica).or_insert(all).len()
    }

    /// **D2** A copy has these regions, and flushed them.
    pub(crate) fn copied(&mut self, replica: ReplicaId, regions: impl Iterator<Item = u64>) {
        if let Some(missed) = self.dirty.missed.get_mut(&replica) {
            regions.for_each(|region| missed.remove(region));
        }
    }

    /// A copy is in sync, is removed, or lacks everything: there is no map of it.
    pub(crate) fn forget_missed(&mut self, replica: ReplicaId) {
        self.dirty.missed.remove(&replica);
    }

    /// A copy was removed, recorded so.
    pub(crate) fn forget_removed(&mut self, replica: ReplicaId) {
        self.forget_missed(replica);
        self.version += 1;
    }

    /// A child gets no more writes: remembers what it may lack or lose.
    pub(crate) fn child_left(&mut self, replicas: &Replicas, slot: ChildSlot) {
        let Some(child) = replicas.get(slot).filter(|child| child.state().takes_writes()) else {
            return;
        };
        let replica = child.replica();
        self.left.extend(child.newest_note().map(|had| (replica, had)));
        let risk = self.dirty.at_risk();
        if replicas.in_sync().contains(slot) {
            self.dirty.missed.insert(replica, risk);
        } else if let Some(missed) = self.dirty.missed.get_mut(&replica) {
            missed.add(&risk);
        }
    }

    /// What was in use when a copy in sync was lost.
    pub(crate) fn at_risk(&self) -> RegionSet {
        self.dirty.at_risk()
    }

    /// Whether a write was acknowledged that no flush covers.
    pub(crate) fn has_unflushed(&self) -> bool {
        self.dirty.has_unflushed()
    }

    /// Sends the newest version to write targets that lack it.
    pub(crate) fn pump(
        &mut self,
        cx: &mut Context,
        replicas: &mut Replicas,
        reservations: &HostReservations,
    ) {
        for slot in replicas.write_targets().iter() {
            let version = self.version;
            if !replicas.get(slot).is_some_and(|child| child.lacks_note(version)) {
                continue;
            }
            let note = self.note_for(cx, replicas, slot, reservations);
            let Some(note) = note else { continue };
            let asked = replicas.ask(cx, slot, Purpose::Keep(version));
            let Some(asked) = asked else { continue };
            let (io, child, session) = (asked.io, asked.child, asked.session);
            cx.emit(Effect::Keep { io, child, session, note: Box::new(note) });
            if let Some(child) = replicas.get_mut(slot) {
                child.sending_note(version);
            }
        }
    }

    /// What would be kept with a replica now.
    fn note_for(
        &mut self,
        cx: &Context,
        replicas: &Replicas,
        slot: ChildSlot,
        reservations: &HostReservations,
    ) -> Option<SyncMetadata> {
        self.update_settled(replicas);
        let child = replicas.get(slot)?;
        let loss = child.loss();
        #[cfg(test)]
        let loss = if cx.broken == crate::tests::Broken::LossForgotten { 0 } else { loss };
        Some(SyncMetadata {
            label: replicas.record().label(child.replica(), cx.geometry().bytes()),
            owner: replicas.record().target(),
            sequence: self.version,
            settled: self.settled,
            incarnation: child.incarnation().unwrap_or_default(),
            loss,
            intents: self.dirty.intents(),
            missed: self.dirty.missed.clone(),
            left: self.left_behind(replicas),
            reservations: Box::new(reservations.clone()),
        })
    }

    /// Checks what always holds.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        self.dirty.check();
    }
}

/// A child has a version of the note, or failed to keep it.
pub(crate) fn kept(
    cx: &mut Context,
    replicas: &mut Replicas,
    pending: Pending,
    result: Completion,
) -> Verdict {
    let Purpose::Keep(version) = pending.purpose else { return Verdict::Fine };
    if let Err(fault) = result
        && fault.class() == ErrorClass::Owner
    {
        return Verdict::Fenced;
    }
    let stamp = stamp(replicas, version);
    let Some(child) = replicas.get_mut(pending.slot) else { return Verdict::Fine };
    if !child.is_current(pending.session) || !child.take_sent_note(version) {
        return Verdict::Fine;
    }
    cx.rescan();
    match result {
        Ok(()) => {
            child.has_note(version, stamp);
            Verdict::Fine
        }
        Err(fault) => Verdict::Failed(ChildSet::one(pending.slot), reason(fault)),
    }
}

/// The version of a note of this target, as copies name it.
fn stamp(replicas: &Replicas, sequence: u64) -> SyncStamp {
    SyncStamp { epoch: replicas.record().epoch(), sequence }
}
