//! The machine: what it holds, what comes in, and in which order it thinks.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use block::{BlockSize, Blocks, Command, Completion, Fault, Geometry, Instant, Lane, Numbered};
use model::{
    ChildState, ChildStatus, LabelConflict, NoteStamp, Problem, Progress, Rebuild, ReplicaId,
    SnapshotId, TargetId, TargetState, Timestamp,
};

use crate::api::{Answer, Effect, Event, Io, Opening, Session, Token};
use crate::check::Checks;
use crate::child::Child;
use crate::chunk::Copy;
use crate::dirty::Dirty;
use crate::pace::{Bucket, Yielding};
use crate::policy::Policy;
use crate::rebuild::{Job, Resync};
use crate::record::Recorder;
use crate::resize::Resizing;
use crate::slots::{Slot, Slots};
use crate::snapshot::{Leftovers, Snapshotting};
use crate::stop::Stopping;
use crate::write::Op;

/// Number of something in the lane: a command, a copy or a snapshot. Never used twice.
pub(crate) type Ticket = u64;

/// What an I/O is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Op(Ticket),
    Copy(Ticket),
    Keep(u64),
    JobFlush,
    Snapshot,
    Leftover(SnapshotId),
    Measure,
    Prove,
}

/// Something asked of a replica.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    pub(crate) slot: Slot,
    pub(crate) session: Session,
    pub(crate) purpose: Purpose,
    pub(crate) sent: Instant,
}

/// What commands need to know of the children while nothing but commands is under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Calm {
    pub(crate) in_sync: Slots,
    pub(crate) writers: Slots,
    pub(crate) must: Slots,
}

impl Calm {
    fn of(mirror: &Mirror) -> Calm {
        Calm { in_sync: mirror.in_sync(), writers: mirror.writers(), must: mirror.must() }
    }
}

/// The mirrored volume of one target.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own, not a state")]
pub struct Mirror {
    pub(crate) policy: Policy,
    pub(crate) geometry: Geometry,
    pub(crate) recorder: Recorder,
    pub(crate) state: TargetState,
    pub(crate) children: Vec<Option<Child>>,
    pub(crate) dirty: Dirty,
    /// Number of the newest note, and what of it the sequence on disk is.
    pub(crate) version: u64,
    pub(crate) lane: Lane<Ticket>,
    pub(crate) ops: Numbered<Op>,
    /// How many reads go around it, see `ask_around`.
    pub(crate) around: usize,
    pub(crate) copies: BTreeMap<Ticket, Copy>,
    pub(crate) checks: Checks,
    /// Commands that wait for their limits, in order.
    pub(crate) paced: VecDeque<Ticket>,
    /// Reads that wait until their blocks are out of doubt, or checked.
    pub(crate) aside: Vec<Ticket>,
    pub(crate) buckets: (Bucket, Bucket),
    /// Commands that had to wait for them.
    pub(crate) held_back: u64,
    pub(crate) rebuild_bucket: Bucket,
    pub(crate) ios: Numbered<Pending>,
    pub(crate) jobs: BTreeMap<Slot, Job>,
    pub(crate) resync: Resync,
    pub(crate) history: VecDeque<Rebuild>,
    pub(crate) snapshot: Option<Snapshotting>,
    pub(crate) leftovers: Leftovers,
    pub(crate) resizing: Option<Resizing>,
    pub(crate) reserved: crate::reservation::Reserved,
    pub(crate) stopping: Option<Stopping>,
    /// Orders that wait for the set of replicas to be recorded.
    pub(crate) waiting_orders: Vec<(Token, model::Generation)>,
    pub(crate) effects: VecDeque<Effect>,
    pub(crate) ready: Vec<Ticket>,
    pub(crate) yielding: Yielding,
    /// When the first command or copy that a child was too busy for may go again.
    pub(crate) wake_at: Option<Instant>,
    pub(crate) free_buffers: Vec<u32>,
    pub(crate) last_io: u64,
    pub(crate) last_session: u64,
    pub(crate) last_ticket: Ticket,
    pub(crate) rebuilds_begun: u64,
    pub(crate) opened: bool,
    /// Acknowledged writes that no flush covered may be lost: the next flush says so.
    pub(crate) lost: bool,
    /// The number of the last loss of a copy. A write that was acknowledged after a loss is on all
    /// copies in sync, so where they differ the one whose last loss is the oldest has the most.
    pub(crate) losses: u64,
    /// Copies that contradict the store, once it has said so, and before.
    pub(crate) conflicts: Vec<LabelConflict>,
    pub(crate) suspected: Vec<LabelConflict>,
    /// A note that every copy in sync has.
    pub(crate) settled: Option<NoteStamp>,
    /// The oldest of the notes that it was opened with, and the last one before its own.
    pub(crate) base: Option<(NoteStamp, u64)>,
    /// The newest note that each copy had when it left.
    pub(crate) left: BTreeMap<ReplicaId, NoteStamp>,
    /// When the newest note was made.
    pub(crate) noted: Instant,
    /// Since when hosts wait, and whether they have waited long enough.
    pub(crate) hold_from: Option<Instant>,
    pub(crate) failing: bool,
    /// Something changed that commands may wait for.
    pub(crate) poke: bool,
    /// Something, if nothing but commands is under way, and nothing changed that others look at
    /// since everything was looked at. Whatever changes a child or the record takes it away first.
    pub(crate) calm: Option<Calm>,
    pub(crate) sweep_at: Option<Instant>,
    pub(crate) own_flush: Option<Ticket>,
    pub(crate) now: Instant,
    pub(crate) begun: Instant,
    wall: Timestamp,
    #[cfg(test)]
    pub(crate) broken: crate::tests::Broken,
}

