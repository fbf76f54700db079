//! One attachment of one replica: a way to it, its fence, and what is asked of it.
//!
//! ```text
//!   Connecting ─► Registering ─► Looking ─► Preempting ─► Acquiring ─► Describing ─► Noting ─► Up
//!        │             │            │           │             │            │           │       │
//!        └─────────────┴────────────┴──────┬────┴─────────────┴────────────┴───────────┴───────┘
//!                                          ▼ Over
//! ```
//!
//! Every attachment is a host of its own, so that it preempts-and-aborts also the one before it of
//! the same target: when it is up, nothing that was sent earlier can take effect any more.
//!
//! Invariants:
//! - Whatever was asked ends exactly once, with its data, at the latest when it is over.
//! - Nothing is asked before it is up.

mod damage;
mod requests;
mod setup;

pub(super) use damage::DamageEvent;

use std::collections::{BTreeSet, VecDeque};

use block::{Completion, IoError, SequenceMap, Span};
use mirror::{Answer, AttachFault, Buffer, ReplicaInfo, RequestId};
use model::{Epoch, FaultReason, ReplicaId, SnapshotId};
use nvme::initiator::{ConnectRefused, Key, Message, Reservation};
use nvme::wire::RegisterAction;
use reactor::{Io, Outcome, Token};

use super::replica_protocol::{self, Described, ReplicaMessage, runs_of};
use super::volume::PATIENCE;
use crate::client::{Controller, ControllerEvent, Rejected, Request};
use crate::clock::instant;
use crate::counters::OpTimer;
use crate::device::Data;

/// A replica is the only namespace of its subsystem.
pub(super) const NSID: u32 = 1;

/// Tag of the commands of the set-up: one at a time, and no name of the mirror.
const SET_UP: u64 = u64::MAX;

/// Notice that another host took our registration away.
const PREEMPTED: u8 = 1;

/// Most that is asked of a replica of the same core at once.
const MOST_NEAR: usize = 256;

/// An attachment.
pub(super) struct ReplicaConnection {
    pub(super) replica: ReplicaId,
    controller: Controller,
    /// Whether block commands take the short way, to a replica of the same core.
    is_near: bool,
    epoch: u64,
    phase: Phase,
    /// How often others came between.
    looks: u32,
    /// What was sent.
    asked: SequenceMap<Asked>,
    /// How many reads were sent that go around the mirror, see `around`.
    around: usize,
    /// What waits for room; no more than a mirror asks at once.
    waiting: VecDeque<Work>,
    came: VecDeque<ConnectionEvent>,
    /// Whether the controller may have something to tell, or to send.
    is_stirred: bool,
    is_unsettled: bool,
}

#[derive(Debug)]
enum Phase {
    Connecting,
    Registering,
    Looking,
    /// With the keys of others that are still registered.
    Preempting(BTreeSet<u64>),
    Acquiring,
    Describing,
    Noting(Described),
    Up,
    Over,
}

/// What an answer is turned into.
#[derive(Debug)]
enum Asked {
    Block(Buffer, OpTimer),
    /// A block command that took the short way.
    Passed(Buffer, OpTimer),
    Told,
    Snapshot(SnapshotId),
    /// Who took a snapshot that was there.
    Taken(SnapshotId),
    Size,
    /// The runs of blocks so far.
    Written(Span, Vec<Span>),
}

#[derive(Debug)]
enum Work {
    Block(Request, Buffer, OpTimer),
    Send(u64, Message, Asked),
}

/// What came of it.
#[derive(Debug)]
pub(super) enum ConnectionEvent {
    /// About damage of the replica and its snapshots.
    Damage(DamageEvent),
    /// A block command is to take the short way.
    Pass(Request),
    /// It is up, or failed to be.
    Attached(Result<Box<ReplicaInfo>, AttachFault>),
    /// It was up.
    Lost(AttachFault),
    /// It was detached, and nothing of it is left.
    Over,
    /// Something asked has ended.
    Ended {
        /// What.
        io: RequestId,
        /// How.
        result: Result<Answer, IoError>,
        /// Where its bytes belong.
        buffer: Buffer,
        /// Its bytes.
        data: Data,
        /// What counts, of a block command.
        counted: Option<OpTimer>,
    },
}

