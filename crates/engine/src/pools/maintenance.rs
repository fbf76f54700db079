//! What a pool needs beside its commands: scrubs, a look at what a crash left in doubt, checkpoints
//! when idle.

use std::collections::BTreeSet;
use std::time::Duration;

use block::{Blocks, Bytes, Completion, IoError, Lba, Span};
use pool::Id;
use reactor::{Io, Key, MonotonicTime, Op, Token};

use super::effects::{Request, What};
use super::{NARROW, Open, PoolError, Pools, Rate, SCRUB, ScrubStatus};

/// How long a pool must be left alone before what it knows is written down.
const QUIET: Duration = Duration::from_secs(2);
/// Blocks of one step of a scrub.
const STEP: u64 = 256;
/// Runs that are asked for at once.
const RUNS: usize = 64;
/// How long a scrub waits at its end for targets to rewrite what it found: one may have to be
/// opened for that.
const MEND: Duration = Duration::from_mins(1);
/// How often it looks at that again.
const LOOK: Duration = Duration::from_millis(500);

/// The care of one pool.
#[derive(Debug, Default)]
pub(super) struct Maintenance {
    /// Commands since the last tick.
    used: bool,
    /// A timer is under way.
    is_ticking: bool,
    scrub: Option<Scrub>,
}

/// A scrub, under way or over.
#[derive(Debug)]
struct Scrub {
    status: ScrubStatus,
    rate: Rate,
    /// Where it is; from this block on.
    id: Id,
    from: u64,
    /// Runs of this replica that are still to be looked at, the next one last.
    runs: Vec<(u64, u64)>,
    /// All runs of this replica are known.
    is_over: bool,
    /// A question is under way: from this block of a replica on.
    asked: Option<(Id, u64)>,
    /// A step is under way: these blocks.
    step: Option<Span>,
    /// When the next step may begin.
    due: MonotonicTime,
    /// Everything was looked at: which of the bad places is looked at again, and until when.
    mending: Option<(usize, MonotonicTime)>,
    /// Places that a target was told of.
    told: usize,
    /// Places in snapshots that a target was told of as such.
    told_of_snapshots: BTreeSet<(Id, Lba)>,
}

/// What a scrub does next.
enum Next {
    /// Looks at these blocks.
    Step(Id, Span),
    /// Asks for the runs of a replica from this block on.
    Ask(Id, u64),
    End,
}

impl Maintenance {
    /// A command came.
    pub(super) fn note_use(&mut self) {
        self.used = true;
    }

    pub(super) fn stop_scrub(&mut self) {
        if let Some(scrub) = &mut self.scrub {
            scrub.status.is_running = false;
        }
    }

    pub(super) fn scrub_status(&self) -> Option<ScrubStatus> {
        self.scrub.as_ref().map(|scrub| scrub.status.clone())
    }
}

impl Pools {
    pub(super) fn begin_scrub(
        &mut self,
        pool: Id,
        rate: Rate,
        io: &mut impl Io,
    ) -> Result<(), PoolError> {
        let (slot, open) = self.find_open(pool)?;
        let total = open.pool.usage().written;
        let status = ScrubStatus { is_running: true, total, ..ScrubStatus::default() };
        // A step that is under way for an earlier scrub counts for this one.
        let step = open.maintenance.scrub.as_ref().and_then(|scrub| scrub.step);
        let asked = open.maintenance.scrub.as_ref().and_then(|scrub| scrub.asked);
        let (id, from, runs, due) = (Id::NONE, 0, Vec::new(), io.now());
        let is_over = true;
        let (mending, told, told_of_snapshots) = (None, 0, BTreeSet::new());
        open.maintenance.scrub = Some(Scrub {
            status,
            rate,
            id,
            from,
            runs,
            is_over,
            asked,
            step,
            due,
            mending,
            told,
            told_of_snapshots,
        });
        self.scrub(slot, io);
        Ok(())
    }

