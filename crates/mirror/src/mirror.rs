//! The machine: what it holds, what comes in, and in which order it thinks.

use alloc::vec::Vec;

use block::{BlockSize, Command, Geometry, Instant, IoError};
use model::{Problem, ProblemKind, StopCause};

use crate::api::{Answer, CommandId, Effect, Event, OpenParams, RequestId, Session, StoreFault};
use crate::attachment::{Arrival, Conflicts};
use crate::commands::{CommandQueue, Op};
use crate::context::{Context, Purpose, Ticket, Verdict};
use crate::intent_log::{self, IntentLog};
use crate::lane::Lane;
use crate::rebuilder::Rebuilder;
use crate::replicas::{Replicas, StoreAnswer};
use crate::replication::Replication;
use crate::reservation::Reservations;
use crate::resize::ActiveResize;
use crate::service::Service;
use crate::shutdown::ActiveShutdown;
use crate::snapshot::{ActiveSnapshot, OrphanSnapshots};

/// The mirrored volume of one target.
#[derive(Debug)]
pub struct Mirror {
    pub(crate) base: Replication,
    pub(crate) commands: CommandQueue,
    pub(crate) rebuilder: Rebuilder,
    pub(crate) snapshot: Option<ActiveSnapshot>,
    pub(crate) orphans: OrphanSnapshots,
    pub(crate) resizing: Option<ActiveResize>,
    pub(crate) reserved: Reservations,
    pub(crate) stopping: Option<ActiveShutdown>,
    /// Orders that wait for the set of replicas to be recorded.
    pub(crate) waiting_requests: Vec<(CommandId, model::Generation)>,
}

impl Mirror {
    /// Opens a volume whose record was just taken with a new epoch.
    pub fn open(opening: OpenParams, now: Instant) -> Result<Mirror, Problem> {
        let OpenParams { record, size, children, limits, config, wall } = opening;
        let geometry = Geometry::new(BlockSize::B4096, size)
            .map_err(|bad| Problem::new(ProblemKind::OutOfRange, bad))?;
        let mut base = Replication {
            cx: Context::new(&config, geometry, wall, now),
            replicas: Replicas::new(record),
            log: IntentLog::new(config.region, now),
            lane: Lane::default(),
            service: Service::new(now),
            conflicts: Conflicts::default(),
        };
        base.replicas.adopt(&base.cx, &children)?;
        let mut mirror = Mirror {
            base,
            commands: CommandQueue::new(limits, now),
            rebuilder: Rebuilder::new(&config, now),
            snapshot: None,
            orphans: OrphanSnapshots::default(),
            resizing: None,
            reserved: Reservations::default(),
            stopping: None,
            waiting_requests: Vec::new(),
        };
        mirror.run();
        Ok(mirror)
    }

    /// The next thing to do, if any.
    pub fn poll(&mut self) -> Option<Effect> {
        self.base.cx.poll()
    }

    /// Takes a host's command. Its bytes stay the owner's, and must stay as they are until it ends.
    pub fn submit(&mut self, token: CommandId, command: Command, now: Instant) {
        self.take(Op::new(Some(token), command, now), now);
    }

    fn take(&mut self, op: Op, now: Instant) {
        self.base.cx.pass(now);
        match self.commands.admit(&self.base, op.command()) {
            Ok(()) => self.commands.enter(&mut self.base, &mut self.rebuilder, op),
            Err(fault) => self.base.cx.done(op.token(), Err(fault)),
        }
        self.serve();
    }

    /// The attachment that a read may be asked of at once, without a word to the mirror before it
    /// has ended ([`Mirror::bypass_done`]): that of a local copy in sync, if no command is under
    /// way that it might have to wait for (W2), and R1 and R2 hold. Later ones may overtake it.
    ///
    /// It may leave something to poll for ([`Mirror::is_stirred`]).
    pub fn try_bypass(&mut self, command: Command, now: Instant) -> Option<Session> {
        self.base.cx.pass(now);
        self.commands.try_bypass(&mut self.base, command)
    }

