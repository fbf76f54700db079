//! Making an attachment: registered with its epoch, alone, and told what is there.

use std::collections::BTreeSet;

use block::IoError;
use mirror::{AttachFault, ReplicaInfo};
use model::FaultReason;
use nvme::initiator::{Key, Report, Reservation};
use nvme::wire::{AcquireAction, ReservationType};
use reactor::Io;

use super::super::replica_protocol::{Described, ReplicaMessage};
use super::{ConnectionEvent, NSID, Phase, ReplicaConnection, SET_UP};

/// How often it is looked who else is registered, before it is tried again later.
const MOST_LOOKS: u32 = 8;

impl ReplicaConnection {
    pub(super) fn reserve(&mut self, reservation: Reservation, io: &mut impl Io) {
        if !self.stirred().reserve(SET_UP, NSID, reservation, io) {
            self.controller.give_up("it takes no reservation commands", io);
        }
    }

    /// A reservation command of the set-up was done.
    pub(super) fn step(&mut self, io: &mut impl Io) {
        match &mut self.phase {
            Phase::Registering => self.look(io),
            Phase::Preempting(_) => self.preempt(io),
            Phase::Acquiring => {
                self.phase = Phase::Describing;
                self.ask_set_up(ReplicaMessage::Describe, io);
            }
            _ => {}
        }
    }

    /// A conflict after the registration may only mean that others came and went meanwhile. If it
    /// means more, our registration is gone or a higher epoch has one.
    pub(super) fn may_look_again(&mut self) -> bool {
        let is_taking = matches!(self.phase, Phase::Preempting(_) | Phase::Acquiring);
        self.looks += 1;
        is_taking && self.looks < MOST_LOOKS
    }

    pub(super) fn look(&mut self, io: &mut impl Io) {
        self.phase = Phase::Looking;
        self.reserve(Reservation::Report, io);
    }

    fn ask_set_up(&mut self, topic: ReplicaMessage, io: &mut impl Io) {
        if self.stirred().send(SET_UP, NSID, topic.ask(0), io).is_err() {
            self.controller.give_up("it takes no messages", io);
        }
    }

    /// Who else is registered is known.
    pub(super) fn looked(&mut self, report: &Report, io: &mut impl Io) {
        let keys = || report.registrants.iter().map(|one| one.key.0);
        let ours = keys().filter(|key| *key == self.epoch).count();
        if ours == 0 || keys().any(|key| key > self.epoch) {
            return self.refuse(AttachFault::Fenced, io);
        }
        let mut others: BTreeSet<u64> = keys().filter(|key| *key < self.epoch).collect();
        if ours > 1 {
            // An earlier attachment of this target.
            others.insert(self.epoch);
        }
        self.phase = Phase::Preempting(others);
        self.preempt(io);
    }

    fn preempt(&mut self, io: &mut impl Io) {
        let Phase::Preempting(others) = &mut self.phase else { return };
        let kind = ReservationType::ExclusiveAccess;
        let current = Key(self.epoch);
        let (action, preempt) = if let Some(other) = others.pop_first() {
            (AcquireAction::PreemptAndAbort, Key(other))
        } else {
            self.phase = Phase::Acquiring;
            (AcquireAction::Acquire, Key(0))
        };
        self.reserve(Reservation::Acquire { action, kind, current, preempt }, io);
    }

    /// An answer of the set-up.
    pub(super) fn learned(&mut self, answer: Result<Vec<u8>, IoError>, io: &mut impl Io) {
        let bytes = match answer {
            Ok(bytes) => bytes,
            Err(fault) => return self.give_up(fault, io),
        };
        match &self.phase {
            Phase::Describing => match Described::decode(&bytes) {
                Some(described) => {
                    self.phase = Phase::Noting(described);
                    self.ask_set_up(ReplicaMessage::Note, io);
                }
                None => self.fail(FaultReason::Mismatch, io),
            },
            Phase::Noting(Described { size, incarnation }) => {
                let (size, incarnation) = (*size, *incarnation);
                let note = match bytes.as_slice() {
                    [] => None,
                    bytes => match model::envelope::decode(bytes) {
                        Ok(note) => Some(note),
                        Err(error) => {
                            tracing::error!(%error, "sync metadata of a replica cannot be read");
                            return self.fail(FaultReason::Mismatch, io);
                        }
                    },
                };
                self.phase = Phase::Up;
                let found = ReplicaInfo { size, incarnation, note };
                self.came.push_back(ConnectionEvent::Attached(Ok(Box::new(found))));
            }
            _ => {}
        }
    }

    /// The set-up failed.
    pub(super) fn give_up(&mut self, fault: IoError, io: &mut impl Io) {
        match fault {
            IoError::Fenced => self.refuse(AttachFault::Fenced, io),
            IoError::TimedOut => self.fail(FaultReason::TimedOut, io),
            IoError::Unreachable => self.fail(FaultReason::ConnectionLost, io),
            _ => self.fail(FaultReason::CannotOpen, io),
        }
    }

    fn fail(&mut self, reason: FaultReason, io: &mut impl Io) {
        self.refuse(AttachFault::Failed(reason), io);
    }

    fn refuse(&mut self, why: AttachFault, io: &mut impl Io) {
        if !matches!(self.phase, Phase::Over) {
            self.phase = Phase::Over;
            self.came.push_back(ConnectionEvent::Attached(Err(why)));
            self.stirred().give_up("it cannot be attached", io);
        }
    }
}