    /// Begins the next step of a scrub, if it is time.
    fn scrub(&mut self, slot: Key, io: &mut impl Io) {
        let now = io.now();
        let Some(open) = self.open_mut(slot) else { return };
        let Some(scrub) = &mut open.maintenance.scrub else { return };
        if !scrub.status.is_running || scrub.step.is_some() || scrub.asked.is_some() {
            return;
        }
        if scrub.due > now {
            let at = scrub.due;
            return self.tick_at(slot, at, io);
        }
        let (id, span) = match scrub.next(&open.pool) {
            Next::Step(id, span) => (id, span),
            Next::Ask(id, from) => {
                scrub.asked = Some((id, from));
                let (about, from) = (pool::QueryKind::Own(id), Blocks(from));
                let question = pool::BlockQuery { about, from, most: RUNS };
                open.pool.ask(pool::CommandId(Token::of(SCRUB, slot).0), question);
                return self.drain(slot, io);
            }
            Next::End => match scrub.look_again(now) {
                Some(place) => place,
                None => return self.scrub_later(slot, io),
            },
        };
        scrub.step = Some(span);
        let bytes = span.len().0 * 4096;
        scrub.due = now.after(scrub.rate.time_for(bytes));
        open.pool.verify(pool::CommandId(Token::of(SCRUB, slot).0), id, span);
        self.drain(slot, io);
    }

    /// A scrub has nothing to do now: it looks again later, or is over.
    fn scrub_later(&mut self, slot: Key, io: &mut impl Io) {
        let Some(open) = self.open_mut(slot) else { return };
        let Some(scrub) = &mut open.maintenance.scrub else { return };
        match scrub.mending {
            Some(_) => {
                let at = scrub.due;
                self.tick_at(slot, at, io);
            }
            None => scrub.status.is_running = false,
        }
    }

    /// Runs of blocks that a scrub found bad in what a replica reads, and of which its target was
    /// not told before.
    pub(crate) fn damaged(&mut self, pool: Id, id: Id, most: usize) -> Vec<(u64, u64)> {
        let Ok((_, open)) = self.find_open(pool) else { return Vec::new() };
        let Open { pool, maintenance, .. } = open;
        let Some(scrub) = &mut maintenance.scrub else { return Vec::new() };
        let is_its = |of: Id| of == id || pool.entity(of).is_some_and(|one| one.origin == id);
        scrub.tell(is_its, most)
    }

    /// Blocks that a scrub found bad in snapshots of a replica, of which its target was not told
    /// before.
    pub(crate) fn damaged_snapshots(
        &mut self,
        pool: Id,
        id: Id,
        most: usize,
    ) -> Vec<(Id, (u64, u64))> {
        let Ok((_, open)) = self.find_open(pool) else { return Vec::new() };
        let Open { pool, maintenance, .. } = open;
        let Some(Scrub { status, told_of_snapshots, .. }) = &mut maintenance.scrub else {
            return Vec::new();
        };
        let is_its = |of: Id| {
            let is_snapshot = |one: &pool::Entity| one.kind == pool::EntityKind::Snapshot;
            pool.entity(of).is_some_and(|one| is_snapshot(one) && one.origin == id)
        };
        let places = status.places.iter().filter(|(of, _)| is_its(*of));
        let untold = places.filter(|(of, span)| told_of_snapshots.insert((*of, span.start())));
        untold.take(most).map(|(of, span)| (*of, (span.start().0, span.end().0))).collect()
    }

    /// What a scrub asked for.
    pub(super) fn scrub_told(
        &mut self,
        slot: Key,
        told: Result<pool::Runs, pool::Refused>,
        io: &mut impl Io,
    ) {
        let now = io.now();
        let Some(open) = self.open_mut(slot) else { return };
        let Some(scrub) = &mut open.maintenance.scrub else { return };
        // An earlier scrub may have asked.
        if scrub.asked.take() == Some((scrub.id, scrub.from)) {
            match told {
                Ok(runs) => scrub.heard(runs),
                // Later there is room for a question.
                Err(pool::Refused::Busy) => scrub.due = now.after(QUIET),
                Err(pool::Refused::Damaged) => scrub.cannot_know(),
                // It is not there any more.
                Err(_) => scrub.is_over = true,
            }
        }
        self.scrub(slot, io);
    }