impl Mirror {
    /// Opens a volume whose record was just taken with a new epoch.
    pub fn open(opening: Opening, now: Instant) -> Result<Mirror, Problem> {
        let Opening { record, size, children, limits, policy, wall } = opening;
        let geometry = Geometry::new(BlockSize::B4096, size)
            .map_err(|bad| Problem::new(model::Kind::OutOfRange, bad))?;
        let mut mirror = Mirror {
            geometry,
            state: TargetState::Init,
            children: Vec::new(),
            dirty: Dirty::new(policy.region),
            version: 0,
            lane: Lane::default(),
            ops: Numbered::default(),
            around: 0,
            copies: BTreeMap::new(),
            checks: Checks::default(),
            paced: VecDeque::new(),
            aside: Vec::new(),
            buckets: (
                Bucket::new(limits.iops, now),
                Bucket::new(limits.bytes_per_second.map(|size| size.bytes().0), now),
            ),
            held_back: 0,
            rebuild_bucket: Bucket::new(policy.rebuild_limit.map(|size| size.bytes().0), now),
            ios: Numbered::default(),
            jobs: BTreeMap::new(),
            resync: Resync::default(),
            history: VecDeque::new(),
            snapshot: None,
            leftovers: Leftovers::default(),
            resizing: None,
            reserved: crate::reservation::Reserved::default(),
            stopping: None,
            waiting_orders: Vec::new(),
            effects: VecDeque::new(),
            ready: Vec::new(),
            yielding: Yielding::default(),
            wake_at: None,
            free_buffers: (0..policy.copies).rev().collect(),
            last_io: 0,
            last_session: 0,
            last_ticket: 0,
            rebuilds_begun: 0,
            opened: false,
            lost: false,
            losses: 0,
            conflicts: Vec::new(),
            suspected: Vec::new(),
            settled: None,
            base: None,
            left: BTreeMap::new(),
            noted: now,
            hold_from: Some(now),
            failing: false,
            poke: true,
            calm: None,
            sweep_at: None,
            own_flush: None,
            now,
            begun: now,
            wall,
            recorder: Recorder::new(record),
            policy,
            #[cfg(test)]
            broken: crate::tests::Broken::Nothing,
        };
        mirror.adopt_children(&children)?;
        mirror.run();
        Ok(mirror)
    }