impl ReplicaConnection {
    /// Begins to attach by a controller that begins to connect. What may be near is tried by the
    /// short way.
    pub(super) fn new(
        (replica, is_near): (ReplicaId, bool),
        controller: Controller,
        epoch: Epoch,
    ) -> ReplicaConnection {
        ReplicaConnection {
            replica,
            controller,
            is_near,
            epoch: epoch.number(),
            phase: Phase::Connecting,
            looks: 0,
            asked: SequenceMap::default(),
            around: 0,
            waiting: VecDeque::new(),
            came: VecDeque::new(),
            is_stirred: true,
            is_unsettled: true,
        }
    }

    pub(super) fn on(&mut self, token: Token, outcome: Outcome, io: &mut impl Io) {
        self.stirred().on(token, outcome, io);
    }

    /// The number of its controller.
    pub(super) fn way(&self) -> u64 {
        self.controller.id()
    }

    /// Ends it now; what came of everything asked is polled afterwards.
    ///
    /// It must stay until it says that it is over: the kernel may still receive into a buffer.
    pub(super) fn detach(&mut self, io: &mut impl Io) {
        if self.controller.is_over() {
            self.came.push_back(ConnectionEvent::Over);
        }
        self.phase = Phase::Over;
        self.stirred().give_up("detached", io);
    }

    /// The controller, of which something will come.
    fn stirred(&mut self) -> &mut Controller {
        (self.is_stirred, self.is_unsettled) = (true, true);
        &mut self.controller
    }

    /// A batch of events is over.
    pub(super) fn settle(&mut self, io: &mut impl Io) {
        // Block commands that took the short way leave it nothing to send.
        if core::mem::take(&mut self.is_unsettled) {
            self.controller.settle(io);
        }
    }

    pub(super) fn handle_timeout(&mut self, io: &mut impl Io) {
        self.stirred().handle_timeout(io);
        let now = instant(io);
        let is_late = self.asked.iter().any(
            |(_, asked)| matches!(asked, Asked::Passed(_, counted) if counted.age(now) >= PATIENCE),
        );
        if is_late {
            self.is_late(io);
        }
    }

    /// A block command that took the short way has ended.
    pub(super) fn local_done(
        &mut self,
        tag: u64,
        result: Completion,
        data: Data,
        io: &mut impl Io,
    ) {
        // It may have been given up before.
        self.ended(tag, result.map(|()| Vec::new()), data, io);
    }

    /// There is no short way: it is on another core.
    pub(super) fn not_near(&mut self, request: Request, io: &impl Io) {
        self.is_far();
        if let Some(Asked::Passed(buffer, counted)) = self.asked.remove(request.tag) {
            self.ask(Work::Block(request, buffer, counted), io);
        }
    }

    /// It is on another core.
    pub(super) fn is_far(&mut self) {
        self.is_near = false;
    }

    /// Carries out a block command; hands it back if it is to take the short way now.
    pub(super) fn block(
        &mut self,
        request: Request,
        buffer: Buffer,
        io: &impl Io,
    ) -> Option<Request> {
        let counted = OpTimer::new(request.command, instant(io));
        if self.waiting.is_empty() && self.has_room_near() {
            self.asked.insert(request.tag, Asked::Passed(buffer, counted));
            return Some(request);
        }
        self.ask(Work::Block(request, buffer, counted), io);
        None
    }

    /// Whether a block command may take the short way now.
    fn has_room_near(&self) -> bool {
        let asked = self.asked.len() + self.around;
        self.is_near && asked < MOST_NEAR && matches!(self.phase, Phase::Up)
    }

    /// Lets a read take the short way on its own, if it may.
    pub(super) fn allow_bypass(&mut self) -> bool {
        let may_go = self.waiting.is_empty() && self.has_room_near();
        self.around += usize::from(may_go);
        may_go
    }

    /// A read that it let around has ended.
    pub(super) fn bypass_done(&mut self, io: &impl Io) {
        self.around = self.around.saturating_sub(1);
        self.send_waiting(io);
    }

    /// Something did not end in time.
    pub(super) fn is_late(&mut self, io: &mut impl Io) {
        self.stirred().give_up("it did not answer in time", io);
    }

    /// Whether it is to be polled or settled.
    pub(super) fn is_waiting(&self) -> bool {
        !self.came.is_empty() || self.is_stirred || self.is_unsettled
    }