    /// A step of a scrub is done.
    pub(super) fn scrubbed(&mut self, slot: Key, result: Completion, io: &mut impl Io) {
        let Some(open) = self.open_mut(slot) else { return };
        let Some(scrub) = &mut open.maintenance.scrub else { return };
        let Some(span) = scrub.step.take() else { return };
        match scrub.mending {
            Some((at, until)) => scrub.judge_again((at, until), result, io.now()),
            None => scrub.judge(span, result),
        }
        self.scrub(slot, io);
    }

    pub(super) fn begin_narrowing(&mut self, pool: Id, io: &mut impl Io) -> Result<(), PoolError> {
        let slot = self.find(pool)?;
        self.narrow_doubt(slot, io);
        Ok(())
    }

    /// Looks at the next blocks in doubt.
    pub(super) fn narrow_doubt(&mut self, slot: Key, io: &mut impl Io) {
        let Some(open) = self.open_mut(slot) else { return };
        let token = pool::CommandId(Token::of(NARROW, slot).0);
        if open.leaving.is_none() && open.pool.narrow_doubt(token) {
            self.drain(slot, io);
        }
    }

    /// Sees that a pool that was used is looked at again.
    pub(super) fn keep_watch(&mut self, slot: Key, io: &mut impl Io) {
        if let Some(open) = self.open(slot)
            && open.maintenance.used
            && !open.maintenance.is_ticking
        {
            let at = io.now().after(QUIET);
            self.tick_at(slot, at, io);
        }
    }

    fn tick_at(&mut self, slot: Key, at: MonotonicTime, io: &mut impl Io) {
        let Ok(key) = self.requests.insert(Request { slot, what: What::Tick, counted: None })
        else {
            return;
        };
        if let Some(open) = self.open_mut(slot) {
            open.maintenance.is_ticking = true;
        }
        self.send(Op::Timer { at }, Token::of(self.token_kind, key), io);
    }

    pub(super) fn tick(&mut self, slot: Key, io: &mut impl Io) {
        let Some(open) = self.open_mut(slot) else { return };
        open.maintenance.is_ticking = false;
        let was_used = core::mem::take(&mut open.maintenance.used);
        let health = open.pool.health();
        let dirty = health.dirty_regions > 0 || health.changed_pages > 0;
        if !was_used && dirty && open.leaving.is_none() && open.pool.is_idle() {
            // Nobody is in its way, and after a crash there is less to do.
            open.pool.request_checkpoint();
            self.drain(slot, io);
        } else if was_used {
            let at = io.now().after(QUIET);
            self.tick_at(slot, at, io);
        }
        // Regions that had to stay in doubt, for want of room for their blocks, may have it now.
        self.narrow_doubt(slot, io);
        self.scrub(slot, io);
    }
}

impl Rate {
    fn time_for(self, bytes: u64) -> Duration {
        let nanos = bytes.saturating_mul(1_000_000_000) / self.0.0.max(1);
        Duration::from_nanos(nanos)
    }
}

impl Scrub {
    /// What is to be done next.
    fn next(&mut self, pool: &pool::Pool) -> Next {
        let Some((start, end)) = self.runs.last_mut() else {
            if self.is_over {
                let after = |entity: &&pool::Entity| entity.id > self.id;
                let Some(entity) = pool.entities().find(after) else { return Next::End };
                (self.id, self.from, self.is_over) = (entity.id, 0, false);
            }
            return Next::Ask(self.id, self.from);
        };
        let next = (*start + STEP).min(*end);
        let span = Span::between(Lba(*start), Lba(next));
        *start = next;
        if next == *end {
            self.runs.pop();
        }
        span.map_or(Next::End, |span| Next::Step(self.id, span))
    }