    /// A read that went around has ended; if it was answered well, [`Mirror::may_answer`] says
    /// whether its host may know; one that failed comes back next. Whether there is
    /// something to poll for.
    pub fn bypass_done(&mut self, now: Instant) -> bool {
        let is_awaited = self.commands.bypass_done(&self.base);
        if is_awaited {
            self.tick(now);
        }
        is_awaited
    }

    /// Whether what a copy read around the mirror may be answered now. If not, it comes back
    /// ([`Mirror::bypass_failed`]).
    pub fn may_answer(&self, now: Instant) -> bool {
        #[cfg(test)]
        if self.base.cx.broken == crate::tests::Broken::BypassUnchecked {
            return true;
        }
        let service = &self.base.service;
        !service.is_down() && !service.is_failing() && self.base.holds_lease(now)
    }

    /// Takes a read whose copy could not be asked around, or failed: what that has wrong is read
    /// elsewhere and repaired, as if it had been asked by the mirror.
    pub fn bypass_failed(
        &mut self,
        token: CommandId,
        command: Command,
        session: Session,
        fault: IoError,
        now: Instant,
    ) {
        let op = Op::new(Some(token), command, now).bypassed(&self.base.replicas, session, fault);
        self.take(op, now);
    }

    /// Whether there is something to poll for.
    pub fn is_stirred(&self) -> bool {
        self.base.cx.has_effects()
    }

    /// Says what happened.
    pub fn apply(&mut self, event: Event, now: Instant) {
        self.base.cx.pass(now);
        if !matches!(event, Event::Ended { result: Ok(Answer::Done), .. }) {
            self.base.cx.unsettle();
        }
        match event {
            Event::Attached { session, result } => match self.base.attached(session, result) {
                Arrival::Fine => {}
                Arrival::Fenced => self.fenced(),
                Arrival::InDoubt(regions) => self.rebuilder.redo(&regions),
            },
            Event::Lost { session, why } => self.lost(session, why),
            Event::Ended { io, result } => self.ended(io, result),
            Event::Recorded { io, result } => self.recorded(io, result),
        }
        self.serve();
    }

    fn recorded(&mut self, io: RequestId, result: Result<(), StoreFault>) {
        match self.base.replicas.recorded(&mut self.base.cx, io, result) {
            StoreAnswer::Nothing => {}
            StoreAnswer::Stored => {
                let version = self.base.change_note();
                self.base.replicas.labels_follow(version);
            }
            StoreAnswer::Fenced => self.fenced(),
            StoreAnswer::Confirmed => {
                self.base.store_confirmed();
                self.end(StopCause::LabelConflict);
            }
            StoreAnswer::Behind(epoch) => {
                self.base.store_is_behind(epoch);
                self.end(StopCause::LabelConflict);
            }
        }
    }

    /// Lets time pass.
    pub fn tick(&mut self, now: Instant) {
        self.base.cx.pass(now);
        let waiting = self.commands.busy_until().chain(self.rebuilder.busy_until());
        self.base.cx.wake_next(waiting);
        self.base.cx.rescan();
        self.run();
    }

    fn ended(&mut self, io: RequestId, result: Result<Answer, IoError>) {
        let Some(pending) = self.base.cx.answered(io) else { return };
        if !matches!(pending.purpose, Purpose::Op(_)) {
            self.base.cx.unsettle();
        }
        let done = result.as_ref().map(|_| ()).map_err(|fault| *fault);
        if done.is_ok() {
            self.base.replicas.proved(&pending, io.0);
        }
        match pending.purpose {
            Purpose::Op(ticket) => {
                let (base, rebuilder) = (&mut self.base, &mut self.rebuilder);
                let verdict = self.commands.answered(base, rebuilder, ticket, pending, done);
                if self.carry_out_verdict(verdict) {
                    self.advance(ticket);
                }
            }
            Purpose::Copy(ticket) => {
                let verdict = self.rebuilder.copy_answered(&mut self.base, ticket, pending, result);
                if self.carry_out_verdict(verdict) {
                    self.rebuilder.resume(&mut self.base, ticket);
                }
                self.end_failed_rebuild();
            }
            Purpose::Keep(_) => {
                let Replication { cx, replicas, .. } = &mut self.base;
                let verdict = intent_log::kept(cx, replicas, pending, done);
                self.carry_out_verdict(verdict);
            }
            Purpose::JobFlush => {
                let verdict = self.rebuilder.job_flushed(&mut self.base, pending, done);
                self.carry_out_verdict(verdict);
            }
            Purpose::Snapshot => self.snapshot_answered(pending, &result),
            Purpose::Leftover(id) => self.orphan_answered(pending, id, done),
            Purpose::Measure => self.measured(pending, &result),
            Purpose::Prove => {
                let Replication { cx, replicas, .. } = &mut self.base;
                let verdict = replicas.proof_answered(cx, pending, io, done);
                self.carry_out_verdict(verdict);
            }
        }
    }

