//! One namespace by several paths: which path takes a command, what is sent again, when to give up.
//!
//! Events come in with the time they happened, decisions are polled as [`Effect`]s. The owner of
//! the connections carries them out and reports back. A path is one controller; its owner spreads
//! commands over its queues.
//!
//! Invariants:
//! - Each accepted request is completed exactly once.
//! - A command that failed by fault of its path is sent again by another one (every block command
//!   may be carried out twice), at most [`Policy::hold_for`] after it was submitted. Any other
//!   fault is the caller's to see.
//! - No path carries more commands than it has slots; no more than [`Policy::requests`] requests
//!   exist. Nothing is allocated once they do.
//! - A path that is not live is tried again with growing delays until it is abandoned.
//!
//! Deliberately not here: connections, queues, buffers, and the question whether a late write of a
//! lost path may still land. Where fencing does not rule that out, [`Policy::settle`] does.

mod backoff;
mod path;
#[cfg(test)]
mod tests;

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;

use block::{Command, Completion, ErrorClass, IoError};

use crate::time::Instant;
use crate::wire::AnaState;
use path::Path;
pub use path::{PathId, PathState};

/// How patient to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Most requests at once; their ids are below it.
    pub requests: u32,
    /// How long after its submission a request still waits for a path.
    pub hold_for: Duration,
    /// How long a change waits after its path was lost before another path repeats it: longer than
    /// a lost controller may still work on it. Linux does not wait.
    pub settle: Duration,
    /// How long a live path that failed commands is left alone.
    pub suspect_for: Duration,
    /// Delay before the first attempt to reconnect.
    pub reconnect_first: Duration,
    /// Longest delay between attempts.
    pub reconnect_most: Duration,
    /// How long a path may be down before it is given up; for ever if nothing is said.
    pub abandon_after: Option<Duration>,
    /// For the chance in delays; differs from host to host.
    pub seed: u64,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            requests: 1024,
            hold_for: Duration::from_mins(1),
            settle: Duration::ZERO,
            suspect_for: Duration::from_millis(100),
            reconnect_first: Duration::from_millis(100),
            reconnect_most: Duration::from_secs(10),
            abandon_after: Some(Duration::from_mins(10)),
            seed: 0,
        }
    }
}

/// Names a request: below [`Policy::requests`], chosen by the caller, free again once completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestId(pub u32);

/// What happened to a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathEvent {
    /// Its controller is up and its queues are ready.
    Live {
        /// Commands that it can carry at once.
        slots: u32,
        /// State of the namespace's group.
        ana: AnaState,
    },
    /// The state of the namespace's group changed.
    Ana(AnaState),
    /// It could not be connected, or it was lost. To be told before the ends of its commands.
    Lost,
}

/// What is to be done, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Connect this path; answer with [`PathEvent::Live`] or [`PathEvent::Lost`].
    Connect(PathId),
    /// Send a command by this path; answer with [`Multipath::ended`].
    Send {
        /// By which.
        path: PathId,
        /// For whom.
        request: RequestId,
        /// What.
        command: Command,
    },
    /// Read the ANA log of this path again: it failed commands that it should have carried out.
    Refresh(PathId),
    /// A request is over.
    Complete {
        /// Which.
        request: RequestId,
        /// How it ended.
        result: Completion,
    },
    /// Close this path and forget it: it was down for too long.
    Abandon(PathId),
}

/// A command that a path was given is over, one way or another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// For whom it was sent.
    pub request: RequestId,
    /// How it ended.
    pub result: Completion,
}

/// Why a request was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The id is in use, or not below the limit.
    #[error("request id {0} is in use or too large")]
    Id(u32),
    /// No path will ever come.
    #[error("every path is gone")]
    NoPath,
}

/// Several paths to one namespace.
pub struct Multipath {
    policy: Policy,
    paths: Vec<Path>,
    requests: Vec<Option<Request>>,
    /// Requests that wait for a path, oldest first.
    held: VecDeque<RequestId>,
    effects: VecDeque<Effect>,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    command: Command,
    give_up_at: Instant,
    place: Place,
}