    /// The next thing to do, if any.
    pub fn poll(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Takes a host's command. Its bytes stay the owner's, and must stay as they are until it ends.
    pub fn submit(&mut self, token: Token, command: Command, now: Instant) {
        self.take(Op::new(Some(token), command, now), now);
    }

    pub(crate) fn take(&mut self, op: Op, now: Instant) {
        self.pass(now);
        match self.admit(op.command) {
            Ok(()) => {
                self.enter(op);
            }
            Err(fault) => self.done(op.token, Err(fault)),
        }
        self.serve();
    }

    pub(crate) fn admit(&self, command: Command) -> Result<(), Fault> {
        command.check(self.geometry)?;
        if let Some(fault) = self.verdict() {
            return Err(fault);
        }
        if self.stopping.is_some() {
            return Err(Fault::Unreachable);
        }
        if self.ops.len() + self.around >= self.policy.commands {
            return Err(Fault::Busy);
        }
        Ok(())
    }

    /// Says what happened.
    pub fn apply(&mut self, event: Event, now: Instant) {
        self.pass(now);
        self.calm =
            self.calm.filter(|_| matches!(event, Event::Ended { result: Ok(Answer::Done), .. }));
        match event {
            Event::Attached { session, result } => self.attached(session, result),
            Event::Lost { session, why } => self.lost(session, why),
            Event::Ended { io, result } => self.ended(io, result),
            Event::Recorded { io, result } => self.recorded(io, result),
        }
        self.serve();
    }

    /// Lets time pass.
    pub fn tick(&mut self, now: Instant) {
        self.pass(now);
        if self.wake_at.is_some_and(|at| at <= self.now) {
            let of_ops = self.ops.iter().filter_map(|(_, op)| op.not_before);
            let of_copies = self.copies.values().filter_map(|copy| copy.not_before);
            self.wake_at = of_ops.chain(of_copies).filter(|at| *at > self.now).min();
        }
        self.poke = true;
        self.run();
    }

    /// A child was too busy: when to ask it again.
    pub(crate) fn later(&mut self) -> Instant {
        let at = self.now.after(self.policy.busy.0);
        self.wake_at = Some(self.wake_at.map_or(at, |earlier| earlier.min(at)));
        at
    }

    fn pass(&mut self, now: Instant) {
        self.now = self.now.max(now);
    }

    fn ended(&mut self, io: Io, result: Result<Answer, Fault>) {
        let Some(pending) = self.ios.remove(io.0) else { return };
        self.calm = self.calm.filter(|_| matches!(pending.purpose, Purpose::Op(_)));
        let done = result.as_ref().map(|_| ()).map_err(|fault| *fault);
        if done.is_ok() {
            self.proved(&pending, io.0);
        }
        match pending.purpose {
            Purpose::Op(ticket) => self.op_answered(ticket, pending, done),
            Purpose::Copy(ticket) => self.copy_answered(ticket, pending, result),
            Purpose::Keep(version) => self.kept(pending, version, done),
            Purpose::JobFlush => self.job_flushed(pending, done),
            Purpose::Snapshot => self.snapshot_answered(pending, &result),
            Purpose::Leftover(id) => self.leftover_answered(pending, id, done),
            Purpose::Measure => self.measured(pending, &result),
            Purpose::Prove => self.prove_answered(pending, io.0, done),
        }
    }

    /// Goes on with commands. That is all there is to do while nothing else is under way, and they
    /// do not stir anything else up.
    fn serve(&mut self) {
        if self.calm.is_some() {
            self.pump_pace();
            while let Some(ticket) = self.ready.pop() {
                self.granted(ticket);
            }
        }
        if self.calm.is_none() || self.poke || !self.aside.is_empty() {
            self.run();
        }
    }

    /// Whether nothing but commands is under way.
    fn is_calm(&self) -> bool {
        let is_changing =
            self.snapshot.is_some() || self.resizing.is_some() || self.stopping.is_some();
        let has_others = !self.jobs.is_empty()
            || !self.copies.is_empty()
            || !self.checks.is_empty()
            || !self.aside.is_empty()
            || !self.waiting_orders.is_empty();
        self.opened && self.hold_from.is_none() && !self.failing && !is_changing && !has_others
    }

    /// What is known while nothing but commands is under way, else found out.
    pub(crate) fn known(&self, known: fn(Calm) -> Slots, find: impl Fn(&Mirror) -> Slots) -> Slots {
        match self.calm {
            Some(calm) => {
                #[cfg(test)]
                assert_eq!(known(calm), find(self), "something changed that commands rely on");
                known(calm)
            }
            None => find(self),
        }
    }

    /// Thinks until nothing more happens by itself.
    fn run(&mut self) {
        self.calm = None;
        loop {
            self.pump_attach();
            self.pump_confirm();
            self.pump_open();
            self.reconcile();
            self.pump_record();
            self.pump_pace();
            self.pump_aside();
            while let Some(ticket) = self.ready.pop() {
                self.granted(ticket);
            }
            if core::mem::take(&mut self.poke) {
                self.advance_all();
            }
            self.pump_rebuilds();
            self.pump_copies();
            self.pump_sweep();
            self.pump_snapshot();
            self.pump_resize();
            self.pump_stop();
            self.pump_notes();
            self.update_state();
            self.pump_reservations();
            self.forget_removed();
            self.pump_orders();
            if self.ready.is_empty() && !self.poke {
                break;
            }
        }
        self.calm = self.is_calm().then(|| Calm::of(self));
        #[cfg(test)]
        self.check();
    }

    /// Something may run that waited for others.
    fn granted(&mut self, ticket: Ticket) {
        if let Some(op) = self.ops.get_mut(ticket) {
            op.granted = true;
            self.advance(ticket);
        } else if self.copies.contains_key(&ticket) {
            self.copy_granted(ticket);
        } else {
            self.snapshot_granted(ticket);
        }
    }

    fn advance_all(&mut self) {
        for ticket in self.ops.those(|op| op.granted && op.outstanding.is_empty()) {
            self.advance(ticket);
        }
        let idle = |(ticket, copy): (&Ticket, &Copy)| copy.is_stuck().then_some(*ticket);
        let tickets: Vec<Ticket> = self.copies.iter().filter_map(idle).collect();
        for ticket in tickets {
            self.advance_copy(ticket);
        }
    }

    /// When to call [`Mirror::tick`], if nothing happens before.
    pub fn timeout(&self) -> Option<Instant> {
        let mut at = [
            self.hold_from.filter(|_| !self.failing).map(|from| from.after(self.policy.hold)),
            (!self.opened).then(|| self.open_at()).filter(|at| *at > self.now),
            self.recorder.retry_at(),
            self.sweep_at,
            self.wake_at,
            self.stopping.as_ref().map(|stopping| stopping.deadline),
            self.snapshot.as_ref().map(|snapshot| snapshot.deadline),
        ]
        .into_iter()
        .flatten()
        .chain(self.each_child().filter_map(|(_, child)| child.retry_at))
        .min();
        if !self.paced.is_empty() {
            let opens = [self.buckets.0.opens(), self.buckets.1.opens()];
            at = at.into_iter().chain(opens.into_iter().flatten()).min();
        }
        if !self.jobs.is_empty() || !self.checks.is_empty() {
            let next = self.yielding.next(self.now, &self.policy);
            at = at.into_iter().chain(self.rebuild_bucket.opens()).chain(next).min();
        }
        if self.is_down() { None } else { at }
    }

    pub(crate) fn next_ticket(&mut self) -> Ticket {
        self.last_ticket += 1;
        self.last_ticket
    }

    /// Names something asked of a child, if it is attached.
    pub(crate) fn ask(&mut self, slot: Slot, purpose: Purpose) -> Option<(Io, &Child, Session)> {
        let sent = self.now;
        self.last_io += 1;
        let io = Io(self.last_io);
        let child = self.children.get(usize::from(slot.0))?.as_ref()?;
        let session = child.session.filter(|_| child.attached)?;
        self.ios.insert(io.0, Pending { slot, session, purpose, sent });
        Some((io, child, session))
    }

    pub(crate) fn done(&mut self, token: Option<Token>, result: Completion) {
        self.effects.extend(token.map(|token| Effect::Done { token, result }));
    }

    pub(crate) fn wall(&self) -> Timestamp {
        self.wall.after(self.now.since(self.begun))
    }

    /// The shape of the volume.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// How it serves.
    pub fn state(&self) -> TargetState {
        self.state
    }

    /// Its children.
    pub fn children(&self) -> Vec<ChildStatus> {
        let progress = |slot| self.jobs.get(&slot).map(|job| job.rebuild.progress);
        self.each_child()
            .map(|(slot, child)| ChildStatus {
                replica: child.replica,
                state: child.state,
                progress: progress(slot).filter(|_| child.state == ChildState::Rebuilding),
            })
            .collect()
    }

    /// How many commands of hosts had to wait for a limit.
    pub fn held_back(&self) -> u64 {
        self.held_back
    }

    /// Rebuilds that run or wait, then those that ended, newest last.
    pub fn rebuilds(&self) -> impl Iterator<Item = &Rebuild> {
        self.history.iter().chain(self.jobs.values().map(|job| &job.rebuild))
    }

    pub(crate) fn target(&self) -> TargetId {
        self.recorder.target()
    }

    pub(crate) fn progress(&self, total: Blocks, done: Blocks, copied: Blocks) -> Progress {
        let size = |blocks| self.geometry.block_size().bytes_of(blocks).unwrap_or_default().into();
        Progress { total: size(total), done: size(done), copied: size(copied) }
    }
}
