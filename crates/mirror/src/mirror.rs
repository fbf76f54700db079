//! The machine: what it holds, what comes in, and in which order it thinks.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use block::{
    BlockSize, Blocks, Command, Completion, Geometry, Instant, IoError, RangeQueue, SequenceMap,
};
use model::{
    LabelConflict, Problem, Progress, Rebuild, ReplicaId, SnapshotId, SyncStamp, TargetId,
    TargetState, Timestamp,
};

use crate::api::{Answer, CommandId, Effect, Event, OpenParams, RequestId, Session};
use crate::check::Checks;
use crate::child::Child;
use crate::child_set::{ChildSet, ChildSlot};
use crate::chunk::ChunkCopy;
use crate::config::MirrorConfig;
use crate::dirty_map::DirtyMaps;
use crate::rebuild::{Job, Resync};
use crate::record::RecordWriter;
use crate::resize::ActiveResize;
use crate::shutdown::ActiveShutdown;
use crate::snapshot::{ActiveSnapshot, OrphanSnapshots};
use crate::throttle::{RebuildThrottle, TokenBucket};
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
    pub(crate) slot: ChildSlot,
    pub(crate) session: Session,
    pub(crate) purpose: Purpose,
    pub(crate) sent: Instant,
}

/// What commands need to know of the children while nothing but commands is under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SteadyState {
    pub(crate) in_sync: ChildSet,
    pub(crate) write_targets: ChildSet,
    pub(crate) required_acks: ChildSet,
}

impl SteadyState {
    fn of(mirror: &Mirror) -> SteadyState {
        SteadyState {
            in_sync: mirror.in_sync(),
            write_targets: mirror.write_targets(),
            required_acks: mirror.required_acks(),
        }
    }
}