    /// Draws the consequences of an answer; whether children have failed.
    fn carry_out_verdict(&mut self, verdict: Verdict) -> bool {
        match verdict {
            Verdict::Fine => false,
            Verdict::Failed(slots, reason) => {
                slots.iter().for_each(|slot| self.fail(slot, reason));
                true
            }
            Verdict::Fenced => {
                self.fenced();
                false
            }
        }
    }

    /// Goes on with commands. That is all there is to do while nothing else is under way, and they
    /// do not stir anything else up.
    fn serve(&mut self) {
        if self.base.cx.is_steady() {
            self.commands.pump_pace(&mut self.base);
            self.pump_ready();
        }
        let cx = &self.base.cx;
        if !cx.is_steady() || cx.needs_rescan() || self.commands.awaits_resync() {
            self.run();
        }
    }

    fn pump_ready(&mut self) {
        while let Some(ticket) = self.base.lane.next() {
            self.granted(ticket);
        }
    }

    /// Whether nothing but commands is under way.
    fn is_steady(&self) -> bool {
        let is_changing = self.snapshot.is_some() || self.resizing.is_some();
        let has_others = !self.rebuilder.is_idle()
            || self.commands.awaits_resync()
            || !self.waiting_requests.is_empty();
        self.base.service.is_steady() && !is_changing && !has_others
    }

    /// Thinks until nothing more happens by itself.
    fn run(&mut self) {
        self.base.cx.unsettle();
        loop {
            self.pump_replicas();
            self.commands.pump_pace(&mut self.base);
            self.commands.pump_awaiting_resync(&mut self.base, &self.rebuilder);
            self.pump_ready();
            if self.base.cx.take_rescan() {
                self.advance_all();
            }
            let may_join = !self.is_snapshotting();
            self.rebuilder.pump_rebuilds(&mut self.base, may_join);
            self.rebuilder.pump_copies(&mut self.base);
            self.expire_intents();
            self.pump_snapshot();
            self.pump_resize();
            self.pump_stop();
            self.pump_notes();
            self.follow();
            self.pump_reservations();
            self.forget_removed();
            self.pump_requests();
            if !self.base.lane.is_ready() && !self.base.cx.needs_rescan() {
                break;
            }
        }
        let steady = self.is_steady();
        self.base.cx.set_steady(steady);
        #[cfg(test)]
        self.check();
    }

    /// Attaches, asks the store and opens, when it is time.
    fn pump_replicas(&mut self) {
        let base = &mut self.base;
        if !base.service.is_down() {
            base.replicas.pump_attach(&mut base.cx);
            if base.conflicts.are_suspected() {
                base.replicas.confirm_record(&mut base.cx);
            }
        }
        base.pump_open(&mut self.reserved);
        base.reconcile();
        // Before it has opened, labels may still show that the record is not to be believed.
        if self.base.service.is_open() && !self.state_is_closing() {
            self.base.replicas.pump_record(&mut self.base.cx);
        }
    }

    /// Takes marks away that are not needed any more.
    fn expire_intents(&mut self) {
        if !self.base.service.is_active() {
            return self.base.log.stop_sweeping();
        }
        let wants_flush = self.base.log.expire(&mut self.base.cx);
        if wants_flush && !self.commands.is_flushing() && self.base.is_settled() {
            self.commands.flush_ourselves(&mut self.base, &mut self.rebuilder);
        }
    }