    /// What came of it, one at a time, until there is nothing more.
    pub(super) fn poll(&mut self, io: &mut impl Io) -> Option<ConnectionEvent> {
        loop {
            if let Some(came) = self.came.pop_front() {
                return Some(came);
            }
            if !self.is_stirred {
                return None;
            }
            match self.controller.poll(io) {
                Some(happened) => self.happened(happened, io),
                None => self.is_stirred = false,
            }
        }
    }

    fn ask(&mut self, work: Work, io: &impl Io) {
        if self.waiting.is_empty() {
            if let Some(work) = self.send(work, io) {
                self.waiting.push_back(work);
            }
        } else {
            self.waiting.push_back(work);
        }
    }

    /// Sends what waits, as far as there is room.
    fn send_waiting(&mut self, io: &impl Io) {
        while let Some(work) = self.waiting.pop_front() {
            if let Some(work) = self.send(work, io) {
                self.waiting.push_front(work);
                return;
            }
        }
    }

    /// Sends it; hands it back if there is no room.
    fn send(&mut self, work: Work, io: &impl Io) -> Option<Work> {
        if !matches!(self.phase, Phase::Up) {
            self.end_unsent(work, IoError::Unreachable);
            return None;
        }
        match work {
            Work::Block(..) if self.is_near && !self.has_room_near() => Some(work),
            Work::Block(request, buffer, counted) if self.is_near => {
                self.asked.insert(request.tag, Asked::Passed(buffer, counted));
                self.came.push_back(ConnectionEvent::Pass(request));
                None
            }
            Work::Block(request, buffer, counted) => {
                let tag = request.tag;
                match self.stirred().submit(request, io) {
                    Ok(()) => {
                        self.asked.insert(tag, Asked::Block(buffer, counted));
                        None
                    }
                    Err(Rejected { fault: IoError::Busy, request }) => {
                        Some(Work::Block(request, buffer, counted))
                    }
                    Err(Rejected { fault, request }) => {
                        self.end_unsent(Work::Block(request, buffer, counted), fault);
                        None
                    }
                }
            }
            Work::Send(tag, message, asked) => match self.stirred().send(tag, NSID, message, io) {
                Ok(()) => {
                    self.asked.insert(tag, asked);
                    None
                }
                Err(message) => Some(Work::Send(tag, message, asked)),
            },
        }
    }

    fn end_unsent(&mut self, work: Work, fault: IoError) {
        let (tag, buffer, data, counted) = match work {
            Work::Block(request, buffer, counted) => {
                (request.tag, buffer, request.data, Some(counted))
            }
            Work::Send(tag, ..) => (tag, Buffer::None, Data::None, None),
        };
        let (io, result) = (RequestId(tag), Err(fault));
        self.came.push_back(ConnectionEvent::Ended { io, result, buffer, data, counted });
    }

    fn happened(&mut self, happened: ControllerEvent, io: &mut impl Io) {
        match happened {
            ControllerEvent::Ready => {
                self.phase = Phase::Registering;
                let (action, new) = (RegisterAction::Replace, Key(self.epoch));
                let register = Reservation::Register { action, current: Key(0), new, force: true };
                self.reserve(register, io);
            }
            ControllerEvent::Done { tag: SET_UP, result, .. } => match result {
                Ok(()) => self.step(io),
                Err(IoError::Fenced) if self.may_look_again() => self.look(io),
                Err(fault) => self.give_up(fault, io),
            },
            ControllerEvent::Reported { result, .. } => match result {
                Ok(report) => self.looked(&report, io),
                Err(fault) => self.give_up(fault, io),
            },
            ControllerEvent::Replied { tag: SET_UP, result } => self.learned(result, io),
            ControllerEvent::Replied { tag: damage::FOUND, result } => self.found_damaged(result),
            ControllerEvent::Replied { tag: damage::FOUND_IN_SNAPSHOTS, result } => {
                self.found_in_snapshots(result);
            }
            ControllerEvent::Replied { tag, result } if damage::SNAPSHOT_STEPS.contains(&tag) => {
                self.stepped_snapshot(tag, result);
            }
            ControllerEvent::Done { tag, result, .. } if damage::SNAPSHOT_STEPS.contains(&tag) => {
                self.stepped_snapshot(tag, result.map(|()| Vec::new()));
            }
            ControllerEvent::Done { tag, result, data } => {
                self.ended(tag, result.map(|()| Vec::new()), data, io);
            }
            ControllerEvent::Replied { tag, result } => self.ended(tag, result, Data::None, io),
            ControllerEvent::Lost { why } => self.lost(&why),
            // Whoever did that owns the replica: also one that asks nothing is to know.
            ControllerEvent::Notice(PREEMPTED) if matches!(self.phase, Phase::Up) => {
                self.came.push_back(ConnectionEvent::Lost(AttachFault::Fenced));
            }
            // To one that is not up yet, the next command of the set-up says the same.
            ControllerEvent::Notice(_)
            | ControllerEvent::Namespaces
            | ControllerEvent::Ana
            | ControllerEvent::Discovery
            | ControllerEvent::Answered(..) => {}
        }
    }