    /// Takes in the next runs of a replica.
    fn heard(&mut self, runs: pool::Runs) {
        self.is_over = runs.is_empty();
        self.from = runs.last().map_or(self.from, |(_, end)| *end);
        self.runs = runs;
        self.runs.reverse();
    }

    /// The map of a replica is damaged: nobody knows where its blocks are.
    fn cannot_know(&mut self) {
        if let Some(span) = Span::new(Lba(self.from), Blocks(1)) {
            self.judge(span, Err(IoError::Medium { span }));
        }
        (self.runs, self.is_over) = (Vec::new(), true);
    }

    /// Everything was looked at: bad places are looked at again for a while, as targets rewrite
    /// them. Of a snapshot they rewrite what its replica still shows.
    fn look_again(&mut self, now: MonotonicTime) -> Option<(Id, Span)> {
        let (at, until) = match self.mending {
            Some(mending) => mending,
            None => *self.mending.insert((0, now.after(MEND))),
        };
        if now >= until || self.status.places.is_empty() {
            self.mending = None;
            return None;
        }
        if let Some(place) = self.status.places.get(at) {
            self.mending = Some((at, until));
            return Some(*place);
        }
        self.mending = Some((0, until));
        self.due = now.after(LOOK);
        None
    }

    /// A bad place was looked at again.
    fn judge_again(
        &mut self,
        (at, until): (usize, MonotonicTime),
        result: Completion,
        now: MonotonicTime,
    ) {
        let is_good = result.is_ok();
        if is_good && at < self.status.places.len() {
            let (id, span) = self.status.places.remove(at);
            self.told = self.told.saturating_sub(usize::from(at < self.told));
            *self.status.repaired_of.entry(id).or_default() += span.len().0;
        }
        // As long as targets get on, it waits.
        let until = if is_good { now.after(MEND) } else { until };
        self.mending = Some((at + usize::from(!is_good), until));
        self.due = now;
    }

    /// Places that nobody was told of.
    fn tell(&mut self, is_its: impl Fn(Id) -> bool, most: usize) -> Vec<(u64, u64)> {
        let mut runs = Vec::new();
        let mut rest = self.status.places.split_off(self.told.min(self.status.places.len()));
        let mut kept = Vec::new();
        for (id, span) in rest.drain(..) {
            if runs.len() < most && is_its(id) {
                runs.push((span.start().0, span.end().0));
                self.status.places.push((id, span));
            } else {
                kept.push((id, span));
            }
        }
        self.told = self.status.places.len();
        self.status.places.append(&mut kept);
        runs
    }

    /// Notes how a step went. Damage is told from its first block on: the rest is looked at again.
    fn judge(&mut self, span: Span, result: Completion) {
        let is_unproven = matches!(result, Err(IoError::Unproven { .. }));
        let bad = match result {
            Ok(()) => None,
            Err(
                IoError::Checksum { span: bad }
                | IoError::Medium { span: bad }
                | IoError::Unproven { span: bad },
            ) => Some(bad),
            Err(_) => {
                // It was deleted or shrunk meanwhile: on to the next.
                self.runs.clear();
                self.is_over = true;
                return;
            }
        };
        let seen = bad.map_or(span.end(), Span::end);
        self.status.checked.0 += (seen.0 - span.start().0) * 4096;
        if let Some(bad) = bad {
            let counted =
                if is_unproven { &mut self.status.unproven } else { &mut self.status.bad };
            counted.0 += bad.len().0;
            if !is_unproven {
                *self.status.bad_of.entry(self.id).or_default() += bad.len().0;
            }
            if !is_unproven && self.status.places.len() < ScrubStatus::PLACES {
                self.status.places.push((self.id, bad));
            }
            if seen < span.end() {
                self.runs.push((seen.0, span.end().0));
            }
        }
        self.status.total = Bytes(self.status.total.0.max(self.status.checked.0));
    }
}