#[derive(Clone, Copy, Debug)]
enum Place {
    /// Waits, not to be sent before a time.
    Held { not_before: Instant },
    /// Was sent.
    Sent { path: PathId, at: Instant },
}

impl Multipath {
    /// No path yet.
    pub fn new(policy: Policy) -> Multipath {
        let count = usize::try_from(policy.requests).unwrap_or_default();
        Multipath {
            policy,
            paths: Vec::new(),
            requests: alloc::vec![None; count],
            held: VecDeque::with_capacity(count),
            effects: VecDeque::with_capacity(count),
        }
    }

    /// A new path; `near` if it is on this machine or otherwise close. A path with this id that is
    /// known already stays as it is.
    pub fn add(&mut self, now: Instant, id: PathId, near: bool) {
        self.paths.retain(|path| path.id != id || path.has_hope());
        if self.paths.iter().all(|path| path.id != id) {
            self.paths.push(Path::new(id, near, now, &self.policy));
            self.connect_due(now);
        }
    }

    /// A path is not to be used any more; its commands still end.
    pub fn remove(&mut self, now: Instant, id: PathId) {
        self.paths.retain(|path| path.id != id);
        self.release(now);
        self.fail_hopeless();
    }

    /// State of a path, if it is known.
    pub fn path(&self, id: PathId) -> Option<PathState> {
        self.paths.iter().find(|path| path.id == id).map(|path| path.state)
    }

    /// How many requests wait for a path.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Whether a command could be sent now.
    pub fn is_usable(&self, now: Instant) -> bool {
        self.paths.iter().any(|path| path.score(now).is_some())
    }

    /// Something happened to a path.
    pub fn on(&mut self, now: Instant, id: PathId, event: PathEvent) {
        let Some(path) = self.paths.iter_mut().find(|path| path.id == id) else { return };
        match event {
            PathEvent::Live { slots, ana } => path.on_live(slots, ana),
            PathEvent::Ana(ana) => path.on_ana(ana),
            PathEvent::Lost => path.on_lost(now),
        }
        self.release(now);
    }

    /// A new request.
    pub fn submit(&mut self, now: Instant, id: RequestId, command: Command) -> Result<(), Refusal> {
        if !self.paths.iter().any(Path::has_hope) {
            return Err(Refusal::NoPath);
        }
        let place = usize::try_from(id.0).ok().and_then(|at| self.requests.get_mut(at));
        let place = place.filter(|place| place.is_none()).ok_or(Refusal::Id(id.0))?;
        *place = Some(Request {
            command,
            give_up_at: now.after(self.policy.hold_for),
            place: Place::Held { not_before: now },
        });
        // In order of arrival: nobody overtakes those who wait already.
        self.held.push_back(id);
        self.release(now);
        Ok(())
    }

    /// A command that was sent is over.
    pub fn ended(&mut self, now: Instant, ended: Ended) {
        let Ended { request: id, result } = ended;
        let Some(request) = self.request(id) else { return };
        let Place::Sent { path: by, at } = request.place else { return };
        let path = self.paths.iter_mut().find(|path| path.id == by);
        if let Some(path) = path {
            path.in_flight = path.in_flight.saturating_sub(1);
            match result {
                Err(fault) if fault.class() == ErrorClass::Path => {
                    let until = now.after(self.policy.suspect_for);
                    if matches!(path.state, PathState::Live { .. }) {
                        if path.trusted_at(now).is_none() {
                            self.effects.push_back(Effect::Refresh(by));
                        }
                        path.suspect(until);
                    }
                }
                _ => path.measured(now.since(at)),
            }
        }
        match result {
            Err(fault) if fault.class() == ErrorClass::Path => {
                self.hold_again(now, id, request, fault);
            }
            result => self.complete(id, result),
        }
        self.release(now);
        self.fail_hopeless();
    }

