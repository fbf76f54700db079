//! What every machine of a mirror works with: time, numbers, what was asked of replicas, effects.
//!
//! Invariants: time never goes back; a number names one thing and is never used twice; effects
//! leave in the order in which they were asked for.

use alloc::collections::VecDeque;

use block::{Completion, Geometry, Instant, SequenceMap};
use model::{FaultReason, Problem, SnapshotId, Timestamp};

use crate::api::{CommandId, Effect, RequestId, Session};
use crate::config::MirrorConfig;
use crate::replicas::{ChildSet, ChildSlot};

/// Number of something in the range queue: a command, a copy or a snapshot. Never used twice.
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

/// What an answer means beyond what it was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Verdict {
    /// Nothing.
    Fine,
    /// These children have failed.
    Failed(ChildSet, FaultReason),
    /// Somebody newer owns the volume.
    Fenced,
}

/// Time, numbers, what was asked of replicas, and effects.
#[derive(Debug)]
pub(crate) struct Context {
    config: MirrorConfig,
    geometry: Geometry,
    now: Instant,
    begun: Instant,
    /// The time of day when it began.
    wall: Timestamp,
    last_request: u64,
    last_ticket: Ticket,
    requests: SequenceMap<Pending>,
    effects: VecDeque<Effect>,
    /// Something changed that commands may wait for.
    needs_rescan: bool,
    /// Nothing but commands is under way, and nothing changed that others look at since everything
    /// was looked at. Whatever changes a child, the record or the note ends it first.
    steady: bool,
    /// When the first command or copy that a child was too busy for may go again.
    wake_at: Option<Instant>,
    #[cfg(test)]
    pub(crate) broken: crate::tests::Broken,
}

impl Context {
    pub(crate) fn new(
        config: &MirrorConfig,
        geometry: Geometry,
        wall: Timestamp,
        now: Instant,
    ) -> Context {
        Context {
            config: *config,
            geometry,
            now,
            begun: now,
            wall,
            last_request: 0,
            last_ticket: 0,
            requests: SequenceMap::default(),
            effects: VecDeque::new(),
            needs_rescan: true,
            steady: false,
            wake_at: None,
            #[cfg(test)]
            broken: crate::tests::Broken::Nothing,
        }
    }

    pub(crate) fn config(&self) -> &MirrorConfig {
        &self.config
    }

    pub(crate) fn geometry(&self) -> Geometry {
        self.geometry
    }

    pub(crate) fn grow(&mut self, geometry: Geometry) {
        self.geometry = geometry;
    }

    pub(crate) fn now(&self) -> Instant {
        self.now
    }

    pub(crate) fn begun(&self) -> Instant {
        self.begun
    }

    pub(crate) fn pass(&mut self, now: Instant) {
        self.now = self.now.max(now);
    }

    pub(crate) fn wall(&self) -> Timestamp {
        self.wall.after(self.now.since(self.begun))
    }

    pub(crate) fn next_ticket(&mut self) -> Ticket {
        self.last_ticket += 1;
        self.last_ticket
    }

    pub(crate) fn next_request(&mut self) -> RequestId {
        self.last_request += 1;
        RequestId(self.last_request)
    }

    pub(crate) fn last_request(&self) -> u64 {
        self.last_request
    }

    /// Something was asked of a replica under this number.
    pub(crate) fn asked(&mut self, io: RequestId, pending: Pending) {
        self.requests.insert(io.0, pending);
    }

    /// What was asked under this number, and has ended.
    pub(crate) fn answered(&mut self, io: RequestId) -> Option<Pending> {
        self.requests.remove(io.0)
    }

    pub(crate) fn has_requests(&self) -> bool {
        !self.requests.is_empty()
    }

    pub(crate) fn has_requests_of(&self, slot: ChildSlot) -> bool {
        self.requests.iter().any(|(_, pending)| pending.slot == slot)
    }

    pub(crate) fn emit(&mut self, effect: Effect) {
        self.effects.push_back(effect);
    }

    /// The next effect to carry out.
    pub(crate) fn poll(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    pub(crate) fn has_effects(&self) -> bool {
        !self.effects.is_empty()
    }

    /// An order has ended.
    pub(crate) fn answer(&mut self, token: CommandId, result: Result<(), Problem>) {
        self.emit(Effect::Answer { token, result });
    }

    /// A host's command has ended; one of our own is nobody's.
    pub(crate) fn done(&mut self, token: Option<CommandId>, result: Completion) {
        self.effects.extend(token.map(|token| Effect::Done { token, result }));
    }

    /// Something changed that commands may wait for.
    pub(crate) fn rescan(&mut self) {
        self.needs_rescan = true;
    }

    pub(crate) fn needs_rescan(&self) -> bool {
        self.needs_rescan
    }

    pub(crate) fn take_rescan(&mut self) -> bool {
        core::mem::take(&mut self.needs_rescan)
    }

    /// Something else than commands is under way.
    pub(crate) fn unsettle(&mut self) {
        self.steady = false;
    }

    pub(crate) fn set_steady(&mut self, steady: bool) {
        self.steady = steady;
    }

    pub(crate) fn is_steady(&self) -> bool {
        self.steady
    }

    /// A child was too busy: when to ask it again.
    pub(crate) fn later(&mut self) -> Instant {
        let at = self.now.after(self.config.busy.0);
        self.wake_at = Some(self.wake_at.map_or(at, |earlier| earlier.min(at)));
        at
    }

    pub(crate) fn wake_at(&self) -> Option<Instant> {
        self.wake_at
    }

    /// Looks for the next of these if the first is due.
    pub(crate) fn wake_next(&mut self, waiting: impl Iterator<Item = Instant>) {
        if self.wake_at.is_some_and(|at| at <= self.now) {
            self.wake_at = waiting.filter(|at| *at > self.now).min();
        }
    }
}