    fn lost(&mut self, why: &str) {
        let was = core::mem::replace(&mut self.phase, Phase::Over);
        for work in core::mem::take(&mut self.waiting) {
            self.end_unsent(work, IoError::Unreachable);
        }
        // What took the short way is still there; a later attachment waits for it.
        for (tag, asked) in self.asked.take_all() {
            if let Asked::Passed(buffer, counted) = asked {
                let (io, result, counted) =
                    (RequestId(tag), Err(IoError::Unreachable), Some(counted));
                self.came.push_back(ConnectionEvent::Ended {
                    io,
                    result,
                    buffer,
                    data: Data::None,
                    counted,
                });
            }
        }
        let is_stranger = self.controller.refusal().is_some_and(ConnectRefused::is_unauthenticated);
        let reason = AttachFault::Failed(if is_stranger {
            FaultReason::Unauthenticated
        } else {
            FaultReason::ConnectionLost
        });
        match was {
            Phase::Over => self.came.push_back(ConnectionEvent::Over),
            Phase::Up => {
                tracing::info!(replica = %self.replica, why, "replica lost; will reconnect");
                self.came.push_back(ConnectionEvent::Lost(reason));
            }
            _ => {
                tracing::debug!(replica = %self.replica, why, "a replica cannot be attached");
                self.came.push_back(ConnectionEvent::Attached(Err(reason)));
            }
        }
    }

    /// Something asked has ended.
    fn ended(&mut self, tag: u64, result: Result<Vec<u8>, IoError>, data: Data, io: &mut impl Io) {
        let Some(asked) = self.asked.remove(tag) else { return };
        let (mut buffer, mut counted) = (Buffer::None, None);
        let result = match (asked, result) {
            (Asked::Block(of, begun) | Asked::Passed(of, begun), result) => {
                (buffer, counted) = (of, Some(begun));
                result.map(|_| Answer::Done)
            }
            (Asked::Snapshot(id), Err(IoError::Miscompare { .. })) => {
                let message = ReplicaMessage::Taken.ask(replica_protocol::tail(id));
                return self.ask(Work::Send(tag, message, Asked::Taken(id)), io);
            }
            (Asked::Taken(id), result) => result.and_then(|bytes| {
                // One that is gone meanwhile can be taken now.
                replica_protocol::existed(&bytes, id).ok_or(IoError::Busy)
            }),
            (Asked::Told | Asked::Snapshot(_), result) => result.map(|_| Answer::Done),
            (Asked::Size, result) => result.and_then(|bytes| {
                let described = Described::decode(&bytes).ok_or(IoError::Internal)?;
                Ok(Answer::Size(described.size))
            }),
            (Asked::Written(span, mut runs), Ok(bytes)) => match runs_of(&bytes, span) {
                Ok((found, next)) => {
                    runs.extend(found);
                    if let Some(next) = next {
                        let message = ReplicaMessage::Written.ask(next);
                        return self.ask(Work::Send(tag, message, Asked::Written(span, runs)), io);
                    }
                    Ok(Answer::Written(runs))
                }
                Err(fault) => Err(fault),
            },
            (Asked::Written(..), Err(fault)) => Err(fault),
        };
        self.came.push_back(ConnectionEvent::Ended {
            io: RequestId(tag),
            result,
            buffer,
            data,
            counted,
        });
        self.send_waiting(io);
    }
}