    fn pump_notes(&mut self) {
        let Replication { cx, replicas, log, service, .. } = &mut self.base;
        if service.is_open() && !service.is_fenced() {
            log.pump(cx, replicas, self.reserved.state());
        }
    }

    /// Follows what the children and the record are.
    fn follow(&mut self) {
        let durable = self.base.durable_version();
        if self.base.replicas.settle_labels(durable) {
            // So that each copy says that the others have this label.
            self.base.change_note();
            self.base.cx.rescan();
        }
        if self.base.service.follow(&mut self.base.cx, &self.base.replicas) {
            let detail = "no copy could be read in time; check again later";
            let problem = Problem::new(ProblemKind::Unavailable, detail);
            self.rebuilder.drop_checks(&mut self.base, &problem);
            self.base.service.expire(&mut self.base.cx, &self.base.replicas);
        }
    }

    /// Forgets children that are removed, recorded so, and have nothing under way.
    fn forget_removed(&mut self) {
        while let Some(replica) = self.base.replicas.take_removed() {
            self.base.log.forget_removed(replica);
            self.orphans.forget(replica);
            self.base.cx.rescan();
        }
    }

    /// Something may run that waited for others.
    fn granted(&mut self, ticket: Ticket) {
        if self.commands.granted(ticket) {
            self.advance(ticket);
        } else if self.rebuilder.has(ticket) {
            self.rebuilder.granted(&mut self.base, ticket);
            self.end_failed_rebuild();
        } else {
            self.snapshot_granted(ticket);
        }
    }

    /// Goes on with a command, and again if children failed by what they answered to it.
    fn advance(&mut self, ticket: Ticket) {
        loop {
            let verdict = self.commands.advance(&mut self.base, &mut self.rebuilder, ticket);
            if !self.carry_out_verdict(verdict) {
                return;
            }
        }
    }

    fn advance_all(&mut self) {
        for ticket in self.commands.stuck() {
            self.advance(ticket);
        }
        for ticket in self.rebuilder.stuck() {
            self.rebuilder.advance_copy(&mut self.base, ticket);
            self.end_failed_rebuild();
        }
    }

    /// When to call [`Mirror::tick`], if nothing happens before.
    pub fn timeout(&self) -> Option<Instant> {
        let base = &self.base;
        let mut at = [
            base.service.hold_ends(&base.cx),
            base.opens_at(),
            base.replicas.record().retry_at(),
            base.log.sweep_at(),
            base.cx.wake_at(),
            self.stopping.as_ref().map(|stopping| stopping.deadline),
            self.snapshot.as_ref().map(|snapshot| snapshot.deadline),
        ]
        .into_iter()
        .flatten()
        .chain(base.replicas.iter().filter_map(|(_, child)| child.retry_at()))
        .min();
        let limits = self.commands.timeout();
        at = at.into_iter().chain(limits).chain(self.rebuilder.timeout(&base.cx)).min();
        if base.service.is_down() { None } else { at }
    }

    /// Checks what always holds.
    #[cfg(test)]
    fn check(&self) {
        if self.base.service.is_down() {
            return;
        }
        self.base.log.check();
        for (slot, child) in self.base.replicas.iter() {
            let rebuilding = child.state() == model::ChildState::Rebuilding;
            assert_eq!(rebuilding, self.rebuilder.is_rebuilding(slot), "{child:?}");
            assert!(!child.state().takes_writes() || child.is_attached(), "{child:?}");
        }
    }

    /// Says where a child is, and how long its reads take.
    #[cfg(test)]
    pub(crate) fn place(&mut self, slot: usize, latency: core::time::Duration, local: bool) {
        self.base.replicas.place(slot, latency, local);
    }

    /// Breaks a rule on purpose.
    #[cfg(test)]
    pub(crate) fn break_rule(&mut self, rule: crate::tests::Broken) {
        self.base.cx.broken = rule;
        self.base.replicas.break_rule(rule);
    }
}