    /// What is to be done.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// When to call [`Multipath::handle_timeout`].
    pub fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        let connect = self.paths.iter().filter_map(|path| match path.state {
            PathState::Waiting { until } => Some(until),
            _ => None,
        });
        let abandon = self.paths.iter().filter_map(|path| path.abandon_at(&self.policy));
        let held = self.held.iter().filter_map(|id| self.request(*id)).flat_map(|request| {
            let Place::Held { not_before } = request.place else { return [None, None] };
            [Some(request.give_up_at), (not_before > now).then_some(not_before)]
        });
        // Trust matters only to those who wait for it.
        let trust = self.paths.iter().filter_map(|path| path.trusted_at(now));
        let trust = trust.filter(|_| !self.held.is_empty());
        connect.chain(abandon).chain(held.flatten()).chain(trust).min()
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        for path in &mut self.paths {
            if path.abandon_at(&self.policy).is_some_and(|at| at <= now) {
                path.state = PathState::Abandoned;
                self.effects.push_back(Effect::Abandon(path.id));
            }
        }
        self.connect_due(now);
        self.release(now);
        let mut at = 0;
        while let Some(id) = self.held.get(at).copied() {
            if self.request(id).is_some_and(|request| request.give_up_at <= now) {
                self.held.remove(at);
                self.complete(id, Err(IoError::TimedOut));
            } else {
                at += 1;
            }
        }
        self.fail_hopeless();
    }

    fn request(&self, id: RequestId) -> Option<Request> {
        usize::try_from(id.0).ok().and_then(|at| *self.requests.get(at)?)
    }

    fn place(&mut self, id: RequestId, request: Option<Request>) {
        let place = usize::try_from(id.0).ok().and_then(|at| self.requests.get_mut(at));
        if let Some(place) = place {
            *place = request;
        }
    }

    fn connect_due(&mut self, now: Instant) {
        for path in &mut self.paths {
            if let PathState::Waiting { until } = path.state
                && until <= now
            {
                path.state = PathState::Connecting;
                self.effects.push_back(Effect::Connect(path.id));
            }
        }
    }

    /// Puts a command that failed by fault of its path back, before those that came after it.
    fn hold_again(&mut self, now: Instant, id: RequestId, mut request: Request, fault: IoError) {
        let doubtful = fault.may_be_applied() && request.command.is_mutation();
        let settle = if doubtful { self.policy.settle } else { Duration::ZERO };
        request.place = Place::Held { not_before: now.after(settle) };
        self.place(id, Some(request));
        if request.give_up_at <= now {
            self.complete(id, Err(fault));
        } else {
            self.held.push_front(id);
        }
    }

    /// Sends what can be sent, oldest first.
    fn release(&mut self, now: Instant) {
        let mut at = 0;
        while let Some(id) = self.held.get(at).copied() {
            let Some(path) = self.best(now) else { return };
            match self.request(id) {
                Some(mut request)
                    if matches!(
                        request.place, Place::Held { not_before } if not_before <= now
                    ) =>
                {
                    request.place = Place::Sent { path, at: now };
                    self.place(id, Some(request));
                    self.held.remove(at);
                    self.took(path);
                    let command = request.command;
                    self.effects.push_back(Effect::Send { path, request: id, command });
                }
                _ => at += 1,
            }
        }
    }

    /// The best path, if it has room.
    fn best(&self, now: Instant) -> Option<PathId> {
        let scored = self.paths.iter().filter_map(|path| Some((path.score(now)?, path)));
        let (_, path) = scored.min_by_key(|(score, _)| *score)?;
        path.has_room().then_some(path.id)
    }

    fn took(&mut self, id: PathId) {
        if let Some(path) = self.paths.iter_mut().find(|path| path.id == id) {
            path.in_flight += 1;
        }
    }

    fn complete(&mut self, id: RequestId, result: Completion) {
        self.place(id, None);
        self.effects.push_back(Effect::Complete { request: id, result });
    }

    /// Without any path that may come back, nobody waits.
    fn fail_hopeless(&mut self) {
        if self.paths.iter().any(Path::has_hope) {
            return;
        }
        while let Some(id) = self.held.pop_front() {
            self.complete(id, Err(IoError::Unreachable));
        }
    }
}