/// The mirrored volume of one target.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own, not a state")]
pub struct Mirror {
    pub(crate) config: MirrorConfig,
    pub(crate) geometry: Geometry,
    pub(crate) record_writer: RecordWriter,
    pub(crate) state: TargetState,
    pub(crate) children: Vec<Option<Child>>,
    pub(crate) dirty: DirtyMaps,
    /// Number of the newest note, and what of it the sequence on disk is.
    pub(crate) version: u64,
    pub(crate) ranges: RangeQueue<Ticket>,
    pub(crate) ops: SequenceMap<Op>,
    /// How many reads go around it, see `try_bypass`.
    pub(crate) bypass_reads: usize,
    pub(crate) copies: BTreeMap<Ticket, ChunkCopy>,
    pub(crate) checks: Checks,
    /// Commands that wait for their limits, in order.
    pub(crate) paced: VecDeque<Ticket>,
    /// Reads that wait until their blocks are out of doubt, or checked.
    pub(crate) awaiting_resync: Vec<Ticket>,
    pub(crate) buckets: (TokenBucket, TokenBucket),
    /// Commands that had to wait for them.
    pub(crate) throttled: u64,
    pub(crate) rebuild_bucket: TokenBucket,
    pub(crate) ios: SequenceMap<Pending>,
    pub(crate) jobs: BTreeMap<ChildSlot, Job>,
    pub(crate) resync: Resync,
    pub(crate) history: VecDeque<Rebuild>,
    pub(crate) snapshot: Option<ActiveSnapshot>,
    pub(crate) orphans: OrphanSnapshots,
    pub(crate) resizing: Option<ActiveResize>,
    pub(crate) reserved: crate::reservation::ReservationState,
    pub(crate) stopping: Option<ActiveShutdown>,
    /// Orders that wait for the set of replicas to be recorded.
    pub(crate) waiting_requests: Vec<(CommandId, model::Generation)>,
    pub(crate) effects: VecDeque<Effect>,
    pub(crate) ready: Vec<Ticket>,
    pub(crate) throttle: RebuildThrottle,
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
    pub(crate) settled: Option<SyncStamp>,
    /// The oldest of the notes that it was opened with, and the last one before its own.
    pub(crate) base: Option<(SyncStamp, u64)>,
    /// The newest note that each copy had when it left.
    pub(crate) left: BTreeMap<ReplicaId, SyncStamp>,
    /// When the newest note was made.
    pub(crate) noted: Instant,
    /// Since when hosts wait, and whether they have waited long enough.
    pub(crate) hold_from: Option<Instant>,
    pub(crate) failing: bool,
    /// Something changed that commands may wait for.
    pub(crate) needs_rescan: bool,
    /// Something, if nothing but commands is under way, and nothing changed that others look at
    /// since everything was looked at. Whatever changes a child or the record takes it away first.
    pub(crate) steady: Option<SteadyState>,
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
    pub fn open(opening: OpenParams, now: Instant) -> Result<Mirror, Problem> {
        let OpenParams { record, size, children, limits, config, wall } = opening;
        let geometry = Geometry::new(BlockSize::B4096, size)
            .map_err(|bad| Problem::new(model::ProblemKind::OutOfRange, bad))?;
        let mut mirror = Mirror {
            geometry,
            state: TargetState::Init,
            children: Vec::new(),
            dirty: DirtyMaps::new(config.region),
            version: 0,
            ranges: RangeQueue::default(),
            ops: SequenceMap::default(),
            bypass_reads: 0,
            copies: BTreeMap::new(),
            checks: Checks::default(),
            paced: VecDeque::new(),
            awaiting_resync: Vec::new(),
            buckets: (
                TokenBucket::new(limits.iops, now),
                TokenBucket::new(limits.bytes_per_second.map(|size| size.bytes().0), now),
            ),
            throttled: 0,
            rebuild_bucket: TokenBucket::new(config.rebuild_limit.map(|size| size.bytes().0), now),
            ios: SequenceMap::default(),
            jobs: BTreeMap::new(),
            resync: Resync::default(),
            history: VecDeque::new(),
            snapshot: None,
            orphans: OrphanSnapshots::default(),
            resizing: None,
            reserved: crate::reservation::ReservationState::default(),
            stopping: None,
            waiting_requests: Vec::new(),
            effects: VecDeque::new(),
            ready: Vec::new(),
            throttle: RebuildThrottle::default(),
            wake_at: None,
            free_buffers: (0..config.copies).rev().collect(),
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
            needs_rescan: true,
            steady: None,
            sweep_at: None,
            own_flush: None,
            now,
            begun: now,
            wall,
            record_writer: RecordWriter::new(record),
            config,
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
    pub fn submit(&mut self, token: CommandId, command: Command, now: Instant) {
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

    pub(crate) fn admit(&self, command: Command) -> Result<(), IoError> {
        command.check(self.geometry)?;
        if let Some(fault) = self.terminal_error() {
            return Err(fault);
        }
        if self.stopping.is_some() {
            return Err(IoError::Unreachable);
        }
        if self.ops.len() + self.bypass_reads >= self.config.commands {
            return Err(IoError::Busy);
        }
        Ok(())
    }

    /// Says what happened.
    pub fn apply(&mut self, event: Event, now: Instant) {
        self.pass(now);
        self.steady =
            self.steady.filter(|_| matches!(event, Event::Ended { result: Ok(Answer::Done), .. }));
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
        self.needs_rescan = true;
        self.run();
    }

    /// A child was too busy: when to ask it again.
    pub(crate) fn later(&mut self) -> Instant {
        let at = self.now.after(self.config.busy.0);
        self.wake_at = Some(self.wake_at.map_or(at, |earlier| earlier.min(at)));
        at
    }

    fn pass(&mut self, now: Instant) {
        self.now = self.now.max(now);
    }

    fn ended(&mut self, io: RequestId, result: Result<Answer, IoError>) {
        let Some(pending) = self.ios.remove(io.0) else { return };
        self.steady = self.steady.filter(|_| matches!(pending.purpose, Purpose::Op(_)));
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
            Purpose::Leftover(id) => self.orphan_answered(pending, id, done),
            Purpose::Measure => self.measured(pending, &result),
            Purpose::Prove => self.prove_answered(pending, io.0, done),
        }
    }

    /// Goes on with commands. That is all there is to do while nothing else is under way, and they
    /// do not stir anything else up.
    fn serve(&mut self) {
        if self.steady.is_some() {
            self.pump_pace();
            while let Some(ticket) = self.ready.pop() {
                self.granted(ticket);
            }
        }
        if self.steady.is_none() || self.needs_rescan || !self.awaiting_resync.is_empty() {
            self.run();
        }
    }

    /// Whether nothing but commands is under way.
    fn is_steady(&self) -> bool {
        let is_changing =
            self.snapshot.is_some() || self.resizing.is_some() || self.stopping.is_some();
        let has_others = !self.jobs.is_empty()
            || !self.copies.is_empty()
            || !self.checks.is_empty()
            || !self.awaiting_resync.is_empty()
            || !self.waiting_requests.is_empty();
        self.opened && self.hold_from.is_none() && !self.failing && !is_changing && !has_others
    }

    /// What is known while nothing but commands is under way, else found out.
    pub(crate) fn cached_or(
        &self,
        known: fn(SteadyState) -> ChildSet,
        find: impl Fn(&Mirror) -> ChildSet,
    ) -> ChildSet {
        match self.steady {
            Some(steady) => {
                #[cfg(test)]
                assert_eq!(known(steady), find(self), "something changed that commands rely on");
                known(steady)
            }
            None => find(self),
        }
    }

    /// Thinks until nothing more happens by itself.
    fn run(&mut self) {
        self.steady = None;
        loop {
            self.pump_attach();
            self.pump_confirm();
            self.pump_open();
            self.reconcile();
            self.pump_record();
            self.pump_pace();
            self.pump_awaiting_resync();
            while let Some(ticket) = self.ready.pop() {
                self.granted(ticket);
            }
            if core::mem::take(&mut self.needs_rescan) {
                self.advance_all();
            }
            self.pump_rebuilds();
            self.pump_copies();
            self.expire_intents();
            self.pump_snapshot();
            self.pump_resize();
            self.pump_stop();
            self.pump_notes();
            self.update_state();
            self.pump_reservations();
            self.forget_removed();
            self.pump_requests();
            if self.ready.is_empty() && !self.needs_rescan {
                break;
            }
        }
        self.steady = self.is_steady().then(|| SteadyState::of(self));
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
        let idle = |(ticket, copy): (&Ticket, &ChunkCopy)| copy.is_stuck().then_some(*ticket);
        let tickets: Vec<Ticket> = self.copies.iter().filter_map(idle).collect();
        for ticket in tickets {
            self.advance_copy(ticket);
        }
    }

    /// When to call [`Mirror::tick`], if nothing happens before.
    pub fn timeout(&self) -> Option<Instant> {
        let mut at = [
            self.hold_from.filter(|_| !self.failing).map(|from| from.after(self.config.hold)),
            (!self.opened).then(|| self.open_at()).filter(|at| *at > self.now),
            self.record_writer.retry_at(),
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
            let next = self.throttle.next(self.now, &self.config);
            at = at.into_iter().chain(self.rebuild_bucket.opens()).chain(next).min();
        }
        if self.is_down() { None } else { at }
    }

    pub(crate) fn next_ticket(&mut self) -> Ticket {
        self.last_ticket += 1;
        self.last_ticket
    }

    /// Names something asked of a child, if it is attached.
    pub(crate) fn ask(
        &mut self,
        slot: ChildSlot,
        purpose: Purpose,
    ) -> Option<(RequestId, &Child, Session)> {
        let sent = self.now;
        self.last_io += 1;
        let io = RequestId(self.last_io);
        let child = self.children.get(usize::from(slot.0))?.as_ref()?;
        let session = child.session.filter(|_| child.attached)?;
        self.ios.insert(io.0, Pending { slot, session, purpose, sent });
        Some((io, child, session))
    }

    pub(crate) fn done(&mut self, token: Option<CommandId>, result: Completion) {
        self.effects.extend(token.map(|token| Effect::Done { token, result }));
    }

    pub(crate) fn wall(&self) -> Timestamp {
        self.wall.after(self.now.since(self.begun))
    }

    pub(crate) fn target(&self) -> TargetId {
        self.record_writer.target()
    }

    pub(crate) fn progress(&self, total: Blocks, done: Blocks, copied: Blocks) -> Progress {
        let size = |blocks| self.geometry.block_size().bytes_of(blocks).unwrap_or_default().into();
        Progress { total: size(total), done: size(done), copied: size(copied) }
    }
}
